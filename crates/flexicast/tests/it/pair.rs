//! Source and receivers together, in virtual time.

use std::time::Duration;

use flexicast::{Cause, Cursor, Rung, Via};

use crate::lab::{CHANNEL, INCARNATION, Lab};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn joined(seed: u64, nodes: usize) -> Lab {
    join_all(Lab::new(seed, nodes))
}

fn join_all(mut lab: Lab) -> Lab {
    let nodes = lab.nodes.len();
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND);
    (0..nodes).for_each(|i| {
        assert_eq!(
            lab.moves(i),
            [(Rung::Multicast, Cause::Joined)],
            "receiver {i}"
        )
    });
    lab
}

#[test]
fn members_get_everything_by_the_flow_alone() {
    let mut lab = joined(1, 3);
    for n in 0..200 {
        lab.publish(n * 37);
        lab.run(20 * MS);
    }
    lab.run(SECOND);
    lab.assert_complete(1);
    for node in &lab.nodes {
        assert!(node.got.iter().all(|(_, via, _)| *via == Via::Flow));
        let late = node
            .got
            .iter()
            .map(|(seq, _, at)| *at - lab.published[*seq as usize - 1])
            .max()
            .unwrap();
        assert!(late < 40 * MS, "{late:?} for one way of 5 ms and pacing");
    }
    assert_eq!(
        lab.source.flow(0).unwrap().outstanding(),
        0,
        "everything is acknowledged and released"
    );
}

#[test]
fn the_flow_is_paced() {
    let mut lab = joined(2, 1);
    let before = lab.source.flow(0).unwrap().stats().bytes;
    (0..100).for_each(|_| lab.publish(20_000));
    lab.run(SECOND);
    let sent = (lab.source.flow(0).unwrap().stats().bytes - before) as f64 * 8.0;
    assert!(
        (9_500_000.0..10_500_000.0).contains(&sent),
        "{sent} bits in the first second of 10 Mbit/s"
    );
    lab.run(SECOND * 2);
    lab.assert_complete(1);
}

#[test]
fn losses_are_repaired_on_unicast() {
    for seed in 0..20 {
        let mut lab = join_all(Lab::without_fec(seed, 4));
        lab.nodes.iter_mut().for_each(|n| n.loss = 10);
        lab.datagram_loss = 10;
        for n in 0..300 {
            lab.publish(n % 7 * 900);
            lab.run(15 * MS);
        }
        lab.run(SECOND * 3);
        lab.assert_complete(1);
        let repaired: usize = lab
            .nodes
            .iter()
            .flat_map(|n| &n.got)
            .filter(|(_, via, _)| *via != Via::Flow)
            .count();
        assert!(repaired > 50, "seed {seed}: {repaired}");
        for i in 0..4 {
            let down = lab
                .moves(i)
                .iter()
                .filter(|(rung, _)| *rung == Rung::Unicast)
                .count();
            assert!(
                down <= 1,
                "seed {seed}: loss is no reason to leave the flow: {:?}",
                lab.moves(i)
            );
        }
    }
}

/// A lone update whose only packet is lost: the trailing PING shows the gap, long before the
/// fall-back delay.
#[test]
fn a_lost_tail_is_found_by_the_trailing_ping() {
    let mut lab = joined(3, 2);
    lab.nodes[0].loss = 100;
    lab.publish(100);
    lab.run(MS);
    lab.nodes[0].loss = 0;
    lab.run(SECOND);
    lab.assert_complete(1);
    let (_, via, at) = lab.nodes[0].got[0];
    let late = at - lab.published[0];
    assert!(
        via == Via::Unicast && late < 150 * MS,
        "{via} after {late:?}"
    );
    assert_eq!(lab.moves(0).len(), 1, "no fall-back for one lost packet");
}

