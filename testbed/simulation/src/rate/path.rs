//! The paths of [`super::RateSimulation`]: losses, queues, and what a receiver reports.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

/// A link that is slower than the others, with a drop-tail queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bottleneck {
    /// Bit/s.
    pub rate: u64,
    /// Time that a packet waits in the full queue.
    pub depth: Duration,
}

/// Path from the source to a receiver and back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Round trip without queues and acknowledgement delay.
    pub rtt: Duration,
    /// Probability that a packet is lost, each by itself.
    pub loss: f64,
    /// Bottleneck of this receiver alone.
    pub bottleneck: Option<Bottleneck>,
}

impl Path {
    /// A path that only loses packets; its round trip is in ms.
    pub const fn lossy(rtt_ms: u64, loss: f64) -> Self {
        Path {
            rtt: Duration::from_millis(rtt_ms),
            loss,
            bottleneck: None,
        }
    }
}

/// The queue of a bottleneck.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Queue {
    busy_until: Duration,
}

impl Queue {
    /// Returns when a packet leaves, or `None` if the queue is full.
    pub(super) fn pass(&mut self, at: Bottleneck, bytes: usize, now: Duration) -> Option<Duration> {
        let start = self.busy_until.max(now);
        if start - now > at.depth {
            return None;
        }
        let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / at.rate as f64);
        self.busy_until = start + takes;
        Some(self.busy_until)
    }

    pub(super) fn busy_until(&self) -> Duration {
        self.busy_until
    }
}

/// Packets behind a receiver's own bottleneck.
#[derive(Debug, Default)]
pub(super) struct OwnQueue {
    queue: Queue,
    /// Number of the first of `arrivals`.
    first: u64,
    /// When each packet was sent and arrived, and whether it was dropped.
    arrivals: VecDeque<(Duration, Duration, bool)>,
    waited: Duration,
    /// Dropped packets that are not reported.
    dropped: Vec<u64>,
}

impl OwnQueue {
    /// Returns the first packet that had not arrived by then.
    pub(super) fn arrived(&mut self, by: Duration) -> u64 {
        while let Some((sent, arrival, dropped)) = self.arrivals.front().copied()
            && arrival <= by
        {
            if dropped {
                self.dropped.push(self.first);
            } else {
                self.waited = arrival - sent;
            }
            self.arrivals.pop_front();
            self.first += 1;
        }
        self.first
    }

    /// Time that the newest packet was on its way, less the empty path.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    pub(super) fn next_arrival(&self) -> Option<Duration> {
        self.arrivals.front().map(|(_, arrival, _)| *arrival)
    }
}

/// A receiver, with what the source knows of it.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) path: Path,
    pub(super) is_member: bool,
    /// Whether the next packet plans an acknowledgement.
    pub(super) is_waiting: bool,
    /// The first packet that no acknowledgement was about.
    pub(super) next: u64,
    pub(super) smoothed_rtt: Duration,
    pub(super) own: Option<OwnQueue>,
    /// The next packet that the path loses.
    next_loss: u64,
    /// Lost packets that the source has not found out about.
    missing: VecDeque<u64>,
}

impl Receiver {
    pub(super) fn new(path: Path, cut: u64, rng: &mut SmallRng) -> Self {
        let mut receiver = Receiver {
            path,
            is_member: true,
            is_waiting: true,
            next: cut,
            smoothed_rtt: path.rtt,
            own: None,
            next_loss: cut,
            missing: VecDeque::new(),
        };
        receiver.change(path, cut, rng);
        receiver
    }

    /// Another path from packet `pn` on.
    pub(super) fn change(&mut self, path: Path, pn: u64, rng: &mut SmallRng) {
        self.path = path;
        self.next_loss = pn.saturating_add(self.gap(rng));
        if path.bottleneck.is_some() && self.own.is_none() {
            self.own = Some(OwnQueue {
                first: pn,
                ..OwnQueue::default()
            });
            self.next = self.next.max(pn);
        }
    }

    /// Packets until the next loss: geometric.
    fn gap(&self, rng: &mut SmallRng) -> u64 {
        if self.path.loss <= 0.0 {
            return u64::MAX / 2;
        }
        let uniform: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        (uniform.ln() / (1.0 - self.path.loss).ln()) as u64
    }

    /// Sends a packet that left the shared bottleneck down this path; returns when it arrives.
    pub(super) fn pass(&mut self, left: Option<Duration>, bytes: usize, now: Duration) -> Duration {
        let half = self.path.rtt / 2;
        let (Some(own), Some(bottleneck)) = (&mut self.own, self.path.bottleneck) else {
            return left.unwrap_or(now) + half;
        };
        let at = left.unwrap_or(now);
        let passed = left.and_then(|at| own.queue.pass(bottleneck, bytes, at));
        let out = passed.unwrap_or(own.queue.busy_until.max(at));
        own.arrivals
            .push_back((now + half, out + half, passed.is_none()));
        out + half
    }

    pub(super) fn sample_rtt(&mut self, waited: Duration) {
        let sample = self.path.rtt + waited;
        self.smoothed_rtt = (self.smoothed_rtt * 7 + sample) / 8;
    }

    /// The oldest packet that is still looked at.
    pub(super) fn oldest(&self) -> u64 {
        self.missing
            .front()
            .copied()
            .unwrap_or(self.next)
            .min(self.next)
    }

    /// Takes everything up to `end` into an acknowledgement: what arrived, and what the source then
    /// finds to be lost (RFC 9002 section 6.1).
    pub(super) fn take(
        &mut self,
        end: u64,
        dropped: &VecDeque<u64>,
        sent_at: impl Fn(u64) -> Duration,
        now: Duration,
        rng: &mut SmallRng,
    ) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let (mut acked, mut lost): (Vec<Range<u64>>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
        let mut gone: Vec<u64> = Vec::new();
        if !dropped.is_empty() {
            let from = dropped.partition_point(|pn| *pn < self.next);
            gone.extend(dropped.range(from..).take_while(|pn| **pn < end));
        }
        if let Some(own) = &mut self.own {
            gone.append(&mut own.dropped);
        }
        while self.next_loss < end {
            gone.push(self.next_loss);
            self.next_loss = self.next_loss.saturating_add(1 + self.gap(rng));
        }
        gone.retain(|pn| *pn >= self.next);
        gone.sort_unstable();
        gone.dedup();
        for pn in gone {
            if pn > self.next {
                acked.push(self.next..pn);
            }
            self.next = pn + 1;
            self.missing.push_back(pn);
        }
        if end > self.next {
            acked.push(self.next..end);
            self.next = end;
        }
        let largest = acked.last().map(|range| range.end - 1);
        while let Some(pn) = self.missing.front().copied() {
            let Some(largest) = largest else { break };
            let late = sent_at(pn) + self.smoothed_rtt * 9 / 8 <= now;
            if pn > largest || (largest < pn + 3 && !late) {
                break;
            }
            self.missing.pop_front();
            match lost.last_mut().filter(|last| last.end == pn) {
                Some(last) => last.end = pn + 1,
                None => lost.push(pn..pn + 1),
            }
        }
        (acked, lost)
    }
}
