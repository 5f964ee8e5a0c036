//! Experiments of "Improving QUIC" (F. Michel, 2018), chapter 5: messages of a video call under
//! losses, with repair symbols and without, over paths that fill the space of its table 5.1.
//!
//! A sender sends 30 messages a second for 25 s, each of 8 packets of 1,000 bytes. A receiver reads
//! them at the same rate, so many messages later than they are sent ([`Reading::delay`]). A message
//! that is not whole by then, or, where messages are read in order, has one before it that is not,
//! makes the reader wait for the time of a message, as the thesis counts.
//!
//! The packets, symbols, acknowledgements and decoders are real, as in the rest of [`super`]. The
//! path is lossy in both directions, the unicast path of repairs loses nothing, and there is no
//! flow control that could block a sender. No receiver leaves the flow, however silent a burst
//! makes it.

use std::time::Duration;

use flexicast::fec::FecConfig;
use flexicast::flow::RateControl;

use super::{FecFailure, FecPlan, FecReport, Simulation, TICK, Traffic, tick_of_burst};
use crate::gilbert_elliott::GilbertElliott;
use crate::link::Loss;
use crate::wsp;

/// Messages in a second.
pub const RATE: u32 = 30;
/// Packets of a message, with an update of [`LEN`] bytes each.
pub const PACKETS: u64 = 8;
/// Payload of a packet in bytes.
pub const LEN: usize = 1_000;
/// Messages of a run: 25 s.
pub const MESSAGES: u64 = 25 * RATE as u64;
/// Highest rate of the flow in bit/s: a message is sent at once.
const LINE_RATE: u64 = 100_000_000;
/// Highest one-way delay of the space.
const DELAY: Duration = Duration::from_millis(100);

/// Loss model of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Independent losses of 0 to 3 %.
    Uniform,
    /// Bursts in which everything is lost.
    TwoStates,
    /// Bursts in which some packets arrive, and losses between them.
    GilbertElliott,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 3] = [Model::Uniform, Model::TwoStates, Model::GilbertElliott];

    /// Returns the number of parameters that vary, the delay among them.
    fn dimensions(self) -> usize {
        match self {
            Model::Uniform => 2,
            Model::TwoStates => 3,
            Model::GilbertElliott => 5,
        }
    }

    /// Returns the conditions at a point of the unit cube, by the ranges of table 5.1.
    fn conditions(self, point: &[f64]) -> Conditions {
        let at = |axis: usize, (least, most): (f64, f64)| {
            least + (most - least) * point.get(axis).copied().unwrap_or(0.5)
        };
        let states = |at: &dyn Fn(usize, (f64, f64)) -> f64| {
            GilbertElliott::two_states(at(1, (0.0, 0.01)), at(2, (0.025, 0.5)))
        };
        let loss = match self {
            Model::Uniform => Loss::Uniform(at(1, (0.0, 0.03))),
            Model::TwoStates => Loss::GilbertElliott(states(&at)),
            Model::GilbertElliott => Loss::GilbertElliott(GilbertElliott {
                k: at(3, (0.97, 1.0)),
                h: at(4, (0.0, 0.4)),
                ..states(&at)
            }),
        };
        Conditions {
            delay: DELAY.mul_f64(at(0, (0.0, 1.0))),
            loss,
        }
    }
}

/// Path between the sender and its receivers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// One-way delay.
    pub delay: Duration,
    /// Losses, in both directions.
    pub loss: Loss,
}

/// Returns conditions that fill the space of a model: a design of the WSP algorithm.
#[must_use]
pub fn space(model: Model, points: usize, seed: u64) -> Vec<Conditions> {
    let design = wsp::design(model.dimensions(), points, seed);
    let each = design.points.iter();
    each.map(|point| model.conditions(point)).collect()
}

/// Returns conditions that fill the space of a model, and for each a rate in bit/s within these
/// bounds: a dimension that the thesis does not have.
#[must_use]
pub fn space_with_rates(
    model: Model,
    (least, most): (f64, f64),
    points: usize,
    seed: u64,
) -> Vec<(Conditions, u64)> {
    let design = wsp::design(model.dimensions() + 1, points, seed);
    let each = design.points.iter();
    each.map(|point| {
        let rate = point.last().map_or(least, |at| least + (most - least) * at);
        (model.conditions(point), rate as u64)
    })
    .collect()
}

/// Returns the conditions of the univariate analysis of the delay (table 5.2).
#[must_use]
pub fn univariate(delay: Duration) -> Conditions {
    let loss = Loss::GilbertElliott(GilbertElliott {
        p: 0.005,
        r: 0.25,
        k: 0.98,
        h: 0.05,
    });
    Conditions { delay, loss }
}

/// Sender and its receivers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sender {
    /// Repair symbols, if it sends any.
    pub fec: Option<FecConfig>,
    /// Whether what is lost is sent again by unicast. Where it is, messages are read in order.
    pub is_reliable: bool,
    /// Receivers, each with losses of its own.
    pub receivers: usize,
}

/// Reader of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Messages of the buffer: a message is read when one is due that is so many later, less one.
    pub buffer: u32,
}

impl Reading {
    /// Returns the time between the arrival of a message and its reading.
    #[must_use]
    pub fn delay(self) -> Duration {
        Duration::from_secs(1) * self.buffer.saturating_sub(1) / RATE
    }
}

/// Messages of a run, at all receivers.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// Counters.
    pub report: FecReport,
    delay: Duration,
    is_reliable: bool,
    /// For each receiver, the tick at which it had each packet's update.
    arrived: Vec<Vec<Option<u64>>>,
    bursts: u64,
    every: Duration,
    updates: u64,
}

