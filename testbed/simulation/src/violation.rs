//! Broken promises, as found by a run.

use std::fmt;
use std::time::Duration;

/// Promises of flexicast that runs try to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Every receiver that stays ends with every update.
    Delivery,
    /// Each update once and in order of `seq`; gaps only where the retention says so.
    Order,
    /// Delivered bytes are the published ones.
    Bytes,
    /// A flow is readable only during membership.
    Secrecy,
    /// A flow's packet numbers and bytes go out once, and its keys protect no more packets than
    /// they may.
    Flow,
    /// Copies go to validated addresses only.
    Reflection,
    /// Memory returns to its bound.
    Memory,
    /// No timer runs hot.
    Timers,
    /// Two honest ends find nothing wrong with each other.
    Protocol,
    /// Every receiver reaches the best rung available to it.
    Rung,
    /// The same seed gives the same run.
    Determinism,
    /// Nothing panics.
    Panic,
}

/// A broken promise, while its run goes on.
#[derive(Debug)]
pub(crate) struct BrokenPromise {
    pub(crate) promise: Promise,
    pub(crate) what: String,
}

impl BrokenPromise {
    /// Says at which receiver.
    pub(crate) fn at_receiver(mut self, receiver: usize) -> Self {
        self.what = format!("receiver {receiver} {}", self.what);
        self
    }
}

/// Ends a run with a broken promise.
pub(crate) fn broken<T>(promise: Promise, what: impl Into<String>) -> Result<T, BrokenPromise> {
    Err(BrokenPromise {
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
    /// Broken promise.
    pub promise: Promise,
    /// Observed violation.
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
