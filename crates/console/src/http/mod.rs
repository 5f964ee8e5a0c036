//! HTTP around the API: pages, health, metrics, and common headers.

pub mod metrics;
mod pages;
mod web;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tracing::error;

use crate::api;
use crate::api::problem::Problem;
use crate::site::Site;

/// The program's name in messages.
const PROGRAM: &str = "flexfeed-console";

/// Everything, answered from `site`. `local` if only this machine reaches it.
pub fn router(site: Arc<Site>, local: bool) -> Router {
    let all = Router::new()
        .route("/healthz", get(pages::alive))
        .route("/readyz", get(pages::ready))
        .route("/metrics", get(pages::metrics))
        .merge(api::router())
        .fallback(web::page);
    finished(all, site, local)
}

/// The same with what every answer has.
pub(crate) fn finished(router: Router<Arc<Site>>, site: Arc<Site>, local: bool) -> Router {
    router
        .layer(from_fn_with_state(
            (Arc::clone(&site), local),
            |State(state): State<(Arc<Site>, bool)>, request: Request, next: Next| async move {
                finish(&state.0, state.1, request, next).await
            },
        ))
        .with_state(site)
}

/// Answers until the site's stop.
pub async fn serve(site: Arc<Site>, listener: TcpListener) {
    let local = service::host::is_local(&listener);
    let stop = site.stop.clone();
    let places = Arc::clone(&site.places);
    service::server::serve(listener, router(site, local), places, stop).await;
}

/// Refuses what is meant for another site, counts, and adds what every answer has.
async fn finish(site: &Arc<Site>, local: bool, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let refusal = match local && !is_for_public(site, request.headers()) {
        true => service::host::refusal(PROGRAM, request.uri(), request.headers()),
        false => None,
    };
    let path = request.uri().path();
    let is_private = path.starts_with("/api/");
    let is_call = is_private && path != "/api/v1/events";
    let response = match refusal {
        Some((_, why)) if is_private => Problem::misdirected(why.trim_end()).into_response(),
        Some(refusal) => refusal.into_response(),
        None => api::actions::follow(site, request, next).await,
    };
    let took = is_call.then(|| began.elapsed());
    site.metrics.answered(response.status().as_u16(), took);
    let mut response = service::host::harmless(response);
    let headers = response.headers_mut();
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_private {
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
    }
    let public = site.settings.public_url.as_ref();
    if public.is_some_and(|url| url.scheme() == "https") {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(STRICT_TRANSPORT_SECURITY, year);
    }
    response
}

/// Answers a request, also where a bug panics.
pub(crate) async fn run(request: Request, next: Next) -> Response {
    let is_private = request.uri().path().starts_with("/api/");
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            error!("request handler panicked; details on standard error");
            match is_private {
                true => Problem::internal().into_response(),
                false => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    }
}

/// Whether a request names the public address: a proxy on this machine passes it on.
fn is_for_public(site: &Site, headers: &HeaderMap) -> bool {
    let Some(public) = &site.settings.public_url else {
        return false;
    };
    let own = match (public.host_str(), public.port()) {
        (Some(name), Some(port)) => format!("{name}:{port}"),
        (Some(name), None) => name.to_owned(),
        (None, _) => return false,
    };
    let mut hosts = headers.get_all(HOST).iter();
    let first = hosts.next().and_then(|host| host.to_str().ok());
    first.is_some_and(|host| host.eq_ignore_ascii_case(&own)) && hosts.next().is_none()
}

/// An answer of that kind.
fn answer(kind: &'static str, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Adds the content security policy of pages: same-origin resources only.
fn with_page_policy(mut response: Response) -> Response {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
                          data:; font-src 'self'; connect-src 'self'; frame-src 'self'; base-uri \
                          'none'; form-action 'self'; frame-ancestors 'none'";
    let policy = HeaderValue::from_static(POLICY);
    response
        .headers_mut()
        .insert(CONTENT_SECURITY_POLICY, policy);
    response
}
