//! A source that is late itself blames no member, for a while.

use std::time::Duration;

use flexicast::{Cause, Rung};

use crate::lab::Lab;
use crate::pair::joined;

const MS: Duration = Duration::from_millis(1);
/// A turn of a source that cannot keep up, less than what counts as a pause of the process.
const TURN: Duration = Duration::from_millis(40);
/// Time after which a silent member falls back, by default.
const FALL_BACK: Duration = Duration::from_millis(150);
/// Part of a silence that does not count, at most.
const LAG: Duration = Duration::from_secs(2);

/// Runs a source that publishes an update at each turn. One that is late does not know what
/// arrived since the turn before.
fn turns(lab: &mut Lab, turns: u32, is_late: bool) {
    for _ in 0..turns {
        lab.publish(500);
        lab.run(TURN);
        if is_late {
            let now = lab.now;
            lab.source.note_lag(now - TURN, now);
        }
    }
}

fn members(lab: &Lab) -> usize {
    let on_flow = |i: &usize| lab.moves(*i).len() == 1;
    (0..lab.nodes.len()).filter(on_flow).count()
}

#[test]
fn acknowledgements_that_lie_unread_are_not_missing() {
    for seed in 0..10 {
        for is_late in [true, false] {
            let mut lab = joined(seed, 5);
            turns(&mut lab, 10, false);
            assert_eq!(members(&lab), 5, "seed {seed}");
            let repairs = lab.source.counters().repairs;
            // Ten times the delay of a fall-back, in turns that are each shorter than it.
            lab.nodes.iter_mut().for_each(|node| node.acks = false);
            turns(&mut lab, 37, is_late);
            lab.nodes.iter_mut().for_each(|node| node.acks = true);
            turns(&mut lab, 10, false);
            let expected = if is_late { 5 } else { 0 };
            assert_eq!(members(&lab), expected, "seed {seed}, late {is_late}");
            if is_late {
                // Nothing was lost: to send it again would only make the source later.
                let now = lab.source.counters().repairs;
                assert_eq!(now, repairs, "seed {seed}: repairs");
            }
            lab.run(10 * FALL_BACK);
            lab.assert_complete(1);
        }
    }
}

#[test]
fn a_member_that_is_gone_leaves_a_late_source_within_two_seconds() {
    for seed in 0..10 {
        let mut lab = joined(seed, 5);
        turns(&mut lab, 10, true);
        lab.nodes[0].acks = false;
        let gone = lab.now - lab.start;
        turns(&mut lab, 100, true);
        let fall_back = lab.nodes[0]
            .moves
            .iter()
            .find(|(_, _, c)| *c == Cause::AckTimeout);
        let (at, rung, _) = fall_back.expect("it is silent");
        assert_eq!(*rung, Rung::Unicast, "seed {seed}");
        let took = *at - gone;
        assert!(took > LAG, "seed {seed}: {took:?}");
        assert!(took < LAG + FALL_BACK + 2 * TURN, "seed {seed}: {took:?}");
        assert_eq!(members(&lab), 4, "seed {seed}: the others are heard");
    }
}

/// Only the time in which the source was late does not count.
#[test]
fn a_source_that_was_late_before_blames_as_usual() {
    let mut lab = joined(1, 3);
    turns(&mut lab, 50, true);
    lab.nodes[0].acks = false;
    let gone = lab.now - lab.start;
    turns(&mut lab, 10, false);
    let fall_back = lab.nodes[0]
        .moves
        .iter()
        .find(|(_, _, c)| *c == Cause::AckTimeout);
    let took = fall_back.expect("it is silent").0 - gone;
    assert!(took < FALL_BACK + 2 * TURN, "{took:?}");
    lab.run(10 * MS);
    assert_eq!(members(&lab), 2);
}

/// A source that cannot keep up asks for fewer acknowledgements, and gives its members the time
/// that they then take.
#[test]
fn the_members_acknowledge_as_often_as_the_source_bears() {
    let mut lab = joined(1, 40);
    let acks_per_s = |lab: &mut Lab| {
        let before = lab.acks;
        turns(lab, 50, false);
        (lab.acks - before) / 2
    };
    assert!(acks_per_s(&mut lab) > 600);
    lab.source.set_ack_budget(100, lab.now);
    turns(&mut lab, 10, false);
    let few = acks_per_s(&mut lab);
    assert!((50..=110).contains(&few), "{few}");
    assert_eq!(members(&lab), 40);
    // A shorter delay counts only after a while.
    lab.source.set_ack_budget(20_000, lab.now);
    turns(&mut lab, 10, false);
    assert!(acks_per_s(&mut lab) > 600);
    turns(&mut lab, 50, false);
    assert_eq!(members(&lab), 40);
    lab.assert_complete(1);
}
