//! Rate control between a source and its receivers: slow and lossy members leave, the others go on,
//! and the circuit breaker stops a flow that hardly anybody receives.

use std::time::Duration;

use flexicast::flow::{BreakerState, FlowConfig, RateControl};
use flexicast::source::Faults;
use flexicast::{Cause, Rung, Via};

use super::lab::{Bottleneck, Lab, flow_config};

const SECOND: Duration = Duration::from_secs(1);
/// Bytes of an update.
const UPDATE: usize = 2_500;

/// Publishes at `bits_per_s` for a time.
fn publish_for(lab: &mut Lab, bits_per_s: u64, span: Duration) {
    let gap = Duration::from_secs_f64(UPDATE as f64 * 8.0 / bits_per_s as f64);
    let end = lab.elapsed() + span;
    while lab.elapsed() < end {
        lab.publish(UPDATE);
        lab.run(gap);
    }
}

/// A source with receivers that are members by multicast.
fn members(seed: u64, nodes: usize) -> Lab {
    let mut lab = Lab::with_config(seed, nodes, flow_config(seed));
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND * 3);
    for node in &lab.nodes {
        assert_eq!(node.moves.last().map(|m| m.1), Some(Rung::Multicast));
    }
    lab
}

fn falls(lab: &Lab, i: usize, cause: Cause) -> usize {
    let fell = |m: &&(Duration, Rung, Cause)| m.1 == Rung::Unicast && m.2 == cause;
    lab.nodes[i].moves.iter().filter(fell).count()
}

/// Every receiver has every update once, in order.
fn assert_complete(lab: &Lab) {
    for (i, node) in lab.nodes.iter().enumerate() {
        let seqs: Vec<u64> = node.got.iter().map(|(seq, ..)| *seq).collect();
        let all: Vec<u64> = (1..=lab.store.len() as u64).collect();
        assert_eq!(seqs, all, "receiver {i}");
    }
}

#[test]
fn a_slow_member_leaves_and_returns_when_it_can_keep_up() {
    let mut lab = members(1, 10);
    lab.nodes[0].bottleneck = Some(Bottleneck::new(600_000, 2_400));
    publish_for(&mut lab, 2_000_000, SECOND * 8);
    let evictions = falls(&lab, 0, Cause::TooSlow) + falls(&lab, 0, Cause::LossTooHigh);
    assert_eq!(evictions, 1, "{:?}", lab.nodes[0].moves);
    for i in 1..10 {
        assert_eq!(lab.nodes[i].moves.len(), 1, "receiver {i} stayed a member");
    }
    let rate = lab.source.flow(0).unwrap().rate();
    assert!(
        rate.bits_per_s.is_none_or(|rate| rate >= 2_000_000),
        "the flow has not recovered: {rate:?}"
    );
    // As long as its unicast path lags, it stays there, and its link has only that to carry.
    publish_for(&mut lab, 2_000_000, SECOND * 12);
    assert_eq!(lab.nodes[0].moves.last().map(|m| m.1), Some(Rung::Unicast));
    if falls(&lab, 0, Cause::TooSlow) > 0 {
        assert!(!lab.is_joined(0), "the group loads the slow link");
    }
    lab.nodes[0].bottleneck = None;
    publish_for(&mut lab, 400_000, SECOND * 120);
    assert_eq!(
        lab.nodes[0].moves.last().map(|m| m.1),
        Some(Rung::Multicast),
        "{:?}",
        lab.nodes[0].moves
    );
    lab.run(SECOND * 5);
    assert_complete(&lab);
}

#[test]
fn a_lossy_member_leaves_and_the_flow_is_not_slowed() {
    let mut lab = members(2, 10);
    lab.nodes[3].loss = 40;
    publish_for(&mut lab, 2_000_000, SECOND * 10);
    let evictions = falls(&lab, 3, Cause::LossTooHigh) + falls(&lab, 3, Cause::TooSlow);
    assert!(evictions >= 1, "{:?}", lab.nodes[3].moves);
    let rate = lab.source.flow(0).unwrap().rate();
    assert!(
        rate.bits_per_s.is_none_or(|rate| rate >= 2_000_000),
        "{rate:?}"
    );
    lab.nodes[3].loss = 0;
    lab.run(SECOND * 5);
    assert_complete(&lab);
}

#[test]
fn a_flow_that_most_members_lose_stops_and_resumes() {
    let mut lab = members(3, 10);
    for node in &mut lab.nodes[..8] {
        node.loss = 60;
    }
    publish_for(&mut lab, 2_000_000, SECOND * 20);
    assert!(
        lab.breakers.contains(&BreakerState::Open),
        "{:?}; {:?}",
        lab.breakers,
        lab.nodes.iter().map(|node| &node.moves).collect::<Vec<_>>()
    );
    for node in &mut lab.nodes {
        node.loss = 0;
    }
    publish_for(&mut lab, 500_000, SECOND * 120);
    assert_eq!(lab.breakers.last(), Some(&BreakerState::Closed));
    for (i, node) in lab.nodes.iter().enumerate() {
        let last = node.moves.last().map(|m| m.1);
        assert_eq!(
            last,
            Some(Rung::Multicast),
            "receiver {i}: {:?}",
            node.moves
        );
    }
    lab.run(SECOND * 5);
    assert_complete(&lab);
}

