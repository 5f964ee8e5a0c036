//! Round-trip time estimation as in RFC 9002 section 5.

use std::time::Duration;

/// Timer granularity (RFC 9002 section 6.1.2).
pub const GRANULARITY: Duration = Duration::from_millis(1);

/// No sample is believed beyond this, so that a receiver cannot stretch the timers that protect the source's memory.
pub const MAX_RTT: Duration = Duration::from_secs(2);

/// Smoothed round-trip time of one member of a flow.
#[derive(Debug, Clone)]
pub struct RttEstimator {
    latest: Duration,
    smoothed: Duration,
    variance: Duration,
    min: Duration,
    sampled: bool,
}

impl RttEstimator {
    /// Starts from a guess, such as the round-trip time of the unicast path.
    pub fn new(initial: Duration) -> Self {
        let initial = initial.min(MAX_RTT);
        RttEstimator {
            latest: initial,
            smoothed: initial,
            variance: initial / 2,
            min: initial,
            sampled: false,
        }
    }

    /// Takes a sample; `ack_delay` is what the receiver says that it held the acknowledgement back for.
    pub fn update(&mut self, sample: Duration, ack_delay: Duration) {
        let sample = sample.min(MAX_RTT);
        if !self.sampled {
            self.min = sample;
        }
        self.min = self.min.min(sample);
        // RFC 9002 section 5.3: the delay is subtracted only as far as the result stays plausible.
        let adjusted = if sample >= self.min + ack_delay {
            sample - ack_delay
        } else {
            sample
        };
        self.latest = adjusted;
        if self.sampled {
            self.variance = (self.variance * 3 + self.smoothed.abs_diff(adjusted)) / 4;
            self.smoothed = (self.smoothed * 7 + adjusted) / 8;
        } else {
            self.smoothed = adjusted;
            self.variance = adjusted / 2;
            self.sampled = true;
        }
    }

    /// The smoothed round-trip time.
    pub fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// The probe timeout for a peer that holds acknowledgements back for up to `max_ack_delay` (RFC 9002 section 6.2.1).
    pub fn pto(&self, max_ack_delay: Duration) -> Duration {
        self.smoothed + (self.variance * 4).max(GRANULARITY) + max_ack_delay
    }

    /// How long a packet below the largest acknowledged one may be late before it counts as lost (RFC 9002 section 6.1.2).
    pub fn loss_delay(&self) -> Duration {
        (self.smoothed.max(self.latest) * 9 / 8).max(GRANULARITY)
    }
}