#[test]
fn a_cut_in_mid_stream_falls_back_once_and_returns_once() {
    for seed in 0..10 {
        let mut lab = joined(seed, 3);
        let stream = |lab: &mut Lab, n: usize| {
            (0..n).for_each(|_| {
                lab.publish(1100);
                lab.run(5 * MS);
            })
        };
        stream(&mut lab, 200);
        lab.nodes[1].multicast = false;
        let cut = lab.elapsed();
        stream(&mut lab, 400);
        lab.nodes[1].multicast = true;
        let restored = lab.elapsed();
        stream(&mut lab, 400);
        lab.run(SECOND);
        lab.assert_complete(1);
        let expected = [
            (Rung::Multicast, Cause::Joined),
            (Rung::Unicast, Cause::AckTimeout),
            (Rung::Multicast, Cause::Joined),
        ];
        assert_eq!(lab.moves(1), expected, "seed {seed}");
        assert_eq!(
            (lab.moves(0).len(), lab.moves(2).len()),
            (1, 1),
            "the others stay"
        );
        let (down, back) = (
            lab.nodes[1].moves[1].0 - cut,
            lab.nodes[1].moves[2].0 - restored,
        );
        assert!(
            down < 250 * MS && back < 50 * MS,
            "fell back after {down:?}, returned after {back:?}"
        );
        assert!(lab.nodes[0].got.iter().all(|(_, via, _)| *via == Via::Flow));
        let gap = |i: usize| {
            lab.nodes[i]
                .got
                .windows(2)
                .map(|w| w[1].2 - w[0].2)
                .max()
                .unwrap()
        };
        assert!(gap(0) < 20 * MS, "no gap at the others: {:?}", gap(0));
        assert!(gap(1) < 200 * MS, "{:?}", gap(1));
    }
}

#[test]
fn an_idle_member_that_loses_the_flow_says_so_after_three_heartbeats() {
    let mut lab = joined(5, 2);
    lab.run(SECOND * 5);
    lab.nodes[0].multicast = false;
    lab.run(SECOND * 5);
    assert_eq!(lab.moves(0)[1..], [(Rung::Unicast, Cause::HeartbeatLost)]);
    assert_eq!(
        lab.source
            .sessions()
            .map(|s| s.channels[0].rung)
            .collect::<Vec<_>>(),
        [Rung::Unicast, Rung::Multicast]
    );
    lab.publish(10);
    lab.run(100 * MS);
    lab.assert_complete(1);
    lab.nodes[0].multicast = true;
    lab.run(SECOND * 2);
    assert_eq!(lab.moves(0).last(), Some(&(Rung::Multicast, Cause::Joined)));
    assert_eq!(lab.moves(1).len(), 1);
}

#[test]
fn without_multicast_a_receiver_is_never_a_member() {
    let mut lab = Lab::new(6, 2);
    lab.nodes[0].multicast = false;
    (0..2).for_each(|i| lab.connect(i));
    for _ in 0..300 {
        lab.publish(700);
        lab.run(20 * MS);
    }
    lab.run(SECOND);
    lab.assert_complete(1);
    assert_eq!(lab.moves(0), []);
    assert!(
        lab.nodes[0]
            .got
            .iter()
            .all(|(_, via, _)| *via == Via::Unicast)
    );
}

/// A path that only sometimes works does not make a receiver jump up and down: each return waits
/// longer.
#[test]
fn flapping_backs_off() {
    let mut lab = joined(7, 1);
    for n in 0..6000 {
        lab.nodes[0].multicast = n / 40 % 2 == 0;
        lab.publish(500);
        lab.run(10 * MS);
    }
    lab.nodes[0].multicast = true;
    lab.run(SECOND * 90);
    lab.assert_complete(1);
    let downs: Vec<_> = lab.nodes[0]
        .moves
        .iter()
        .filter(|m| m.1 == Rung::Unicast)
        .map(|m| m.0)
        .collect();
    assert!(
        (2..15).contains(&downs.len()),
        "{downs:?} in 75 periods of a minute"
    );
    assert_eq!(
        lab.moves(0).last(),
        Some(&(Rung::Multicast, Cause::Joined)),
        "and it comes back in the end"
    );
}

