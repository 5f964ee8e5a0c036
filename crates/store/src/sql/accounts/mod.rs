//! Users of the console, their browsers and API tokens, and the audit log.

mod api_token;
pub(in crate::sql) mod audit;
mod user;
mod web_session;
