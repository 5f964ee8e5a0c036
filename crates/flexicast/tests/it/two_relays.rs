//! A flow that comes by two relays at once, where native multicast does not work.

use std::time::Duration;

use flexicast::authentication::{AuthenticationConfig, PacketAuthentication};
use flexicast::control::{Leg, LegState};
use flexicast::flow::FlowConfig;
use flexicast::frame::put_ping;
use flexicast::protect::FlowSecret;
use flexicast::receiver::{Redundancy, Rungs};
use flexicast::{Cause, Rung};

use crate::hitless::{assert_hitless_since, lab_of, largest_gap, plain, rung, states, stream};
use crate::lab::{Asked, CHANNEL, Lab};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Until then, both relays are found.
const BEGUN: Duration = Duration::from_secs(8);
const ON_RELAY: (Rung, Cause) = (Rung::Amt, Cause::Joined);
const WORKING: LegState = LegState::Working;
const LOST: LegState = LegState::Lost;
const BOTH: [(Leg, LegState); 2] = [(Leg::RELAY, WORKING), (Leg::SECOND_RELAY, WORKING)];

/// A receiver for which multicast does not work, and both relays do. `joins` says whether it joins
/// the group all the same.
fn behind_relays(config: FlowConfig, seed: u64, joins: bool) -> Lab {
    let mut lab = lab_of(config, seed, 0, Redundancy::Two);
    lab.rungs = Rungs {
        multicast_v4: joins,
        multicast_v6: joins,
        ..lab.rungs
    };
    lab.add_node(0, None);
    let node = &mut lab.nodes[0];
    (node.multicast, node.relay, node.second_relay) = (false, true, true);
    lab.connect(0);
    lab.run(BEGUN);
    assert_eq!(lab.moves(0), [ON_RELAY], "seed {seed}");
    assert_eq!(relays(&lab), BOTH, "seed {seed}");
    lab
}

/// Returns the legs by relays as the source knows them.
fn relays(lab: &Lab) -> Vec<(Leg, LegState)> {
    let legs = states(lab, 0).into_iter();
    legs.filter(|(leg, _)| leg.rung == Rung::Amt).collect()
}

/// Returns how often a second relay was asked for, and given up.
fn asked_second(lab: &Lab) -> (usize, usize) {
    let asked = &lab.nodes[0].asked_second;
    let opened = |(_, asked): &&(Duration, Asked)| matches!(asked, Asked::Tunnel(_));
    let ended = |(_, asked): &&(Duration, Asked)| matches!(asked, Asked::End);
    (
        asked.iter().filter(opened).count(),
        asked.iter().filter(ended).count(),
    )
}

#[test]
fn where_multicast_does_not_work_two_relays_are_merged() {
    for joins in [false, true] {
        let mut lab = behind_relays(plain(1), 1, joins);
        stream(&mut lab, 400);
        lab.run(SECOND);
        assert_hitless_since(&lab, BEGUN);
        assert_eq!(lab.source.flow(0).unwrap().outstanding(), 0);
        let stats = lab.nodes[0].core.stats(CHANNEL).unwrap();
        assert!(stats.reception.redundant >= 400, "{stats:?}");
        assert_eq!(asked_second(&lab), (1, 0));
        let first = |asked: &[(Duration, Asked)]| asked[0].0;
        let node = &lab.nodes[0];
        let later = first(&node.asked_second) - first(&node.asked);
        // A join that may yet work keeps the second relay away.
        assert_eq!(later >= SECOND * 2, joins, "{later:?}");
    }
}

