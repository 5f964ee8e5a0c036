//! A source with very many members: its counts are those that the policies of section 4 and 8 of
//! protocol.md give.

use std::time::Duration;

use flexicast::source::Faults;
use simulation::crowd::*;

const SECOND: Duration = Duration::from_secs(1);
const MEMBERS: usize = 1_000;
const RATE: u32 = 100;

fn plan(loss: f64) -> CrowdPlan {
    CrowdPlan {
        members: MEMBERS,
        shards: 1,
        loss,
        rate: RATE,
        seed: 3,
        faults: Faults::default(),
    }
}

/// Counts of two seconds after the first one.
fn steady(plan: CrowdPlan) -> (Crowd, Counts) {
    let mut crowd = Crowd::new(plan).unwrap();
    crowd.run(SECOND, &mut NoMeter).unwrap();
    let before = crowd.counts();
    crowd.run(SECOND * 2, &mut NoMeter).unwrap();
    let counts = crowd.counts() - before;
    (crowd, counts)
}

fn near(value: u64, expected: f64, within: f64) -> bool {
    (value as f64 / expected - 1.0).abs() <= within
}

#[test]
fn a_thousand_members_stay_within_the_budget_and_get_what_they_lost() {
    for loss in [0.001, 0.01] {
        let (mut crowd, counts) = steady(plan(loss));
        let delay = crowd.ack_delay().as_secs_f64();
        // The first packet after an acknowledgement comes within one interval of packets.
        let gap = 1.0 / f64::from(RATE) / (1.0 - loss);
        let expected = 2.0 * MEMBERS as f64 / (delay + gap / 2.0);
        assert!(near(counts.acks, expected, 0.05), "{loss}: {counts:?}");
        assert!(counts.acks <= 2 * 20_000, "the budget: {counts:?}");
        let lost = 2.0 * f64::from(RATE) * MEMBERS as f64 * loss;
        assert!(near(counts.lost, lost, 0.2), "{loss}: {counts:?}");
        assert!(near(counts.streams, lost, 0.25), "{loss}: {counts:?}");
        assert_eq!((counts.shared_repairs, counts.fall_backs), (0, 0));
        crowd.settle(SECOND * 5, &mut NoMeter).unwrap();
    }
}

#[test]
fn what_many_miss_is_sent_again_on_the_flow() {
    let (mut crowd, counts) = steady(plan(0.05));
    // A packet is sent again when a twentieth of the members misses it, as half of the packets are.
    let half = counts.updates / 2;
    assert!(near(counts.shared_repairs, half as f64, 0.3), "{counts:?}");
    assert!(counts.streams < counts.lost, "{counts:?}");
    crowd.settle(SECOND * 5, &mut NoMeter).unwrap();
}

#[test]
fn shards_share_the_receivers_and_each_has_a_budget() {
    let of = |shards| {
        steady(CrowdPlan {
            shards,
            ..plan(0.01)
        })
    };
    let ((one, alone), (four, shared)) = (of(1), of(4));
    assert_eq!((one.members(), four.members()), (MEMBERS, MEMBERS));
    assert!(four.ack_delay() < one.ack_delay());
    assert!(shared.acks > alone.acks * 3 / 2, "{alone:?} {shared:?}");
    assert_eq!(steady(plan(0.01)).1, alone, "the same seed");
}

#[test]
fn receivers_without_multicast_fall_back_at_once_and_miss_nothing() {
    let mut crowd = Crowd::new(plan(0.01)).unwrap();
    crowd.run(SECOND, &mut NoMeter).unwrap();
    crowd.cut(0.5);
    crowd.run(SECOND, &mut NoMeter).unwrap();
    assert_eq!(crowd.counts().fall_backs, MEMBERS as u64 / 2);
    assert_eq!(crowd.members(), MEMBERS / 2);
    crowd.settle(SECOND * 5, &mut NoMeter).unwrap();
}

/// Without the source's own state machines nothing of this would happen.
#[test]
fn broken_promises_show() {
    let deaf = Faults {
        repair_off: true,
        ..Faults::default()
    };
    let (mut crowd, counts) = steady(CrowdPlan {
        faults: deaf,
        ..plan(0.01)
    });
    assert_eq!(counts.streams, 0);
    assert!(crowd.settle(SECOND, &mut NoMeter).is_err());
    let faithful = Faults {
        fall_back_off: true,
        ..Faults::default()
    };
    let mut crowd = Crowd::new(CrowdPlan {
        faults: faithful,
        ..plan(0.01)
    })
    .unwrap();
    crowd.run(SECOND, &mut NoMeter).unwrap();
    crowd.cut(0.5);
    crowd.run(SECOND, &mut NoMeter).unwrap();
    assert_eq!(crowd.counts().fall_backs, 0);
}
