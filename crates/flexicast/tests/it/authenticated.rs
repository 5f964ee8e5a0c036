//! Flows whose packets are authenticated: a member with the flow's key forges packets, and none of
//! them has any effect.

use std::time::{Duration, Instant};

use flexicast::authentication::{
    AuthenticationConfig, FlowAuthentication, PACKET_TAG_LEN, PacketAuthentication, PacketSigner,
    put_tags,
};
use flexicast::control::{Announce, Control};
use flexicast::flow::{FlowConfig, FlowSender, RateControl};
use flexicast::frame::{put_datagram, put_ping, put_reset, put_stream};
use flexicast::message::Fragment;
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey, TAG_LEN};
use flexicast::receiver::{ChannelStats, FlowInput};
use flexicast::{Cause, Rung, Via};

use crate::lab::{CHANNEL, Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
const SEED: u64 = 11;
const LEN: usize = 900;
const NODES: usize = 4;
const MEMBER: [(Rung, Cause); 1] = [(Rung::Multicast, Cause::Joined)];
const TYPES: [PacketAuthentication; 2] =
    [PacketAuthentication::Signature, PacketAuthentication::Tags];

fn config(packets: Option<PacketAuthentication>) -> FlowConfig {
    FlowConfig {
        authentication: packets.map(|packets| AuthenticationConfig {
            packets,
            secret: FlowSecret::from([0x5a; 32]),
        }),
        ..flow_config(SEED)
    }
}

/// A source and four members.
fn members(packets: Option<PacketAuthentication>) -> Lab {
    let mut lab = Lab::with_config(SEED, NODES, config(packets));
    lab.hostile = true;
    (0..NODES).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    for i in 0..NODES {
        assert_eq!(lab.moves(i), MEMBER, "{packets:?}");
    }
    lab
}

fn stats(lab: &Lab, i: usize) -> ChannelStats {
    lab.nodes[i].core.stats(CHANNEL).unwrap()
}

fn assert_by_flow(lab: &Lab, what: &str) {
    lab.assert_complete(1);
    for (i, node) in lab.nodes.iter().enumerate() {
        assert_eq!(lab.moves(i), MEMBER, "{what}: receiver {i}");
        assert_eq!(node.closes, [], "{what}: receiver {i}");
        let vias = node.got.iter().filter(|got| got.1 != Via::Flow);
        assert_eq!(vias.count(), 0, "{what}: receiver {i}");
    }
}

#[test]
fn updates_come_by_flows_of_either_type() {
    for packets in TYPES {
        let mut lab = members(Some(packets));
        for n in 0..40 {
            lab.publish(if n % 8 == 0 { 60_000 } else { LEN });
            lab.run(40 * MS);
        }
        lab.run(1_000 * MS);
        assert_by_flow(&lab, &format!("{packets:?}"));
        let sent = lab.source.flow(0).unwrap().stats();
        let (signed, tagged) = match packets {
            PacketAuthentication::Signature => (sent.packets, 0),
            _ => (0, sent.tag_packets.max(40)),
        };
        assert_eq!((sent.signed, sent.tag_packets), (signed, tagged));
        // Trains share a packet of tags.
        assert!(sent.tag_packets < sent.packets);
        for i in 0..NODES {
            let stats = stats(&lab, i);
            assert_eq!((stats.forged_packets, stats.untagged_packets), (0, 0));
            assert_eq!(stats.reception.flow_invalid, 0);
        }
    }
}

#[test]
fn no_packet_is_longer_than_configured() {
    for packets in TYPES {
        let mut lab = members(Some(packets));
        lab.recording = true;
        lab.publish(300_000);
        lab.run(2_000 * MS);
        let config = lab.config.clone();
        let longest = lab.recorded.iter().map(Vec::len).max().unwrap();
        assert!(longest <= config.udp_payload, "{longest} bytes");
        assert!(longest > config.udp_payload - 100, "{longest} bytes");
        assert_by_flow(&lab, &format!("{packets:?}"));
    }
}

/// Losses of packets and of tags are repaired as any others.
#[test]
fn losses_and_reordering_lose_nothing() {
    for packets in TYPES {
        let mut lab = members(Some(packets));
        lab.jitter = 4 * MS;
        lab.nodes.iter_mut().for_each(|node| node.loss = 3);
        for n in 0..100 {
            lab.publish(if n % 10 == 0 { 20_000 } else { LEN });
            lab.run(20 * MS);
            if n == 50 {
                lab.source.request_rekey(0, lab.now);
            }
        }
        lab.run(5_000 * MS);
        lab.assert_complete(1);
        for i in 0..NODES {
            assert_eq!(stats(&lab, i).forged_packets, 0);
        }
        assert!(lab.source.counters().rekeys > 0);
    }
}

/// Kind of forgery: makes packets by what holders of the flow's key have.
type Forge = fn(&Lab) -> Vec<Vec<u8>>;

fn frames(lab: &Lab, pn: u64, put: impl FnOnce(&mut Vec<u8>)) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    put(&mut frames);
    vec![lab.forge(SEED, pn, false, &frames)]
}

