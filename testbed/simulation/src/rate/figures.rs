//! Figures of the rate controller, each in virtual time and from fixed seeds.

use std::time::Duration;

use flexicast::rate::{RateConfig, RateEvent, RatePolicy};

use super::{AckTiming, Bottleneck, Path, RateSimulation};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Default acknowledgement delay of a flow, and what QUIC allows by default.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Round trip of the scenarios other than comparisons.
const RTT: Duration = Duration::from_millis(100);

/// Loss 0.1, 1 and 5 %, each with a round trip of 10 and of 100 ms.
pub const MIXED_PATHS: [Path; 6] = [
    Path::lossy(10, 0.001),
    Path::lossy(10, 0.01),
    Path::lossy(10, 0.05),
    Path::lossy(100, 0.001),
    Path::lossy(100, 0.01),
    Path::lossy(100, 0.05),
];

/// A flow beside unicast.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// Path of each member: losses are independent.
    pub path: Path,
    /// Rate of a unicast CUBIC sender on one such path, in bit/s.
    pub unicast: f64,
    /// Rate of the flow over that.
    pub ratio: f64,
}

fn flow(policy: RatePolicy, seed: u64) -> RateSimulation {
    let config = RateConfig {
        policy,
        max: None,
        ack_delay: ACK_DELAY,
        ..RateConfig::default()
    };
    RateSimulation::new(config, AckTiming::Delayed(ACK_DELAY), seed)
}

/// Compares a flow of equal members with unicast: the same CUBIC controller, with one receiver that
/// acknowledges every second packet.
pub fn compare(policy: RatePolicy, members: usize, path: Path) -> Comparison {
    let config = RateConfig {
        policy: RatePolicy::CubicMin,
        max: None,
        ack_delay: ACK_DELAY,
        ..RateConfig::default()
    };
    // In round trips: as long for a short path as for a long one.
    let rounds = |count: u32| path.rtt * count;
    let mut unicast = RateSimulation::new(config, AckTiming::Pairs(ACK_DELAY), 1);
    unicast.join(path);
    unicast.run(rounds(1_000));
    let unicast = unicast.run(rounds(40_000));
    let mut flow = flow(policy, 2);
    (0..members).for_each(|_| {
        flow.join(path);
    });
    flow.run(rounds(1_000));
    // One receiver's losses vary more than the average of many.
    let ratio = flow.run(rounds(if members < 10 { 20_000 } else { 2_000 })) / unicast;
    Comparison {
        path,
        unicast,
        ratio,
    }
}

/// Returns the ratio that is furthest from 1.
pub fn worst(comparisons: &[Comparison]) -> f64 {
    let ratios = comparisons.iter().map(|comparison| comparison.ratio);
    ratios.fold(1.0, |worst: f64, ratio| {
        let further = ratio.max(1e-9).ln().abs() > worst.ln().abs();
        if further { ratio } else { worst }
    })
}

/// One of `members` gets a bottleneck of a tenth of the flow's rate and is evicted for it. Returns
/// how long the flow takes from the eviction to 95 % of the rate before; `None` if nothing of this
/// happens within half a minute.
pub fn recovery_after_eviction(members: usize) -> Option<Duration> {
    let mut flow = flow(RatePolicy::TcpFriendly, 3);
    flow.evicts = true;
    (0..members).for_each(|_| {
        flow.join(Path::lossy(50, 0.001));
    });
    flow.run(SECOND * 40);
    let before = flow.run(SECOND * 10);
    let narrow = Path {
        bottleneck: Some(Bottleneck {
            rate: (before / 10.0) as u64,
            depth: MS * 50,
        }),
        ..Path::lossy(50, 0.001)
    };
    flow.change(0, narrow);
    for _ in 0..3_000 {
        flow.run(MS * 10);
        let rate = flow.controller.rate().unwrap_or(0) as f64;
        if let Some((at, event)) = flow.events.first()
            && rate >= before * 0.95
        {
            return (*event == RateEvent::TooSlow(0)).then(|| flow.now() - *at);
        }
    }
    None
}

