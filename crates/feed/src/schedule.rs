//! Poll schedule of a feed: at the rate of its entries, within limits, and as its server asks.
//!
//! Sans-IO: the caller passes in outcomes and the time, and gets waits. All randomness comes from a
//! seed.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Default of the shortest wait.
pub const MIN: Duration = Duration::from_secs(20);

/// Default of the longest wait.
pub const MAX: Duration = Duration::from_secs(3600);

/// Polls for each expected entry: on average, an entry is seen after an eighth of the feed's own
/// interval.
const POLLS_PER_ENTRY: f64 = 4.0;

/// Factor of a poll's weight after each further poll. About ten polls count.
const MEMORY: f64 = 0.9;

/// Largest factor by which a feed's `ttl` lengthens the wait of its rate.
const TTL: u32 = 4;

/// Number of shortest waits after a suspected gap, whatever the feed's rate, its `ttl` and the age
/// of its responses ask for.
const HURRY_POLLS: u32 = 10;

/// Longest initial wait after a failure; it doubles up to the longest of this and the ordinary
/// wait.
const FIRST_FAILURE: Duration = Duration::from_secs(60);
const LONGEST_FAILURE: Duration = Duration::from_secs(15 * 60);

/// Doublings of the wait after consecutive failures.
const DOUBLINGS: u32 = 16;

/// Largest number of entries that the dates of a first document count as.
const FIRST_WEIGHT: f64 = 5.0;

/// Limits of a poll schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Shortest wait.
    pub min: Duration,
    /// Longest wait; a server may ask for a longer one.
    pub max: Duration,
    /// Constant wait, whatever the feed's rate, its `ttl` and the age of its responses ask for.
    pub fixed: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            min: MIN,
            max: MAX,
            fixed: None,
        }
    }
}

/// Outcome of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The feed was read, or is unchanged.
    Read(PollStats),
    /// The poll failed.
    Failed {
        /// Wait that the server asked for.
        retry_after: Option<Duration>,
    },
}

/// Result of a successful poll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PollStats {
    /// Entries that were not in the feed before. For the very first poll, all.
    pub new: usize,
    /// Entries in the document; 0 if it was not modified.
    pub window: usize,
    /// Time between the oldest and the newest entry, by their dates. Used for the first document
    /// only, for which nothing else shows the feed's rate.
    pub span: Option<Duration>,
    /// Whether no entry was in the document before: others may have been missed.
    pub gap: bool,
    /// Remaining freshness of the response.
    pub max_age: Option<Duration>,
    /// Wait between polls that the feed itself asks for (`ttl`).
    pub ttl: Option<Duration>,
    /// Wait that the server asked for.
    pub retry_after: Option<Duration>,
}

/// Poll schedule of one feed.
#[derive(Debug)]
pub struct Schedule {
    settings: Settings,
    rng: SmallRng,
    /// Whether nothing is known of the feed's rate.
    is_new: bool,
    /// End of the last successful poll.
    read: Option<Instant>,
    /// Entries in the remembered time, and that time in seconds. Both decay.
    entries: f64,
    seconds: f64,
    /// Wait for the feed's rate, without jitter.
    interval: Duration,
    failures: u32,
    hurry: u32,
}

impl Schedule {
    /// Returns the schedule of a feed that is polled for the first time, or was polled before with
    /// the wait `remembered`.
    #[must_use]
    pub fn new(settings: Settings, remembered: Option<Duration>, seed: u64) -> Self {
        let settings = Settings {
            max: settings.max.max(settings.min),
            ..settings
        };
        let start = settings.fixed.or(remembered).unwrap_or(settings.min);
        let interval = match settings.fixed {
            Some(fixed) => fixed,
            None => start.clamp(settings.min, settings.max),
        };
        Self {
            rng: SmallRng::seed_from_u64(seed),
            is_new: remembered.is_none(),
            read: None,
            entries: 1.0,
            seconds: interval.as_secs_f64() * POLLS_PER_ENTRY,
            interval,
            failures: 0,
            hurry: 0,
            settings,
        }
    }

    /// Returns the current ordinary wait, to be kept over a restart.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Returns the number of consecutive failures.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the configured minimum keeps the waits from being shorter.
    #[must_use]
    pub fn is_at_minimum(&self) -> bool {
        self.interval <= self.settings.min
    }

