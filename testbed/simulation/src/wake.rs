//! A host's timer, and whether it runs hot.

use std::time::{Duration, Instant};

use crate::violation::{BrokenPromise, Promise, broken};

/// Timers of one host that ring in a second without anything coming of it: so many are forgiven,
/// for each peer and channel so many more, and one for each packet: its loss may be due.
const IDLE_PER_SECOND: u32 = 200;
const IDLE_PER_PEER: u32 = 25;

/// Result of handling a host's timer or input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activity {
    Nothing,
    /// A host was woken without any output.
    Looked,
    Something,
}

impl Activity {
    pub(crate) fn or(self, something: bool) -> Activity {
        if something { Activity::Something } else { self }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// When the timer rings.
    pub(crate) armed: Option<Instant>,
    /// Times in a row that a deadline lay in the past right after it was handled, and nothing came
    /// of it.
    stuck: u32,
    second: Option<Instant>,
    idle: u32,
    /// Packets that had been sent when this second began.
    packets: u64,
    /// All rings.
    pub(crate) rings: u64,
}

impl Wake {
    /// The timer rang and was handled; `moved` says what came of it, `next` when it wants to ring
    /// again.
    pub(crate) fn rang(
        &mut self,
        who: &str,
        peers: usize,
        packets: u64,
        moved: Activity,
        next: Option<Instant>,
        now: Instant,
    ) -> Result<(), BrokenPromise> {
        self.rings += 1;
        let past = next.is_some_and(|at| at <= now);
        self.stuck = if past && moved == Activity::Nothing {
            self.stuck + 1
        } else {
            0
        };
        if self.stuck >= 2 {
            return broken(
                Promise::Timers,
                format!("{who}: a deadline in the past twice in a row, and nothing comes of it"),
            );
        }
        if self
            .second
            .is_none_or(|at| now >= at + Duration::from_secs(1))
        {
            self.second = Some(now);
            self.idle = 0;
            self.packets = packets;
        }
        self.idle += u32::from(moved != Activity::Something);
        let sent = (packets - self.packets) as u32;
        if self.idle > IDLE_PER_SECOND + IDLE_PER_PEER * peers as u32 + sent {
            let idle = self.idle;
            return broken(
                Promise::Timers,
                format!("{who}: the timer rang {idle} times within a second for nothing"),
            );
        }
        Ok(())
    }
}