#[test]
fn either_relay_is_lost_in_turn_and_nothing_is_noticed() {
    for seed in 0..4 {
        let mut lab = behind_relays(plain(seed), seed, seed % 2 == 0);
        stream(&mut lab, 100);
        lab.nodes[0].relay = false;
        stream(&mut lab, 400);
        let other = [(Leg::RELAY, LOST), (Leg::SECOND_RELAY, WORKING)];
        assert_eq!(relays(&lab), other, "seed {seed}");
        stream(&mut lab, 1_000);
        assert_eq!(lab.nodes[0].asked.last().unwrap().1, Asked::Again);
        lab.nodes[0].relay = true;
        stream(&mut lab, 100);
        assert_eq!(relays(&lab), BOTH, "seed {seed}");
        lab.nodes[0].second_relay = false;
        stream(&mut lab, 1_400);
        let other = [(Leg::RELAY, WORKING), (Leg::SECOND_RELAY, LOST)];
        assert_eq!(relays(&lab), other, "seed {seed}");
        assert_eq!(lab.nodes[0].asked_second.last().unwrap().1, Asked::Again);
        lab.nodes[0].second_relay = true;
        stream(&mut lab, 100);
        assert_eq!(relays(&lab), BOTH, "seed {seed}");
        lab.run(SECOND);
        assert_hitless_since(&lab, BEGUN);
        assert_eq!(lab.moves(0), [ON_RELAY], "seed {seed}");
        let gap = largest_gap(&lab, 0, BEGUN);
        assert!(gap <= 10 * MS, "seed {seed}: {gap:?}");
        let stats = lab.nodes[0].core.stats(CHANNEL).unwrap();
        assert_eq!(stats.reception.legs_lost, 2);
        assert_eq!(lab.source.counters().legs_lost, 2);
        assert_eq!(asked_second(&lab), (1, 0));
    }
}

#[test]
fn relays_that_die_within_a_burst_cost_nothing() {
    for seed in 0..10 {
        let mut lab = behind_relays(plain(seed), seed, seed % 2 == 0);
        for round in 0..6 {
            (0..40).for_each(|_| lab.publish(3_000));
            lab.run((3 + seed as u32 % 20) * MS);
            match round % 2 {
                0 => lab.nodes[0].relay = false,
                _ => lab.nodes[0].second_relay = false,
            }
            lab.run(SECOND * 6);
            (lab.nodes[0].relay, lab.nodes[0].second_relay) = (true, true);
            lab.run(SECOND * 6);
            assert_eq!(relays(&lab), BOTH, "seed {seed}, round {round}");
        }
        assert_hitless_since(&lab, BEGUN);
    }
}

/// The owner finds out that a relay is gone: no fall-back while the other one works, and one with
/// its cause if none does.
#[test]
fn a_relay_that_is_known_to_be_lost_is_a_fall_back_only_without_the_other() {
    for last in [0, 1] {
        let mut lab = behind_relays(plain(2), 2, false);
        let lose = |lab: &mut Lab, number: u64| {
            match number {
                0 => lab.nodes[0].relay = false,
                _ => lab.nodes[0].second_relay = false,
            }
            lab.run(20 * MS);
            lab.tunnel_lost(0, number);
        };
        stream(&mut lab, 50);
        lose(&mut lab, 1 - last);
        // There is no other one, which the owner says again and again.
        for _ in 0..5 {
            lab.no_relay(0, 1 - last);
            stream(&mut lab, 100);
        }
        assert_eq!(lab.moves(0), [ON_RELAY]);
        assert_eq!(lab.source.counters().fall_backs, 0);
        lose(&mut lab, last);
        stream(&mut lab, 10);
        let fell = (Rung::Unicast, Cause::RelayLost);
        assert_eq!(lab.moves(0).last(), Some(&fell));
        lab.run(SECOND);
        (lab.nodes[0].relay, lab.nodes[0].second_relay) = (true, true);
        stream(&mut lab, 1_000);
        assert_eq!(lab.moves(0).last(), Some(&ON_RELAY));
        assert_eq!(relays(&lab), BOTH);
        lab.run(SECOND);
        lab.assert_complete(1);
    }
}

/// A second relay that was never found changes nothing for the first.
#[test]
fn without_another_relay_there_is_one_leg() {
    let mut lab = lab_of(plain(3), 3, 1, Redundancy::Two);
    (lab.nodes[0].multicast, lab.nodes[0].relay) = (false, true);
    lab.connect(0);
    for _ in 0..30 {
        lab.run(SECOND);
        lab.no_relay(0, 1);
    }
    stream(&mut lab, 100);
    assert_eq!(lab.moves(0), [ON_RELAY]);
    assert_eq!(relays(&lab), [(Leg::RELAY, WORKING)]);
    // It is asked for again, less and less often.
    let again = lab.nodes[0].asked_second.len();
    assert!((3..8).contains(&again), "{again}");
    lab.nodes[0].second_relay = true;
    stream(&mut lab, 100);
    assert_eq!(relays(&lab), BOTH);
    lab.run(SECOND);
    assert_hitless_since(&lab, BEGUN);
}

