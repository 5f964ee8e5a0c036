//! Repairs on the flow of what many members miss (protocol.md section 8.3).

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::ack::PathAck;
use flexicast::flow::ledger::StreamRange;
use flexicast::flow::{FlowConfig, FlowEvent, FlowSender, RateControl};
use flexicast::protect::FlowSecret;
use flexicast::{PathId, Rung};

use crate::lab::{Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
const LEN: usize = 900;

/// A flow whose members acknowledge what a test says.
struct Sender {
    flow: FlowSender,
    path: PathId,
    now: Instant,
}

impl Sender {
    /// A flow that has sent `packets` packets, each a whole update, to so many members.
    fn new(members: u64, packets: u64) -> Self {
        let config = FlowConfig {
            rate: None,
            control: RateControl::fixed(),
            ..flow_config(1)
        };
        let now = Instant::now();
        let mut sender = Sender {
            flow: FlowSender::new(config).unwrap(),
            path: PathId::new(1, Rung::Multicast),
            now,
        };
        sender.flow.set_listeners(members as usize, now);
        for member in 0..members {
            sender.flow.admit(member, sender.path, MS, 1, now);
        }
        for seq in 1..=packets {
            sender.flow.push(seq, update(seq));
            assert_eq!(sender.send(), 1);
        }
        sender
    }

    /// Sends what waits; returns the number of packets.
    fn send(&mut self) -> usize {
        let (mut packet, mut count) = (Vec::new(), 0);
        while self.flow.queued_bytes() > 0 && self.flow.poll_transmit(self.now, &mut packet) {
            count += 1;
        }
        count
    }

    /// A member acknowledges all packets but `lost`.
    fn ack_without(&mut self, member: u64, lost: &[u64]) -> Vec<FlowEvent> {
        let mut ranges = Vec::new();
        let mut start = 0;
        for pn in lost.iter().chain([&self.flow.next_pn()]) {
            if start < *pn {
                ranges.push(start..*pn);
            }
            start = pn + 1;
        }
        let ack = PathAck {
            path: self.path,
            delay: Duration::ZERO,
            ranges: ranges.into_iter().rev().collect(),
            ecn: None,
            rebuilt: Vec::new(),
        };
        self.now += MS;
        self.flow.on_ack(member, &ack, self.now).unwrap();
        self.events()
    }

    fn events(&mut self) -> Vec<FlowEvent> {
        std::iter::from_fn(|| self.flow.poll_event()).collect()
    }

    fn provide(&mut self, packet: u64) -> bool {
        self.flow.provide(packet, Some(vec![update(packet + 1)]))
    }
}

fn update(seq: u64) -> Bytes {
    Lab::content(seq, LEN).into()
}

/// The whole update of a packet.
fn range_of(packet: u64) -> StreamRange {
    StreamRange {
        seq: packet + 1,
        range: 0..LEN as u64,
    }
}

fn repair(member: u64, packet: u64) -> FlowEvent {
    FlowEvent::Repair {
        member,
        range: range_of(packet),
    }
}

fn wanted(packet: u64) -> FlowEvent {
    FlowEvent::Wanted {
        packet,
        ranges: vec![range_of(packet)],
    }
}

#[test]
fn the_third_of_few_members_and_the_twentieth_part_of_many_get_it_on_the_flow() {
    for (members, needed) in [
        (2, None),
        (3, Some(3)),
        (60, Some(3)),
        (61, Some(4)),
        (200, Some(10)),
    ] {
        let mut sender = Sender::new(members, 8);
        for member in 0..members {
            let events = sender.ack_without(member, &[2]);
            let expected = match needed {
                Some(needed) if member + 1 == needed => vec![wanted(2)],
                Some(needed) if member + 1 > needed => vec![],
                _ => vec![repair(member, 2)],
            };
            assert_eq!(events, expected, "member {member} of {members}");
        }
    }
}

#[test]
fn those_who_wait_owe_nothing_once_they_acknowledge_the_new_packet() {
    let mut sender = Sender::new(5, 8);
    (0..3).for_each(|member| drop(sender.ack_without(member, &[2])));
    assert!(sender.provide(2));
    assert_eq!(sender.flow.queued_bytes(), LEN);
    assert_eq!(sender.flow.unsettled(2), Some(3), "not sent yet");
    assert_eq!(sender.send(), 1);
    assert_eq!(sender.flow.unsettled(2), Some(3), "not acknowledged yet");
    for member in 0..5 {
        // The last two of them learn of the loss only now.
        assert_eq!(sender.ack_without(member, &[2]), []);
        assert_eq!(sender.flow.unsettled(member), None);
    }
    assert_eq!(sender.flow.outstanding(), 0);
}

#[test]
fn a_member_that_loses_it_again_gets_it_by_unicast_and_no_one_else() {
    let mut sender = Sender::new(6, 8);
    (0..3).for_each(|member| drop(sender.ack_without(member, &[2])));
    assert_eq!(sender.ack_without(5, &[]), [], "it has lost nothing");
    assert!(sender.provide(2));
    assert_eq!(sender.send(), 1);
    for seq in 9..=12 {
        sender.flow.push(seq, update(seq));
    }
    sender.send();
    // All lose the new packet: the first two were repaired before, the last one needs nothing.
    assert_eq!(sender.ack_without(0, &[2, 8]), []);
    assert_eq!(sender.ack_without(1, &[2, 8]), []);
    assert_eq!(sender.ack_without(2, &[2, 8]), [repair(2, 2)]);
    assert_eq!(sender.ack_without(3, &[2, 8]), [repair(3, 2)]);
    assert_eq!(sender.ack_without(4, &[2]), []);
    assert_eq!(sender.ack_without(5, &[8]), []);
    assert_eq!(
        (sender.flow.outstanding(), sender.flow.queued_bytes()),
        (0, 0)
    );
}

#[test]
fn a_member_that_leaves_before_it_is_sent_again_is_owed_it() {
    let mut sender = Sender::new(4, 8);
    (0..3).for_each(|member| drop(sender.ack_without(member, &[2])));
    assert!(sender.provide(2));
    let departure = sender.flow.dismiss(2).unwrap();
    assert_eq!(departure.owed, [range_of(2)]);
    assert_eq!(sender.flow.dismiss(1).unwrap().owed, [], "it was repaired");
    sender.send();
    let departure = sender.flow.dismiss(3).unwrap();
    assert!(departure.owed.contains(&range_of(2)), "{departure:?}");
}

#[test]
fn what_cannot_be_sent_again_goes_to_those_who_wait_by_unicast() {
    let mut sender = Sender::new(5, 8);
    (0..3).for_each(|member| drop(sender.ack_without(member, &[2])));
    assert_eq!(sender.ack_without(3, &[2]), []);
    assert!(!sender.flow.provide(2, None));
    assert_eq!(sender.events(), [repair(2, 2), repair(3, 2)]);
    assert_eq!(
        sender.ack_without(4, &[2]),
        [repair(4, 2)],
        "and so it stays"
    );
    assert!(!sender.provide(2), "no member waits");
    assert_eq!(sender.flow.queued_bytes(), 0);
}

/// A newcomer has the new key and not the one of the lost packet.
#[test]
fn what_another_key_protected_is_not_sent_again() {
    let mut sender = Sender::new(4, 8);
    (0..3).for_each(|member| drop(sender.ack_without(member, &[2])));
    assert!(sender.provide(2));
    let secret = FlowSecret::from([9; 32]);
    sender.flow.announce_epoch(secret, sender.now).unwrap();
    (0..4).for_each(|member| sender.flow.confirm(member, 2, sender.now));
    sender.flow.push(9, update(9));
    assert_eq!(sender.send(), 1, "the new update alone");
    assert_eq!(sender.flow.epoch().sequence, 2);
    assert_eq!(
        sender.events(),
        [FlowEvent::Switched { sequence: 2 }, repair(2, 2)]
    );
    assert_eq!(sender.ack_without(3, &[2]), [repair(3, 2)], "and no other");
}

/// 5 % of the packets are lost for all of 100 members: one in twenty.
#[test]
fn shared_losses_cost_a_tenth_of_their_unicast_repairs() {
    const MEMBERS: usize = 100;
    let mut lab = Lab::without_fec(1, MEMBERS);
    (0..MEMBERS).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    lab.shared_loss = 20;
    for _ in 0..200 {
        lab.publish(LEN);
        lab.run(3 * MS);
    }
    lab.shared_loss = 0;
    lab.run(1000 * MS);
    lab.assert_complete(1);
    let counters = lab.source.counters();
    let repairs = lab.source.traffic(0).repairs;
    let alone = lab.lost_bytes * MEMBERS as u64;
    assert!(counters.shared_repairs >= 8, "{counters:?}");
    assert!(repairs * 10 <= alone, "{repairs} of {alone} bytes");
    assert_eq!(counters.fall_backs, 0);
}

/// Each of many members loses packets by itself.
#[test]
fn losses_of_single_members_stay_on_their_unicast_paths() {
    const MEMBERS: usize = 40;
    let mut lab = Lab::without_fec(3, MEMBERS);
    (0..MEMBERS).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    lab.nodes.iter_mut().for_each(|node| node.loss = 1);
    for _ in 0..200 {
        lab.publish(LEN);
        lab.run(3 * MS);
    }
    lab.nodes.iter_mut().for_each(|node| node.loss = 0);
    lab.run(1000 * MS);
    lab.assert_complete(1);
    let counters = lab.source.counters();
    assert!(counters.repairs >= 40, "{counters:?}");
    // Three of them that lose the same packet are a rare coincidence.
    assert!(counters.shared_repairs <= 5, "{counters:?}");
}

/// A member behind a worse link loses much of what is sent again, too, and so do all of them now
/// and then.
#[test]
fn nothing_is_lost_where_both_happen() {
    let labs = (1..=3).flat_map(|seed| [Lab::new(seed, 12), Lab::without_fec(seed, 12)]);
    for (mut lab, rebuilds) in labs.zip([true, false].into_iter().cycle()) {
        (0..12).for_each(|i| lab.connect(i));
        lab.run(500 * MS);
        lab.shared_loss = 3;
        lab.nodes[0].loss = 30;
        lab.nodes[1].loss = 10;
        for _ in 0..200 {
            lab.publish(3 * LEN);
            lab.run(4 * MS);
        }
        lab.shared_loss = 0;
        lab.nodes.iter_mut().for_each(|node| node.loss = 0);
        lab.run(3000 * MS);
        lab.assert_complete(1);
        let counters = lab.source.counters();
        let is_shared = counters.shared_repairs > 20;
        assert!(is_shared || rebuilds, "{counters:?}");
    }
}