/// A packet of tags for all members under the flow's key, of all these packet numbers.
fn forged_tags(lab: &Lab, numbers: impl IntoIterator<Item = u64>) -> Option<Vec<u8>> {
    let FlowAuthentication::Packets(parameters) = lab.source.flow(0)?.authentication()? else {
        return None;
    };
    let mut packet = vec![0; HEADER_LEN];
    let tags: Vec<_> = (1..=4).map(|n| (n, [0xee; PACKET_TAG_LEN])).collect();
    for pn in numbers {
        put_tags(&mut packet, 1_100, pn, &tags);
    }
    let end = packet.len();
    packet.resize(end + TAG_LEN, 0);
    let secret = FlowSecret::from([SEED as u8; 32]);
    let mut key = PacketKey::for_tags(Algorithm::Aes128Gcm, &secret).unwrap();
    key.seal(parameters.tag_flow, 1 << 22, true, &mut packet, end)?;
    Some(packet)
}

/// Whether it is a packet of tags that the source sent.
fn is_tags(lab: &Lab, packet: &[u8]) -> bool {
    let authentication = lab.source.flow(0).and_then(|flow| flow.authentication());
    let Some(FlowAuthentication::Packets(known)) = authentication else {
        return false;
    };
    packet.get(1..9) == Some(&known.tag_flow.0)
}

const FORGERIES: [(&str, Forge); 13] = [
    ("PING", |lab| frames(lab, lab.next_pn(), put_ping)),
    ("packet numbers that were not sent", |lab| {
        frames(lab, lab.next_pn() + 3, put_ping)
    }),
    ("packet numbers far ahead", |lab| {
        frames(lab, lab.next_pn() + (1 << 30), put_ping)
    }),
    ("packet numbers that were sent", |lab| {
        frames(lab, lab.next_pn().saturating_sub(1), put_ping)
    }),
    ("the next update", |lab| {
        let seq = lab.store.len() as u64 + 1;
        frames(lab, lab.next_pn(), |out| {
            put_stream(out, 1100, seq, 0, b"forged", true).unwrap();
        })
    }),
    ("RESET_STREAM of the next update", |lab| {
        let seq = lab.store.len() as u64 + 1;
        frames(lab, lab.next_pn(), |out| put_reset(out, seq, 0, 5))
    }),
    ("DATAGRAM", |lab| {
        frames(lab, lab.next_pn(), |out| {
            let fragment = Fragment {
                channel: 1,
                number: 1,
                length: 6,
                offset: 0,
                data: b"forged",
            };
            put_datagram(out, 1100, &fragment.encode());
        })
    }),
    ("frames that make no sense", |lab| {
        frames(lab, lab.next_pn(), |out| out.push(0x3f))
    }),
    ("a signature by another key", |lab| {
        let mut all = frames(lab, lab.next_pn() + 2, put_ping);
        let mut signer = PacketSigner::new(&FlowSecret::from([1; 32])).unwrap();
        all.iter_mut()
            .for_each(|packet| signer.sign_packet(packet, 0));
        all
    }),
    ("tags of one's own", |lab| {
        let pn = lab.next_pn() + 2;
        let mut all: Vec<_> = forged_tags(lab, [pn]).into_iter().collect();
        all.extend(frames(lab, pn, put_ping));
        all.extend(forged_tags(lab, [pn]));
        all
    }),
    ("tags of packets to come", |lab| {
        let next = lab.next_pn();
        forged_tags(lab, next..next + 12).into_iter().collect()
    }),
    ("the newest packet of tags, ten times", |lab| {
        let mut sent = lab.recorded.iter().rev();
        let newest = sent.find(|packet| is_tags(lab, packet));
        newest.map_or(Vec::new(), |newest| vec![newest.clone(); 10])
    }),
    ("the first packet of tags", |lab| {
        let sent = lab.recorded.iter();
        sent.filter(|packet| is_tags(lab, packet))
            .take(1)
            .cloned()
            .collect()
    }),
];

