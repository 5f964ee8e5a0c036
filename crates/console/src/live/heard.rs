//! Silence of the source. Its clock and that of this machine need not agree, so what counts is when
//! a report was read here.

use std::time::Duration;

use tokio::time::Instant;

/// Silence after which a source counts as gone. It reports every five seconds.
const SILENT: Duration = Duration::from_secs(15);

/// Time of the source's last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceReport {
    /// `None` for longer ago than this program knows.
    at: Option<Instant>,
    /// The same in Unix milliseconds, by the clock of this machine; for a report made before this
    /// program read it, by that of the source.
    pub unix_ms: i64,
}

impl SourceReport {
    /// Returns the state for a report of time `said_ms` that is read for the first time. Its age is
    /// relative to the source's own clock; if that is wrong, the next report corrects it.
    #[must_use]
    pub fn before(said_ms: i64, now: Instant, now_ms: i64) -> Self {
        let age = u64::try_from(now_ms.saturating_sub(said_ms)).unwrap_or(0);
        let age = Duration::from_millis(age);
        let recent = age <= SILENT;
        Self {
            at: recent.then(|| now.checked_sub(age)).flatten(),
            unix_ms: said_ms.min(now_ms),
        }
    }

    /// Applies a report.
    #[must_use]
    pub fn at(now: Instant, now_ms: i64) -> Self {
        Self {
            at: Some(now),
            unix_ms: now_ms,
        }
    }

    /// Whether it had been silent for too long at the last read. Without reads, silence is unknown.
    #[must_use]
    pub fn is_silent(&self, looked: Instant) -> bool {
        self.at
            .is_none_or(|at| looked.saturating_duration_since(at) > SILENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_800_000_000_000;

    #[test]
    fn silence_is_measured_here() {
        let now = Instant::now() + Duration::from_secs(100);
        let after = |seconds| now + Duration::from_secs(seconds);
        let heard = SourceReport::at(now, NOW_MS);
        assert_eq!(heard.unix_ms, NOW_MS);
        assert!(!heard.is_silent(now) && !heard.is_silent(after(15)));
        assert!(heard.is_silent(after(16)));
        // The last look was before that.
        assert!(!heard.is_silent(now - Duration::from_secs(99)));
    }

    #[test]
    fn an_old_report_keeps_its_age() {
        let now = Instant::now() + Duration::from_secs(100);
        let before = |ms: i64| SourceReport::before(NOW_MS - ms, now, NOW_MS);
        assert!(!before(14_000).is_silent(now));
        assert!(before(14_000).is_silent(now + Duration::from_secs(2)));
        assert!(before(16_000).is_silent(now));
        assert_eq!(before(3_600_000).unix_ms, NOW_MS - 3_600_000);
        // A clock that is ahead proves nothing, and is not believed for long.
        let ahead = before(-3_600_000);
        assert_eq!(ahead.unix_ms, NOW_MS);
        assert!(!ahead.is_silent(now));
        assert!(ahead.is_silent(now + Duration::from_secs(16)));
        assert!(SourceReport::before(i64::MIN, now, NOW_MS).is_silent(now));
        assert!(!SourceReport::before(i64::MAX, now, NOW_MS).is_silent(now));
    }
}
