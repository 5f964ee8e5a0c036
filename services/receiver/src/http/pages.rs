//! Pages for people, operators and their machines.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Json, Response};
use serde_json::Value;
use service::exposition;
use service::pages::{NOT_STORED, readiness};

use super::Site;
use crate::status::model::Channel;

/// Whether the receiver is connected, and its outputs are written and up to date.
pub(super) async fn ready(State(site): State<Arc<Site>>) -> Response {
    let mut reasons = site.readiness.reasons(&site.board.status()).await;
    if site.board.is_leaving() {
        reasons.insert(0, "the receiver is about to stop".to_owned());
    }
    readiness(&reasons)
}

pub(super) async fn metrics(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    // Counting the pending updates reads every record of the journals.
    let text = tokio::task::spawn_blocking(move || site.metrics.text(&site)).await;
    exposition::answer(&headers, text.unwrap_or(Err(std::fmt::Error)))
}

pub(super) async fn status(State(site): State<Arc<Site>>) -> Response {
    let status = site.board.status();
    match serde_json::to_value(&status) {
        Ok(Value::Object(mut status)) => {
            status.insert("running".to_owned(), true.into());
            ([NOT_STORED], Json(Value::Object(status))).into_response()
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Returns a channel's rung, or its legs with their states.
fn rungs(channel: &Channel) -> String {
    let legs = channel.legs.iter();
    let legs: Vec<_> = legs
        .map(|leg| format!("{} ({})", leg.label(), leg.state))
        .collect();
    match legs.is_empty() {
        true => channel.rung.clone(),
        false => legs.join(" and "),
    }
}

/// Index page with links.
pub(super) async fn index(State(site): State<Arc<Site>>) -> Response {
    let status = site.board.status();
    let mut rows = String::new();
    for channel in &status.channels {
        let name = escaped(&channel.channel);
        let json = match site.json {
            true => format!(" <a href=\"/feeds/{name}.json\">JSON Feed</a>"),
            false => String::new(),
        };
        let state = match channel.head.saturating_sub(channel.cursor) {
            0 => format!("up to date, at update {}", channel.cursor),
            behind => format!("{behind} updates behind"),
        };
        rows.push_str(&format!(
            "<tr><td>{name}</td><td><a href=\"/feeds/{name}.atom\">Atom</a>{json} <a \
             href=\"/events?channel={name}\">events</a></td><td>{state}, on {}</td></tr>\n",
            escaped(&rungs(channel))
        ));
    }
    let connection = match (&status.error, status.connected) {
        (Some(error), _) => escaped(error),
        (None, true) => "connected".to_owned(),
        (None, false) => "connecting".to_owned(),
    };
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>flexfeed receiver {name}</title>\n\
         <style>body{{font-family:system-ui,sans-serif;margin:2em;max-width:60em}}\
         td{{padding:.2em 1em .2em 0}}</style></head>\n\
         <body><h1>flexfeed receiver {name}</h1>\n<p>Source {source}: {connection}.</p>\n\
         <table>\n{rows}</table>\n\
         <p><a href=\"/readyz\">readiness</a> <a href=\"/status.json\">status</a> \
         <a href=\"/metrics\">metrics</a></p></body></html>\n",
        name = escaped(&status.name),
        source = escaped(&status.source),
    );
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    let headers = [(CONTENT_SECURITY_POLICY, policy), NOT_STORED];
    (headers, Html(page)).into_response()
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
