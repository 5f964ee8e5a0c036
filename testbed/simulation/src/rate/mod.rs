//! A flow's rate controller over modelled paths: one sender that always has something to send, any
//! number of receivers with losses, round trips and bottlenecks, in virtual time.
//!
//! [`RateController`] is real. A packet costs each receiver nothing unless it is lost, and an
//! acknowledgement costs what it costs the source: a thousand receivers over minutes take seconds.

mod figures;
mod path;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use flexicast::rate::{RateConfig, RateController, RateEvent};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use figures::{
    Comparison, MIXED_PATHS, compare, join_dip, recovery_after_eviction, share_beside_unicast,
    shared_loss_halving, worst,
};
pub use path::{Bottleneck, Path};
use path::{Queue, Receiver};

/// When a receiver acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckTiming {
    /// Members of a flow: when the first packet that waits has waited for so long, with a jitter of
    /// a quarter.
    Delayed(Duration),
    /// Unicast QUIC: every second packet, and any after so long (RFC 9000 section 13.2).
    Pairs(Duration),
}

/// A packet that was sent.
#[derive(Debug, Clone, Copy)]
struct Packet {
    sent: Duration,
    /// When it left the shared bottleneck.
    left: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    Report(usize),
}

/// A flow and its receivers.
#[derive(Debug)]
pub struct RateSimulation {
    /// The controller, for its figures.
    pub controller: RateController,
    /// Bottleneck of all receivers.
    pub shared: Option<Bottleneck>,
    /// Whether members whose eviction is requested leave.
    pub evicts: bool,
    /// When the shared bottleneck first dropped a packet since this was last reset.
    pub first_drop: Option<Duration>,
    /// Requests of the controller, with their times.
    pub events: Vec<(Duration, RateEvent)>,
    timing: AckTiming,
    payload: usize,
    origin: Instant,
    now: Duration,
    rng: SmallRng,
    agenda: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    scheduled: u64,
    packets: VecDeque<Packet>,
    first_pn: u64,
    /// Queue of the shared bottleneck.
    queue: Rc<RefCell<Queue>>,
    /// Packets that the shared bottleneck dropped, ascending.
    dropped: VecDeque<u64>,
    receivers: Vec<Receiver>,
    sent_bytes: u64,
}

impl RateSimulation {
    /// A flow without receivers.
    pub fn new(config: RateConfig, timing: AckTiming, seed: u64) -> Self {
        let mut simulation = RateSimulation {
            payload: config.udp_payload,
            controller: RateController::new(config),
            shared: None,
            evicts: false,
            first_drop: None,
            events: Vec::new(),
            timing,
            origin: Instant::now(),
            now: Duration::ZERO,
            rng: SmallRng::seed_from_u64(seed),
            agenda: BinaryHeap::new(),
            scheduled: 0,
            packets: VecDeque::new(),
            first_pn: 0,
            queue: Rc::default(),
            dropped: VecDeque::new(),
            receivers: Vec::new(),
            sent_bytes: 0,
        };
        simulation.schedule(Duration::ZERO, Event::Send);
        simulation
    }

    fn instant(&self, at: Duration) -> Instant {
        self.origin + at
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.scheduled += 1;
        self.agenda.push(Reverse((at, self.scheduled, event)));
    }

    fn next_pn(&self) -> u64 {
        self.first_pn + self.packets.len() as u64
    }

    /// Adds a member with this path; returns its number.
    pub fn join(&mut self, path: Path) -> u64 {
        let (id, cut) = (self.receivers.len() as u64, self.next_pn());
        self.receivers.push(Receiver::new(path, cut, &mut self.rng));
        let now = self.instant(self.now);
        self.controller.admit(id, path.rtt, cut, now);
        id
    }

    /// Begins at the present time of another simulation, whose shared bottleneck both use from then
    /// on.
    fn begin_beside(&mut self, other: &RateSimulation) {
        self.now = other.now;
        self.agenda.clear();
        self.schedule(self.now, Event::Send);
        self.shared = other.shared;
        self.queue = Rc::clone(&other.queue);
    }

    /// Removes a member.
    pub fn leave(&mut self, member: u64) {
        if let Some(receiver) = self.receivers.get_mut(member as usize) {
            receiver.is_member = false;
            self.controller.remove(member);
        }
    }

    /// Changes a member's path from now on.
    pub fn change(&mut self, member: u64, path: Path) {
        let next_pn = self.next_pn();
        if let Some(receiver) = self.receivers.get_mut(member as usize) {
            receiver.change(path, next_pn, &mut self.rng);
        }
    }

    /// Time since the beginning.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Bytes sent since the beginning.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Returns the time of the next event.
    fn next_event(&self) -> Option<Duration> {
        let next = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let timer = self.controller.next_timeout();
        let timer = timer.map(|at| at.saturating_duration_since(self.origin));
        [next, timer].into_iter().flatten().min()
    }

    /// Runs for `time` and returns the average rate in bit/s.
    pub fn run(&mut self, time: Duration) -> f64 {
        let before = self.sent_bytes;
        self.run_until(self.now + time);
        (self.sent_bytes - before) as f64 * 8.0 / time.as_secs_f64()
    }

    /// Runs until this time since the beginning.
    fn run_until(&mut self, until: Duration) {
        while let Some(Reverse((at, _, event))) = self.agenda.peek().copied() {
            let timer = self.controller.next_timeout();
            let timer = timer.map(|at| at.saturating_duration_since(self.origin));
            if let Some(due) = timer.filter(|due| *due <= at.min(until)) {
                self.now = self.now.max(due);
                let now = self.instant(self.now);
                self.controller.handle_timeout(now);
                self.take_events();
                continue;
            }
            if at > until {
                break;
            }
            self.agenda.pop();
            self.now = at;
            match event {
                Event::Send => self.send(),
                Event::Report(receiver) => self.report(receiver),
            }
        }
        self.now = self.now.max(until);
    }

