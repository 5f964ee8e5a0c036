//! A token bucket: the pacing of the flow and of every unicast session.

use std::time::{Duration, Instant};

/// Lets bytes pass at a fixed rate, with a bounded burst after a pause.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    bytes_per_s: f64,
    burst: f64,
    tokens: f64,
    at: Option<Instant>,
}

impl TokenBucket {
    /// A bucket for `bits_per_s`, full at first, that never saves up more than `burst` bytes.
    pub fn new(bits_per_s: u64, burst: usize) -> Self {
        let burst = burst as f64;
        TokenBucket {
            bytes_per_s: (bits_per_s.max(8) as f64) / 8.0,
            burst,
            tokens: burst,
            at: None,
        }
    }

    /// Goes on with another rate.
    pub fn set_rate(&mut self, bits_per_s: u64, now: Instant) {
        self.refill(now);
        self.bytes_per_s = (bits_per_s.max(8) as f64) / 8.0;
    }

    /// Allows a longer burst from now on, never a shorter one.
    pub fn raise_burst(&mut self, burst: usize) {
        self.burst = self.burst.max(burst as f64);
    }

    fn refill(&mut self, now: Instant) {
        // A train of packets is made at one instant.
        if self.at == Some(now) {
            return;
        }
        if let Some(at) = self.at {
            let gained = now.saturating_duration_since(at).as_secs_f64() * self.bytes_per_s;
            self.tokens = (self.tokens + gained).min(self.burst);
        }
        self.at = Some(now);
    }

    /// When the next byte may go: `now` or earlier means at once.
    pub fn ready_at(&mut self, now: Instant) -> Instant {
        self.refill(now);
        if self.tokens > 0.0 {
            return now;
        }
        // A nanosecond of grace keeps a rounding error from waking the caller just too early, again
        // and again.
        now + Duration::from_secs_f64(-self.tokens / self.bytes_per_s) + Duration::from_micros(1)
    }

    /// When a packet of so many bytes may go that is no more urgent than others: it leaves a debt
    /// that is paid within `patience`, or the bucket is full.
    pub fn affords_at(&mut self, bytes: usize, patience: Duration, now: Instant) -> Instant {
        self.refill(now);
        let needed = bytes as f64 - patience.as_secs_f64() * self.bytes_per_s;
        let missing = needed.min(self.burst) - self.tokens;
        if missing <= 0.0 {
            return now;
        }
        now + Duration::from_secs_f64(missing / self.bytes_per_s) + Duration::from_micros(1)
    }

    /// Takes the tokens of a packet that was sent; the bucket may go into debt by that one packet.
    pub fn take(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(10_000_000, 12_000);
        let (mut now, mut sent) = (start, 0usize);
        while now < start + Duration::from_secs(10) {
            let ready = bucket.ready_at(now);
            if ready > now {
                now = ready;
                continue;
            }
            bucket.take(1200);
            sent += 1200;
        }
        let rate = sent as f64 * 8.0 / 10.0;
        assert!((9_900_000.0..10_100_000.0).contains(&rate), "{rate} bit/s");
    }

    #[test]
    fn another_rate_holds_from_then_on() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(8_000, 1_000);
        bucket.take(3_000);
        // 2,000 bytes of debt: half of it is paid at the old rate.
        let later = start + Duration::from_secs(1);
        assert!(bucket.ready_at(start) > later);
        bucket.set_rate(80_000, later);
        let ready = bucket.ready_at(later) - later;
        assert!(ready > Duration::from_millis(99) && ready < Duration::from_millis(101));
    }

    #[test]
    fn a_packet_that_is_not_urgent_waits_until_it_holds_up_no_other() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(8_000, 3_000);
        let patience = Duration::from_millis(500);
        assert_eq!(bucket.affords_at(3_500, patience, start), start);
        bucket.take(3_000);
        let waits = |at: Instant| (at - start).as_secs_f64();
        assert!((waits(bucket.affords_at(2_000, patience, start)) - 1.5).abs() < 0.001);
        let more_than_it_holds = bucket.affords_at(9_000, patience, start);
        assert!((waits(more_than_it_holds) - 3.0).abs() < 0.001);
        let at = more_than_it_holds;
        assert_eq!(bucket.affords_at(9_000, patience, at), at);
    }

    #[test]
    fn a_pause_saves_up_one_burst_only() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(8_000, 3_000);
        let later = start + Duration::from_secs(3600);
        assert_eq!(bucket.ready_at(later), later);
        (0..3).for_each(|_| bucket.take(1000));
        assert!(bucket.ready_at(later) > later);
    }
}
