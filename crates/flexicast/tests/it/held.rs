//! Operations on single receivers: hold on unicast, release, disconnect.

use std::collections::BTreeSet;
use std::time::Duration;

use flexicast::control::{Action, Control, State};
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::receiver::Rungs;
use flexicast::source::{SubscriptionStatus, close};
use flexicast::{Cause, FlowId, PathId, Rung, Via};
use uuid::Uuid;

use crate::lab::{Asked, Lab};

const SECOND: Duration = Duration::from_secs(1);
const HELD: (Rung, Cause) = (Rung::Unicast, Cause::Held);
const NATIVE: (Rung, Cause) = (Rung::Multicast, Cause::Joined);

fn joined(seed: u64, nodes: usize) -> Lab {
    let mut lab = Lab::new(seed, nodes);
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND);
    (0..nodes).for_each(|i| assert_eq!(lab.moves(i), [NATIVE], "receiver {i}"));
    lab
}

fn hold(lab: &mut Lab, nodes: &[usize]) {
    let ids: BTreeSet<_> = nodes
        .iter()
        .map(|i| Uuid::from_u128(*i as u128 + 1))
        .collect();
    lab.source.set_held(ids, lab.now);
    lab.run(SECOND / 10);
}

fn stream(lab: &mut Lab, count: usize) {
    for _ in 0..count {
        lab.publish(700);
        lab.run(SECOND / 10);
    }
}

/// Where the source sees a receiver, on its only channel.
fn place(lab: &Lab, i: usize) -> SubscriptionStatus {
    let id = Uuid::from_u128(i as u128 + 1);
    let session = lab.source.sessions().find(|s| s.receiver == id);
    session.unwrap().channels[0].clone()
}

#[test]
fn one_that_is_held_stays_on_unicast_until_it_is_released() {
    let mut lab = joined(1, 2);
    stream(&mut lab, 10);
    let before = lab.elapsed();
    hold(&mut lab, &[0]);
    assert_eq!(lab.moves(0), [NATIVE, HELD]);
    let held = place(&lab, 0);
    assert_eq!((held.rung, held.cause), (Rung::Unicast, Some(Cause::Held)));
    assert_eq!(place(&lab, 1).cause, Some(Cause::Joined));
    stream(&mut lab, 1000);
    assert_eq!(
        lab.moves(0),
        [NATIVE, HELD],
        "multicast works, and is not gone back to"
    );
    assert_eq!(lab.moves(1), [NATIVE], "the others stay");
    let mut later = lab.nodes[0].got.iter().filter(|(_, _, at)| *at > before);
    assert!(later.all(|(_, via, _)| *via == Via::Unicast));
    assert_eq!(
        lab.source.counters().proofs_ignored,
        0,
        "it does not even try"
    );
    assert_eq!(lab.source.held().len(), 1);

    let before = lab.elapsed();
    hold(&mut lab, &[]);
    assert_ne!(place(&lab, 0).cause, Some(Cause::Held));
    stream(&mut lab, 10);
    assert_eq!(lab.moves(0), [NATIVE, HELD, NATIVE]);
    let back = lab.nodes[0].moves[2].0 - before;
    assert!(back < SECOND, "{back:?}");
    lab.assert_complete(1);
}

/// Also what is under way on the flow at that moment arrives once.
#[test]
fn nothing_is_lost_by_holding_and_releasing() {
    for seed in 0..20 {
        let mut lab = joined(100 + seed, 3);
        for n in 0..60 {
            for _ in 0..4 {
                lab.publish(3_000 + n * 37);
            }
            match n % 6 {
                1 => hold(&mut lab, &[0]),
                3 => hold(&mut lab, &[0, 1]),
                5 => hold(&mut lab, &[]),
                _ => lab.run(SECOND / 50),
            }
        }
        hold(&mut lab, &[]);
        lab.run(SECOND * 5);
        lab.assert_complete(1);
    }
}

#[test]
fn a_hold_survives_reconnections_and_flow_changes() {
    let mut lab = joined(2, 2);
    hold(&mut lab, &[0]);
    lab.disconnect(0);
    lab.run(SECOND);
    lab.connect(0);
    stream(&mut lab, 100);
    assert_eq!(lab.moves(0), [NATIVE, HELD]);
    assert_eq!(place(&lab, 0).cause, Some(Cause::Held));
    let other = FlowConfig::new(FlowId([9; 8]), FlowSecret::from([9; 32]));
    let now = lab.now;
    lab.source.replace_flow(0, other, now).unwrap();
    stream(&mut lab, 100);
    assert_eq!(lab.moves(0), [NATIVE, HELD]);
    assert_eq!(place(&lab, 1).rung, Rung::Multicast);
    hold(&mut lab, &[]);
    stream(&mut lab, 20);
    assert_eq!(lab.moves(0).last(), Some(&NATIVE));
    lab.assert_complete(1);
}

