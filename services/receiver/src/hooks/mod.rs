//! Hooks: webhooks and commands that get each update, and each message.
//!
//! Both are *at least once*: each hook has its own offset in each channel's journal, stored on
//! disk, and continues there after a restart. The updates of a hook that is slow or hangs wait in
//! the journal and delay nothing else: files, other hooks and other channels continue, and memory
//! does not grow. An update that fails too often, gets too old, or leaves the journal while it
//! waits becomes a dead letter, with the reason.
//!
//! `lane` is one hook on one channel: order, retries, the offset; `messages` are those for one
//! hook, which nothing keeps. `webhook` and `exec` are the two targets, `dead` the dead letters.

mod backoff;
pub mod dead;
mod delivered;
mod event;
pub mod exec;
mod lane;
mod messages;
mod offset;
mod progress;
mod signature;
mod stats;
pub mod webhook;

#[cfg(test)]
mod targets;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::journal::JournalReader;
use crate::live::Follower;
use crate::messages::ReceivedMessage;
pub use backoff::Pauses;
pub use dead::{DeadLetters, Letter};
pub use event::Event;
use lane::Lane;
pub use signature::SigningKey;
use stats::add;
pub use stats::{HookStats, HookStatus};

/// Result of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Delivered.
    Done,
    /// Failed; a later attempt may succeed.
    Again {
        /// Reason, for the operator.
        reason: String,
        /// Shortest delay before the next attempt.
        after: Option<Duration>,
    },
    /// Refused for good: no more updates until the receiver restarts.
    Disable {
        /// Reason, for the operator.
        reason: String,
    },
}

/// Destination of a hook's updates.
pub trait Target: Send + Sync + 'static {
    /// `webhook` or `exec`.
    const KIND: &'static str;

    /// Delivers an update once. `attempt` counts from 1. Ends in bounded time; dropping the future
    /// ends everything that it started.
    fn attempt(&self, event: &Event, attempt: u32) -> impl Future<Output = Verdict> + Send;
}

/// Limits on the retries of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryLimits {
    /// Largest number of attempts for one update, at least one.
    pub attempts: u32,
    /// Age from which on an update is not retried.
    pub max_age: Duration,
    /// Delays between attempts.
    pub pauses: Pauses,
}

/// Configuration of a hook.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name, which names files.
    pub name: String,
    /// Channels; empty for all.
    pub channels: Vec<String>,
    /// Limits on retries.
    pub patience: RetryLimits,
    /// Attempts in parallel. With one, each channel's order is kept.
    pub concurrency: usize,
}

/// Hook, shared by its lanes.
pub(crate) struct Hook<T> {
    name: String,
    target: T,
    patience: RetryLimits,
    permits: Semaphore,
    /// Updates of a channel in progress, including those between two attempts.
    window: usize,
    dead: Arc<DeadLetters>,
    stats: Arc<HookStats>,
    /// Cancelled when the hook is disabled, until the next start.
    disabled: CancellationToken,
}

impl<T: Target> Hook<T> {
    /// Logs the first of several failures; further ones are counted.
    fn complain(&self, channel: &str, reason: &str) {
        if self.stats.fail(channel, reason) {
            warn!(
                kind = T::KIND,
                hook = self.name,
                reason,
                "delivery failed; retrying"
            );
        }
    }

    /// Delivers nothing more until the next start.
    fn disable(&self, channel: &str, reason: &str) {
        add(&self.stats.failed, 1);
        self.stats.fail(channel, reason);
        self.stats.disable();
        self.disabled.cancel();
        error!(
            kind = T::KIND,
            hook = self.name,
            reason,
            "hook disabled until the receiver restarts"
        );
    }
}

/// Updates in progress per parallel attempt, if there are several: a retried update does not delay
/// the others.
const WINDOW: usize = 4;

/// Hooks of a receiver.
#[derive(Default)]
pub struct Hooks {
    tasks: JoinSet<()>,
    stats: Vec<Arc<HookStats>>,
    stop: CancellationToken,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks")
            .field("hooks", &self.stats.len())
            .finish_non_exhaustive()
    }
}

impl Hooks {
    /// Starts a hook on its channels out of `channels`. To be called before more is delivered, so
    /// that the hook misses nothing. Blocks for the disk.
    ///
    /// # Errors
    /// The name cannot name files or is in use, a channel does not exist, or the offset cannot be
    /// read.
    pub fn add<T: Target>(
        &mut self,
        data: &Path,
        settings: Settings,
        target: T,
        channels: &[(String, Arc<JournalReader>)],
        messages: Follower<Arc<ReceivedMessage>>,
    ) -> anyhow::Result<()> {
        let Settings {
            name,
            channels: wanted,
            patience,
            concurrency,
        } = settings;
        if !is_name(&name) {
            bail!("{name:?} cannot name a hook: use 1 to 64 letters, digits, - and _");
        }
        if self.stats.iter().any(|known| known.name() == name) {
            bail!("two hooks are called {name}: give each its own name");
        }
        if let Some(unknown) = wanted
            .iter()
            .find(|w| !channels.iter().any(|(c, _)| c == *w))
        {
            bail!(
                "the hook {name} is for the channel {unknown}, which this receiver does not receive"
            );
        }
        let concurrency = concurrency.max(1);
        let dead = Arc::new(DeadLetters::new(data, &name));
        let stats = HookStats::new(&name, T::KIND, &wanted, Arc::clone(&dead));
        let stats = Arc::new(stats);
        let hook = Arc::new(Hook {
            dead,
            permits: Semaphore::new(concurrency),
            window: match concurrency {
                1 => 1,
                more => more.saturating_mul(WINDOW),
            },
            name,
            target,
            patience,
            stats: Arc::clone(&stats),
            disabled: self.stop.child_token(),
        });
        for (channel, reader) in channels {
            if !wanted.is_empty() && !wanted.contains(channel) {
                continue;
            }
            let lane = Lane::open(data, Arc::clone(&hook), channel, Arc::clone(reader))
                .with_context(|| format!("the hook {}", hook.name))?;
            let lane = Arc::new(lane);
            reader.guard(lane.clone());
            stats.add_lane(lane.clone());
            self.tasks.spawn(lane.run(self.stop.clone()));
        }
        let stop = self.stop.clone();
        self.tasks
            .spawn(messages::run(hook, wanted, messages, stop));
        self.stats.push(stats);
        Ok(())
    }

    /// Returns the status of each hook.
    #[must_use]
    pub fn stats(&self) -> Vec<Arc<HookStats>> {
        self.stats.clone()
    }

    /// Stops the hooks: attempts in progress have a moment, the rest waits in the journal for the
    /// next start.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Whether a text can name a hook, and with it the hook's files.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}
