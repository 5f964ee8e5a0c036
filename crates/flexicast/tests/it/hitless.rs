//! A flow that comes by two legs at once: what one of them loses, the other brings.

use std::time::Duration;

use flexicast::authentication::{AuthenticationConfig, PacketAuthentication};
use flexicast::control::{Control, Leg, LegReport, LegState, Legs};
use flexicast::flow::FlowConfig;
use flexicast::frame::put_ping;
use flexicast::protect::FlowSecret;
use flexicast::receiver::{Redundancy, Rungs};
use flexicast::{Cause, PathId, Rung, Via};

use crate::lab::{Asked, CHANNEL, Lab, VIOLATION, flow_config};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NATIVE: (Rung, Cause) = (Rung::Multicast, Cause::Joined);
const ON_RELAY: (Rung, Cause) = (Rung::Amt, Cause::LegLost);
const WORKING: LegState = LegState::Working;
const LOST: LegState = LegState::Lost;

/// Receivers that hear the flow natively and through a relay, with `redundancy`.
pub fn lab_of(config: FlowConfig, seed: u64, nodes: usize, redundancy: Redundancy) -> Lab {
    let mut lab = Lab::with_config(seed, 0, config);
    lab.rungs = Rungs {
        amt_v4: true,
        amt_v6: true,
        ..Rungs::default()
    };
    lab.redundancy = redundancy;
    for i in 0..nodes {
        lab.add_node(i, None);
        lab.nodes[i].relay = true;
    }
    lab
}

/// The flow sends no repair symbols: what both legs lose is repaired.
pub fn plain(seed: u64) -> FlowConfig {
    FlowConfig {
        fec: None,
        ..flow_config(seed)
    }
}

/// Receivers for which both legs work.
fn merging(config: FlowConfig, seed: u64, nodes: usize) -> Lab {
    both(lab_of(config, seed, nodes, Redundancy::Two))
}

fn both(mut lab: Lab) -> Lab {
    let nodes = lab.nodes.len();
    (0..nodes).for_each(|i| lab.connect(i));
    lab.run(SECOND * 3);
    for i in 0..nodes {
        assert_eq!(lab.moves(i).last(), Some(&NATIVE), "receiver {i}");
        let mut legs: Vec<_> = lab.nodes[i].legs.iter().map(|(_, l, s)| (*l, *s)).collect();
        legs.sort_by_key(|(leg, _)| *leg);
        assert_eq!(legs, [(Leg::NATIVE, WORKING), (Leg::RELAY, WORKING)]);
        assert_eq!(
            states(&lab, i),
            [(Leg::NATIVE, WORKING), (Leg::RELAY, WORKING)]
        );
    }
    lab
}

/// Returns the legs of a receiver as its source knows them.
pub fn states(lab: &Lab, i: usize) -> Vec<(Leg, LegState)> {
    let session = lab.source.sessions().find(|s| s.name == format!("r{i}"));
    let legs = session.unwrap().channels[0].legs.clone();
    let states = legs.iter().map(|leg| (leg.leg().unwrap(), leg.state));
    states.collect()
}

pub fn rung(lab: &Lab, i: usize) -> Rung {
    let session = lab.source.sessions().find(|s| s.name == format!("r{i}"));
    session.unwrap().channels[0].rung
}

/// Publishes 200 updates a second.
pub fn stream(lab: &mut Lab, n: usize) {
    for _ in 0..n {
        lab.publish(700);
        lab.run(5 * MS);
    }
}

fn assert_hitless(lab: &Lab) {
    assert_hitless_since(lab, SECOND * 3);
}

/// Neither fall-back nor repair: all updates since then came by the flow.
pub fn assert_hitless_since(lab: &Lab, since: Duration) {
    lab.assert_complete(1);
    let counters = lab.source.counters();
    assert_eq!((counters.repairs, counters.fall_backs), (0, 0));
    for (i, node) in lab.nodes.iter().enumerate() {
        let got = node.got.iter().filter(|(.., at)| *at > since);
        let other = got.filter(|(_, via, _)| *via != Via::Flow).count();
        assert_eq!(
            other, 0,
            "receiver {i}: updates that did not come by the flow alone"
        );
        assert_eq!(node.closes, [], "receiver {i}");
        let stats = node.core.stats(CHANNEL).unwrap();
        assert_eq!(stats.reception.duplicates, 0, "receiver {i}");
    }
}

