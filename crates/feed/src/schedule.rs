//! When to poll a feed next: as often as it has news, within limits, and as its server asks.
//!
//! Sans-IO: it is given outcomes and the time, and gives waits. All its chance comes from a seed.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The shortest wait by default.
pub const MIN: Duration = Duration::from_secs(20);

/// The longest wait by default.
pub const MAX: Duration = Duration::from_secs(3600);

/// Polls for each entry that a feed is expected to bring: an entry is seen after an eighth of the
/// feed's own pause on average.
const POLLS_PER_ENTRY: f64 = 4.0;

/// What is left of a poll's weight after each further one. About ten polls count.
const MEMORY: f64 = 0.9;

/// A feed's `ttl` has it polled at most this much more rarely than its rate.
const TTL: u32 = 4;

/// Number of waits after a suspected gap that are the shortest one, whatever the feed's rate, its
/// `ttl` and the age of its answers say.
const HURRY_POLLS: u32 = 10;

/// Failures wait from at most this long, doubling, to the longest of this and the ordinary wait.
const FIRST_FAILURE: Duration = Duration::from_secs(60);
const LONGEST_FAILURE: Duration = Duration::from_secs(15 * 60);

/// Doublings of the wait after failures in a row.
const DOUBLINGS: u32 = 16;

/// How many entries the dates of a first document count as, at most.
const FIRST_WEIGHT: f64 = 5.0;

/// Within which limits to poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The shortest wait.
    pub min: Duration,
    /// The longest wait; what a server asks for may be longer.
    pub max: Duration,
    /// Always this wait, whatever the feed's rate, its `ttl` and the age of its answers say.
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

/// How a poll ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The feed was read, or is what it was.
    Read(Read),
    /// It could not be read.
    Failed {
        /// What the server asked to be waited.
        retry_after: Option<Duration>,
    },
}

/// What a good poll brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Read {
    /// Entries that were not in the feed before. Of the first poll ever, all.
    pub new: usize,
    /// Entries in the document; 0 if it was not modified.
    pub window: usize,
    /// The time between the oldest and the newest entry, by their dates. Only of use for the first
    /// document, which says nothing else of the feed's rate.
    pub span: Option<Duration>,
    /// No entry was in the document before: others may have been missed.
    pub gap: bool,
    /// How long the answer stays fresh.
    pub max_age: Option<Duration>,
    /// What the feed itself asks to be waited between polls (`ttl`).
    pub ttl: Option<Duration>,
    /// What the server asked to be waited.
    pub retry_after: Option<Duration>,
}

/// When to poll one feed.
#[derive(Debug)]
pub struct Schedule {
    settings: Settings,
    rng: SmallRng,
    /// Nothing is known of the feed's rate.
    is_new: bool,
    /// When the last good poll ended.
    read: Option<Instant>,
    /// Entries in the time that is remembered, and that time in seconds. Both fade.
    entries: f64,
    seconds: f64,
    /// The wait that the feed's rate asks for, without chance.
    interval: Duration,
    failures: u32,
    hurry: u32,
}

impl Schedule {
    /// For a feed that is polled for the first time, or has been before with a wait that is
    /// `remembered`.
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

    /// The ordinary wait at the moment, to be remembered over a restart.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// How many polls in a row have failed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the configured minimum keeps the waits from being shorter.
    #[must_use]
    pub fn is_at_minimum(&self) -> bool {
        self.interval <= self.settings.min
    }

    /// Whether polls are more frequent for a while because of a suspected gap.
    #[must_use]
    pub fn hurries(&self) -> bool {
        self.hurry > 0
    }

    /// The wait after a poll that ended `now`: give or take a tenth, so that feeds which were asked
    /// together are not for ever, but never shorter than the configured minimum and than what a
    /// server asked for.
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

    /// The wait that is chosen, and the one that is asked for.
    fn after_reading(&mut self, read: &Read, now: Instant) -> (Duration, Option<Duration>) {
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
        // A `ttl` often is what the feed's software comes with, so it makes a busy feed not much
        // slower. What was fetched stays the same until its age is up, or so it says; the longest
        // wait is ours.
        let ttl = read
            .ttl
            .map(|ttl| ttl.min(self.interval.saturating_mul(TTL)));
        let fresh = read.max_age.max(ttl).unwrap_or_default();
        let wait = self.interval.max(fresh.min(self.settings.max));
        (wait, read.retry_after)
    }

    /// Takes what a poll brought into the feed's rate.
    fn learn(&mut self, read: &Read, now: Instant) {
        if self.settings.fixed.is_some() {
            return;
        }
        let mut most = self.settings.max;
        match self.read {
            None => {
                // Nobody knows since when a first document's entries are there but their dates.
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
                // However even the rate was so far: next time less than the document has room for
                // should come.
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

    /// From `least` of the wait to a tenth more than it.
    fn about(&mut self, wait: Duration, least: f64) -> Duration {
        let part = self.rng.random_range(least..=1.1);
        Duration::try_from_secs_f64(wait.as_secs_f64() * part).unwrap_or(wait)
    }
}

#[cfg(test)]
mod tests;
