//! When the timers of a flow's members are checked, and the grace of members after the source
//! itself was away.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::sender::MemberId;

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
///
/// The timers of losses are apart: of many members, one is due at nearly every moment, and only
/// that member is looked at then.
#[derive(Debug, Default)]
pub(super) struct MemberChecks {
    at: Option<Instant>,
    /// Members that may find out about a loss, by time.
    losses: BTreeSet<(Instant, MemberId)>,
    grace: Option<Grace>,
}

impl MemberChecks {
    /// Plans a check for `at` or earlier.
    pub(super) fn plan(&mut self, at: Option<Instant>) {
        self.at = [self.at, at].into_iter().flatten().min();
    }

    /// Replaces the time at which a member may find out about a loss.
    pub(super) fn plan_loss(
        &mut self,
        member: MemberId,
        before: Option<Instant>,
        at: Option<Instant>,
    ) {
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.losses.remove(&(before, member));
        }
        if let Some(at) = at {
            self.losses.insert((at, member));
        }
    }

    /// Returns the time of the next check, of all members or of one.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let loss = self.losses.first().map(|(at, _)| *at);
        let at = [self.at, loss].into_iter().flatten().min()?;
        Some(self.postponed(at))
    }

    fn postponed(&self, at: Instant) -> Instant {
        self.grace.map_or(at, |grace| at.max(grace.until))
    }

    /// Whether a check of all members is due, which starts with this call.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.at.is_some_and(|at| self.postponed(at) <= now);
        if is_due {
            (self.at, self.grace) = (None, None);
        }
        is_due
    }

    /// Takes a member that may find out about a loss now.
    pub(super) fn take_due_loss(&mut self, now: Instant) -> Option<MemberId> {
        let at = self.losses.first()?.0;
        let first = (self.postponed(at) <= now).then(|| self.losses.pop_first());
        first.flatten().map(|(_, member)| member)
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
    fn losses_are_looked_at_one_by_one() {
        let now = Instant::now();
        let mut checks = MemberChecks::default();
        checks.plan(Some(now + HEARTBEAT));
        checks.plan_loss(1, None, Some(now + AWAY));
        checks.plan_loss(2, None, Some(now + AWAY * 2));
        assert_eq!(checks.next_timeout(), Some(now + AWAY));
        assert_eq!(checks.take_due_loss(now), None);
        assert!(!checks.take_due(now + AWAY));
        assert_eq!(checks.take_due_loss(now + AWAY), Some(1));
        assert_eq!(checks.take_due_loss(now + AWAY), None);
        checks.plan_loss(2, Some(now + AWAY * 2), Some(now + AWAY * 3));
        assert_eq!(checks.take_due_loss(now + AWAY * 2), None);
        assert_eq!(checks.take_due_loss(now + AWAY * 3), Some(2));
        assert_eq!(checks.next_timeout(), Some(now + HEARTBEAT));
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
