//! One receiver's place on the delivery ladder of one channel (protocol.md section 8).
//!
//! A [`Ladder`] knows the rung, the paths on which the receiver listens, the key that it holds, and
//! what each rung has shown so far. Its methods are the moves; the flow, the unicast path and the
//! frames that go with them are their callers' business.

mod key;
mod record;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use crate::control::{Anchor, LegReport, RungNotice};
use crate::{Cause, FlowId, PathId, Rung};
pub(super) use key::KeyState;
use record::RungRecords;

/// Validity of a proof: a receiver for which a rung works repeats it every 5 s.
const PROVED: Duration = Duration::from_secs(12);
/// A membership shorter than this counts as flapping.
const FLAP: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// The same after forged packets: the receiver and its path are as good as ever once the attack is
/// over, and an attempt during the attack costs little.
const FORGED_MAX: Duration = Duration::from_secs(30);
/// First back-off of a member that the flow evicted, and the time for which its unicast path has to
/// keep up before it returns.
pub(super) const EVICTED: Duration = Duration::from_secs(10);
/// Time limit for a receiver to prove that replicated packets arrive: the source reflects nothing
/// at third parties.
const REPLICATION_UNPROVED: Duration = Duration::from_secs(2);
/// Replication to a receiver that proved its arrival, and is no member yet, ends after this time
/// unless the receiver proves it again.
const REPLICATION_PROVED: Duration = Duration::from_secs(12);

/// Returns the back-off, without jitter, of a rung after its `count`th consecutive failure; the
/// first one takes `first`.
fn backoff(first: Duration, count: u32) -> Duration {
    let doubled = 1 << count.saturating_sub(1).min(16);
    first.saturating_mul(doubled).min(BACKOFF_MAX)
}

/// Whether a member that left for this cause held the flow up for the others, or lost too much of
/// it.
fn is_eviction(cause: Cause) -> bool {
    matches!(cause, Cause::TooSlow | Cause::LossTooHigh)
}

/// Rung of a receiver, with the data that only this rung has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Every update goes to the receiver's own connection.
    Unicast { replication: Replication },
    /// Updates after the cut come by the flow.
    Member(Membership),
}

/// Replicated packets (rung 3) to a receiver that is no member of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replication {
    Off,
    /// Packets are sent until the deadline, which a proof of their arrival extends.
    Trial {
        until: Instant,
    },
    /// The receiver ended a trial. It still counts as a failure at its deadline, so that a receiver
    /// does not get unproved packets again and again.
    Abandoned {
        until: Instant,
    },
}

impl Replication {
    /// Ends the packets; the deadline of a trial stays.
    fn abandon(&mut self) {
        if let Replication::Trial { until } = *self {
            *self = Replication::Abandoned { until };
        }
    }
}

/// Membership of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) path: PathId,
    pub(super) rung: Rung,
    /// Head when the receiver joined the flow: updates up to there belong to its unicast path.
    pub(super) cut_head: u64,
}

/// Proof that the packets of a path arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) path: PathId,
    pub(super) rung: Rung,
    at: Instant,
}

/// Result of [`Ladder::prove`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProofOutcome {
    /// The receiver is a member by this path already.
    Member,
    /// The proof does not count: not listening there, no better rung, an old key, or a back-off.
    Ignored,
    /// The proof counts. Replication on trial goes on until the deadline, if there is one.
    Accepted { trial_until: Option<Instant> },
}

/// Last fall-back of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastFallBack {
    /// Rung that was left; `None` once its cause is settled.
    from: Option<Rung>,
    cause: Cause,
}

/// Highest sequence number of a kind of frame: frames with older ones are stale.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NewestSequence(Option<u64>);

impl NewestSequence {
    /// Takes a frame's sequence number; returns whether it is newer than all before.
    pub(super) fn advance(&mut self, sequence: u64) -> bool {
        let is_newer = self.0.is_none_or(|known| sequence > known);
        if is_newer {
            self.0 = Some(sequence);
        }
        is_newer
    }
}