/// The longest time between two updates after `from`.
pub fn largest_gap(lab: &Lab, i: usize, from: Duration) -> Duration {
    let times: Vec<_> = lab.nodes[i].got.iter().map(|(.., at)| *at).collect();
    let pairs = times.windows(2).filter(|pair| pair[1] > from);
    pairs.map(|pair| pair[1] - pair[0]).max().unwrap()
}

#[test]
fn each_packet_is_acknowledged_once_whichever_leg_brings_it() {
    let mut lab = merging(plain(1), 1, 2);
    stream(&mut lab, 400);
    lab.run(SECOND);
    assert_hitless(&lab);
    assert_eq!(lab.source.flow(0).unwrap().outstanding(), 0);
    for node in &lab.nodes {
        let stats = node.core.stats(CHANNEL).unwrap();
        assert!(stats.reception.redundant >= 400, "{stats:?}");
        assert_eq!(stats.reception.legs_lost, 0);
        assert_eq!(node.asked_second, [], "multicast works");
        assert!(stats.tunnelled_packets + 400 >= stats.reception.flow_packets / 2);
    }
}

/// Without the second leg the same costs a fall-back.
#[test]
fn with_one_leg_the_same_loss_costs_a_fall_back() {
    let mut lab = lab_of(plain(2), 2, 1, Redundancy::One);
    lab.connect(0);
    lab.run(SECOND * 3);
    stream(&mut lab, 100);
    lab.nodes[0].multicast = false;
    stream(&mut lab, 400);
    lab.run(SECOND);
    lab.assert_complete(1);
    assert_eq!(lab.source.counters().fall_backs, 1);
    assert_eq!(lab.nodes[0].legs, []);
    assert!(largest_gap(&lab, 0, SECOND * 3) > 50 * MS);
}

#[test]
fn losing_either_leg_costs_nothing_and_both_come_back() {
    for seed in 0..4 {
        let mut lab = merging(plain(seed), seed, 2);
        let began = lab.elapsed();
        stream(&mut lab, 100);
        lab.nodes[0].multicast = false;
        stream(&mut lab, 400);
        assert_eq!(lab.moves(0).last(), Some(&ON_RELAY), "seed {seed}");
        assert_eq!(
            states(&lab, 0),
            [(Leg::NATIVE, LOST), (Leg::RELAY, WORKING)]
        );
        assert_eq!((rung(&lab, 0), rung(&lab, 1)), (Rung::Amt, Rung::Multicast));
        let rejoins = lab.nodes[0].rejoins;
        stream(&mut lab, 2_000);
        assert!(lab.nodes[0].rejoins > rejoins, "tried again");
        lab.nodes[0].multicast = true;
        stream(&mut lab, 100);
        assert_eq!(lab.moves(0).last(), Some(&NATIVE), "seed {seed}");
        lab.nodes[0].relay = false;
        stream(&mut lab, 2_000);
        assert_eq!(
            lab.moves(0).last(),
            Some(&NATIVE),
            "the relay is not its rung"
        );
        assert_eq!(
            states(&lab, 0),
            [(Leg::NATIVE, WORKING), (Leg::RELAY, LOST)]
        );
        assert_eq!(lab.nodes[0].asked.last().unwrap().1, Asked::Again);
        lab.nodes[0].relay = true;
        stream(&mut lab, 100);
        assert_eq!(
            states(&lab, 0),
            [(Leg::NATIVE, WORKING), (Leg::RELAY, WORKING)]
        );
        lab.run(SECOND);
        assert_hitless(&lab);
        let gap = largest_gap(&lab, 0, began);
        assert!(gap <= 10 * MS, "seed {seed}: {gap:?}");
        let stats = lab.nodes[0].core.stats(CHANNEL).unwrap();
        assert_eq!(stats.reception.legs_lost, 2);
        assert_eq!(lab.source.counters().legs_lost, 2);
        assert_eq!(
            lab.moves(1),
            lab.moves(1)[..1],
            "the other is not disturbed"
        );
    }
}

