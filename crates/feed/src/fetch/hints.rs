//! Server hints: when to poll again, and at which address.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{AGE, CACHE_CONTROL, DATE, EXPIRES, HeaderMap, HeaderName, RETRY_AFTER};

/// Longest wait that a server can ask for: a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Server hints that accompany a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// Address that the feed has permanently moved to, without credentials: every redirect on the
    /// path was permanent (301 or 308), none led from `https` to `http`, and none from the public
    /// network into a private one. The caller has to verify that the document there is the feed.
    pub moved_to: Option<String>,
    /// Remaining freshness of the response (`Cache-Control: max-age` or `Expires`, less its `Age`),
    /// at most a day. `None` if nothing is stated, or no freshness at all.
    pub max_age: Option<Duration>,
    /// `Retry-After`, at most a day. RFC 9110 defines it for 503 and 3xx (including 304) and RFC
    /// 6585 for 429; a server that sends it with 200 means the same.
    pub retry_after: Option<Duration>,
}

impl Hints {
    pub(super) fn of(headers: &HeaderMap, now: Timestamp) -> Self {
        Self {
            moved_to: None,
            max_age: max_age(headers, now),
            retry_after: retry_after(headers, now),
        }
    }
}

/// Returns the value of `Retry-After` (RFC 9110 section 10.2.3): seconds or a date.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = text(headers, RETRY_AFTER)?;
    if let Some(seconds) = seconds(value) {
        return Some(seconds);
    }
    Some(until(date(value)?, now))
}

/// Returns the rest of the freshness lifetime (RFC 9111 section 4.2).
fn max_age(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let mut lifetime = None;
    let values = headers.get_all(CACHE_CONTROL).iter();
    for directive in values
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
    {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-cache" | "no-store" => return None,
            // The first one counts, and the quotes that some servers write are ignored.
            "max-age" if lifetime.is_none() => {
                lifetime = Some(seconds(value.trim().trim_matches('"')).unwrap_or_default());
            }
            _ => {}
        }
    }
    let lifetime = match lifetime {
        Some(lifetime) => lifetime,
        // An `Expires` that is no date, such as 0, means that the response has expired.
        None => {
            let expires = date(text(headers, EXPIRES)?)?;
            let sent = text(headers, DATE).and_then(date).unwrap_or(now);
            until(expires, sent)
        }
    };
    let age = text(headers, AGE).and_then(seconds).unwrap_or_default();
    Some(lifetime.saturating_sub(age)).filter(|left| !left.is_zero())
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Parses digits only, as by RFC 9110. Numbers that do not fit are a very long time.
fn seconds(value: &str) -> Option<Duration> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| Duration::from_secs(value.parse().unwrap_or(u64::MAX)).min(LONGEST))
}

fn date(value: &str) -> Option<Timestamp> {
    // Some servers are wrong about the day of the week.
    let parser = rfc2822::DateTimeParser::new().relaxed_weekday(true);
    parser.parse_timestamp(value).ok()
}

fn until(date: Timestamp, now: Timestamp) -> Duration {
    let seconds = date.as_second().saturating_sub(now.as_second());
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        headers
    }

    fn now() -> Timestamp {
        "1994-11-06T08:49:00Z".parse().unwrap()
    }

    fn wait(value: &str) -> Option<u64> {
        let headers = headers(&[("retry-after", value)]);
        Hints::of(&headers, now()).retry_after.map(|d| d.as_secs())
    }

    fn fresh(lines: &[(&str, &str)]) -> Option<u64> {
        Hints::of(&headers(lines), now())
            .max_age
            .map(|d| d.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(wait("120"), Some(120));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(37));
        assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        assert_eq!(wait("99999999999999999999999"), Some(86_400));
        assert_eq!(wait("Sun, 06 Nov 2094 08:49:37 GMT"), Some(86_400));
        for nonsense in ["soon", "-1", "", "1.5"] {
            assert_eq!(wait(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn freshness_is_the_stated_lifetime_less_the_age() {
        assert_eq!(fresh(&[]), None);
        assert_eq!(
            fresh(&[("cache-control", "public, max-age=300")]),
            Some(300)
        );
        assert_eq!(fresh(&[("cache-control", "MAX-AGE=\"300\"")]), Some(300));
        let aged = [("cache-control", "max-age=300"), ("age", "100")];
        assert_eq!(fresh(&aged), Some(200));
        let stale = [("cache-control", "max-age=300"), ("age", "301")];
        assert_eq!(fresh(&stale), None);
        let two = [
            ("cache-control", "public"),
            ("cache-control", "max-age=7, max-age=9"),
        ];
        assert_eq!(fresh(&two), Some(7));
        assert_eq!(
            fresh(&[("cache-control", "max-age=9999999999999999999999")]),
            Some(86_400)
        );
        for none in [
            "max-age=300, no-cache",
            "no-store",
            "max-age=-1",
            "max-age",
            "s-maxage=9",
        ] {
            assert_eq!(fresh(&[("cache-control", none)]), None, "{none}");
        }
    }

    #[test]
    fn expires_is_used_where_there_is_no_max_age() {
        let expires = ("expires", "Sun, 06 Nov 1994 09:49:00 GMT");
        assert_eq!(fresh(&[expires]), Some(3600));
        // Relative to the server's own clock, which may differ.
        let sent = ("date", "Sun, 06 Nov 1994 09:48:00 GMT");
        assert_eq!(fresh(&[expires, sent]), Some(60));
        assert_eq!(fresh(&[expires, ("cache-control", "max-age=5")]), Some(5));
        assert_eq!(fresh(&[expires, ("cache-control", "max-age=0")]), None);
        assert_eq!(fresh(&[("expires", "0")]), None);
        assert_eq!(fresh(&[("expires", "Sun, 06 Nov 1994 08:00:00 GMT")]), None);
    }

    proptest! {
        #[test]
        fn any_header_is_accepted(name in 0usize..5, value in "[ -~]{0,60}") {
            let name = ["cache-control", "expires", "age", "date", "retry-after"][name];
            let hints = Hints::of(&headers(&[(name, &value)]), now());
            prop_assert!(hints.max_age.unwrap_or_default() <= LONGEST);
            prop_assert!(hints.retry_after.unwrap_or_default() <= LONGEST);
        }
    }
}
