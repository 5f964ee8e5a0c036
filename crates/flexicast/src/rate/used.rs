//! The rate that a flow really used.

use std::time::{Duration, Instant};

/// Highest rate of what was sent, over periods of a round trip and more: only that is proven to
/// pass.
#[derive(Debug, Default)]
pub(super) struct UsedRate {
    /// Begin of the current period.
    since: Option<Instant>,
    /// When the last packet was sent.
    last: Option<Instant>,
    /// Bytes sent in the current period.
    bytes: u64,
    /// Bytes a second in the best of the periods before.
    peak: f64,
}

impl UsedRate {
    /// Counts a packet; a period lasts for `period`.
    pub(super) fn on_sent(&mut self, bytes: usize, period: impl Fn() -> Duration, now: Instant) {
        // A train of packets is made at one instant.
        if self.since.is_none() || self.last != Some(now) {
            self.last = Some(now);
            self.close(period(), now);
            self.since.get_or_insert(now);
        }
        self.bytes += bytes as u64;
    }

    /// Ends the current period if it is over.
    fn close(&mut self, period: Duration, now: Instant) {
        let is_over = |since: &mut Instant| now.saturating_duration_since(*since) >= period;
        if self.since.take_if(is_over).is_some() {
            let rate = self.bytes as f64 / period.as_secs_f64().max(1e-6);
            self.peak = self.peak.max(rate);
            self.bytes = 0;
        }
    }

    /// Returns the highest rate of the periods that ended since the last call.
    pub(super) fn take_peak(&mut self, period: Duration, now: Instant) -> f64 {
        self.close(period, now);
        std::mem::take(&mut self.peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_and_pauses_have_the_rate_of_their_periods() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let period = ms * 50;
        let mut used = UsedRate::default();
        for i in 0..25 {
            used.on_sent(1000, || period, start + ms * i);
        }
        assert_eq!(used.take_peak(period, start + ms * 49), 0.0, "not over yet");
        assert_eq!(used.take_peak(period, start + ms * 5_000), 500_000.0);
        // A train, whose first packet begins the period.
        for _ in 0..2 {
            used.on_sent(500, || period, start + ms * 6_000);
        }
        used.on_sent(1000, || period, start + ms * 7_000);
        assert_eq!(used.take_peak(period, start + ms * 7_000), 20_000.0);
    }
}
