//! Relays among the other ways to a flow: when one is asked, when it counts, and what its loss
//! costs.

use std::time::Duration;

use flexicast::control::{Action, Control, RelayAddress, RelayHint, State};
use flexicast::receiver::Rungs;
use flexicast::{Cause, Cursor, PathId, Rung, Via};

use crate::lab::{Asked, CHANNEL, INCARNATION, Lab};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const AMT: (Rung, Cause) = (Rung::Amt, Cause::Joined);
const NATIVE: (Rung, Cause) = (Rung::Multicast, Cause::Joined);

/// Receivers that can use a relay, none of which hears native multicast.
fn lab(seed: u64, nodes: usize) -> Lab {
    let mut lab = Lab::new(seed, 0);
    lab.rungs = Rungs {
        amt_v4: true,
        amt_v6: true,
        ..Rungs::default()
    };
    for i in 0..nodes {
        lab.add_node(i, None);
        (lab.nodes[i].multicast, lab.nodes[i].relay) = (false, true);
    }
    lab
}

fn relayed(seed: u64, nodes: usize) -> Lab {
    let mut lab = lab(seed, nodes);
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND * 2);
    (0..nodes).for_each(|i| assert_eq!(lab.moves(i), [AMT], "receiver {i}"));
    lab
}

fn stream(lab: &mut Lab, n: usize) {
    for _ in 0..n {
        lab.publish(700);
        lab.run(10 * MS);
    }
}

fn tunnels(lab: &Lab, i: usize) -> usize {
    let opened = |(_, asked): &&(Duration, Asked)| matches!(asked, Asked::Tunnel(_));
    lab.nodes[i].asked.iter().filter(opened).count()
}

#[test]
fn without_multicast_a_relay_brings_everything() {
    let mut lab = relayed(1, 3);
    stream(&mut lab, 300);
    lab.run(SECOND);
    lab.assert_complete(1);
    for node in &lab.nodes {
        assert!(node.got.iter().all(|(_, via, _)| *via == Via::Flow));
        let stats = node.core.stats(CHANNEL).unwrap();
        assert_eq!(stats.tunnelled_packets, stats.reception.flow_packets);
    }
    let owed = lab.source.flow(0).unwrap().outstanding();
    assert_eq!(owed, 0, "they acknowledge by the relay's path");
}

/// Also where the source is far away, so that the native join takes longer to show that it works
/// than a relay is kept waiting.
#[test]
fn no_relay_is_used_with_working_multicast() {
    for delay in [MS, 50 * MS, 100 * MS] {
        let mut lab = lab(2, 2);
        lab.delay = delay;
        lab.nodes.iter_mut().for_each(|n| n.multicast = true);
        (0..2).for_each(|i| lab.connect(i));
        stream(&mut lab, 300);
        lab.run(SECOND * 30);
        for i in 0..2 {
            assert_eq!(lab.moves(i), [NATIVE], "{delay:?}");
            assert_eq!(lab.nodes[i].asked, [], "{delay:?}");
        }
        lab.assert_complete(1);
    }
}

#[test]
fn a_lost_relay_is_reported_at_once_and_costs_nothing() {
    for seed in 0..10 {
        let mut lab = relayed(seed, 2);
        stream(&mut lab, 50);
        lab.nodes[0].relay = false;
        lab.run(20 * MS);
        lab.relay_lost(0);
        lab.run(30 * MS);
        let rungs: Vec<_> = lab.source.sessions().map(|s| s.channels[0].rung).collect();
        assert_eq!(rungs, [Rung::Unicast, Rung::Amt], "seed {seed}");
        stream(&mut lab, 50);
        // Another relay.
        lab.nodes[0].relay = true;
        stream(&mut lab, 50);
        lab.run(SECOND);
        lab.assert_complete(1);
        let lost = (Rung::Unicast, Cause::RelayLost);
        assert_eq!(lab.moves(0), [AMT, lost, AMT], "seed {seed}");
        assert_eq!(lab.moves(1), [AMT], "the others stay");
    }
}

/// A dead relay is not reported: missing acknowledgements show it, and its user is asked to check
/// it.
#[test]
fn a_relay_that_dies_silently_is_looked_after_at_once() {
    let mut lab = relayed(3, 1);
    stream(&mut lab, 50);
    lab.nodes[0].relay = false;
    let died = lab.elapsed();
    stream(&mut lab, 50);
    let fell = (Rung::Unicast, Cause::AckTimeout);
    assert_eq!(lab.moves(0), [AMT, fell]);
    let looked = lab.nodes[0].asked.last().unwrap();
    assert_eq!(looked.1, Asked::Again);
    assert!(looked.0 - died < 300 * MS, "{:?}", looked.0 - died);
    lab.nodes[0].relay = true;
    stream(&mut lab, 50);
    lab.assert_complete(1);
    assert_eq!(lab.moves(0), [AMT, fell, AMT]);
}

