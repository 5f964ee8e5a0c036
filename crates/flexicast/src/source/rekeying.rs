//! When a flow needs another key epoch (protocol.md section 5.3).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use uuid::Uuid;

/// Joins of a private channel are let in together, once in this time.
const JOINS_WITHIN: Duration = Duration::from_secs(1);
/// Bound on remembered leavers; beyond it, the rekey happens even if some return.
const MAX_LEAVERS: usize = 1024;

/// Key epochs of a channel's flow: receivers to lock out, and the request for a secret.
#[derive(Debug, Default)]
pub(super) struct Rekeying {
    /// Receivers that hold the key and are gone; `None` among them represents more than
    /// are remembered.
    leavers: BTreeSet<Option<Uuid>>,
    last: Option<Instant>,
    /// Whether [`super::types::SourceEvent::SecretWanted`] was emitted and not answered yet.
    requested: bool,
    /// Whether another epoch is due as soon as the announced one has begun.
    again: bool,
}

impl Rekeying {
    /// Remembers a receiver that holds the key and is gone.
    pub(super) fn note_leaver(&mut self, receiver: Option<Uuid>) {
        let is_room = self.leavers.len() < MAX_LEAVERS;
        self.leavers.insert(receiver.filter(|_| is_room));
    }

    /// Whether receivers that are gone hold the key.
    pub(super) fn has_leavers(&self) -> bool {
        !self.leavers.is_empty()
    }

    /// Whether a receiver that is gone may hold the key.
    pub(super) fn has_leaver(&self, receiver: Uuid) -> bool {
        self.leavers.contains(&Some(receiver)) || self.leavers.contains(&None)
    }

    /// Returns when newcomers to a private channel are let in.
    pub(super) fn join_at(&self, now: Instant) -> Instant {
        let earliest = self.last.map_or(now, |at| at + JOINS_WITHIN);
        earliest.max(now)
    }

    /// Requests a secret, unless one is under way; returns whether to emit the request. While an
    /// epoch is announced the request waits: a third epoch would have to push the announced one
    /// into use before the members have confirmed it, and so throw them all off.
    pub(super) fn request(&mut self, is_announced: bool) -> bool {
        if is_announced {
            self.again = true;
            return false;
        }
        !std::mem::replace(&mut self.requested, true)
    }

    /// Takes the answer to a request.
    pub(super) fn answered(&mut self) {
        self.requested = false;
    }

    /// Notes that an epoch was announced, which locks out all leavers.
    pub(super) fn announced(&mut self, now: Instant) {
        self.last = Some(now);
        self.leavers.clear();
    }

    /// Notes that the announced epoch is in use; returns whether another one is due.
    pub(super) fn switched(&mut self) -> bool {
        std::mem::take(&mut self.again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_requested_once_until_it_comes() {
        let mut rekeying = Rekeying::default();
        assert!(rekeying.request(false));
        assert!(!rekeying.request(false));
        rekeying.answered();
        assert!(rekeying.request(false));
    }

    #[test]
    fn a_request_during_an_announcement_waits_for_the_switch() {
        let mut rekeying = Rekeying::default();
        assert!(!rekeying.request(true));
        assert!(rekeying.switched());
        assert!(!rekeying.switched(), "once");
    }

    #[test]
    fn more_leavers_than_are_remembered_stand_for_all() {
        let mut rekeying = Rekeying::default();
        let id = |n| Uuid::from_u128(n);
        for n in 0..MAX_LEAVERS as u128 {
            rekeying.note_leaver(Some(id(n)));
        }
        assert!(!rekeying.has_leaver(id(1 << 64)));
        rekeying.note_leaver(Some(id(1 << 64)));
        assert!(rekeying.has_leaver(id(1 << 65)));
        rekeying.announced(Instant::now());
        assert!(!rekeying.has_leaver(id(1)));
    }

    #[test]
    fn joins_are_let_in_once_a_second() {
        let now = Instant::now();
        let mut rekeying = Rekeying::default();
        assert_eq!(rekeying.join_at(now), now);
        rekeying.announced(now);
        assert_eq!(rekeying.join_at(now), now + JOINS_WITHIN);
        let later = now + JOINS_WITHIN * 2;
        assert_eq!(rekeying.join_at(later), later);
    }
}
