//! The operators' console: an API under `/api/v1`, live events, and the dashboard.
//!
//! `live` follows the database, which the source writes; `fleet` and `live::board` hold the state
//! in memory; `api` answers from there, and gives the source commands through the database; `auth`
//! authenticates and authorises; `http` is everything around. Both the program `flexfeed-console`
//! and a source with its own console call [`mount`].

pub mod api;
pub mod auth;
mod clock;
pub mod config;
pub mod fleet;
pub mod http;
pub mod live;
mod mount;
pub mod setup;
mod site;
#[cfg(test)]
mod tests;

pub use mount::{Console, mount};
pub use site::{Parts, Site};
