//! Signing in and out, and the first operator.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::header::{SET_COOKIE, USER_AGENT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{NewAudit, NewUser, NewWebSession, Role, Setup, UserRow};
use utoipa::ToSchema;

use super::extract::Json as Body;
use super::problem::Problem;
use super::users::{RoleName, check_name};
use crate::auth::caller::{Caller, Via, note};
use crate::auth::client::Client;
use crate::auth::limit::seconds;
use crate::auth::{cookie, origin, password, secret};
use crate::config::MOST_SESSION;
use crate::site::Site;

/// A signed-in user's session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedIn {
    /// The user.
    pub user: SessionUser,
    /// Every request of a browser that changes something sends this as `X-CSRF-Token`. Null for a
    /// program with a token, which needs none.
    pub csrf: Option<String>,
}

/// The signed-in user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionUser {
    /// The name to sign in with.
    pub name: String,
    /// Role.
    pub role: RoleName,
}

impl SessionUser {
    fn of(user: &UserRow) -> Self {
        Self {
            name: user.name.clone(),
            role: user.role.into(),
        }
    }
}

/// Client of a request without a session; refused from another site.
#[derive(Debug)]
pub struct AnonymousClient {
    client: Client,
    agent: String,
}

impl FromRequestParts<Arc<Site>> for AnonymousClient {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Problem> {
        // Without this, another site could sign a browser in as another user.
        if origin::is_foreign(&parts.headers, site.settings.public_url.as_ref()) {
            return Err(Problem::cross_site(
                "it comes from a page of another site; if this is the address that you use, set \
                 --public-url to it",
            ));
        }
        let agent = parts.headers.get(USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok());
        Ok(Self {
            client: Client::of(parts, &site.settings.trusted_proxies),
            agent: service::peer_text::plain(agent.unwrap_or_default()),
        })
    }
}

/// Current session
#[utoipa::path(get, path = "/api/v1/session", tag = "session", operation_id = "session",
    responses((status = 200, body = SignedIn)))]
pub async fn session(
    State(site): State<Arc<Site>>,
    caller: Result<Caller, Problem>,
) -> Result<Json<SignedIn>, Problem> {
    let caller = match caller {
        Ok(caller) => caller,
        Err(mut problem) => {
            if problem.status == StatusCode::UNAUTHORIZED.as_u16() {
                problem.setup_needed = Some(site.store.users().setup_open().await?);
            }
            return Err(problem);
        }
    };
    Ok(Json(SignedIn {
        user: SessionUser::of(&caller.user),
        csrf: match &caller.via {
            Via::Session { csrf, .. } => Some(secret::encode(csrf)),
            Via::Token { .. } => None,
        },
    }))
}

/// Credentials of a sign-in.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SignIn {
    /// The name.
    #[schema(required = true)]
    pub name: String,
    /// The password.
    #[schema(required = true, format = Password)]
    pub password: String,
}

/// Signs in
#[utoipa::path(post, path = "/api/v1/session", tag = "session", operation_id = "sign_in",
    request_body = SignIn, responses((status = 200, body = SignedIn)))]
pub async fn sign_in(
    State(site): State<Arc<Site>>,
    visitor: AnonymousClient,
    Body(given): Body<SignIn>,
) -> Result<(HeaderMap, Json<SignedIn>), Problem> {
    let now = Instant::now();
    let address = visitor.client.group();
    let audit = |outcome: &str| NewAudit {
        actor: given.name.clone(),
        via: "password".to_owned(),
        action: "session.create".to_owned(),
        target: String::new(),
        detail: json!({}).to_string(),
        outcome: outcome.to_owned(),
        address: visitor.client.ip.to_string(),
    };
    if let Err(wait) = site.limits.sign_in(&given.name, address, now) {
        site.metrics.sign_in("limited");
        // Limited attempts cost a client nothing, so their lines are limited, too.
        if site.limits.notes.take(address, now).is_ok() {
            note(&site, audit("limited")).await;
        }
        return Err(Problem::too_many(
            "too many attempts to sign in; wait, and then try again",
            seconds(wait),
        ));
    }
    let found = match given.name.len() {
        1..=255 => site.store.users().get(&given.name).await?,
        _ => None,
    };
    let (user, stored) = match found {
        Some((user, stored)) => (Some(user), stored),
        None => (None, None),
    };
    let fits = site.passwords.is(given.password, stored.clone()).await?;
    let user = user.filter(|user| fits && user.disabled_ms.is_none());
    let answer = match user.zip(stored) {
        Some((user, stored)) => begin(&site, &user, stored, &visitor).await?,
        None => None,
    };
    let Some(answer) = answer else {
        site.metrics.sign_in("refused");
        note(&site, audit("refused")).await;
        return Err(Problem::refused("the name or the password is not right"));
    };
    site.limits.signed_in(&given.name, address);
    site.metrics.sign_in("ok");
    note(&site, audit("ok")).await;
    Ok(answer)
}

