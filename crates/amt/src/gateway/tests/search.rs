//! Search for a relay: candidates, races, discovery, hold-downs.

use super::world::*;
use crate::gateway::*;

const A: &str = "198.51.100.1:2268";
const B: &str = "[2001:db8::2]:2268";
const ANYCAST: &str = "192.52.193.1:2268";

#[test]
fn nothing_is_sent_before_the_first_subscription() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    world.run(secs(600));
    assert!(world.relay(A).requests.is_empty());
    assert!(world.events.is_empty());
    assert_eq!(world.gateway.poll_timeout(), None);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(ms(45));
    assert_eq!(world.using(), Some(addr(A)));
    let expected = Event::Connected {
        relay: addr(A),
        origin: Origin::Configured,
        rtt: ms(40),
    };
    assert_eq!(world.events.first().unwrap().1, expected);
    world.run(ms(20));
    assert_eq!(world.tunnel(A).len(), 1);
}

#[test]
fn the_first_relay_that_answers_wins() {
    let dead = ModelRelay {
        answers: false,
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, dead), (B, ModelRelay::default())]);
    world.candidates([configured(A), configured(B)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(ms(249));
    assert!(world.relay(B).requests.is_empty(), "the first one has time");
    world.run(ms(60));
    assert_eq!(world.using(), Some(addr(B)));
    world.run(secs(60));
    assert_eq!(world.relay(A).requests.len(), 1, "no further question");
    assert_eq!(world.using(), Some(addr(B)));
}

#[test]
fn the_least_slow_relay_wins() {
    let silent = || ModelRelay {
        answers: false,
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, ModelRelay::default()), (B, silent())]);
    world.delay = ms(900);
    world.candidates([configured(A), configured(B)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(ms(1805));
    assert_eq!(world.using(), Some(addr(A)));
    let relay = world.gateway.status().relay.unwrap();
    assert_eq!(relay.rtt, ms(1800), "of the Request that it answered");
}

#[test]
fn relay_discovery_tries_an_anycast_address_first() {
    let mut found = ModelRelay {
        advertises: Some("198.51.100.1".parse().unwrap()),
        ..ModelRelay::default()
    };
    found.igmp = false;
    let mut world = World::new([(ANYCAST, found), (A, ModelRelay::default())]);
    world.candidates([anycast(ANYCAST)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(1));
    assert_eq!(world.relay(ANYCAST).discoveries.len(), 1);
    assert!(world.relay(ANYCAST).requests.is_empty());
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
    let status = world.gateway.status();
    assert_eq!(status.relay.unwrap().origin, Origin::Anycast);
    assert_eq!(status.candidates[0].state, CandidateState::Selected);
}

#[test]
fn advertisements_from_strangers_or_with_impossible_addresses_are_dropped() {
    let mut world = World::new([]);
    world.candidates([anycast(ANYCAST)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.gateway.handle_timeout(world.now);
    let mut sent = Vec::new();
    assert_eq!(world.gateway.poll_transmit(&mut sent), Some(addr(ANYCAST)));
    let Ok(crate::Message::Discovery { nonce }) = crate::Message::parse(&sent) else {
        panic!("not a Discovery: {sent:?}");
    };
    let advertisement = |nonce: u32, relay: &str| {
        let mut bytes = Vec::new();
        let relay = relay.parse().unwrap();
        crate::Message::Advertisement { nonce, relay }.encode(&mut bytes);
        bytes
    };
    let good = advertisement(nonce, "198.51.100.1");
    for (from, bytes, why) in [
        ("192.0.2.66:2268", &good, DropReason::NotTheRelay),
        ("192.52.193.1:2269", &good, DropReason::NotTheRelay),
        (
            ANYCAST,
            &advertisement(!nonce, "198.51.100.1"),
            DropReason::UnknownNonce,
        ),
        (
            ANYCAST,
            &advertisement(nonce, "0.0.0.0"),
            DropReason::BadAddress,
        ),
        (
            ANYCAST,
            &advertisement(nonce, "232.1.1.1"),
            DropReason::BadAddress,
        ),
        (
            ANYCAST,
            &advertisement(nonce, "ff3e::1"),
            DropReason::BadAddress,
        ),
        (
            ANYCAST,
            &advertisement(nonce, "255.255.255.255"),
            DropReason::BadAddress,
        ),
    ] {
        assert_eq!(world.handle(from, bytes), Input::Dropped(why), "{from}");
    }
    assert_eq!(world.handle(ANYCAST, &good), Input::Control);
    assert_eq!(
        world.handle(ANYCAST, &good),
        Input::Dropped(DropReason::NotTheRelay),
        "it was answered"
    );
}

#[test]
fn requests_back_off_and_hold_downs_grow() {
    let dead = ModelRelay {
        answers: false,
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, dead)]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(1800));
    let requests = &world.relay(A).requests.clone();
    let mut nonces: Vec<_> = requests.iter().map(|(_, nonce, _)| *nonce).collect();
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), requests.len(), "each has a nonce of its own");
    let gaps: Vec<_> = requests.windows(2).map(|w| w[1].0 - w[0].0).collect();
    for (gap, about) in gaps.iter().zip([500, 1000, 2000]) {
        assert!(
            *gap >= ms(about * 9 / 10) && *gap <= ms(about * 5 / 4),
            "{gap:?}"
        );
    }
    // Rounds of four; the pauses between them grow to a minute.
    let pauses: Vec<_> = gaps.chunks(4).filter_map(|round| round.get(3)).collect();
    assert!(*pauses[0] < secs(15), "{pauses:?}");
    assert!(**pauses.last().unwrap() > secs(40), "{pauses:?}");
    assert!(**pauses.last().unwrap() < secs(70), "{pauses:?}");
    assert!(requests.len() < 200, "{}", requests.len());
    let rounds = world.events.len();
    assert!(
        rounds > 5
            && world
                .events
                .iter()
                .all(|(_, e)| matches!(e, Event::NoRelay { .. }))
    );
    // A returned relay is found at the next attempt, which a change of the network causes.
    world.relay(A).answers = true;
    world.gateway.network_changed(world.now);
    world.run(ms(100));
    assert_eq!(world.using(), Some(addr(A)));
}

