//! Messages: to all receivers that are connected, once, by the flow and by the connections of those
//! that are not on it (protocol.md section 7.8).

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use flexicast::Rung;
use flexicast::fec::{FecConfig, FecPolicy};
use flexicast::flow::{FlowConfig, RateControl};
use flexicast::frame::put_datagram;
use flexicast::message::{Fragment, MAX_MESSAGE};
use flexicast::source::{MessageCounters, MessageError};
use signing::{SALT_LEN, Signer, Statement};

use crate::lab::{CHANNEL, INCARNATION, Lab, UNIX, flow_config};
use crate::signed::{KEY, MS, signer};

const SEED: u64 = 31;

/// A lab whose source signs and keeps deadlines, with receivers that have joined. `unicast` of them
/// get nothing from the flow.
fn lab(nodes: usize, unicast: usize, config: FlowConfig) -> Lab {
    let mut lab = Lab::with_config(SEED, 0, config);
    lab.keep_deadlines(2000 * MS);
    lab.sign_with(KEY);
    for i in 0..nodes {
        lab.add_node(i, None);
        lab.nodes[i].multicast = i >= unicast;
        lab.connect(i);
    }
    lab.run(500 * MS);
    lab
}

/// A message signed by `signer` that expires at this time of the lab.
fn message(signer: &Signer, number: u64, len: usize, until: Duration) -> Bytes {
    let statement = Statement {
        channel: CHANNEL,
        incarnation: INCARNATION,
        seq: number,
        deadline_ms: (UNIX + until).as_millis() as u64,
    };
    let content = Lab::content(number, len);
    let signed = signer.sign_message(&statement, &[3; SALT_LEN], &content);
    signed.unwrap().into()
}

fn send(lab: &mut Lab, number: u64, len: usize) -> Result<(), MessageError> {
    let until = lab.elapsed() + 2000 * MS;
    let message = message(&signer(KEY), number, len, until);
    let sent = lab.source.send_message(0, number, &message, lab.now);
    lab.pump();
    sent
}

fn numbers(lab: &Lab, i: usize) -> Vec<u64> {
    let messages = &lab.nodes[i].messages;
    for (number, encoded) in messages {
        let content = signing::content(encoded);
        assert_eq!(content, Lab::content(*number, content.len()));
    }
    messages.iter().map(|(number, _)| *number).collect()
}

fn counters(lab: &Lab) -> MessageCounters {
    lab.source.counters().messages
}

#[test]
fn each_receiver_gets_a_message_once_on_the_path_that_it_is_on() {
    let mut lab = lab(4, 2, flow_config(SEED));
    let lengths = [1, 900, 1_100, 20_000, 65_536, 70_000];
    for (number, len) in (1..).zip(lengths) {
        send(&mut lab, number, len).unwrap();
        lab.publish(500);
        lab.run(50 * MS);
    }
    lab.run(500 * MS);
    for i in 0..4 {
        assert_eq!(numbers(&lab, i), [1, 2, 3, 4, 5, 6], "receiver {i}");
        let lens = lab.nodes[i].messages.iter();
        let lens: Vec<_> = lens
            .map(|(_, bytes)| signing::content(bytes).len())
            .collect();
        assert_eq!(lens, lengths);
    }
    let counters = counters(&lab);
    assert_eq!(
        (counters.sent, counters.copies, counters.dropped),
        (6, 12, 0)
    );
    lab.assert_complete(1);
    // Nothing of them is acknowledged data: none is repaired.
    assert_eq!(lab.source.counters().repairs, 0);
}

/// A receiver that listens and is no member yet gets it by both paths.
#[test]
fn a_message_of_both_paths_is_handed_on_once() {
    let mut lab = lab(2, 0, flow_config(SEED));
    lab.nodes[1].says = Some(|frame| !format!("{frame:?}").contains("Ready"));
    lab.disconnect(1);
    lab.connect(1);
    lab.run(300 * MS);
    assert_eq!(lab.source.flow(0).unwrap().members(), 1);
    for number in 1..=20 {
        send(&mut lab, number, 3_000).unwrap();
        lab.run(10 * MS);
    }
    lab.run(300 * MS);
    assert_eq!(counters(&lab).copies, 20);
    let stats = lab.nodes[1].core.stats(CHANNEL).unwrap();
    assert!(stats.reception.flow_packets > 60, "it listens");
    for i in 0..2 {
        assert_eq!(numbers(&lab, i), (1..=20).collect::<Vec<_>>());
    }
}

