//! Updates with a deadline: handed on as soon as they are whole, or not at all (protocol.md section
//! 7.6).

use std::time::Duration;

use flexicast::fec::{FecConfig, FecPolicy};
use flexicast::flow::{FlowConfig, RateControl};
use flexicast::source::Faults;
use flexicast::{Cause, Cursor, Rung, Via};

use crate::lab::{CHANNEL, INCARNATION, Lab, flow_config};
use crate::signed::{KEY, MS};

const LEN: usize = 900;

/// A lab whose source signs and keeps deadlines; `old` are the receivers that do not know them.
fn lab(nodes: usize, lifetime: Duration, config: FlowConfig, old: &[usize]) -> Lab {
    let mut lab = Lab::with_config(3, 0, config);
    lab.keep_deadlines(lifetime);
    lab.sign_with(KEY);
    for i in 0..nodes {
        lab.deadlines = !old.contains(&i);
        lab.add_node(i, None);
        lab.connect(i);
    }
    lab.deadlines = true;
    lab.run(500 * MS);
    for i in 0..nodes {
        assert_eq!(lab.moves(i), [(Rung::Multicast, Cause::Joined)]);
    }
    lab
}

fn seqs<T>(got: &[(u64, T)]) -> Vec<u64> {
    got.iter().map(|(seq, _)| *seq).collect()
}

fn in_order(lab: &Lab, i: usize) -> Vec<u64> {
    lab.nodes[i].got.iter().map(|(seq, ..)| *seq).collect()
}

/// Updates that a receiver was handed past their deadline.
fn late(lab: &Lab, i: usize, lifetime: Duration) -> usize {
    let is_late = |(seq, at): &&(u64, Duration)| {
        // A deadline is a whole millisecond.
        let deadline = lab.published[*seq as usize - 1] + lifetime;
        at.as_millis() > deadline.as_millis()
    };
    lab.nodes[i].live.iter().filter(is_late).count()
}

/// Each update was either handed on or passed over, once and in order; what was handed on in order
/// was handed on before, too.
fn check(lab: &Lab, i: usize, first: u64) {
    let node = &lab.nodes[i];
    let (got, mut live) = (in_order(lab, i), seqs(&node.live));
    assert!(got.is_sorted() && node.expired.is_sorted());
    let mut all = [got.clone(), node.expired.clone()].concat();
    all.sort_unstable();
    let stored: Vec<u64> = (first..=lab.store.len() as u64).collect();
    assert_eq!(all, stored, "receiver {i}");
    live.sort_unstable();
    assert_eq!(live, got, "receiver {i}");
    let stats = node.core.stats(CHANNEL).unwrap().reception;
    assert_eq!(stats.expired, node.expired.len() as u64);
    assert_eq!(stats.live, live.len() as u64);
}

#[test]
fn an_update_does_not_wait_for_those_before_it() {
    let lifetime = 2000 * MS;
    let mut lab = lab(2, lifetime, flow_config(3), &[]);
    lab.publish(LEN);
    lab.run(50 * MS);
    lab.nodes[1].loss = 100;
    lab.publish(LEN);
    lab.run(20 * MS);
    lab.nodes[1].loss = 0;
    lab.publish(LEN);
    lab.run(10 * MS);
    assert_eq!(seqs(&lab.nodes[0].live), [1, 2, 3]);
    assert_eq!(seqs(&lab.nodes[1].live), [1, 3]);
    assert_eq!(in_order(&lab, 1), [1], "the second one is awaited");
    lab.run(500 * MS);
    assert_eq!(seqs(&lab.nodes[1].live), [1, 3, 2]);
    lab.assert_complete(1);
    (0..2).for_each(|i| check(&lab, i, 1));
    assert_eq!(lab.source.counters().deadlines.expired, 0);
}

/// Loss with a deadline that is shorter than the round trip: nothing can be repaired in time, so
/// nothing is, and no receiver waits.
fn short_deadline(faults: bool, fec: Option<FecConfig>) -> Lab {
    let lifetime = 80 * MS;
    // At a rate that losses lower, updates would expire in the queue.
    let config = FlowConfig {
        control: RateControl::fixed(),
        fec,
        ..flow_config(3)
    };
    let mut lab = Lab::with_config(3, 0, config);
    lab.delay = 50 * MS;
    lab.keep_deadlines(lifetime);
    lab.sign_with(KEY);
    for i in 0..3 {
        lab.add_node(i, None);
        lab.nodes[i].core.set_expired_delivered(faults);
        lab.connect(i);
    }
    lab.source.inject_faults(Faults {
        expired_delivered: faults,
        ..Faults::default()
    });
    lab.run(1000 * MS);
    (lab.nodes[0].loss, lab.nodes[1].loss) = (8, 3);
    for _ in 0..300 {
        lab.publish(LEN);
        lab.run(10 * MS);
    }
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.publish(LEN);
    lab.run(2000 * MS);
    lab
}

