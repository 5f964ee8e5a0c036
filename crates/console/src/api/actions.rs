//! Calls that change something: none of them ends without a line in the audit log, however it
//! fails.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::NewAudit;

use super::problem::Problem;
use crate::auth::caller::note;
use crate::auth::client::Client;
use crate::auth::trail::{self, TrailEnd};
use crate::http::run;
use crate::site::Site;

/// Names in the audit log: method, path, name.
const ACTIONS: [(&str, &str, &str); 24] = [
    ("POST", "/api/v1/session", "session.create"),
    ("DELETE", "/api/v1/session", "session.end"),
    ("POST", "/api/v1/session/password", "session.password"),
    ("POST", "/api/v1/setup", "setup"),
    ("PATCH", "/api/v1/receivers/{id}", "receiver.edit"),
    ("DELETE", "/api/v1/receivers/{id}", "receiver.remove"),
    (
        "POST",
        "/api/v1/receivers/{id}/disconnect",
        "receiver.disconnect",
    ),
    ("POST", "/api/v1/channels", "channel.create"),
    ("POST", "/api/v1/channels/{name}/rekey", "channel.rekey"),
    // Failures of these two only: a line for each message or entry would flood the log.
    (
        "POST",
        "/api/v1/channels/{name}/messages",
        "message.publish",
    ),
    ("POST", "/api/v1/channels/{name}/publish", "entry.publish"),
    ("POST", "/api/v1/feeds", "feed.add"),
    ("POST", "/api/v1/feeds/test", "feed.test"),
    ("PATCH", "/api/v1/feeds/{id}", "feed.edit"),
    ("DELETE", "/api/v1/feeds/{id}", "feed.remove"),
    ("POST", "/api/v1/feeds/{id}/refresh", "feed.refresh"),
    ("POST", "/api/v1/enrolments", "enrolment.create"),
    ("DELETE", "/api/v1/enrolments/{id}", "enrolment.revoke"),
    ("POST", "/api/v1/source/drain", "source.drain"),
    ("POST", "/api/v1/users", "user.add"),
    ("PATCH", "/api/v1/users/{id}", "user.edit"),
    ("DELETE", "/api/v1/users/{id}", "user.remove"),
    ("POST", "/api/v1/api-tokens", "api-token.create"),
    ("DELETE", "/api/v1/api-tokens/{id}", "api-token.revoke"),
];

/// Returns the audit name of a call; `None` for a call that changes nothing.
pub(crate) fn action_of(method: &Method, path: &str) -> Option<&'static str> {
    let found = ACTIONS
        .iter()
        .find(|(verb, known, _)| method == verb && path == *known);
    found.map(|(_, _, action)| *action)
}

/// Answers a request. One that changes something is completed even if the client goes away
/// meanwhile; a failure that was not audited yet is audited here.
pub(crate) async fn follow(site: &Arc<Site>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let action = path.and_then(|path| action_of(request.method(), path.as_str()));
    let Some(action) = action else {
        return run(request, next).await;
    };
    let (mut parts, body) = request.into_parts();
    let tried = AuditedAction {
        action,
        target: target(&mut parts).await,
        client: Client::of(&parts, &site.settings.trusted_proxies),
    };
    let request = Request::from_parts(parts, body);
    let site = Arc::clone(site);
    let whole = tokio::spawn(async move {
        let (response, left) = trail::follow(run(request, next)).await;
        if response.status().as_u16() >= 400 && !left.is_noted {
            let problem = response.extensions().get::<Problem>();
            let why = problem.map(why);
            tried.note(&site, left, response.status(), why).await;
        }
        response
    });
    match whole.await {
        Ok(response) => response,
        Err(_) => Problem::internal().into_response(),
    }
}

/// Returns the reason for the audit log. The error of a body that cannot be parsed may repeat parts
/// of it, which can be a password.
fn why(problem: &Problem) -> String {
    let is_of_body = problem.field.as_deref() == Some("body");
    match is_of_body || problem.status == StatusCode::BAD_REQUEST.as_u16() {
        true => problem.title.clone(),
        false => problem.detail.clone(),
    }
}

/// The variable part of the path; no call that changes something has two.
async fn target(parts: &mut Parts) -> String {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let first = params.iter().flat_map(|params| params.iter()).next();
    first.map_or_else(String::new, |(_, value)| value.to_owned())
}

/// An attempted action.
struct AuditedAction {
    action: &'static str,
    target: String,
    client: Client,
}

impl AuditedAction {
    /// Audits the failure, within a rate: such requests cost nothing.
    async fn note(self, site: &Site, left: TrailEnd, status: StatusCode, why: Option<String>) {
        let detail = json!({"status": status.as_u16()});
        let outcome = why.unwrap_or_else(|| format!("it was answered with {status}"));
        if let Some(caller) = left.caller {
            let room = site.limits.refusals.take(caller.user.id, Instant::now());
            if room.is_ok() {
                let outcome: Result<(), String> = Err(outcome);
                caller
                    .note(site, self.action, self.target, detail, &outcome)
                    .await;
            }
            return;
        }
        // Without a caller, only attempts to sign in matter.
        let via = match self.action {
            "session.create" => "password",
            "setup" => "setup link",
            _ => return,
        };
        let room = site.limits.notes.take(self.client.group(), Instant::now());
        if room.is_ok() {
            let line = NewAudit {
                actor: String::new(),
                via: via.to_owned(),
                action: self.action.to_owned(),
                target: self.target,
                detail: detail.to_string(),
                outcome,
                address: self.client.ip.to_string(),
            };
            note(site, line).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::document;

    #[test]
    fn every_call_that_changes_something_has_a_name() {
        let mut count = 0;
        for (path, item) in document().paths.paths {
            let calls = [
                (Method::GET, item.get),
                (Method::POST, item.post),
                (Method::PUT, item.put),
                (Method::PATCH, item.patch),
                (Method::DELETE, item.delete),
            ];
            for (method, _) in calls.into_iter().filter(|(_, call)| call.is_some()) {
                let action = action_of(&method, &path);
                assert_eq!(action.is_some(), !method.is_safe(), "{method} {path}");
                count += usize::from(action.is_some());
            }
        }
        assert_eq!(count, ACTIONS.len(), "one is no call any more");
    }
}
