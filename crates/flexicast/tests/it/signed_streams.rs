//! Flows whose streams are signed: nothing that a member with the flow's key forges is handed on,
//! and lost signatures lose nothing.

use std::time::Duration;

use flexicast::authentication::{
    AuthenticationConfig, FlowAuthentication, PacketAuthentication, PacketSigner,
};
use flexicast::control::{
    CAPABILITY_PACKET_AUTHENTICATION, CAPABILITY_STREAM_SIGNATURES, Control, NeedReason,
};
use flexicast::flow::FlowConfig;
use flexicast::frame::{Frame, Frames, put_ping, put_stream, put_stream_signature};
use flexicast::protect::{Algorithm, FlowSecret, PacketKey};
use flexicast::source::SourceCounters;
use flexicast::{Cause, Rung, Via};

use crate::lab::{CHANNEL, Lab, flow_config};
use crate::signed::welcome;

const MS: Duration = Duration::from_millis(1);
const SEED: u64 = 12;
const LEN: usize = 900;
const NODES: usize = 4;
const MEMBER: [(Rung, Cause); 1] = [(Rung::Multicast, Cause::Joined)];
const SECRET: [u8; 32] = [0x5a; 32];

fn config() -> FlowConfig {
    FlowConfig {
        authentication: Some(AuthenticationConfig {
            packets: PacketAuthentication::Stream,
            secret: FlowSecret::from(SECRET),
        }),
        fec: None,
        ..flow_config(SEED)
    }
}

fn connected(mut lab: Lab) -> Lab {
    lab.hostile = true;
    (0..NODES).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    for i in 0..NODES {
        assert_eq!(lab.moves(i), MEMBER);
    }
    lab
}

/// A source whose flow signs its streams, and four members.
fn members() -> Lab {
    connected(Lab::with_config(SEED, NODES, config()))
}

fn next_seq(lab: &Lab) -> u64 {
    lab.store.len() as u64 + 1
}