/// A receiver that knows nothing of this cause goes on proving that multicast works.
#[test]
fn proofs_of_one_that_is_held_change_nothing() {
    let mut lab = joined(3, 2);
    hold(&mut lab, &[0]);
    for (n, rung) in [
        Rung::Multicast,
        Rung::Amt,
        Rung::Replicated,
        Rung::Multicast,
    ]
    .into_iter()
    .enumerate()
    {
        for (step, action) in [Action::Join, Action::Ready].into_iter().enumerate() {
            let state = Control::State(State {
                flow: lab.config.flow,
                sequence: 1_000 + 2 * n as u64 + step as u64,
                action,
                path: PathId::new(1, rung),
                key_sequence: 1,
                cause: None,
                largest: None,
            });
            let mut bytes = Vec::new();
            state.encode(&mut bytes);
            lab.say(0, bytes);
        }
        stream(&mut lab, 10);
    }
    assert_eq!(place(&lab, 0).rung, Rung::Unicast);
    assert_eq!(lab.source.replicas(0), [] as [u64; 0]);
    let counters = lab.source.counters();
    assert_eq!(
        (counters.proofs_ignored, counters.replication.refused),
        (0, 0)
    );
    lab.assert_complete(1);
}

#[test]
fn a_flow_is_silent_when_all_listeners_are_held() {
    let mut lab = joined(4, 1);
    hold(&mut lab, &[0]);
    let sent = lab.flow_packets;
    stream(&mut lab, 100);
    assert_eq!(lab.flow_packets, sent);
    hold(&mut lab, &[]);
    stream(&mut lab, 100);
    assert!(lab.flow_packets > sent + 50);
    lab.assert_complete(1);
}

#[test]
fn one_that_is_held_asks_no_relay() {
    let mut lab = Lab::new(5, 0);
    lab.rungs = Rungs {
        amt_v4: true,
        ..Rungs::default()
    };
    lab.add_node(0, None);
    lab.nodes[0].multicast = false;
    lab.nodes[0].relay = true;
    lab.connect(0);
    stream(&mut lab, 40);
    assert_eq!(lab.moves(0), [(Rung::Amt, Cause::Joined)]);
    hold(&mut lab, &[0]);
    stream(&mut lab, 200);
    assert_eq!(lab.moves(0), [(Rung::Amt, Cause::Joined), HELD]);
    assert_eq!(lab.nodes[0].asked.last().unwrap().1, Asked::End);
    hold(&mut lab, &[]);
    stream(&mut lab, 40);
    assert_eq!(lab.moves(0).last(), Some(&(Rung::Amt, Cause::Joined)));
    lab.assert_complete(1);
}

#[test]
fn a_disconnected_receiver_may_come_back_at_once() {
    let mut lab = joined(6, 2);
    stream(&mut lab, 10);
    let now = lab.now;
    assert_eq!(lab.source.disconnect_receiver(Uuid::from_u128(1), now), 1);
    assert_eq!(
        lab.source.disconnect_receiver(Uuid::from_u128(1), now),
        0,
        "already on its way out"
    );
    assert_eq!(lab.source.disconnect_receiver(Uuid::from_u128(77), now), 0);
    assert_eq!(lab.source.sessions().count(), 1);
    stream(&mut lab, 10);
    assert_eq!(lab.nodes[0].closes, [close::RECONNECT]);
    assert_eq!(
        lab.source.counters().fall_backs,
        0,
        "its end is no fall-back"
    );
    lab.connect(0);
    stream(&mut lab, 10);
    assert_eq!(place(&lab, 0).rung, Rung::Multicast);
    assert_eq!(lab.source.counters().fall_backs, 0);
    lab.assert_complete(1);
}

/// Savings of the flow are counted, and their limits.
#[test]
fn traffic_is_counted() {
    let mut lab = joined(7, 3);
    stream(&mut lab, 100);
    let traffic = lab.source.traffic(0);
    assert_eq!((traffic.unicast, traffic.repairs), (0, 0));
    assert_eq!(traffic.by_unicast_alone, 3 * 100 * 700);
    assert!((70_000..100_000).contains(&traffic.flow), "{traffic:?}");

    hold(&mut lab, &[0]);
    stream(&mut lab, 100);
    let alone = lab.source.traffic(0);
    assert_eq!((alone.unicast, alone.repairs), (70_000, 0));
    assert_eq!(alone.by_unicast_alone, 2 * 3 * 70_000);

    lab.nodes[1].loss = 20;
    stream(&mut lab, 100);
    let lossy = lab.source.traffic(0);
    assert!(lossy.repairs > 5 * 700, "{lossy:?}");
    let other = FlowConfig::new(FlowId([9; 8]), FlowSecret::from([9; 32]));
    let now = lab.now;
    lab.source.replace_flow(0, other, now).unwrap();
    assert!(
        lab.source.traffic(0).flow >= lossy.flow,
        "another flow, the same count"
    );
}
