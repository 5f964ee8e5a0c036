//! Two receivers with one id: the newcomer waits until it is known whether the holder lives.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::timer::{Timer, TimerTable};
use super::types::SessionId;

/// Time for the current holder of an id to show that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// A newcomer whose id is taken.
#[derive(Debug)]
struct IdDispute {
    /// Current holder of the id.
    holder: SessionId,
    /// Time by which the deadline may still be extended, since this source was away itself.
    grace: Duration,
}

/// Disputes about ids, by newcomer.
#[derive(Debug, Default)]
pub(super) struct Disputes(BTreeMap<SessionId, IdDispute>);

impl Disputes {
    /// Makes a newcomer wait for a sign of life of the holder.
    pub(super) fn open(
        &mut self,
        newcomer: SessionId,
        holder: SessionId,
        now: Instant,
        timers: &mut TimerTable,
    ) {
        let grace = SIGN_OF_LIFE / 2;
        self.0.insert(newcomer, IdDispute { holder, grace });
        timers.set(Timer::IdDispute(newcomer), now + SIGN_OF_LIFE);
    }

    /// Whether a session waits for the id of another one.
    pub(super) fn has_newcomer(&self, id: SessionId) -> bool {
        self.0.contains_key(&id)
    }

    /// Whether newcomers wait for a sign of life of a session.
    pub(super) fn has_holder(&self, id: SessionId) -> bool {
        self.0.values().any(|dispute| dispute.holder == id)
    }

    /// Ends the dispute of a newcomer, if there is one.
    pub(super) fn end(&mut self, newcomer: SessionId, timers: &mut TimerTable) {
        self.0.remove(&newcomer);
        timers.stop(Timer::IdDispute(newcomer));
    }

    /// Returns the newcomers that wait for a holder.
    pub(super) fn newcomers(&self, holder: SessionId) -> Vec<SessionId> {
        let its = self.0.iter().filter(|(_, d)| d.holder == holder);
        its.map(|(id, _)| *id).collect()
    }

    /// Returns a holder that gave no sign of life in time.
    pub(super) fn silent_holder(&self, now: Instant, timers: &TimerTable) -> Option<SessionId> {
        let is_over = |id: &SessionId| timers.is_expired(Timer::IdDispute(*id), now);
        let mut over = self.0.iter().filter(|(id, _)| is_over(id));
        over.next().map(|(_, dispute)| dispute.holder)
    }

    /// Extends all disputes after this source was away itself: signs of life may still be to be
    /// read, or under way.
    pub(super) fn extend(&mut self, away: Duration, now: Instant, timers: &mut TimerTable) {
        for (id, dispute) in &mut self.0 {
            let more = away.min(dispute.grace);
            dispute.grace -= more;
            let timer = Timer::IdDispute(*id);
            let until = timers.get(timer).map_or(now, |until| until.max(now));
            timers.set(timer, until + more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_holder_loses_its_id_after_a_second() {
        let (now, mut timers) = (Instant::now(), TimerTable::default());
        let mut disputes = Disputes::default();
        disputes.open(2, 1, now, &mut timers);
        assert!(disputes.has_newcomer(2) && disputes.has_holder(1));
        assert_eq!(timers.next_timeout(), Some(now + SIGN_OF_LIFE));
        assert_eq!(disputes.silent_holder(now, &timers), None);
        let later = now + SIGN_OF_LIFE;
        assert_eq!(disputes.silent_holder(later, &timers), Some(1));
        disputes.end(2, &mut timers);
        assert!(!disputes.has_holder(1));
        assert_eq!(timers.next_timeout(), None);
    }

    #[test]
    fn absences_of_the_source_extend_a_dispute_by_half_a_second_in_all() {
        let (now, mut timers) = (Instant::now(), TimerTable::default());
        let mut disputes = Disputes::default();
        disputes.open(2, 1, now, &mut timers);
        let away = Duration::from_millis(400);
        for _ in 0..3 {
            disputes.extend(away, now, &mut timers);
        }
        let until = now + SIGN_OF_LIFE * 3 / 2;
        assert_eq!(timers.next_timeout(), Some(until));
        // An absence beyond the deadline leaves what is left of the grace from then on.
        disputes.open(3, 1, now, &mut timers);
        let back = now + SIGN_OF_LIFE * 2;
        disputes.extend(away, back, &mut timers);
        assert_eq!(timers.get(Timer::IdDispute(3)), Some(back + away));
    }
}