/// Result of [`Ladder::end_backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackoffEnd {
    /// The back-off was over before, or goes on.
    Running,
    /// The receiver may prove the rung again.
    Over,
    /// The receiver has to wait until then.
    Extended(Instant),
}

/// Move of a receiver to its unicast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FallBack {
    /// Membership that ended.
    pub(super) from: Membership,
    /// End of the rung's back-off, if it begins one.
    pub(super) backoff_until: Option<Instant>,
}

/// Place of one receiver on the ladder of one channel.
#[derive(Debug)]
pub(super) struct Ladder {
    position: Position,
    since: Instant,
    /// Cause of the position, if it is known.
    cause: Option<Cause>,
    /// Whether the receiver listens natively.
    native: bool,
    /// Whether the receiver listens through an AMT relay.
    relay: bool,
    /// Rung of which the receiver was evicted, until its back-off is over, and why.
    evicted: Option<(Rung, Cause)>,
    pub(super) key: KeyState,
    /// Best proof, until the receiver is promoted.
    proof: Option<Proof>,
    records: RungRecords,
    last_fall_back: LastFallBack,
    pub(super) states: NewestSequence,
    pub(super) windows: NewestSequence,
    pub(super) leg_reports: NewestSequence,
    /// Legs of a member that merges several, as it reported them.
    legs: Vec<LegReport>,
    notices: u64,
}

impl Ladder {
    /// A receiver on unicast that listens nowhere.
    pub(super) fn new(now: Instant) -> Self {
        Ladder {
            position: Position::Unicast {
                replication: Replication::Off,
            },
            since: now,
            cause: None,
            native: false,
            relay: false,
            evicted: None,
            key: KeyState::None,
            proof: None,
            records: RungRecords::default(),
            last_fall_back: LastFallBack {
                from: None,
                cause: Cause::Left,
            },
            states: NewestSequence::default(),
            windows: NewestSequence::default(),
            leg_reports: NewestSequence::default(),
            legs: Vec::new(),
            notices: 0,
        }
    }

    pub(super) fn rung(&self) -> Rung {
        self.membership().map_or(Rung::Unicast, |m| m.rung)
    }

    /// Time of the last move.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Cause of the position, if it is known.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Cause of the last fall-back, or what is known of it since.
    pub(super) fn last_cause(&self) -> Cause {
        self.last_fall_back.cause
    }

    pub(super) fn membership(&self) -> Option<Membership> {
        match self.position {
            Position::Unicast { .. } => None,
            Position::Member(membership) => Some(membership),
        }
    }

    /// Returns the legs of a member that merges several.
    pub(super) fn legs(&self) -> &[LegReport] {
        match self.is_member() {
            true => &self.legs,
            false => &[],
        }
    }

    /// Takes a member's report about its legs. Returns the one before.
    pub(super) fn set_legs(&mut self, legs: Vec<LegReport>) -> Vec<LegReport> {
        std::mem::replace(&mut self.legs, legs)
    }

    /// Names a member after another of its legs.
    pub(super) fn follow_leg(&mut self, path: PathId, rung: Rung, cause: Cause, now: Instant) {
        if let Position::Member(membership) = &mut self.position {
            (membership.path, membership.rung) = (path, rung);
            (self.since, self.cause) = (now, Some(cause));
            self.proof = None;
        }
    }

    pub(super) fn is_member(&self) -> bool {
        self.membership().is_some()
    }

    /// Whether the flow's packets are sent to where the receiver listens by this rung.
    pub(super) fn listens_by(&self, rung: Rung) -> bool {
        match rung {
            Rung::Multicast => self.native,
            Rung::Amt => self.relay,
            Rung::Replicated => self.is_replicated(),
            Rung::Unicast => false,
        }
    }

    /// Whether the receiver was too slow and does without the flow until its back-off is over.
    pub(super) fn is_paused(&self) -> bool {
        self.evicted
            .is_some_and(|(_, cause)| cause == Cause::TooSlow)
    }

