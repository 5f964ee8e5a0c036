//! A receiver's membership in a flow: its states, its grant and its end.

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::replication::AFTER_FALL_BACK;
use crate::ack::AckTracker;
use crate::control::{Action, Anchor, RungNotice};
use crate::receiver::timer::{FlowTimer, Timer};
use crate::wire::VARINT_MAX;
use crate::{Cause, PathId, Rung};

/// Missed heartbeats that mean the flow is gone.
const HEARTBEATS: u32 = 3;
/// Bytes that the flow may send beyond those handed out.
const WINDOW: u64 = 16 << 20;

/// Where the receiver is on the ladder.
#[derive(Debug)]
pub(super) enum Membership {
    /// The source sends everything on the unicast path.
    Unicast,
    /// The source counts on the receiver's acknowledgements.
    Member(Member),
    /// The receiver has fallen back by itself, and the source's FC_RUNG has not come yet. Nothing
    /// is owed, for nothing arrives.
    Leaving {
        /// Still extended until the source has answered.
        grant: Option<Grant>,
    },
}

/// State of a member.
#[derive(Debug)]
pub(super) struct Member {
    path: PathId,
    heard: Heard,
    grant: Option<Grant>,
}

/// Begin of a member's silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// When a packet last came by the path.
    last_packet: Instant,
    /// When this receiver was found to have been away itself, since the last packet.
    grace: Option<Instant>,
}

impl Heard {
    fn at(now: Instant) -> Self {
        Heard {
            last_packet: now,
            grace: None,
        }
    }
}

impl Membership {
    /// Returns the path by which the source counts on acknowledgements.
    pub(super) fn path(&self) -> Option<PathId> {
        match self {
            Membership::Member(member) => Some(member.path),
            Membership::Unicast | Membership::Leaving { .. } => None,
        }
    }

    pub(super) fn rung(&self) -> Rung {
        self.path().and_then(PathId::rung).unwrap_or(Rung::Unicast)
    }

    /// Returns what the source may send until its next FC_RUNG.
    pub(super) fn grant(&mut self) -> Option<&mut Grant> {
        match self {
            Membership::Member(member) => member.grant.as_mut(),
            Membership::Leaving { grant } => grant.as_mut(),
            Membership::Unicast => None,
        }
    }

    /// Falls back before the source decides it. Returns the member's path.
    pub(super) fn leave(&mut self) -> Option<PathId> {
        let Membership::Member(member) = self else {
            return None;
        };
        let (path, grant) = (member.path, member.grant.take());
        *self = Membership::Leaving { grant };
        Some(path)
    }

    /// Notes a packet that came by the member's path, or by a leg that is merged with it.
    pub(super) fn on_packet(&mut self, now: Instant) {
        if let Membership::Member(member) = self {
            member.heard = Heard::at(now);
        }
    }

    /// Follows a notice that names another leg of a member and leaves everything else as it is.
    /// Returns whether it is one.
    fn follow(&mut self, notice: &RungNotice, now: Instant) -> bool {
        let is_leg = |path: PathId| matches!(path.rung(), Some(Rung::Multicast | Rung::Amt));
        match self {
            Membership::Member(member) if notice.anchor.is_none() => {
                let follows = is_leg(member.path) && is_leg(notice.path);
                if follows {
                    member.path = notice.path;
                }
                follows
            }
            // The notice crossed the LEAVE, which the source answers next.
            Membership::Leaving { grant } if notice.anchor.is_none() => {
                let member = Member {
                    path: notice.path,
                    heard: Heard::at(now),
                    grant: grant.take(),
                };
                *self = Membership::Member(member);
                true
            }
            _ => false,
        }
    }

    /// Returns when a member last heard the flow.
    pub(super) fn heard(&self) -> Option<Heard> {
        match self {
            Membership::Member(member) => Some(member.heard),
            Membership::Unicast | Membership::Leaving { .. } => None,
        }
    }

    /// Returns when a member that hears nothing more knows that the flow is gone.
    pub(super) fn silent_at(&self, heartbeat: Duration) -> Option<Instant> {
        match self {
            Membership::Member(member) => Some(member.silent_at(heartbeat)),
            Membership::Unicast | Membership::Leaving { .. } => None,
        }
    }

    /// Grants a member that was away itself the time for one more heartbeat, once until a packet
    /// has come. Returns whether it needed that.
    fn grant_grace(&mut self, heartbeat: Duration, now: Instant) -> bool {
        let Membership::Member(member) = self else {
            return false;
        };
        let in_time = member.silent_at(heartbeat) >= now + heartbeat_and_jitter(heartbeat);
        if member.heard.grace.is_some() || in_time {
            return false;
        }
        member.heard.grace = Some(now);
        true
    }
}

