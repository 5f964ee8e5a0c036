//! The audience of a channel's flow: how many receivers listen, and which of them get replicated
//! packets.

use std::collections::BTreeSet;

use super::types::SessionId;

/// Use that one receiver makes of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reception {
    /// Whether the receiver listens on any path.
    pub(super) listens: bool,
    /// Whether packets are replicated to its address.
    pub(super) replicated: bool,
}

/// Receivers of a flow. Changes are collected and counted once for all changes of an instant,
/// before anything else is sent.
#[derive(Debug, Default)]
pub(super) struct Audience {
    listeners: usize,
    replicas: Vec<SessionId>,
    /// Changes of `replicas`.
    generation: u64,
    /// Sessions whose reception may have changed.
    stale: BTreeSet<SessionId>,
}

impl Audience {
    /// Returns the number of receivers that listen.
    pub(super) fn listeners(&self) -> usize {
        self.listeners
    }

    /// Returns the receivers of replicated packets.
    pub(super) fn replicas(&self) -> &[SessionId] {
        &self.replicas
    }

    /// Returns a number that grows with each change of the receivers of replicated packets.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Removes all receivers.
    pub(super) fn clear(&mut self) {
        *self = Audience {
            generation: self.generation + 1,
            ..Audience::default()
        };
    }

    /// Notes that the reception of a session may have changed.
    pub(super) fn mark_stale(&mut self, id: SessionId) {
        self.stale.insert(id);
    }

    /// Returns the sessions whose reception may have changed since the last call.
    pub(super) fn take_stale(&mut self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.stale)
    }

    /// Replaces the counted reception of a session.
    pub(super) fn count(&mut self, id: SessionId, was: Reception, is: Reception) {
        let listeners = self.listeners + usize::from(is.listens);
        self.listeners = listeners.saturating_sub(usize::from(was.listens));
        self.generation += u64::from(was.replicated != is.replicated);
        match (was.replicated, is.replicated) {
            (false, true) => self.replicas.push(id),
            (true, false) => self.replicas.retain(|other| *other != id),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_counts_once_and_leaves_no_trace() {
        let nowhere = Reception::default();
        let native = Reception {
            listens: true,
            replicated: false,
        };
        let replicated = Reception {
            listens: true,
            replicated: true,
        };
        let mut audience = Audience::default();
        audience.count(1, nowhere, native);
        audience.count(2, nowhere, replicated);
        audience.count(1, native, replicated);
        assert_eq!(
            (audience.listeners(), audience.replicas()),
            (2, &[2, 1][..])
        );
        audience.count(2, replicated, nowhere);
        audience.count(1, replicated, native);
        assert_eq!((audience.listeners(), audience.replicas()), (1, &[][..]));
    }

    #[test]
    fn each_change_of_replication_is_a_generation() {
        let (nowhere, native) = (
            Reception::default(),
            Reception {
                listens: true,
                replicated: false,
            },
        );
        let replicated = Reception {
            listens: true,
            replicated: true,
        };
        let mut audience = Audience::default();
        audience.count(1, nowhere, native);
        assert_eq!(audience.generation(), 0);
        audience.count(1, native, replicated);
        audience.count(1, replicated, replicated);
        assert_eq!(audience.generation(), 1);
        audience.clear();
        assert_eq!((audience.replicas(), audience.generation()), (&[][..], 2));
    }

    #[test]
    fn changes_of_an_instant_are_taken_once() {
        let mut audience = Audience::default();
        audience.mark_stale(7);
        audience.mark_stale(3);
        audience.mark_stale(7);
        assert!(audience.take_stale().into_iter().eq([3, 7]));
        assert!(audience.take_stale().is_empty());
    }
}