    /// Whether polls are temporarily more frequent because of a suspected gap.
    #[must_use]
    pub fn is_hurrying(&self) -> bool {
        self.hurry > 0
    }

    /// Returns the wait after a poll that ended at `now`: with a jitter of a tenth, so that feeds
    /// which were polled together drift apart, but never shorter than the configured minimum or the
    /// wait that a server asked for.
    pub fn next(&mut self, outcome: Outcome, now: Instant) -> Duration {
        let (wait, asked) = match outcome {
            Outcome::Read(read) => self.after_reading(&read, now),
            Outcome::Failed { retry_after } => (self.after_failing(), retry_after),
        };
        let mut wait = self.about(wait, 0.9);
        if self.settings.fixed.is_none() && wait < self.settings.min {
            wait = self.about(self.settings.min, 1.0);
        }
        let asked = self.about(asked.unwrap_or_default(), 1.0);
        wait.max(asked)
    }

    /// Returns the chosen wait, and the wait that was asked for.
    fn after_reading(&mut self, read: &PollStats, now: Instant) -> (Duration, Option<Duration>) {
        self.failures = 0;
        self.learn(read, now);
        self.read = Some(now);
        if read.gap {
            self.hurry = HURRY_POLLS;
        }
        if self.hurry > 0 {
            self.hurry -= 1;
            let shortest = self.settings.fixed.unwrap_or(self.settings.min);
            return (shortest, read.retry_after);
        }
        if self.settings.fixed.is_some() {
            return (self.interval, read.retry_after);
        }
        // A `ttl` often is a default of the feed's software, so it slows a busy feed only a little.
        // A response claims to stay the same until its age expires; the longest wait is ours.
        let ttl = read
            .ttl
            .map(|ttl| ttl.min(self.interval.saturating_mul(TTL)));
        let fresh = read.max_age.max(ttl).unwrap_or_default();
        let wait = self.interval.max(fresh.min(self.settings.max));
        (wait, read.retry_after)
    }

    /// Updates the feed's rate by a poll's result.
    fn learn(&mut self, read: &PollStats, now: Instant) {
        if self.settings.fixed.is_some() {
            return;
        }
        let mut most = self.settings.max;
        match self.read {
            None => {
                // Only their dates show since when a first document's entries exist.
                if let Some(span) = read.span.filter(|_| self.is_new && read.window > 1) {
                    let pauses = (read.window - 1) as f64;
                    self.entries = pauses.min(FIRST_WEIGHT);
                    self.seconds = span.as_secs_f64() * self.entries / pauses;
                }
            }
            Some(before) => {
                let passed = now.saturating_duration_since(before);
                self.entries = self.entries * MEMORY + read.new as f64;
                self.seconds = self.seconds * MEMORY + passed.as_secs_f64();
                // However even the rate was so far: the next document should have fewer new entries
                // than room for them.
                if read.new > 0 && read.new * 2 >= read.window {
                    let part = read.window as f64 / (4.0 * read.new as f64);
                    most = passed.mul_f64(part.min(1.0));
                }
            }
        }
        let pause = self.seconds / (self.entries.max(f64::MIN_POSITIVE) * POLLS_PER_ENTRY);
        let pause = Duration::try_from_secs_f64(pause).unwrap_or(Duration::MAX);
        self.interval = pause.min(most).clamp(self.settings.min, self.settings.max);
    }

    fn after_failing(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let doublings = (self.failures - 1).min(DOUBLINGS);
        let first = match self.settings.fixed {
            Some(fixed) => fixed,
            None => self.interval.min(FIRST_FAILURE.max(self.settings.min)),
        };
        let longest = LONGEST_FAILURE.max(self.interval);
        first.saturating_mul(1 << doublings).min(longest)
    }

    /// Returns a wait between `least` of the given one and a tenth more than it.
    fn about(&mut self, wait: Duration, least: f64) -> Duration {
        let part = self.rng.random_range(least..=1.1);
        Duration::try_from_secs_f64(wait.as_secs_f64() * part).unwrap_or(wait)
    }
}

#[cfg(test)]
mod tests;
