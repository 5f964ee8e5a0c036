//! The engine's records of moves, events of receivers, and load.

use std::collections::VecDeque;
use std::time::Instant;

use flexicast::{Cause, Rung};

use super::load::LoadMonitor;
use crate::source::history::{EventLog, HistoryEventKind};
use crate::source::wall_clock::unix_ms_now;
use crate::source::{MassFallBack, Move};

/// Moves that are kept for the status.
const MOVES: usize = 256;
const MASS_FALL_BACKS: usize = 32;

/// Records of moves, events of receivers, and load.
pub(super) struct Records {
    pub(super) events: EventLog,
    pub(super) moves: VecDeque<Move>,
    pub(super) mass_fall_backs: VecDeque<MassFallBack>,
    pub(super) load: LoadMonitor,
}

impl Records {
    pub(super) fn new(events: EventLog, now: Instant) -> Self {
        Records {
            events,
            moves: VecDeque::new(),
            mass_fall_backs: VecDeque::new(),
            load: LoadMonitor::new(now),
        }
    }

    /// Records an event with the current time.
    pub(super) fn add(&mut self, kind: HistoryEventKind) {
        self.events.add(unix_ms_now(), |_| kind);
    }

    /// Records a move, or a report without a move, and numbers it.
    pub(super) fn add_move(&mut self, mut step: Move, cause: Cause) {
        self.events.add(step.at_ms, |number| {
            step.number = number;
            // The loss of a leg beside the one that the rung is named after is reported as if from
            // the worse rung: a move by it leads there.
            let is_beside = cause == Cause::LegLost && step.from == Rung::Amt.to_string();
            match cause == Cause::ProbeTimeout || step.from == step.to || is_beside {
                true => HistoryEventKind::Reported(step.clone()),
                false => HistoryEventKind::Moved(step.clone()),
            }
        });
        push_within(&mut self.moves, step, MOVES);
    }

    /// Records the cause of the last move of a receiver from a rung of a channel.
    pub(super) fn explain_move(&mut self, receiver: &str, channel: &str, from: &str, cause: Cause) {
        let is_this =
            |m: &&mut Move| m.receiver == receiver && m.channel == channel && m.from == from;
        let Some(last) = self.moves.iter_mut().rev().find(is_this) else {
            return;
        };
        last.cause = cause.to_string();
        let explained = HistoryEventKind::Explained {
            moved: last.number,
            cause: cause.to_string(),
        };
        self.add(explained);
    }

    /// Judges the load, and records the beginning or the end of an overload. Returns how many
    /// acknowledgements per second the engine bears, if that has changed.
    pub(super) fn judge_load(&mut self, now: Instant) -> Option<u64> {
        let acks_per_s = self.load.judge(now);
        if let Some(overload) = self.load.take_news() {
            self.add(HistoryEventKind::Overload(overload));
        }
        acks_per_s
    }

    pub(super) fn add_mass_fall_back(&mut self, channel: &str, members: usize, cause: Cause) {
        let fall_back = MassFallBack {
            at_ms: unix_ms_now(),
            channel: channel.to_owned(),
            members,
            cause: cause.to_string(),
        };
        push_within(&mut self.mass_fall_backs, fall_back, MASS_FALL_BACKS);
    }
}

/// Adds one, and forgets the oldest where there are more than `most`.
pub(super) fn push_within<T>(kept: &mut VecDeque<T>, one: T, most: usize) {
    if kept.len() >= most {
        kept.pop_front();
    }
    kept.push_back(one);
}