impl Member {
    /// Returns the end of three heartbeats after the last packet, with their jitter, but no sooner
    /// than one after the member's own absence.
    fn silent_at(&self, heartbeat: Duration) -> Instant {
        let one = heartbeat_and_jitter(heartbeat);
        let at = self.heard.last_packet + heartbeat * (HEARTBEATS - 1) + one;
        self.heard.grace.map_or(at, |back| at.max(back + one))
    }
}

/// A receiver's grant for a flow (protocol.md section 4.8).
#[derive(Debug)]
pub(super) struct Grant {
    anchor: Anchor,
    /// Bytes of updates from the anchor on that were handed out.
    consumed: u64,
    /// Highest offset that was reported.
    reported: u64,
}

impl Grant {
    fn new(anchor: Anchor) -> Self {
        Grant {
            anchor,
            consumed: 0,
            reported: anchor.offset,
        }
    }

    /// Counts an update that was handed out. Returns whether it lies within the grant.
    pub(super) fn consumed(&mut self, seq: u64, bytes: u64) -> bool {
        let counts = seq >= self.anchor.seq;
        if counts {
            self.consumed = self.consumed.saturating_add(bytes);
        }
        counts
    }

    /// Counts all bytes up to the end of an update, after it was passed over. Returns whether it
    /// lies within the grant.
    pub(super) fn passed(&mut self, seq: u64, offset: u64) -> bool {
        let counts = seq >= self.anchor.seq;
        if counts {
            let bytes = offset.saturating_sub(self.anchor.offset);
            self.consumed = self.consumed.max(bytes);
        }
        counts
    }

    /// Returns the new offset once a good part of what was granted is used up.
    pub(super) fn extend(&mut self) -> Option<u64> {
        let offset = self.anchor.offset.saturating_add(self.consumed);
        let offset = offset.saturating_add(WINDOW).min(VARINT_MAX);
        if offset < self.reported.saturating_add(WINDOW / 4) {
            return None;
        }
        self.reported = offset;
        Some(offset)
    }
}

/// Returns the silence after which a flow counts as not arriving.
pub(super) fn quiet_span(heartbeat: Duration) -> Duration {
    heartbeat * (HEARTBEATS + 1)
}

/// A heartbeat, and a quarter of one for its jitter on the path.
fn heartbeat_and_jitter(heartbeat: Duration) -> Duration {
    heartbeat + heartbeat / 4
}

