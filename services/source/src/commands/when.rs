//! Points in time, as written and read by people.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use service::values::shown_duration;

use crate::clock::millis;
use crate::config::age;

/// A point in time that may depend on now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FutureTime {
    /// After this time.
    In(Duration),
    /// At this time.
    At(Timestamp),
}

impl FutureTime {
    /// Returns Unix milliseconds.
    pub(super) fn from(self, now_ms: i64) -> i64 {
        match self {
            FutureTime::In(time) => now_ms.saturating_add(millis(time)),
            FutureTime::At(then) => then.as_millisecond(),
        }
    }
}

/// Reads a time from now, a date or a time.
pub(super) fn later(text: &str) -> Result<FutureTime, String> {
    let wrong = || {
        "write a time from now such as 12h, 7d or 8w, a date such as 2027-01-31, or a time such as \
         2027-01-31T12:00:00Z"
            .to_owned()
    };
    if let Ok(date) = text.parse::<Date>()
        && !text.contains(['T', 't', ':'])
    {
        // To the end of that day.
        let next = date.checked_add(1.day()).map_err(|_| wrong())?;
        let end = next.to_zoned(TimeZone::UTC).map_err(|_| wrong())?;
        return Ok(FutureTime::At(end.timestamp()));
    }
    if let Ok(then) = text.parse::<Timestamp>() {
        return Ok(FutureTime::At(then));
    }
    age(text).map(FutureTime::In).map_err(|_| wrong())
}

/// Returns a time for a table, in UTC.
pub(super) fn shown(unix_ms: i64) -> String {
    match Timestamp::from_millisecond(unix_ms) {
        Ok(then) => then.strftime("%Y-%m-%d %H:%M").to_string(),
        Err(_) => "?".to_owned(),
    }
}

/// Returns a length of time for people: 20s, 1h, 90d, 1.5s.
pub(super) fn length(ms: i64) -> String {
    shown_duration(Duration::from_millis(ms.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn times_are_relative_or_absolute() {
        let ms = |text: &str| later(text).unwrap().from(1000);
        assert_eq!(ms("7d"), 7 * 86_400_000 + 1000);
        assert_eq!(ms("90m"), 90 * 60_000 + 1000);
        assert_eq!(ms("1970-01-01"), 86_400_000);
        assert_eq!(ms("1970-01-01T00:00:02Z"), 2000);
        assert_eq!(ms("1970-01-01T01:00:02+01:00"), 2000);
        for bad in ["", "7", "soon", "2027-13-01", "2027-01-31T12:00", "-7d"] {
            later(bad).expect_err(bad);
        }
    }

    #[test]
    fn lengths_are_short() {
        for (ms, text) in [
            (0, "0s"),
            (500, "500ms"),
            (1500, "1.5s"),
            (20_000, "20s"),
            (90_000, "90s"),
            (3_600_000, "1h"),
            (7 * 86_400_000, "7d"),
        ] {
            assert_eq!(length(ms), text);
        }
    }
}