#[test]
fn a_leg_that_dies_within_a_burst_costs_nothing() {
    for seed in 0..20 {
        let mut lab = merging(plain(seed), seed, 1);
        for (burst, leg) in [0, 1].into_iter().cycle().take(6).enumerate() {
            (0..40).for_each(|_| lab.publish(3_000));
            lab.run((3 + seed as u32 % 20) * MS);
            match leg {
                0 => lab.nodes[0].multicast = false,
                _ => lab.nodes[0].relay = false,
            }
            lab.run(SECOND * 6);
            (lab.nodes[0].multicast, lab.nodes[0].relay) = (true, true);
            lab.run(SECOND * 6);
            let all = [(Leg::NATIVE, WORKING), (Leg::RELAY, WORKING)];
            assert_eq!(states(&lab, 0), all, "seed {seed}, burst {burst}");
        }
        assert_hitless(&lab);
    }
}

#[test]
fn a_leg_that_lags_behind_takes_over_without_a_repair() {
    for lagging in [0, 1] {
        for seed in 0..4 {
            let mut lab = lab_of(plain(seed), seed, 1, Redundancy::Two);
            lab.nodes[0].leg_delay[lagging] = 100 * MS;
            let mut lab = both(lab);
            // The fast one loses packets, too: the other brings them later.
            lab.nodes[0].leg_loss[1 - lagging] = 5;
            stream(&mut lab, 400);
            match lagging {
                0 => lab.nodes[0].relay = false,
                _ => lab.nodes[0].multicast = false,
            }
            stream(&mut lab, 600);
            lab.run(SECOND);
            assert_hitless(&lab);
            assert_eq!(rung(&lab, 0) == Rung::Amt, lagging == 1, "seed {seed}");
        }
    }
}

/// Each leg loses a tenth, both together a hundredth: only that is repaired.
#[test]
fn losses_of_one_leg_are_brought_by_the_other() {
    let mut lab = merging(plain(5), 5, 1);
    lab.nodes[0].leg_loss = [10, 10, 0];
    stream(&mut lab, 2_000);
    lab.run(SECOND);
    lab.assert_complete(1);
    let counters = lab.source.counters();
    assert!((5..50).contains(&counters.repairs), "{}", counters.repairs);
    assert_eq!(counters.fall_backs, 0);
    let session = lab.source.sessions().next().unwrap();
    for leg in &session.channels[0].legs {
        assert!((120..280).contains(&leg.missed), "{leg:?}");
    }
}

#[test]
fn both_legs_silent_are_a_fall_back_as_before() {
    let mut lab = merging(plain(6), 6, 1);
    stream(&mut lab, 100);
    (lab.nodes[0].multicast, lab.nodes[0].relay) = (false, false);
    stream(&mut lab, 200);
    assert_eq!(
        lab.moves(0).last(),
        Some(&(Rung::Unicast, Cause::AckTimeout))
    );
    assert_eq!(lab.source.counters().fall_backs, 1);
    (lab.nodes[0].multicast, lab.nodes[0].relay) = (true, true);
    stream(&mut lab, 1_000);
    assert_eq!(rung(&lab, 0), Rung::Multicast);
    assert_eq!(
        states(&lab, 0),
        [(Leg::NATIVE, WORKING), (Leg::RELAY, WORKING)]
    );
    lab.run(SECOND);
    lab.assert_complete(1);
}