/// Figures of a run, of all receivers together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Share of the packets' data that was there to be read, late or not where it is reliable.
    pub received: f64,
    /// Time that a reader waited, in s.
    pub rebuffering: f64,
    /// Bytes that the source sent, with those of repairs by unicast where there are any.
    pub sent: u64,
    /// Mean time from the sending of a message until it can be read, in ms, of those that can.
    pub mean_ms: f64,
    /// The 99th percentile of that.
    pub p99_ms: f64,
}

/// Plays a run.
///
/// # Errors
/// Something was rebuilt wrongly, a receiver left the flow, or one that is repaired lacks data.
pub fn play(conditions: Conditions, sender: Sender, seed: u64) -> Result<Course, FecFailure> {
    let traffic = Traffic {
        bursts: MESSAGES,
        every: Duration::from_secs(1) / RATE,
        updates: (PACKETS, PACKETS),
        len: LEN,
    };
    play_traffic(conditions, sender, traffic, LINE_RATE, seed)
}

/// Plays the transfer of one file, in packets of [`LEN`] bytes, at a rate in bit/s.
///
/// # Errors
/// As [`play`].
pub fn play_file(
    conditions: Conditions,
    sender: Sender,
    (packets, rate): (u64, u64),
    seed: u64,
) -> Result<Course, FecFailure> {
    let traffic = Traffic {
        bursts: 1,
        every: Duration::from_secs(packets * LEN as u64 * 10) / rate as u32,
        updates: (packets, packets),
        len: LEN,
    };
    play_traffic(conditions, sender, traffic, rate, seed)
}

fn play_traffic(
    conditions: Conditions,
    sender: Sender,
    traffic: Traffic,
    rate: u64,
    seed: u64,
) -> Result<Course, FecFailure> {
    let plan = FecPlan {
        members: sender.receivers,
        plain: 0,
        fec: sender.fec,
        delays: (conditions.delay, conditions.delay),
        jitter: Duration::ZERO,
        loss: conditions.loss,
        shared_loss: Loss::NONE,
        single_loss: 0.0,
        traffic,
        warm_up: Duration::ZERO,
        // The thesis switches congestion control off.
        control: RateControl {
            max_loss: 1.0,
            ..RateControl::fixed()
        },
        rate,
        seed,
    };
    let mut simulation = Simulation::new(&plan)?;
    simulation.is_repaired = sender.is_reliable;
    simulation.flow.set_fall_back_off(true);
    let all = (traffic.bursts * traffic.updates.1) as usize;
    simulation.arrived = Some(vec![Vec::with_capacity(all); sender.receivers]);
    simulation.run()?;
    let patience = simulation.tick + 120_000;
    while sender.is_reliable && simulation.is_behind() && simulation.tick < patience {
        simulation.tick += 1;
        simulation.advance()?;
    }
    let mut arrived = simulation.arrived.take().unwrap_or_default();
    arrived.iter_mut().for_each(|each| each.resize(all, None));
    let report = simulation.finish();
    if report.fall_backs > 0 {
        return Err(super::failed("a receiver left the flow"));
    }
    let is_whole = arrived.iter().flatten().all(Option::is_some);
    if sender.is_reliable && !is_whole {
        return Err(super::failed("a receiver lacks data"));
    }
    Ok(Course {
        report,
        delay: conditions.delay,
        is_reliable: sender.is_reliable,
        arrived,
        bursts: traffic.bursts,
        every: traffic.every,
        updates: traffic.updates.1,
    })
}

impl Course {
    /// Returns the figures of readers that read by this.
    #[must_use]
    pub fn outcome(&self, reading: Reading) -> Outcome {
        let (mut received, mut missed) = (0_u64, 0_u64);
        let mut times = Vec::new();
        for arrived in &self.arrived {
            let mut before = 0;
            for (burst, message) in (0..).zip(arrived.chunks(self.updates.max(1) as usize)) {
                let sent = tick_of_burst(burst, self.every);
                let due = TICK * sent as u32 + self.delay + reading.delay();
                let is_in_time = |at: &u64| TICK * *at as u32 <= due;
                let whole: Option<Vec<u64>> = message.iter().copied().collect();
                let mut whole = whole.and_then(|all| all.into_iter().max());
                let counts = |at: &&u64| self.is_reliable || is_in_time(at);
                received += message.iter().flatten().filter(counts).count() as u64;
                if self.is_reliable {
                    // What is before it is read first.
                    before = whole.map_or(before, |at| before.max(at));
                    whole = whole.map(|_| before);
                }
                missed += u64::from(!whole.as_ref().is_some_and(is_in_time));
                times.extend(whole.map(|at| at - sent));
            }
        }
        times.sort_unstable();
        let receivers = self.arrived.len().max(1) as f64;
        let packets = (self.bursts * self.updates).max(1) as f64;
        let last = times.len().saturating_sub(1);
        let repairs = if self.is_reliable {
            self.report.repair_bytes
        } else {
            0
        };
        let p99 = times.get((last as f64 * 0.99).ceil() as usize);
        Outcome {
            received: received as f64 / receivers / packets,
            rebuffering: missed as f64 / receivers / f64::from(RATE),
            sent: self.report.bytes + repairs,
            mean_ms: times.iter().sum::<u64>() as f64 / times.len().max(1) as f64,
            p99_ms: p99.copied().unwrap_or(0) as f64,
        }
    }
}
