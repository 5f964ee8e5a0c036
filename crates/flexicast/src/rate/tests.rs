//! Rules of the controller as a whole, in rounds: a window is sent over a round trip, then every
//! member reports it.

mod evictions;
mod marks;
mod spurious;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(100);
const MEMBERS: u64 = 10;

/// A flow in rounds.
struct Rounds {
    controller: RateController,
    now: Instant,
    pn: u64,
    members: Vec<MemberId>,
}

impl Rounds {
    fn new(config: RateConfig, members: u64) -> Self {
        let mut rounds = Rounds {
            controller: RateController::new(config),
            now: Instant::now(),
            pn: 0,
            members: Vec::new(),
        };
        (0..members).for_each(|member| rounds.admit(member));
        rounds
    }

    fn friendly(members: u64) -> Self {
        Rounds::new(config(RatePolicy::TcpFriendly), members)
    }

    fn admit(&mut self, member: MemberId) {
        self.controller.admit(member, RTT, self.pn, self.now);
        self.members.push(member);
    }

    fn remove(&mut self, member: MemberId) {
        self.controller.remove(member);
        self.members.retain(|id| *id != member);
    }

    /// The rate in Mbit/s.
    fn rate(&self) -> f64 {
        self.controller.rate().unwrap() as f64 / 1e6
    }

    /// Packets that fit a round trip.
    fn window(&self) -> u64 {
        (self.controller.rate().unwrap() as f64 * 0.1 / 8.0 / 1180.0).max(1.0) as u64
    }

    /// Sends `count` packets over a round trip.
    fn send(&mut self, count: u64) -> Range<u64> {
        let first = self.pn;
        for i in 0..count {
            let at = self.now + RTT.mul_f64(i as f64 / count as f64);
            self.controller.on_sent(self.pn, 1180, at);
            self.pn += 1;
        }
        self.now += RTT;
        first..self.pn
    }

    /// A member reports `sent` without the packets that `loses` names.
    fn report(&mut self, member: MemberId, sent: Range<u64>, loses: impl Fn(u64) -> bool) {
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        for pn in sent {
            let list = if loses(pn) { &mut lost } else { &mut acked };
            list.push(pn..pn + 1);
        }
        self.controller.on_ack(member, &acked, &lost, RTT, self.now);
    }

    /// Rounds of a full window; `loses` is asked for each member and packet.
    fn run(&mut self, rounds: usize, loses: impl Fn(MemberId, u64) -> bool) -> Vec<RateEvent> {
        let mut events = Vec::new();
        for _ in 0..rounds {
            let sent = self.send(self.window());
            for member in self.members.clone() {
                self.report(member, sent.clone(), |pn| loses(member, pn));
            }
            while self
                .controller
                .next_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.controller.handle_timeout(self.now);
            }
            events.extend(std::iter::from_fn(|| self.controller.poll_event()));
        }
        events
    }
}

fn config(policy: RatePolicy) -> RateConfig {
    RateConfig {
        policy,
        max: Some(100_000_000),
        ..RateConfig::default()
    }
}

fn nothing(_: MemberId, _: u64) -> bool {
    false
}