/// Plays a forgery 100 times a second to all members, before and after each of the updates.
fn attack(lab: &mut Lab, forge: Forge) {
    lab.recording = true;
    for n in 0..150 {
        for packet in forge(lab) {
            (0..NODES).for_each(|i| lab.inject(i, packet.clone()));
        }
        if n % 3 == 1 {
            lab.run(5 * MS);
            lab.publish(LEN);
            lab.run(5 * MS);
        } else {
            lab.run(10 * MS);
        }
    }
    lab.run(2_000 * MS);
}

#[test]
fn nothing_that_a_member_forges_has_an_effect() {
    for packets in TYPES {
        for (name, forge) in FORGERIES {
            let mut lab = members(Some(packets));
            attack(&mut lab, forge);
            let what = format!("{name}, {packets:?}");
            assert_by_flow(&lab, &what);
            let counters = lab.source.counters();
            assert_eq!(counters.invalid_acks, 0, "{what}");
            assert_eq!((counters.needs, counters.fall_backs), (0, 0), "{what}");
            assert_eq!(counters.repairs, 0, "{what}");
            for i in 0..NODES {
                let stats = stats(&lab, i);
                assert_eq!((stats.messages.taken, stats.resets), (0, 0), "{what}");
                assert_eq!(stats.head, 50, "{what}");
                let refetched = stats.reception.refetched + stats.reception.mismatches;
                assert_eq!(refetched, 0, "{what}");
                assert_eq!(lab.nodes[i].distrusted, [], "{what}");
                // Forgeries of what came before are duplicates.
                let is_counted = stats.forged_packets > 0 || stats.reception.duplicates > 0;
                assert!(
                    packets == PacketAuthentication::Tags || is_counted || name.contains("tags"),
                    "{what}"
                );
            }
        }
    }
}

/// The same without authentication: members move, messages and resets are taken. The tests above
/// would notice.
#[test]
fn without_authentication_forgeries_have_effects() {
    let effect = |name: &str| {
        let (_, forge) = FORGERIES.iter().find(|(n, _)| *n == name).unwrap();
        let mut lab = members(None);
        lab.tolerates_forgery = true;
        attack(&mut lab, *forge);
        lab
    };
    for name in ["PING", "packet numbers that were not sent"] {
        let lab = effect(name);
        assert!(lab.source.counters().invalid_acks > 0, "{name}");
        let moved = (0..NODES).all(|i| lab.moves(i).iter().any(|moved| moved.0 == Rung::Unicast));
        assert!(moved, "{name}");
    }
    assert!(stats(&effect("DATAGRAM"), 0).messages.taken > 0);
    assert!(stats(&effect("RESET_STREAM of the next update"), 0).resets > 0);
    assert!(!effect("the next update").nodes[0].forged.is_empty());
}

/// The source's own packet is not taken without its signature, not even after an announcement
/// without authentication.
#[test]
fn unsigned_packets_are_never_taken() {
    let mut lab = members(Some(PacketAuthentication::Signature));
    lab.recording = true;
    lab.nodes[0].multicast = false;
    lab.publish(LEN);
    lab.run(20 * MS);
    let mut packet = lab.recorded.last().unwrap().clone();
    packet[0] &= !0x20;
    packet.truncate(packet.len() - 64);
    let now = lab.now;
    let node = &mut lab.nodes[0].core;
    let input = node.on_flow_datagram(Rung::Multicast, &mut packet.clone(), now);
    assert_eq!(input, FlowInput::Forged);
    let (flow, index) = (lab.config.flow, 1);
    let mut bytes = Vec::new();
    Control::Announce(Announce {
        flow,
        sequence: 1_000,
        withdrawn: false,
        endpoints: Vec::new(),
        relays: Vec::new(),
        copies: false,
        ack_delay: 25 * MS,
        flow_index: index,
        channel: 1,
        heartbeat: 1_000 * MS,
        authentication: None,
        fec: None,
    })
    .encode(&mut bytes);
    node.on_control(&bytes, now).unwrap();
    let input = node.on_flow_datagram(Rung::Multicast, &mut packet, now);
    assert_ne!(input, FlowInput::Accepted);
    assert_eq!(node.poll_update(), None);
}

