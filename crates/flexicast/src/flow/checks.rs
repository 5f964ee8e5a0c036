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

/// Next check of a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemberTimer {
    /// The earliest of its deadlines.
    pub(crate) at: Option<Instant>,
    /// Whether it owes no data, so that the next packet may bring an earlier deadline.
    pub(crate) is_idle: bool,
    /// Whether nothing has come from it since data was repaired that it did not acknowledge.
    pub(crate) is_silent: bool,
}

/// Times of the next checks of all members.
///
/// A check looks at one member, when its own deadline is due. Sending a packet costs nothing for
/// each member either: those that owe data have an earlier deadline, and the others are looked at
/// together, before the first of them can be late.
#[derive(Debug, Default)]
pub(super) struct MemberChecks {
    /// Deadlines of members, in order.
    timers: BTreeSet<(Instant, MemberId)>,
    /// Members that owe no data.
    idle: BTreeSet<MemberId>,
    /// When these are looked at: a packet was sent.
    idle_at: Option<Instant>,
    /// Number of silent members.
    silent: usize,
    grace: Option<Grace>,
}

impl MemberChecks {
    /// Replaces the timer of a member.
    pub(super) fn replace(&mut self, member: MemberId, timer: &mut MemberTimer, next: MemberTimer) {
        let before = std::mem::replace(timer, next);
        if let Some(at) = before.at.filter(|at| next.at != Some(*at)) {
            self.timers.remove(&(at, member));
        }
        if let Some(at) = next.at {
            self.timers.insert((at, member));
        }
        if next.is_idle {
            self.idle.insert(member);
        } else if before.is_idle {
            self.idle.remove(&member);
        }
        match (before.is_silent, next.is_silent) {
            (false, true) => self.silent += 1,
            (true, false) => self.silent -= 1,
            _ => {}
        }
    }

    /// Forgets a member that has this timer.
    pub(super) fn remove(&mut self, member: MemberId, mut timer: MemberTimer) {
        self.replace(member, &mut timer, MemberTimer::default());
    }

    /// Notes a packet, for which no member can be late before `at`.
    pub(super) fn note_sent(&mut self, at: Instant) {
        let at = self.idle_at.map_or(at, |earlier| earlier.min(at));
        self.idle_at = (!self.idle.is_empty()).then_some(at);
    }

    /// Notes that nothing is owed any more.
    pub(super) fn note_settled(&mut self) {
        self.idle_at = None;
    }

    /// Has all these members checked now: their deadlines have come forward.
    pub(super) fn check_all(&mut self, members: impl Iterator<Item = MemberId>, now: Instant) {
        self.idle.extend(members);
        self.note_sent(now);
    }

    /// Whether any member is silent.
    pub(super) fn any_silent(&self) -> bool {
        self.silent > 0
    }

