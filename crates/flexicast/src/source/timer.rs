//! Timers of the source: the deadlines of its channels and receivers in one table. Those of a flow
//! are the flow's own, and the pace of the unicast paths is the scheduler's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::types::{ChannelIndex, SessionId};
use crate::Rung;

/// A deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A timer of a channel.
    Channel(ChannelIndex, ChannelTimer),
    /// A timer of a receiver on a channel.
    Receiver(SessionId, ChannelIndex, ReceiverTimer),
    /// When a newcomer gets the id of a receiver that gave no sign of life.
    IdDispute(SessionId),
    /// When to look at the cursors of all receivers.
    Cursors,
}

/// A deadline of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChannelTimer {
    /// When newcomers to a private channel get a key.
    JoinRekey,
    /// When receivers that left are locked out.
    LeaveRekey,
    /// When fall-backs that began together are one event, or none.
    MassFallBack,
}

/// A deadline of a receiver on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReceiverTimer {
    /// When the receiver may prove a rung again.
    Backoff(Rung),
    /// When replication ends that was not proved to arrive.
    Replication,
    /// When to repeat a request to a store that did not answer.
    StoreRetry,
}

/// The timers that are set.
#[derive(Debug, Default)]
pub(super) struct TimerTable {
    /// Deadlines of all timers but those of receivers.
    deadlines: BTreeMap<Timer, Instant>,
    /// All deadlines by time. A timer of a receiver may have several, of which those that were
    /// superseded have no effect: its owner knows which one counts.
    queue: BTreeSet<(Instant, Timer)>,
}

impl TimerTable {
    /// Sets a timer, in place of an earlier setting.
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(before) = self.deadlines.insert(timer, at) {
            self.queue.remove(&(before, timer));
        }
        self.queue.insert((at, timer));
    }

    /// Adds a deadline to a timer of a receiver.
    pub(super) fn add(
        &mut self,
        id: SessionId,
        channel: ChannelIndex,
        timer: ReceiverTimer,
        at: Instant,
    ) {
        self.queue.insert((at, Timer::Receiver(id, channel, timer)));
    }

    /// Sets a timer unless it is set already.
    pub(super) fn set_once(&mut self, timer: Timer, at: Instant) {
        if !self.deadlines.contains_key(&timer) {
            self.set(timer, at);
        }
    }

    /// Sets a timer unless it is set for an earlier time.
    pub(super) fn bring_forward(&mut self, timer: Timer, at: Instant) {
        let at = self.get(timer).map_or(at, |known| known.min(at));
        self.set(timer, at);
    }

    /// Stops a timer.
    pub(super) fn stop(&mut self, timer: Timer) {
        if let Some(at) = self.deadlines.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    /// Stops all timers of a channel and of the receivers on it.
    pub(super) fn stop_channel(&mut self, channel: ChannelIndex) {
        let is_other = |timer: &Timer| match timer {
            Timer::Channel(c, _) | Timer::Receiver(_, c, _) => *c != channel,
            Timer::IdDispute(_) | Timer::Cursors => true,
        };
        self.deadlines.retain(|timer, _| is_other(timer));
        self.queue.retain(|(_, timer)| is_other(timer));
    }

    /// Returns the deadline of a timer that is set.
    pub(super) fn get(&self, timer: Timer) -> Option<Instant> {
        self.deadlines.get(&timer).copied()
    }

    /// Whether a timer has expired.
    pub(super) fn is_expired(&self, timer: Timer, now: Instant) -> bool {
        self.get(timer).is_some_and(|at| at <= now)
    }

    /// Stops a timer that has expired; returns whether it had.
    pub(super) fn take_expired(&mut self, timer: Timer, now: Instant) -> bool {
        let is_expired = self.is_expired(timer, now);
        if is_expired {
            self.stop(timer);
        }
        is_expired
    }

    /// Takes and returns the first timer of a receiver that has expired.
    pub(super) fn pop_expired_receiver(
        &mut self,
        now: Instant,
    ) -> Option<(SessionId, ChannelIndex, ReceiverTimer)> {
        let mut expired = self.queue.iter().take_while(|(at, _)| *at <= now);
        let (entry, found) = expired.find_map(|entry| match entry.1 {
            Timer::Receiver(id, c, what) => Some((*entry, (id, c, what))),
            _ => None,
        })?;
        self.queue.remove(&entry);
        Some(found)
    }

    /// Returns the earliest deadline.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const JOIN: Timer = Timer::Channel(0, ChannelTimer::JoinRekey);
    const RETRY: ReceiverTimer = ReceiverTimer::StoreRetry;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_timer_has_one_deadline() {
        let now = Instant::now();
        let mut timers = TimerTable::default();
        timers.set(JOIN, now + SECOND * 2);
        timers.set_once(JOIN, now);
        assert_eq!(timers.next_timeout(), Some(now + SECOND * 2));
        timers.bring_forward(JOIN, now + SECOND);
        timers.bring_forward(JOIN, now + SECOND * 3);
        assert_eq!(timers.next_timeout(), Some(now + SECOND));
        assert!(!timers.take_expired(JOIN, now));
        assert!(timers.take_expired(JOIN, now + SECOND));
        assert_eq!((timers.get(JOIN), timers.next_timeout()), (None, None));
    }

    #[test]
    fn receivers_come_in_the_order_of_their_deadlines() {
        let now = Instant::now();
        let mut timers = TimerTable::default();
        timers.add(1, 0, RETRY, now + SECOND);
        timers.set(JOIN, now);
        timers.add(2, 0, RETRY, now);
        timers.add(2, 0, RETRY, now + SECOND);
        timers.add(3, 0, RETRY, now + SECOND * 2);
        let later = now + SECOND;
        let popped = std::iter::from_fn(|| timers.pop_expired_receiver(later));
        assert!(popped.eq([(2, 0, RETRY), (1, 0, RETRY), (2, 0, RETRY)]));
        assert_eq!(timers.next_timeout(), Some(now), "others stay set");
    }

    #[test]
    fn a_channel_takes_its_timers_with_it() {
        let now = Instant::now();
        let mut timers = TimerTable::default();
        for channel in [0, 1] {
            timers.set(Timer::Channel(channel, ChannelTimer::LeaveRekey), now);
            timers.add(5, channel, RETRY, now);
        }
        timers.set(Timer::Cursors, now);
        timers.stop_channel(0);
        let left: Vec<_> = timers.queue.iter().map(|(_, timer)| *timer).collect();
        let others = Timer::Channel(1, ChannelTimer::LeaveRekey);
        assert_eq!(left, [others, Timer::Receiver(5, 1, RETRY), Timer::Cursors]);
        assert!(timers.deadlines.keys().eq(&[others, Timer::Cursors]));
    }
}