/// Receivers come and go: tags for few, signatures for more.
#[test]
fn the_type_follows_the_number_of_receivers() {
    let packets = PacketAuthentication::Auto { tags_up_to: 2 };
    let mut lab = Lab::with_config(SEED, NODES, config(Some(packets)));
    let mut before = lab.source.flow(0).unwrap().stats();
    let mut round = |lab: &mut Lab| {
        for _ in 0..10 {
            lab.publish(LEN);
            lab.run(40 * MS);
        }
        let stats = lab.source.flow(0).unwrap().stats();
        let new = (
            stats.signed - before.signed,
            stats.tag_packets - before.tag_packets,
        );
        before = stats;
        new
    };
    for i in 0..2 {
        lab.connect(i);
        lab.run(500 * MS);
        let (signed, tags) = round(&mut lab);
        assert!(signed == 0 && tags >= 10, "{signed} and {tags}");
    }
    for i in 2..NODES {
        lab.connect(i);
        lab.run(500 * MS);
        round(&mut lab);
        let (signed, tags) = round(&mut lab);
        assert!(signed >= 10 && tags == 0, "{signed} and {tags}");
    }
    (2..NODES).for_each(|i| lab.disconnect(i));
    round(&mut lab);
    let (signed, tags) = round(&mut lab);
    assert!(signed == 0 && tags >= 10, "{signed} and {tags}");
    for i in 0..2 {
        assert_eq!(lab.moves(i), MEMBER, "receiver {i}");
    }
    (2..NODES).for_each(|i| lab.connect(i));
    lab.run(2_000 * MS);
    lab.assert_complete(1);
}

/// A receiver of a version before gets everything, by unicast, and no such flow.
#[test]
fn a_receiver_that_cannot_authenticate_gets_no_such_flow() {
    for packets in TYPES {
        let mut lab = Lab::with_config(SEED, 0, config(Some(packets)));
        lab.sign_with(1);
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
        assert_eq!(lab.moves(0), MEMBER);
        assert_eq!((lab.moves(1), &lab.nodes[1].said[..]), (vec![], &[][..]));
        assert!(lab.nodes[1].got.iter().all(|got| got.1 == Via::Unicast));
    }
}

/// Each forged signature costs a receiver a check. Beyond what it pays for, it leaves for a time,
/// and its tags, too, are there again when it returns.
#[test]
fn a_flood_of_forged_signatures_costs_few_checks_and_no_update() {
    const ATTACK: u64 = 3;
    const PER_MS: u64 = 10;
    for packets in TYPES {
        let mut lab = members(Some(packets));
        for ms in 0..ATTACK * 1000 {
            let mut frames = Vec::new();
            put_ping(&mut frames);
            for n in 0..PER_MS {
                let mut forged = lab.forge(SEED, lab.next_pn() + n, false, &frames);
                // The spin bit of a signed packet.
                forged[0] |= 0x20;
                forged.extend_from_slice(&[0xee; 64]);
                (0..NODES).for_each(|i| lab.inject(i, forged.clone()));
            }
            if ms % 30 == 0 {
                lab.publish(LEN);
            }
            lab.run(MS);
        }
        for i in 0..NODES {
            let checked = stats(&lab, i).forged_packets;
            // A burst for each attempt to return, and what each second allows.
            let most = (512 + 1000) * ATTACK;
            assert!((512..=most).contains(&checked), "receiver {i}: {checked}");
            assert_eq!(stats(&lab, i).reception.forged, checked);
        }
        for _ in 0..100 {
            lab.publish(LEN);
            lab.run(100 * MS);
        }
        lab.assert_complete(1);
        for (i, node) in lab.nodes.iter().enumerate() {
            assert_eq!(node.closes, [], "receiver {i} stays connected");
            let moves = lab.moves(i);
            assert!(moves.contains(&(Rung::Unicast, Cause::Forged)), "{moves:?}");
            assert_eq!(moves.last(), Some(&MEMBER[0]), "{packets:?}, receiver {i}");
            assert_eq!(node.got.last().map(|got| got.1), Some(Via::Flow));
        }
    }
}

/// Floods members with ten packets of tags each millisecond, each of other packet numbers. Returns
/// the most tags that failed at one of them.
fn flood_with_tags(seconds: u64) -> (Lab, u64) {
    let mut lab = members(Some(PacketAuthentication::Tags));
    let mut pn = 1 << 32;
    for ms in 0..seconds * 1_000 {
        for _ in 0..10 {
            pn += 12;
            let forged = forged_tags(&lab, pn..pn + 12).unwrap();
            (0..NODES).for_each(|i| lab.inject(i, forged.clone()));
        }
        if ms % 30 == 0 {
            lab.publish(LEN);
        }
        lab.run(MS);
    }
    let failed = (0..NODES).map(|i| stats(&lab, i).failed_tags).max();
    (lab, failed.unwrap_or(0))
}

