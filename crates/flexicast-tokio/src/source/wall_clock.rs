//! Times as people and other programs read them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns a moment by the current wall clock.
pub(super) fn unix_ms_at(at: Instant) -> u64 {
    let ago = Instant::now().saturating_duration_since(at);
    let wall = SystemTime::now().checked_sub(ago);
    unix_ms(wall.unwrap_or(UNIX_EPOCH))
}

/// Returns the time since 1970 by the current wall clock.
pub(super) fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns the current time.
pub(super) fn unix_ms_now() -> u64 {
    unix_ms(SystemTime::now())
}

fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis() as u64
}
