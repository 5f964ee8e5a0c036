//! The console's settings: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`.

// The help texts are no Markdown.
#![allow(rustdoc::bare_urls, rustdoc::broken_intra_doc_links)]

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches};
use console::config::{LISTEN, SecureCookies, SiteSettings, prefix, public_url};
use ipnet::IpNet;
use service::logging::LogSettings;
use service::settings::{Check, Environment, Layer, Problems, Table};
use service::values::{one_of, times};
use url::Url;

/// Values of `--secure-cookies`.
const SECURE: &[(&str, SecureCookies)] = &[
    ("auto", SecureCookies::Auto),
    ("on", SecureCookies::On),
    ("off", SecureCookies::Off),
];

/// All settings of a console. The descriptions are the help.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The database.
    #[command(flatten)]
    pub database: Database,
    /// HTTP address for browsers and programs. For remote access, put a proxy with TLS in front and
    /// set --public-url
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9470")]
    #[arg(value_parser = |text: &str| service::values::listen(text, LISTEN.1))]
    pub listen: SocketAddr,
    /// Address at which browsers reach the console, such as https://console.example.org: for links,
    /// cookies and the check of the Origin header
    #[arg(long, value_name = "URL", value_parser = public_url)]
    pub public_url: Option<Url>,
    /// Whether cookies are for https only: on, off, or auto: if the public URL, or the
    /// X-Forwarded-Proto of a trusted proxy, is https
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = one_of(SECURE))]
    pub secure_cookies: SecureCookies,
    /// Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted; can be repeated
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', value_parser = prefix)]
    pub trusted_proxy: Vec<IpNet>,
    /// Idle time after which a session ends (in seconds, or with s, m, h or d); 7 days at most
    #[arg(long, value_name = "TIME", default_value = "12h")]
    // Shorter, people would be signed out while they read; cookies last no longer.
    #[arg(value_parser = times("60s", "7d", Some(1.0)))]
    pub session_time: Duration,
    /// Let operators add and test feeds in private networks, which the console otherwise refuses to
    /// reach
    #[arg(long)]
    pub allow_private_feeds: bool,
    /// Contact URL sent in the User-Agent header of feed tests: a page, or mailto:NAME@HOST
    #[arg(long, value_name = "URL", value_parser = feed::fetch::check_contact)]
    pub contact: Option<String>,
    /// The log.
    #[command(flatten)]
    pub log: LogSettings,
}

/// The database's URL, which may hold a password.
#[derive(Clone, Args)]
pub struct Database {
    /// Database of the source: postgres://USER:PASSWORD@HOST/DATABASE, or sqlite://PATH on the same
    /// machine. DATABASE_URL does the same
    #[arg(long = "database-url", value_name = "URL", env = "DATABASE_URL")]
    #[arg(id = "database_url", hide_env_values = true, value_parser = store::check_url)]
    pub url: String,
    /// File with the URL of the database, which keeps a password off the command line; instead of
    /// --database-url. DATABASE_URL_FILE does the same
    #[arg(long = "database-url-file", value_name = "FILE")]
    #[arg(id = "database_url_file", env = "DATABASE_URL_FILE")]
    pub file: Option<PathBuf>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// The settings of all places.
pub const TABLE: Table = Table {
    missing: "no database is named: give --database-url, or DATABASE_URL in the environment, as \
              the source has it",
    ..Table::of::<Settings>("FLEXFEED_CONSOLE_", &[])
};

impl Settings {
    /// Returns the settings of requests.
    pub fn site(&self) -> SiteSettings {
        SiteSettings {
            public_url: self.public_url.clone(),
            secure_cookies: self.secure_cookies,
            trusted_proxies: self.trusted_proxy.clone(),
            session_time: self.session_time,
            allow_private_feeds: self.allow_private_feeds,
            contact: self.contact.clone(),
        }
    }
}

/// Returns the settings of commands on the database: it, and what links need.
///
/// # Errors
/// The settings that could name the database cannot be read, or none does.
pub fn load_database(line: Layer, environment: &Environment) -> Result<Settings, Problems> {
    let names = ["database_url", "public_url", "listen"];
    let given = TABLE.load_some(line, environment, &names)?;
    Settings::from_arg_matches(&given).map_err(|error| Problems(vec![error.to_string()]))
}

/// Warns about valid but suspicious settings.
pub fn check(settings: &mut Settings, check: &mut Check) {
    let public_url = settings.public_url.as_ref();
    let https = public_url.is_some_and(|url| url.scheme() == "https");
    if !service::host::is_own(settings.listen.ip()) && public_url.is_none() {
        check.warn(
            "listen is an address that other machines reach, and public_url is not set: passwords \
             would go through the network as they are; put a proxy with TLS in front and set \
             public_url to its https:// address",
        );
    }
    if https && settings.secure_cookies == SecureCookies::Off {
        check.warn(
            "secure_cookies is off although public_url is one of https: browsers would send the \
             cookie without TLS, too",
        );
    }
    if !settings.trusted_proxy.is_empty() && public_url.is_none() {
        check.warn(
            "trusted_proxy is set and public_url is not: the address that people use is taken \
             from the Host that the proxy sends",
        );
    }
}