    /// Whether the receiver listens to the flow on any path.
    pub(super) fn listens(&self) -> bool {
        self.native || self.relay || self.is_replicated()
    }

    /// Whether the flow's packets are replicated to the receiver.
    pub(super) fn is_replicated(&self) -> bool {
        match self.position {
            Position::Unicast { replication } => matches!(replication, Replication::Trial { .. }),
            Position::Member(membership) => membership.rung == Rung::Replicated,
        }
    }

    pub(super) fn is_backing_off(&self, rung: Rung, now: Instant) -> bool {
        let until = self.records.get(rung).and_then(|r| r.backoff_until);
        until.is_some_and(|until| now < until)
    }

    /// Starts to listen natively; returns whether that is new.
    pub(super) fn listen_natively(&mut self) -> bool {
        !std::mem::replace(&mut self.native, true)
    }

    /// Starts to listen through a relay; returns whether that is new.
    pub(super) fn listen_by_relay(&mut self) -> bool {
        !std::mem::replace(&mut self.relay, true)
    }

    /// Puts a receiver on unicast on a trial of replication; returns its deadline if that is new.
    /// Asking again does not extend it.
    pub(super) fn start_replication(&mut self, now: Instant) -> Option<Instant> {
        if self.is_paused() {
            return None;
        }
        let Position::Unicast { replication } = &mut self.position else {
            return None;
        };
        if let Replication::Trial { .. } = replication {
            return None;
        }
        let until = now + REPLICATION_UNPROVED;
        *replication = Replication::Trial { until };
        Some(until)
    }

    /// Ends a trial of replication without a failure.
    pub(super) fn cancel_replication(&mut self) {
        if let Position::Unicast { replication } = &mut self.position {
            *replication = Replication::Off;
        }
    }

    /// Ends a trial of replication whose deadline is over, as a failure of the rung; returns
    /// whether there was one.
    pub(super) fn expire_replication(&mut self, now: Instant) -> bool {
        let Position::Unicast { replication } = &mut self.position else {
            return false;
        };
        match *replication {
            Replication::Trial { until } | Replication::Abandoned { until } if until <= now => {}
            _ => return false,
        }
        *replication = Replication::Off;
        if let Some(record) = self.records.get_mut(Rung::Replicated) {
            record.fail();
            record.backoff_until = Some(now + backoff(BACKOFF_FIRST, record.failures));
        }
        true
    }

    /// Stops listening on one path, or on all of them. A member by such a path has to fall back
    /// first.
    pub(super) fn stop_listening(&mut self, on: Option<Rung>) {
        match on {
            Some(Rung::Multicast) => self.native = false,
            Some(Rung::Amt) => {
                self.relay = false;
                self.legs.retain(|leg| leg.path.rung() != Some(Rung::Amt));
            }
            Some(Rung::Replicated) => self.abandon_replication(),
            Some(Rung::Unicast) => {}
            None => {
                (self.native, self.relay) = (false, false);
                self.abandon_replication();
            }
        }
    }

    fn abandon_replication(&mut self) {
        if let Position::Unicast { replication } = &mut self.position {
            replication.abandon();
        }
    }

    /// Discards a proof of a path on which the receiver does not listen any more.
    pub(super) fn discard_stale_proof(&mut self) {
        let proved = self.proof.map(|proof| proof.rung);
        if proved.is_some_and(|rung| !self.listens_by(rung)) {
            self.proof = None;
        }
    }

    pub(super) fn has_proof(&self) -> bool {
        self.proof.is_some()
    }

    /// Returns the best proof that is still valid.
    pub(super) fn valid_proof(&mut self, now: Instant) -> Option<Proof> {
        self.proof = self.proof.filter(|proof| now < proof.at + PROVED);
        self.proof
    }