#[test]
fn an_idle_flow_that_the_relay_brings_no_more_is_missed_by_its_heartbeats() {
    let mut lab = relayed(4, 1);
    lab.run(SECOND * 3);
    lab.nodes[0].relay = false;
    lab.run(SECOND * 6);
    let fell = (Rung::Unicast, Cause::HeartbeatLost);
    assert_eq!(lab.moves(0), [AMT, fell]);
    assert_eq!(lab.nodes[0].asked.last().unwrap().1, Asked::Again);
    lab.nodes[0].relay = true;
    lab.run(SECOND * 2);
    assert_eq!(lab.moves(0), [AMT, fell, AMT]);
}

/// A failing rung is retried at growing intervals.
#[test]
fn a_relay_that_brings_nothing_is_looked_after_ever_more_seldom() {
    let mut lab = lab(5, 1);
    lab.nodes[0].relay = false;
    lab.connect(0);
    lab.run(SECOND * 400);
    assert_eq!(tunnels(&lab, 0), 1);
    let times: Vec<_> = lab.nodes[0].asked.iter().map(|(at, _)| *at).collect();
    assert!((6..11).contains(&times.len()), "{times:?}");
    let last = times.len() - 1;
    let (first, late) = (times[1] - times[0], times[last] - times[last - 1]);
    assert!(late > first * 10, "{times:?}");
    let before = lab.nodes[0].asked.len();
    let now = lab.now;
    lab.nodes[0].core.network_changed(now);
    lab.run(MS);
    assert!(
        lab.nodes[0].asked.len() > before,
        "at once in another network"
    );
}

#[test]
fn native_multicast_takes_over_and_the_tunnel_ends_after_a_while() {
    let mut lab = relayed(6, 1);
    stream(&mut lab, 100);
    lab.nodes[0].multicast = true;
    let began = lab.elapsed();
    stream(&mut lab, 600);
    assert_eq!(lab.moves(0), [AMT, NATIVE]);
    assert_eq!(lab.nodes[0].asked.len(), 1, "it is held for a while");
    stream(&mut lab, 600);
    let (ended, asked) = lab.nodes[0].asked[1].clone();
    assert_eq!(asked, Asked::End);
    assert!(ended - began > SECOND * 9, "{:?}", ended - began);
    // Native multicast fails: the relay is asked again, and soon.
    lab.nodes[0].multicast = false;
    stream(&mut lab, 200);
    lab.run(SECOND);
    lab.assert_complete(1);
    let fell = (Rung::Unicast, Cause::AckTimeout);
    assert_eq!(lab.moves(0), [AMT, NATIVE, fell, AMT]);
    let repaired = lab.nodes[0]
        .got
        .iter()
        .filter(|(_, via, _)| *via != Via::Flow);
    let repaired = repaired.count();
    assert!(repaired < 120, "{repaired} updates outside of the flow");
}

/// Native multicast comes back while the tunnel is held: it is not closed and opened, and so on.
#[test]
fn a_tunnel_that_is_held_takes_over_at_once() {
    let mut lab = relayed(7, 1);
    lab.nodes[0].multicast = true;
    stream(&mut lab, 100);
    assert_eq!(lab.moves(0), [AMT, NATIVE]);
    lab.nodes[0].multicast = false;
    let lost = lab.elapsed();
    stream(&mut lab, 100);
    let fell = (Rung::Unicast, Cause::AckTimeout);
    assert_eq!(lab.moves(0), [AMT, NATIVE, fell, AMT]);
    let back = lab.nodes[0].moves[3].0 - lost;
    assert!(back < 400 * MS, "{back:?}");
    assert_eq!(tunnels(&lab, 0), 1);
    lab.run(SECOND * 30);
    assert!(!lab.nodes[0].asked.iter().any(|(_, a)| *a == Asked::End));
}

