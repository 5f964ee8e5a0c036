//! API tokens.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{ApiTokenRow, NewApiToken as Row};
use utoipa::ToSchema;

use super::extract::{Json as Body, Path, Query};
use super::list::ListQuery;
use super::problem::Problem;
use crate::auth::caller::{Caller, Via};
use crate::auth::rights::{Scope, role_may};
use crate::auth::secret;
use crate::clock::now_ms;
use crate::site::Site;

/// Maximum number of tokens, which is what the database lists. Revoked and expired ones count as
/// long as they are kept.
const MOST: usize = 10_000;

/// The longest name, in characters.
const MAX_NAME: usize = 100;

/// Maximum validity: five years.
const MAX_TTL: i64 = 5 * 366 * 86_400_000;

/// An API token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiToken {
    /// Its number.
    pub id: i64,
    /// Name for people.
    pub name: String,
    /// Owner, who bounds its rights.
    pub user: String,
    /// Scopes.
    pub scopes: Vec<String>,
    /// Creation time; Unix milliseconds.
    pub created_ms: i64,
    /// Expiry; Unix milliseconds; null for none.
    pub expires_ms: Option<i64>,
    /// Time of the last use, to within a minute; Unix milliseconds; null before the first.
    pub seen_ms: Option<i64>,
    /// Time of the revocation; Unix milliseconds; null if not revoked.
    pub revoked_ms: Option<i64>,
}

impl From<ApiTokenRow> for ApiToken {
    fn from(row: ApiTokenRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            user: row.user.name,
            scopes: row.scopes,
            created_ms: row.created_ms,
            expires_ms: row.expires_ms,
            seen_ms: row.seen_ms,
            revoked_ms: row.revoked_ms,
        }
    }
}

/// All API tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiTokens {
    /// In the order of their creation.
    pub items: Vec<ApiToken>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// API tokens
///
/// The tokens themselves are shown only once.
#[utoipa::path(get, path = "/api/v1/api-tokens", tag = "people", operation_id = "api_tokens",
    params(ListQuery), responses((status = 200, body = ApiTokens)))]
pub async fn api_tokens(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<ApiTokens>, Problem> {
    caller.may(Scope::Admin)?;
    let rows = site.store.api_tokens().list(None).await?;
    let all = rows.into_iter().map(ApiToken::from);
    let (items, next_cursor) = query.part(all.collect(), |token| token.id)?;
    Ok(Json(ApiTokens { items, next_cursor }))
}

/// A new API token.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewApiToken {
    /// Name for people.
    #[schema(required = true, min_length = 1, max_length = 100)]
    pub name: String,
    /// Scopes.
    #[schema(required = true, min_items = 1)]
    pub scopes: Vec<Scope>,
    /// Expiry; Unix milliseconds; null for none.
    pub expires_ms: Option<i64>,
}

/// A new API token with its secret, which is not shown again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedApiToken {
    /// The stored token.
    #[serde(flatten)]
    pub row: ApiToken,
    /// The token: programs send it as `Authorization: Bearer …`.
    pub token: String,
}

/// Creates an API token
///
/// The caller owns it and bounds its rights. A program cannot make one with more rights than its
/// own.
#[utoipa::path(post, path = "/api/v1/api-tokens", tag = "people",
    operation_id = "create_api_token", request_body = NewApiToken,
    responses((status = 201, body = CreatedApiToken)))]
pub async fn create_api_token(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(new): Body<NewApiToken>,
) -> Result<(StatusCode, Json<CreatedApiToken>), Problem> {
    caller
        .may_do(&site, Scope::Admin, "api-token.create", &new.name)
        .await?;
    let done = create(&site, &caller, &new).await;
    let mut detail = serde_json::to_value(&new).unwrap_or_default();
    if let (Ok(made), Some(members)) = (&done, detail.as_object_mut()) {
        // Later audit entries use its number.
        members.insert("token_id".to_owned(), made.row.id.into());
    }
    caller
        .note(&site, "api-token.create", &new.name, detail, &done)
        .await;
    done.map(|made| (StatusCode::CREATED, Json(made)))
}

async fn create(
    site: &Site,
    caller: &Caller,
    new: &NewApiToken,
) -> Result<CreatedApiToken, Problem> {
    let name = new.name.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME {
        let what = format!("has 1 to {MAX_NAME} characters");
        return Err(Problem::invalid("name", what));
    }
    let mut scopes = new.scopes.clone();
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.is_empty() {
        return Err(Problem::invalid("scopes", "name at least one"));
    }
    if let Some(more) = scopes
        .iter()
        .find(|scope| !role_may(caller.user.role, **scope))
    {
        let what = format!("{:?} is more than you may do yourself", more.word());
        return Err(Problem::invalid("scopes", what));
    }
    if let Via::Token { scopes: own, .. } = &caller.via
        && let Some(more) = scopes
            .iter()
            .find(|scope| !own.iter().any(|own| own.covers(**scope)))
    {
        let what = format!("{:?} is more than this token may do itself", more.word());
        return Err(Problem::invalid("scopes", what));
    }
    let now = now_ms();
    if new
        .expires_ms
        .is_some_and(|then| then <= now || then - now > MAX_TTL)
    {
        let what = "is a time from now on, five years away at most; null for ever";
        return Err(Problem::invalid("expires_ms", what));
    }
    if site.store.api_tokens().list(None).await?.len() >= MOST {
        return Err(Problem::conflict(format!(
            "there are {MOST} API tokens, with those revoked or expired in the last year; one \
             token can serve many programs"
        )));
    }
    let token = secret::new_token()?;
    let row = Row {
        hash: secret::hash(&token).ok_or_else(Problem::internal)?,
        name: name.to_owned(),
        user_id: caller.user.id,
        scopes: scopes.iter().map(|scope| scope.word().to_owned()).collect(),
        expires_ms: new.expires_ms,
    };
    let row = site.store.api_tokens().add(&row).await?;
    Ok(CreatedApiToken {
        row: row.into(),
        token,
    })
}

/// Revokes an API token
#[utoipa::path(delete, path = "/api/v1/api-tokens/{id}", tag = "people",
    operation_id = "revoke_api_token",
    params(("id" = i64, Path, description = "Number of the token")),
    responses((status = 204, description = "Revoked")))]
pub async fn revoke_api_token(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    caller
        .may_do(&site, Scope::Admin, "api-token.revoke", &id.to_string())
        .await?;
    let done = match site.store.api_tokens().revoke(id).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Problem::not_found(format!("there is no API token {id}"))),
        Err(error) => Err(error.into()),
    };
    caller
        .note(&site, "api-token.revoke", id.to_string(), json!({}), &done)
        .await;
    site.rights_revoked();
    done.map(|()| StatusCode::NO_CONTENT)
}
