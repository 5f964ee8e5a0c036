//! Texts to the typed values that only a console has; every error says what would be right.

use std::time::Duration;

use ipnet::IpNet;
use url::Url;

use super::SecureCookies;

/// Upper bound of the idle time.
pub const MOST_SESSION: Duration = Duration::from_secs(7 * 86_400);

/// Shorter than this, people would be signed out while they read.
const LEAST_SESSION: Duration = Duration::from_secs(60);

/// The address at which browsers reach the console.
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

pub fn secure_cookies(text: &str) -> Result<SecureCookies, String> {
    match text.trim() {
        "auto" => Ok(SecureCookies::Auto),
        "on" => Ok(SecureCookies::On),
        "off" => Ok(SecureCookies::Off),
        _ => Err("is neither auto nor on nor off".into()),
    }
}

/// A prefix, or one address.
pub fn prefix(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let one = || text.parse().map(|ip: std::net::IpAddr| IpNet::from(ip));
    text.parse().or_else(|_| one()).map_err(|_| {
        "is neither an address nor a prefix, such as 10.0.0.0/8 or 2001:db8::/32".to_owned()
    })
}

pub fn contact(text: &str) -> Result<String, String> {
    let text = text.trim();
    feed::fetch::check_contact(text).map_err(|error| format!("cannot be used: {error}"))?;
    Ok(text.to_owned())
}

/// Parses the idle time after which a session ends.
pub fn session_time(text: &str) -> Result<Duration, String> {
    let time = service::values::duration_or_seconds(text)?;
    if (LEAST_SESSION..=MOST_SESSION).contains(&time) {
        Ok(time)
    } else {
        Err("is not within 60s and 7d".into())
    }
}
