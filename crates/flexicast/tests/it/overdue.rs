//! Updates that a receiver acknowledged for a forged packet and does not have are sent again.

use std::time::Duration;

use flexicast::control::Control;
use flexicast::frame::put_ping;
use flexicast::{Cause, Rung, Via};

use crate::lab::Lab;

const MS: Duration = Duration::from_millis(1);
const SEED: u64 = 7;
const LEN: usize = 900;
const NODES: usize = 3;
const MEMBER: [(Rung, Cause); 1] = [(Rung::Multicast, Cause::Joined)];

/// A source and members that have one update.
fn members() -> Lab {
    let mut lab = Lab::new(SEED, NODES);
    lab.hostile = true;
    (0..NODES).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    (0..NODES).for_each(|i| assert_eq!(lab.moves(i), MEMBER));
    lab.publish(LEN);
    lab.run(2000 * MS);
    lab
}

/// Publishes an update that reaches no member, and has its packets acknowledged.
fn lose(lab: &mut Lab) {
    lab.nodes.iter_mut().for_each(|node| node.multicast = false);
    let before = lab.next_pn();
    lab.publish(LEN);
    lab.run(2 * MS);
    let mut ping = Vec::new();
    put_ping(&mut ping);
    for pn in before..lab.next_pn() {
        let packet = lab.forge(SEED, pn, false, &ping);
        (0..NODES).for_each(|i| lab.inject(i, packet.clone()));
    }
    lab.nodes.iter_mut().for_each(|node| node.multicast = true);
}

fn resent(lab: &Lab) -> u64 {
    lab.source.counters().resent_updates
}

#[test]
fn a_lost_update_that_nothing_follows_is_sent_again_once() {
    let mut lab = members();
    lose(&mut lab);
    lab.run(4000 * MS);
    assert_eq!(resent(&lab), 0, "repairs may still be under way");
    lab.run(12_000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].got[1].1, Via::Unicast);
        assert_eq!(lab.moves(i), MEMBER, "receiver {i} stays where it is");
    }
    assert_eq!(resent(&lab), NODES as u64);
    lab.run(600_000 * MS);
    assert_eq!(resent(&lab), NODES as u64);
}

#[test]
fn a_long_tail_is_sent_again_in_parts() {
    let mut lab = members();
    (0..100).for_each(|_| lose(&mut lab));
    lab.run(16_000 * MS);
    assert_eq!(lab.nodes[0].got.len(), 65);
    lab.run(16_000 * MS);
    lab.assert_complete(1);
    assert_eq!(resent(&lab), 100 * NODES as u64);
}

#[test]
fn a_lost_update_is_sent_again_after_a_fall_back() {
    let mut lab = members();
    lose(&mut lab);
    lab.nodes.iter_mut().for_each(|node| node.multicast = false);
    lab.run(20_000 * MS);
    let fallen = |i| lab.moves(i).last().map(|(rung, _)| *rung);
    (0..NODES).for_each(|i| assert_eq!(fallen(i), Some(Rung::Unicast)));
    lab.assert_complete(1);
}

/// A receiver whose outputs stall costs a part of its updates a second time, whatever it misses.
#[test]
fn a_stalled_receiver_gets_a_bounded_part_again() {
    let mut lab = members();
    let silent = |frame: &Control| !matches!(frame, Control::Cursors(_));
    lab.nodes[0].says = Some(silent);
    for _ in 0..300 {
        lab.publish(LEN);
        lab.run(500 * MS);
    }
    assert!((1..=64).contains(&resent(&lab)), "{}", resent(&lab));
    lab.nodes[0].says = None;
    for _ in 0..60 {
        lab.publish(LEN);
        lab.run(500 * MS);
    }
    assert!(resent(&lab) <= 64, "{}", resent(&lab));
    lab.assert_complete(1);
}

#[test]
fn nothing_is_sent_again_where_cursors_move() {
    let mut lab = members();
    lab.nodes[1].loss = 20;
    for n in 0..400u64 {
        lab.publish(LEN);
        lab.run(Duration::from_millis(n * 7919 % 900));
    }
    lab.run(30_000 * MS);
    lab.assert_complete(1);
    assert_eq!(resent(&lab), 0);
}
