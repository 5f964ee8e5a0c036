//! The source's cost of updates for n receivers without multicast: replicated flow packets against
//! unicast quiche, both with everything that is sent.

pub mod floor;
mod receivers;
mod rungs;

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::figures::{Figures, median};
use crate::pair::{Maker, Pair};
use crate::processor::OneProcessor;
use receivers::Receivers;

/// All figures of this file.
pub const NAMES: [&str; 9] = [
    "replicated_vs_unicast_n50",
    "replicated_vs_unicast_n200",
    "replicated_vs_unicast_n1000",
    "replicated_vs_unicast_single",
    "replicated_marginal_vs_gso_floor",
    "replicated_ns",
    "replicated_unicast_ns",
    "replicated_floor_ns",
    "replicated_engine_ns",
];

/// An update of a full train of packets.
pub const LARGE: usize = 60 << 10;
/// A typical feed entry.
const SMALL: usize = 2_000;

/// Receivers of the figures that are not of a certain number of them.
const USUAL: usize = 200;

/// Receivers that are sent to before their packets are taken: packets that wait by the megabyte are
/// no longer in the caches, and on other machines they do not wait.
const BATCH: usize = 50;

/// Updates of one size to a number of receivers.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Number of receivers.
    pub receivers: usize,
    /// Bytes of each update.
    pub bytes: usize,
    /// Number of updates.
    pub updates: usize,
    /// Number of runs.
    pub runs: usize,
}

/// The loads of the first four figures.
const LOADS: [Load; 4] = [
    Load {
        receivers: 50,
        bytes: LARGE,
        updates: 200,
        runs: 5,
    },
    Load {
        receivers: USUAL,
        bytes: LARGE,
        updates: 50,
        runs: 5,
    },
    Load {
        receivers: 1000,
        bytes: LARGE,
        updates: 12,
        runs: 3,
    },
    Load {
        receivers: USUAL,
        bytes: SMALL,
        updates: 500,
        runs: 5,
    },
];

/// CPU time that one side took for a load.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Of the thread that makes the packets.
    engine: Duration,
    /// Making the packets alone, where that is known.
    generation: Duration,
    /// Of threads that only send.
    threads: Duration,
    /// Packets, counted for each receiver.
    packets: u64,
}

impl Cost {
    fn total(self) -> Duration {
        self.engine + self.threads
    }

    /// Returns what a packet to one receiver costs.
    pub fn ns_per_packet(self) -> f64 {
        self.total().as_nanos() as f64 / self.packets as f64
    }

    /// Returns what each receiver adds to a packet.
    fn marginal_ns(self) -> f64 {
        self.total().saturating_sub(self.generation).as_nanos() as f64 / self.packets as f64
    }
}

/// The costs of one run.
pub struct Run {
    /// By a flow, replicated.
    pub replicated: Cost,
    /// By quiche.
    pub unicast: Cost,
    /// By bare system calls.
    pub floor: Cost,
}

/// Measures what is asked for.
///
/// # Errors
/// When a side did not deliver what it was given.
pub fn measure(figures: &mut Figures) -> Result<()> {
    for (load, name) in LOADS.into_iter().zip(NAMES) {
        let usual = load.receivers == USUAL && load.bytes == LARGE;
        let details: &[&str] = if usual { &NAMES[4..] } else { &[] };
        if !figures.wants(&[&[name], details].concat()) {
            continue;
        }
        let runs: Result<Vec<Run>> = (1..=load.runs)
            .map(|run| {
                let seen = side_by_side(load).with_context(|| format!("{load:?}"))?;
                eprintln!(
                    "{} receivers, {} bytes, run {run} of {}, ns per packet and receiver: \
                     replicated {:.0}, unicast {:.0}, floor {:.0}",
                    load.receivers,
                    load.bytes,
                    load.runs,
                    seen.replicated.ns_per_packet(),
                    seen.unicast.ns_per_packet(),
                    seen.floor.ns_per_packet(),
                );
                Ok(seen)
            })
            .collect();
        let runs = runs?;
        let of = |value: fn(&Run) -> f64| median(runs.iter().map(value).collect());
        let ratio =
            of(|run| run.unicast.total().as_secs_f64() / run.replicated.total().as_secs_f64());
        figures.take(name, ratio, "ratio");
        if usual {
            let values = [
                (
                    of(|run| run.replicated.marginal_ns() / run.floor.ns_per_packet()),
                    "ratio",
                ),
                (of(|run| run.replicated.ns_per_packet()), "ns"),
                (of(|run| run.unicast.ns_per_packet()), "ns"),
                (of(|run| run.floor.ns_per_packet()), "ns"),
                (
                    of(|run| {
                        let packets = run.replicated.packets / USUAL as u64;
                        run.replicated.engine.as_nanos() as f64 / packets as f64
                    }),
                    "ns",
                ),
            ];
            for (name, (value, unit)) in details.iter().zip(values) {
                figures.take(name, value, unit);
            }
        }
    }
    Ok(())
}

/// Replication, then unicast, then the bare system calls, with the same sockets and AEAD.
pub fn side_by_side(load: Load) -> Result<Run> {
    // Packets that are freed on another processor than made them cost more, on one side only.
    let _one = OneProcessor::begin().context("keeping to one processor")?;
    // Sockets of this crate belong to a runtime.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _inside = runtime.enter();
    let mut receivers = Receivers::bind(load.receivers)?;
    let mut maker = Maker::new()?;
    let pairs: Result<Vec<(Pair, _)>> = (0..load.receivers).map(|_| maker.connect()).collect();
    let pairs = pairs?;
    let algorithm = pairs.first().map(|(_, a)| *a).unwrap_or_default();
    let pairs = pairs.into_iter().map(|(pair, _)| pair).collect();
    Ok(Run {
        replicated: rungs::replicate(load, algorithm, &mut receivers)?,
        unicast: rungs::unicast(load, pairs, &runtime, &mut receivers)?,
        floor: floor::send(load, &mut receivers)?,
    })
}

/// Updates that no compression could shorten, freshly made as by an application.
struct Updates(SmallRng, usize);

impl Updates {
    fn of(load: Load) -> Self {
        Updates(SmallRng::seed_from_u64(7), load.bytes)
    }

    fn next(&mut self) -> Bytes {
        let mut bytes = vec![0; self.1];
        self.0.fill_bytes(&mut bytes);
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_deliver_to_every_receiver() {
        for bytes in [LARGE, SMALL] {
            let load = Load {
                receivers: 3,
                bytes,
                updates: 4,
                runs: 1,
            };
            let run = side_by_side(load).unwrap();
            let least = (bytes / 1200 * 3 * 4) as u64;
            for cost in [run.replicated, run.unicast, run.floor] {
                assert!(cost.packets >= least, "{cost:?}");
                assert!(cost.total() > Duration::ZERO);
            }
            assert!(
                run.replicated.threads > Duration::ZERO,
                "by a thread of its own"
            );
        }
    }
}
