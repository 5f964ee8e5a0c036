//! Texts to typed values; every error says what would be right.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use url::Url;

use super::SecureCookies;

/// Nobody stays signed in for longer.
pub const MOST_SESSION: Duration = Duration::from_secs(7 * 86_400);

/// Shorter than this, people would be signed out while they read.
const LEAST_SESSION: Duration = Duration::from_secs(60);

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object in each line.
    Json,
}

pub fn log_format(text: &str) -> Result<LogFormat, String> {
    match text.trim() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("is neither text nor json".into()),
    }
}

/// Where HTTP is answered.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    // As it is written everywhere for all addresses.
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    whole.parse().map_err(|_| {
        "is no address with a port, such as 127.0.0.1:9470, [::]:9470 or :9470 (all addresses of \
         this machine)"
            .to_owned()
    })
}

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

pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

/// How long somebody who does nothing stays signed in.
pub fn session_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (LEAST_SESSION..=MOST_SESSION).contains(&time) {
        Ok(time)
    } else {
        Err("is not within 60s and 7d".into())
    }
}

/// A duration: in seconds, or with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (digits, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(seconds))
        .filter(|seconds| *seconds > 0)
        .map(Duration::from_secs)
        .ok_or_else(|| "is no duration, such as 90s, 30m, 12h or 7d".to_owned())
}
