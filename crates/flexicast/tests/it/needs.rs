//! Requests for bytes at the source: which are answered, and which prove a forgery.

use std::time::Duration;

use flexicast::Via;
use flexicast::control::{Control, Need, NeedReason};

use crate::lab::Lab;

const MS: Duration = Duration::from_millis(1);
const SEED: u64 = 7;
const LEN: usize = 900;

/// A source and two members that have one update.
fn members() -> Lab {
    let mut lab = Lab::new(SEED, 2);
    (0..2).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    lab.publish(LEN);
    lab.run(2000 * MS);
    lab
}

fn ask(lab: &mut Lab, seq: u64, reason: NeedReason) {
    let need = Need {
        channel: 1,
        seq,
        offset: 0,
        length: None,
        reason: reason as u64,
    };
    let mut bytes = Vec::new();
    Control::Need(need).encode(&mut bytes);
    lab.say(0, bytes);
}

/// A forged update far ahead makes a receiver ask for 64 before it; a contradiction then makes it
/// ask for one of them again.
#[test]
fn updates_beyond_the_head_may_be_asked_for_again() {
    let mut lab = members();
    (2..66).for_each(|seq| ask(&mut lab, seq, NeedReason::Missing));
    lab.run(1000 * MS);
    (2..66).for_each(|seq| ask(&mut lab, seq, NeedReason::Contradicted));
    ask(&mut lab, 66, NeedReason::Invalid);
    lab.run(1000 * MS);
    assert_eq!(lab.nodes[0].closes, []);
    assert_eq!(lab.source.counters().excess_needs, 0);
    for _ in 0..67 {
        lab.publish(LEN);
        lab.run(50 * MS);
    }
    lab.assert_complete(1);
    // Each went by unicast once, and by the flow as well: both for the one that asked alone.
    assert_eq!(lab.source.traffic(0).repairs, 65 * LEN as u64);
}

/// Whatever a receiver says of it: bytes of an update that is not published yet are forged.
#[test]
fn requests_beyond_the_head_are_counted_whatever_their_reason() {
    let mut lab = members();
    ask(&mut lab, 1, NeedReason::Missing);
    lab.run(100 * MS);
    assert_eq!(lab.source.counters().needs, 0);
    ask(&mut lab, 1, NeedReason::Contradicted);
    ask(&mut lab, 2, NeedReason::Missing);
    lab.run(100 * MS);
    assert_eq!(lab.source.counters().needs, 2);
}

#[test]
fn requests_that_a_stalled_connection_brings_at_once_do_not_close_it() {
    let mut lab = members();
    for _ in 0..400 {
        ask(&mut lab, 1, NeedReason::Invalid);
        lab.run(MS / 10);
    }
    lab.run(1000 * MS);
    assert_eq!(lab.nodes[0].closes, []);
    assert!(lab.source.counters().excess_needs >= 290);
    assert!(lab.source.traffic(0).repairs <= 110 * LEN as u64);
    lab.publish(LEN);
    lab.run(100 * MS);
    assert_eq!(lab.nodes[0].got[1].1, Via::Flow);
}

#[test]
fn requests_far_beyond_the_head_hold_no_memory() {
    let mut lab = members();
    (0..400).for_each(|n| ask(&mut lab, 3 + 2 * n, NeedReason::Invalid));
    ask(&mut lab, 1 << 40, NeedReason::Invalid);
    lab.run(1000 * MS);
    assert_eq!(lab.nodes[0].closes, []);
    assert_eq!(lab.source.counters().excess_needs, 400 - 256 + 1);
}
