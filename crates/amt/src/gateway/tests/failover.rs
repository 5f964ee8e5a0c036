//! Relays that end, fill up or return, and addresses that change.

use std::time::Duration;

use super::world::*;
use crate::gateway::*;

const A: &str = "198.51.100.1:2268";
const B: &str = "198.51.100.2:2268";
const FLOW: (&str, &str) = ("10.0.0.1:4000", "232.1.1.1:5000");

fn connected() -> World {
    let mut world = World::new([(A, ModelRelay::default()), (B, ModelRelay::default())]);
    world.candidates([configured(A), configured(B)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(5));
    assert_eq!(world.using(), Some(addr(A)));
    world.events.clear();
    world
}

#[test]
fn a_relay_that_ends_is_replaced_at_the_next_query() {
    let mut world = connected();
    world.relay(A).answers = false;
    world.run(secs(25));
    assert_eq!(world.using(), Some(addr(B)));
    assert_eq!(world.tunnel(B).len(), 1);
    let events: Vec<_> = world.events.iter().map(|(_, e)| *e).collect();
    let lost = Event::Lost {
        relay: addr(A),
        why: RelayFailure::Timeout,
    };
    assert_eq!(events[0], lost);
    assert!(matches!(events[1], Event::Connected { relay, .. } if relay == addr(B)));
    assert_eq!(events.len(), 2);
    // The gateway tears the tunnel down, in case that the relay still hears it.
    assert_eq!(world.tunnel(A).len(), 0);
}

#[test]
fn a_suspicion_finds_the_loss_within_a_second() {
    let mut world = connected();
    world.relay(A).answers = false;
    world.gateway.suspect(world.now);
    world.run(ms(1200));
    assert_eq!(world.using(), Some(addr(B)));
    // Continuous suspicions do not exceed the bound on Requests.
    let before = world.relay(B).requests.len();
    for _ in 0..100 {
        world.gateway.suspect(world.now);
        world.run(ms(10));
    }
    assert!(world.relay(B).requests.len() <= before + 100 / 4);
    assert_eq!(world.using(), Some(addr(B)));
}

#[test]
fn without_another_relay_the_loss_is_reported_and_the_return_noticed() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(5));
    world.events.clear();
    world.relay(A).answers = false;
    world.gateway.suspect(world.now);
    world.run(secs(6));
    let events: Vec<_> = world.events.iter().map(|(_, e)| *e).collect();
    assert!(matches!(
        events[..],
        [
            Event::Lost {
                why: RelayFailure::Timeout,
                ..
            },
            Event::NoRelay { candidates: 1, .. }
        ]
    ));
    world.relay(A).answers = true;
    world.run(secs(20));
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
}

/// Returns a world after a run was killed, whose tunnel is still at the relay, and its proof.
fn killed() -> (World, TunnelProof) {
    let mut world = connected();
    let proof = world.gateway.tunnel().unwrap();
    assert_eq!((proof.relay, proof.gateway), (addr(A), world.here));
    world.gateway = Gateway::new(Timing::default(), [77; 32]);
    (world, proof)
}

