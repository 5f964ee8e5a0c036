//! The caller: a signed-in user, or a program with a token.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use serde_json::{Value, json};
use store::{Hash, NewAudit, UserRow};
use tracing::{info, warn};

use super::client::Client;
use super::rights::{Scope, role_may};
use super::{cookie, origin, secret, trail};
use crate::api::problem::Problem;
use crate::site::Site;

/// Header of every changing request of a browser.
pub const CSRF_HEADER: &str = "x-csrf-token";

/// The caller of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The person, or whose program it is.
    pub user: UserRow,
    /// Means of access.
    pub via: Via,
    /// From where.
    pub client: Client,
}

/// Means by which a caller is admitted.
#[derive(Debug, Clone)]
pub enum Via {
    /// A browser that signed in.
    Session {
        /// The hash of its cookie.
        hash: Hash,
        /// CSRF token expected in its requests.
        csrf: Vec<u8>,
    },
    /// A program with a token.
    Token {
        /// The hash of the token.
        hash: Hash,
        /// Its number.
        id: i64,
        /// Scopes.
        scopes: Vec<Scope>,
    },
}

impl FromRequestParts<Arc<Site>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Problem> {
        let client = Client::of(parts, &site.settings.trusted_proxies);
        if parts.headers.contains_key(AUTHORIZATION) {
            let caller = of_token(parts, site, client).await?;
            trail::known(&caller);
            return Ok(caller);
        }
        let secure = site.is_secure(&client);
        let value = cookie::read(&parts.headers, secure);
        let hash = value.as_deref().and_then(secret::hash);
        let hash = hash.ok_or_else(|| {
            Problem::signed_out("sign in, or send an API token as Authorization: Bearer …")
        })?;
        let idle = site.settings.session_time;
        let session = match comes_by_itself(parts) {
            true => site.store.web_sessions().get(&hash, idle).await?,
            false => site.store.web_sessions().touch(&hash, idle).await?,
        };
        let session =
            session.ok_or_else(|| Problem::signed_out("the session is over; sign in again"))?;
        let caller = Self {
            user: session.user,
            via: Via::Session {
                hash,
                csrf: session.csrf,
            },
            client,
        };
        trail::known(&caller);
        if !parts.method.is_safe() {
            caller.check_origin(parts, site)?;
        }
        Ok(caller)
    }
}

/// Browsers reopen streams by themselves, also unattended: that is no activity.
fn comes_by_itself(parts: &Parts) -> bool {
    parts.uri.path() == "/api/v1/events"
}

async fn of_token(parts: &Parts, site: &Site, client: Client) -> Result<Caller, Problem> {
    let refused = || {
        Problem::signed_out(
            "the API token is not known, has expired or was revoked; send it as \
             Authorization: Bearer …",
        )
    };
    let header = parts.headers.get(AUTHORIZATION);
    let text = header.and_then(|value| value.to_str().ok());
    let (scheme, token) = text
        .and_then(|text| text.trim().split_once(' '))
        .ok_or_else(refused)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refused());
    }
    let hash = secret::hash(token.trim()).ok_or_else(refused)?;
    let row = site
        .store
        .api_tokens()
        .touch(&hash)
        .await?
        .ok_or_else(refused)?;
    Ok(Caller {
        user: row.user,
        via: Via::Token {
            hash,
            id: row.id,
            scopes: row
                .scopes
                .iter()
                .filter_map(|word| Scope::of_word(word))
                .collect(),
        },
        client,
    })
}

impl Caller {
    /// A browser's requests have to come from a page of this site: only that knows the token.
    fn check_origin(&self, parts: &Parts, site: &Site) -> Result<(), Problem> {
        let Via::Session { csrf, .. } = &self.via else {
            return Ok(());
        };
        if origin::is_foreign(&parts.headers, site.settings.public_url.as_ref()) {
            return Err(Problem::cross_site(
                "it comes from a page of another site; if this is the address that you use, set \
                 --public-url to it",
            ));
        }
        let sent = parts.headers.get(CSRF_HEADER);
        let sent = sent.and_then(|value| value.to_str().ok());
        if sent.is_some_and(|sent| secret::is(sent, csrf)) {
            return Ok(());
        }
        Err(Problem::cross_site(
            "send the `csrf` of GET /api/v1/session as the header X-CSRF-Token",
        ))
    }

