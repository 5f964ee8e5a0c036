//! One receiver, or a thief of the flow's key, does everything wrong: other receivers are
//! unaffected, the source counts it, and past a limit it is refused.

use std::time::Duration;

use flexicast::ack::PathAck;
use flexicast::control::{Action, Control, Credential, Hello, State, Window};
use flexicast::frame::{put_ping, put_stream};
use flexicast::protect::{FlowSecret, SECRET_LEN};
use flexicast::receiver::ChannelStats;
use flexicast::source::close;
use flexicast::{Cause, Cursor, FlowId, PathId, Rung};
use uuid::Uuid;

use crate::lab::{CHANNEL, INCARNATION, Lab, VIOLATION, forger};

const MS: Duration = Duration::from_millis(1);
/// The receiver that misbehaves, or in whose name an attacker does.
const BAD: usize = 0;
/// The receivers beside it.
const OTHERS: [usize; 3] = [1, 2, 3];
const SEED: u64 = 5;
const PATH: PathId = PathId(5);

/// A source and four members.
fn lab() -> Lab {
    let mut lab = Lab::new(SEED, 4);
    lab.hostile = true;
    (0..4).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    for i in 0..4 {
        assert_eq!(lab.moves(i), [(Rung::Multicast, Cause::Joined)]);
    }
    lab
}

/// Lets `span` pass with an update every 20 ms, and `act` done before each.
fn busy(lab: &mut Lab, span: Duration, mut act: impl FnMut(&mut Lab)) {
    let end = lab.elapsed() + span;
    while lab.elapsed() < end {
        act(lab);
        lab.publish(900);
        lab.run(20 * MS);
    }
}

/// Requires that they stayed members all the time, nothing is missing, and no update took longer
/// than `most`.
fn undisturbed(lab: &Lab, nodes: &[usize], most: Duration) {
    for &i in nodes {
        assert_eq!(
            lab.moves(i),
            [(Rung::Multicast, Cause::Joined)],
            "receiver {i}"
        );
        assert_eq!(lab.nodes[i].closes, [], "receiver {i}");
        complete(lab, i);
        let took = lab.nodes[i]
            .got
            .iter()
            .map(|(seq, _, at)| *at - lab.published[*seq as usize - 1]);
        let worst = took.max().unwrap();
        assert!(worst <= most, "receiver {i}: an update took {worst:?}");
    }
}

/// The receiver has every update, once and in order; that the bytes are right the lab checks.
fn complete(lab: &Lab, i: usize) {
    let got: Vec<u64> = lab.nodes[i].got.iter().map(|(seq, ..)| *seq).collect();
    let all: Vec<u64> = (1..=lab.store.len() as u64).collect();
    assert_eq!(got, all, "receiver {i}");
}

fn stats(lab: &Lab, i: usize) -> ChannelStats {
    lab.nodes[i].core.stats(CHANNEL).unwrap()
}

