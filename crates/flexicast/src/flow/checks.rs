//! When the timers of a flow's members are checked, and the grace of members after the source
//! itself was away.

use std::time::{Duration, Instant};

/// Minimum of the grace period after the source itself was away: several acknowledgement delays.
const MIN_GRACE: Duration = Duration::from_millis(100);
/// Maximum of the grace period, or a heartbeat if that is less: a member that has gone is found by
/// then.
const MAX_GRACE: Duration = Duration::from_secs(2);

/// Grace period of all members, until the next check.
#[derive(Debug, Clone, Copy)]
struct Grace {
    until: Instant,
    /// Absence that it is for.
    away: Duration,
}

/// Time of the next check of all members. Never later than the earliest of their timers, so that
/// nothing is done per packet and member.
#[derive(Debug, Default)]
pub(super) struct MemberChecks {
    at: Option<Instant>,
    grace: Option<Grace>,
}

impl MemberChecks {
    /// Plans a check for `at` or earlier.
    pub(super) fn plan(&mut self, at: Option<Instant>) {
        self.at = [self.at, at].into_iter().flatten().min();
    }

    /// Returns the time of the next check.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let at = self.at?;
        Some(self.grace.map_or(at, |grace| at.max(grace.until)))
    }

    /// Whether a check is due, which starts with this call.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_timeout().is_some_and(|at| at <= now);
        if is_due {
            (self.at, self.grace) = (None, None);
        }
        is_due
    }

    /// Grants a grace period after an absence of the source. One that has postponed the check is
    /// followed by another before that check only for an absence of twice the length: a source
    /// that is always late does fall members back in the end.
    pub(super) fn grant_grace(&mut self, away: Duration, heartbeat: Duration, now: Instant) {
        let longest = MAX_GRACE.min(heartbeat);
        let away = away.max(MIN_GRACE);
        let counts = |(at, grace): (Instant, Grace)| at <= grace.until && away / 2 < grace.away;
        if !self.at.zip(self.grace).is_some_and(counts) {
            let until = now + away.min(longest).max(MIN_GRACE);
            self.grace = Some(Grace { until, away });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(1);
    const AWAY: Duration = Duration::from_millis(300);

    #[test]
    fn the_earliest_plan_counts_and_is_over_with_the_check() {
        let now = Instant::now();
        let mut checks = MemberChecks::default();
        checks.plan(Some(now + HEARTBEAT));
        checks.plan(Some(now + AWAY));
        checks.plan(None);
        assert_eq!(checks.next_timeout(), Some(now + AWAY));
        assert!(!checks.take_due(now) && checks.take_due(now + AWAY));
        assert_eq!(checks.next_timeout(), None);
    }

    #[test]
    fn a_source_that_is_always_late_checks_in_the_end() {
        let now = Instant::now();
        let mut checks = MemberChecks::default();
        checks.plan(Some(now));
        checks.grant_grace(AWAY, HEARTBEAT, now);
        assert_eq!(checks.next_timeout(), Some(now + AWAY));
        checks.grant_grace(AWAY, HEARTBEAT, now + AWAY / 2);
        assert_eq!(checks.next_timeout(), Some(now + AWAY), "once");
        checks.grant_grace(AWAY * 2, HEARTBEAT, now + AWAY / 2);
        assert_eq!(checks.next_timeout(), Some(now + AWAY * 5 / 2));
        assert!(checks.take_due(now + AWAY * 3));
    }

    #[test]
    fn a_grace_period_lasts_a_heartbeat_at_most() {
        let now = Instant::now();
        let mut checks = MemberChecks::default();
        checks.plan(Some(now));
        checks.grant_grace(Duration::from_secs(60), HEARTBEAT, now);
        assert_eq!(checks.next_timeout(), Some(now + HEARTBEAT));
    }
}