#[test]
fn what_cannot_come_in_time_is_not_sent() {
    let lab = short_deadline(false, None);
    for i in 0..3 {
        check(&lab, i, 1);
        assert_eq!(late(&lab, i, 80 * MS), 0);
        assert_eq!(lab.moves(i), [(Rung::Multicast, Cause::Joined)]);
    }
    let expired: Vec<usize> = lab.nodes.iter().map(|n| n.expired.len()).collect();
    assert!(expired[0] > 10 && expired[1] > 3, "{expired:?}");
    assert_eq!(expired[2], 0);
    let counters = lab.source.counters();
    assert_eq!(counters.deadlines.expired, (expired[0] + expired[1]) as u64);
    assert_eq!(lab.source.traffic(0).repairs, 0);
    assert_eq!(lab.source.traffic(0).unicast, 0);
}

/// Repair symbols bring in time what no repair can.
#[test]
fn what_is_rebuilt_comes_in_time() {
    let proactive = FecConfig {
        policy: FecPolicy::Proactive {
            symbols: 1,
            packets: 2,
        },
        ..FecConfig::default()
    };
    let lab = short_deadline(false, Some(proactive));
    let without = short_deadline(false, None);
    for i in 0..3 {
        check(&lab, i, 1);
        assert_eq!(late(&lab, i, 80 * MS), 0);
    }
    let expired = |lab: &Lab| lab.nodes.iter().map(|n| n.expired.len()).sum::<usize>();
    let (with, without) = (expired(&lab), expired(&without));
    assert!(with * 3 < without, "{with} and {without}");
    assert_eq!(lab.source.traffic(0).repairs, 0);
}

/// The fault that hands on what has expired is noticed by what the test above checks.
#[test]
fn handing_on_what_has_expired_is_noticed() {
    let lab = short_deadline(true, None);
    assert!(late(&lab, 0, 80 * MS) > 10);
    assert!(lab.nodes[0].expired.is_empty());
    assert!(lab.source.traffic(0).repairs > 0);
}

