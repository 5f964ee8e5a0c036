//! The source signs its updates: a member with the flow's key forges packets, and receivers hand on
//! nothing that was not signed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{
    Action, CAPABILITY_MULTICAST_IPV4, CAPABILITY_SIGNATURES, Control, ControlReader, Credential,
    Hello, NeedReason, State,
};
use flexicast::forgery::{FORGERIES, Forge, ForgedPacket, Knowledge};
use flexicast::frame::{Frame, Frames, put_stream};
use flexicast::protect::{Algorithm, FlowSecret, PacketKey, SECRET_LEN};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, Unicast};
use flexicast::unicast::{Piece, StreamReader};
use flexicast::{Cause, PathId, Rung, Via};
use signing::{Era, Lineage, Signer, header_len};
use uuid::Uuid;

use crate::lab::{CHANNEL, INCARNATION, Lab, flow_config, signed};

pub const MS: Duration = Duration::from_millis(1);
pub const SEED: u64 = 9;
pub const LEN: usize = 900;
pub const NODES: usize = 4;
/// Seed of the source's key, and of an attacker's.
pub const KEY: u8 = 1;
const OTHER_KEY: u8 = 2;

pub fn signer(seed: u8) -> Signer {
    Signer::from_seed(&[seed; 32]).unwrap()
}

/// A source that signs, and four members.
pub fn members() -> Lab {
    joined(Lab::new(SEED, NODES))
}

fn joined(mut lab: Lab) -> Lab {
    lab.hostile = true;
    lab.sign_with(KEY);
    (0..NODES).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    for i in 0..NODES {
        assert_eq!(lab.moves(i), [(Rung::Multicast, Cause::Joined)]);
    }
    lab
}

pub fn next_seq(lab: &Lab) -> u64 {
    lab.store.len() as u64 + 1
}

/// All members get a packet with these frames under the flow's key.
pub fn inject_frames(lab: &mut Lab, pn: u64, frames: &[u8]) {
    let packet = lab.forge(SEED, pn, false, frames);
    (0..NODES).for_each(|i| lab.inject(i, packet.clone()));
}

/// All members get these bytes of an update in the place of the flow's next packet.
pub fn inject(lab: &mut Lab, seq: u64, offset: u64, data: &[u8], fin: bool) {
    let mut frames = Vec::new();
    put_stream(&mut frames, 1100, seq, offset, data, fin).unwrap();
    inject_frames(lab, lab.next_pn(), &frames);
}

/// All members get a forgery of this kind, as an attacker makes it now. Returns whether one can.
pub fn forge(lab: &mut Lab, forge: Forge) -> bool {
    let last = lab.store.last().cloned().unwrap_or_default();
    let mut changed = last.to_vec();
    changed
        .iter_mut()
        .last()
        .into_iter()
        .for_each(|byte| *byte ^= 1);
    let known = Knowledge {
        seq: next_seq(lab),
        pn: lab.next_pn(),
        last: &last,
        changed: &changed,
        unsigned: &|seq| Lab::content(seq, LEN),
        signed: &|seq| signed(&signer(OTHER_KEY), seq, b"forged"),
    };
    let forged = forge(&known);
    if let Some(ForgedPacket { pn, frames }) = &forged {
        inject_frames(lab, *pn, frames);
    }
    forged.is_some()
}

/// Plays `count` forgeries of one kind, 100 a second, while an update is published every 30 ms;
/// then lets the attack end.
fn attack(name: &str, kind: Forge, count: u32) -> Lab {
    let mut lab = members();
    let mut forged = 0;
    for n in 0..count {
        forged += u32::from(forge(&mut lab, kind));
        if n % 3 == 0 {
            lab.publish(LEN);
        }
        lab.run(10 * MS);
    }
    // Some need an update that was published.
    assert!(
        forged >= count - 1,
        "{name}: {forged} of {count} are forged"
    );
    lab.run(15_000 * MS);
    lab
}

