//! Observable state of a hook.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::DeadLetters;

/// Counters of one hook since the start.
pub struct HookStats {
    name: String,
    kind: &'static str,
    channels: Vec<String>,
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) dead: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) running: AtomicU64,
    disabled: AtomicBool,
    /// Error of the last attempt, for each channel where it failed.
    errors: Mutex<BTreeMap<String, String>>,
    letters: Arc<DeadLetters>,
    lanes: Mutex<Vec<Arc<dyn PendingCounter>>>,
}

/// Lane, as the number of its pending updates.
pub(super) trait PendingCounter: Send + Sync {
    fn waiting(&self) -> u64;
}

/// Status of a hook, for pages and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookStatus {
    /// Name.
    pub name: String,
    /// `webhook` or `exec`.
    pub kind: &'static str,
    /// Channels; empty for all.
    pub channels: Vec<String>,
    /// Updates not delivered yet.
    pub pending: u64,
    /// Attempts in progress.
    pub running: u64,
    /// Updates delivered.
    pub delivered: u64,
    /// Failed attempts.
    pub failed_attempts: u64,
    /// Updates that became dead letters.
    pub dead_letters: u64,
    /// Dead letters dropped because there were too many.
    pub dropped_letters: u64,
    /// Updates that could not be read from the journal.
    pub lost: u64,
    /// Messages given up, most because they had expired.
    pub expired: u64,
    /// Whether delivery is disabled until the next start.
    pub disabled: bool,
    /// Error of the last attempt, until one succeeds; of the first such channel.
    pub error: Option<String>,
}

impl HookStats {
    pub(super) fn new(
        name: &str,
        kind: &'static str,
        channels: &[String],
        letters: Arc<DeadLetters>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            channels: channels.to_vec(),
            delivered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            running: AtomicU64::new(0),
            disabled: AtomicBool::new(false),
            errors: Mutex::default(),
            letters,
            lanes: Mutex::new(Vec::new()),
        }
    }

    /// Returns the hook's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> HookStatus {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = lanes.iter().map(|lane| lane.waiting()).sum();
        drop(lanes);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let error = self.errors().values().next().cloned();
        HookStatus {
            name: self.name.clone(),
            kind: self.kind,
            channels: self.channels.clone(),
            pending,
            running: count(&self.running),
            delivered: count(&self.delivered),
            failed_attempts: count(&self.failed),
            dead_letters: count(&self.dead),
            dropped_letters: self.letters.dropped(),
            lost: count(&self.lost),
            expired: count(&self.expired),
            disabled: self.disabled.load(Ordering::Relaxed),
            error,
        }
    }

    pub(super) fn add_lane(&self, lane: Arc<dyn PendingCounter>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.push(lane);
    }

    pub(super) fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
    }

    /// Counts a failed attempt. Returns whether no channel of the hook failed before.
    pub(super) fn fail(&self, channel: &str, reason: &str) -> bool {
        let mut errors = self.errors();
        let went_well = errors.is_empty();
        errors.insert(channel.to_owned(), reason.to_owned());
        went_well
    }

    /// Counts a delivered update of a channel. Returns whether that ended the hook's last failure.
    pub(super) fn succeed(&self, channel: &str) -> bool {
        let mut errors = self.errors();
        errors.remove(channel).is_some() && errors.is_empty()
    }

    fn errors(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        // No change under this lock can be left half done.
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// Counts an attempt in progress until dropped.
pub(super) struct InFlight<'a>(&'a AtomicU64);

impl<'a> InFlight<'a> {
    pub(super) fn new(counter: &'a AtomicU64) -> Self {
        add(counter, 1);
        Self(counter)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