/// Begins a session, unless the user was disabled or the password changed while it was being
/// checked.
async fn begin(
    site: &Site,
    user: &UserRow,
    password: String,
    visitor: &AnonymousClient,
) -> Result<Option<(HeaderMap, Json<SignedIn>)>, Problem> {
    let value = secret::new_secret()?;
    let csrf = secret::random()?;
    let ttl = MOST_SESSION;
    let is_in = site
        .store
        .web_sessions()
        .add(&NewWebSession {
            hash: secret::hash(&value).ok_or_else(Problem::internal)?,
            user_id: user.id,
            password,
            csrf: csrf.to_vec(),
            ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
            address: visitor.client.ip.to_string(),
            agent: visitor.agent.clone(),
        })
        .await?;
    if !is_in {
        return Ok(None);
    }
    let secure = site.is_secure(&visitor.client);
    let headers = with_cookie(&cookie::set(&value, secure, ttl.as_secs()))?;
    let signed_in = SignedIn {
        user: SessionUser::of(user),
        csrf: Some(secret::encode(&csrf)),
    };
    Ok(Some((headers, Json(signed_in))))
}

fn with_cookie(cookie: &str) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_str(cookie).map_err(|_| Problem::internal())?;
    headers.insert(SET_COOKIE, value);
    Ok(headers)
}

/// Signs out
#[utoipa::path(delete, path = "/api/v1/session", tag = "session", operation_id = "sign_out",
    responses((status = 204, description = "Signed out")))]
pub async fn sign_out(
    State(site): State<Arc<Site>>,
    caller: Caller,
) -> Result<(StatusCode, HeaderMap), Problem> {
    let Via::Session { hash, .. } = &caller.via else {
        let problem = Problem::forbidden("a token is not signed out but revoked");
        return Err(caller.refused(&site, "session.end", "", problem).await);
    };
    let done: Result<bool, Problem> = site
        .store
        .web_sessions()
        .end(hash)
        .await
        .map_err(Problem::from);
    caller
        .note(&site, "session.end", "", json!({}), &done)
        .await;
    site.rights_revoked();
    done?;
    let headers = with_cookie(&cookie::clear(site.is_secure(&caller.client)))?;
    Ok((StatusCode::NO_CONTENT, headers))
}

/// The first operator.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FirstOperator {
    /// Part after the `#` of the link printed by the console.
    #[schema(required = true)]
    pub token: String,
    /// The name to sign in with.
    #[schema(required = true, min_length = 1, max_length = 100)]
    pub name: String,
    /// The password.
    #[schema(required = true, format = Password, min_length = 10)]
    pub password: String,
}

/// Creates the first operator, and signs them in
///
/// Works only with the link printed by the console at its first start (or by `flexfeed-console
/// setup-link`), and only without other users.
#[utoipa::path(post, path = "/api/v1/setup", tag = "session", operation_id = "setup",
    request_body = FirstOperator, responses((status = 201, body = SignedIn)))]
pub async fn setup(
    State(site): State<Arc<Site>>,
    visitor: AnonymousClient,
    Body(given): Body<FirstOperator>,
) -> Result<(StatusCode, HeaderMap, Json<SignedIn>), Problem> {
    let (now, address) = (Instant::now(), visitor.client.group());
    let actor = given.name.clone();
    let audit = |outcome: String| NewAudit {
        actor,
        via: "setup link".to_owned(),
        action: "setup".to_owned(),
        target: String::new(),
        detail: json!({}).to_string(),
        outcome,
        address: visitor.client.ip.to_string(),
    };
    if let Err(wait) = site.limits.by_address.take(address, now) {
        // Limited attempts cost a client nothing, so their lines are limited, too.
        if site.limits.notes.take(address, now).is_ok() {
            note(&site, audit("limited".to_owned())).await;
        }
        return Err(Problem::too_many(
            "too many attempts; wait, and then try again",
            seconds(wait),
        ));
    }
    let done = first_operator(&site, given).await;
    let outcome = done
        .as_ref()
        .map_or_else(Problem::to_string, |_| "ok".to_owned());
    note(&site, audit(outcome)).await;
    let (user, stored) = done?;
    let (headers, signed_in) = begin(&site, &user, stored, &visitor)
        .await?
        .ok_or_else(|| Problem::refused("the first operator was changed meanwhile: sign in"))?;
    Ok((StatusCode::CREATED, headers, signed_in))
}

/// Creates the first operator, if there is no user yet and the link is valid; returns it with the
/// hash of the password.
async fn first_operator(site: &Site, given: FirstOperator) -> Result<(UserRow, String), Problem> {
    let closed = || {
        Problem::conflict(
            "there is an operator already: sign in, or add users with `flexfeed-console user add`",
        )
    };
    if !site.store.users().setup_open().await? {
        return Err(closed());
    }
    let name = check_name(&given.name)?;
    if let Some(weak) = password::weakness(&given.password, &name) {
        return Err(Problem::invalid("password", weak));
    }
    let wrong = || {
        Problem::refused(
            "that is not the link, or not the last one: `flexfeed-console setup-link` makes a new \
             one",
        )
        .of_field("token")
    };
    let hash = secret::hash(&given.token).ok_or_else(wrong)?;
    let stored = site.passwords.hash(given.password).await?;
    let user = NewUser {
        name,
        password: Some(stored.clone()),
        role: Role::Operator,
        identity: None,
    };
    match site.store.users().finish_setup(&hash, &user).await? {
        Setup::Done(user) => Ok((user, stored)),
        Setup::WrongLink => Err(wrong()),
        Setup::Closed => Err(closed()),
    }
}