#[test]
fn after_an_absence_everything_is_caught_up_and_then_live() {
    let mut lab = joined(8, 2);
    (0..50).for_each(|_| lab.publish(300));
    lab.run(SECOND);
    lab.disconnect(0);
    for _ in 0..3000 {
        lab.publish(300);
        lab.run(MS);
    }
    lab.fetch_fails = true;
    lab.connect(0);
    lab.run(SECOND * 2);
    lab.fetch_fails = false;
    (0..100).for_each(|_| {
        lab.publish(300);
        lab.run(MS);
    });
    lab.run(SECOND * 5);
    lab.assert_complete(1);
    assert_eq!(lab.moves(0).last(), Some(&(Rung::Multicast, Cause::Joined)));
}

#[test]
fn a_newcomer_gets_the_last_hundred_and_a_cursor_is_honoured() {
    let mut lab = Lab::new(9, 0);
    (0..500).for_each(|_| lab.publish(50));
    lab.add_node(0, None);
    lab.add_node(
        1,
        Some(Cursor {
            incarnation: INCARNATION,
            seq: 123,
        }),
    );
    (0..2).for_each(|i| lab.connect(i));
    lab.run(SECOND);
    let seqs = |i: usize| lab.nodes[i].got.iter().map(|g| g.0).collect::<Vec<_>>();
    assert_eq!(seqs(0), (401..=500).collect::<Vec<_>>());
    assert_eq!(seqs(1), (124..=500).collect::<Vec<_>>());
}

#[test]
fn a_restart_of_the_source_loses_nothing() {
    let mut lab = joined(10, 3);
    for round in 0..3 {
        for _ in 0..100 {
            lab.publish(2500);
            lab.run(3 * MS);
        }
        lab.restart_source(100 + round);
        (0..50).for_each(|_| lab.publish(2500));
        (0..3).for_each(|i| lab.connect(i));
        lab.run(SECOND);
    }
    lab.run(SECOND * 2);
    lab.assert_complete(1);
    (0..3).for_each(|i| assert_eq!(lab.moves(i).last(), Some(&(Rung::Multicast, Cause::Joined))));
}

