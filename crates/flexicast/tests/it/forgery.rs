//! A member forges updates with the flow's key: none of the source's is lost, and what is wrong is
//! counted.

use std::time::Duration;

use flexicast::control::{Control, Need, NeedReason};
use flexicast::frame::{put_ping, put_stream};
use flexicast::receiver::{ChannelStats, FlowInput, Validity};
use flexicast::unicast::RangeHeader;
use flexicast::{Cause, Cursor, Rung, Via};

use crate::lab::{CHANNEL, INCARNATION, Lab, VIOLATION};

const MS: Duration = Duration::from_millis(1);
const SEED: u64 = 7;
const LEN: usize = 900;
const NODES: usize = 4;
const MEMBER: [(Rung, Cause); 1] = [(Rung::Multicast, Cause::Joined)];

fn is_valid(seq: u64, encoded: &[u8]) -> Validity {
    (encoded == Lab::content(seq, LEN)).into()
}

/// A source and four members.
fn members(old_source: bool) -> Lab {
    let mut lab = Lab::new(SEED, 0);
    lab.hostile = true;
    lab.old_source = old_source;
    lab.check = Some(is_valid);
    for i in 0..NODES {
        lab.add_node(i, None);
        lab.connect(i);
    }
    lab.run(500 * MS);
    (0..NODES).for_each(|i| assert_eq!(lab.moves(i), MEMBER));
    lab
}

/// As `members`, where whatever is whole is taken for valid.
fn believers() -> Lab {
    let mut lab = Lab::new(SEED, NODES);
    (lab.hostile, lab.tolerates_forgery) = (true, true);
    (0..NODES).for_each(|i| lab.connect(i));
    lab.run(500 * MS);
    lab
}

/// All members get these bytes of an update in the place of the flow's next packet.
fn inject(lab: &mut Lab, seq: u64, offset: u64, data: &[u8], fin: bool) {
    let mut frames = Vec::new();
    put_stream(&mut frames, 1100, seq, offset, data, fin).unwrap();
    let packet = lab.forge(SEED, lab.next_pn(), false, &frames);
    (0..NODES).for_each(|i| lab.inject(i, packet.clone()));
}

fn next_seq(lab: &Lab) -> u64 {
    lab.store.len() as u64 + 1
}

fn stats(lab: &Lab, i: usize) -> ChannelStats {
    lab.nodes[i].core.stats(CHANNEL).unwrap()
}

fn said(frame: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn need(channel: u64, seq: u64) -> Vec<u8> {
    said(&Control::Need(Need {
        channel,
        seq,
        offset: 0,
        length: None,
        reason: NeedReason::Invalid as u64,
    }))
}

fn cursor(seq: u64) -> Vec<u8> {
    let incarnation = INCARNATION;
    said(&Control::Cursors(vec![Cursor { incarnation, seq }]))
}

/// The attack that lost 5 of 16 updates, by four kinds of wrong bytes.
#[test]
fn forged_bytes_of_the_next_update_lose_nothing() {
    let kinds: [(u64, &[u8], bool); 4] = [
        (0, &[0xee; 10], false),
        (100, &[0xee; 10], true),
        (0, &[0xee; LEN], true),
        (LEN as u64 + 5, &[0xee; 10], false),
    ];
    for (offset, data, fin) in kinds {
        let mut lab = members(false);
        for n in 0..16 {
            if n % 3 == 0 {
                let seq = next_seq(&lab);
                inject(&mut lab, seq, offset, data, fin);
            }
            lab.publish(LEN);
            lab.run(20 * MS);
        }
        lab.run(1000 * MS);
        lab.assert_complete(1);
        for i in 0..NODES {
            assert_eq!(lab.moves(i), MEMBER, "receiver {i} stays where it is");
            assert_eq!(lab.nodes[i].closes, []);
            assert_eq!(stats(&lab, i).reception.refetched, 6, "receiver {i}");
            assert_eq!(lab.nodes[i].distrusted.len(), 6);
            let by_unicast = lab.nodes[i].got.iter().filter(|g| g.1 == Via::Unicast);
            assert_eq!(by_unicast.count(), 6, "the flow brings the others");
        }
        assert_eq!(lab.source.counters().needs, 6 * NODES as u64);
    }
}

/// Forged packets with the numbers of true ones that get lost: these are acknowledged, not
/// repaired.
#[test]
fn forged_bytes_and_losses_together_lose_nothing() {
    let mut lab = members(false);
    lab.nodes.iter_mut().for_each(|node| node.loss = 20);
    for n in 0..90 {
        if n % 2 == 0 {
            let seq = next_seq(&lab) + n % 4;
            inject(&mut lab, seq, n % 7 * 100, &[0xee; 50], n % 5 == 0);
        }
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.run(15_000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].closes, []);
    }
}

