//! Grace after an absence of either end itself.

use std::time::Duration;

use flexicast::control::Action;
use flexicast::flow::FlowConfig;
use flexicast::source::Faults;
use flexicast::{Cause, Rung};

use crate::lab::{Lab, flow_config};
use crate::pair::joined;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

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
