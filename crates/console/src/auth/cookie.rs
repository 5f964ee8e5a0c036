//! The cookie of a browser that is signed in.

use axum::http::HeaderMap;
use axum::http::header::COOKIE;

/// Its name where it is for https only: browsers then take it from this host alone.
pub const SECURE: &str = "__Host-flexfeed";

/// Its name otherwise.
pub const PLAIN: &str = "flexfeed";

/// Returns the cookie's value, if there is exactly one.
#[must_use]
pub fn read(headers: &HeaderMap, secure: bool) -> Option<String> {
    let name = match secure {
        true => SECURE,
        false => PLAIN,
    };
    let mut found = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(known, _)| *known == name)
        .map(|(_, value)| value);
    let value = found.next()?;
    // Two of one name: another site in the same domain put one there.
    found.next().is_none().then(|| value.to_owned())
}

/// Returns the header that sets it.
#[must_use]
pub fn set(value: &str, secure: bool, age_s: u64) -> String {
    match secure {
        true => {
            format!("{SECURE}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Lax; Secure")
        }
        false => format!("{PLAIN}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Lax"),
    }
}

/// Returns the header that removes it.
#[must_use]
pub fn clear(secure: bool) -> String {
    set("", secure, 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_cookie_is_read_and_of_two_none() {
        let read = |line: &str, secure| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, line.parse().unwrap());
            read(&headers, secure)
        };
        assert_eq!(read("a=b; flexfeed=x", false).as_deref(), Some("x"));
        assert_eq!(read("flexfeed=x", true), None);
        assert_eq!(read("__Host-flexfeed=x", true).as_deref(), Some("x"));
        assert_eq!(read("__Host-flexfeed=x", false), None);
        assert_eq!(read("flexfeed=x; flexfeed=y", false), None);
        assert_eq!(read("flexfeed", false), None);
        assert!(set("v", true, 5).ends_with("SameSite=Lax; Secure"));
        assert!(set("v", false, 5).contains("Max-Age=5; HttpOnly"));
        assert!(clear(false).contains("Max-Age=0"));
    }
}
