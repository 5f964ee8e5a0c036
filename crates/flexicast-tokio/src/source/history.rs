//! Events of receivers and of the source, in order and numbered, for readers that must not miss
//! any.

use std::collections::VecDeque;

use tokio::sync::watch;
use uuid::Uuid;

use super::{Move, Overload};

/// Bound on kept events: all receivers of a source may come, move and go within a moment.
const KEPT: usize = 65_536;
/// One answer holds no more than so much: the engine has packets to send.
const PART: usize = 4_096;

/// A numbered event.
#[derive(Debug, Clone)]
pub struct HistoryEvent {
    /// Counts from 1 without a gap from the source's start.
    pub number: u64,
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The event.
    pub what: HistoryEventKind,
}

/// An event of a receiver, or of the source.
#[derive(Debug, Clone)]
pub enum HistoryEventKind {
    /// A receiver was let in.
    Connected {
        /// Its connection's number.
        session: u64,
        /// Its id.
        receiver: Uuid,
        /// Its name.
        name: String,
        /// Its program and version, as it says.
        software: String,
        /// Where its connection comes from.
        addr: String,
        /// The channels that it receives.
        channels: Vec<String>,
    },
    /// A receiver has moved to another rung.
    Moved(Move),
    /// A report without a move: a failed attempt at a better rung, as a move from there to the
    /// current one, or forged packets, from the current rung to itself.
    Reported(Move),
    /// The cause of a move became known.
    Explained {
        /// The move's number.
        moved: u64,
        /// The cause, replacing the one given with the move.
        cause: String,
    },
    /// The connection of a receiver that had been let in is over.
    Disconnected {
        /// Its connection's number.
        session: u64,
        /// Its id.
        receiver: Uuid,
        /// Why, for people.
        reason: String,
    },
    /// The source cannot keep up; or, if that has an end, it does again.
    Overload(Overload),
}

/// Events after a number, or the first part of them.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// In order. If the last one's number is lower than `last`, there is more to be asked for.
    pub events: Vec<HistoryEvent>,
    /// The number of the newest one that there is.
    pub last: u64,
    /// Requested updates before the first of these that are forgotten already.
    pub missed: u64,
}

/// Events of receivers that are kept for readers.
#[derive(Debug)]
pub(super) struct EventLog {
    kept: VecDeque<HistoryEvent>,
    last: watch::Sender<u64>,
}

impl EventLog {
    pub(super) fn new(last: watch::Sender<u64>) -> Self {
        EventLog {
            kept: VecDeque::new(),
            last,
        }
    }

    /// Adds what `what` makes of its number. Returns that number.
    pub(super) fn add(&mut self, at_ms: u64, what: impl FnOnce(u64) -> HistoryEventKind) -> u64 {
        let number = *self.last.borrow() + 1;
        if self.kept.len() >= KEPT {
            self.kept.pop_front();
        }
        let what = what(number);
        self.kept.push_back(HistoryEvent {
            number,
            at_ms,
            what,
        });
        self.last.send_replace(number);
        number
    }

    /// Returns the events after number `after`.
    pub(super) fn after(&self, after: u64) -> History {
        let last = *self.last.borrow();
        let first = self.kept.front().map_or(last + 1, |h| h.number);
        let from = first.max(after.saturating_add(1));
        let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
        History {
            events: self.kept.iter().skip(skipped).take(PART).cloned().collect(),
            last,
            missed: from - after.saturating_add(1).min(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_log(count: usize) -> EventLog {
        let mut log = EventLog::new(watch::Sender::new(0));
        for n in 1..=count as u64 {
            let number = log.add(n, |_| HistoryEventKind::Disconnected {
                session: n,
                receiver: Uuid::nil(),
                reason: String::new(),
            });
            assert_eq!(number, n);
        }
        log
    }

    #[test]
    fn events_are_delivered_once_in_order() {
        let mut log = filled_log(10_000);
        let mut seen = 0;
        loop {
            let part = log.after(seen);
            assert_eq!((part.missed, part.last), (0, 10_000));
            for one in &part.events {
                assert_eq!(one.number, seen + 1);
                seen += 1;
            }
            if seen == part.last {
                break;
            }
        }
        assert!(log.after(10_000).events.is_empty());
        assert!(log.after(u64::MAX).events.is_empty());
        log.add(1, |_| HistoryEventKind::Disconnected {
            session: 1,
            receiver: Uuid::nil(),
            reason: String::new(),
        });
        assert_eq!(log.after(10_000).events[0].number, 10_001);
    }

    #[test]
    fn forgotten_events_are_counted() {
        let log = filled_log(KEPT + 100);
        assert_eq!(log.kept.len(), KEPT);
        let part = log.after(0);
        assert_eq!((part.missed, part.events[0].number), (100, 101));
        let part = log.after(60);
        assert_eq!((part.missed, part.events[0].number), (40, 101));
        let part = log.after(100);
        assert_eq!((part.missed, part.events[0].number), (0, 101));
    }
}