#[test]
fn a_full_relay_is_skipped_at_once() {
    let full = ModelRelay {
        limited: true,
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, full), (B, ModelRelay::default())]);
    world.candidates([configured(A), configured(B)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(ms(100));
    assert_eq!(world.using(), Some(addr(B)), "no wait for the next turn");
    assert!(world.relay(A).updates.is_empty());
    let status = world.gateway.status();
    assert_eq!(status.candidates[0].failed, Some(RelayFailure::Limited));
    assert!(matches!(
        status.candidates[0].state,
        CandidateState::HeldDown { .. }
    ));
}

#[test]
fn an_unreachable_address_is_skipped_at_once() {
    let mut world = World::new([(B, ModelRelay::default())]);
    world.candidates([configured(A), configured(B)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.gateway.handle_timeout(world.now);
    world.gateway.unreachable(addr(A), world.now);
    world.run(ms(50));
    assert_eq!(world.using(), Some(addr(B)));
    let failed = world.gateway.status().candidates[0].failed;
    assert_eq!(failed, Some(RelayFailure::Unreachable));
}

#[test]
fn a_lack_of_candidates_is_reported_once_and_a_later_one_is_used() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.subscribe(ssm("10.0.0.1", "232.1.1.2", 5000));
    world.run(secs(300));
    let expected = Event::NoRelay {
        candidates: 0,
        retry: None,
    };
    let events: Vec<_> = world.events.iter().map(|(_, e)| *e).collect();
    assert_eq!(events, [expected]);
    world.candidates([configured(A)]);
    world.run(ms(100));
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 2);
}

#[test]
fn candidates_are_bounded_and_deduplicated() {
    let mut world = World::new([]);
    let many = (0..200).map(|n| configured(&format!("198.51.100.{}:2268", n / 2)));
    world.candidates(many);
    let status = world.gateway.status();
    assert_eq!(status.candidates.len(), MAX_CANDIDATES);
    assert_eq!(
        status.candidates[1].candidate.addr,
        addr("198.51.100.1:2268")
    );
}

#[test]
fn a_new_candidate_joins_a_running_race() {
    let dead = ModelRelay {
        answers: false,
        ..ModelRelay::default()
    };
    let mut world = World::new([(A, dead), (B, ModelRelay::default())]);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world.run(secs(1));
    world.candidates([configured(A), configured(B)]);
    world.run(ms(300));
    assert_eq!(world.using(), Some(addr(B)));
}