fn encoded(frame: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn flow_id() -> FlowId {
    Lab::flow_id(SEED)
}

fn forge(lab: &Lab, pn: u64, wrong_phase: bool, frames: &[u8]) -> Vec<u8> {
    lab.forge(SEED, pn, wrong_phase, frames)
}

fn seal(secret: &FlowSecret, pn: u64, phase: bool, frames: &[u8]) -> Vec<u8> {
    forger::seal(SEED, secret, pn, phase, frames)
}

fn next_pn(lab: &Lab) -> u64 {
    lab.next_pn()
}

fn state(sequence: u64, action: Action, path: PathId) -> Vec<u8> {
    encoded(&Control::State(State {
        flow: flow_id(),
        sequence,
        action,
        path,
        key_sequence: 1,
        cause: None,
        largest: None,
    }))
}

fn ack(ranges: Vec<std::ops::Range<u64>>) -> Vec<u8> {
    PathAck {
        path: PATH,
        delay: Duration::ZERO,
        ranges,
        ecn: None,
        rebuilt: Vec::new(),
    }
    .encode()
}

#[test]
fn forged_invalid_frames_end_the_flow_of_reached_members_only() {
    let mut lab = lab();
    busy(&mut lab, 3000 * MS, |lab| {
        let pn = next_pn(lab) + 1;
        // CRYPTO has no place on a flow.
        let packet = forge(lab, pn, false, &[0x06, 0, 0]);
        lab.inject(BAD, packet);
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    assert_eq!(
        stats(&lab, BAD).reception.flow_invalid,
        100,
        "then it left the flow"
    );
    let left = (Rung::Unicast, Cause::FlowInvalid);
    assert_eq!(lab.moves(BAD).last(), Some(&left));
    assert_eq!(
        lab.nodes[BAD].closes,
        [],
        "nothing on the flow closes a connection"
    );
    lab.run(80_000 * MS);
    assert_eq!(
        lab.moves(BAD).last(),
        Some(&(Rung::Multicast, Cause::Joined)),
        "it tries again after a minute"
    );
}

#[test]
fn forged_packet_numbers_far_ahead_move_only_reached_members() {
    let mut lab = lab();
    let mut ping = Vec::new();
    put_ping(&mut ping);
    let mut left = 5;
    busy(&mut lab, 5000 * MS, |lab| {
        if left > 0 {
            left -= 1;
            let pn = next_pn(lab) + (1 << 20);
            let packet = forge(lab, pn, false, &ping);
            lab.inject(BAD, packet);
        }
    });
    lab.run(30_000 * MS);
    busy(&mut lab, 1000 * MS, |_| {});
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    assert!(lab.source.counters().invalid_acks >= 1);
    let moves = lab.moves(BAD);
    assert!(moves.contains(&(Rung::Unicast, Cause::Forged)), "{moves:?}");
    assert_eq!(
        moves.last(),
        Some(&(Rung::Multicast, Cause::Joined)),
        "it comes back when the forger stops"
    );
    assert_eq!(lab.nodes[BAD].closes, []);
}

/// One forged PING moves all members: the source counts it and says so once, and they come back.
#[test]
fn a_forged_packet_number_that_reaches_all_is_one_event() {
    let mut lab = Lab::new(SEED, 8);
    lab.hostile = true;
    (0..8).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    let mut ping = Vec::new();
    put_ping(&mut ping);
    let packet = forge(&lab, next_pn(&lab) + 1000, false, &ping);
    (0..8).for_each(|i| lab.inject(i, packet.clone()));
    busy(&mut lab, 10_000 * MS, |_| {});
    let forged = (Rung::Unicast, Cause::Forged);
    for i in 0..8 {
        assert!(lab.moves(i).contains(&forged), "{:?}", lab.moves(i));
        assert_eq!(lab.moves(i).last(), Some(&(Rung::Multicast, Cause::Joined)));
        complete(&lab, i);
    }
    assert_eq!(lab.source.counters().invalid_acks, 8);
    assert_eq!(lab.mass, [(8, Cause::Forged)]);
}

#[test]
fn packets_of_a_wrong_phase_or_key_are_dropped_and_counted() {
    let mut lab = lab();
    let mut ping = Vec::new();
    put_ping(&mut ping);
    busy(&mut lab, 2000 * MS, |lab| {
        for i in 0..4 {
            let packet = forge(lab, next_pn(lab) + 1, true, &ping);
            lab.inject(i, packet);
            let packet = seal(
                &FlowSecret::from([0xee; SECRET_LEN]),
                next_pn(lab) + 1,
                true,
                &ping,
            );
            lab.inject(i, packet);
        }
    });
    lab.run(1000 * MS);
    undisturbed(&lab, &[0, 1, 2, 3], 60 * MS);
    for i in 0..4 {
        assert_eq!(stats(&lab, i).reception.flow_invalid, 200);
    }
}

/// A receiver on the unicast path listens to a forged flow: what the source says on
/// the unicast path is what counts.
#[test]
fn forged_data_does_not_win_against_the_unicast_path() {
    let mut lab = lab();
    // Listening, with proofs that do not reach the source.
    lab.nodes[BAD].says =
        Some(|frame| !matches!(frame, Control::State(state) if state.action == Action::Ready));
    lab.disconnect(BAD);
    lab.connect(BAD);
    lab.nodes[BAD].multicast = false;
    lab.run(500 * MS);
    busy(&mut lab, 2000 * MS, |lab| {
        let (seq, pn) = (lab.store.len() as u64 + 1, next_pn(lab));
        let mut frames = Vec::new();
        // The first half, false: the update cannot become whole by it.
        put_stream(&mut frames, 1000, seq, 0, &[0xee; 450], false).unwrap();
        let packet = forge(lab, pn + 100, false, &frames);
        lab.inject(BAD, packet);
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    assert!(
        stats(&lab, BAD).reception.mismatches >= 50,
        "{:?}",
        stats(&lab, BAD)
    );
    assert_eq!(lab.nodes[BAD].closes, []);
}

#[test]
fn acks_of_unsent_packets_move_the_member_and_are_counted() {
    let mut lab = lab();
    busy(&mut lab, 10_000 * MS, |lab| {
        let far = next_pn(lab) + 1000;
        lab.send_datagram(BAD, ack(vec![far..far + 3, far - 900..far - 850]));
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    let counters = lab.source.counters();
    assert!(counters.invalid_acks >= 2);
    let falls = lab
        .moves(BAD)
        .iter()
        .filter(|m| **m == (Rung::Unicast, Cause::Forged))
        .count();
    assert!(
        (2..=8).contains(&falls),
        "{falls} times in 10 s: flapping is slowed down"
    );
}

#[test]
fn a_member_without_acks_falls_back_and_blocks_nothing() {
    let mut lab = lab();
    lab.nodes[BAD].acks = false;
    busy(&mut lab, 20_000 * MS, |_| {});
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    let falls = lab
        .moves(BAD)
        .iter()
        .filter(|m| **m == (Rung::Unicast, Cause::AckTimeout))
        .count();
    assert!(
        (2..=8).contains(&falls),
        "{falls} times in 20 s: flapping is slowed down"
    );
    assert!(
        lab.source.flow(0).unwrap().outstanding() <= 2,
        "nothing waits for it"
    );
}

#[test]
fn thousands_of_ranges_are_ignored_past_the_limit_and_counted() {
    let mut lab = lab();
    busy(&mut lab, 5000 * MS, |lab| {
        // 5,000 a second, each with 64 ranges of what was sent.
        let next = next_pn(lab);
        for n in 0..100 {
            let end = next.saturating_sub(n % 3);
            let ranges = (0..64).map_while(|k| Some(end.checked_sub(2 * k + 1)?..end - 2 * k));
            let ranges: Vec<_> = ranges.collect();
            if !ranges.is_empty() {
                lab.send_datagram(BAD, ack(ranges));
            }
        }
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    let excess = lab.source.counters().excess_acks;
    assert!(excess > 10_000, "{excess}");
}

#[test]
fn an_acknowledgement_of_too_many_ranges_is_a_violation() {
    let mut lab = lab();
    let ranges = (0..65).rev().map(|k| 2 * k..2 * k + 1).collect();
    lab.send_datagram(BAD, ack(ranges));
    busy(&mut lab, 1000 * MS, |_| {});
    lab.run(1000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    assert_eq!(lab.nodes[BAD].closes, [VIOLATION]);
}

#[test]
fn joining_and_leaving_a_thousand_times_a_second_is_refused() {
    let mut lab = lab();
    let mut sequence = 100;
    busy(&mut lab, 5000 * MS, |lab| {
        if !lab.nodes[BAD].connected {
            return;
        }
        for _ in 0..10 {
            lab.say(BAD, state(sequence, Action::Leave, PathId::UNICAST));
            lab.say(BAD, state(sequence + 1, Action::Join, PathId::UNICAST));
            sequence += 2;
        }
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    assert_eq!(lab.nodes[BAD].closes, [close::EXCESSIVE]);
    let counters = lab.source.counters();
    assert_eq!(counters.excess_control, 1);
    assert!(counters.rekeys <= 2, "{} key epochs", counters.rekeys);
}

#[test]
fn joining_and_leaving_below_the_limit_costs_few_key_epochs() {
    let mut lab = lab();
    let mut sequence = 100;
    busy(&mut lab, 20_000 * MS, |lab| {
        // 50 a second.
        let action = if sequence % 2 == 0 {
            Action::Leave
        } else {
            Action::Join
        };
        lab.say(BAD, state(sequence, action, PathId::UNICAST));
        sequence += 1;
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    assert_eq!(lab.nodes[BAD].closes, []);
    let counters = lab.source.counters();
    assert!(counters.rekeys <= 4, "{} key epochs", counters.rekeys);
    assert!(
        counters.promotions <= 4 + 20,
        "{} promotions",
        counters.promotions
    );
}

#[test]
fn a_second_hello_is_a_violation() {
    let mut lab = lab();
    let hello = Control::Hello(Hello {
        receiver: Uuid::from_u128(BAD as u128 + 1),
        name: "again".into(),
        software: String::new(),
        credential: Credential::Token(b"t".to_vec()),
        channels: vec![(CHANNEL.into(), None)],
        capabilities: vec![],
    });
    busy(&mut lab, 1000 * MS, |lab| {
        if lab.nodes[BAD].connected {
            (0..20).for_each(|_| lab.say(BAD, encoded(&hello)));
        }
    });
    lab.run(1000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    assert_eq!(lab.nodes[BAD].closes, [VIOLATION]);
}

/// Floods of frames that are each allowed.
#[test]
fn floods_of_control_frames_are_refused() {
    let cursor = Control::Cursors(vec![Cursor {
        incarnation: INCARNATION,
        seq: 1,
    }]);
    let window = |sequence| {
        Control::Window(Window {
            flow: flow_id(),
            sequence,
            offset: 1 << 40,
        })
    };
    for flood in 0..3 {
        let mut lab = lab();
        let mut sequence = 100;
        busy(&mut lab, 2000 * MS, |lab| {
            if !lab.nodes[BAD].connected {
                return;
            }
            for _ in 0..20 {
                sequence += 1;
                let bytes = match flood {
                    0 => encoded(&cursor),
                    1 => encoded(&window(sequence)),
                    _ => state(sequence, Action::Ready, PATH),
                };
                lab.say(BAD, bytes);
            }
        });
        lab.run(1000 * MS);
        undisturbed(&lab, &OTHERS, 60 * MS);
        assert_eq!(lab.nodes[BAD].closes, [close::EXCESSIVE], "flood {flood}");
        assert_eq!(lab.source.counters().excess_control, 1);
    }
}

#[test]
fn a_member_without_grants_falls_back_and_delays_others_no_longer() {
    let mut lab = lab();
    lab.nodes[BAD].says = Some(|frame| !matches!(frame, Control::Window(_)));
    lab.disconnect(BAD);
    lab.connect(BAD);
    lab.run(1000 * MS);
    // 1.8 Mbit/s: the first grant of 1 MiB is used up after five seconds.
    let end = lab.elapsed() + 15_000 * MS;
    while lab.elapsed() < end {
        lab.publish(4500);
        lab.run(20 * MS);
    }
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 400 * MS);
    complete(&lab, BAD);
    let moves = lab.moves(BAD);
    assert!(
        moves.contains(&(Rung::Unicast, Cause::TooSlow)),
        "{moves:?}"
    );
}

#[test]
fn replayed_truncated_and_reflected_packets_are_counted_and_change_nothing() {
    let mut lab = lab();
    lab.recording = true;
    let mut at = 0;
    busy(&mut lab, 5000 * MS, |lab| {
        for packet in lab
            .recorded
            .iter()
            .rev()
            .skip(3)
            .take(3)
            .cloned()
            .collect::<Vec<_>>()
        {
            for i in 0..4 {
                lab.inject(i, packet.clone());
                lab.inject(i, packet[..packet.len() - 1 - at % 20].to_vec());
            }
            // Back to the source, in the name of one of them.
            lab.send_datagram(BAD, packet);
            at += 1;
        }
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    for i in 0..4 {
        let stats = stats(&lab, i);
        assert!(
            stats.reception.duplicates >= 500 && stats.reception.flow_invalid >= 500,
            "{stats:?}"
        );
    }
}

#[test]
fn reflected_packets_on_the_control_stream_are_a_violation_or_nothing() {
    let mut lab = lab();
    lab.recording = true;
    busy(&mut lab, 1000 * MS, |_| {});
    for packet in lab.recorded.clone() {
        if lab.nodes[BAD].connected {
            lab.say(BAD, packet);
            lab.run(20 * MS);
        }
    }
    busy(&mut lab, 1000 * MS, |_| {});
    lab.run(1000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    assert!(lab.nodes[BAD].closes.iter().all(|code| *code == VIOLATION));
}

#[test]
fn packets_of_an_older_epoch_are_dropped_once_it_is_over() {
    let mut lab = lab();
    busy(&mut lab, 1000 * MS, |_| {});
    let old = lab.source.flow(0).unwrap().epoch().sequence;
    lab.source.request_rekey(0, lab.now);
    busy(&mut lab, 8000 * MS, |_| {});
    assert_eq!(lab.source.flow(0).unwrap().epoch().sequence, old + 1);
    let before = stats(&lab, 1);
    let mut ping = Vec::new();
    put_ping(&mut ping);
    busy(&mut lab, 2000 * MS, |lab| {
        // Made with the old key, as by a receiver that was locked out since.
        let (ahead, phase) = (next_pn(lab) + 2, old & 1 == 1);
        for (pn, phase) in [(ahead, phase), (ahead, !phase), (7, phase)] {
            let packet = seal(
                &FlowSecret::from([SEED as u8; SECRET_LEN]),
                pn,
                phase,
                &ping,
            );
            (0..4).for_each(|i| lab.inject(i, packet.clone()));
        }
    });
    lab.run(1000 * MS);
    undisturbed(&lab, &[0, 1, 2, 3], 60 * MS);
    assert_eq!(
        stats(&lab, 1).reception.flow_invalid,
        before.reception.flow_invalid + 300
    );
    assert_eq!(lab.source.counters().invalid_acks, 0);
}

/// A forger that is quicker than the source replaces a packet, but cannot keep out its content.
#[test]
fn a_forged_packet_in_the_place_of_a_real_one_keeps_nothing_out() {
    let mut lab = lab();
    let mut ping = Vec::new();
    put_ping(&mut ping);
    let mut n = 0;
    busy(&mut lab, 3000 * MS, |lab| {
        n += 1;
        if n % 20 == 0 {
            let packet = forge(lab, next_pn(lab), false, &ping);
            lab.inject(BAD, packet);
        }
    });
    lab.run(2000 * MS);
    undisturbed(&lab, &OTHERS, 60 * MS);
    complete(&lab, BAD);
    let twice = stats(&lab, BAD).reception.duplicates;
    assert!(twice >= 5, "the numbers came twice: {twice}");
}