/// Either end alone keeps late updates back.
#[test]
fn a_receiver_hands_on_nothing_late_that_a_source_sends() {
    let mut lab = lab(1, 40 * MS, flow_config(3), &[]);
    lab.source.inject_faults(Faults {
        expired_delivered: true,
        ..Faults::default()
    });
    for _ in 0..50 {
        lab.nodes[0].loss = if lab.store.len().is_multiple_of(5) {
            100
        } else {
            0
        };
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.nodes[0].loss = 0;
    lab.publish(LEN);
    lab.run(1000 * MS);
    check(&lab, 0, 1);
    assert_eq!(late(&lab, 0, 40 * MS), 0);
    assert!(lab.source.traffic(0).repairs > 0, "sent all the same");
    let stats = lab.nodes[0].core.stats(CHANNEL).unwrap().reception;
    assert!(stats.late > 5 && stats.late == stats.expired, "{stats:?}");
}

#[test]
fn a_receiver_that_joins_late_gets_nothing_that_expired() {
    let lifetime = 200 * MS;
    let mut lab = lab(1, lifetime, flow_config(3), &[]);
    for _ in 0..400 {
        lab.publish(LEN);
        lab.run(2 * MS);
    }
    lab.run(1000 * MS);
    check(&lab, 0, 1);
    assert_eq!(lab.source.traffic(0).unicast, 0);
    let beginning = Cursor {
        incarnation: INCARNATION,
        seq: 0,
    };
    lab.add_node(1, Some(beginning));
    lab.add_node(2, None);
    (1..=2).for_each(|i| lab.connect(i));
    lab.run(300 * MS);
    assert_eq!(lab.nodes[1].expired, (1..=400).collect::<Vec<_>>());
    assert_eq!(lab.nodes[2].expired, (301..=400).collect::<Vec<_>>());
    assert_eq!(lab.source.traffic(0).unicast, 0);
    lab.publish(LEN);
    lab.run(100 * MS);
    for (i, first) in [(0, 1), (1, 1), (2, 301)] {
        check(&lab, i, first);
        assert_eq!(lab.nodes[i].live.last().unwrap().0, 401);
    }
    // Cursors move over what has expired, and the source owes nothing.
    lab.run(20_000 * MS);
    assert_eq!(lab.source.counters().resent_updates, 0);
    assert!(
        lab.source
            .sessions()
            .all(|s| s.channels[0].cursor.unwrap().seq == 401)
    );
}

/// A receiver that reconnects takes what has come meanwhile and is still wanted.
#[test]
fn a_reconnection_skips_what_expired_meanwhile() {
    let lifetime = 1000 * MS;
    let mut lab = lab(2, lifetime, flow_config(3), &[]);
    lab.publish(LEN);
    lab.run(100 * MS);
    lab.disconnect(1);
    for _ in 0..100 {
        lab.publish(LEN);
        lab.run(30 * MS);
    }
    lab.connect(1);
    lab.run(500 * MS);
    (0..2).for_each(|i| check(&lab, i, 1));
    assert_eq!(late(&lab, 1, lifetime), 0);
    let expired = lab.nodes[1].expired.len();
    assert!((60..75).contains(&expired), "{expired}");
}

/// Receivers that do not know deadlines get all of it, in order: on the flow, repaired, caught up.
#[test]
fn an_old_receiver_loses_nothing() {
    let mut lab = lab(3, 40 * MS, flow_config(3), &[0, 1]);
    lab.delay = 30 * MS;
    (lab.nodes[0].loss, lab.nodes[2].loss) = (20, 20);
    for _ in 0..200 {
        lab.publish(LEN);
        lab.run(5 * MS);
    }
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.publish(LEN);
    lab.run(1000 * MS);
    lab.deadlines = false;
    lab.add_node(
        3,
        Some(Cursor {
            incarnation: INCARNATION,
            seq: 0,
        }),
    );
    lab.connect(3);
    lab.run(1000 * MS);
    for i in [0, 1, 3] {
        assert_eq!(in_order(&lab, i), (1..=201).collect::<Vec<_>>());
        assert!(lab.nodes[i].live.is_empty() && lab.nodes[i].expired.is_empty());
    }
    check(&lab, 2, 1);
    assert!(lab.nodes[2].expired.len() > 20);
}

/// A receiver that does not know deadlines is sent what is long over: that is not urgent, and takes
/// no turns from those who still want theirs.
#[test]
fn what_an_old_receiver_gets_late_is_not_urgent() {
    let lifetime = 300 * MS;
    let mut lab = Lab::with_config(3, 0, flow_config(3));
    lab.limit_unicast(3, 1_000_000);
    lab.keep_deadlines(lifetime);
    lab.sign_with(KEY);
    for i in 0..2 {
        lab.deadlines = i == 1;
        lab.add_node(i, None);
        lab.nodes[i].multicast = false;
        lab.connect(i);
    }
    lab.run(500 * MS);
    // Twice what the rate allows for both.
    for _ in 0..300 {
        lab.publish(10_000);
        lab.run(80 * MS);
    }
    lab.run(30_000 * MS);
    check(&lab, 1, 1);
    assert_eq!(in_order(&lab, 0), (1..=300).collect::<Vec<_>>());
    let live = lab.nodes[1].live.len();
    assert!(live > 150, "{live}");
}

/// More is published than the flow can carry in time: what has expired in its queue is not begun,
/// and costs the members nothing of their windows.
#[test]
fn what_expires_in_the_queue_is_not_begun() {
    let lifetime = 100 * MS;
    let config = FlowConfig {
        rate: Some(2_000_000),
        control: RateControl::fixed(),
        ..flow_config(3)
    };
    let mut lab = lab(3, lifetime, config, &[2]);
    let before = lab.source.traffic(0).flow;
    for _ in 0..100 {
        for _ in 0..5 {
            lab.publish(100_000);
        }
        lab.run(lifetime);
    }
    lab.run(500 * MS);
    lab.publish(LEN);
    lab.run(500 * MS);
    for i in 0..2 {
        check(&lab, i, 1);
        assert_eq!(late(&lab, i, lifetime), 0);
        assert_eq!(lab.moves(i), [(Rung::Multicast, Cause::Joined)]);
        assert_eq!(lab.nodes[i].got.last().unwrap().1, Via::Flow);
        assert!(
            lab.nodes[i].expired.len() >= 400,
            "{}",
            lab.nodes[i].expired.len()
        );
    }
    // 50 MB were published, far beyond a window of 16 MiB.
    assert!(lab.source.counters().deadlines.withdrawn >= 400);
    assert!(lab.source.traffic(0).flow - before < 4_000_000);
    // The old receiver gets the rest of each by unicast.
    assert_eq!(in_order(&lab, 2), (1..=501).collect::<Vec<_>>());
}

/// Ranges that many members miss are sent again on the flow, but for those that have expired.
#[test]
fn shared_repairs_end_with_the_deadline() {
    for (lifetime, is_repaired) in [(5000 * MS, true), (15 * MS, false)] {
        let mut lab = lab(8, lifetime, flow_config(3), &[]);
        lab.nodes.iter_mut().for_each(|node| node.loss = 100);
        lab.publish(LEN);
        lab.run(8 * MS);
        lab.nodes.iter_mut().for_each(|node| node.loss = 0);
        for _ in 0..5 {
            lab.publish(LEN);
            lab.run(20 * MS);
        }
        lab.run(1000 * MS);
        for i in 0..8 {
            check(&lab, i, 1);
            assert_eq!(lab.nodes[i].expired.is_empty(), is_repaired);
        }
        let counters = lab.source.counters();
        assert_eq!(counters.shared_repairs > 0, is_repaired);
    }
}
