//! Output of a source: events for its owner, sessions with something to send, counters.

use std::collections::{BTreeSet, VecDeque};

use super::types::{ChannelIndex, SessionId, SourceCounters, SourceEvent};

/// Output that waits for the owner of a source.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    events: VecDeque<SourceEvent>,
    dirty: BTreeSet<SessionId>,
    pub(super) counters: SourceCounters,
}

impl Outbox {
    /// Queues an event.
    pub(super) fn push(&mut self, event: SourceEvent) {
        self.events.push_back(event);
    }

    /// Returns the oldest event.
    pub(super) fn pop(&mut self) -> Option<SourceEvent> {
        self.events.pop_front()
    }

    /// Discards the events of a removed channel: its place may get another one.
    pub(super) fn discard_channel(&mut self, c: ChannelIndex) {
        self.events.retain(|event| match event {
            SourceEvent::Moved { channel, .. }
            | SourceEvent::Leg { channel, .. }
            | SourceEvent::Forged { channel, .. }
            | SourceEvent::MassFallBack { channel, .. }
            | SourceEvent::SecretWanted { channel } => *channel != c,
            _ => true,
        });
    }

    /// Notes that a session has something to send on its unicast path.
    pub(super) fn mark_dirty(&mut self, id: SessionId) {
        self.dirty.insert(id);
    }

    /// Returns a session that has something to send.
    pub(super) fn pop_dirty(&mut self) -> Option<SessionId> {
        self.dirty.pop_first()
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&mut self, id: SessionId) {
        self.dirty.remove(&id);
    }
}