    /// Takes a proof that the packets of a path arrive; `epoch` is the flow's current key epoch.
    pub(super) fn prove(
        &mut self,
        path: PathId,
        rung: Rung,
        epoch: u64,
        now: Instant,
    ) -> ProofOutcome {
        if self.membership().is_some_and(|m| m.path == path) {
            return ProofOutcome::Member;
        }
        let listens = self.listens_by(rung);
        if listens && rung == Rung::Amt {
            // The relay is there: a later loss of it does not explain an earlier fall-back.
            self.last_fall_back.from = None;
        }
        let counts = listens && rung < self.rung() && self.key.confirmed() >= epoch;
        if !counts || self.is_paused() || self.is_backing_off(rung, now) {
            return ProofOutcome::Ignored;
        }
        let known = self.valid_proof(now).map(|proof| proof.rung);
        if known.is_none_or(|known| rung <= known) {
            self.proof = Some(Proof {
                path,
                rung,
                at: now,
            });
        }
        let mut trial_until = None;
        if let Position::Unicast {
            replication: Replication::Trial { until },
        } = &mut self.position
            && rung == Rung::Replicated
        {
            // Packets arrive, even if the receiver takes a while to come near the head. It repeats
            // its READY now and then; one that does not is gone.
            *until = now + REPLICATION_PROVED;
            trial_until = Some(*until);
        }
        ProofOutcome::Accepted { trial_until }
    }

    /// Makes the receiver a member by the path that it proved. `head` is the cut, unless the
    /// receiver is a member by another path already.
    pub(super) fn promote(&mut self, proof: Proof, head: u64, now: Instant) {
        let cut_head = self.membership().map_or(head, |m| m.cut_head);
        self.position = Position::Member(Membership {
            path: proof.path,
            rung: proof.rung,
            cut_head,
        });
        self.proof = None;
        if let Some(record) = self.records.get_mut(proof.rung) {
            record.tried = false;
        }
        self.since = now;
        self.cause = Some(Cause::Joined);
    }

    /// Moves a member to its unicast path. A rung that flaps is backed off for a time that `jitter`
    /// varies. Returns `None` for a receiver that is no member.
    pub(super) fn fall_back(
        &mut self,
        cause: Cause,
        now: Instant,
        jitter: impl FnOnce() -> f64,
    ) -> Option<FallBack> {
        let from = self.membership()?;
        // Without acknowledgements no replication: the receiver asks for it again.
        self.position = Position::Unicast {
            replication: Replication::Off,
        };
        self.proof = None;
        self.legs.clear();
        let lasted = now.saturating_duration_since(self.since);
        let mut backoff_until = None;
        if let Some(record) = self.records.get_mut(from.rung) {
            // A first membership that ends soon is a failure, only one after a return is flapping.
            let own = !matches!(cause, Cause::RekeyMissed | Cause::Held);
            let again = record.returned && lasted < FLAP && own;
            record.returned = true;
            // An evicted member is kept off the flow for a while even the first time, however long
            // it was on it.
            let first = if is_eviction(cause) {
                EVICTED
            } else {
                BACKOFF_FIRST
            };
            if again || is_eviction(cause) {
                record.fail();
                let max = match cause {
                    Cause::Forged => FORGED_MAX,
                    _ => BACKOFF_MAX,
                };
                let delay = backoff(first, record.failures).min(max);
                backoff_until = Some(now + delay.mul_f64(jitter()));
            } else {
                record.failures = 0;
            }
            record.backoff_until = backoff_until;
        }
        if is_eviction(cause) {
            self.evicted = Some((from.rung, cause));
        }
        self.since = now;
        self.cause = Some(cause);
        self.last_fall_back = LastFallBack {
            from: Some(from.rung),
            cause,
        };
        Some(FallBack {
            from,
            backoff_until,
        })
    }

    /// Takes no proof of a rung until then. Returns `false` if none is taken anyway.
    pub(super) fn put_off(&mut self, rung: Rung, until: Instant, now: Instant) -> bool {
        if self.is_backing_off(rung, now) {
            return false;
        }
        let record = self.records.get_mut(rung);
        record.is_some_and(|record| {
            record.backoff_until = Some(until);
            true
        })
    }