    fn take_events(&mut self) {
        while let Some(event) = self.controller.poll_event() {
            self.events.push((self.now, event));
            if let RateEvent::TooSlow(member) | RateEvent::LossTooHigh(member) = event
                && self.evicts
            {
                self.leave(member);
            }
        }
    }

    fn send(&mut self) {
        let rate = self.controller.rate().unwrap_or(1_000_000_000);
        if rate == 0 {
            // Stopped by the circuit breaker.
            return self.schedule(self.now + Duration::from_millis(50), Event::Send);
        }
        let pn = self.next_pn();
        let now = self.instant(self.now);
        self.controller.on_sent(pn, self.payload, now);
        self.sent_bytes += self.payload as u64;
        let left = match self.shared {
            None => Some(self.now),
            Some(bottleneck) => self
                .queue
                .borrow_mut()
                .pass(bottleneck, self.payload, self.now),
        };
        if left.is_none() {
            self.dropped.push_back(pn);
            self.first_drop.get_or_insert(self.now);
        }
        self.packets.push_back(Packet {
            sent: self.now,
            left: left.unwrap_or(self.now.max(self.queue.borrow().busy_until())),
        });
        for index in 0..self.receivers.len() {
            self.pass(index, pn, left);
        }
        self.prune();
        let gap = Duration::from_secs_f64(self.payload as f64 * 8.0 / rate as f64);
        self.schedule(self.now + gap, Event::Send);
    }

    /// A packet is on its way to a receiver, whose next acknowledgement it may cause.
    fn pass(&mut self, index: usize, pn: u64, left: Option<Duration>) {
        let receiver = &mut self.receivers[index];
        if !receiver.is_member {
            return;
        }
        let arrival = receiver.pass(left, self.payload, self.now);
        let half = receiver.path.rtt / 2;
        if let AckTiming::Pairs(delay) = self.timing {
            let delay = if pn % 2 == 1 { Duration::ZERO } else { delay };
            self.schedule(arrival + delay + half, Event::Report(index));
        } else if receiver.is_waiting {
            receiver.is_waiting = false;
            let delay = self.ack_delay();
            self.schedule(arrival + delay + half, Event::Report(index));
        }
    }

    fn ack_delay(&mut self) -> Duration {
        match self.timing {
            AckTiming::Delayed(delay) => delay.mul_f64(self.rng.random_range(0.75..1.25)),
            AckTiming::Pairs(delay) => delay,
        }
    }

    /// An acknowledgement arrives at the source: of all that had arrived half a round trip before.
    fn report(&mut self, index: usize) {
        let receiver = &mut self.receivers[index];
        if !receiver.is_member {
            return;
        }
        let arrived = self.now.saturating_sub(receiver.path.rtt / 2);
        let end = match &mut receiver.own {
            Some(own) => own.arrived(arrived),
            None => {
                let at = arrived.saturating_sub(receiver.path.rtt / 2);
                let left = self.packets.partition_point(|packet| packet.left <= at);
                (self.first_pn + left as u64).max(receiver.next)
            }
        };
        let sent_at = |pn: u64| {
            let packet = self.packets.get(pn.saturating_sub(self.first_pn) as usize);
            packet.map_or(Duration::ZERO, |packet| packet.sent)
        };
        if end > receiver.next {
            let last = (end - 1 - self.first_pn) as usize;
            let waited = match &receiver.own {
                Some(own) => own.waited(),
                None => self
                    .packets
                    .get(last)
                    .map_or(Duration::ZERO, |p| p.left - p.sent),
            };
            receiver.sample_rtt(waited);
        }
        let (acked, lost) = receiver.take(end, &self.dropped, sent_at, self.now, &mut self.rng);
        let (rtt, next) = (receiver.smoothed_rtt, receiver.next);
        if !acked.is_empty() || !lost.is_empty() {
            let now = self.instant(self.now);
            self.controller
                .on_ack(index as u64, &acked, &lost, rtt, now);
            self.take_events();
        }
        if let AckTiming::Delayed(_) = self.timing {
            self.plan_report(index, next);
        }
    }

    /// Plans the acknowledgement that the first packet after the last one causes.
    fn plan_report(&mut self, index: usize, next: u64) {
        let receiver = &mut self.receivers[index];
        let arrival = match &receiver.own {
            Some(own) => own.next_arrival(),
            None => {
                let packet = self
                    .packets
                    .get(next.saturating_sub(self.first_pn) as usize);
                packet.map(|packet| packet.left + receiver.path.rtt / 2)
            }
        };
        let half = receiver.path.rtt / 2;
        match arrival {
            None => receiver.is_waiting = true,
            Some(at) => {
                let at = at + self.ack_delay() + half;
                self.schedule(at.max(self.now), Event::Report(index));
            }
        }
    }

    fn prune(&mut self) {
        if !self.next_pn().is_multiple_of(1024) {
            return;
        }
        let members = self.receivers.iter().filter(|r| r.is_member);
        let oldest = members
            .map(Receiver::oldest)
            .min()
            .unwrap_or(self.next_pn());
        while self.first_pn < oldest && self.packets.pop_front().is_some() {
            self.first_pn += 1;
        }
        while self.dropped.front().is_some_and(|pn| *pn < oldest) {
            self.dropped.pop_front();
        }
    }
}
