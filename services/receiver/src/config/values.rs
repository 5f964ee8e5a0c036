//! Parsers of values that only a receiver has.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flexicast_tokio::receiver::Redundancy;
use service::values::whole;
use url::Url;

use crate::durable::FileError;
use crate::link::{Link, LinkError};

/// The longest name of a webhook or command.
const MAX_HOOK_NAME: usize = 64;

/// Bytes of a file of certificates that are looked at.
const MAX_PEM: u64 = 4 << 20;

/// Returns the line with the link of a file, whose comments begin with #.
pub fn link_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim);
    let link = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    link.unwrap_or_default()
}

/// Parses a link, or the first line with one of a file.
pub fn link(text: &str) -> Result<Link, LinkError> {
    Link::parse(link_line(text)).map(|(link, _)| link)
}

/// Checks that a file has certificates; the transport reads it.
pub fn has_certificate(path: &Path) -> Result<(), String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_PEM).read_to_end(&mut bytes));
    let read = read.map_err(FileError::of("read the authorities in", path));
    read.map_err(|error| error.to_string())?;
    match String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(()),
        false => Err(format!("{} has no certificate in PEM form", path.display())),
    }
}

/// A number of updates; for `all`, more than any source has.
pub fn history(text: &str) -> Result<u64, String> {
    match text.trim() {
        "all" => Ok(u64::MAX),
        number => whole(0..=u64::MAX - 1)(number).map_err(|what| format!("{what}, and not all")),
    }
}

/// Parses the number of paths by which flows are taken at once.
pub fn redundancy(text: &str) -> Result<Redundancy, String> {
    match text.trim() {
        "one" | "1" => Ok(Redundancy::One),
        "two" | "2" => Ok(Redundancy::Two),
        _ => Err("is neither one nor two".into()),
    }
}

/// Parses the URL of a webhook.
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

/// Returns the part of a webhook's URL that may be shown: many have their secret in the path.
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
    fn histories() {
        assert_eq!(history(" all "), Ok(u64::MAX));
        assert_eq!((history("0"), history("250")), (Ok(0), Ok(250)));
        for wrong in ["", "-1", "1d", "ALL", "18446744073709551616"] {
            assert!(history(wrong).is_err(), "{wrong}");
        }
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
    }
}
