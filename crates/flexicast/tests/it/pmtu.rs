//! Path MTU discovery of a flow (protocol.md section 8.9).

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::ack::PathAck;
use flexicast::flow::{FlowConfig, FlowSender, PacketSize};
use flexicast::message::MAX_MESSAGE;
use flexicast::source::MessageError;
use flexicast::{Cause, DEFAULT_UDP_PAYLOAD, PathId, Rung, Via};

use super::lab::{Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// UDP payload of IPv4 on Ethernet.
const ETHERNET: usize = 1_472;
/// UDP payload of IPv4 over an MTU of 1,280 bytes.
const NARROW: usize = 1_252;
/// Size that the flow settles on for it.
const NARROW_SIZE: usize = 1_232;
/// Several full packets, and a rest.
const UPDATE: usize = 9_000;

/// A source on Ethernet with receivers that have not connected.
fn site(seed: u64, nodes: usize) -> Lab {
    let config = FlowConfig {
        max_udp_payload: ETHERNET,
        ..flow_config(seed)
    };
    Lab::with_config(seed, nodes, config)
}

/// The same with receivers that are members by multicast.
fn members(seed: u64, nodes: usize, change: impl FnOnce(&mut Lab)) -> Lab {
    let mut lab = site(seed, nodes);
    change(&mut lab);
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND * 2);
    lab
}

fn size(lab: &Lab) -> PacketSize {
    lab.source.flow(0).unwrap().packet_size()
}

fn of(bytes: usize, narrow: usize) -> PacketSize {
    PacketSize { bytes, narrow }
}

fn probes(lab: &Lab) -> u64 {
    lab.source.flow(0).unwrap().stats().probes
}

fn publish(lab: &mut Lab, updates: usize) {
    for _ in 0..updates {
        lab.publish(UPDATE);
        lab.run(20 * MS);
    }
}

fn fell(lab: &Lab, i: usize) -> bool {
    let fell = |m: &(Rung, Cause)| m.0 == Rung::Unicast;
    lab.moves(i).iter().any(fell)
}

/// Checks that all receivers have every update, and that none left the flow.
fn assert_unharmed(lab: &mut Lab) {
    lab.run(SECOND);
    lab.assert_complete(1);
    for i in 0..lab.nodes.len() {
        assert!(!fell(lab, i), "receiver {i}: {:?}", lab.nodes[i].moves);
    }
}

#[test]
fn packets_grow_to_what_all_members_take() {
    let mut lab = members(1, 20, |_| {});
    let searched = probes(&lab);
    assert_eq!(size(&lab), of(ETHERNET, 0));
    assert!(
        searched <= 8,
        "{searched} probes, though some joined meanwhile"
    );
    let before = lab.source.flow(0).unwrap().stats();
    publish(&mut lab, 50);
    let stats = lab.source.flow(0).unwrap().stats();
    assert_eq!(stats.probes, searched, "the search is over");
    let packets = stats.packets - before.packets;
    // 1,440 bytes of frames in a packet: seven for an update, which 1,136 would make eight.
    assert!((350..=410).contains(&packets), "{packets} packets");
    assert_unharmed(&mut lab);
}

#[test]
fn a_flow_without_larger_packets_sends_no_probe() {
    let mut lab = Lab::new(2, 3);
    (0..3).for_each(|i| lab.connect(i));
    publish(&mut lab, 100);
    assert_eq!((size(&lab), probes(&lab)), (of(DEFAULT_UDP_PAYLOAD, 0), 0));
    assert_unharmed(&mut lab);
}

#[test]
fn one_narrow_path_among_many_decides_until_its_receiver_leaves() {
    let mut lab = members(3, 20, |lab| lab.nodes[7].max_payload = Some(NARROW));
    assert_eq!(size(&lab), of(NARROW_SIZE, 0), "larger ones are tried");
    publish(&mut lab, 300);
    assert_eq!(size(&lab), of(NARROW_SIZE, 1));
    assert!(probes(&lab) <= 8, "{} probes", probes(&lab));
    assert_unharmed(&mut lab);
    let by_flow = lab.nodes[7].got.iter().all(|(_, via, _)| *via == Via::Flow);
    assert!(by_flow, "no probe cost an update");
    lab.disconnect(7);
    lab.run(SECOND);
    assert_eq!(size(&lab), of(ETHERNET, 0));
    publish(&mut lab, 20);
    lab.connect(7);
    // A burst of losses begins the search again.
    let mut rounds = 0..20;
    let is_known = rounds.any(|_| {
        publish(&mut lab, 50);
        size(&lab) == of(NARROW_SIZE, 1)
    });
    assert!(is_known, "it is back: {:?}", size(&lab));
    lab.run(SECOND);
    lab.assert_complete(1);
}

