//! The time of records.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in Unix milliseconds.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |since| since.as_millis());
    i64::try_from(ms).unwrap_or(i64::MAX)
}
