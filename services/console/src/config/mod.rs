//! The console's settings: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. `table` lists every setting
//! once, `resolve` gives each its type.

pub mod check;
mod resolve;
pub mod table;
mod values;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use service::logging::LogSettings;
use url::Url;

pub use resolve::{LISTEN, load, load_database, load_listen};
pub use table::TABLE;
pub use values::{MOST_SESSION, prefix, public_url};

/// All settings of a console, with defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database.
    pub database: DatabaseUrl,
    /// Where it answers HTTP.
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

/// Settings of requests, shared with a source that has its own console.
#[derive(Debug, Clone)]
pub struct SiteSettings {
    /// The address at which browsers reach it.
    pub public_url: Option<Url>,
    /// Whether cookies are for https only.
    pub secure_cookies: SecureCookies,
    /// Proxies whose word counts for where a request came from.
    pub trusted_proxies: Vec<IpNet>,
    /// Idle time after which a session ends.
    pub session_time: Duration,
    /// Whether feeds in private networks can be added and tested.
    pub allow_private_feeds: bool,
    /// Contact URL or address in the User-Agent header.
    pub contact: Option<String>,
}

impl Default for SiteSettings {
    fn default() -> Self {
        Self {
            public_url: None,
            secure_cookies: SecureCookies::Auto,
            trusted_proxies: Vec::new(),
            session_time: Duration::from_secs(12 * 3600),
            allow_private_feeds: false,
            contact: None,
        }
    }
}

/// Whether cookies are for https only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecureCookies {
    /// Where the public URL is one of https, or a trusted proxy says that the request was.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Settings, and what is worth saying about them.
pub type Loaded = service::settings::Loaded<Settings>;