    /// Requires a scope.
    ///
    /// # Errors
    /// The caller lacks it.
    pub fn may(&self, scope: Scope) -> Result<(), Problem> {
        if !role_may(self.user.role, scope) {
            return Err(Problem::forbidden(format!(
                "{:?} is a viewer; only operators may do that",
                self.user.name
            )));
        }
        match &self.via {
            Via::Token { scopes, .. } if !scopes.iter().any(|own| own.covers(scope)) => {
                Err(Problem::forbidden(format!(
                    "the API token does not have the scope {:?}",
                    scope.word()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Requires a scope for a change; a refusal is audited.
    ///
    /// # Errors
    /// The caller lacks it.
    pub async fn may_do(
        &self,
        site: &Site,
        scope: Scope,
        action: &str,
        target: &str,
    ) -> Result<(), Problem> {
        match self.may(scope) {
            Ok(()) => Ok(()),
            Err(problem) => Err(self.refused(site, action, target, problem).await),
        }
    }

    /// Audits a refused attempt, within a rate: a caller without rights must not fill the log.
    pub async fn refused(
        &self,
        site: &Site,
        action: &str,
        target: &str,
        problem: Problem,
    ) -> Problem {
        let room = site.limits.refusals.take(self.user.id, Instant::now());
        if room.is_err() {
            return problem;
        }
        let outcome: Result<(), Problem> = Err(problem.clone());
        self.note(site, action, target, json!({}), &outcome).await;
        problem
    }

    /// Whether it would be admitted again. The check does not count as activity.
    pub async fn is_still_admitted(&self, site: &Site) -> bool {
        let still = match &self.via {
            Via::Session { hash, .. } => {
                let idle = site.settings.session_time;
                let session = site.store.web_sessions().get(hash, idle).await;
                session.map(|session| session.map(|session| session.user))
            }
            Via::Token { hash, .. } => {
                let token = site.store.api_tokens().touch(hash).await;
                token.map(|token| token.map(|token| token.user))
            }
        };
        match still {
            Ok(Some(user)) => role_may(user.role, Scope::Read),
            Ok(None) => false,
            // A database outage does not end a view.
            Err(_) => true,
        }
    }

    /// Audits an action of the caller, with its outcome.
    pub async fn note<T, E: Display>(
        &self,
        site: &Site,
        action: &str,
        target: impl Into<String>,
        detail: Value,
        outcome: &Result<T, E>,
    ) {
        let via = match &self.via {
            Via::Session { .. } => "session".to_owned(),
            Via::Token { id, .. } => format!("token {id}"),
        };
        note(
            site,
            NewAudit {
                actor: self.user.name.clone(),
                via,
                action: action.to_owned(),
                target: target.into(),
                detail: detail.to_string(),
                outcome: match outcome {
                    Ok(_) => "ok".to_owned(),
                    Err(error) => error.to_string(),
                },
                address: self.client.ip.to_string(),
            },
        )
        .await;
    }
}

/// Writes a line to the audit log, and to the program's own.
pub async fn note(site: &Site, audit: NewAudit) {
    trail::noted();
    info!(
        actor = %service::peer_text::plain(&audit.actor),
        via = %audit.via,
        target = %service::peer_text::plain(&audit.target),
        outcome = %service::peer_text::plain(&audit.outcome),
        address = %audit.address,
        "{}",
        audit.action
    );
    if let Err(error) = site.store.audit_log().record(&audit).await {
        warn!(%error, "audit entry not written");
    }
}