/// The lab itself compares every update that is handed out with what was stored.
#[test]
fn nothing_that_a_member_forges_is_handed_on() {
    for (name, kind) in FORGERIES {
        let lab = attack(name, kind, 90);
        println!("{name}");
        lab.assert_complete(1);
        for (i, node) in lab.nodes.iter().enumerate() {
            assert_eq!(node.closes, [], "{name}: receiver {i} stays connected");
            let held = node.core.buffered();
            assert!(held <= 8 << 20, "{name}: receiver {i} holds {held} bytes");
        }
        // All by unicast would be once.
        let all: usize = lab.store.iter().map(Bytes::len).sum();
        let sent = lab.source.traffic(0);
        let by_unicast = (sent.unicast + sent.repairs) as usize;
        assert!(
            by_unicast <= 2 * NODES * all,
            "{name}: {by_unicast} of {all} bytes"
        );
    }
}

/// After the attack, members are members again, and the flow brings the updates.
#[test]
fn the_flow_serves_again_when_the_attack_is_over() {
    for (name, kind) in FORGERIES {
        let mut lab = attack(name, kind, 60);
        lab.run(120_000 * MS);
        let from = next_seq(&lab);
        for _ in 0..10 {
            lab.publish(LEN);
            lab.run(50 * MS);
        }
        lab.run(2_000 * MS);
        lab.assert_complete(1);
        for (i, node) in lab.nodes.iter().enumerate() {
            let last = lab.moves(i).last().map(|moved| moved.0);
            assert_eq!(last, Some(Rung::Multicast), "{name}: receiver {i}");
            let new = node.got.iter().filter(|got| got.0 >= from);
            let by_flow = new.filter(|got| got.1 == Via::Flow).count();
            assert!(
                by_flow >= 8,
                "{name}: receiver {i} had {by_flow} by the flow"
            );
        }
    }
}

/// A forged beginning is dropped, and the true one is taken from the flow all the same.
#[test]
fn a_forgery_that_comes_first_costs_nothing() {
    let mut lab = members();
    for _ in 0..8 {
        let seq = next_seq(&lab);
        let forged = signed(&signer(OTHER_KEY), seq, b"forged");
        inject(&mut lab, seq, 0, &forged, true);
        inject(&mut lab, seq, 500, &[0xee; 10], false);
        lab.publish(LEN);
        lab.run(50 * MS);
    }
    lab.assert_complete(1);
    assert_eq!(lab.source.counters().needs, 0);
    for (i, node) in lab.nodes.iter().enumerate() {
        assert!(node.got.iter().all(|got| got.1 == Via::Flow));
        let stats = node.core.stats(CHANNEL).unwrap();
        let reception = stats.reception;
        assert_eq!(
            (reception.forged, reception.mismatches),
            (8, 0),
            "receiver {i}"
        );
    }
}

/// A forged packet has the number of the true one, which gets lost, and is acknowledged in its
/// place: as soon as the next update shows that this one was sent, it is asked for, once.
#[test]
fn an_update_that_was_lost_to_a_forgery_is_fetched() {
    let mut lab = members();
    for n in 0..8 {
        let seq = next_seq(&lab);
        let is_attacked = n % 2 == 0;
        if is_attacked {
            let forged = signed(&signer(OTHER_KEY), seq, b"forged");
            inject(&mut lab, seq, 0, &forged, true);
        }
        let loss = if is_attacked { 100 } else { 0 };
        lab.nodes.iter_mut().for_each(|node| node.loss = loss);
        lab.publish(LEN);
        lab.nodes.iter_mut().for_each(|node| node.loss = 0);
        lab.run(50 * MS);
    }
    lab.run(100 * MS);
    lab.assert_complete(1);
    assert_eq!(lab.source.counters().needs, 4 * NODES as u64);
    for node in &lab.nodes {
        let reasons: Vec<_> = node.distrusted.iter().map(|found| found.reason).collect();
        assert_eq!(reasons, [NeedReason::Forged; 4]);
        let by_unicast = node.got.iter().filter(|got| got.1 == Via::Unicast);
        assert_eq!(by_unicast.count(), 4, "the flow brings the others");
    }
    // The source knows who reports it, and reports each receiver once in five minutes.
    assert_eq!(lab.source.counters().forged_reports, 4 * NODES as u64);
    assert_eq!(lab.forgeries.len(), NODES);
    assert!(
        lab.forgeries
            .iter()
            .all(|(_, on, signs)| (*on, *signs) == (Rung::Multicast, 1))
    );
}