#[test]
fn probes_that_are_lost_do_not_slow_the_flow() {
    // Without an attempt at more, and with one that fails.
    let rates = [NARROW_SIZE, ETHERNET].map(|max_udp_payload| {
        let config = FlowConfig {
            max_udp_payload,
            ..flow_config(4)
        };
        let mut lab = Lab::with_config(5, 5, config);
        lab.nodes[0].max_payload = Some(NARROW);
        (0..5).for_each(|i| lab.connect(i));
        lab.run(SECOND * 2);
        publish(&mut lab, 400);
        let rate = lab.source.flow(0).unwrap().rate().bits_per_s;
        assert_eq!(size(&lab).bytes, NARROW_SIZE);
        assert_unharmed(&mut lab);
        (rate, probes(&lab))
    });
    let [(without, few), (with, many)] = rates;
    assert!(many >= few + 5, "{rates:?}");
    assert!(with.unwrap() * 10 > without.unwrap() * 9, "{rates:?}");
}

#[test]
fn a_path_that_becomes_narrow_brings_the_size_down_at_once() {
    let mut lab = members(5, 10, |_| {});
    publish(&mut lab, 10);
    assert_eq!(size(&lab), of(ETHERNET, 0));
    lab.nodes[2].max_payload = Some(NARROW);
    publish(&mut lab, 10);
    assert!(size(&lab).bytes <= NARROW_SIZE, "{:?}", size(&lab));
    publish(&mut lab, 400);
    let is_known = (0..10).any(|_| {
        publish(&mut lab, 50);
        size(&lab) == of(NARROW_SIZE, 1)
    });
    assert!(is_known, "{:?}", size(&lab));
    assert_unharmed(&mut lab);
    let repaired = |node: &&super::lab::Node| node.got.iter().any(|g| g.1 != Via::Flow);
    let harmed = lab.nodes.iter().filter(repaired).count();
    assert_eq!(harmed, 1, "the others noticed nothing");
    // Nothing says that it is wide again but another attempt.
    lab.nodes[2].max_payload = None;
    lab.run(SECOND * 300);
    assert_eq!(size(&lab), of(NARROW_SIZE, 1));
    lab.run(SECOND * 310);
    assert_eq!(size(&lab), of(ETHERNET, 0));
    assert_unharmed(&mut lab);
}

#[test]
fn a_path_that_becomes_narrow_on_an_idle_flow_costs_some_packets() {
    let mut lab = members(6, 3, |_| {});
    lab.nodes[2].max_payload = Some(NARROW);
    lab.run(SECOND * 30);
    assert_eq!(size(&lab), of(ETHERNET, 0), "nothing shows it");
    lab.publish(UPDATE);
    lab.run(SECOND);
    assert_eq!(size(&lab), of(NARROW_SIZE, 0));
    assert_unharmed(&mut lab);
}

#[test]
fn a_narrow_newcomer_brings_the_size_down() {
    for updates in [0, 400] {
        let mut lab = site(7, 10);
        lab.nodes[9].max_payload = Some(NARROW);
        (0..9).for_each(|i| lab.connect(i));
        lab.run(SECOND * 2);
        publish(&mut lab, updates / 4);
        assert_eq!(size(&lab), of(ETHERNET, 0));
        lab.connect(9);
        publish(&mut lab, updates);
        lab.run(SECOND * 12);
        assert_eq!(size(&lab), of(NARROW_SIZE, 1), "{updates} updates");
        for i in 0..10 {
            assert!(!fell(&lab, i), "receiver {i}: {:?}", lab.nodes[i].moves);
        }
    }
}

#[test]
fn a_wide_newcomer_changes_nothing() {
    let mut lab = site(8, 10);
    (0..9).for_each(|i| lab.connect(i));
    lab.run(SECOND * 2);
    let before = probes(&lab);
    lab.connect(9);
    for _ in 0..40 {
        publish(&mut lab, 1);
        assert_eq!(size(&lab).bytes, ETHERNET);
    }
    assert_eq!(probes(&lab), before + 1);
    assert!(lab.moves(9).contains(&(Rung::Multicast, Cause::Joined)));
}