/// Whole garbage in the name of an update that is not published yet: the source keeps the request
/// until then.
#[test]
fn a_request_waits_for_the_update() {
    let mut lab = members(false);
    inject(&mut lab, 1, 0, &[0xee; 20], true);
    inject(&mut lab, 3, 0, &[0xee; 20], true);
    lab.run(3000 * MS);
    assert_eq!(lab.source.counters().needs, 2 * NODES as u64);
    for _ in 0..3 {
        lab.publish(LEN);
        lab.run(50 * MS);
    }
    lab.assert_complete(1);
    let first = &lab.nodes[0];
    let vias: Vec<_> = first.got.iter().map(|g| g.1).collect();
    assert_eq!(vias, [Via::Unicast, Via::Flow, Via::Unicast]);
    let worst = first
        .got
        .iter()
        .map(|(seq, _, at)| *at - lab.published[*seq as usize - 1]);
    assert!(worst.max().unwrap() < 60 * MS);
}

/// A permanent forger forces the unicast rung, and no more.
#[test]
fn a_flow_that_brings_nothing_but_forgeries_is_left() {
    let mut lab = members(false);
    for _ in 0..130 {
        let seq = next_seq(&lab);
        inject(&mut lab, seq, 0, &[0xee; 10], false);
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.run(5000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(
            stats(&lab, i).reception.refetched,
            100,
            "then it left the flow"
        );
        let left = (Rung::Unicast, Cause::FlowInvalid);
        assert_eq!(lab.moves(i).last(), Some(&left));
        assert_eq!(lab.nodes[i].closes, []);
    }
}

/// A source that does not know NEED is connected to again, and what it sends then is complete.
#[test]
fn an_older_source_is_connected_to_again() {
    let mut lab = members(true);
    for n in 0..8 {
        if n % 4 == 0 {
            let seq = next_seq(&lab);
            inject(&mut lab, seq, 0, &[0xee; LEN], true);
        }
        lab.publish(LEN);
        lab.run(500 * MS);
    }
    lab.run(2000 * MS);
    lab.assert_complete(1);
    assert_eq!(lab.source.counters().needs, 0);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].reconnects, 2);
        assert_eq!(
            lab.moves(i).last(),
            Some(&MEMBER[0]),
            "and it is a member again"
        );
    }
}

/// A whole forgery is believed where nothing contradicts it in time. It is noticed when the true
/// update comes, by every receiver, and it does not survive a connection.
#[test]
fn a_whole_forged_update_is_counted_and_ends_with_its_connection() {
    let mut lab = believers();
    inject(&mut lab, 1, 0, b"forged", true);
    inject(&mut lab, 5, 0, b"forged", true);
    lab.run(6 * MS);
    lab.disconnect(1);
    lab.connect(1);
    for _ in 0..6 {
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.run(2000 * MS);
    lab.assert_complete(1);
    for i in [0, 2, 3] {
        assert_eq!(lab.nodes[i].forged, [1, 5], "receiver {i}");
        assert_eq!(stats(&lab, i).reception.mismatches, 2);
        let found = &lab.nodes[i].distrusted;
        let found: Vec<_> = found.iter().map(|d| (d.seq, d.handed)).collect();
        assert_eq!(found, [(1, true), (5, true)]);
    }
    assert_eq!(
        lab.nodes[1].forged,
        [1],
        "handed out before the connection ended"
    );
}

/// The true packets of an update overtake the forgery's turn.
#[test]
fn a_whole_forged_update_that_waits_is_replaced() {
    let mut lab = believers();
    // Update 1 does not reach them by the flow, and is on its way by unicast for a while.
    lab.nodes.iter_mut().for_each(|node| node.multicast = false);
    lab.publish(LEN);
    lab.nodes.iter_mut().for_each(|node| node.multicast = true);
    inject(&mut lab, 3, 0, b"forged", true);
    lab.publish(LEN);
    lab.publish(LEN);
    lab.run(2000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].forged, []);
        assert_eq!(
            (
                stats(&lab, i).reception.mismatches,
                stats(&lab, i).reception.refetched
            ),
            (1, 1)
        );
    }
}

