//! Users of the console, their browsers and API tokens, and the audit log.

mod api_tokens;
pub(in crate::sql) mod audit_log;
mod users;
mod web_sessions;
