//! FC_LEGS: the legs of a member that merges two of one flow (protocol.md section 4.16).

use std::fmt;
use std::time::Duration;

use super::flow::{flow, put_flow};
use crate::wire::{BufMutExt, Reader, WireError};
use crate::{FlowId, PathId, Rung};

/// The most legs that one FC_LEGS lists.
pub const MAX_LEGS: usize = 4;

/// One of the ways by which a receiver gets the packets of a flow at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Leg {
    /// Rung 1 or 2.
    pub rung: Rung,
    /// Which of several by this rung, from 0 on.
    pub number: u64,
}

impl Leg {
    /// The native join.
    pub const NATIVE: Leg = Leg {
        rung: Rung::Multicast,
        number: 0,
    };
    /// The tunnel through a relay.
    pub const RELAY: Leg = Leg {
        rung: Rung::Amt,
        number: 0,
    };
    /// The tunnel through a second relay.
    pub const SECOND_RELAY: Leg = Leg {
        rung: Rung::Amt,
        number: 1,
    };
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => self.rung.fmt(f),
            number => write!(f, "{}-{}", self.rung, number.saturating_add(1)),
        }
    }
}

/// State of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LegState {
    /// Nothing has come by it yet.
    Trying = 0,
    /// Packets come by it.
    Working = 1,
    /// Nothing comes by it, while packets come by another one.
    Lost = 2,
}

impl LegState {
    /// Returns the state with this number; one that is not known is no working leg.
    fn from_number(number: u64) -> Self {
        match number {
            0 => LegState::Trying,
            1 => LegState::Working,
            _ => LegState::Lost,
        }
    }
}

impl fmt::Display for LegState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LegState::Trying => "trying",
            LegState::Working => "working",
            LegState::Lost => "lost",
        })
    }
}

/// A leg as its receiver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegReport {
    /// The path of its rung.
    pub path: PathId,
    /// Which of several by this path, from 0 on.
    pub number: u64,
    /// Its state.
    pub state: LegState,
    /// The largest packet number that came by it, if any has.
    pub largest: Option<u64>,
    /// Packets that another leg brought and this one did not.
    pub missed: u64,
    /// Time by which its packets come after those of the leg that is ahead.
    pub lag: Duration,
}

impl LegReport {
    /// Returns the leg; `None` if its path is none by which legs come.
    pub fn leg(&self) -> Option<Leg> {
        let rung = self.path.rung()?;
        let is_leg = matches!(rung, Rung::Multicast | Rung::Amt);
        is_leg.then_some(Leg {
            rung,
            number: self.number,
        })
    }
}

/// FC_LEGS: the legs by which a member gets a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Legs {
    /// The flow.
    pub flow: FlowId,
    /// Grows with each FC_LEGS for this flow.
    pub sequence: u64,
    /// Its legs, at most [`MAX_LEGS`].
    pub legs: Vec<LegReport>,
}

impl Legs {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        let legs = &self.legs[..self.legs.len().min(MAX_LEGS)];
        out.put_varint(legs.len() as u64);
        for leg in legs {
            out.put_varint(leg.path.0);
            out.put_varint(leg.number);
            out.put_varint(leg.state as u64);
            out.put_varint(leg.largest.map_or(0, |largest| largest + 1));
            out.put_varint(leg.missed);
            out.put_varint(leg.lag.as_micros() as u64);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_LEGS";
        let (flow, sequence) = (flow(r, WHAT)?, r.varint()?);
        let count = r.varint()?;
        if count > MAX_LEGS as u64 {
            return Err(WireError::invalid(WHAT, "more than 4 legs"));
        }
        let mut legs = Vec::with_capacity(count as usize);
        for _ in 0..count {
            legs.push(LegReport {
                path: PathId(r.varint()?),
                number: r.varint()?,
                state: LegState::from_number(r.varint()?),
                largest: r.varint()?.checked_sub(1),
                missed: r.varint()?,
                lag: Duration::from_micros(r.varint()?),
            });
        }
        Ok(Legs {
            flow,
            sequence,
            legs,
        })
    }
}
