//! Times for people.

use jiff::Timestamp;
use jiff::tz::TimeZone;

pub(super) const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Clock and time zone that times are formatted with.
pub(super) struct Clock<'a> {
    /// Unix time in ms.
    pub(super) now_ms: u64,
    /// Time zone of the reader.
    pub(super) zone: &'a TimeZone,
}

impl Clock<'_> {
    /// Returns the time of day, with the date if it is not recent.
    pub(super) fn time(&self, at_ms: u64) -> String {
        let format = if self.now_ms.abs_diff(at_ms) < DAY_MS {
            "%H:%M:%S"
        } else {
            "%Y-%m-%d %H:%M:%S"
        };
        let at = i64::try_from(at_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        at.map_or_else(
            || "an impossible time".to_owned(),
            |at| at.to_zoned(self.zone.clone()).strftime(format).to_string(),
        )
    }

    /// Returns the time and its age.
    pub(super) fn ago(&self, at_ms: u64) -> String {
        format!("{} ({} ago)", self.time(at_ms), self.age(at_ms))
    }

    /// Returns the age of `at_ms` as text.
    pub(super) fn age(&self, at_ms: u64) -> String {
        let seconds = self.now_ms.saturating_sub(at_ms) / 1000;
        match seconds {
            0..60 => format!("{seconds} s"),
            60..3_600 => format!("{} min", seconds / 60),
            3_600..172_800 => format!("{} h", seconds / 3_600),
            _ => format!("{} days", seconds / 86_400),
        }
    }
}
