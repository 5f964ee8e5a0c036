//! Acknowledgements by feedback packets (protocol.md sections 4.10 and 5.4).

use std::time::Duration;

use flexicast::protect::FlowSecret;
use flexicast::source::FeedbackCounters;
use flexicast::{Cause, FlowId, Rung};

use crate::lab::{Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
const JOINED: (Rung, Cause) = (Rung::Multicast, Cause::Joined);
const FELL_BACK: (Rung, Cause) = (Rung::Unicast, Cause::AckTimeout);
/// Acknowledgements that are sent both ways before the source has said that feedback arrives.
const TRIALS: usize = 8;

/// A lab whose receivers can send feedback packets to a source that takes them.
fn lab(seed: u64, nodes: usize) -> Lab {
    let mut lab = Lab::new(seed, 0);
    lab.enable_feedback();
    connect(&mut lab, nodes);
    lab
}

fn connect(lab: &mut Lab, nodes: usize) {
    for i in 0..nodes {
        lab.add_node(i, None);
        lab.connect(i);
    }
    lab.run(500 * MS);
    (0..nodes).for_each(|i| assert_eq!(lab.moves(i), [JOINED]));
}

/// A hundred updates a second.
fn publish(lab: &mut Lab, count: usize) {
    for _ in 0..count {
        lab.publish(900);
        lab.run(10 * MS);
    }
}

fn counters(lab: &Lab) -> FeedbackCounters {
    lab.source.counters().feedback
}

#[test]
fn feedback_takes_the_place_of_datagrams_once_the_source_has_heard_it() {
    let mut lab = lab(1, 3);
    publish(&mut lab, 20);
    let datagrams = lab.acks;
    assert!(datagrams <= 3 * TRIALS as u64, "{datagrams}");
    publish(&mut lab, 200);
    lab.run(1000 * MS);
    assert_eq!(lab.acks, datagrams, "nothing else goes by DATAGRAM");
    let FeedbackCounters {
        packets, invalid, ..
    } = counters(&lab);
    assert_eq!((packets, invalid), (lab.feedback.sent.len() as u64, 0));
    assert!(packets > 3 * 2 * 30, "{packets}");
    (0..3).for_each(|i| assert_eq!(lab.moves(i), [JOINED]));
    assert_eq!(lab.source.flow(0).map(|flow| flow.outstanding()), Some(0));
    lab.assert_complete(1);
}

/// Losses, other orders and copies of feedback packets cost a member nothing, and a packet counts
/// once.
#[test]
fn a_bad_path_of_feedback_moves_no_member() {
    for seed in 1..=10 {
        let mut lab = lab(seed, 3);
        lab.feedback.loss = 5;
        lab.feedback.copies = 30;
        lab.feedback.jitter = 40 * MS;
        lab.nodes.iter_mut().for_each(|node| node.loss = 2);
        publish(&mut lab, 300);
        lab.run(1000 * MS);
        let FeedbackCounters {
            packets, invalid, ..
        } = counters(&lab);
        assert!(packets > 100 && invalid > 20, "{packets}, {invalid}");
        assert_eq!(packets + invalid, lab.feedback.arrived);
        (0..3).for_each(|i| assert_eq!(lab.moves(i), [JOINED], "seed {seed}"));
        lab.assert_complete(1);
    }
}

/// Nothing that is not sealed with a member's key, or was sealed long ago, has any effect.
#[test]
fn forged_and_replayed_feedback_is_dropped() {
    let mut lab = lab(4, 2);
    publish(&mut lab, 50);
    lab.run(500 * MS);
    let (sent, taken) = (lab.feedback.sent.clone(), counters(&lab).packets);
    let mut forged = 0;
    for packet in &sent {
        for (at, len) in [
            (0, packet.len()),
            (12, packet.len()),
            (20, 30),
            (9, 9),
            (3, 2),
        ] {
            let mut changed = packet[..len.min(packet.len())].to_vec();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 1;
            }
            lab.send_feedback(0, changed);
            // One member's packet from another's address is no better.
            lab.send_feedback(1, packet.clone());
            forged += 2;
        }
    }
    publish(&mut lab, 50);
    lab.run(500 * MS);
    let before = taken + lab.feedback.sent.len() as u64 - sent.len() as u64;
    assert_eq!(counters(&lab).packets, before);
    assert_eq!(counters(&lab).invalid + counters(&lab).elsewhere, forged);
    assert_eq!(lab.source.counters().invalid_acks, 0);
    (0..2).for_each(|i| assert_eq!(lab.moves(i), [JOINED]));
    lab.assert_complete(1);
}

/// Under a flood the source decrypts no more than a budget. The member is acknowledged by DATAGRAM
/// frames then, and nothing of the flood reaches its connection.
#[test]
fn a_flood_with_a_members_address_costs_it_one_fall_back_at_most() {
    let mut lab = lab(5, 1);
    publish(&mut lab, 50);
    let mut garbage = lab.feedback.sent[0].clone();
    for byte in &mut garbage[13..] {
        *byte ^= 0x55;
    }
    let from = lab.store.len();
    for _ in 0..100 {
        (0..300).for_each(|_| lab.send_feedback(0, garbage.clone()));
        publish(&mut lab, 1);
    }
    lab.run(2000 * MS);
    assert!(counters(&lab).invalid >= 30_000);
    let moves = lab.moves(0);
    assert!(moves.len() <= 3, "{moves:?}");
    assert_eq!(moves.last(), Some(&JOINED));
    assert!(lab.nodes[0].closes.is_empty());
    assert_eq!(lab.nodes[0].got.len(), from + 100);
    lab.assert_complete(1);
}