#[test]
fn a_cursor_beyond_the_head_is_a_violation() {
    for beyond in [3, (1 << 62) - 1] {
        let mut lab = members(false);
        lab.publish(LEN);
        lab.publish(LEN);
        lab.run(2000 * MS);
        lab.say(0, cursor(2));
        lab.run(50 * MS);
        assert_eq!(lab.nodes[0].closes, []);
        lab.say(0, cursor(beyond));
        lab.run(50 * MS);
        assert_eq!(lab.nodes[0].closes, [VIOLATION]);
        assert_eq!(lab.source.counters().cursors_ahead, 1);
        (1..NODES).for_each(|i| assert_eq!(lab.nodes[i].closes, []));
    }
}

/// A source whose database was set back meets receivers that are ahead of it: they start over, and
/// what they say of the old history meanwhile is no violation.
#[test]
fn a_receiver_ahead_of_a_source_that_was_set_back_starts_over() {
    let mut lab = members(false);
    (0..9).for_each(|_| lab.publish(LEN));
    lab.run(2000 * MS);
    lab.store.truncate(4);
    lab.restart_source(SEED + 1);
    lab.connect(0);
    lab.say(0, cursor(9));
    lab.run(20 * MS);
    // The application confirms what it wrote meanwhile: its own state machine keeps that back.
    let incarnation = INCARNATION;
    let old = Cursor {
        incarnation,
        seq: 9,
    };
    lab.nodes[0].core.confirm(CHANNEL, old, lab.now);
    lab.run(3000 * MS);
    assert_eq!(lab.nodes[0].closes, []);
    let served: Vec<_> = lab.source.sessions().collect();
    assert_eq!(served[0].channels[0].cursor.unwrap().seq, 4);
    let again: Vec<_> = lab.nodes[0].got.iter().skip(9).map(|g| g.0).collect();
    assert_eq!(again, [1, 2, 3, 4], "a resync");
    assert_eq!(lab.source.counters().hellos_ahead, 1);
    assert_eq!(lab.source.counters().cursors_ahead, 0);
}

#[test]
fn requests_have_bounds() {
    let first = |asks: &dyn Fn(u64) -> Vec<u8>| {
        let mut lab = members(false);
        lab.publish(LEN);
        lab.run(100 * MS);
        let before = lab.nodes[0].got.len();
        (0..200).for_each(|n| lab.say(0, asks(n)));
        lab.run(1000 * MS);
        (1..NODES).for_each(|i| assert_eq!(lab.nodes[i].closes, []));
        assert_eq!(lab.nodes[0].got.len(), before);
        lab.nodes[0].closes.clone()
    };
    assert_eq!(first(&|_| need(1, 1)), []);
    assert_eq!(first(&|n| need(1, 2 + n)), []);
    assert_eq!(first(&|_| need(2, 1)), [VIOLATION], "no such channel");
    assert_eq!(first(&|_| need(1, 0)), [VIOLATION], "no such update");
    let once = |n| if n == 0 { need(1, 1) } else { cursor(1) };
    assert_eq!(first(&once), []);
}

/// All members get a byte at each of these places, in a packet with this number.
fn inject_many(lab: &mut Lab, pn: u64, frames: impl Iterator<Item = (u64, u64)>) {
    let mut packet = Vec::new();
    for (seq, offset) in frames {
        if packet.len() < 1120 {
            put_stream(&mut packet, 1180, seq, offset, b"x", false).unwrap();
        }
    }
    let packet = lab.forge(SEED, pn, false, &packet);
    (0..lab.nodes.len()).for_each(|i| lab.inject(i, packet.clone()));
}

