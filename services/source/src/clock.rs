//! Milliseconds, as the database and the pages have times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the current Unix time; 0 before 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, millis)
}

/// Returns a length of time, at most [`i64::MAX`].
pub fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