#[test]
fn both_relays_silent_are_a_fall_back_as_before() {
    let mut lab = behind_relays(plain(4), 4, true);
    stream(&mut lab, 100);
    (lab.nodes[0].relay, lab.nodes[0].second_relay) = (false, false);
    stream(&mut lab, 200);
    let fell = (Rung::Unicast, Cause::AckTimeout);
    assert_eq!(lab.moves(0).last(), Some(&fell));
    assert_eq!(lab.source.counters().fall_backs, 1);
    // The owner knows the cause of one, then of the other: it is said once.
    lab.tunnel_lost(0, 1);
    lab.tunnel_lost(0, 0);
    lab.run(100 * MS);
    let explained = &lab.nodes[0].explained;
    let lost = explained
        .iter()
        .filter(|(.., cause)| *cause == Cause::RelayLost);
    assert_eq!(lost.count(), 1, "{explained:?}");
    (lab.nodes[0].relay, lab.nodes[0].second_relay) = (true, true);
    stream(&mut lab, 1_000);
    assert_eq!(rung(&lab, 0), Rung::Amt);
    assert_eq!(relays(&lab), BOTH);
    lab.run(SECOND);
    lab.assert_complete(1);
}

#[test]
fn the_second_relay_is_given_up_for_native_multicast() {
    for seed in 0..4 {
        let mut lab = behind_relays(plain(seed), seed, true);
        lab.nodes[0].multicast = true;
        stream(&mut lab, 400);
        assert_eq!(rung(&lab, 0), Rung::Multicast);
        // It comes and goes within the time for which the relay is kept.
        lab.nodes[0].multicast = false;
        stream(&mut lab, 2_400);
        assert_eq!(rung(&lab, 0), Rung::Amt);
        assert_eq!(asked_second(&lab), (1, 0), "kept");
        assert_eq!(relays(&lab), BOTH);
        lab.nodes[0].multicast = true;
        stream(&mut lab, 2_400);
        assert_eq!(asked_second(&lab), (1, 1), "given up");
        let legs = [(Leg::NATIVE, WORKING), (Leg::RELAY, WORKING)];
        assert_eq!(states(&lab, 0), legs, "seed {seed}");
        let last = lab.nodes[0]
            .legs
            .last()
            .map(|(_, leg, state)| (*leg, *state));
        assert_eq!(last, Some((Leg::SECOND_RELAY, LegState::Trying)));
        // And it is asked for again.
        lab.nodes[0].multicast = false;
        stream(&mut lab, 1_000);
        assert_eq!(relays(&lab), BOTH);
        assert_eq!(asked_second(&lab), (2, 1));
        lab.run(SECOND);
        assert_hitless_since(&lab, BEGUN);
    }
}

/// Where multicast works and the first relay does not, the second stays the other leg.
#[test]
fn the_second_relay_is_kept_while_the_first_is_lost() {
    let mut lab = behind_relays(plain(5), 5, true);
    lab.nodes[0].relay = false;
    stream(&mut lab, 400);
    lab.nodes[0].multicast = true;
    stream(&mut lab, 4_000);
    assert_eq!(asked_second(&lab), (1, 0));
    assert_eq!(rung(&lab, 0), Rung::Multicast);
    lab.nodes[0].multicast = false;
    stream(&mut lab, 400);
    assert_eq!(rung(&lab, 0), Rung::Amt);
    (lab.nodes[0].multicast, lab.nodes[0].relay) = (true, true);
    stream(&mut lab, 4_000);
    assert_eq!(asked_second(&lab), (1, 1));
    lab.run(SECOND);
    assert_hitless_since(&lab, BEGUN);
}

