//! State of one channel.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use flexicast::control::{Leg, LegState};
use flexicast::receiver::{MessageCounters, ReceptionCounters};
use flexicast::{Cause, Cursor, Rung};
use uuid::Uuid;

use crate::latency::Latencies;
use crate::status::model::{Channel, Gap, Latency, LegView, Move, Paths};

/// Moves kept for the status; gaps have their own bound.
pub(super) const MOVES: usize = 64;
const GAPS: usize = 16;

#[derive(Debug)]
pub(super) struct ChannelState {
    pub(super) name: String,
    pub(super) incarnation: Option<Uuid>,
    pub(super) rung: Rung,
    pub(super) rung_since_ms: u64,
    /// AMT relays of the channel, by the numbers of their legs, and the last finding about the
    /// first one.
    relays: [Option<SocketAddr>; 2],
    relay_detail: Option<String>,
    /// Legs of a flow that comes by two.
    legs: Vec<LegView>,
    pub(super) cursor: u64,
    pub(super) head: u64,
    pub(super) paths: Paths,
    pub(super) latencies: Latencies,
    pub(super) reception: ReceptionCounters,
    pub(super) messages: MessageCounters,
    pub(super) undecodable: u64,
    pub(super) missing: u64,
    pub(super) gaps: VecDeque<Gap>,
    pub(super) moves: VecDeque<Move>,
    /// Number of moves since the start, by destination.
    pub(super) moved: BTreeMap<String, u64>,
    /// Number of times that the source failed to authenticate an update.
    pub(super) auth_failures: u64,
    /// The present failure of that.
    pub(super) auth_error: Option<String>,
    /// Error writing the outputs.
    pub(super) storage_error: Option<String>,
    /// Error writing the feed files.
    pub(super) files_error: Option<String>,
}

impl ChannelState {
    /// Returns the state before the first connection, with the cursor of the outputs.
    pub(super) fn new(name: &str, cursor: Option<Cursor>, since: u64) -> Self {
        Self {
            name: name.to_owned(),
            incarnation: cursor.map(|c| c.incarnation),
            rung: Rung::Unicast,
            rung_since_ms: since,
            relays: [None; 2],
            relay_detail: None,
            legs: Vec::new(),
            cursor: cursor.map_or(0, |c| c.seq),
            // Unknown before the source's WELCOME.
            head: 0,
            paths: Paths::default(),
            latencies: Latencies::default(),
            reception: ReceptionCounters::default(),
            messages: MessageCounters::default(),
            undecodable: 0,
            missing: 0,
            gaps: VecDeque::new(),
            moves: VecDeque::new(),
            moved: BTreeMap::new(),
            auth_failures: 0,
            auth_error: None,
            storage_error: None,
            files_error: None,
        }
    }

    pub(super) fn step(&mut self, to: Rung, cause: &str, at_ms: u64) {
        if to > Rung::Amt {
            // Legs prove themselves again.
            self.legs.clear();
        }
        if to == self.rung {
            return;
        }
        self.note(Move {
            at_ms,
            from: self.rung.to_string(),
            to: to.to_string(),
            cause: cause.to_owned(),
        });
        *self.moved.entry(to.to_string()).or_default() += 1;
        self.rung = to;
        self.rung_since_ms = at_ms;
    }

    /// Records the state of a leg. There are three at most; one that is given up is none.
    pub(super) fn note_leg(&mut self, leg: Leg, state: LegState, since_ms: u64) {
        let name = leg.to_string();
        self.legs.retain(|known| known.leg != name);
        if state == LegState::Trying {
            return;
        }
        self.legs.push(LegView {
            leg: name,
            state: state.to_string(),
            since_ms,
            relay: None,
        });
        let is_native = |leg: &LegView| leg.leg == Rung::Multicast.to_string();
        self.legs
            .sort_by_key(|leg| (!is_native(leg), leg.leg.clone()));
    }

    /// Records the relay of a leg, and the finding about it.
    pub(super) fn note_relay(&mut self, number: u64, relay: Option<SocketAddr>, detail: String) {
        let known = usize::try_from(number).ok();
        if let Some(known) = known.and_then(|number| self.relays.get_mut(number)) {
            *known = relay;
        }
        if number == 0 {
            self.relay_detail = Some(detail);
        }
    }

    /// Forgets what ends with the connection. That is no move: each connection begins on unicast.
    pub(super) fn disconnect(&mut self, at_ms: u64) {
        (self.relays, self.relay_detail) = ([None; 2], None);
        self.legs.clear();
        if self.rung != Rung::Unicast {
            self.rung = Rung::Unicast;
            self.rung_since_ms = at_ms;
        }
    }

    /// Returns the legs with their relays.
    fn legs(&self) -> Vec<LegView> {
        let [first, second] = self.relays;
        let legs = self.legs.iter().cloned();
        let relays = [(Leg::RELAY, first), (Leg::SECOND_RELAY, second)];
        let relays = relays.map(|(leg, relay)| (leg.to_string(), relay));
        let legs = legs.map(|leg| {
            let relay = relays.iter().find(|(name, _)| *name == leg.leg);
            let relay = relay.and_then(|(_, relay)| *relay);
            LegView { relay, ..leg }
        });
        legs.collect()
    }

    fn note(&mut self, step: Move) {
        if self.moves.len() == MOVES {
            self.moves.pop_front();
        }
        self.moves.push_back(step);
    }

    /// Records a failed attempt at a rung, or corrects the cause of the last move from it.
    pub(super) fn explain(&mut self, rung: Rung, on: Rung, cause: Cause, at_ms: u64) {
        let from = rung.to_string();
        if cause != Cause::RelayLost {
            return self.note(Move {
                at_ms,
                from,
                to: on.to_string(),
                cause: cause.to_string(),
            });
        }
        if let Some(last) = self.moves.iter_mut().rev().find(|step| step.from == from) {
            last.cause = cause.to_string();
        }
    }

    pub(super) fn lose(&mut self, from: u64, to: u64, at_ms: u64) {
        let lost = to.saturating_sub(from).saturating_add(1);
        self.missing = self.missing.saturating_add(lost);
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(Gap { at_ms, from, to });
    }

    pub(super) fn status(&self) -> Channel {
        let [p50, p99] = self.latencies.percentiles([50, 99]);
        Channel {
            channel: self.name.clone(),
            incarnation: self.incarnation,
            rung: self.rung.to_string(),
            rung_since_ms: self.rung_since_ms,
            relay: self.relays.into_iter().flatten().next(),
            legs: self.legs(),
            relay_detail: self.relay_detail.clone(),
            cursor: self.cursor,
            head: self.head,
            updates: self.paths.flow + self.paths.repaired + self.paths.unicast,
            via: self.paths,
            latency_ms: Latency {
                last: self.latencies.last(),
                p50,
                p99,
            },
            reception: self.reception,
            messages: self.messages,
            undecodable: self.undecodable,
            auth_failures: self.auth_failures,
            missing: self.missing,
            gaps: self.gaps.iter().copied().collect(),
            moves: self.moves.iter().cloned().collect(),
        }
    }
}