/// Packets by a relay prove nothing if the receiver never said that it listens there, and their
/// proof is of no other path.
#[test]
fn a_proof_counts_only_for_the_path_that_was_asked_for() {
    let mut lab = lab(8, 1);
    lab.nodes[0].says = Some(|frame| {
        let join = |s: &flexicast::control::State| {
            s.action == Action::Join && s.path == PathId::new(1, Rung::Amt)
        };
        !matches!(frame, Control::State(state) if join(state))
    });
    lab.connect(0);
    stream(&mut lab, 200);
    assert!(
        lab.nodes[0]
            .core
            .stats(CHANNEL)
            .unwrap()
            .reception
            .flow_packets
            > 50
    );
    assert!(lab.source.counters().proofs_ignored > 0);
    assert_eq!(lab.moves(0), []);
    lab.run(SECOND);
    lab.assert_complete(1);
}

#[test]
fn a_source_announces_relays_to_its_receivers() {
    let hint = |priority, address, port| RelayHint {
        priority,
        address,
        port,
    };
    let near = hint(1, RelayAddress::Ip([192, 0, 2, 9].into()), 2268);
    let far = hint(2, RelayAddress::Name("relay.example.org".into()), 4000);
    let bad = hint(0, RelayAddress::Ip([0, 0, 0, 0].into()), 2268);
    let mut lab = lab(9, 1);
    let now = lab.now;
    lab.source
        .set_relays(vec![far.clone(), bad, near.clone()], now);
    lab.connect(0);
    lab.run(SECOND * 2);
    assert_eq!(lab.moves(0), [AMT]);
    let both = Asked::Tunnel(vec![near.clone(), far.clone()]);
    assert_eq!(lab.nodes[0].asked[0].1, both);
    let now = lab.now;
    lab.source.set_relays(vec![far.clone()], now);
    lab.run(SECOND);
    assert_eq!(lab.nodes[0].asked[1].1, Asked::Tunnel(vec![far]));
    stream(&mut lab, 20);
    assert_eq!(lab.moves(0), [AMT], "no receiver leaves a relay for that");
    lab.source.set_relays(Vec::new(), lab.now);
    lab.run(SECOND);
    assert_eq!(lab.nodes[0].asked[2].1, Asked::Tunnel(Vec::new()));
    lab.assert_complete(1);
}

/// Missing acknowledgements are noticed before anybody can know that it is the relay.
#[test]
fn a_relay_that_is_found_dead_later_explains_the_fall_back() {
    let mut lab = relayed(10, 2);
    stream(&mut lab, 50);
    lab.nodes[0].relay = false;
    stream(&mut lab, 50);
    let fell = (Rung::Unicast, Cause::AckTimeout);
    assert_eq!(lab.moves(0), [AMT, fell]);
    for _ in 0..2 {
        lab.relay_lost(0);
        lab.run(20 * MS);
    }
    let why = (Rung::Amt, Rung::Unicast, Cause::RelayLost);
    let reported = |lab: &Lab| {
        let lost = |e: &&(u64, Rung, Rung, Cause)| e.3 == Cause::RelayLost;
        lab.explained
            .iter()
            .filter(lost)
            .copied()
            .collect::<Vec<_>>()
    };
    assert_eq!(reported(&lab), [(0, why.0, why.1, why.2)], "once");
    let known = lab.nodes[0].explained.iter();
    let known: Vec<_> = known.map(|e| (e.1, e.2, e.3)).collect();
    assert!(known.contains(&why), "{known:?}");
    assert_eq!(lab.moves(0), [AMT, fell], "it does not move by it");
    // Another relay.
    lab.nodes[0].relay = true;
    stream(&mut lab, 100);
    assert_eq!(lab.moves(0), [AMT, fell, AMT]);
    // The first end to know reports it by the move.
    lab.relay_lost(0);
    lab.run(20 * MS);
    assert_eq!(lab.moves(0)[3], (Rung::Unicast, Cause::RelayLost));
    assert_eq!(reported(&lab).len(), 1);
    stream(&mut lab, 50);
    lab.run(SECOND);
    lab.assert_complete(1);
}

#[test]
fn a_relay_that_still_brings_packets_explains_nothing() {
    let mut lab = relayed(11, 1);
    // Repeated fall-backs end in a back-off.
    lab.nodes[0].acks = false;
    let fell = (Rung::Unicast, Cause::AckTimeout);
    while lab.moves(0).len() < 4 {
        stream(&mut lab, 1);
    }
    assert_eq!(lab.moves(0), [AMT, fell, AMT, fell]);
    stream(&mut lab, 20);
    lab.relay_lost(0);
    lab.run(20 * MS);
    let lost = |cause| cause == Cause::RelayLost;
    assert!(!lab.nodes[0].explained.iter().any(|e| lost(e.3)));
    assert!(!lab.explained.iter().any(|e| lost(e.3)));
    assert_eq!(lab.moves(0).len(), 4);
}