/// Moves of a member whose path delays each packet by up to 20 ms, and the rate of the flow at the
/// end in bit/s. The channel is busy, packets are 2 ms apart and less.
fn jittery(nodes: usize, faults: Faults) -> (usize, u64) {
    let config = FlowConfig {
        rate: Some(20_000_000),
        ..flow_config(4)
    };
    let mut lab = Lab::with_config(4, nodes, config);
    lab.source.inject_faults(faults);
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND * 3);
    lab.nodes[0].jitter = Duration::from_millis(20);
    publish_for(&mut lab, 6_000_000, SECOND * 20);
    let rate = lab.source.flow(0).unwrap().rate().bits_per_s.unwrap();
    assert!(
        lab.nodes[1..].iter().all(|node| node.moves.len() == 1),
        "the others stay members"
    );
    if faults == Faults::default() {
        lab.run(SECOND * 5);
        assert_complete(&lab);
    }
    (lab.nodes[0].moves.len(), rate)
}

#[test]
fn a_path_that_reorders_all_the_time_is_not_lossy() {
    for nodes in [1, 10] {
        let (moves, rate) = jittery(nodes, Faults::default());
        assert_eq!(
            moves, 1,
            "{nodes} receivers: the jittery one is still a member"
        );
        assert!(rate >= 6_000_000, "{nodes} receivers: {rate} bit/s");
    }
}

#[test]
fn without_patience_a_path_that_reorders_looks_lossy() {
    let faults = Faults {
        reordering_off: true,
        ..Faults::default()
    };
    let (moves, _) = jittery(10, faults);
    assert!(moves > 1, "evicted");
    let (_, rate) = jittery(1, faults);
    assert!(rate < 4_000_000, "{rate} bit/s");
}

/// A queue that fills at once makes a member's packets so late that all are repaired before they
/// are acknowledged. What the member reports of them then still counts: it neither stays nor leaves
/// as one that is silent.
#[test]
fn a_member_whose_packets_all_come_late_is_too_slow_or_lossy() {
    for seed in 1..=4 {
        let config = FlowConfig {
            fall_back: Duration::from_millis(1500),
            ..flow_config(seed)
        };
        let mut lab = Lab::with_config(seed, 3, config);
        lab.delay = Duration::from_millis(10);
        (0..3).for_each(|i| lab.connect(i));
        lab.run(SECOND * 3);
        let publish = |lab: &mut Lab, count, gap| {
            for _ in 0..count {
                lab.publish(1_000);
                lab.run(gap);
            }
        };
        publish(&mut lab, 20, SECOND * 3 / 10);
        lab.nodes[0].bottleneck = Some(Bottleneck::new(64_000, 2_400));
        publish(&mut lab, 150, SECOND / 30);
        let evictions = falls(&lab, 0, Cause::TooSlow) + falls(&lab, 0, Cause::LossTooHigh);
        let moves = &lab.nodes[0].moves;
        assert_eq!((evictions, moves.len()), (1, 2), "seed {seed}: {moves:?}");
        (1..3).for_each(|i| assert_eq!(lab.nodes[i].moves.len(), 1));
    }
}

/// Rate of a busy flow at the end in bit/s, and the marks that were counted, where the paths of
/// some receivers mark a share of the packets, in percent.
fn with_marks(nodes: usize, marked: usize, share: u32) -> (u64, u64) {
    let config = FlowConfig {
        rate: Some(20_000_000),
        control: RateControl {
            min_rate: Some(100_000),
            ..RateControl::default()
        },
        ..flow_config(5)
    };
    let mut lab = Lab::with_config(5, nodes, config);
    lab.delay = Duration::from_millis(50);
    lab.nodes.iter_mut().for_each(|node| node.marks = Some(0));
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND * 3);
    for node in &mut lab.nodes[..marked] {
        node.marks = Some(share);
    }
    publish_for(&mut lab, 6_000_000, SECOND * 8);
    let flow = lab.source.flow(0).unwrap();
    let result = (flow.rate().bits_per_s.unwrap(), flow.stats().ce);
    lab.run(SECOND * 120);
    assert_complete(&lab);
    for node in &lab.nodes {
        assert!(
            node.got.iter().all(|(_, via, _)| *via == Via::Flow),
            "marked packets arrived: none is repaired"
        );
        assert_eq!(node.moves.len(), 1, "marks are no losses: {:?}", node.moves);
    }
    result
}

#[test]
fn marks_slow_the_flow_and_nothing_is_repaired() {
    for (nodes, marked) in [(1, 1), (10, 10), (10, 1)] {
        let (free, none) = with_marks(nodes, marked, 0);
        let (slow, marks) = with_marks(nodes, marked, 2);
        assert_eq!(none, 0);
        assert!(marks > 5, "{marks}");
        assert!(
            free >= 6_000_000 && slow < free / 2,
            "{marked} of {nodes}: {free} and {slow} bit/s"
        );
    }
}