#[test]
fn keys_change_while_the_relays_fail_in_turn() {
    for seed in 0..4 {
        let mut lab = behind_relays(plain(seed), seed, seed % 2 == 0);
        for round in 0..6 {
            let now = lab.now;
            lab.source.request_rekey(0, now);
            stream(&mut lab, 20);
            match round % 2 {
                0 => lab.nodes[0].relay = false,
                _ => lab.nodes[0].second_relay = false,
            }
            stream(&mut lab, 400);
            let now = lab.now;
            lab.source.request_rekey(0, now);
            (lab.nodes[0].relay, lab.nodes[0].second_relay) = (true, true);
            stream(&mut lab, 300);
        }
        lab.run(SECOND);
        assert_hitless_since(&lab, BEGUN);
        assert!(lab.source.counters().rekeys >= 6, "seed {seed}");
    }
}

/// Losses of one relay are brought by the other, whichever lags behind.
#[test]
fn relays_that_lose_and_lag_complete_each_other() {
    for lagging in [1, 2] {
        let mut lab = behind_relays(plain(6), 6, false);
        lab.nodes[0].leg_delay[lagging] = 60 * MS;
        // Until the source knows of it.
        stream(&mut lab, 400);
        lab.nodes[0].leg_loss[3 - lagging] = 10;
        stream(&mut lab, 1_000);
        lab.run(SECOND);
        assert_hitless_since(&lab, BEGUN);
        let session = lab.source.sessions().next().unwrap();
        let legs = session.channels[0].legs.iter();
        let missed = legs.filter(|leg| leg.missed > 50).count();
        assert_eq!(missed, 1, "{lagging}");
    }
}

#[test]
fn a_forger_on_one_relay_gains_nothing_where_packets_are_authenticated() {
    for packets in [PacketAuthentication::Signature, PacketAuthentication::Tags] {
        let config = FlowConfig {
            authentication: Some(AuthenticationConfig {
                packets,
                secret: FlowSecret::from([3; 32]),
            }),
            ..plain(10)
        };
        let mut lab = behind_relays(config, 10, false);
        lab.hostile = true;
        lab.nodes[0].second_relay = false;
        for n in 0..600u64 {
            let mut frames = Vec::new();
            put_ping(&mut frames);
            for pn in [lab.next_pn().saturating_sub(3), lab.next_pn() + 2] {
                let forged = lab.forge(10, pn, false, &frames);
                if n % 10 == 0 {
                    lab.inject_by_leg(0, Leg::SECOND_RELAY, forged);
                }
            }
            lab.publish(700);
            lab.run(5 * MS);
        }
        lab.run(SECOND);
        lab.assert_complete(1);
        let other = [(Leg::RELAY, WORKING), (Leg::SECOND_RELAY, LOST)];
        assert_eq!(relays(&lab), other, "{packets:?}");
        assert_eq!(lab.moves(0), [ON_RELAY], "{packets:?}");
        assert_eq!(lab.source.counters().fall_backs, 0, "{packets:?}");
    }
}

/// Packets by a leg that there is not do no harm.
#[test]
fn legs_beyond_the_second_relay_prove_nothing() {
    let mut lab = behind_relays(plain(7), 7, false);
    lab.recording = true;
    stream(&mut lab, 20);
    let packets = lab.recorded.clone();
    (lab.nodes[0].relay, lab.nodes[0].second_relay) = (false, false);
    for packet in packets {
        let third = Leg {
            rung: Rung::Amt,
            number: 2,
        };
        lab.inject_by_leg(0, third, packet);
    }
    lab.run(20 * MS);
    assert_eq!(relays(&lab), BOTH);
    stream(&mut lab, 200);
    assert_eq!(rung(&lab, 0), Rung::Unicast);
    lab.run(SECOND);
    lab.assert_complete(1);
}

/// Returns the fall-backs that were explained by the loss of a relay.
fn blamed(lab: &Lab) -> usize {
    let explained = lab.nodes[0].explained.iter();
    explained
        .filter(|(.., cause)| *cause == Cause::RelayLost)
        .count()
}

