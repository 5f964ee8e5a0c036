//! The API under `/api/v1`. `docs/openapi.json` is made of it, and a test keeps it so.
//!
//! One module per noun has its form in JSON and its calls. `problem` has the errors, `extract`
//! reads the parts of a request, `actions` makes sure that failures are audited.

pub(crate) mod actions;
pub mod audit;
pub mod channels;
pub mod commands;
mod document;
pub mod enrolments;
pub mod events;
pub mod export;
mod extract;
pub mod feeds;
mod list;
pub mod messages;
pub mod moves;
pub mod overview;
pub mod problem;
pub mod publications;
pub mod receivers;
pub mod relays;
pub mod samples;
pub mod session;
pub mod tokens;
pub mod updates;
pub mod users;

use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Uri};
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use document::document;
use problem::Problem;

use crate::site::Site;

/// The largest body of a request, in bytes.
const MAX_BODY: usize = 64 << 10;

/// All calls, each with its description.
fn calls() -> OpenApiRouter<Arc<Site>> {
    OpenApiRouter::new()
        .routes(routes!(
            session::session,
            session::sign_in,
            session::sign_out
        ))
        .routes(routes!(users::change_password))
        .routes(routes!(session::setup))
        .routes(routes!(overview::overview))
        .routes(routes!(receivers::receivers))
        .routes(routes!(export::export_receivers))
        .routes(routes!(
            receivers::receiver,
            receivers::edit_receiver,
            receivers::remove_receiver
        ))
        .routes(routes!(receivers::receiver_moves))
        .routes(routes!(receivers::receiver_sessions))
        .routes(routes!(receivers::disconnect_receiver))
        .routes(routes!(moves::moves))
        .routes(routes!(export::export_moves))
        .routes(routes!(export::export_feeds))
        .routes(routes!(export::export_updates))
        .routes(routes!(export::export_audit))
        .routes(routes!(samples::samples))
        .routes(routes!(updates::updates))
        .routes(routes!(updates::update))
        .routes(routes!(channels::channels, channels::create_channel))
        .routes(routes!(channels::channel))
        .routes(routes!(channels::rekey_channel))
        .routes(routes!(messages::publish_message))
        .routes(routes!(publications::publish_entries))
        .routes(routes!(feeds::feeds, feeds::add::add_feed))
        .routes(routes!(feeds::test::test_feed))
        .routes(routes!(
            feeds::feed,
            feeds::change::edit_feed,
            feeds::change::remove_feed
        ))
        .routes(routes!(feeds::history::feed_history))
        .routes(routes!(feeds::change::refresh_feed))
        .routes(routes!(relays::relays))
        .routes(routes!(
            enrolments::enrolments,
            enrolments::create_enrolment
        ))
        .routes(routes!(enrolments::revoke_enrolment))
        .routes(routes!(commands::drain_source))
        .routes(routes!(commands::commands))
        .routes(routes!(commands::command))
        .routes(routes!(users::users, users::add_user))
        .routes(routes!(users::edit_user, users::remove_user))
        .routes(routes!(tokens::api_tokens, tokens::create_api_token))
        .routes(routes!(tokens::revoke_api_token))
        .routes(routes!(audit::audit))
        .routes(routes!(events::events))
}

/// Returns the API's router.
pub fn router() -> Router<Arc<Site>> {
    let (router, _) = calls().split_for_parts();
    // Written once: it does not change.
    let text = document::text();
    router
        .route(
            "/api/v1/openapi.json",
            get(|| async move {
                let kind = HeaderValue::from_static("application/json");
                let age = HeaderValue::from_static("no-cache");
                ([(CONTENT_TYPE, kind), (CACHE_CONTROL, age)], text)
            }),
        )
        .route("/api/{*rest}", axum::routing::any(nothing))
        .route("/api", axum::routing::any(nothing))
        .route("/api/", axum::routing::any(nothing))
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

async fn nothing(uri: Uri) -> impl IntoResponse {
    let path = service::peer_text::plain(uri.path());
    Problem::not_found(format!(
        "there is nothing at {path}: /api/v1/openapi.json says what there is"
    ))
}

async fn not_allowed(method: Method, uri: Uri) -> impl IntoResponse {
    let path = service::peer_text::plain(uri.path());
    Problem::method(format!("{method} is no call of {path}"))
}

/// Returns the requested number.
fn limit(given: Option<usize>, default: usize, most: usize) -> Result<usize, Problem> {
    let limit = given.unwrap_or(default);
    match (1..=most).contains(&limit) {
        true => Ok(limit),
        false => Err(Problem::malformed(format!("limit is from 1 to {most}")).of_field("limit")),
    }
}

/// Reads a cursor of a list by numbers.
fn number_cursor<N: FromStr>(given: Option<&str>) -> Result<Option<N>, Problem> {
    given.map(|cursor| cursor.parse()).transpose().map_err(|_| {
        Problem::malformed("cursor is not one of this list; begin without it").of_field("cursor")
    })
}
