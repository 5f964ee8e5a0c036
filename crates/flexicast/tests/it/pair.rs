//! Source and receivers together, in virtual time.

use std::time::Duration;

use flexicast::control::Action;
use flexicast::flow::FlowConfig;
use flexicast::source::Faults;
use flexicast::{Cause, Cursor, Rung, Via};

use crate::lab::{CHANNEL, INCARNATION, Lab, flow_config};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn joined(seed: u64, nodes: usize) -> Lab {
    let mut lab = Lab::new(seed, nodes);
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
        let mut lab = joined(seed, 4);
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
    assert!(lab.moves(0).contains(&(Rung::Unicast, Cause::FlowInvalid)));
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

/// All machines stall, or only the source's: packets sent meanwhile are read first, and after a
/// long absence that takes longer. A member that is silent after that falls back all the same.
#[test]
fn an_absence_of_the_source_grants_its_members_grace() {
    // Heartbeat, absence of the source, and the members' grace period.
    let cases = [
        (SECOND, 160 * MS, 160 * MS),
        (SECOND, 700 * MS, 700 * MS),
        (SECOND, 8 * SECOND, SECOND),
        (5 * SECOND, 8 * SECOND, 2 * SECOND),
        (60 * MS, 8 * SECOND, 100 * MS),
    ];
    for (seed, (heartbeat, away, grace)) in (0..).zip(cases.into_iter().cycle().take(20)) {
        for is_excused in [true, false] {
            let config = FlowConfig {
                heartbeat,
                ..flow_config(seed)
            };
            let mut lab = Lab::with_config(seed, 3, config);
            (0..3).for_each(|i| lab.connect(i));
            lab.run(SECOND);
            lab.publish(5_000);
            // On the way, with a packet that nothing will acknowledge.
            lab.run(2 * MS);
            lab.nodes[1].acks = false;
            lab.now += away;
            // The others' acknowledgements take a good part of the time.
            lab.delay = grace / 2;
            let now = lab.now;
            lab.nodes.iter_mut().for_each(|n| n.core.grant_grace(now));
            if is_excused {
                lab.source.grant_grace(away, now);
            }
            lab.run(grace - 5 * MS);
            let stay = |lab: &Lab| {
                let all = lab.source.sessions();
                let on_flow = all.filter(|s| s.channels[0].rung == Rung::Multicast);
                on_flow.map(|s| s.session).collect::<Vec<_>>()
            };
            let expected: &[u64] = if is_excused { &[0, 1, 2] } else { &[] };
            assert_eq!(stay(&lab), expected, "{heartbeat:?} {away:?} seed {seed}");
            lab.run(10 * MS);
            let expected: &[u64] = if is_excused { &[0, 2] } else { &[] };
            assert_eq!(stay(&lab), expected, "{heartbeat:?} {away:?} seed {seed}");
            lab.run(grace);
            assert_eq!(
                lab.moves(1)[1],
                (Rung::Unicast, Cause::AckTimeout),
                "{heartbeat:?} {away:?} seed {seed}: it is silent"
            );
        }
    }
}

/// A source that is always late would grant grace for ever, also where it is later each time.
#[test]
fn a_source_that_is_always_late_blames_in_the_end() {
    for grows in [1, 2, 3] {
        let mut lab = joined(1, 2);
        lab.nodes[0].acks = false;
        let mut away = 80 * MS;
        for _ in 0..30 {
            lab.publish(500);
            lab.now += 80 * MS;
            lab.source.grant_grace(away, lab.now);
            lab.run(45 * MS);
            away = (away * grows).min(100 * SECOND);
        }
        assert_eq!(lab.moves(0)[1], (Rung::Unicast, Cause::AckTimeout));
        assert_eq!(lab.moves(1).len(), 1, "the other one is heard");
    }
}

/// A short absence does not use up the grace of a following long one.
#[test]
fn a_longer_second_absence_of_the_source_grants_grace_again() {
    for absences in [[100 * MS, 3 * SECOND], [600 * MS, 60 * SECOND]] {
        let mut lab = joined(1, 3);
        lab.publish(5_000);
        lab.run(2 * MS);
        for away in absences {
            lab.now += away;
            let now = lab.now;
            lab.source.grant_grace(away, now);
            lab.nodes.iter_mut().for_each(|n| n.core.grant_grace(now));
            lab.run(5 * MS);
        }
        lab.run(2 * SECOND);
        assert!((0..3).all(|i| lab.moves(i).len() == 1), "{absences:?}");
    }
}

/// All machines stall, for longer than a flow may be silent: the flow is given up, and its paths
/// retried, only when it is not heard within a heartbeat after that.
#[test]
fn a_receiver_that_was_away_itself_leaves_no_flow_at_once() {
    for is_excused in [true, false] {
        for seed in 0..10 {
            let mut lab = Lab::new(seed, 3);
            lab.rungs.amt_v4 = true;
            lab.add_node(3, None);
            (lab.nodes[3].multicast, lab.nodes[3].relay) = (false, true);
            (0..4).for_each(|i| lab.connect(i));
            // Nothing is on its way at the end of this.
            lab.run(2_500 * MS);
            assert_eq!(lab.moves(3), [(Rung::Amt, Cause::Joined)], "seed {seed}");
            let asked = lab.nodes[3].asked.len();
            lab.nodes[1].multicast = false;
            lab.now += 8 * SECOND;
            let now = lab.now;
            lab.source.grant_grace(8 * SECOND, now);
            if is_excused {
                lab.nodes.iter_mut().for_each(|n| n.core.grant_grace(now));
            }
            lab.run(1_200 * MS);
            let stayed = (0..4).filter(|i| lab.moves(*i).len() == 1).count();
            assert_eq!(stayed, if is_excused { 4 } else { 0 }, "seed {seed}");
            lab.run(200 * MS);
            let lost = (Rung::Unicast, Cause::HeartbeatLost);
            assert_eq!(lab.moves(1)[1], lost, "seed {seed}: it hears nothing");
            let again = [0, 2].map(|i| lab.nodes[i].rejoins);
            let tunnel = lab.nodes[3].asked.len() - asked;
            if is_excused {
                assert!((0..4).all(|i| lab.moves(i).len() == 1 || i == 1));
                assert_eq!((again, tunnel), ([0, 0], 0), "seed {seed}");
            } else {
                assert!(again[0] > 0 && again[1] > 0 && tunnel > 0, "seed {seed}");
            }
        }
    }
}

/// A receiver that never gets round to anything in time would wait for ever for a flow that is
/// gone.
#[test]
fn a_receiver_that_is_always_late_leaves_in_the_end() {
    let mut lab = Lab::new(1, 2);
    // The source does not notice it first.
    lab.source.inject_faults(Faults {
        fall_back_off: true,
        ..Faults::default()
    });
    (0..2).for_each(|i| lab.connect(i));
    lab.run(SECOND);
    lab.nodes[0].multicast = false;
    for _ in 0..15 {
        lab.now += 200 * MS;
        let now = lab.now;
        lab.nodes.iter_mut().for_each(|n| n.core.grant_grace(now));
        lab.run(200 * MS);
    }
    let left = |i: usize| {
        let mut said = lab.nodes[i].said.iter().map(|(_, state)| state);
        said.any(|s| s.action == Action::Leave && s.cause == Some(Cause::HeartbeatLost))
    };
    assert_eq!((left(0), left(1)), (true, false));
}