/// An idle flow sends a PING each second: a leg that brings none of three is lost.
#[test]
fn an_idle_flow_shows_which_leg_is_lost() {
    let mut lab = merging(plain(7), 7, 1);
    lab.run(SECOND * 5);
    lab.nodes[0].multicast = false;
    lab.run(SECOND * 5);
    assert_eq!(
        states(&lab, 0),
        [(Leg::NATIVE, LOST), (Leg::RELAY, WORKING)]
    );
    assert_eq!(lab.moves(0).last(), Some(&ON_RELAY));
    lab.run(SECOND * 60);
    assert_eq!(lab.source.counters().fall_backs, 0);
}

#[test]
fn keys_change_while_the_legs_fail_in_turn() {
    for seed in 0..4 {
        let mut lab = merging(plain(seed), seed, 2);
        for round in 0..6 {
            let now = lab.now;
            lab.source.request_rekey(0, now);
            stream(&mut lab, 20);
            match round % 2 {
                0 => lab.nodes[0].multicast = false,
                _ => lab.nodes[0].relay = false,
            }
            stream(&mut lab, 400);
            let now = lab.now;
            lab.source.request_rekey(0, now);
            (lab.nodes[0].multicast, lab.nodes[0].relay) = (true, true);
            stream(&mut lab, 300);
        }
        lab.run(SECOND);
        assert_hitless(&lab);
        assert!(lab.source.counters().rekeys >= 6, "seed {seed}");
    }
}

/// The owner of the receiver finds out that the relay is gone.
#[test]
fn a_relay_that_is_known_to_be_lost_is_no_fall_back_either() {
    let mut lab = merging(plain(8), 8, 1);
    stream(&mut lab, 50);
    lab.nodes[0].relay = false;
    lab.run(20 * MS);
    lab.relay_lost(0);
    stream(&mut lab, 20);
    assert_eq!(
        states(&lab, 0),
        [(Leg::NATIVE, WORKING), (Leg::RELAY, LOST)]
    );
    lab.nodes[0].relay = true;
    stream(&mut lab, 50);
    lab.nodes[0].multicast = false;
    stream(&mut lab, 400);
    lab.nodes[0].relay = false;
    lab.run(20 * MS);
    lab.relay_lost(0);
    stream(&mut lab, 10);
    let lost = (Rung::Unicast, Cause::RelayLost);
    assert_eq!(lab.moves(0).last(), Some(&lost), "there was no other leg");
    lab.run(SECOND);
    lab.assert_complete(1);
}

/// Without the other end's consent everything is as with one leg.
#[test]
fn a_source_that_does_not_know_legs_serves_one() {
    let mut lab = lab_of(plain(9), 9, 1, Redundancy::Two);
    lab.old_source = true;
    lab.connect(0);
    lab.run(SECOND * 3);
    stream(&mut lab, 100);
    lab.run(SECOND);
    assert_eq!((lab.moves(0), lab.nodes[0].asked.len()), (vec![NATIVE], 0));
    assert_eq!(lab.nodes[0].legs, []);
    lab.assert_complete(1);
}

/// Packets by a leg are proved like everything else of the flow.
#[test]
fn a_forger_on_one_leg_gains_nothing_where_packets_are_authenticated() {
    for packets in [PacketAuthentication::Signature, PacketAuthentication::Tags] {
        let config = FlowConfig {
            authentication: Some(AuthenticationConfig {
                packets,
                secret: FlowSecret::from([3; 32]),
            }),
            ..plain(10)
        };
        let mut lab = merging(config, 10, 1);
        lab.hostile = true;
        lab.nodes[0].relay = false;
        for n in 0..600u64 {
            let mut frames = Vec::new();
            put_ping(&mut frames);
            // With numbers that came by the other leg, and with such that will come.
            for pn in [lab.next_pn().saturating_sub(3), lab.next_pn() + 2] {
                let forged = lab.forge(10, pn, false, &frames);
                if n % 10 == 0 {
                    lab.inject_by(0, Rung::Amt, forged);
                }
            }
            lab.publish(700);
            lab.run(5 * MS);
        }
        lab.run(SECOND);
        lab.assert_complete(1);
        assert_eq!(states(&lab, 0)[1], (Leg::RELAY, LOST), "{packets:?}");
        assert_eq!(lab.moves(0).last(), Some(&NATIVE), "{packets:?}");
        assert_eq!(lab.source.counters().fall_backs, 0, "{packets:?}");
    }
}