    /// The earliest deadline.
    fn first(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.idle_at].into_iter().flatten().min()
    }

    /// Returns the time of the next check.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.first().map(|at| self.postponed(at))
    }

    fn postponed(&self, at: Instant) -> Instant {
        self.grace.map_or(at, |grace| at.max(grace.until))
    }

    /// Takes the members to check now. Each gets another timer.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<MemberId> {
        let mut due = Vec::new();
        if self.next_timeout().is_none_or(|at| at > now) {
            return due;
        }
        self.grace = None;
        if self.idle_at.take_if(|at| *at <= now).is_some() {
            due.extend(std::mem::take(&mut self.idle));
        }
        while let Some((at, member)) = self.timers.pop_first() {
            if at > now {
                self.timers.insert((at, member));
                break;
            }
            due.push(member);
        }
        due
    }

    /// Grants a grace period after an absence of the source. One that has postponed the check is
    /// followed by another before that check only for an absence of twice the length: a source
    /// that is always late does fall members back in the end.
    pub(super) fn grant_grace(&mut self, away: Duration, heartbeat: Duration, now: Instant) {
        let longest = MAX_GRACE.min(heartbeat);
        let away = away.max(MIN_GRACE);
        let counts = |(at, grace): (Instant, Grace)| at <= grace.until && away / 2 < grace.away;
        if !self.first().zip(self.grace).is_some_and(counts) {
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

    /// Checks with a timer for each of these members.
    fn checks<const N: usize>(at: [Instant; N]) -> (MemberChecks, [MemberTimer; N]) {
        let mut checks = MemberChecks::default();
        let mut timers = [MemberTimer::default(); N];
        for (member, (timer, at)) in timers.iter_mut().zip(at).enumerate() {
            checks.replace(member as u64, timer, due(at));
        }
        (checks, timers)
    }

    fn due(at: Instant) -> MemberTimer {
        MemberTimer {
            at: Some(at),
            ..MemberTimer::default()
        }
    }

    #[test]
    fn members_are_checked_one_by_one() {
        let now = Instant::now();
        let (mut checks, mut timers) = checks([now + AWAY * 2, now + AWAY, now + AWAY * 9]);
        assert_eq!(checks.next_timeout(), Some(now + AWAY));
        assert_eq!(checks.take_due(now), []);
        assert_eq!(checks.take_due(now + AWAY), [1]);
        assert_eq!(checks.next_timeout(), Some(now + AWAY * 2));
        checks.replace(0, &mut timers[0], due(now + AWAY * 3));
        checks.replace(1, &mut timers[1], due(now + AWAY * 3));
        assert_eq!(checks.take_due(now + AWAY * 2), []);
        assert_eq!(checks.take_due(now + AWAY * 3), [0, 1]);
        checks.remove(2, timers[2]);
        assert_eq!(checks.next_timeout(), None);
    }

    #[test]
    fn a_packet_has_those_checked_that_owed_nothing() {
        let now = Instant::now();
        let (mut checks, mut timers) = checks([now + AWAY * 9; 3]);
        checks.note_sent(now + AWAY);
        assert_eq!(
            checks.next_timeout(),
            Some(now + AWAY * 9),
            "no member is idle"
        );
        let idle = MemberTimer {
            is_idle: true,
            ..MemberTimer::default()
        };
        (0..2).for_each(|i| checks.replace(i as u64, &mut timers[i], idle));
        checks.note_sent(now + AWAY);
        checks.note_sent(now + AWAY * 2);
        checks.replace(1, &mut timers[1], due(now + AWAY * 4));
        assert_eq!(checks.take_due(now + AWAY), [0]);
        checks.replace(0, &mut timers[0], idle);
        assert_eq!(checks.take_due(now + AWAY * 4), [1], "no other packet");
        checks.note_sent(now + AWAY * 5);
        checks.note_settled();
        assert_eq!(
            checks.take_due(now + AWAY * 9),
            [2],
            "all have acknowledged it"
        );
        checks.check_all([0, 2].into_iter(), now);
        assert_eq!(checks.take_due(now), [0, 2]);
    }

    #[test]
    fn silent_members_are_counted() {
        let now = Instant::now();
        let (mut checks, mut timers) = checks([now; 2]);
        let silent = MemberTimer {
            is_silent: true,
            ..due(now)
        };
        (0..2).for_each(|i| checks.replace(i as u64, &mut timers[i], silent));
        checks.replace(0, &mut timers[0], due(now));
        assert!(checks.any_silent());
        checks.remove(1, timers[1]);
        assert!(!checks.any_silent());
    }

    #[test]
    fn a_source_that_is_always_late_checks_in_the_end() {
        let now = Instant::now();
        let (mut checks, _) = checks([now]);
        checks.grant_grace(AWAY, HEARTBEAT, now);
        assert_eq!(checks.next_timeout(), Some(now + AWAY));
        checks.grant_grace(AWAY, HEARTBEAT, now + AWAY / 2);
        assert_eq!(checks.next_timeout(), Some(now + AWAY), "once");
        checks.grant_grace(AWAY * 2, HEARTBEAT, now + AWAY / 2);
        assert_eq!(checks.next_timeout(), Some(now + AWAY * 5 / 2));
        assert_eq!(checks.take_due(now + AWAY * 3), [0]);
    }

    #[test]
    fn a_grace_period_lasts_a_heartbeat_at_most() {
        let now = Instant::now();
        let (mut checks, _) = checks([now]);
        checks.grant_grace(Duration::from_secs(60), HEARTBEAT, now);
        assert_eq!(checks.next_timeout(), Some(now + HEARTBEAT));
    }
}