/// Members that lose update after update to forgeries are better served by unicast.
#[test]
fn members_that_lose_many_updates_to_forgeries_move_to_unicast() {
    let mut lab = members();
    for n in 0..60 {
        let seq = next_seq(&lab);
        if n % 2 == 0 {
            let forged = signed(&signer(OTHER_KEY), seq, b"forged");
            inject(&mut lab, seq, 0, &forged, true);
        }
        let loss = if n % 2 == 0 { 100 } else { 0 };
        lab.nodes.iter_mut().for_each(|node| node.loss = loss);
        lab.publish(LEN);
        lab.nodes.iter_mut().for_each(|node| node.loss = 0);
        lab.run(100 * MS);
    }
    lab.run(5_000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        let moves = lab.moves(i);
        assert!(moves.contains(&(Rung::Unicast, Cause::Forged)), "{moves:?}");
        assert_eq!(moves.last(), Some(&(Rung::Multicast, Cause::Joined)));
    }
}

/// Receivers verify a header before they take anything else of the update, so it is whole in the
/// first frame: wherever in a packet the update begins, and where it is repaired on the flow.
#[test]
fn headers_are_never_split() {
    let mut lab = joined(Lab::without_fec(SEED, NODES));
    lab.recording = true;
    lab.shared_loss = 20;
    let mut length = 0;
    for _ in 0..60 {
        for _ in 0..8 {
            length = (length + 211) % 2_500;
            lab.publish(length);
        }
        lab.run(50 * MS);
    }
    // Enough hashes for the longest header, behind a frame that leaves no room for it.
    lab.publish(300);
    lab.publish(900_000);
    lab.run(10_000 * MS);
    lab.assert_complete(1);
    let secret = FlowSecret::from([SEED as u8; SECRET_LEN]);
    let mut key = PacketKey::new(Algorithm::Aes128Gcm, &secret).unwrap();
    let (mut begun, mut shared) = (0, 0);
    for packet in &mut lab.recorded {
        let opened = key.open(0, packet).unwrap();
        for (place, frame) in Frames::new(opened.frames).enumerate() {
            let Frame::Stream {
                seq, offset, data, ..
            } = frame.unwrap()
            else {
                continue;
            };
            let header = header_len(&lab.store[seq as usize - 1]).unwrap();
            if offset == 0 {
                assert!(data.len() >= header, "{} of {header} bytes", data.len());
                begun += 1;
                shared += usize::from(place > 0);
            } else {
                assert!(offset as usize >= header, "a frame within a header");
            }
        }
    }
    assert!(begun > lab.store.len(), "some are repaired on the flow");
    assert!(shared > 50, "{shared} begin behind other frames");
}

/// Bytes of an update far longer than what is kept of it before its header come in any order, and
/// a forger's beside them.
#[test]
fn long_updates_come_whole_through_losses_and_forgeries() {
    let mut lab = members();
    lab.jitter = 3 * MS;
    lab.nodes.iter_mut().for_each(|node| node.loss = 3);
    for n in 0..6 {
        let seq = next_seq(&lab);
        inject(&mut lab, seq, 70_000, &[0xee; 10], false);
        lab.publish(800_000);
        for _ in 0..10 {
            inject(&mut lab, seq, 400_000 + n * 10, &[0xee; 10], false);
            lab.run(70 * MS);
        }
    }
    lab.run(20_000 * MS);
    lab.assert_complete(1);
}

/// Without the check of signatures, the forgery is taken: these tests would notice.
#[test]
fn without_the_check_a_forgery_is_handed_on() {
    let mut lab = members();
    lab.tolerates_forgery = true;
    for node in &mut lab.nodes {
        node.core.set_signatures_off(true);
    }
    let forged = signed(&signer(OTHER_KEY), 1, b"forged");
    inject(&mut lab, 1, 0, &forged, true);
    lab.run(50 * MS);
    for node in &lab.nodes {
        assert_eq!(node.forged, [1]);
    }
}

