//! Round-trip time estimation as in RFC 9002 section 5.

use std::time::Duration;

/// Timer granularity (RFC 9002 section 6.1.2).
pub const GRANULARITY: Duration = Duration::from_millis(1);

/// No sample is believed beyond this, so that a receiver cannot stretch the timers that protect the
/// source's memory.
pub const MAX_RTT: Duration = Duration::from_secs(2);

/// Smoothed round-trip time of one member of a flow.
#[derive(Debug, Clone)]
pub struct RttEstimator {
    latest: Duration,
    smoothed: Duration,
    variance: Duration,
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
            sampled: false,
        }
    }

    /// Takes a sample; `ack_delay` is what the receiver says that it held the acknowledgement back
    /// for, as far as the caller believes it.
    ///
    /// Unlike RFC 9002 section 5.3 the delay is subtracted whatever the smallest sample was: every
    /// acknowledgement of a flow is held back, so no sample is free of it. A receiver that lies
    /// about it only moves its own timers.
    pub fn update(&mut self, sample: Duration, ack_delay: Duration) {
        let adjusted = sample.saturating_sub(ack_delay).min(MAX_RTT);
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

    /// The probe timeout for a peer that holds acknowledgements back for up to `max_ack_delay` (RFC
    /// 9002 section 6.2.1).
    pub fn pto(&self, max_ack_delay: Duration) -> Duration {
        self.smoothed + (self.variance * 4).max(GRANULARITY) + max_ack_delay
    }

    /// Returns the time after which a packet below the largest acknowledged one counts as lost (RFC
    /// 9002 section 6.1.2).
    pub fn loss_delay(&self) -> Duration {
        (self.smoothed.max(self.latest) * 9 / 8).max(GRANULARITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acknowledgement_delay_is_no_part_of_the_path() {
        let ms = Duration::from_millis;
        let mut rtt = RttEstimator::new(ms(100));
        (0..50).for_each(|_| rtt.update(ms(45), ms(25)));
        assert_eq!(rtt.smoothed(), ms(20));
        rtt.update(Duration::from_secs(3600), Duration::ZERO);
        assert!(
            rtt.smoothed() <= MAX_RTT,
            "no sample stretches the timers without bound"
        );
    }
}
