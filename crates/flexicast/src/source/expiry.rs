//! Deadlines at the source: an expired update is neither sent nor repaired, and
//! receivers that lack it are notified (protocol.md section 7.6).

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::Source;
use super::scope::ChannelScope;
use super::types::{SessionId, channel_number};
use crate::control::{CAPABILITY_DEADLINES, Clock, Control, Expired};
use crate::deadline::{UnixClock, deadline_of, is_past};
use crate::flow::FlowSender;

/// Updates of one flow whose deadlines are remembered: as many as its queue has room for. One
/// beyond that is sent although it may have expired, and repaired no more.
const MAX_TIMED: usize = 65_536;

/// Updates with a deadline that were queued for a channel's flow.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Deadlines in Unix ms with the updates, earliest first.
    due: BTreeSet<(u64, u64)>,
    /// Updates in order, with the channel's bytes up to their ends.
    ends: VecDeque<(u64, u64)>,
}

impl Deadlines {
    /// Takes note of an update that was queued, after which the channel has `end` bytes.
    pub(super) fn note(&mut self, seq: u64, encoded: &[u8], end: u64) {
        let Some(deadline) = deadline_of(encoded) else {
            return;
        };
        self.due.insert((deadline, seq));
        if self.due.len() > MAX_TIMED {
            self.due.pop_last();
        }
        self.ends.push_back((seq, end));
        if self.ends.len() > MAX_TIMED {
            self.ends.pop_front();
        }
    }

    /// Returns the channel's bytes up to the end of an update, if that is still known.
    pub(super) fn end_of(&self, seq: u64) -> Option<u64> {
        let at = self.ends.binary_search_by_key(&seq, |(seq, _)| *seq);
        self.ends.get(at.ok()?).map(|(_, end)| *end)
    }

    /// Takes and returns an update whose deadline has passed.
    fn pop_due(&mut self, now_us: u64) -> Option<u64> {
        let (deadline, seq) = *self.due.first()?;
        is_past(deadline, now_us).then(|| {
            self.due.pop_first();
            seq
        })
    }

    /// Returns the next deadline.
    fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(deadline, _)| *deadline)
    }
}

impl Source {
    /// Sets the clock by which deadlines run: it shows `unix`, the time since 1970, at `now`. Call
    /// it at the start and now and then, because clocks are adjusted. Without it no update expires.
    pub fn set_clock(&mut self, now: Instant, unix: Duration) {
        self.clock = Some(UnixClock::new(now, unix));
    }

    /// Whether what expired is withheld, as it always is but for an injected fault.
    fn keeps_deadlines(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.faults.expired_delivered;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// Returns the clock, if deadlines are kept.
    pub(super) fn deadline_clock(&self) -> Option<UnixClock> {
        self.clock.filter(|_| self.keeps_deadlines())
    }

    /// Answers a receiver's question for the time.
    pub(super) fn on_clock(&mut self, id: SessionId, clock: Clock, now: Instant) {
        let time_us = self.clock.map(|clock| clock.us(now));
        if let Some(session) = self.sessions.get_mut(id).filter(|_| time_us.is_some()) {
            session.say(&Control::Clock(Clock { time_us, ..clock }));
            self.out.mark_dirty(id);
        }
    }

    /// Drops what is next on a session's unicast path and has expired, and notifies the receiver.
    /// One that does not know deadlines gets it all the same.
    pub(super) fn drop_expired(&mut self, id: SessionId, now: Instant) {
        let Some(clock) = self.deadline_clock() else {
            return;
        };
        let session = self.sessions.get_mut(id);
        let Some(session) = session.filter(|s| s.can(CAPABILITY_DEADLINES)) else {
            return;
        };
        let mut frames = Vec::new();
        for subscription in session.subscriptions_mut() {
            let Some(channel) = self.channels.get(subscription.channel) else {
                continue;
            };
            let delivery = &mut subscription.delivery;
            let expired = delivery.drop_expired(&channel.recent, clock.us(now));
            for seqs in expired.iter() {
                self.out.counters.deadlines.expired += seqs.end - seqs.start;
                frames.push(Expired {
                    channel: channel_number(subscription.channel),
                    first: seqs.start,
                    last: seqs.end - 1,
                    offset: channel.deadlines.end_of(seqs.end - 1),
                });
            }
        }
        if !frames.is_empty() {
            let frames = frames.into_iter().map(Control::Expired);
            frames.for_each(|frame| session.say(&frame));
            self.out.mark_dirty(id);
        }
    }

    /// Returns when an update that waits for a flow expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let clock = self.deadline_clock()?;
        let waiting = |flow: &FlowSender| flow.queued_bytes() > 0;
        let channels = self.channels.iter().map(|(_, channel)| channel);
        let waiting = channels.filter(|channel| channel.flow.as_ref().is_some_and(waiting));
        let due = waiting
            .filter_map(|channel| channel.deadlines.next_due())
            .min();
        clock.passes_at(due?)
    }
}

impl ChannelScope<'_> {
    /// Takes updates whose deadline has passed off the flow.
    pub(super) fn expire(&mut self, now: Instant) {
        let Some(clock) = self.clock else {
            return;
        };
        let (channel, now_us) = (&mut *self.channel, clock.us(now));
        let Some(flow) = &mut channel.flow else {
            return;
        };
        let before = self.out.counters.deadlines.withdrawn;
        while let Some(seq) = channel.deadlines.pop_due(now_us) {
            self.out.counters.deadlines.withdrawn += u64::from(flow.expire(seq));
        }
        if self.out.counters.deadlines.withdrawn > before {
            self.flow_events(now);
        }
    }

    /// Whether the deadline of an update has passed.
    pub(super) fn is_expired(&self, encoded: &[u8], now: Instant) -> bool {
        let deadline = self.clock.zip(deadline_of(encoded));
        deadline.is_some_and(|(clock, deadline)| is_past(deadline, clock.us(now)))
    }
}
