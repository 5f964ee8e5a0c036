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
use console::config::{LISTEN, MOST_SESSION, SecureCookies, SiteSettings, prefix, public_url};
use ipnet::IpNet;
use service::logging::LogSettings;
use service::settings::{Environment, Keys, Layer, Problems, Table};
use service::values::{duration_or_seconds, one_of};
use url::Url;

/// Values of `--secure-cookies`.
const SECURE: &[(&str, SecureCookies)] = &[
    ("auto", SecureCookies::Auto),
    ("on", SecureCookies::On),
    ("off", SecureCookies::Off),
];

/// Shorter than this, people would be signed out while they read.
const LEAST_SESSION: Duration = Duration::from_secs(60);

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
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = session_time)]
    pub session_time: Duration,
    /// Let operators add and test feeds in private networks, which the console otherwise refuses to
    /// reach
    #[arg(long)]
    pub allow_private_feeds: bool,
    /// Contact URL sent in the User-Agent header of feed tests: a page, or mailto:NAME@HOST
    #[arg(long, value_name = "URL", value_parser = contact)]
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
    #[arg(id = "database_url", hide_env_values = true, value_parser = database_url)]
    pub url: String,
    /// File with the URL of the database, which keeps a password off the command line; instead of
    /// --database-url. DATABASE_URL_FILE does the same
    #[arg(
        long = "database-url-file",
        value_name = "FILE",
        env = "DATABASE_URL_FILE"
    )]
    #[arg(id = "database_url_file")]
    pub file: Option<PathBuf>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Settings with their origins and warnings.
pub type Loaded = service::settings::Loaded<Settings>;

/// The settings of all places.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_CONSOLE_",
    keys: Keys::of::<Settings>(&[]),
    missing: "no database is named: give --database-url, or DATABASE_URL in the environment, as \
              the source has it",
    ..Table::EMPTY
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

/// Returns the settings of the command line, the environment and the TOML file that either names.
///
/// # Errors
/// All problems of the settings.
pub fn load(line: Layer, environment: &Environment) -> Result<Loaded, Problems> {
    TABLE.load(line, environment, |settings: &mut Settings, check| {
        check.warnings.extend(doubts(settings));
    })
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

/// Returns warnings about valid but suspicious settings.
fn doubts(settings: &Settings) -> impl Iterator<Item = String> {
    let public_url = settings.public_url.as_ref();
    let https = public_url.is_some_and(|url| url.scheme() == "https");
    let beyond = !service::host::is_own(settings.listen.ip());
    let doubts = [
        (
            beyond && public_url.is_none(),
            "listen is an address that other machines reach, and public_url is not set: passwords \
             would go through the network as they are; put a proxy with TLS in front and set \
             public_url to its https:// address",
        ),
        (
            https && settings.secure_cookies == SecureCookies::Off,
            "secure_cookies is off although public_url is one of https: browsers would send the \
             cookie without TLS, too",
        ),
        (
            !settings.trusted_proxy.is_empty() && public_url.is_none(),
            "trusted_proxy is set and public_url is not: the address that people use is taken \
             from the Host that the proxy sends",
        ),
    ];
    let doubts = doubts.into_iter().filter(|(holds, _)| *holds);
    doubts.map(|(_, doubt)| doubt.to_owned())
}

fn database_url(text: &str) -> Result<String, String> {
    let checked = store::check_url(text.trim()).map_err(|error| error.to_string());
    checked.map(|()| text.trim().to_owned())
}

fn contact(text: &str) -> Result<String, String> {
    feed::fetch::check_contact(text.trim()).map_err(|error| format!("cannot be used: {error}"))?;
    Ok(text.trim().to_owned())
}

/// Parses the idle time after which a session ends.
fn session_time(text: &str) -> Result<Duration, String> {
    let time = duration_or_seconds(text)?;
    match (LEAST_SESSION..=MOST_SESSION).contains(&time) {
        true => Ok(time),
        false => Err("is not within 60s and 7d".into()),
    }
}