/// Numbers that were forged on one leg do not keep the other's packets out.
#[test]
fn a_forger_on_one_leg_of_a_plain_flow_costs_no_update() {
    let mut lab = merging(plain(11), 11, 1);
    lab.hostile = true;
    for n in 0..400u64 {
        let mut frames = Vec::new();
        put_ping(&mut frames);
        let forged = lab.forge(11, lab.next_pn() + n % 3, false, &frames);
        lab.inject_by(0, Rung::Amt, forged);
        lab.publish(700);
        lab.run(5 * MS);
    }
    lab.run(SECOND * 40);
    stream(&mut lab, 200);
    lab.run(SECOND);
    lab.assert_complete(1);
    assert_eq!(lab.nodes[0].closes, []);
    assert!(matches!(rung(&lab, 0), Rung::Multicast | Rung::Amt));
}

/// Legs that change all the time are neither events without number nor moves.
#[test]
fn a_leg_that_flaps_is_recorded_and_followed_now_and_then() {
    let mut lab = merging(plain(13), 13, 1);
    lab.run(10 * SECOND);
    let (events, moves) = (lab.legs.len(), lab.nodes[0].moves.len());
    let flow = Lab::flow_id(13);
    for n in 0..500_u64 {
        let state = match n % 2 {
            0 => LegState::Lost,
            _ => WORKING,
        };
        let leg = |rung, state| LegReport {
            path: PathId::new(1, rung),
            number: 0,
            state,
            largest: Some(1),
            missed: 0,
            lag: MS,
        };
        let mut bytes = Vec::new();
        let frame = Legs {
            flow,
            sequence: 1_000 + n,
            legs: vec![leg(Rung::Multicast, state), leg(Rung::Amt, WORKING)],
        };
        Control::Legs(frame).encode(&mut bytes);
        lab.say(0, bytes);
        lab.run(2 * MS);
    }
    let (events, moves) = (lab.legs.len() - events, lab.nodes[0].moves.len() - moves);
    // Ten at once and two a second, within one second.
    assert!(
        (10..=13).contains(&events) && moves <= 13,
        "{events}, {moves}"
    );
    stream(&mut lab, 100);
    lab.run(SECOND);
    lab.assert_complete(1);
}

/// A receiver may report anything: it names only legs by which it listens, and the source believes
/// no packet that it did not send.
#[test]
fn reports_that_cannot_be_change_nothing() {
    let mut lab = merging(plain(12), 12, 1);
    let index = 1;
    let leg = |rung, largest| LegReport {
        path: PathId::new(index, rung),
        number: 0,
        state: WORKING,
        largest,
        missed: 0,
        lag: SECOND * 100,
    };
    let flow = Lab::flow_id(12);
    let odd = [
        vec![leg(Rung::Replicated, Some(1)), leg(Rung::Unicast, Some(1))],
        vec![leg(Rung::Multicast, Some(1 << 40))],
        vec![],
    ];
    for (n, legs) in odd.into_iter().enumerate() {
        let sequence = 100 + n as u64;
        let mut bytes = Vec::new();
        let frame = Legs {
            flow,
            sequence,
            legs,
        };
        Control::Legs(frame).encode(&mut bytes);
        lab.say(0, bytes);
        lab.run(20 * MS);
        assert_eq!(rung(&lab, 0), Rung::Multicast);
    }
    assert_eq!(lab.source.counters().forged_reports, 1);
    stream(&mut lab, 100);
    lab.run(SECOND);
    lab.assert_complete(1);
    // Five legs are more than there can be.
    let mut bytes = vec![0x0d, 11, 8];
    bytes.extend_from_slice(&flow.0);
    bytes.extend_from_slice(&[0x40, 5]);
    lab.hostile = true;
    lab.say(0, bytes);
    lab.run(20 * MS);
    assert_eq!(lab.nodes[0].closes, [VIOLATION]);
}
