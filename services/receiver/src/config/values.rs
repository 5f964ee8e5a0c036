//! Texts to typed values; every error says what would be right.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flexicast_tokio::receiver::{RelayName, Relays};
use url::Url;

/// The longest name for people, in bytes: what a HELLO can carry.
const MAX_NAME: usize = 255;

/// The longest name of a webhook or command.
const MAX_HOOK_NAME: usize = 64;

/// The most relays that are tried.
const MAX_RELAYS: usize = 16;

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

pub fn name(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.len() > MAX_NAME {
        return Err(format!("a name has at most {MAX_NAME} bytes"));
    }
    if text.contains(char::is_control) {
        return Err("a name has no control characters".into());
    }
    Ok(text.to_owned())
}

pub fn relays(text: &str) -> Result<Relays, String> {
    let mut relays = Relays::default();
    for part in text.split(',') {
        let name = part.parse::<RelayName>();
        match name.map_err(|error| format!("cannot be used: {error}"))? {
            RelayName::Anycast => relays.anycast = true,
            name if relays.configured.contains(&name) => {
                return Err(format!("names the relay {name} twice"));
            }
            name => relays.configured.push(name),
        }
    }
    if relays.configured.len() > MAX_RELAYS {
        return Err(format!("names more than {MAX_RELAYS} relays"));
    }
    Ok(relays)
}

pub fn interface(text: &str) -> Result<IpAddr, String> {
    let wrong = |what: &str| {
        format!(
            "{what}; give the address of an interface of this machine, such as 192.0.2.7 or \
             2001:db8::7"
        )
    };
    let ip: IpAddr = text.trim().parse().map_err(|_| wrong("is no IP address"))?;
    if ip.is_multicast() || ip.is_unspecified() {
        return Err(wrong("no interface has that address"));
    }
    Ok(ip)
}

/// Where HTTP is answered; `None` for `off`.
pub fn http(text: &str) -> Result<Option<SocketAddr>, String> {
    let text = text.trim();
    if text == "off" {
        return Ok(None);
    }
    // As it is written everywhere for all addresses.
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    whole.parse().map(Some).map_err(|_| {
        "is no address with a port, such as 127.0.0.1:8080, [::]:8080 or :8080 (all addresses of \
         this machine), and not off"
            .to_owned()
    })
}

pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("is neither true nor false".into()),
    }
}

pub fn count(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err(format!("is no whole number from 1 to {}", u32::MAX)),
        Ok(number) => Ok(number),
    }
}

/// A number of bytes, with K, M or G for 1,024 and so on.
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    let bytes = digits.trim().parse::<u64>().ok();
    bytes
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "is no number of bytes, such as 1048576, 64M or 2G".to_owned())
}

/// A duration with its unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (digits, unit) = text.split_at(digits);
    let ms = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(ms))
        .filter(|ms| *ms > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| "is no duration, such as 500ms, 10s, 5m, 12h or 7d".to_owned())
}

/// A duration as it would be written.
#[must_use]
pub fn shown_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let unit = units
        .into_iter()
        .find(|(_, length)| ms > 0 && ms.is_multiple_of(*length));
    match unit {
        Some((unit, length)) => format!("{}{unit}", ms / length),
        None => format!("{ms}ms"),
    }
}

/// Where a webhook posts to.
pub fn webhook_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text.trim()).map_err(|error| format!("is no URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("is no URL that begins with https:// or http://".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "has a user or password in it, which would be shown wherever the URL is; the receiver \
             of the webhook knows who posts by its signature"
                .into(),
        );
    }
    Ok(url)
}

/// What may be shown of a webhook's address: many have their secret in the path.
#[must_use]
pub fn shown_url(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{}://{host}:{port}/…", url.scheme()),
        (Some(host), None) => format!("{}://{host}/…", url.scheme()),
        (None, _) => format!("{}:…", url.scheme()),
    }
}

/// The same of a text that may be no address at all.
pub fn shown_address(text: &str) -> String {
    Url::parse(text.trim()).map_or_else(|_| "(not shown)".to_owned(), |url| shown_url(&url))
}

/// A name that can also name a file.
pub fn hook_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if (1..=MAX_HOOK_NAME).contains(&text.len()) && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "is no name of 1 to {MAX_HOOK_NAME} letters, digits, - and _"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn units() {
        let ms = |text| duration(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms(" 10 s "), Ok(10_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("7d"), Ok(7 * 86_400_000));
        for wrong in [
            "",
            "10",
            "s",
            "0s",
            "1y",
            "-1s",
            "99999999999999999d",
            "1.5s",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for text in ["500ms", "10s", "90s", "5m", "12h", "36h", "7d"] {
            assert_eq!(shown_duration(duration(text).unwrap()), text);
        }
        assert_eq!(size("1048576"), Ok(1 << 20));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("2 g"), Ok(2 << 30));
        for wrong in ["", "M", "0", "1T", "99999999999999G", "ä"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(count("0").is_err() && count("x").is_err());
        assert_eq!(count("7"), Ok(7));
    }

    #[test]
    fn addresses() {
        assert_eq!(http("off"), Ok(None));
        assert_eq!(http(":80"), Ok(Some("[::]:80".parse().unwrap())));
        assert_eq!(http("[::1]:80"), Ok(Some("[::1]:80".parse().unwrap())));
        for wrong in ["", "8080", "localhost:8080", "1.2.3.4"] {
            assert!(http(wrong).is_err(), "{wrong}");
        }
        for wrong in ["eth0", "ff3e::1", "0.0.0.0", ""] {
            assert!(interface(wrong).is_err(), "{wrong}");
        }
        assert_eq!(interface("2001:db8::7"), Ok("2001:db8::7".parse().unwrap()));
    }

    #[test]
    fn urls_and_names() {
        assert!(webhook_url("https://h/x?y=z").is_ok());
        for wrong in [
            "",
            "h",
            "ftp://h/",
            "https://u:p@h/",
            "https://u@h/",
            "mailto:x",
        ] {
            assert!(webhook_url(wrong).is_err(), "{wrong}");
        }
        for (text, shown) in [
            (
                "https://u:p@h.example/T0KEN?t0ken#t0ken",
                "https://h.example/…",
            ),
            (" http://[::1]:8080/T0KEN", "http://[::1]:8080/…"),
            ("mailto:T0KEN", "mailto:…"),
            ("h.example/T0KEN", "(not shown)"),
        ] {
            assert_eq!(shown_address(text), shown);
        }
        assert!(hook_name("a-b_c").is_ok());
        for wrong in ["", "a.b", "a/b", "ä", &"x".repeat(65)] {
            assert!(hook_name(wrong).is_err(), "{wrong}");
        }
        assert!(name(&"x".repeat(256)).is_err() && name("a\nb").is_err());
    }
}