impl FlowDriver<'_> {
    /// Follows the source's FC_RUNG.
    pub(super) fn on_rung(&mut self, notice: &RungNotice, jitter: f64, now: Instant) {
        let known = self.flow.sequences.rung;
        if known.is_some_and(|known| notice.sequence <= known) {
            return;
        }
        self.flow.sequences.rung = Some(notice.sequence);
        let Some(rung) = notice.path.rung() else {
            return;
        };
        let (was, was_on) = (self.flow.membership.path(), self.flow.rung());
        match rung {
            Rung::Unicast => {
                if !matches!(self.flow.membership, Membership::Unicast) {
                    self.flow.feedback.doubt(notice.cause, now);
                }
                self.note_fall_back();
                self.dismissed(notice.first_pn, jitter, now);
            }
            _ => self.promoted(notice, now),
        }
        // A member that was too slow leaves its path to the unicast updates until the next FC_RUNG.
        let too_slow = notice.cause == Cause::TooSlow && was.is_some();
        let held = rung == Rung::Unicast && (notice.cause == Cause::Held || too_slow);
        self.set_held(held, now);
        self.tunnels_after_move(was_on, now);
        if was != self.flow.membership.path() {
            self.moved(rung, notice.cause);
        }
    }

    /// Falls back to the unicast path by the source's decision.
    fn dismissed(&mut self, first_pn: u64, jitter: f64, now: Instant) {
        let flow = &mut *self.flow;
        let was_member = flow.membership.path().is_some();
        flow.membership = Membership::Unicast;
        flow.proof.restart(first_pn);
        // Earlier packets prove nothing any more and are not acknowledged again; a forged number
        // among them is forgotten here.
        for tracker in flow.trackers.values_mut() {
            *tracker = AckTracker::starting_at(first_pn);
        }
        flow.replication.requested = false;
        self.forget_legs();
        if was_member && !self.is_set(FlowTimer::Replication) {
            self.want_replication(now + AFTER_FALL_BACK.mul_f64(jitter));
        }
    }

    /// Becomes a member.
    fn promoted(&mut self, notice: &RungNotice, now: Instant) {
        self.stop(FlowTimer::Replication);
        let flow = &mut *self.flow;
        flow.replication.backoff.reset();
        if flow.merged.is_some() && flow.membership.follow(notice, now) {
            // Another of its legs: what it owes stays.
            return;
        }
        flow.membership = Membership::Member(Member {
            path: notice.path,
            // The packet that proved the path may have come a while ago.
            heard: Heard::at(now),
            grant: notice.anchor.map(Grant::new),
        });
        flow.extend_window(self.out);
        if flow.keys.sequence() > Some(flow.sequences.reported_key) {
            // The key and the promotion crossed: the source waits for the key's confirmation.
            self.confirm_key();
        }
        let hold = self.hold();
        let tracked = self.flow.tracked(notice.path);
        let tracker = self.flow.trackers.entry(tracked).or_default();
        if tracker.largest().is_some_and(|pn| pn >= notice.first_pn) {
            tracker.owe(now, hold);
        }
        self.announce_legs(now);
    }

    /// Falls back because three heartbeats were missed.
    pub(super) fn on_silence(&mut self, now: Instant) {
        let was = self.flow.rung();
        self.note_fall_back();
        let path = self.flow.membership.leave().unwrap_or(PathId::UNICAST);
        self.report(Action::Leave, path, Some(Cause::HeartbeatLost));
        if self.can_replicate() {
            self.set(FlowTimer::Replication, now + AFTER_FALL_BACK);
        }
        self.moved(Rung::Unicast, Cause::HeartbeatLost);
        self.tunnels_after_move(was, now);
    }

    /// Grants the flow a grace period: what it has sent while this receiver was away is still on
    /// its path, or was never sent, if its source was stalled as well.
    pub(super) fn grant_grace(&mut self, now: Instant) {
        let heartbeat = self.flow.announce.heartbeat;
        if let Some(merged) = &mut self.flow.merged {
            merged.grant_grace(now);
        }
        if !self.flow.membership.grant_grace(heartbeat, now) {
            return;
        }
        // The silence is noticed before the rungs that bring the flow are doubted.
        let later = now + heartbeat * 2;
        self.put_off(Timer::Flow(self.id, FlowTimer::Rejoin), later);
        self.put_off_tunnels(later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(4);

    fn member(now: Instant) -> Membership {
        Membership::Member(Member {
            path: PathId(5),
            heard: Heard::at(now),
            grant: Some(Grant::new(Anchor {
                seq: 7,
                offset: 100,
            })),
        })
    }

    #[test]
    fn silence_ends_a_membership_after_three_heartbeats_and_their_jitter() {
        let now = Instant::now();
        let mut member = member(now);
        let end = now + HEARTBEAT * 3 + HEARTBEAT / 4;
        assert_eq!(member.silent_at(HEARTBEAT), Some(end));
        let later = now + HEARTBEAT;
        member.on_packet(later);
        assert_eq!(member.silent_at(HEARTBEAT), Some(end + HEARTBEAT));
    }

    #[test]
    fn grace_counts_once_until_a_packet_comes() {
        let now = Instant::now();
        let mut member = member(now);
        assert!(!member.grant_grace(HEARTBEAT, now), "in time");
        let back = now + HEARTBEAT * 5;
        assert!(member.grant_grace(HEARTBEAT, back));
        let end = Some(back + HEARTBEAT + HEARTBEAT / 4);
        assert_eq!(member.silent_at(HEARTBEAT), end);
        assert!(!member.grant_grace(HEARTBEAT, back + HEARTBEAT * 5));
        assert_eq!(member.silent_at(HEARTBEAT), end);
        member.on_packet(back);
        assert!(member.grant_grace(HEARTBEAT, back + HEARTBEAT * 5));
    }

    #[test]
    fn a_receiver_that_leaves_owes_nothing_and_keeps_its_grant() {
        let now = Instant::now();
        let mut membership = member(now);
        assert_eq!(membership.leave(), Some(PathId(5)));
        assert_eq!(
            (membership.path(), membership.rung()),
            (None, Rung::Unicast)
        );
        assert_eq!(membership.silent_at(HEARTBEAT), None);
        assert!(membership.grant().is_some());
        assert_eq!(membership.leave(), None);
    }

    #[test]
    fn a_grant_grows_in_quarters_of_the_window() {
        let mut grant = Grant::new(Anchor {
            seq: 7,
            offset: 100,
        });
        assert_eq!(grant.extend(), Some(100 + WINDOW));
        assert!(!grant.consumed(6, 1 << 30), "before the anchor");
        assert!(grant.consumed(7, WINDOW / 4 - 1));
        assert_eq!(grant.extend(), None);
        assert!(grant.consumed(8, 1));
        assert_eq!(grant.extend(), Some(100 + WINDOW / 4 + WINDOW));
    }
}
