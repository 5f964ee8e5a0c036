//! What the console is told to do: by flags, by the environment, by a TOML file, in that order.
//!
//! `table` names every setting once: its flag, its variable and its key come from there, and so do
//! the help and the test of who wins. A `layer` is what one of the three says, as text and with where
//! it stands; `resolve` takes each setting from the first layer that has it and gives it its type. A
//! default is in no layer: it can win over nothing.

pub mod check;
mod file;
pub mod layer;
mod resolve;
pub mod table;
mod values;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use thiserror::Error;
use url::Url;

pub use layer::{Layer, Origin};
pub use resolve::{Loaded, load, load_database, load_listen};
pub use values::{LogFormat, MOST_SESSION, prefix, public_url};

/// Everything that a console is told, with its defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database.
    pub database: DatabaseUrl,
    /// Where it answers HTTP.
    pub listen: SocketAddr,
    /// What goes for each request.
    pub site: SiteSettings,
    /// Form of the log.
    pub log_format: LogFormat,
    /// What is logged; `None` leaves it to `RUST_LOG`.
    pub log_level: Option<String>,
}

/// A database's URL, which may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(pub String);

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// How requests are taken: also what a source with a console of its own says.
#[derive(Debug, Clone)]
pub struct SiteSettings {
    /// The address at which browsers reach it.
    pub public_url: Option<Url>,
    /// Whether cookies are for https only.
    pub secure_cookies: SecureCookies,
    /// Proxies whose word counts for where a request came from.
    pub trusted_proxies: Vec<IpNet>,
    /// How long somebody who does nothing stays signed in.
    pub session_time: Duration,
    /// Whether feeds in private networks can be added and tested.
    pub allow_private_feeds: bool,
    /// Whom the servers of feeds can write to.
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

/// What is wrong with the settings: all of it, a line each, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);