/// A receiver that reconnects before the source noticed the end of its older connection replaces
/// it.
#[test]
fn reconnecting_supersedes() {
    let mut lab = joined(11, 2);
    let before = lab.source.sessions().next().unwrap().session;
    lab.source.accept(5000, lab.now);
    lab.add_node(0, None);
    let mut twin = lab.nodes.pop().unwrap().core;
    twin.connected();
    lab.source
        .on_control(5000, &twin.take_control(), lab.now)
        .unwrap();
    lab.run(MS * 10);
    let sessions: Vec<_> = lab.source.sessions().map(|s| s.session).collect();
    assert!(
        sessions.contains(&5000) && !sessions.contains(&before),
        "{sessions:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = || {
        let mut lab = joined(12, 3);
        lab.nodes.iter_mut().for_each(|n| n.loss = 20);
        for n in 0..100 {
            lab.publish(n * 50);
            lab.run(7 * MS);
        }
        lab.run(SECOND);
        (
            lab.steps,
            lab.flow_packets,
            lab.nodes.iter().map(|n| n.got.clone()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(trace(), trace());
}

/// Idle is cheap: no timer runs hot.
#[test]
fn no_busy_timers() {
    let mut lab = joined(13, 3);
    let before = lab.steps;
    lab.run(SECOND * 60);
    let per_second = (lab.steps - before) / 60;
    assert!(
        per_second < 60,
        "{per_second} steps a second for three idle members"
    );
}

/// A store that was restored from a backup numbers new updates as it numbered others before: never
/// taken for those.
#[test]
fn a_source_that_has_gone_back_is_a_resync() {
    let mut lab = joined(14, 1);
    (0..100).for_each(|_| lab.publish(300));
    lab.run(SECOND);
    lab.store.truncate(50);
    lab.restart_source(15);
    (0..10).for_each(|_| lab.publish(77));
    lab.connect(0);
    lab.run(SECOND);
    (0..10).for_each(|_| lab.publish(78));
    lab.run(SECOND);
    let seqs: Vec<u64> = lab.nodes[0].got.iter().map(|g| g.0).collect();
    let expected: Vec<u64> = (1..=100).chain(1..=70).collect();
    assert_eq!(seqs, expected);
}

/// Data behind an idle time is watched as closely as data in a stream: a heartbeat's timer does not
/// stand in for it.
#[test]
fn a_cut_after_an_idle_time_is_noticed_as_fast() {
    for phase in 0..10 {
        let mut lab = joined(20 + phase, 2);
        lab.run(SECOND * 3 + 100 * MS * phase as u32);
        lab.nodes[0].multicast = false;
        lab.publish(100);
        lab.run(SECOND / 2);
        lab.assert_complete(1);
        let late = lab.nodes[0].got[0].2 - lab.published[0];
        assert!(late < 200 * MS, "phase {phase}: {late:?}");
        assert_eq!(
            lab.moves(0).last(),
            Some(&(Rung::Unicast, Cause::AckTimeout))
        );
    }
}

#[test]
fn a_fall_back_before_anything_is_published_replays_nothing() {
    let mut lab = Lab::new(40, 0);
    (0..3000).for_each(|_| lab.publish(50));
    lab.restart_source(41);
    lab.add_node(
        0,
        Some(Cursor {
            incarnation: INCARNATION,
            seq: 3000,
        }),
    );
    lab.connect(0);
    lab.run(SECOND * 3);
    lab.nodes[0].multicast = false;
    lab.run(SECOND * 6);
    assert_eq!(
        lab.moves(0).last(),
        Some(&(Rung::Unicast, Cause::HeartbeatLost))
    );
    assert_eq!(
        lab.nodes[0]
            .core
            .stats(CHANNEL)
            .unwrap()
            .reception
            .duplicates,
        0
    );
}

/// A holder of the flow's key can forge a packet with a number far ahead. Its victims leave the
/// flow for a while; no connection ends by it.
#[test]
fn a_forged_packet_number_closes_no_connection() {
    use flexicast::protect::{HEADER_LEN, PacketKey, TAG_LEN};
    let mut lab = joined(50, 2);
    let mut packet = vec![0; HEADER_LEN];
    packet.push(1);
    packet.resize(HEADER_LEN + 1 + TAG_LEN, 0);
    let mut key = PacketKey::new(lab.config.algorithm, &lab.config.secret).unwrap();
    key.seal(lab.config.flow, 1 << 20, true, &mut packet, HEADER_LEN + 1)
        .unwrap();
    let now = lab.now;
    lab.nodes[0]
        .core
        .on_flow_datagram(Rung::Multicast, &mut packet, now);
    for _ in 0..200 {
        lab.publish(500);
        lab.run(20 * MS);
    }
    lab.run(SECOND);
    lab.assert_complete(1);
    assert_eq!(lab.source.sessions().count(), 2);
    assert_eq!(lab.source.counters().invalid_acks, 1);
    assert!(lab.moves(0).contains(&(Rung::Unicast, Cause::Forged)));
    assert_eq!(lab.moves(1).len(), 1, "the other is not disturbed");
}

#[test]
fn a_replaced_flow_loses_nothing_and_closes_no_connection() {
    let mut lab = joined(60, 3);
    for n in 0..400u64 {
        if n % 100 == 50 {
            lab.config = flexicast::flow::FlowConfig {
                flow: flexicast::FlowId((1000 + n).to_be_bytes()),
                ..lab.config.clone()
            };
            let (config, now) = (lab.config.clone(), lab.now);
            lab.source.replace_flow(0, config, now).unwrap();
        }
        lab.publish(1500);
        lab.run(3 * MS);
    }
    lab.run(SECOND * 20);
    lab.assert_complete(1);
    assert_eq!(
        lab.source
            .sessions()
            .filter(|s| s.channels[0].rung == Rung::Multicast)
            .count(),
        3
    );
    assert_eq!(lab.source.counters().invalid_acks, 0);
}