/// Independent losses: a hash of member and packet.
fn sometimes(one_in: u64) -> impl Fn(MemberId, u64) -> bool {
    move |member, pn| {
        let mut hash = (pn << 20 ^ (member + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        (hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33).is_multiple_of(one_in)
    }
}

/// Ten members that have found 100 Mbit/s, the ceiling.
fn at_the_ceiling() -> Rounds {
    let mut rounds = Rounds::friendly(MEMBERS);
    rounds.run(40, nothing);
    assert_eq!(rounds.rate(), 100.0);
    rounds
}

#[test]
fn slow_start_doubles_from_the_initial_window_to_the_ceiling() {
    let mut rounds = Rounds::friendly(MEMBERS);
    let initial = 10.0 * 1180.0 * 8.0 / 0.1 / 1e6;
    assert!((rounds.rate() - initial).abs() < 0.01);
    rounds.run(1, nothing);
    assert!(
        (rounds.rate() / initial - 2.0).abs() < 0.1,
        "{}",
        rounds.rate()
    );
    rounds.run(20, nothing);
    assert_eq!(rounds.rate(), 100.0);
}

#[test]
fn with_one_member_the_flow_is_unicast_cubic() {
    let rates = [RatePolicy::TcpFriendly, RatePolicy::CubicMin].map(|policy| {
        let mut rounds = Rounds::new(config(policy), 1);
        let loses = sometimes(200);
        (0..500)
            .map(|_| {
                rounds.run(1, &loses);
                rounds.controller.rate()
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(rates[0], rates[1]);
    assert!(rates[0].iter().max() > rates[0].last(), "some were lost");
}

#[test]
fn the_last_member_is_not_held_to_its_average() {
    let mut rounds = Rounds::friendly(2);
    rounds.run(300, sometimes(50));
    assert!(rounds.controller.member_rate(0).is_some());
    rounds.remove(1);
    rounds.run(2, nothing);
    assert_eq!(rounds.controller.member_rate(0), None);
}

#[test]
fn a_loss_that_most_members_share_reduces_the_flow_and_one_of_half_does_not() {
    let mut rounds = at_the_ceiling();
    let sent = rounds.send(rounds.window());
    let lost = sent.start + 100;
    for member in 0..5 {
        rounds.report(member, sent.clone(), |pn| pn == lost);
    }
    assert_eq!(rounds.rate(), 100.0, "five of ten");
    rounds.report(5, sent.clone(), |pn| pn == lost);
    assert!((rounds.rate() - 70.0).abs() < 1.0, "{}", rounds.rate());
    // The rest of the same round trip is the same event.
    rounds.report(6, sent.clone(), |pn| pn == lost || pn == lost + 100);
    for member in 7..MEMBERS {
        rounds.report(member, sent.clone(), |pn| pn == lost + 100);
    }
    assert!((rounds.rate() - 70.0).abs() < 1.0, "{}", rounds.rate());
}

#[test]
fn heavy_shared_losses_halve_the_flow() {
    let mut rounds = at_the_ceiling();
    rounds.run(1, |_, pn| pn % 2 == 0);
    assert!((49.0..56.0).contains(&rounds.rate()), "{}", rounds.rate());
}

#[test]
fn independent_losses_do_not_add_up() {
    let average = |policy, members| {
        let mut rounds = Rounds::new(config(policy), members);
        rounds.run(300, sometimes(100));
        let sum: f64 = (0..300)
            .map(|_| {
                rounds.run(1, sometimes(100));
                rounds.rate()
            })
            .sum();
        sum / 300.0
    };
    let unicast = average(RatePolicy::CubicMin, 1);
    let friendly = average(RatePolicy::TcpFriendly, 50);
    let slowest = average(RatePolicy::CubicMin, 50);
    assert!(
        (0.7..1.2).contains(&(friendly / unicast)),
        "{friendly} {unicast}"
    );
    let ratio = slowest / unicast;
    assert!((0.2..0.6).contains(&ratio), "{ratio}");
}

#[test]
fn a_sudden_change_of_one_member_acts_at_once() {
    let mut rounds = at_the_ceiling();
    rounds.run(1, |member, pn| member == 3 && pn % 2 == 0);
    assert!((49.0..56.0).contains(&rounds.rate()), "{}", rounds.rate());
    assert_eq!(rounds.controller.limiting(), Some(3));
    let alone = rounds.controller.member_rate(3);
    assert_eq!(alone, rounds.controller.rate());
    assert!(rounds.controller.member_rate(4) > alone.map(|rate| rate * 3 / 2));
}

#[test]
fn a_member_a_third_slower_is_kept_and_its_own_controller_ends() {
    let mut rounds = at_the_ceiling();
    rounds.run(1, |member, pn| member == 3 && pn % 3 == 0);
    let own = |rounds: &Rounds| match &rounds.controller.members[&3].estimator {
        Estimator::History(history) => history.congestion.is_some(),
        _ => false,
    };
    assert_eq!(rounds.run(30, nothing), [], "above half of the median");
    assert!(rounds.rate() < 90.0 && own(&rounds));
    rounds.run(200, nothing);
    assert!(rounds.rate() == 100.0 && !own(&rounds));
}

#[test]
fn windows_grow_to_twice_what_the_flow_uses() {
    for policy in [RatePolicy::TcpFriendly, RatePolicy::CubicMin] {
        let mut rounds = Rounds::new(config(policy), MEMBERS);
        rounds.run(60, nothing);
        let rates = [
            rounds.controller.shared_rate(),
            rounds.controller.members[&0].rate,
        ];
        let window = rates[0].min(rates[1]) * 8.0 / 1e6;
        assert!((100.0..401.0).contains(&window), "{policy:?}: {window}");
    }
}

#[test]
fn the_flow_recovers_when_the_slow_member_leaves_and_doubles_per_round_trip_at_most() {
    let mut rounds = at_the_ceiling();
    rounds.run(5, |member, pn| member == 3 && pn % 2 == 0);
    let slow = rounds.rate();
    assert!(slow < 15.0, "{slow}");
    rounds.remove(3);
    assert!(
        rounds.controller.next_timeout() <= Some(rounds.now),
        "at once"
    );
    rounds.run(1, nothing);
    assert!(rounds.rate() <= slow * 2.01 && rounds.rate() > slow * 1.5);
    rounds.run(10, nothing);
    assert!(rounds.rate() >= 95.0, "{}", rounds.rate());
}

#[test]
fn a_newcomer_inherits_the_rate_and_counts_later() {
    for policy in [RatePolicy::TcpFriendly, RatePolicy::CubicMin] {
        let mut rounds = Rounds::new(config(policy), MEMBERS);
        rounds.run(40, nothing);
        let before = rounds.rate();
        rounds.admit(99);
        // It has a much longer round trip.
        for round in 0..12 {
            let sent = rounds.send(rounds.window());
            for member in 0..MEMBERS {
                rounds.report(member, sent.clone(), |_| false);
            }
            rounds
                .controller
                .on_ack(99, &[sent], &[], RTT * 5, rounds.now);
            rounds.controller.handle_timeout(rounds.now);
            assert!(rounds.rate() >= 0.9 * before, "{policy:?}, round {round}");
        }
    }
}

#[test]
fn the_rate_stays_when_the_longest_round_trip_leaves() {
    let mut rounds = Rounds::friendly(2);
    rounds.run(5, nothing);
    rounds.run(1, |_, pn| pn % 20 == 0);
    rounds.controller.admit(99, RTT * 10, rounds.pn, rounds.now);
    rounds.run(40, nothing);
    assert_eq!(rounds.controller.rtt, 1.0);
    let before = rounds.rate();
    rounds.controller.remove(99);
    rounds.run(2, nothing);
    assert_eq!(rounds.controller.rtt, 0.1);
    assert!((rounds.rate() / before - 1.0).abs() < 0.1);
}

#[test]
fn a_round_trip_that_a_queue_makes_longer_slows_the_flow() {
    let mut rounds = Rounds::friendly(MEMBERS);
    rounds.run(5, nothing);
    rounds.run(1, |_, pn| pn % 20 == 0);
    rounds.run(2, nothing);
    let before = rounds.rate();
    for queue in 1..=10 {
        let sent = rounds.send(rounds.window());
        for member in 0..MEMBERS {
            // Not always the same member has the longest one.
            let rtt = RTT + MS * (queue * 10 + (member as u32 + queue) % 10);
            let acked = std::slice::from_ref(&sent);
            rounds
                .controller
                .on_ack(member, acked, &[], rtt, rounds.now);
        }
        rounds.controller.handle_timeout(rounds.now);
    }
    assert!(rounds.rate() < 0.7 * before, "{} {before}", rounds.rate());
}

#[test]
fn a_newcomer_counts_from_its_first_loss() {
    let mut rounds = at_the_ceiling();
    rounds.admit(99);
    rounds.run(1, |member, pn| member == 99 && pn % 2 == 0);
    assert_eq!(rounds.controller.limiting(), Some(99));
}

#[test]
fn an_unused_window_does_not_grow() {
    let idle = |policy| {
        let mut rounds = Rounds::new(config(policy), MEMBERS);
        let before = rounds.rate();
        for _ in 0..100 {
            let sent = rounds.send(2);
            rounds.controller.on_app_limited(rounds.now);
            for member in 0..MEMBERS {
                rounds.report(member, sent.clone(), |_| false);
            }
            rounds.controller.handle_timeout(rounds.now);
        }
        (before, rounds.rate())
    };
    for policy in [RatePolicy::TcpFriendly, RatePolicy::CubicMin] {
        let (before, after) = idle(policy);
        assert_eq!(before, after, "{policy:?}");
    }
}

#[test]
fn five_idle_minutes_halve_the_window_and_shorter_ones_keep_it() {
    for (minutes, expected) in [(4, 1.0), (6, 0.5), (60, 0.5)] {
        let mut rounds = Rounds::friendly(MEMBERS);
        rounds.run(3, nothing);
        let before = rounds.rate();
        rounds.controller.on_app_limited(rounds.now);
        // Heartbeats are no data.
        for _ in 0..60 * minutes {
            rounds.now += Duration::from_secs(1);
            let pn = rounds.pn;
            rounds.controller.on_ping_sent(pn, 40, rounds.now);
            rounds.pn += 1;
            (0..MEMBERS).for_each(|member| rounds.report(member, pn..pn + 1, |_| false));
            rounds.controller.handle_timeout(rounds.now);
            assert_eq!(
                rounds.rate(),
                before,
                "no window grows or shrinks meanwhile"
            );
        }
        rounds.send(1);
        rounds.controller.handle_timeout(rounds.now);
        let ratio = rounds.rate() / before;
        assert!((ratio - expected).abs() < 0.05, "{minutes} min: {ratio}");
    }
}

#[test]
fn a_fixed_rate_is_the_ceiling_whatever_is_lost() {
    let mut rounds = Rounds::new(config(RatePolicy::Fixed), MEMBERS);
    rounds.run(20, |_, pn| pn % 3 == 0);
    assert_eq!(rounds.rate(), 100.0);
    let unlimited = RateConfig {
        max: None,
        ..config(RatePolicy::Fixed)
    };
    assert_eq!(RateController::new(unlimited).rate(), None);
}

#[test]
fn the_circuit_breaker_halves_stops_and_probes() {
    let mut rounds = Rounds::new(
        RateConfig {
            max: Some(5_000_000),
            ..config(RatePolicy::Fixed)
        },
        MEMBERS,
    );
    let most = |member, pn| member < 6 && pn % 5 != 0;
    let mut events = Vec::new();
    while rounds.controller.rate() != Some(0) && events.len() < 3 {
        events.extend(rounds.run(1, most));
        if events.len() == 1 {
            assert!((2.0..3.0).contains(&rounds.rate()), "{}", rounds.rate());
        }
    }
    assert_eq!(events, [RateEvent::BreakerHalved, RateEvent::BreakerOpen]);
    rounds.now = rounds.controller.next_timeout().unwrap() + Duration::from_secs(10);
    rounds.controller.handle_timeout(rounds.now);
    assert!((1.0..1.5).contains(&rounds.rate()), "half of the half");
    assert_eq!(rounds.run(300, nothing), [RateEvent::BreakerClosed]);
    assert_eq!(rounds.rate(), 5.0);
}

#[test]
fn numbers_that_a_key_switch_leaves_out_are_not_lost() {
    let mut rounds = at_the_ceiling();
    rounds.pn += 10_000;
    rounds.run(5, nothing);
    assert_eq!(rounds.rate(), 100.0);
    assert_eq!(rounds.controller.member_loss(0), 0.0);
}

#[test]
fn in_flight_is_the_window_and_what_an_acknowledgement_delay_adds() {
    let mut rounds = at_the_ceiling();
    let expected = |delay: f64| 12_500_000.0 * (0.1 + 1.25 * delay);
    assert!((rounds.controller.window() as f64 - expected(0.025)).abs() < 2.0);
    rounds.controller.set_ack_delay(200 * MS);
    assert!((rounds.controller.window() as f64 - expected(0.2)).abs() < 2.0);
}

#[test]
fn scans_are_rare_and_end_with_the_traffic() {
    let mut rounds = Rounds::friendly(MEMBERS);
    rounds.send(5);
    let due = rounds.controller.next_timeout().unwrap();
    rounds.now = due;
    rounds.controller.handle_timeout(due);
    assert!(rounds.controller.next_timeout().unwrap() - due >= 50 * MS);
    rounds.controller.on_app_limited(due);
    rounds
        .controller
        .handle_timeout(due + Duration::from_secs(1));
    assert_eq!(rounds.controller.next_timeout(), None);
}

#[test]
fn a_member_takes_little_memory() {
    let own = std::mem::size_of::<Member>() + std::mem::size_of::<friendly::LossHistory>();
    assert!(own <= 960, "{own} bytes");
}

proptest! {
    /// Whatever is reported, nothing panics, and the rate stays between floor and ceiling.
    #[test]
    fn no_input_breaks_the_bounds(
        policy in 0u8..3,
        ops in prop::collection::vec((0u8..9, 0u64..6, 0u64..400, 0u64..300, 0u64..3_000), 1..300),
    ) {
        let policy = [RatePolicy::Fixed, RatePolicy::CubicMin, RatePolicy::TcpFriendly]
            [usize::from(policy)];
        let mut rounds = Rounds::new(config(policy), 0);
        for (op, member, a, b, ms) in ops {
            let now = rounds.now;
            let controller = &mut rounds.controller;
            match op {
                0 => controller.admit(member, MS * ms as u32, rounds.pn.saturating_sub(a), now),
                1 => controller.remove(member),
                2 | 3 => for _ in 0..a {
                    controller.on_sent(rounds.pn, b as usize, now);
                    rounds.pn += if a % 7 == 0 { 1 + b } else { 1 };
                },
                4 => controller.on_app_limited(now),
                5 | 6 => {
                    let from = (rounds.pn + 5).saturating_sub(b + a);
                    let ranges = [from..from + a / 2, from + a / 2..from + a];
                    let (acked, lost) = ranges.split_at(usize::from(op == 5 && b % 2 == 0));
                    let rtt = MS * ms as u32;
                    controller.on_ack(member, acked, lost, rtt, now);
                }
                7 => controller.handle_timeout(now),
                _ => {
                    controller.set_ack_delay(if a == 0 { Duration::MAX } else { MS * a as u32 });
                    controller.set_udp_payload(b as usize);
                    rounds.now += if a % 10 == 0 { MS * 400_000 } else { MS * ms as u32 };
                }
            }
            let floor = 2.0 * rounds.controller.payload() / 2.0 * 8.0;
            let rate = rounds.controller.rate().unwrap() as f64;
            let stopped = rounds.controller.breaker.cap(0.0).is_finite();
            prop_assert!(rate <= 100_000_000.0);
            prop_assert!(stopped || rate >= floor.min(100_000_000.0) - 1.0, "{rate} {floor}");
            prop_assert!(rounds.controller.sent.len() <= 1 << 17);
            let loss = rounds.controller.member_loss(member);
            prop_assert!((0.0..=1.0).contains(&loss));
            let events = rounds.controller.events.len();
            prop_assert!(events <= 300 * 7);
        }
    }
}