/// All members share a bottleneck, whose capacity falls to a half. Returns how long it takes from
/// the first packet that it drops until the flow's rate is halved, less an acknowledgement delay,
/// in round trips of the empty path.
pub fn shared_loss_halving(members: usize) -> Option<f64> {
    let mut flow = flow(RatePolicy::TcpFriendly, 4);
    let capacity = |rate| Bottleneck {
        rate,
        depth: RTT / 2,
    };
    flow.shared = Some(capacity(20_000_000));
    (0..members).for_each(|_| {
        flow.join(Path {
            rtt: RTT,
            loss: 0.0,
            bottleneck: None,
        });
    });
    flow.run(SECOND * 30);
    // The controller goes up and down: from a moment at which the link is full.
    while flow.controller.rate()? < 20_000_000 {
        flow.run(MS * 10);
    }
    flow.shared = Some(capacity(10_000_000));
    flow.first_drop = None;
    while flow.first_drop.is_none() {
        flow.run(MS);
    }
    let before = flow.controller.rate()?;
    for _ in 0..3_000 {
        flow.run(MS);
        if flow.controller.rate()? as f64 <= before as f64 * 0.51 {
            let took = flow.now() - flow.first_drop?;
            return Some((took.as_secs_f64() - ACK_DELAY.as_secs_f64()) / RTT.as_secs_f64());
        }
    }
    None
}

/// A member joins, and later half as many as there are, at each of three losses. Returns the least
/// rate of a tenth of a second within ten seconds after a join, over the average before.
pub fn join_dip(members: usize) -> f64 {
    let mut least = f64::INFINITY;
    for loss in [0.001, 0.01, 0.05] {
        let mut flow = flow(RatePolicy::TcpFriendly, 5);
        let join = |flow: &mut RateSimulation, count| {
            (0..count).for_each(|_| {
                flow.join(Path::lossy(50, loss));
            });
        };
        join(&mut flow, members);
        flow.run(SECOND * 50);
        for newcomers in [1, members / 2] {
            let before = flow.run(SECOND * 10);
            join(&mut flow, newcomers);
            for _ in 0..100 {
                least = least.min(flow.run(MS * 100) / before);
            }
        }
    }
    least
}

/// Returns the share of a flow in a bottleneck that it and one unicast CUBIC sender use at the same
/// time, over `span` after `warm_up`.
pub fn share_beside_unicast(
    members: usize,
    bottleneck: Bottleneck,
    rtt: Duration,
    (warm_up, span): (Duration, Duration),
    seed: u64,
) -> f64 {
    let config = RateConfig {
        policy: RatePolicy::CubicMin,
        max: None,
        ack_delay: ACK_DELAY,
        ..RateConfig::default()
    };
    let path = Path {
        rtt,
        loss: 0.0,
        bottleneck: None,
    };
    let mut flow = flow(RatePolicy::TcpFriendly, seed);
    flow.shared = Some(bottleneck);
    (0..members).for_each(|_| {
        flow.join(path);
    });
    // The flow was there first.
    flow.run(SECOND * 2 + MS * (seed as u32 % 1000));
    let mut unicast = RateSimulation::new(config, AckTiming::Pairs(ACK_DELAY), seed);
    unicast.begin_beside(&flow);
    unicast.join(path);
    let mut run = |time: Duration| {
        let before = (flow.sent_bytes(), unicast.sent_bytes());
        let until = flow.now() + time;
        loop {
            // One event at a time: packets meet in the queue in the order of their times.
            let next = |simulation: &RateSimulation| simulation.next_event().unwrap_or(until);
            let (at, beside) = (next(&flow), next(&unicast));
            if at.min(beside) >= until {
                break;
            }
            let simulation = if at <= beside {
                &mut flow
            } else {
                &mut unicast
            };
            simulation.run_until(at.min(beside));
        }
        flow.run_until(until);
        unicast.run_until(until);
        let sent = (
            flow.sent_bytes() - before.0,
            unicast.sent_bytes() - before.1,
        );
        sent.0 as f64 / (sent.0 + sent.1) as f64
    };
    run(warm_up);
    run(span)
}
