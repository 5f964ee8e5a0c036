//! Settings of requests, and how their values are written.

// The help texts are no Markdown.
#![allow(rustdoc::bare_urls)]

use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use service::values::{one_of, times};
use url::Url;

/// Default HTTP address.
pub const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9470);

/// Upper bound of the idle time.
pub const MOST_SESSION: Duration = Duration::from_secs(7 * 86_400);

/// Values of `--secure-cookies`.
const SECURE: &[(&str, SecureCookies)] = &[
    ("auto", SecureCookies::Auto),
    ("on", SecureCookies::On),
    ("off", SecureCookies::Off),
];

/// Settings of requests. The descriptions are the help of the console program.
#[derive(Debug, Clone, Args)]
pub struct SiteSettings {
    /// Address at which browsers reach the console, such as https://console.example.org: for links,
    /// cookies and the check of the Origin header
    #[arg(long, value_name = "URL", value_parser = public_url)]
    pub public_url: Option<Url>,
    /// Whether cookies are for https only: on, off, or auto: if the public URL, or the
    /// X-Forwarded-Proto of a trusted proxy, is https
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = one_of(SECURE))]
    pub secure_cookies: SecureCookies,
    /// Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted; can be repeated
    #[arg(long = "trusted-proxy", value_name = "PREFIX")]
    #[arg(value_delimiter = ',', value_parser = prefix)]
    pub trusted_proxies: Vec<IpNet>,
    /// Idle time after which a session ends (in seconds, or with s, m, h or d); 7 days at most
    #[arg(long, value_name = "TIME", default_value = "12h")]
    // Shorter, people would be signed out while they read; cookies last no longer.
    #[arg(value_parser = times("60s", "7d", true))]
    pub session_time: Duration,
    /// Let operators add and test feeds in private networks, which the console otherwise refuses to
    /// reach
    #[arg(long)]
    pub allow_private_feeds: bool,
    /// Contact URL sent in the User-Agent header of feed tests: a page, or mailto:NAME@HOST
    #[arg(long, value_name = "URL", value_parser = feed::fetch::check_contact)]
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
    /// If the public URL is https, or a trusted proxy reports that the request was.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Parses the address at which browsers reach the console.
///
/// # Errors
/// The text is not the root of a site.
pub fn public_url(text: &str) -> Result<Url, String> {
    let wrong = || "is no address of a site, such as https://console.example.org".to_owned();
    let url = Url::parse(text.trim()).map_err(|_| wrong())?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !plain {
        return Err(wrong());
    }
    if url.path() != "/" {
        return Err("has a path: the console has to be at the root of a site of its own".into());
    }
    Ok(url)
}

/// Parses a prefix, or one address.
///
/// # Errors
/// The text is neither.
pub fn prefix(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let one = || text.parse().map(|ip: std::net::IpAddr| IpNet::from(ip));
    text.parse().or_else(|_| one()).map_err(|_| {
        "is neither an address nor a prefix, such as 10.0.0.0/8 or 2001:db8::/32".to_owned()
    })
}
