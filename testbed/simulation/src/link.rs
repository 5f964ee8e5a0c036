//! One direction of one network path.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::gilbert_elliott::GilbertElliott;

/// Loss model of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Each by itself, with this probability.
    Uniform(f64),
    /// In bursts.
    GilbertElliott(GilbertElliott),
}

impl Loss {
    /// Nothing is lost.
    pub const NONE: Loss = Loss::Uniform(0.0);
}

/// Properties of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// One way, at least.
    pub delay: Duration,
    /// On top of it at most, each datagram by itself: datagrams overtake each other.
    pub jitter: Duration,
    /// Loss model.
    pub loss: Loss,
    /// The probability that a datagram arrives twice.
    pub duplicates: f64,
}

impl Quality {
    /// The same path in its best state.
    pub fn healed(self) -> Quality {
        Quality {
            loss: Loss::NONE,
            duplicates: 0.0,
            delay: self.delay.min(Duration::from_millis(60)),
            jitter: self.jitter.min(Duration::from_millis(1)),
        }
    }
}

/// One direction of one path, with what it remembers.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) quality: Quality,
    /// Until then nothing gets through.
    pub(crate) cut_until: Option<Instant>,
    bad: bool,
}

impl Link {
    pub(crate) fn new(quality: Quality) -> Self {
        Link {
            quality,
            cut_until: None,
            bad: false,
        }
    }

    pub(crate) fn cut(&mut self, until: Instant) {
        self.cut_until = self.cut_until.max(Some(until));
    }

    pub(crate) fn heal(&mut self) {
        self.quality = self.quality.healed();
        self.cut_until = None;
        self.bad = false;
    }

    /// When a datagram that is sent now arrives: not at all, once, or twice.
    pub(crate) fn arrivals(&mut self, now: Instant, rng: &mut SmallRng) -> [Option<Instant>; 2] {
        if self.cut_until.is_some_and(|until| now < until) || self.loses(rng) {
            return [None, None];
        }
        let first = Some(now + self.travel(rng));
        let twice = self.quality.duplicates > 0.0 && rng.random_bool(self.quality.duplicates);
        [first, twice.then(|| now + self.travel(rng))]
    }

    /// Returns the delay of a datagram.
    pub(crate) fn travel(&self, rng: &mut SmallRng) -> Duration {
        let jitter = self.quality.jitter.as_nanos() as u64;
        let jitter = if jitter == 0 {
            0
        } else {
            rng.random_range(0..jitter)
        };
        self.quality.delay + Duration::from_nanos(jitter)
    }

    fn loses(&mut self, rng: &mut SmallRng) -> bool {
        match self.quality.loss {
            Loss::Uniform(0.0) => false,
            Loss::Uniform(p) => rng.random_bool(p),
            Loss::GilbertElliott(model) => model.loses(&mut self.bad, rng),
        }
    }
}