#[test]
fn replication_is_requested_soon_after_the_relays_death() {
    let mut lab = lab(12, 1);
    lab.offer_replication(12);
    lab.connect(0);
    lab.run(SECOND * 2);
    stream(&mut lab, 50);
    assert_eq!(lab.moves(0), [AMT]);
    lab.nodes[0].relay = false;
    stream(&mut lab, 50);
    assert_eq!(lab.moves(0)[1], (Rung::Unicast, Cause::AckTimeout));
    lab.relay_lost(0);
    let lost = lab.elapsed();
    lab.run(SECOND * 5);
    let copies = PathId::new(1, Rung::Replicated);
    let said = &lab.nodes[0].said;
    let asked = said
        .iter()
        .find(|(at, s)| *at > lost && (s.action, s.path) == (Action::Join, copies));
    assert_eq!(asked.unwrap().0 - lost, SECOND);
}

/// "Why am I on unicast?"
#[test]
fn a_failed_attempt_is_reported_once_and_continues() {
    let mut lab = lab(13, 1);
    lab.nodes[0].relay = false;
    lab.connect(0);
    lab.run(SECOND * 100);
    let tried = |rung| (0, rung, Rung::Unicast, Cause::ProbeTimeout);
    let both = [tried(Rung::Multicast), tried(Rung::Amt)];
    assert_eq!(lab.explained, both);
    for (at, ..) in &lab.nodes[0].explained {
        assert!((SECOND * 3..SECOND * 4).contains(at), "{at:?}");
    }
    assert_eq!(lab.nodes[0].explained.len(), 2);
    assert_eq!(lab.moves(0), []);
    // Still listening by both.
    lab.nodes[0].relay = true;
    stream(&mut lab, 200);
    assert_eq!(lab.moves(0), [AMT]);
    lab.nodes[0].multicast = true;
    stream(&mut lab, 200);
    assert_eq!(lab.moves(0), [AMT, NATIVE]);
    lab.run(SECOND * 30);
    assert_eq!(lab.explained, both);
    lab.assert_complete(1);
}

#[test]
fn a_rung_below_the_one_that_works_is_no_failure() {
    let mut lab = relayed(14, 1);
    lab.nodes[0].multicast = true;
    lab.run(SECOND * 2);
    assert_eq!(lab.moves(0), [AMT, NATIVE]);
    lab.nodes[0].relay = false;
    lab.run(SECOND * 30);
    assert_eq!(lab.explained, []);
    // A native join that brings nothing does not cost the relay.
    let mut lab = relayed(15, 1);
    stream(&mut lab, 1000);
    let why = (0, Rung::Multicast, Rung::Amt, Cause::ProbeTimeout);
    assert_eq!(lab.explained, [why]);
    assert_eq!(lab.moves(0), [AMT]);
    lab.assert_complete(1);
}

#[test]
fn without_a_key_nothing_is_known_of_a_rung() {
    let mut lab = lab(16, 1);
    lab.nodes[0].relay = false;
    lab.nodes[0].says =
        Some(|frame| !matches!(frame, Control::State(state) if state.action == Action::Join));
    lab.connect(0);
    lab.run(SECOND * 60);
    assert_eq!(lab.nodes[0].explained, []);
}

/// Said without need, or again and again, it is heard once.
#[test]
fn repeated_probe_timeouts_count_once() {
    let mut lab = relayed(17, 1);
    let say = |lab: &mut Lab, sequence: u64, path: PathId| {
        let state = State {
            flow: lab.config.flow,
            sequence,
            action: Action::Leave,
            path,
            key_sequence: 1,
            cause: Some(Cause::ProbeTimeout),
            largest: None,
        };
        let mut bytes = Vec::new();
        Control::State(state).encode(&mut bytes);
        lab.say(0, bytes);
        lab.run(50 * MS);
    };
    let paths = [
        PathId::UNICAST,
        PathId::new(1, Rung::Amt),
        PathId::new(1, Rung::Replicated),
        PathId::new(2, Rung::Multicast),
    ];
    for (n, path) in (100..).zip(paths) {
        say(&mut lab, n, path);
    }
    assert_eq!(lab.explained, [], "of nothing that it tries");
    for n in 200..300 {
        say(&mut lab, n, PathId::new(1, Rung::Multicast));
    }
    let why = (0, Rung::Multicast, Rung::Amt, Cause::ProbeTimeout);
    assert_eq!(lab.explained, [why]);
    assert_eq!(lab.moves(0), [AMT]);
    stream(&mut lab, 50);
    lab.run(SECOND);
    lab.assert_complete(1);
}