#[test]
fn losses_keep_the_size_from_rising_for_a_while_only() {
    let mut lab = members(9, 20, |lab| {
        lab.nodes.iter_mut().for_each(|node| node.loss = 5);
    });
    publish(&mut lab, 400);
    let is_known = (0..10).any(|_| {
        publish(&mut lab, 50);
        size(&lab) == of(ETHERNET, 0)
    });
    assert!(is_known, "{:?}", size(&lab));
    let narrow: usize = (0..20)
        .map(|_| {
            publish(&mut lab, 20);
            usize::from(size(&lab).bytes < ETHERNET)
        })
        .sum();
    assert!(narrow <= 2, "{narrow} of 20 times smaller");
    lab.run(SECOND);
    lab.assert_complete(1);
}

#[test]
fn an_hour_of_attempts_is_a_handful_of_probes() {
    let mut lab = members(10, 4, |lab| lab.nodes[0].max_payload = Some(NARROW));
    lab.run(SECOND * 3_600);
    assert_eq!(size(&lab), of(NARROW_SIZE, 1));
    // One that all take, and five each in the beginning and every ten minutes.
    assert!(probes(&lab) <= 1 + 5 * 7, "{}", probes(&lab));
    assert_unharmed(&mut lab);
}

#[test]
fn a_flow_that_loses_all_members_starts_again_at_the_base() {
    let mut lab = members(11, 2, |_| {});
    lab.disconnect(0);
    assert_eq!(size(&lab), of(ETHERNET, 0));
    lab.disconnect(1);
    lab.run(MS);
    assert_eq!(size(&lab), of(DEFAULT_UDP_PAYLOAD, 0));
    lab.connect(0);
    lab.run(SECOND * 2);
    assert_eq!(size(&lab), of(ETHERNET, 0));
}

#[test]
fn messages_fit_the_smallest_full_packet() {
    let mut config = flow_config(12);
    config.max_udp_payload = 8_972;
    let mut lab = Lab::with_config(12, 2, config);
    (0..2).for_each(|i| lab.connect(i));
    lab.run(SECOND * 2);
    assert_eq!(size(&lab).bytes, 8_972);
    let message = Bytes::from(vec![5; 70_000]);
    lab.source.send_message(0, 1, &message, lab.now).unwrap();
    let too_long = lab
        .source
        .send_message(0, 2, &vec![0; MAX_MESSAGE + 1], lab.now);
    assert_eq!(too_long, Err(MessageError::Length(MAX_MESSAGE + 1)));
    publish(&mut lab, 20);
    assert_unharmed(&mut lab);
    for node in &lab.nodes {
        assert_eq!(node.messages, [(1, message.clone())]);
    }
}

/// On a slow flow, a probe can be as much as the data of several seconds.
#[test]
fn a_large_probe_holds_up_no_data() {
    const RTT: u32 = 20;
    let (start, path) = (Instant::now(), PathId::new(1, Rung::Multicast));
    let config = FlowConfig {
        max_udp_payload: 8_952,
        rate: Some(20_000),
        ..flow_config(1)
    };
    let mut flow = FlowSender::new(config).unwrap();
    flow.set_listeners(1, start);
    flow.admit(1, path, MS * RTT, 1, start);
    let (mut packet, mut sent, mut pushed) = (Vec::new(), Vec::new(), 0);
    for tick in 0..120_000 {
        let now = start + MS * tick;
        // An update each half second, of 40 % of the rate.
        if tick % 500 == 0 {
            pushed += 1;
            flow.push(pushed, Bytes::from(vec![7; 400]));
        }
        flow.handle_timeout(now);
        while flow.poll_transmit(now, &mut packet) {
            sent.push(tick);
        }
        let late = tick % 500 > 250 && flow.queued_bytes() > 0;
        assert!(!late, "an update waits at {tick} ms");
        let arrived = sent.partition_point(|at| at + RTT <= tick) as u64;
        if arrived > 0 && tick % 10 == 0 {
            let ack = PathAck {
                path,
                delay: Duration::ZERO,
                ranges: std::iter::once(0..arrived).collect(),
                ecn: None,
                rebuilt: Vec::new(),
            };
            flow.on_ack(1, &ack, now).unwrap();
        }
    }
    assert_eq!(flow.packet_size().bytes, 8_952, "once there was room");
}