/// A packet of a hundred frames, each a byte at the end of the longest update there may be, takes
/// no more memory than it brings, and gives the source's own updates no reason to be refused.
#[test]
fn a_packet_takes_no_more_memory_than_it_brings() {
    let mut lab = members(false);
    let pn = lab.next_pn();
    inject_many(&mut lab, pn, (5..500).map(|seq| (seq, (4 << 20) - 1)));
    lab.run(20 * MS);
    for node in &mut lab.nodes {
        assert!(node.core.buffered() < 100_000, "{}", node.core.buffered());
        // One that is not the next, as after the loss of a QUIC packet.
        let mut head = Vec::new();
        let header = RangeHeader {
            channel: 1,
            seq: 2,
            encoding: 0,
            total: 4,
            offset: 0,
        };
        header.encode(&mut head);
        head.extend_from_slice(b"abcd");
        node.core.on_unicast(3, &head, true).unwrap();
    }
}

/// Nine bytes far ahead filled the memory, and each update had to go by unicast to each receiver.
#[test]
fn bytes_far_ahead_do_not_crowd_out_the_flow() {
    let mut lab = members(false);
    let pn = lab.next_pn();
    inject_many(&mut lab, pn, (0..9).map(|n| (3000 + n, (4 << 20) - 1)));
    lab.run(20 * MS);
    for _ in 0..50 {
        lab.publish(LEN);
        lab.run(100 * MS);
    }
    lab.assert_complete(1);
    for i in 0..NODES {
        assert!(lab.nodes[i].got.iter().all(|g| g.1 == Via::Flow));
        assert_eq!(stats(&lab, i).no_room, 0);
        assert_eq!(lab.moves(i), MEMBER);
    }
}

/// An update in scattered bytes takes no more ranges than a true one ever does.
#[test]
fn scattered_bytes_are_bounded() {
    let mut lab = members(false);
    for n in 0..40 {
        let pn = lab.next_pn() + n;
        inject_many(&mut lab, pn, (0..200).map(|k| (1, (n * 200 + k) * 2)));
    }
    lab.run(20 * MS);
    for i in 0..NODES {
        assert!(stats(&lab, i).no_room > 20);
        assert!(lab.nodes[i].core.buffered() < 200_000);
    }
    lab.publish(LEN);
    lab.run(2000 * MS);
    lab.assert_complete(1);
}

/// A byte far ahead is nothing that others wait for, and no head: no receiver asks for each of the
/// updates before it, and none believes that it is behind.
#[test]
fn a_byte_far_ahead_is_neither_waited_for_nor_a_head() {
    let mut lab = members(false);
    lab.publish(LEN);
    lab.run(100 * MS);
    inject(&mut lab, 4000, 0, b"x", false);
    for _ in 0..5 {
        lab.run(4000 * MS);
        lab.publish(LEN);
    }
    lab.run(1000 * MS);
    lab.assert_complete(1);
    for i in 0..NODES {
        assert!(lab.nodes[i].got.iter().all(|g| g.1 == Via::Flow));
        assert_eq!(stats(&lab, i).head, 6);
    }
}

fn says_no_need(frame: &Control) -> bool {
    assert!(!matches!(frame, Control::Need(_)), "{frame:?}");
    true
}

/// An update that others wait for, and that is on its way by a slow unicast path, is not asked for.
#[test]
fn slow_ranges_are_not_requested_again() {
    let mut lab = members(false);
    lab.nodes[0].says = Some(says_no_need);
    lab.tolerates_forgery = true;
    let update = Lab::content(2, LEN);
    inject(&mut lab, 2, 0, &update, true);
    let mut piece = Vec::new();
    let header = RangeHeader {
        channel: 1,
        seq: 1,
        encoding: 0,
        total: LEN as u64,
        offset: 0,
    };
    header.encode(&mut piece);
    for data in Lab::content(1, LEN).chunks(100) {
        piece.extend_from_slice(data);
        lab.nodes[0].core.on_unicast(3, &piece, false).unwrap();
        piece.clear();
        lab.run(2000 * MS);
    }
    assert_eq!(lab.nodes[0].got.len(), 2);
}

