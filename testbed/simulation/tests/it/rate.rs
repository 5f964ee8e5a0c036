//! The rate controller over modelled paths.

use std::time::Duration;

use flexicast::rate::{RateConfig, RateEvent, RatePolicy};
use simulation::rate::*;

fn ratios(policy: RatePolicy, members: usize) -> Vec<f64> {
    let paths = [Path::lossy(10, 0.05), Path::lossy(100, 0.01)];
    paths
        .map(|path| compare(policy, members, path).ratio)
        .to_vec()
}

#[test]
fn a_flow_gets_what_unicast_gets_whatever_the_number_of_members() {
    for members in [1, 2, 10, 50] {
        for ratio in ratios(RatePolicy::TcpFriendly, members) {
            assert!((0.7..=1.2).contains(&ratio), "{members} members: {ratio}");
        }
    }
}

#[test]
fn the_slowest_of_many_controllers_is_slower_than_each_path() {
    for ratio in ratios(RatePolicy::CubicMin, 50) {
        assert!(ratio < 0.6, "{ratio}");
    }
}

#[test]
fn a_member_with_more_losses_than_the_others_sets_the_rate() {
    let config = RateConfig {
        max: None,
        ..RateConfig::default()
    };
    let timing = AckTiming::Delayed(config.ack_delay);
    let mut flow = RateSimulation::new(config, timing, 1);
    let bad = flow.join(Path::lossy(50, 0.03));
    (0..50).for_each(|_| {
        flow.join(Path::lossy(50, 0.001));
    });
    flow.run(Duration::from_secs(60));
    let rate = flow.run(Duration::from_secs(60));
    let alone = compare(RatePolicy::CubicMin, 1, Path::lossy(50, 0.03)).unicast;
    assert!((0.7..=1.2).contains(&(rate / alone)), "{}", rate / alone);
    let limit = flow.controller.member_rate(bad);
    assert!(limit < flow.controller.member_rate(bad + 1));
    assert_eq!(flow.events[0].1, RateEvent::TooSlow(bad));
    assert!(flow.controller.member_loss(bad) > 0.01);
}

#[test]
fn a_shared_bottleneck_is_used_and_nobody_is_evicted() {
    let config = RateConfig {
        max: None,
        ..RateConfig::default()
    };
    let timing = AckTiming::Delayed(config.ack_delay);
    for members in [1, 2, 20] {
        let mut flow = RateSimulation::new(config.clone(), timing, 1);
        flow.shared = Some(Bottleneck {
            rate: 20_000_000,
            depth: Duration::from_millis(50),
        });
        (0..members).for_each(|_| {
            flow.join(Path::lossy(50, 0.0));
        });
        flow.run(Duration::from_secs(20));
        let rate = flow.run(Duration::from_secs(40)) / 20e6;
        assert!((0.8..=1.05).contains(&rate), "{members} members: {rate}");
        assert_eq!(flow.events, []);
    }
}

#[test]
fn a_flow_and_unicast_share_a_bottleneck() {
    let third = 1.0 / 3.0..=2.0 / 3.0;
    let (warm_up, span) = (Duration::from_secs(12), Duration::from_secs(60));
    for (rate, depth, rtt) in [(2_000_000, 300, 20), (20_000_000, 50, 50)] {
        let bottleneck = Bottleneck {
            rate,
            depth: Duration::from_millis(depth),
        };
        for members in [1, 3, 20] {
            for seed in 1..=5 {
                let rtt = Duration::from_millis(rtt);
                let share = share_beside_unicast(members, bottleneck, rtt, (warm_up, span), seed);
                let case = format!("{members} members, {rate} bit/s, seed {seed}");
                assert!(third.contains(&share), "{case}: {share}");
            }
        }
    }
}

#[test]
fn half_of_a_shared_capacity_halves_the_rate_within_two_round_trips() {
    let round_trips = shared_loss_halving(50).unwrap();
    assert!(round_trips <= 2.0, "{round_trips}");
}

#[test]
fn the_flow_recovers_within_five_seconds_of_an_eviction() {
    let took = recovery_after_eviction(50).unwrap();
    assert!(took <= Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_join_does_not_dip_the_flow() {
    let dip = join_dip(20);
    assert!(dip >= 0.9, "{dip}");
}

#[test]
fn a_run_is_the_same_twice() {
    let play = || compare(RatePolicy::TcpFriendly, 3, Path::lossy(10, 0.01)).ratio;
    assert_eq!(play(), play());
}
