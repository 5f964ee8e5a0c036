//! Deadlines of updates, and the clock that they run by (protocol.md section 7.6).

use std::time::{Duration, Instant};

/// Returns the Unix time in ms at which an encoded update expires, if its header states
/// one.
pub(crate) fn deadline_of(encoded: &[u8]) -> Option<u64> {
    signing::Header::parse(encoded).ok()?.deadline_ms()
}

/// Whether a deadline in Unix ms has passed at `now_us` in Unix µs.
pub(crate) fn is_past(deadline_ms: u64, now_us: u64) -> bool {
    now_us > deadline_ms.saturating_mul(1000)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A clock of Unix time, as it was read or estimated at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnixClock {
    at: Instant,
    unix_us: u64,
}

impl UnixClock {
    /// A clock that showed `unix` at an instant.
    pub(crate) fn new(at: Instant, unix: Duration) -> Self {
        let unix_us = micros(unix);
        UnixClock { at, unix_us }
    }

    /// Returns the Unix time in µs.
    pub(crate) fn us(&self, now: Instant) -> u64 {
        match now.checked_duration_since(self.at) {
            Some(since) => self.unix_us.saturating_add(micros(since)),
            None => self.unix_us.saturating_sub(micros(self.at - now)),
        }
    }

    /// Returns the first instant at which a deadline has passed; `None` for one beyond what can be
    /// counted.
    pub(crate) fn passes_at(&self, deadline_ms: u64) -> Option<Instant> {
        let deadline_us = deadline_ms.saturating_mul(1000).saturating_add(1);
        let left = Duration::from_micros(deadline_us.saturating_sub(self.unix_us));
        self.at.checked_add(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_after_its_millisecond() {
        let (start, second) = (
            Instant::now() + Duration::from_secs(9),
            Duration::from_secs(1),
        );
        let clock = UnixClock::new(start, Duration::from_secs(1000));
        assert_eq!(clock.us(start + second), 1_001_000_000);
        assert_eq!(clock.us(start - second), 999_000_000);
        let at = clock.passes_at(1_000_500).unwrap();
        assert_eq!(at - start, Duration::from_micros(500_001));
        assert!(is_past(1_000_500, clock.us(at)));
        assert!(!is_past(1_000_500, clock.us(at - Duration::from_micros(1))));
        assert_eq!(clock.passes_at(5), Some(start), "long ago");
        assert!(!is_past(u64::MAX, u64::MAX), "never");
    }
}