/// A whole forged update that is next has all receivers closed, once: they do without the flow for
/// a while, and then are members again. What was counted stays counted.
#[test]
fn a_forged_head_costs_one_connection_and_a_time_without_the_flow() {
    let mut lab = believers();
    for _ in 0..120 {
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.run(1500 * MS);
    // First, one that contradicts what was handed out.
    inject(&mut lab, 120, 0, b"zzz", false);
    lab.run(20 * MS);
    for _ in 0..5 {
        let seq = next_seq(&lab);
        inject(&mut lab, seq, 0, b"forged", true);
        lab.run(2000 * MS);
        let away: Vec<_> = (0..NODES).filter(|i| !lab.nodes[*i].connected).collect();
        away.into_iter().for_each(|i| lab.connect(i));
        lab.run(2000 * MS);
    }
    lab.publish(LEN);
    lab.run(2000 * MS);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].closes, [VIOLATION]);
        assert_eq!(lab.nodes[i].forged, [121]);
        assert_eq!(stats(&lab, i).reception.mismatches, 1);
        let last = lab.nodes[i].got.last().unwrap();
        assert_eq!((last.0, last.1), (121, Via::Unicast));
        let last = lab.moves(i).pop().unwrap();
        assert_ne!(last, MEMBER[0], "no member since");
    }
    lab.run(90_000 * MS);
    lab.publish(LEN);
    lab.run(2000 * MS);
    for i in 0..NODES {
        assert_eq!(lab.moves(i).last(), Some(&MEMBER[0]));
        assert_eq!(lab.nodes[i].got.last().unwrap().1, Via::Flow);
    }
}

/// At a source that cannot be asked, a forger costs a few connections, and then forces the unicast
/// rung for a time.
#[test]
fn an_older_source_is_not_connected_to_for_ever_again() {
    let mut lab = members(true);
    for _ in 0..100 {
        let seq = next_seq(&lab);
        inject(&mut lab, seq, 0, &[0xee; LEN], true);
        lab.publish(LEN);
        lab.run(500 * MS);
    }
    lab.run(2000 * MS);
    lab.assert_complete(1);
    (0..NODES).for_each(|i| assert_eq!(lab.nodes[i].reconnects, 4));
}

/// A forgery far ahead at such a source keeps no update but its own off the flow.
#[test]
fn at_an_older_source_one_forgery_far_ahead_leaves_the_flow_in_use() {
    let mut lab = members(true);
    inject(&mut lab, 4000, 0, &[1; 20], true);
    lab.run(3000 * MS);
    for _ in 0..30 {
        lab.publish(LEN);
        lab.run(300 * MS);
    }
    lab.assert_complete(1);
    for i in 0..NODES {
        assert_eq!(lab.nodes[i].reconnects, 1);
        assert!(lab.nodes[i].got.iter().all(|g| g.1 == Via::Flow));
    }
}

fn is_unknown(_: u64, _: &[u8]) -> Validity {
    Validity::Unknown
}

fn is_refused(_: u64, _: &[u8]) -> Validity {
    Validity::Invalid
}

/// A receiver of an earlier version than its source, and one whose check is wrong: nothing is
/// forged, and the flow is not left.
#[test]
fn updates_that_a_receiver_cannot_judge_are_no_forgeries() {
    for (check, asked) in [
        (is_unknown as fn(u64, &[u8]) -> Validity, 0),
        (is_refused, 3),
    ] {
        let mut lab = Lab::new(SEED, 0);
        lab.check = Some(check);
        lab.add_node(0, None);
        lab.connect(0);
        lab.run(500 * MS);
        for _ in 0..130 {
            lab.publish(LEN);
            lab.run(20 * MS);
        }
        lab.run(2000 * MS);
        lab.assert_complete(1);
        assert_eq!(lab.moves(0), MEMBER);
        assert_eq!(lab.source.counters().needs, asked);
    }
}

/// Packets that bring nothing do not make up for forged ones.
#[test]
fn empty_packets_do_not_make_up_for_forgeries() {
    let mut lab = members(false);
    for n in 0..101 {
        if n == 60 {
            let mut ping = Vec::new();
            put_ping(&mut ping);
            for n in 0..1100 {
                let mut packet = lab.forge(SEED, lab.next_pn() + n, false, &ping);
                let (core, now) = (&mut lab.nodes[0].core, lab.now);
                let input = core.on_flow_datagram(Rung::Amt, &mut packet, now);
                assert_eq!(input, FlowInput::Accepted);
            }
        }
        let seq = next_seq(&lab);
        inject(&mut lab, seq, 0, &[0xee; 10], false);
        lab.publish(LEN);
        lab.run(20 * MS);
    }
    lab.run(5000 * MS);
    lab.assert_complete(1);
    let left = (Rung::Unicast, Cause::FlowInvalid);
    assert_eq!(lab.moves(0).last(), Some(&left));
}