/// The end of an update, changed, comes before the update: behind its true header the hashes tell.
#[test]
fn without_the_hashes_a_changed_end_is_handed_on() {
    for is_off in [false, true] {
        let mut lab = members();
        lab.tolerates_forgery = true;
        for node in &mut lab.nodes {
            node.core.set_hash_check_off(is_off);
        }
        let mut changed = signed(&signer(KEY), 1, &Lab::content(1, 2_000));
        *changed.last_mut().unwrap() ^= 1;
        let mut frames = Vec::new();
        put_stream(&mut frames, 1400, 1, 1_000, &changed[1_000..], true).unwrap();
        // In the place of the update's second packet.
        let pn = lab.next_pn() + 1;
        inject_frames(&mut lab, pn, &frames);
        lab.publish(2_000);
        lab.run(2_000 * MS);
        for node in &lab.nodes {
            assert_eq!(node.forged, vec![1; usize::from(is_off)]);
            assert_eq!(node.got.len(), 1);
        }
    }
}

/// The key changes while updates are on their way, with losses: what either key signed is taken.
#[test]
fn the_key_is_rotated_without_loss() {
    let mut lab = members();
    lab.nodes.iter_mut().for_each(|node| node.loss = 10);
    for n in 0..60 {
        if n == 20 {
            lab.sign_with(OTHER_KEY);
        }
        if n == 40 {
            let seq = next_seq(&lab);
            let forged = signed(&signer(KEY), seq, b"by the old key");
            inject(&mut lab, seq, 0, &forged, true);
        }
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.run(10_000 * MS);
    lab.assert_complete(1);
    for node in &lab.nodes {
        let stats = node.core.stats(CHANNEL).unwrap();
        assert_eq!(stats.reception.forged, 1, "the old key signs no more");
    }
}

/// What was stored before the source signed lies in no era: it comes by unicast, and nothing of it
/// is taken from the flow.
#[test]
fn unsigned_updates_come_by_unicast_alone() {
    let mut lab = Lab::new(SEED, 0);
    lab.hostile = true;
    for _ in 0..50 {
        lab.publish(LEN);
    }
    lab.sign_with(KEY);
    for i in 0..NODES {
        lab.add_node(i, None);
        lab.connect(i);
    }
    lab.run(500 * MS);
    lab.publish(LEN);
    lab.run(500 * MS);
    lab.assert_complete(1);
    for (i, node) in lab.nodes.iter().enumerate() {
        let vias: Vec<_> = node.got.iter().map(|got| got.1).collect();
        assert_eq!(vias[..50], [Via::Unicast; 50], "receiver {i}");
        assert_eq!(vias[50], Via::Flow, "receiver {i}");
        assert_eq!(node.distrusted.len(), 0, "receiver {i}");
    }
}

/// A source and one receiver with these capabilities, without a lab.
pub fn welcome(
    source: &mut Source,
    session: u64,
    capabilities: &[u64],
    now: Instant,
) -> Vec<Control> {
    source.accept(session, now);
    let hello = Hello {
        receiver: Uuid::from_u128(session.into()),
        name: "r".into(),
        software: String::new(),
        credential: Credential::None,
        channels: vec![(CHANNEL.into(), None)],
        capabilities: capabilities.to_vec(),
    };
    let mut bytes = Vec::new();
    Control::Hello(hello).encode(&mut bytes);
    source.on_control(session, &bytes, now).unwrap();
    source.authorised(session, Ok(()), now);
    said(source, session)
}

pub fn said(source: &mut Source, session: u64) -> Vec<Control> {
    let mut reader = ControlReader::new();
    reader.push(&source.take_control(session));
    std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
}

/// Returns the updates on a session's unicast path, whole.
fn by_unicast(source: &mut Source, session: u64, now: Instant) -> Vec<Bytes> {
    let mut all = Vec::new();
    loop {
        match source.poll_unicast(session, now) {
            Unicast::Stream { head, body, .. } => {
                let mut reader = StreamReader::default();
                reader.push(&[&head[..], &body].concat());
                match reader.next_piece().unwrap().unwrap() {
                    Piece::Range { header, data } => {
                        assert_eq!((header.offset, header.total), (0, data.len() as u64));
                        assert_eq!(header.encoding, data[0]);
                        all.push(Bytes::from(data.to_vec()));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Unicast::Idle => return all,
            other => panic!("{other:?}"),
        }
    }
}

/// A source whose flow comes by replication alone.
pub fn replicating_source(private: bool) -> Source {
    let channel = ChannelConfig {
        name: CHANNEL.into(),
        incarnation: INCARNATION,
        head: 0,
        first: 1,
        private,
        endpoints: Vec::new(),
        replicate: true,
        flow: Some(flow_config(SEED)),
    };
    let config = SourceConfig {
        channels: vec![channel],
        unicast_rate: None,
        limits: Limits::default(),
        seed: SEED,
    };
    Source::new(config).unwrap()
}

/// A receiver of a version before signed updates never meets one: it gets the content, and no flow.
#[test]
fn a_receiver_that_does_not_verify_gets_the_content_by_unicast() {
    let now = Instant::now();
    let mut source = replicating_source(false);
    let announced = |frames: &[Control]| {
        let is = |frame: &Control| matches!(frame, Control::Announce(_));
        frames.iter().any(is)
    };
    let told = |frames: &[Control]| {
        let is = |frame: &Control| matches!(frame, Control::Lineage(_));
        frames.iter().position(is)
    };
    let (old, new) = ([CAPABILITY_MULTICAST_IPV4], [CAPABILITY_SIGNATURES]);
    let era = Era {
        first: 1,
        last: None,
        incarnation: INCARNATION,
        key: signer(KEY).key(),
    };
    let lineage = Lineage::new(vec![era]).unwrap();
    let frames = welcome(&mut source, 1, &old, now);
    assert!(announced(&frames) && told(&frames).is_none(), "{frames:?}");
    // It has the flow: the source cannot begin to sign.
    assert!(!source.set_lineage(0, lineage.clone()));
    source.closed(1, now);
    assert!(source.set_lineage(0, lineage.clone()));
    let frames = welcome(&mut source, 2, &old, now);
    assert!(!announced(&frames) && told(&frames).is_none(), "{frames:?}");
    let frames = welcome(&mut source, 3, &new, now);
    assert!(announced(&frames) && told(&frames) == Some(1), "{frames:?}");

    let unverified: Vec<_> = source
        .sessions()
        .map(|session| session.channels[0].unverified)
        .collect();
    assert_eq!(unverified, [true, false]);
    // An old one that knows the flow from before gets no key, whatever it asks for.
    let keyed = |frames: &[Control]| {
        let is = |frame: &Control| matches!(frame, Control::Key(_));
        frames.iter().any(is)
    };
    for (session, is_keyed) in [(2, false), (3, true)] {
        let join = Control::State(State {
            flow: flow_config(SEED).flow,
            sequence: 1,
            action: Action::Join,
            path: PathId(0),
            key_sequence: 0,
            cause: None,
            largest: None,
        });
        let mut bytes = Vec::new();
        join.encode(&mut bytes);
        source.on_control(session, &bytes, now).unwrap();
        let frames = said(&mut source, session);
        assert_eq!(keyed(&frames), is_keyed, "session {session}: {frames:?}");
    }

    let content = b"\0{}".to_vec();
    let update = Bytes::from(signed(&signer(KEY), 1, &content));
    source.publish(0, 1, update.clone());
    assert_eq!(by_unicast(&mut source, 2, now), [content]);
    assert_eq!(by_unicast(&mut source, 3, now), [update]);
    // Later announcements are not for it either.
    source.set_endpoints(0, Vec::new(), now);
    assert!(source.set_lineage(0, lineage));
    assert!(!source.set_lineage(0, Lineage::default()));
    let frames = said(&mut source, 2);
    assert!(!announced(&frames) && told(&frames).is_none(), "{frames:?}");
    let frames = said(&mut source, 3);
    assert!(announced(&frames) && told(&frames).is_some(), "{frames:?}");
}
