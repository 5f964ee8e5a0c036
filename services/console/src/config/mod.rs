//! The console's settings: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. `table` declares every
//! setting once, `resolve` gives each its type.

mod resolve;
pub mod table;
mod values;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use console::config::SiteSettings;
use service::logging::LogSettings;

pub use resolve::{load, load_database, load_listen};
pub use table::TABLE;

/// All settings of a console, with defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database.
    pub database: DatabaseUrl,
    /// Address of the HTTP server.
    pub listen: SocketAddr,
    /// Settings of requests.
    pub site: SiteSettings,
    /// The log.
    pub log: LogSettings,
}

/// A database's URL, which may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(pub String);

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Settings with their origins and warnings.
pub type Loaded = service::settings::Loaded<Settings>;
