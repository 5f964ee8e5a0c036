//! Time for which a flow that brought forged packets proves nothing (protocol.md section 8.3).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::FlowDriver;
use crate::control::Action;
use crate::{PathId, Rung};

/// The part of a heartbeat for which a flow has to bring nothing that is forged, before its packets
/// are a proof again: a forger has to be slower than this to move a receiver up and down.
const PART: u32 = 4;

/// Packets that are remembered while the receiver is no member, to be compared with others of the
/// same number.
const REMEMBERED: usize = 64;

/// Time since the last sign of forgery.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    until: Option<Instant>,
    /// Path of the membership that ended because of forged packets, until the suspicion has ended.
    pub(super) left: Option<PathId>,
    /// Numbers of the last packets, and the ends of their AEAD tags.
    recent: VecDeque<(u64, [u8; 8])>,
}

impl Suspicion {
    /// Begins, or begins again.
    pub(super) fn renew(&mut self, heartbeat: Duration, now: Instant) {
        self.until = Some(now + heartbeat / PART);
    }

    /// Notes a packet. Returns whether another one had the same number, so that one of them was
    /// forged.
    pub(super) fn contradicts(&mut self, pn: u64, tag: [u8; 8]) -> bool {
        let known = self.recent.iter().rev().find(|(known, _)| *known == pn);
        if let Some((_, known)) = known {
            return *known != tag;
        }
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((pn, tag));
        false
    }

    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Ends, if it is time. Returns whether it ended now.
    fn end(&mut self, now: Instant) -> bool {
        let ends = self.until.take_if(|until| *until <= now).is_some();
        if ends {
            // Forged numbers that the source has yet to reach are no signs when it does.
            self.recent.clear();
        }
        ends
    }
}

impl FlowDriver<'_> {
    /// Suspects the flow for a time.
    pub(super) fn suspect(&mut self, now: Instant) {
        let heartbeat = self.flow.announce.heartbeat;
        self.flow.suspicion.renew(heartbeat, now);
    }

    /// Trusts the flow again after a time without signs of forgery. A receiver that is no member
    /// begins with nothing of what came meanwhile: by a forged number, true ones would be
    /// reconstructed wrong.
    pub(super) fn end_suspicion(&mut self, now: Instant) {
        if !self.flow.suspicion.end(now) {
            return;
        }
        let left = self.flow.suspicion.left.take();
        if self.flow.membership.path().is_some() {
            return;
        }
        // Authenticated packets have numbers of the source's.
        if self.flow.opener.is_none() {
            self.flow.trackers.clear();
            self.forget_legs();
        }
        // The source may have taken the LEAVE for the end of the listening by this path.
        match left.and_then(PathId::rung) {
            Some(Rung::Multicast) if self.flow.native.is_joined() => {
                self.report(Action::Join, PathId::UNICAST, None);
            }
            Some(Rung::Amt) if self.flow.tunnels.is_open() => {
                self.report(Action::Join, self.flow.path(Rung::Amt), None);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_packets_with_one_number_are_a_sign_and_a_copy_is_none() {
        let mut suspicion = Suspicion::default();
        assert!(!suspicion.contradicts(7, [1; 8]) && !suspicion.contradicts(8, [2; 8]));
        assert!(
            !suspicion.contradicts(7, [1; 8]),
            "the same by another path"
        );
        assert!(suspicion.contradicts(7, [3; 8]) && suspicion.contradicts(8, [1; 8]));
        for pn in 9..9 + REMEMBERED as u64 {
            assert!(!suspicion.contradicts(pn, [0; 8]));
        }
        assert_eq!(suspicion.recent.len(), REMEMBERED);
        assert!(!suspicion.contradicts(7, [3; 8]), "forgotten");
    }

    #[test]
    fn suspicion_ends_once_after_a_part_of_a_heartbeat_without_signs() {
        let (start, heartbeat) = (Instant::now(), Duration::from_secs(1));
        let mut suspicion = Suspicion::default();
        assert!(!suspicion.is_on() && !suspicion.end(start));
        suspicion.renew(heartbeat, start);
        let again = start + Duration::from_millis(200);
        assert!(!suspicion.end(again) && suspicion.is_on());
        suspicion.renew(heartbeat, again);
        assert!(!suspicion.end(start + heartbeat / PART));
        assert!(suspicion.end(again + heartbeat / PART) && !suspicion.is_on());
        assert!(!suspicion.end(start + heartbeat));
    }
}
