//! Settings of requests, and how their values are written.

use std::time::Duration;

use ipnet::IpNet;
use url::Url;

/// Default HTTP address.
pub const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9470);

/// Upper bound of the idle time.
pub const MOST_SESSION: Duration = Duration::from_secs(7 * 86_400);

/// Settings of requests.
#[derive(Debug, Clone)]
pub struct SiteSettings {
    /// Address at which browsers reach the console.
    pub public_url: Option<Url>,
    /// Whether cookies are for https only.
    pub secure_cookies: SecureCookies,
    /// Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted.
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
