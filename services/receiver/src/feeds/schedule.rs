//! Schedule of the writes of feed files.
//!
//! A feed file is written as a whole: megabytes for an update of a few kilobytes. The journal has
//! every update already, so files may wait: they are written in quiet times, at most once per
//! interval, and within a budget of bytes.

use std::time::{Duration, Instant};

/// Bytes of feed files that one byte of updates pays for, in hundredths.
const EARNED_PERCENT: i64 = 50;

/// Largest credit, in bytes: after catching up, files are not written more often.
const MAX_CREDIT: i64 = 16 << 20;

/// Debt up to which files are written in quiet times, in bytes.
const MAX_DEBT: i64 = 32 << 20;

/// Debt paid off per second, in bytes: some 20 GB in a month.
const REPAID_PER_SECOND: i64 = 8 << 10;

/// Age of a change from which on a write may go into debt while updates keep coming.
const MAX_LAG: Duration = Duration::from_secs(15 * 60);

/// Schedule of a channel's files.
///
/// While updates keep coming, a write is paid for by their bytes. If none arrived for an interval,
/// or the files lag by `MAX_LAG`, a write may go into debt, which is paid off by time.
#[derive(Debug)]
pub struct Schedule {
    interval: Duration,
    /// Credit in bytes; negative for a debt.
    credit: i64,
    /// Time up to which the debt is paid off.
    repaid: Option<Instant>,
    /// Time of the last change.
    changed: Option<Instant>,
    /// Time of the first change since the last write.
    behind_since: Option<Instant>,
    /// Time of the last write.
    written: Option<Instant>,
}