/// Losses are made good by repair symbols, and by nothing else.
#[test]
fn repair_symbols_rebuild_fragments() {
    let delivered = |fec: Option<FecConfig>| {
        let config = FlowConfig {
            fec,
            ..flow_config(SEED)
        };
        let mut lab = lab(3, 0, config);
        lab.nodes.iter_mut().for_each(|node| node.loss = 2);
        for number in 1..=200 {
            send(&mut lab, number, 10_000).unwrap();
            lab.run(20 * MS);
        }
        lab.run(500 * MS);
        for i in 0..3 {
            let numbers = numbers(&lab, i);
            assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len());
        }
        (0..3).map(|i| numbers(&lab, i).len()).sum::<usize>()
    };
    let without = delivered(None);
    assert!((420..540).contains(&without), "{without} of 600");
    let with = delivered(Some(FecConfig {
        policy: FecPolicy::Proactive {
            symbols: 2,
            packets: 8,
        },
        ..FecConfig::default()
    }));
    assert!(with >= 590, "{with} of 600");
}

#[test]
fn late_messages_go_nowhere() {
    let mut config = flow_config(SEED);
    (config.rate, config.control) = (Some(400_000), RateControl::fixed());
    let mut lab = lab(2, 0, config);
    let late = message(&signer(KEY), 1, 100, lab.elapsed() - MS);
    let sent = lab.source.send_message(0, 1, &late, lab.now);
    assert_eq!(sent, Err(MessageError::Late));
    // 60,000 bytes take 1.2 s at this rate: the second of two has expired before the flow has room.
    let until = lab.elapsed() + 1500 * MS;
    for number in 2..=3 {
        let message = message(&signer(KEY), number, 60_000, until);
        lab.source
            .send_message(0, number, &message, lab.now)
            .unwrap();
    }
    lab.run(1000 * MS);
    let sent = lab.source.flow(0).unwrap().stats();
    assert_eq!(sent.late_datagrams, 0);
    lab.run(3000 * MS);
    let sent = lab.source.flow(0).unwrap().stats();
    assert!(sent.late_datagrams > 30, "{sent:?}");
    for i in 0..2 {
        assert_eq!(numbers(&lab, i), [2]);
    }
    // One that arrives late is not handed on either.
    let until = lab.elapsed() + 2 * MS;
    let late = message(&signer(KEY), 4, 100, until);
    lab.source.send_message(0, 4, &late, lab.now).unwrap();
    lab.run(1000 * MS);
    for i in 0..2 {
        assert_eq!(numbers(&lab, i), [2]);
        assert_eq!(lab.nodes[i].core.stats(CHANNEL).unwrap().messages.late, 1);
    }
}

/// Gives all members a fragment under the flow's key.
fn inject(lab: &mut Lab, fragment: Fragment<'_>) {
    let mut frames = Vec::new();
    assert!(put_datagram(&mut frames, 1_100, &fragment.encode()));
    let packet = lab.forge(SEED, lab.next_pn(), false, &frames);
    (0..lab.nodes.len()).for_each(|i| lab.inject(i, packet.clone()));
}

