//! The time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix milliseconds by the clock of this machine.
#[must_use]
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis();
    i64::try_from(now).unwrap_or(i64::MAX)
}