fn start_again(world: &mut World) {
    world.candidates([configured(A), configured(B)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(5));
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
    assert_eq!(world.relay(A).forged, 0);
}

#[test]
fn the_tunnel_of_a_run_with_another_port_is_torn_down_first() {
    let (mut world, proof) = killed();
    let before = world.here;
    world.here.set_port(41_000);
    world.gateway.take_down(proof);
    world.relay(A).requests.clear();
    start_again(&mut world);
    let relay = world.relay(A);
    assert_eq!(relay.teardowns.len(), 1, "once");
    let (at, gateway) = relay.teardowns[0];
    assert_eq!(gateway, before);
    assert!(at <= relay.requests[0].0, "a full relay has room again");
    assert!(!relay.tunnels.contains_key(&before));
}

#[test]
fn a_resumed_tunnel_is_torn_down_only_if_its_address_changed() {
    for moved in [false, true] {
        let (mut world, proof) = killed();
        let before = world.here;
        if moved {
            world.here = addr("203.0.113.10:40000");
        }
        world.gateway.resume(proof);
        assert_eq!(world.gateway.tunnel(), Some(proof), "it is not forgotten");
        start_again(&mut world);
        let teardowns = world.relay(A).teardowns.iter();
        let ended: Vec<_> = teardowns.map(|(_, gateway)| *gateway).collect();
        assert_eq!(ended, if moved { vec![before] } else { vec![] });
        assert_eq!(world.gateway.tunnel().unwrap().gateway, world.here);
        world.gateway.stop();
        assert_eq!(world.gateway.tunnel(), None);
    }
}

#[test]
fn the_tunnel_to_a_relay_that_is_not_in_use_is_torn_down() {
    let (mut world, proof) = killed();
    world.gateway.resume(TunnelProof {
        relay: addr(B),
        ..proof
    });
    start_again(&mut world);
    assert!(world.relay(A).teardowns.is_empty());
    assert_eq!(world.relay(B).teardowns.len(), 1);
}

/// Kills the relay of a gateway whose application misses packets once a second. `others` are
/// candidates that never answer.
fn bereft(seed: u8, others: &[&'static str]) -> World {
    let mut world = World::seeded(seed, [(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(5));
    assert_eq!(world.using(), Some(addr(A)));
    let all = std::iter::once(&A).chain(others);
    world.candidates(all.map(|at| configured(at)));
    world.events.clear();
    let relay = world.relay(A);
    relay.answers = false;
    relay.tunnels.clear();
    relay.requests.clear();
    world
}

/// Runs at most a second, until the relay has a tunnel.
fn second(world: &mut World) -> bool {
    world.gateway.suspect(world.now);
    (0..100).any(|_| {
        world.run(ms(10));
        world.using().is_some() && !world.tunnel(A).is_empty()
    })
}

/// Returns the time until a killed relay serves the gateway again after its return.
fn until_it_serves_again(world: &mut World, away: Duration) -> Duration {
    let end = world.now + away;
    while world.now + secs(1) <= end {
        assert!(!second(world), "no relay answers");
    }
    world.run(end - world.now);
    world.relay(A).answers = true;
    let back = world.now;
    while !second(world) {
        assert!(world.now - back < secs(120));
    }
    world.now - back
}

#[test]
fn a_killed_relay_serves_again_within_three_seconds_of_its_return() {
    let mut longest = Duration::ZERO;
    for seed in 1..=20 {
        for away in [700, 1900, 3300, 4700, 6100, 9500, 14_900, 21_300, 29_000] {
            for others in [&[][..], &[B, "198.51.100.3:2268", "[2001:db8::9]:2268"]] {
                let away = ms(away + 37 * u64::from(seed));
                let mut world = bereft(seed, others);
                let took = until_it_serves_again(&mut world, away);
                assert!(took <= secs(3), "{took:?} after {away:?}, seed {seed}");
                longest = longest.max(took);
                // About a Request each second.
                let requests = world.relay(A).requests.len() as u64;
                let most = 8 + 2 * (away + took).as_secs();
                assert!(requests <= most, "{requests} Requests in {away:?}");
            }
        }
    }
    println!("{longest:?} at the longest");
}

#[test]
fn gateways_return_at_random_times() {
    let mut took: Vec<_> = (1..=200)
        .map(|seed| until_it_serves_again(&mut bereft(seed, &[]), secs(10)))
        .collect();
    took.sort();
    let busiest = took.windows(51).map(|some| some[50] - some[0]).min();
    assert!(busiest >= Some(ms(100)), "{busiest:?} for a quarter of all");
    assert!(took[199] <= ms(1500), "{:?}", took[199]);
}

#[test]
fn requests_to_an_absent_relay_back_off() {
    let mut world = bereft(3, &[]);
    for _ in 0..35 {
        second(&mut world);
    }
    let first = world.relay(A).requests.len();
    let reported = world.events.len();
    assert!((25..=50).contains(&first), "{first} Requests in 35 s");
    assert_eq!(reported, 2, "lost, and no other: {:?}", world.events);
    for _ in 0..1800 {
        second(&mut world);
    }
    let more = world.relay(A).requests.len() - first;
    assert!(
        (60..=200).contains(&more),
        "{more} Requests in half an hour"
    );
}

#[test]
fn a_relay_whose_packets_arrive_is_kept_although_it_does_not_answer() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(5));
    world.events.clear();
    world.relay(A).answers = false;
    for _ in 0..100 {
        world.send_data(A, FLOW.0, FLOW.1, b"here");
        world.run(ms(500));
    }
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.data.len(), 100);
    let lost = world
        .events
        .iter()
        .any(|(_, e)| matches!(e, Event::Lost { .. }));
    assert!(!lost);
    // When the packets end, the relay is given up.
    world.run(secs(60));
    assert_eq!(world.using(), None);
}

#[test]
fn a_relay_that_fills_up_is_left_for_another_one_without_a_gap() {
    let mut world = connected();
    world.relay(A).limited = true;
    let mut sent = 0;
    // Both relays forward the requested groups.
    for _ in 0..300 {
        for relay in [A, B] {
            if !world.tunnel(relay).is_empty() {
                world.send_data(relay, FLOW.0, FLOW.1, b"packet");
            }
        }
        sent += 1;
        world.run(ms(100));
    }
    assert_eq!(world.using(), Some(addr(B)));
    let got = world.data.len();
    assert!(got >= sent && got <= sent + 2, "{got} of {sent}");
    assert!(world.tunnel(A).is_empty(), "it was left");
    assert!(!world.relay(A).teardowns.is_empty());
    let lost = Event::Lost {
        relay: addr(A),
        why: RelayFailure::Limited,
    };
    assert!(world.events.iter().any(|(_, e)| *e == lost));
}

#[test]
fn the_present_tunnel_continues_if_all_relays_are_full() {
    let mut world = connected();
    world.relay(A).limited = true;
    world.relay(B).limited = true;
    world.run(secs(300));
    assert_eq!(world.using(), Some(addr(A)));
    assert!(world.gateway.status().relay.unwrap().limited);
    assert_eq!(world.tunnel(A).len(), 1);
    assert!(world.events.is_empty());
    let updates = world.relay(A).updates.last().unwrap().0;
    assert!(world.now - updates < secs(25), "it is still answered");
    let asked = world.relay(B).requests.len();
    assert!((1..=16).contains(&asked), "{asked}: it is held down");
}

#[test]
fn an_anycast_address_that_leads_to_the_same_full_relay_changes_nothing() {
    let anycast_relay = ModelRelay {
        advertises: Some(addr(A).ip()),
        ..ModelRelay::default()
    };
    const ANYCAST: &str = "192.52.193.1:2268";
    let mut world = World::new([(A, ModelRelay::default()), (ANYCAST, anycast_relay)]);
    world.candidates([configured(A), anycast(ANYCAST)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(5));
    world.relay(A).limited = true;
    world.run(secs(100));
    assert!(!world.relay(ANYCAST).discoveries.is_empty());
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
    assert!(world.relay(A).teardowns.is_empty());
    let failed = world.gateway.status().candidates[1].failed;
    assert_eq!(failed, Some(RelayFailure::Limited));
}

#[test]
fn a_changed_address_is_torn_down_with_the_values_before() {
    let mut world = connected();
    let before = world.here;
    world.here = addr("203.0.113.77:50000");
    world.run(secs(25));
    assert_eq!(world.relay(A).teardowns.len(), 1);
    assert_eq!(world.relay(A).teardowns[0].1, before);
    assert_eq!(world.relay(A).forged, 0);
    assert!(!world.relay(A).tunnels.contains_key(&before));
    assert_eq!(world.tunnel(A).len(), 1);
    let changed = Event::AddressChanged {
        from: before,
        to: world.here,
    };
    assert_eq!(world.events.last().unwrap().1, changed);
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(
        world.gateway.status().relay.unwrap().gateway,
        Some(world.here)
    );
}

#[test]
fn a_network_change_causes_a_request_at_once() {
    let mut world = connected();
    world.here = addr("203.0.113.77:50000");
    world.gateway.network_changed(world.now);
    world.run(ms(100));
    assert_eq!(world.tunnel(A).len(), 1);
    assert_eq!(world.relay(A).teardowns.len(), 1);
}

#[test]
fn an_address_missing_from_later_queries_is_remembered() {
    let mut world = connected();
    let before = world.here;
    world.relay(A).tells_address = false;
    world.run(secs(50));
    world.here = addr("203.0.113.77:50000");
    world.relay(A).tells_address = true;
    world.run(secs(25));
    assert_eq!(world.relay(A).teardowns[0].1, before);
    assert_eq!(world.relay(A).forged, 0);
}

#[test]
fn a_relay_without_one_family_serves_the_other() {
    let relay = ModelRelay {
        mld: false,
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, relay)]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.subscribe(asm("ff1e::1", 5000));
    world.run(secs(300));
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
    let events: Vec<_> = world.events.iter().map(|(_, e)| *e).collect();
    let unanswered = Event::Unanswered {
        relay: addr(A),
        mld: true,
    };
    assert_eq!(events[1..], [unanswered], "said once");
    let asked = world.relay(A).requests.iter().filter(|r| r.2).count();
    assert!(asked < 25, "{asked}: it is asked ever more rarely");
}

#[test]
fn a_relay_that_left_the_list_is_kept_while_it_works() {
    let mut world = connected();
    world.candidates([configured(B)]);
    world.run(secs(60));
    assert_eq!(world.using(), Some(addr(A)));
    world.relay(A).answers = false;
    world.run(secs(25));
    assert_eq!(world.using(), Some(addr(B)));
}

#[test]
fn many_seeds_and_losses_converge() {
    for seed in 0..60_u8 {
        let relay = || ModelRelay {
            one_nonce: seed % 2 == 1,
            ..ModelRelay::default()
        };
        let mut world = World::seeded(seed, [(A, relay()), (B, relay())]);
        world.lose_every = Some(2 + usize::from(seed % 4));
        world.delay = ms(u64::from(seed) * 11);
        world.candidates([configured(A), configured(B)]);
        let first = world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
        world.run(secs(60));
        world.subscribe(asm("ff1e::1", 5000));
        world.gateway.unsubscribe(first, world.now);
        world.run(secs(120));
        world.lose_every = None;
        world.run(secs(120));
        let at = world
            .using()
            .unwrap_or_else(|| panic!("none with seed {seed}"));
        let tunnel = world.tunnel(&at.to_string());
        assert_eq!(tunnel.len(), 1, "seed {seed}: {tunnel:?}");
        assert!(tunnel.keys().all(|group| group.is_ipv6()));
        world.gateway.stop();
        world.run(secs(5));
        assert!(world.tunnel(&at.to_string()).is_empty());
        assert_eq!(world.gateway.poll_timeout(), None);
    }
}

#[test]
fn an_excluded_relay_is_left_and_not_asked_until_it_is_allowed() {
    let mut world = connected();
    let (a, b) = (addr(A), addr(B));
    assert_eq!(world.using(), Some(a));
    world.events.clear();
    world.gateway.exclude([a.ip()], world.now);
    world.run(secs(5));
    assert_eq!(world.using(), Some(b));
    let why = RelayFailure::Excluded;
    assert_eq!(world.events[0].1, Event::Lost { relay: a, why });
    assert!(world.tunnel(A).is_empty(), "it was notified");
    let asked = world.relay(A).requests.len();

    // The only other one dies: none is left, and that costs no Request to the excluded one.
    world.relay(B).answers = false;
    world.relay(B).tunnels.clear();
    for _ in 0..100 {
        world.gateway.suspect(world.now);
        world.run(secs(1));
    }
    assert_eq!(world.using(), None);
    let none = |event: Event| matches!(event, Event::NoRelay { candidates: 2, .. });
    assert!(world.events.iter().any(|(_, event)| none(*event)));
    assert_eq!(world.relay(A).requests.len(), asked);

    world.gateway.exclude([], world.now);
    world.run(secs(1));
    assert_eq!(world.using(), Some(a));
}

#[test]
fn a_relay_that_is_excluded_while_it_is_asked_is_not_selected() {
    for discovers in [false, true] {
        let slow = ModelRelay {
            advertises: discovers.then(|| addr(A).ip()),
            ..ModelRelay::default()
        };
        const ANYCAST: &str = "192.52.193.1:2268";
        let relays = [(A, ModelRelay::default()), (ANYCAST, slow)];
        let mut world = World::new(relays);
        world.candidates([match discovers {
            true => anycast(ANYCAST),
            false => configured(A),
        }]);
        world.relay(A).answers = false;
        world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
        world.run(secs(1));
        world.relay(A).answers = true;
        world.gateway.exclude([addr(A).ip()], world.now);
        world.run(secs(100));
        assert_eq!(world.using(), None);
        let asked = world.relay(A).requests.len();
        assert!(asked <= 2, "{asked}");
        // An anycast address may lead to another relay each time.
        let discoveries = world.relay(ANYCAST).discoveries.len();
        assert_eq!((2..10).contains(&discoveries), discovers, "{discoveries}");
        world.gateway.exclude([], world.now);
        world.run(secs(100));
        assert_eq!(world.using(), Some(addr(A)));
    }
}

/// Nothing comes by a previous relay while there is no current one.
#[test]
fn the_previous_relay_serves_again_if_the_next_one_is_excluded() {
    let mut world = connected();
    world.relay(A).limited = true;
    while world.using() != Some(addr(B)) {
        world.run(ms(100));
        assert!(world.elapsed() < secs(60));
    }
    let flow = ("10.0.0.1:4000", "232.1.1.1:5000");
    world.send_data(A, flow.0, flow.1, b"of the previous one");
    world.run(ms(100));
    assert_eq!(world.data.len(), 1);
    world.gateway.exclude([addr(B).ip()], world.now);
    assert_eq!(world.using(), Some(addr(A)));
    world.send_data(A, flow.0, flow.1, b"without a gap");
    world.run(secs(1));
    assert_eq!(world.data.len(), 2);
    let lost = world.lost().into_iter().map(|(relay, _)| relay);
    assert_eq!(lost.collect::<Vec<_>>(), [addr(A), addr(B)]);
    assert!(world.tunnel(B).is_empty(), "it was left");
}