/// The one by which the flow came until the fall-back may explain it, whenever the owner finds out.
#[test]
fn a_relay_that_was_lost_before_is_not_blamed_for_a_fall_back() {
    for early in [0, 1] {
        let mut lab = behind_relays(plain(8), 8, false);
        match early {
            0 => lab.nodes[0].relay = false,
            _ => lab.nodes[0].second_relay = false,
        }
        lab.tunnel_lost(0, early);
        lab.no_relay(0, early);
        stream(&mut lab, 1_000);
        assert_eq!(lab.moves(0), [ON_RELAY]);
        (lab.nodes[0].relay, lab.nodes[0].second_relay) = (false, false);
        stream(&mut lab, 200);
        let fell = (Rung::Unicast, Cause::AckTimeout);
        assert_eq!(lab.moves(0).last(), Some(&fell));
        for _ in 0..3 {
            lab.no_relay(0, early);
            lab.run(100 * MS);
        }
        assert_eq!(blamed(&lab), 0, "relay {early} was gone long before");
        for _ in 0..3 {
            lab.no_relay(0, 1 - early);
            lab.run(100 * MS);
        }
        assert_eq!(blamed(&lab), 1);
        // Once it has come back, a later loss of the other explains nothing.
        match early {
            0 => lab.nodes[0].second_relay = true,
            _ => lab.nodes[0].relay = true,
        }
        stream(&mut lab, 1_000);
        assert_eq!(lab.moves(0).last(), Some(&ON_RELAY));
        lab.no_relay(0, early);
        lab.run(SECOND);
        assert_eq!(blamed(&lab), 1);
        assert_eq!(rung(&lab, 0), Rung::Amt);
    }
}

#[test]
fn searches_in_vain_leave_the_pauses_between_attempts_as_they_are() {
    for number in [0, 1] {
        let mut lab = behind_relays(plain(9), 9, false);
        match number {
            0 => lab.nodes[0].relay = false,
            _ => lab.nodes[0].second_relay = false,
        }
        lab.tunnel_lost(0, number);
        let asked = |lab: &Lab| match number {
            0 => lab.nodes[0].asked.len(),
            _ => lab.nodes[0].asked_second.len(),
        };
        let before = asked(&lab);
        for _ in 0..15 {
            stream(&mut lab, 800);
            lab.no_relay(0, number);
        }
        // 3 s, 6 s, 12 s, 24 s.
        let again = asked(&lab) - before;
        assert!((3..7).contains(&again), "relay {number}: {again} times");
        assert_eq!(lab.moves(0), [ON_RELAY]);
    }
}

/// Returns the legs that are shown last, but for those that are tried.
fn shown(lab: &Lab) -> Vec<(Leg, LegState)> {
    let mut shown = std::collections::BTreeMap::new();
    for (_, leg, state) in &lab.nodes[0].legs {
        shown.insert(*leg, *state);
    }
    let shown = shown.into_iter();
    shown
        .filter(|(_, state)| *state != LegState::Trying)
        .collect()
}

#[test]
fn one_that_listens_to_nothing_shows_no_legs() {
    for falls in [false, true] {
        let mut lab = behind_relays(plain(10), 10, true);
        lab.nodes[0].multicast = true;
        stream(&mut lab, 400);
        assert!(shown(&lab).contains(&(Leg::NATIVE, WORKING)));
        if falls {
            // On unicast, with legs that work again and have not proved themselves to the source.
            let node = &mut lab.nodes[0];
            (node.multicast, node.relay, node.second_relay) = (false, false, false);
            while rung(&lab, 0) != Rung::Unicast {
                stream(&mut lab, 10);
            }
            let node = &mut lab.nodes[0];
            (node.multicast, node.relay, node.second_relay) = (true, true, true);
            while shown(&lab).is_empty() {
                lab.publish(700);
                lab.run(MS);
            }
            assert_eq!(rung(&lab, 0), Rung::Unicast);
        }
        let held = [uuid::Uuid::from_u128(1)].into_iter().collect();
        lab.source.set_held(held, lab.now);
        lab.run(SECOND);
        assert_eq!(shown(&lab), [], "falls: {falls}");
        stream(&mut lab, 100);
        assert_eq!(shown(&lab), []);
        let none = std::collections::BTreeSet::new();
        lab.source.set_held(none, lab.now);
        stream(&mut lab, 4_000);
        assert!(shown(&lab).contains(&(Leg::NATIVE, WORKING)));
        assert!(shown(&lab).contains(&(Leg::RELAY, WORKING)));
    }
}