/// Calls `on` with each frame of a packet of the first key epoch.
fn each_frame(packet: &[u8], mut on: impl FnMut(Frame<'_>)) {
    let secret = FlowSecret::from([SEED as u8; 32]);
    let mut key = PacketKey::new(Algorithm::Aes128Gcm, &secret).unwrap();
    let mut packet = packet.to_vec();
    let opened = key.open(0, &mut packet).unwrap();
    Frames::new(opened.frames).flatten().for_each(&mut on);
}

fn has_signature(packet: &[u8]) -> bool {
    let mut found = false;
    each_frame(packet, |frame| {
        found |= matches!(frame, Frame::StreamSignature { .. });
    });
    found
}

fn without_flow(lab: &Lab, i: usize) -> usize {
    let got = lab.nodes[i].got.iter();
    got.filter(|got| got.1 != Via::Flow).count()
}

/// Updates of one packet and of many, and one that is empty.
#[test]
fn updates_come_by_the_flow_each_with_one_signature() {
    let mut lab = members();
    lab.recording = true;
    for n in 0..40 {
        lab.publish(match n % 8 {
            0 => 60_000,
            1 => 0,
            _ => LEN + n,
        });
        if n % 3 == 0 {
            lab.run(40 * MS);
        }
    }
    lab.run(2_000 * MS);
    lab.assert_complete(1);
    let key = config().authentication.unwrap().signer().unwrap().key();
    let announced = lab.source.flow(0).unwrap().authentication();
    assert_eq!(announced, Some(FlowAuthentication::Streams(key)));
    let (mut signed, mut alone) = (Vec::new(), 0);
    for packet in &lab.recorded {
        let mut others = 0;
        each_frame(packet, |frame| match frame {
            Frame::StreamSignature { seq, signature } => {
                assert!(key.signed_stream(seq, &lab.store[seq as usize - 1], signature));
                signed.push(seq);
            }
            _ => others += 1,
        });
        alone += usize::from(others == 0);
    }
    assert_eq!(signed, (1..=40).collect::<Vec<_>>());
    assert!(alone < 20, "{alone} packets with signatures alone");
    let longest = lab.recorded.iter().map(Vec::len).max().unwrap();
    assert!(longest <= lab.config.udp_payload, "{longest} bytes");
    for i in 0..NODES {
        assert_eq!((lab.moves(i), without_flow(&lab, i)), (MEMBER.to_vec(), 0));
    }
    let counters = lab.source.counters();
    assert_eq!(
        (counters.needs, counters.needs_missing, counters.repairs),
        (0, 0, 0)
    );
}

/// Signed updates beside it change nothing, nor do key epochs.
#[test]
fn losses_reordering_and_key_epochs_lose_nothing() {
    for signs in [false, true] {
        let mut lab = Lab::with_config(SEED, NODES, config());
        if signs {
            lab.sign_with(1);
        }
        let mut lab = connected(lab);
        lab.jitter = 4 * MS;
        lab.nodes.iter_mut().for_each(|node| node.loss = 3);
        for n in 0..120 {
            lab.publish(match n % 10 {
                0 => 20_000,
                5 => 0,
                _ => LEN,
            });
            lab.run(20 * MS);
            if n % 50 == 20 {
                lab.source.request_rekey(0, lab.now);
            }
        }
        lab.run(8_000 * MS);
        lab.assert_complete(1);
        assert!(lab.source.counters().rekeys > 0);
        for i in 0..NODES {
            let stats = lab.nodes[i].core.stats(CHANNEL).unwrap();
            assert_eq!((stats.reception.forged, stats.reception.mismatches), (0, 0));
            assert_eq!(lab.nodes[i].distrusted, []);
            let others = without_flow(&lab, i);
            assert!((1..60).contains(&others), "{others} by unicast");
        }
    }
}

/// Receivers come, go and move in the middle of long updates.
#[test]
fn members_that_come_and_go_within_an_update_get_all_of_it() {
    let mut lab = members();
    for n in 0..60 {
        lab.publish(150_000);
        let i = n % NODES;
        match n % 3 {
            0 => lab.nodes[i].multicast = false,
            1 => lab.disconnect(i),
            _ => {}
        }
        lab.run(if n % 3 == 0 { 400 * MS } else { 70 * MS });
        for i in 0..NODES {
            lab.nodes[i].multicast = true;
            if !lab.nodes[i].connected {
                lab.connect(i);
            }
        }
        lab.run(300 * MS);
    }
    lab.run(10_000 * MS);
    lab.assert_complete(1);
    assert!(lab.source.counters().fall_backs > 5);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].distrusted, []);
    }
}

/// A lost signature is repaired like any bytes: for many on the flow, for one by all of its update.
#[test]
fn lost_signatures_are_repaired() {
    let lose = |drops: fn(usize, &[u8]) -> bool| -> (SourceCounters, Lab) {
        let mut lab = members();
        lab.drops = Some(drops);
        for _ in 0..20 {
            lab.publish(30_000);
            lab.run(60 * MS);
        }
        lab.run(8_000 * MS);
        lab.assert_complete(1);
        for i in 0..NODES {
            assert_eq!(lab.nodes[i].distrusted, []);
        }
        let counters = lab.source.counters();
        assert_eq!((counters.needs, counters.needs_missing), (0, 0));
        (counters, lab)
    };
    let (counters, lab) = lose(|i, packet| i == 0 && has_signature(packet));
    assert!(counters.repairs >= 20, "{}", counters.repairs);
    assert_eq!(counters.shared_repairs, 0);
    for i in 1..NODES {
        assert_eq!(without_flow(&lab, i), 0, "receiver {i}");
    }
    // Members that miss them again get the updates by unicast.
    let (counters, _) = lose(|_, packet| has_signature(packet));
    assert!(counters.shared_repairs > 0);
}

