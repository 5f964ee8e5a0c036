//! Figures of erasure coding, each in virtual time and from fixed seeds.

use std::time::Duration;

use flexicast::fec::{FecConfig, FecPolicy};
use flexicast::flow::RateControl;

use super::{FecFailure, FecPlan, FecReport, Traffic, play};
use crate::link::Loss;

const MS: Duration = Duration::from_millis(1);

/// A flow of equal members at a fixed rate, and updates of a packet each, so many in a second.
fn plan(members: usize, packets_per_s: u64, loss: f64, seed: u64) -> FecPlan {
    let (every, updates) = match 1_000 / packets_per_s {
        0 => (MS, packets_per_s / 1_000),
        ms => (MS * ms as u32, 1),
    };
    FecPlan {
        members,
        plain: 0,
        fec: Some(FecConfig::default()),
        delays: (MS * 5, MS * 25),
        jitter: Duration::ZERO,
        loss: Loss::Uniform(loss),
        shared_loss: Loss::NONE,
        single_loss: 0.0,
        traffic: Traffic {
            bursts: 20_000,
            every,
            updates: (updates, updates),
            len: 1_000,
        },
        warm_up: MS * 1_000,
        control: RateControl::fixed(),
        rate: 20_000_000,
        seed,
    }
}

fn off(plan: FecPlan) -> FecPlan {
    FecPlan { fec: None, ..plan }
}

/// Repairs by unicast with repair symbols and without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnicastRepairs {
    /// With them.
    pub with: FecReport,
    /// Without.
    pub without: FecReport,
}

impl UnicastRepairs {
    /// Returns the repairs with symbols over those without.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.with.repairs as f64 / self.without.repairs.max(1) as f64
    }

    /// Returns the bytes of the flow that symbols add, as a share of those without.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.with.bytes as f64 / self.without.bytes.max(1) as f64 - 1.0
    }

    /// Returns all bytes that the source sends with symbols over those without.
    #[must_use]
    pub fn all_bytes(&self) -> f64 {
        let all = |report: &FecReport| (report.bytes + report.repair_bytes) as f64;
        all(&self.with) / all(&self.without).max(1.0)
    }
}

/// Compares a flow with repair symbols, by the adaptive policy, with one without.
///
/// # Errors
/// The run of either fails.
pub fn unicast_repairs(
    members: usize,
    packets_per_s: u64,
    loss: f64,
    bursts: u64,
    seed: u64,
) -> Result<UnicastRepairs, FecFailure> {
    let mut plan = plan(members, packets_per_s, loss, seed);
    plan.traffic.bursts = bursts;
    Ok(UnicastRepairs {
        with: play(&plan)?,
        without: play(&off(plan))?,
    })
}

/// Compares them where each of a thousand members loses 1 % of the packets.
///
/// # Errors
/// The run of either fails.
pub fn recovered_share(packets_per_s: u64, seed: u64) -> Result<UnicastRepairs, FecFailure> {
    unicast_repairs(1_000, packets_per_s, 0.01, 20_000, seed)
}

/// Delays of updates whose packets were lost, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailDelays {
    /// 99th percentile with a repair symbol behind each burst.
    pub with: u64,
    /// The same without.
    pub without: u64,
}

/// Compares the delays of single lost packets of bursts of two to six, with a round trip of 50 ms.
///
/// # Errors
/// The run of either fails.
pub fn tail_delays(seed: u64) -> Result<TailDelays, FecFailure> {
    let plan = FecPlan {
        fec: Some(FecConfig {
            policy: FecPolicy::Tail,
            ..FecConfig::default()
        }),
        delays: (MS * 25, MS * 25),
        loss: Loss::NONE,
        single_loss: 0.05,
        traffic: Traffic {
            bursts: 2_000,
            every: MS * 200,
            updates: (2, 6),
            len: 1_000,
        },
        ..plan(20, 1, 0.0, seed)
    };
    let p99 = |plan: &FecPlan| Ok::<_, FecFailure>(play(plan)?.delays.quantile(0.99));
    Ok(TailDelays {
        with: p99(&plan)?,
        without: p99(&off(plan))?,
    })
}