/// A LEAVE of rung 3 ends replication whichever flow its path names; one of rung 2 ends only the
/// membership whose path it names.
#[test]
fn a_leave_of_rung_3_with_a_foreign_flow_index_ends_replication() {
    let replicated = PathId::new(1, Rung::Replicated);
    for (leave, is_member_after) in [
        (PathId::new(2, Rung::Amt), true),
        (PathId::new(2, Rung::Replicated), false),
    ] {
        let mut lab = Lab::new(22, 0);
        lab.offer_replication(22);
        lab.add_node(0, None);
        lab.nodes[0].multicast = false;
        // The test speaks for the receiver: it is a member of rung 3 by hand.
        lab.nodes[0].says = Some(|frame| !matches!(frame, Control::State(_)));
        lab.connect(0);
        lab.run(SECOND);
        let steps = [
            (Action::Join, replicated),
            (Action::Ready, replicated),
            (Action::Leave, leave),
        ];
        for (sequence, (action, path)) in (1_000..).zip(steps) {
            if action == Action::Leave {
                assert_eq!(lab.source.counters().promotions, 1);
            }
            let state = State {
                flow: lab.config.flow,
                sequence,
                action,
                path,
                key_sequence: 1,
                cause: None,
                largest: None,
            };
            let mut bytes = Vec::new();
            Control::State(state).encode(&mut bytes);
            lab.say(0, bytes);
            lab.run(10 * MS);
        }
        let counters = lab.source.counters();
        assert_eq!(counters.fall_backs, u64::from(!is_member_after));
        assert_eq!(lab.source.replicas(0).len(), usize::from(is_member_after));
    }
}

/// A receiver that has much to catch up with proves a rung long before it can be moved there.
fn behind(seed: u64) -> Lab {
    let mut lab = lab(seed, 0);
    let cursor = Cursor {
        incarnation: INCARNATION,
        seq: 1,
    };
    lab.add_node(0, Some(cursor));
    (lab.nodes[0].multicast, lab.nodes[0].relay) = (false, true);
    // More than the source has at hand: it asks the store.
    for _ in 0..2000 {
        lab.publish(100);
    }
    lab.fetch_fails = true;
    lab.connect(0);
    lab.run(SECOND * 2);
    let ready = |(_, s): &&(Duration, State)| s.action == Action::Ready;
    assert_eq!(lab.nodes[0].said.iter().filter(ready).count(), 1);
    lab
}

#[test]
fn an_old_proof_proves_nothing() {
    let mut lab = behind(18);
    lab.nodes[0].relay = false;
    lab.run(SECOND * 13);
    lab.fetch_fails = false;
    lab.run(SECOND * 10);
    lab.assert_complete(2);
    assert_eq!(lab.moves(0), []);
    // As long as packets come the proof is renewed.
    let mut lab = behind(19);
    lab.run(SECOND * 30);
    lab.fetch_fails = false;
    lab.run(SECOND * 2);
    lab.assert_complete(2);
    assert_eq!(lab.moves(0), [AMT]);
}

#[test]
fn a_lost_relay_takes_its_proof_along() {
    let mut lab = behind(20);
    lab.nodes[0].relay = false;
    lab.relay_lost(0);
    lab.run(SECOND);
    lab.fetch_fails = false;
    lab.run(SECOND * 4);
    lab.assert_complete(2);
    assert_eq!(lab.moves(0), []);
    assert!(!lab.explained.iter().any(|e| e.3 == Cause::RelayLost));
    // The next relay proves it at once.
    lab.nodes[0].relay = true;
    lab.run(SECOND * 2);
    assert_eq!(lab.moves(0), [AMT]);
}

#[test]
fn a_relay_that_is_found_after_a_long_time_is_looked_after_soon() {
    let mut lab = lab(21, 1);
    lab.nodes[0].relay = false;
    lab.connect(0);
    lab.run(SECOND * 400);
    let before = lab.nodes[0].asked.len();
    let found = lab.elapsed();
    lab.relay_found(0);
    lab.run(SECOND * 4);
    let next = lab.nodes[0].asked.get(before).unwrap();
    assert_eq!((next.0 - found, &next.1), (SECOND * 3, &Asked::Again));
}
