//! Texts to the typed values that only a console has; every error says what would be right.

use std::time::Duration;

use console::config::{MOST_SESSION, SecureCookies};

/// Shorter than this, people would be signed out while they read.
const LEAST_SESSION: Duration = Duration::from_secs(60);

pub fn secure_cookies(text: &str) -> Result<SecureCookies, String> {
    match text.trim() {
        "auto" => Ok(SecureCookies::Auto),
        "on" => Ok(SecureCookies::On),
        "off" => Ok(SecureCookies::Off),
        _ => Err("is neither auto nor on nor off".into()),
    }
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