    /// Ends the back-off of a rung, if it is over. That of an evicted receiver goes on as long as
    /// its unicast path does not keep up. One of another rung ends no pause.
    pub(super) fn end_backoff(&mut self, rung: Rung, keeps_up: bool, now: Instant) -> BackoffEnd {
        let evicted = self.evicted.is_some_and(|(of, _)| of == rung);
        let is_paused = self.is_paused();
        let record = self.records.get_mut(rung);
        let Some(record) = record.filter(|r| r.backoff_until.is_some_and(|until| until <= now))
        else {
            return BackoffEnd::Running;
        };
        if evicted && !keeps_up {
            let until = now + EVICTED;
            record.backoff_until = Some(until);
            return BackoffEnd::Extended(until);
        }
        record.backoff_until = None;
        if evicted {
            self.evicted = None;
        }
        match is_paused && !evicted {
            true => BackoffEnd::Running,
            false => BackoffEnd::Over,
        }
    }

    /// Notes that a better rung was tried and brought nothing. Returns whether that is new.
    pub(super) fn record_failed_attempt(&mut self, rung: Rung) -> bool {
        if rung >= self.rung() || !self.listens_by(rung) {
            return false;
        }
        let record = self.records.get_mut(rung);
        if record.is_none_or(|record| std::mem::replace(&mut record.tried, true)) {
            return false;
        }
        self.cause.get_or_insert(Cause::ProbeTimeout);
        true
    }

    /// Notes that the receiver lost its relay, by whose `path` it is no member. Returns whether
    /// that explains its last fall-back: most likely its acknowledgements were missed first.
    pub(super) fn lose_relay(&mut self, path: PathId) -> bool {
        if self.proof.is_some_and(|proof| proof.path == path) {
            self.proof = None;
        }
        let LastFallBack { from, cause } = self.last_fall_back;
        let was_missed = matches!(cause, Cause::AckTimeout | Cause::HeartbeatLost);
        if !was_missed || from != Some(Rung::Amt) || self.rung() <= Rung::Amt {
            return false;
        }
        self.last_fall_back.cause = Cause::RelayLost;
        if !self.is_member() {
            self.cause = Some(Cause::RelayLost);
        }
        true
    }

    /// Keeps the receiver off the flow: what it proved so far does not count.
    pub(super) fn hold(&mut self) {
        self.proof = None;
        self.abandon_replication();
    }

    /// Lets a held receiver prove itself again.
    pub(super) fn release(&mut self) {
        self.last_fall_back.cause = Cause::Left;
        // The FC_RUNG of the release ends the pause at the receiver; the back-off stays.
        self.evicted = None;
        self.cause = None;
    }

    /// Takes the receiver off the flow without a fall-back: its connection is about to end.
    pub(super) fn disconnect(&mut self) {
        if self.is_member() {
            self.position = Position::Unicast {
                replication: Replication::Off,
            };
        }
        self.proof = None;
        self.legs.clear();
        self.stop_listening(None);
    }

    /// Forgets everything about a flow that has ended. Failures of the rungs stay counted.
    pub(super) fn forget_flow(&mut self) {
        self.position = Position::Unicast {
            replication: Replication::Off,
        };
        (self.native, self.relay, self.evicted) = (false, false, None);
        self.key = KeyState::None;
        self.proof = None;
        self.legs.clear();
        for record in &mut self.records.0 {
            (record.tried, record.backoff_until) = (false, None);
        }
        self.last_fall_back.from = None;
        (self.states, self.windows) = (NewestSequence::default(), NewestSequence::default());
        self.leg_reports = NewestSequence::default();
        self.notices = 0;
    }

    /// Returns the next FC_RUNG.
    pub(super) fn notice(
        &mut self,
        flow: FlowId,
        path: PathId,
        first_pn: u64,
        cause: Cause,
        anchor: Option<Anchor>,
    ) -> RungNotice {
        self.notices += 1;
        RungNotice {
            flow,
            sequence: self.notices,
            path,
            first_pn,
            cause,
            anchor,
        }
    }
}
