//! Members that leave: too slow, or with too many losses.

use super::*;

#[test]
fn a_member_that_holds_the_flow_for_two_seconds_is_too_slow() {
    let slow = |member, pn| member == 3 && pn % 8 == 0;
    let mut rounds = at_the_ceiling();
    let before = rounds.run(18, slow);
    assert_eq!(before, []);
    assert_eq!(rounds.controller.limiting(), Some(3));
    let events = rounds.run(10, slow);
    assert!(events.contains(&RateEvent::TooSlow(3)) || events.contains(&RateEvent::LossTooHigh(3)));
    assert_eq!(events.len(), 1, "once: {events:?}");
}

/// Members with capacities: what is more than fits a round trip is lost. Returns the events of a
/// minute.
fn with_capacities(slow: u64, others: u64) -> Vec<RateEvent> {
    let mut rounds = Rounds::friendly(MEMBERS);
    let mut events = Vec::new();
    for _ in 0..600 {
        let sent = rounds.send(rounds.window());
        for member in 0..MEMBERS {
            let fits = if member == 3 { slow } else { others };
            rounds.report(member, sent.clone(), |pn| pn >= sent.start + fits);
        }
        rounds.controller.handle_timeout(rounds.now);
        events.extend(std::iter::from_fn(|| rounds.controller.poll_event()));
    }
    events
}

#[test]
fn a_member_above_half_of_the_true_median_stays() {
    // In packets per round trip. What is above the slow member's capacity is not proven to pass.
    assert_eq!(with_capacities(130, 200), []);
    let events = with_capacities(40, 200);
    assert!(events.contains(&RateEvent::TooSlow(3)), "{events:?}");
}

#[test]
fn a_slow_majority_leaves_under_a_configured_minimum() {
    let play = |min| {
        let config = RateConfig {
            min: Some(min),
            ..config(RatePolicy::TcpFriendly)
        };
        let mut rounds = Rounds::new(config, MEMBERS);
        rounds.run(40, nothing);
        rounds.run(60, |member, pn| member < 6 && (pn + member * 7) % 50 == 0)
    };
    assert_eq!(play(100_000), [], "above the minimum");
    let events = play(50_000_000);
    assert_eq!(events, [0, 1, 2, 3, 4, 5].map(RateEvent::TooSlow));
}

#[test]
fn a_sole_member_is_judged_once_its_rate_has_met_a_limit() {
    let with_minimum = RateConfig {
        min: Some(5_000_000),
        ..config(RatePolicy::TcpFriendly)
    };
    let mut rounds = Rounds::new(with_minimum, 1);
    // Ten seconds of an application that needs little: slow start has met no limit.
    for _ in 0..100 {
        let sent = rounds.send(4);
        rounds.controller.on_app_limited(rounds.now);
        rounds.report(0, sent, |_| false);
        rounds.controller.handle_timeout(rounds.now);
        assert!(rounds.rate() < 5.0);
        assert_eq!(rounds.controller.poll_event(), None);
    }
    let events = rounds.run(200, |_, pn| pn % 20 == 0);
    assert_eq!(events, [RateEvent::TooSlow(0)]);
}

#[test]
fn the_minimum_rate_can_be_set() {
    let play = |min| {
        let with_minimum = RateConfig {
            min: Some(min),
            ..config(RatePolicy::TcpFriendly)
        };
        let mut rounds = Rounds::new(with_minimum, MEMBERS);
        rounds.run(40, nothing);
        rounds.run(40, |member, pn| member == 3 && sometimes(50)(member, pn))
    };
    assert_eq!(play(100_000), []);
    assert_eq!(play(50_000_000), [RateEvent::TooSlow(3)]);
}

#[test]
fn members_that_lose_too_much_leave_unless_most_do() {
    let fixed = RateConfig {
        max: Some(5_000_000),
        ..config(RatePolicy::Fixed)
    };
    let mut rounds = Rounds::new(fixed.clone(), MEMBERS);
    let events = rounds.run(60, |member, pn| member < 2 && sometimes(5)(member, pn));
    let evicted = |member| events.contains(&RateEvent::LossTooHigh(member));
    assert!(evicted(0) && evicted(1) && events.len() == 2, "{events:?}");
    assert!((0.15..0.25).contains(&rounds.controller.member_loss(0)));
    assert_eq!(rounds.controller.member_loss(5), 0.0);
    let mut rounds = Rounds::new(fixed.clone(), MEMBERS);
    assert_eq!(rounds.run(60, sometimes(5)), []);
    let mut rounds = Rounds::new(fixed, MEMBERS);
    let tolerable = |member, pn| member < 2 && sometimes(12)(member, pn);
    assert_eq!(rounds.run(60, tolerable), []);
}
