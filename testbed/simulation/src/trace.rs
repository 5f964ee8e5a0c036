//! Digest of a run: two runs of a seed have the same, or an input came from outside.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The kinds of events that are noted.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum Kind {
    Act,
    Control,
    Stream,
    Datagram,
    FlowSent,
    FlowArrived,
    Delivered,
    Moved,
    Connected,
    Ended,
    Wake,
}

/// The hash so far, and the lines for people if they are wanted.
pub(crate) struct Trace {
    hash: DefaultHasher,
    events: u64,
    verbose: bool,
}

impl Trace {
    pub(crate) fn new(verbose: bool) -> Self {
        Trace {
            hash: DefaultHasher::new(),
            events: 0,
            verbose,
        }
    }

    /// Adds an event: time, kind, subject, and bytes.
    pub(crate) fn note(&mut self, at: Duration, kind: Kind, about: u64, bytes: &[u8]) {
        self.events += 1;
        (at, kind, about, bytes).hash(&mut self.hash);
    }

    /// Says something to people, if they want to know.
    pub(crate) fn say(&self, at: Duration, line: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>12.6} {}", at.as_secs_f64(), line());
        }
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn finish(&self) -> u64 {
        self.hash.finish()
    }
}