#[test]
fn an_older_receiver_and_an_older_source_go_on_with_datagrams() {
    let mut older_receiver = Lab::new(6, 0);
    older_receiver.enable_feedback();
    older_receiver.feedback.on = false;
    let mut older_source = Lab::new(6, 0);
    older_source.feedback.on = true;
    for mut lab in [older_receiver, older_source] {
        connect(&mut lab, 2);
        publish(&mut lab, 100);
        lab.run(500 * MS);
        assert_eq!(counters(&lab), FeedbackCounters::default());
        assert!(lab.feedback.sent.is_empty() && lab.acks > 50);
        (0..2).for_each(|i| assert_eq!(lab.moves(i), [JOINED]));
        lab.assert_complete(1);
    }
}

/// Where nothing but QUIC gets through, a member costs a few packets and never depends on them.
#[test]
fn a_path_that_takes_no_feedback_is_given_up_after_some_trials() {
    let mut lab = Lab::new(7, 0);
    lab.enable_feedback();
    lab.feedback.loss = 100;
    connect(&mut lab, 1);
    publish(&mut lab, 200);
    lab.run(500 * MS);
    assert_eq!(
        (lab.feedback.sent.len(), lab.moves(0)),
        (TRIALS, vec![JOINED])
    );
    assert!(lab.acks > 50);
    lab.assert_complete(1);
}

/// When feedback packets stop arriving, one fall-back shows it, and DATAGRAM frames take over.
#[test]
fn a_path_that_stops_taking_feedback_costs_one_fall_back() {
    let mut lab = lab(8, 1);
    publish(&mut lab, 100);
    lab.feedback.loss = 100;
    let before = lab.acks;
    publish(&mut lab, 400);
    lab.run(500 * MS);
    assert_eq!(lab.moves(0), [JOINED, FELL_BACK, JOINED]);
    assert!(lab.acks > before + 50);
    lab.assert_complete(1);
    // It gets through again: the next membership finds out.
    lab.feedback.loss = 0;
    lab.nodes[0].multicast = false;
    lab.run(4000 * MS);
    lab.nodes[0].multicast = true;
    lab.run(20_000 * MS);
    let before = lab.acks;
    publish(&mut lab, 200);
    assert!(lab.acks - before <= TRIALS as u64, "{}", lab.acks - before);
    lab.assert_complete(1);
}

/// From another address than the connection has, packets are dropped, and the member gets a notice
/// that lets its connection move.
#[test]
fn feedback_from_another_address_is_answered_by_a_notice_alone() {
    let mut lab = lab(9, 1);
    publish(&mut lab, 50);
    let taken = counters(&lab).packets;
    lab.feedback.elsewhere = true;
    publish(&mut lab, 5);
    lab.run(20 * MS);
    lab.feedback.elsewhere = false;
    publish(&mut lab, 50);
    lab.run(500 * MS);
    assert!(lab.feedback.notices > 0);
    assert_eq!(counters(&lab).elsewhere, lab.feedback.notices);
    assert!(counters(&lab).packets > taken);
    assert_eq!(lab.moves(0), [JOINED]);
    lab.assert_complete(1);
}

/// A copy of each packet that is faster than it, from an address of its own, takes nothing from the
/// member, and the packet still counts once.
#[test]
fn an_observer_that_is_faster_silences_no_member() {
    let mut lab = lab(11, 2);
    publish(&mut lab, 50);
    let before = lab.feedback.sent.len();
    lab.feedback.raced = true;
    lab.feedback.copies = 30;
    publish(&mut lab, 100);
    lab.run(500 * MS);
    let sent = lab.feedback.sent.len();
    assert!(sent > before + 50);
    assert_eq!(counters(&lab).packets, sent as u64);
    assert_eq!(counters(&lab).elsewhere, lab.feedback.notices);
    assert!(counters(&lab).invalid > 10, "copies");
    (0..2).for_each(|i| assert_eq!(lab.moves(i), [JOINED]));
    lab.assert_complete(1);
}

/// Another flow has other keys, and those of the old one are worth nothing.
#[test]
fn another_flow_has_feedback_of_its_own() {
    let mut lab = lab(10, 1);
    publish(&mut lab, 50);
    let (old, now) = (lab.feedback.sent.len(), lab.now);
    let config = flexicast::flow::FlowConfig {
        flow: FlowId([10; 8]),
        secret: FlowSecret::from([11; 32]),
        ..flow_config(10)
    };
    lab.source.replace_flow(0, config, now).unwrap();
    lab.run(2000 * MS);
    let acks = lab.acks;
    publish(&mut lab, 100);
    lab.run(500 * MS);
    assert!(lab.acks - acks <= TRIALS as u64);
    let invalid = counters(&lab).invalid;
    lab.send_feedback(0, lab.feedback.sent[old - 1].clone());
    lab.run(100 * MS);
    assert_eq!(counters(&lab).invalid, invalid + 1);
    assert_ne!(
        lab.feedback.sent[old - 1][1..9],
        lab.feedback.sent[old + 10][1..9]
    );
    lab.assert_complete(1);
}