/// Packets of tags have the same budget as signatures. Beyond it a receiver leaves for a time.
#[test]
fn a_flood_of_packets_of_tags_costs_few_checks_and_no_update() {
    const ATTACK: u64 = 3;
    let (mut lab, failed) = flood_with_tags(ATTACK);
    // A burst for each attempt to return, and what each second allows: 30 tags count as one check.
    let most = 30 * (512 + 1000) * ATTACK;
    assert!((30 * 512..=most).contains(&failed), "{failed} tags");
    for _ in 0..100 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    for (i, node) in lab.nodes.iter().enumerate() {
        assert_eq!(node.closes, [], "receiver {i} stays connected");
        let moves = lab.moves(i);
        assert!(moves.contains(&(Rung::Unicast, Cause::Forged)), "{moves:?}");
        assert_eq!(moves.last(), Some(&MEMBER[0]), "receiver {i}");
        assert_eq!(node.got.last().map(|got| got.1), Some(Via::Flow));
    }
}

/// Packets of tags of a flow that many receivers listen to, and the packets themselves, keep the
/// flow's rate together, and come at once: none waits for the packets after it.
#[test]
fn tags_take_their_part_of_the_rate() {
    const RATE: u64 = 2_000_000;
    for receivers in [1, 30, 128] {
        let config = FlowConfig {
            rate: Some(RATE),
            control: RateControl::fixed(),
            ..config(Some(PacketAuthentication::Tags))
        };
        let payload = config.udp_payload;
        let mut flow = FlowSender::new(config).unwrap();
        let start = Instant::now();
        flow.set_listeners(receivers, start);
        for receiver in 0..receivers as u64 {
            assert!(flow.admit_to_tags(receiver).is_some());
        }
        flow.push(1, vec![7; 400_000].into());
        let (mut sent, mut packet, mut now) = (Vec::new(), Vec::new(), start);
        while flow.queued_bytes() > 0 {
            while flow.poll_transmit(now, &mut packet) {
                sent.push(((now - start).as_secs_f64(), packet.len()));
            }
            let tags = flow.stats().tag_packets;
            assert!(!flow.poll_transmit(now, &mut packet) && tags == flow.stats().tag_packets);
            now = flow.poll_timeout(now).unwrap().max(now);
            flow.handle_timeout(now);
        }
        let stats = flow.stats();
        assert!(stats.signed == 0 && stats.tag_packets > 0);
        // The bucket has eight packets; one more takes it into debt, with its tags.
        let unit = payload + receivers * 20 + 20;
        let burst = (8 * payload + unit + 4 * OVERHEAD) as f64;
        for (first, (from, _)) in sent.iter().enumerate() {
            let mut bytes = 0;
            for (until, len) in &sent[first..] {
                bytes += len;
                let most = burst + (until - from) * RATE as f64 / 8.0;
                assert!(
                    bytes as f64 <= most,
                    "{bytes} of {most} bytes from {from} to {until}"
                );
            }
        }
        let (bytes, seconds) = (stats.bytes as f64, sent.last().unwrap().0);
        let rate = (bytes - burst) * 8.0 / seconds;
        assert!(rate > 0.9 * RATE as f64, "{receivers}: {rate} bit/s");
    }
}

/// More receivers than tags are made for get signatures.
#[test]
fn tags_for_too_many_receivers_are_signatures() {
    let mut flow = FlowSender::new(config(Some(PacketAuthentication::Tags))).unwrap();
    let (now, mut packet) = (Instant::now(), Vec::new());
    flow.set_listeners(129, now);
    for (receivers, signed) in [(128, false), (129, true)] {
        (0..receivers).for_each(|receiver| drop(flow.admit_to_tags(receiver)));
        let before = flow.stats();
        flow.push(receivers, vec![7; 500].into());
        while flow.poll_transmit(now, &mut packet) {}
        let stats = flow.stats();
        assert_eq!(stats.signed > before.signed, signed);
        assert_eq!(stats.tag_packets > before.tag_packets, !signed);
    }
}

#[test]
fn a_receiver_that_lost_its_tags_gets_them_with_its_next_join() {
    let mut lab = members(Some(PacketAuthentication::Tags));
    // Held by the operator meanwhile, and released after another epoch.
    let held = [uuid::Uuid::from_u128(1)].into_iter().collect();
    lab.source.set_held(held, lab.now);
    lab.run(500 * MS);
    lab.source.request_rekey(0, lab.now);
    lab.publish(LEN);
    lab.run(500 * MS);
    lab.source
        .set_held(std::collections::BTreeSet::new(), lab.now);
    for _ in 0..30 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    assert_eq!(lab.moves(0).last(), Some(&MEMBER[0]));
}