impl Schedule {
    /// Returns a schedule of at most one write per `interval`; with zero, one at each change.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            credit: 0,
            repaid: None,
            changed: None,
            behind_since: None,
            written: None,
        }
    }

    /// Notes so many bytes of updates.
    pub fn earn(&mut self, bytes: u64, now: Instant) {
        self.repay(now);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let earned = bytes.saturating_mul(EARNED_PERCENT) / 100;
        self.credit = self.credit.saturating_add(earned).min(MAX_CREDIT);
        self.changed = Some(now);
        self.behind_since.get_or_insert(now);
    }

    /// Notes that files of so many bytes were written.
    pub fn spend(&mut self, bytes: u64, now: Instant) {
        self.repay(now);
        let spent = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_sub(spent);
        self.written = Some(now);
        self.behind_since = None;
    }

    /// Returns the time at which files of so many bytes are to be written, as known `now`.
    #[must_use]
    pub fn due(&mut self, bytes: u64, now: Instant) -> Instant {
        self.repay(now);
        let (Some(changed), false) = (self.changed, self.interval.is_zero()) else {
            return now;
        };
        let spaced = self.written.map_or(changed, |last| last + self.interval);
        // Larger files are written for a part of their price: the credit is bounded.
        if self.credit >= i64::try_from(bytes).unwrap_or(i64::MAX).min(MAX_CREDIT) {
            return spaced;
        }
        let quiet = changed + self.interval;
        let late = self.behind_since.map(|since| since + MAX_LAG);
        let owed = spaced.max(late.map_or(quiet, |late| late.min(quiet)));
        let excess = (-MAX_DEBT).saturating_sub(self.credit).max(0);
        let seconds = excess.unsigned_abs().div_ceil(REPAID_PER_SECOND as u64);
        owed.max(self.repaid.unwrap_or(now) + Duration::from_secs(seconds))
    }

    /// Pays off debt by the seconds that have passed.
    fn repay(&mut self, now: Instant) {
        let last = *self.repaid.get_or_insert(now);
        let seconds = now.saturating_duration_since(last).as_secs();
        self.repaid = Some(last + Duration::from_secs(seconds));
        if self.credit < 0 {
            let paid = i64::try_from(seconds)
                .unwrap_or(i64::MAX)
                .saturating_mul(REPAID_PER_SECOND);
            self.credit = self.credit.saturating_add(paid).min(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);
    const UPDATE: u64 = 6_000;
    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns the bytes written in an hour of updates at this spacing, and the longest lag of the
    /// files.
    fn hour(interval: Duration, size: u64, spacing: Duration) -> (u64, Duration) {
        run(interval, size, (UPDATE, spacing), HOUR)
    }

    /// Returns the same for updates of another length, and another time.
    fn run(
        interval: Duration,
        size: u64,
        (update, spacing): (u64, Duration),
        time: Duration,
    ) -> (u64, Duration) {
        let begin = Instant::now();
        let mut schedule = Schedule::new(interval);
        let (mut now, mut next) = (begin, begin);
        let mut behind_since = None;
        let (mut written, mut lag) = (0, Duration::ZERO);
        while now < begin + time {
            if now >= next {
                schedule.earn(update, now);
                next += spacing;
                behind_since = behind_since.or(Some(now));
            }
            if let Some(since) = behind_since {
                lag = lag.max(now - since);
                if schedule.due(size, now) <= now {
                    schedule.spend(size, now);
                    written += size;
                    behind_since = None;
                }
            }
            now += Duration::from_millis(100);
        }
        (written, lag)
    }

    #[test]
    fn steady_updates_pay_for_the_files() {
        let spacing = Duration::from_millis(500);
        for size in [60_000, 6_000_000, 20_000_000] {
            let (written, lag) = hour(INTERVAL, size, spacing);
            let updates = 7_200 * UPDATE;
            // Long files are due because of their age.
            let most = (updates / 2).max(4 * size);
            assert!(written <= most, "{written} bytes for {updates}");
            assert!(written >= updates / 3, "{written} bytes for {updates}");
            // Twice the credit of an update, at two updates per second.
            let patience = Duration::from_secs(size * 2 / (2 * UPDATE) + 10);
            assert!(lag <= patience.min(MAX_LAG + INTERVAL), "{size}: {lag:?}");
        }
    }

    #[test]
    fn updates_that_never_pause_leave_files_behind_for_a_bounded_time() {
        let size = 6_000_000;
        for update in [60, 1_000, UPDATE] {
            for spacing in [INTERVAL / 5, INTERVAL * 4 / 5, INTERVAL * 99 / 100] {
                let time = 6 * HOUR;
                let (written, lag) = run(INTERVAL, size, (update, spacing), time);
                assert!(lag <= MAX_LAG + INTERVAL, "{update}, {spacing:?}: {lag:?}");
                // Every quarter of an hour, or paid for.
                let updates = time.as_secs() * 1_000 / spacing.as_millis() as u64 * update;
                let most = (24 * size).max(updates / 2 + size);
                assert!(written <= most, "{update}, {spacing:?}: {written}");
            }
        }
    }

    #[test]
    fn a_quiet_channel_is_written_after_the_interval_and_within_bounds() {
        let size = 6_000_000;
        let (written, lag) = hour(INTERVAL, size, Duration::from_secs(900));
        assert_eq!(written, 4 * size);
        assert!(lag <= INTERVAL + Duration::from_secs(1), "{lag:?}");
        // An update every ten seconds: quiet in between, so writes may go into debt.
        let (written, _) = hour(INTERVAL, size, Duration::from_secs(10));
        let most = (MAX_DEBT + 3600 * REPAID_PER_SECOND) as u64 + 360 * UPDATE + 2 * size;
        assert!(written <= most, "{written} of {most}");
    }

    #[test]
    fn without_an_interval_each_change_is_written() {
        let mut schedule = Schedule::new(Duration::ZERO);
        let now = Instant::now();
        for _ in 0..100 {
            schedule.earn(10, now);
            assert_eq!(schedule.due(6_000_000, now), now);
            schedule.spend(6_000_000, now);
        }
    }
}
