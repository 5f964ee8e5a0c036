//! Whether a browser asks for this site or for another one.

use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};
use url::Url;

/// Whether a request that changes something comes from a page of another site. What browsers say
/// of that, pages cannot change.
#[must_use]
pub fn is_foreign(headers: &HeaderMap, public: Option<&Url>) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return !matches!(site, Some("same-origin" | "none"));
    }
    let Some(origin) = text(ORIGIN.as_str()) else {
        // No browser.
        return false;
    };
    let Some(origin) = origin.and_then(|origin| Url::parse(origin).ok()) else {
        return true;
    };
    if public.is_some_and(|public| public.origin() == origin.origin()) {
        return false;
    }
    // Behind a proxy the scheme is not known here.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let own = match (origin.host_str(), origin.port()) {
        (Some(name), Some(port)) => format!("{name}:{port}"),
        (Some(name), None) => name.to_owned(),
        (None, _) => return true,
    };
    !host.is_some_and(|host| host.eq_ignore_ascii_case(&own))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn foreign(pairs: &[(&'static str, &str)], public: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        let public = public.map(|url| Url::parse(url).unwrap());
        is_foreign(&headers, public.as_ref())
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let host = ("host", "console.example:9470");
        assert!(!foreign(&[host], None));
        assert!(!foreign(
            &[host, ("origin", "http://console.example:9470")],
            None
        ));
        assert!(!foreign(
            &[("host", "a.example"), ("origin", "https://a.example")],
            None
        ));
        assert!(foreign(&[host, ("origin", "https://evil.example")], None));
        assert!(foreign(&[host, ("origin", "http://console.example")], None));
        assert!(foreign(&[host, ("origin", "null")], None));
        let public = Some("https://c.example");
        assert!(!foreign(&[host, ("origin", "https://c.example")], public));
        assert!(foreign(&[host, ("sec-fetch-site", "cross-site")], None));
        assert!(foreign(&[host, ("sec-fetch-site", "same-site")], None));
        assert!(!foreign(&[host, ("sec-fetch-site", "same-origin")], None));
    }
}
