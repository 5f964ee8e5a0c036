//! The console's settings: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`.

// The help texts are no Markdown.
#![allow(rustdoc::bare_urls, rustdoc::broken_intra_doc_links)]

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, FromArgMatches};
use console::config::{LISTEN, SecureCookies, SiteSettings};
use service::logging::LogSettings;
use service::settings::{Check, Environment, Layer, Problems, Table};

/// All settings of a console. The descriptions are the help.
#[derive(Clone, Args)]
pub struct Settings {
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Database of the source: postgres://USER:PASSWORD@HOST/DATABASE, or sqlite://PATH on the same
    /// machine. DATABASE_URL does the same
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    #[arg(value_parser = store::check_url)]
    pub database_url: String,
    /// File with the URL of the database, which keeps a password off the command line; instead of
    /// --database-url. DATABASE_URL_FILE does the same
    #[arg(long, value_name = "FILE", env = "DATABASE_URL_FILE")]
    pub database_url_file: Option<PathBuf>,
    /// HTTP address for browsers and programs. For remote access, put a proxy with TLS in front and
    /// set --public-url
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9470")]
    #[arg(value_parser = |text: &str| service::values::listen(text, LISTEN.1))]
    pub listen: SocketAddr,
    /// Requests.
    #[command(flatten)]
    pub site: SiteSettings,
    /// The log.
    #[command(flatten)]
    pub log: LogSettings,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The database's URL may hold a password.
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

/// The settings of all places.
pub const TABLE: Table = Table {
    missing: "no database is named: give --database-url, or DATABASE_URL in the environment, as \
              the source has it",
    ..Table::of::<Settings>("FLEXFEED_CONSOLE_", &[])
};

/// Returns the settings of commands on the database: it, and what links need.
///
/// # Errors
/// The settings that could name the database cannot be read, or none does.
pub fn load_database(line: Layer, environment: &Environment) -> Result<Settings, Problems> {
    let given = TABLE.load_some(line, environment, &["database_url", "public_url", "listen"])?;
    Settings::from_arg_matches(&given).map_err(|error| Problems(vec![error.to_string()]))
}

/// Warns about valid but suspicious settings.
pub fn check(settings: &mut Settings, check: &mut Check) {
    let site = &settings.site;
    let public_url = site.public_url.as_ref();
    let https = public_url.is_some_and(|url| url.scheme() == "https");
    if !service::host::is_own(settings.listen.ip()) && public_url.is_none() {
        check.warn(
            "other machines reach listen, and public_url is not set: passwords would be readable \
             in the network; put a proxy with TLS in front and set public_url to its address",
        );
    }
    if https && site.secure_cookies == SecureCookies::Off {
        check.warn(
            "secure_cookies is off though public_url is https: cookies would go without TLS, too",
        );
    }
    if !site.trusted_proxies.is_empty() && public_url.is_none() {
        check.warn(
            "trusted_proxy is set, public_url is not: the address is taken from the proxy's Host",
        );
    }
}