/// Bytes that all members miss are sent again on the flow, the signature without its update.
#[test]
fn many_members_get_a_signature_again_on_the_flow() {
    const UPDATES: usize = 120;
    let mut lab = members();
    lab.recording = true;
    lab.shared_loss = 9;
    for n in 0..UPDATES {
        lab.publish(3_000 + n);
        lab.run(100 * MS);
    }
    lab.shared_loss = 0;
    lab.run(8_000 * MS);
    lab.assert_complete(1);
    let mut again = -(UPDATES as i64);
    for packet in &lab.recorded {
        each_frame(packet, |frame| {
            again += i64::from(matches!(frame, Frame::StreamSignature { .. }));
        });
    }
    assert!(again > 2, "{again} signatures were sent again");
    let (counters, bytes) = (lab.source.counters(), UPDATES * 3_000);
    let sent = lab.source.flow(0).unwrap().stats().bytes as usize;
    assert!(sent < bytes * 5 / 4, "{sent} bytes for {bytes}");
    assert_eq!((counters.needs, counters.needs_missing), (0, 0));
    for i in 0..NODES {
        let others = without_flow(&lab, i);
        assert!(
            others < UPDATES / 4,
            "receiver {i}: {others} by unicast, {again} again"
        );
    }
}

/// A packet number that a forger takes hides the loss of the signature: the receiver asks for what
/// the unicast path has not brought.
#[test]
fn a_signature_that_never_comes_leads_to_the_unicast_path() {
    let mut lab = members();
    lab.drops = Some(|i, packet| i == 0 && has_signature(packet));
    for n in 0..12 {
        let mut ping = Vec::new();
        put_ping(&mut ping);
        let first = lab.next_pn();
        lab.publish(5_000);
        lab.run(10 * MS);
        for pn in first..lab.next_pn() {
            let forged = lab.forge(SEED, pn, false, &ping);
            lab.inject(0, forged);
        }
        lab.run(if n % 4 == 3 { 5_000 * MS } else { 20 * MS });
    }
    lab.drops = None;
    lab.run(60_000 * MS);
    lab.assert_complete(1);
    let counters = lab.source.counters();
    assert!(counters.needs_missing > 0 && counters.resent_updates > 0);
    assert_eq!((counters.repairs, counters.fall_backs), (0, 0));
    assert_eq!(lab.nodes[0].closes, []);
    // Afterwards all is as before.
    let before = lab.nodes[1].got.len();
    for _ in 0..20 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    assert!(
        lab.nodes[1].got[before..]
            .iter()
            .all(|got| got.1 == Via::Flow)
    );
}

/// Kind of forgery: frames by what holders of the flow's key have.
type Forge = fn(u64) -> Vec<u8>;

fn other_signature(seq: u64, bytes: &[u8]) -> [u8; 64] {
    let signer = PacketSigner::new(&FlowSecret::from([1; 32])).unwrap();
    signer.sign_stream(seq, bytes)
}

const FORGERIES: [(&str, Forge); 5] = [
    ("a whole update", |seq| {
        let mut out = Vec::new();
        put_stream(&mut out, 1100, seq, 0, b"forged", true).unwrap();
        out
    }),
    ("a whole update with a signature", |seq| {
        let mut out = Vec::new();
        put_stream(&mut out, 1100, seq, 0, b"forged", true).unwrap();
        let signature = other_signature(seq, b"forged");
        assert!(put_stream_signature(&mut out, 1100, seq, &signature));
        out
    }),
    ("a signature alone", |seq| {
        let mut out = Vec::new();
        assert!(put_stream_signature(&mut out, 1100, seq, &[0xee; 64]));
        out
    }),
    ("bytes in the middle", |seq| {
        let mut out = Vec::new();
        put_stream(&mut out, 1100, seq, 100, b"forged", false).unwrap();
        out
    }),
    ("an update far ahead, with a signature", |seq| {
        let mut out = Vec::new();
        put_stream(&mut out, 1100, seq + 40, 0, b"forged", true).unwrap();
        let signature = other_signature(seq + 40, b"forged");
        assert!(put_stream_signature(&mut out, 1100, seq + 40, &signature));
        out
    }),
];

