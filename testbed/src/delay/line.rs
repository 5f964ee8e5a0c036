//! One direction of a slow cable: frames wait their time, in order, in a bounded queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Effect on the frames of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Frames that came out at the other end.
    pub forwarded: u64,
    /// Frames that were dropped because too much was under way, or because the other end refused
    /// them.
    pub dropped: u64,
    /// By how much the latest of them came out too late, in microseconds: what the machine, not the
    /// cable, adds to a measurement.
    pub latest_us: u64,
}

#[derive(Debug)]
struct DelayedPacket {
    due: Instant,
    frame: Vec<u8>,
}

/// The frames that are under way in one direction.
#[derive(Debug)]
pub struct Line {
    delay: Duration,
    limit: usize,
    bytes: usize,
    held: VecDeque<DelayedPacket>,
    spare: Vec<Vec<u8>>,
    counts: Counts,
}

impl Line {
    /// Number of buffers that are kept for later frames.
    const SPARE: usize = 64;

    /// A line on which frames take `delay`, and on which at most `limit` bytes are under way.
    pub fn new(delay: Duration, limit: usize) -> Line {
        Line {
            delay,
            limit,
            bytes: 0,
            held: VecDeque::new(),
            spare: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Takes a frame that came in now, or drops it.
    pub fn take(&mut self, frame: &[u8], now: Instant) {
        if self.bytes + frame.len() > self.limit {
            self.counts.dropped += 1;
            return;
        }
        self.bytes += frame.len();
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        self.held.push_back(DelayedPacket {
            due: now + self.delay,
            frame: buffer,
        });
    }

    /// When the next frame comes out.
    pub fn next_due(&self) -> Option<Instant> {
        self.held.front().map(|held| held.due)
    }

    /// Passes every frame that is due to `out`, which returns whether it was taken.
    pub fn release(&mut self, now: Instant, mut out: impl FnMut(&[u8]) -> bool) {
        while let Some(held) = self.held.pop_front_if(|held| held.due <= now) {
            self.bytes -= held.frame.len();
            if out(&held.frame) {
                self.counts.forwarded += 1;
                let late = u64::try_from((now - held.due).as_micros()).unwrap_or(u64::MAX);
                self.counts.latest_us = self.counts.latest_us.max(late);
            } else {
                self.counts.dropped += 1;
            }
            if self.spare.len() < Line::SPARE {
                self.spare.push(held.frame);
            }
        }
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(10);

    fn released(line: &mut Line, now: Instant) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        line.release(now, |frame| {
            out.push(frame.to_vec());
            true
        });
        out
    }

    #[test]
    fn frames_come_out_in_order_when_their_time_has_come() {
        let start = Instant::now();
        let mut line = Line::new(DELAY, 1_000);
        line.take(&[1], start);
        line.take(&[2], start);
        line.take(&[3, 3], start + Duration::from_millis(4));
        assert_eq!(line.next_due(), Some(start + DELAY));
        let early = start + DELAY - Duration::from_nanos(1);
        assert!(released(&mut line, early).is_empty());
        assert_eq!(released(&mut line, start + DELAY), [vec![1], vec![2]]);
        let late = start + Duration::from_millis(15);
        assert_eq!(released(&mut line, late), [vec![3, 3]]);
        assert_eq!(line.next_due(), None);
        let counts = Counts {
            forwarded: 3,
            dropped: 0,
            latest_us: 1_000,
        };
        assert_eq!(line.counts(), counts);
    }

    #[test]
    fn packets_beyond_the_queue_are_dropped_and_counted() {
        let start = Instant::now();
        let mut line = Line::new(DELAY, 5);
        for frame in [&[1, 1, 1][..], &[2, 2, 2], &[3, 3]] {
            line.take(frame, start);
        }
        let mut refuse_first = false;
        line.release(start + DELAY, |_| {
            std::mem::replace(&mut refuse_first, true)
        });
        assert_eq!((line.counts().forwarded, line.counts().dropped), (1, 2));
        // Room again.
        line.take(&[4; 5], start + DELAY);
        assert_eq!(released(&mut line, start + DELAY * 2), [[4; 5]]);
    }
}
