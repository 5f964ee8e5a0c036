//! What a run can find.

use std::fmt;
use std::time::Duration;

/// What flexicast promises; a run looks for a case in which it does not keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Every receiver that stays ends with every update.
    Delivery,
    /// Each update once and in order of `seq`; gaps only where the retention says so.
    Order,
    /// What arrives is what was published.
    Bytes,
    /// Nobody can read a flow outside the time that it belongs to it.
    Secrecy,
    /// A flow's packet numbers and bytes go out once, and its keys protect no more packets than they may.
    Flow,
    /// Copies go to validated addresses only.
    Reflection,
    /// Memory returns to its bound.
    Memory,
    /// No timer runs hot.
    Timers,
    /// Two honest ends find nothing wrong with each other.
    Protocol,
    /// Who can have a better rung gets it in the end.
    Rung,
    /// The same seed gives the same run.
    Determinism,
    /// Nothing panics.
    Panic,
}

/// A broken promise, while its run goes on.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) promise: Promise,
    pub(crate) what: String,
}

impl Broken {
    /// Says at which receiver.
    pub(crate) fn at_receiver(mut self, receiver: usize) -> Self {
        self.what = format!("receiver {receiver} {}", self.what);
        self
    }
}

/// Ends a run with a broken promise.
pub(crate) fn broken<T>(promise: Promise, what: impl Into<String>) -> Result<T, Broken> {
    Err(Broken {
        promise,
        what: what.into(),
    })
}

/// A broken promise, and how to see it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// Virtual time since its beginning.
    pub at: Duration,
    /// Which promise.
    pub promise: Promise,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation {
            seed,
            at,
            promise,
            what,
        } = self;
        let at = at.as_secs_f64();
        let what = what.replace('\n', " ");
        write!(
            f,
            "./dev simulate --seed {seed}  # {promise:?} broken after {at:.3} s: {what}"
        )
    }
}

impl std::error::Error for Violation {}