/// The lab compares each update that is handed on with the source's.
#[test]
fn nothing_that_a_member_forges_is_handed_on() {
    for (name, forge) in FORGERIES {
        let mut lab = members();
        for n in 0..60 {
            let frames = forge(next_seq(&lab));
            // In the place of a packet that comes later.
            let packet = lab.forge(SEED, lab.next_pn() + 3, false, &frames);
            (0..NODES).for_each(|i| lab.inject(i, packet.clone()));
            lab.run(5 * MS);
            if n % 2 == 0 {
                lab.publish(if n % 6 == 0 { 20_000 } else { LEN });
            }
            lab.run(200 * MS);
        }
        lab.run(20_000 * MS);
        lab.assert_complete(1);
        for (i, node) in lab.nodes.iter().enumerate() {
            assert_eq!(node.forged, [], "{name}: receiver {i}");
            assert_eq!(node.closes, [], "{name}: receiver {i}");
            assert_eq!(node.reconnects, 0, "{name}: receiver {i}");
            let reasons = node.distrusted.iter().map(|found| found.reason);
            let mut seen = reasons.filter(|reason| *reason != NeedReason::Missing);
            // The true signature takes the place of one that is forged alone.
            let is_noticed = seen.next().is_some();
            assert_eq!(
                is_noticed,
                name != "a signature alone",
                "{name}: receiver {i}"
            );
        }
    }
}

/// The same without signatures of streams: the forgery is handed on, and the test above would
/// notice.
#[test]
fn without_signatures_a_forged_update_is_handed_on() {
    let mut lab = connected(Lab::with_config(SEED, NODES, flow_config(SEED)));
    lab.tolerates_forgery = true;
    let frames = FORGERIES[0].1(next_seq(&lab));
    let packet = lab.forge(SEED, lab.next_pn() + 3, false, &frames);
    lab.inject(0, packet);
    lab.run(5 * MS);
    lab.publish(LEN);
    lab.run(200 * MS);
    assert_eq!(lab.nodes[0].forged, [1]);
}

/// A flow in the place of another has another key.
#[test]
fn another_flow_takes_over() {
    let mut lab = members();
    for n in 0..30 {
        lab.publish(if n % 3 == 0 { 60_000 } else { LEN });
        lab.run(40 * MS);
        if n == 10 {
            lab.publish(150_000);
            lab.run(20 * MS);
            lab.restart_source(SEED + 1);
            (0..NODES).for_each(|i| lab.connect(i));
            lab.run(500 * MS);
        }
    }
    lab.run(3_000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].got.last().map(|got| got.1), Some(Via::Flow));
    }
}

/// A receiver of a version before, which authenticates packets at most, gets everything by unicast.
#[test]
fn a_receiver_that_verifies_no_streams_gets_no_such_flow() {
    let mut lab = Lab::with_config(SEED, 0, config());
    for (i, authenticates) in [true, false].into_iter().enumerate() {
        lab.authenticates = authenticates;
        lab.add_node(i, None);
        lab.connect(i);
    }
    lab.run(500 * MS);
    for _ in 0..20 {
        lab.publish(LEN);
        lab.run(40 * MS);
    }
    lab.run(1_000 * MS);
    lab.assert_complete(1);
    assert_eq!((lab.moves(0), lab.moves(1)), (MEMBER.to_vec(), vec![]));
    assert_eq!(lab.nodes[1].said, []);
    assert!(lab.nodes[1].got.iter().all(|got| got.1 == Via::Unicast));
    for (session, capability, is_announced) in [
        (90, CAPABILITY_PACKET_AUTHENTICATION, false),
        (91, CAPABILITY_STREAM_SIGNATURES, true),
    ] {
        let frames = welcome(&mut lab.source, session, &[capability], lab.now);
        let announced = frames.iter().any(|it| matches!(it, Control::Announce(_)));
        assert_eq!(announced, is_announced, "capability {capability}");
    }
}