#[test]
fn a_member_forges_no_message() {
    let mut lab = lab(3, 0, flow_config(SEED));
    lab.hostile = true;
    let until = lab.elapsed() + 2000 * MS;
    let genuine = message(&signer(KEY), 1, 300, until);
    let mut changed = genuine.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let update = {
        let statement = Statement {
            channel: CHANNEL,
            incarnation: INCARNATION,
            seq: 8,
            deadline_ms: 0,
        };
        let signed = signer(KEY).sign(&statement, &[3; SALT_LEN], b"an update");
        signed.unwrap()
    };
    // Unsigned; by another key; changed; under another number; signed as an update.
    let forgeries: [(u64, Vec<u8>); 5] = [
        (5, b"who says so?".to_vec()),
        (6, message(&signer(2), 6, 300, until).to_vec()),
        (1, changed),
        (7, genuine.to_vec()),
        (8, update),
    ];
    for (number, data) in &forgeries {
        let fragment = Fragment {
            channel: 1,
            number: *number,
            length: data.len(),
            offset: 0,
            data,
        };
        inject(&mut lab, fragment);
        lab.run(20 * MS);
    }
    for i in 0..3 {
        assert_eq!(numbers(&lab, i), []);
        assert_eq!(lab.nodes[i].core.stats(CHANNEL).unwrap().messages.forged, 5);
    }
    // The source's own is taken afterwards.
    lab.source.send_message(0, 1, &genuine, lab.now).unwrap();
    lab.run(100 * MS);
    for i in 0..3 {
        assert_eq!(numbers(&lab, i), [1]);
    }
}

/// Each costs a check of a signature: after some of them, the flow is left.
#[test]
fn a_flood_of_forged_messages_ends_on_the_unicast_path() {
    let mut lab = lab(2, 0, flow_config(SEED));
    lab.hostile = true;
    let until = lab.elapsed() + 60_000 * MS;
    for number in 1_000..3_000 {
        let mut data = message(&signer(KEY), number, 100, until).to_vec();
        // The signature, or the content.
        let header = signing::header_len(&data).unwrap();
        data[header - 10 + 20 * (number as usize % 2)] ^= 1;
        let fragment = Fragment {
            channel: 1,
            number,
            length: data.len(),
            offset: 0,
            data: &data,
        };
        inject(&mut lab, fragment);
        lab.run(MS / 4);
    }
    let last = |lab: &Lab, i| lab.moves(i).last().map(|moved| moved.0);
    for i in 0..2 {
        let stats = lab.nodes[i].core.stats(CHANNEL).unwrap();
        assert!(
            stats.messages.forged > 0 && stats.messages.forged < 1_500,
            "{stats:?}"
        );
        assert_eq!(last(&lab, i), Some(Rung::Unicast));
    }
    send(&mut lab, 5_000, 500).unwrap();
    lab.run(100 * MS);
    for i in 0..2 {
        assert_eq!(numbers(&lab, i), [5_000], "by the connection");
    }
}

#[test]
fn messages_are_refused_that_cannot_be_sent() {
    let mut lab = lab(2, 1, flow_config(SEED));
    let too_long = vec![1; MAX_MESSAGE + 1];
    let refused =
        |lab: &mut Lab, number, bytes: &[u8]| lab.source.send_message(0, number, bytes, lab.now);
    assert_eq!(refused(&mut lab, 1, b""), Err(MessageError::Length(0)));
    assert_eq!(
        refused(&mut lab, 1, &too_long),
        Err(MessageError::Length(MAX_MESSAGE + 1))
    );
    send(&mut lab, 7, 10).unwrap();
    for number in [1, 6, 7] {
        let last = 7;
        assert_eq!(
            send(&mut lab, number, 10),
            Err(MessageError::Number { number, last })
        );
    }
    // At one instant, more than the flow and the connection hold.
    let until = lab.elapsed() + 2000 * MS;
    let sent = (8..40).map(|number| {
        let message = message(&signer(KEY), number, 65_536, until);
        lab.source.send_message(0, number, &message, lab.now)
    });
    let sent: Vec<_> = sent.collect();
    let room = sent.iter().filter(|sent| sent.is_ok()).count();
    assert!((10..20).contains(&room), "{room}");
    assert!(sent.contains(&Err(MessageError::NoRoom)));
    let counters = counters(&lab);
    assert_eq!(counters.sent, 1 + room as u64);
    assert!(counters.dropped > 5 && counters.copies < 10, "{counters:?}");
    assert_eq!(counters.copies + counters.dropped, counters.sent);
    // There is room again, and the number counts for nothing until it was sent.
    let refused = sent.iter().position(Result::is_err).unwrap() as u64 + 8;
    lab.run(500 * MS);
    send(&mut lab, refused, 65_536).unwrap();
}
