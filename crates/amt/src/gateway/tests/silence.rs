//! Relays that answer and bring no packets, or not those of every flow.

use super::world::*;
use crate::gateway::*;

const A: &str = "198.51.100.1:2268";
const B: &str = "198.51.100.2:2268";
const C: &str = "198.51.100.3:2268";
const SOURCE: &str = "10.0.0.1:4000";
const FIRST: &str = "232.1.1.1:5000";
const SECOND: &str = "232.1.1.2:5000";

fn deaf() -> ModelRelay {
    ModelRelay {
        deaf: true,
        ..ModelRelay::default()
    }
}

fn world(relays: Vec<(&'static str, ModelRelay)>) -> World {
    let names: Vec<_> = relays.iter().map(|(at, _)| *at).collect();
    let mut world = World::new(relays);
    world.candidates(names.into_iter().map(configured));
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    world
}

/// Sends numbered packets of the groups, ten each second; the application suspects the relay after
/// each second without any. Returns the number of packets of each group.
fn stream(world: &mut World, groups: &[&str], tenths: u32) -> u32 {
    let mut got = world.data.len();
    for n in 0..tenths {
        for group in groups {
            world.multicast(SOURCE, group, format!("{group} {n}").as_bytes());
        }
        world.run(ms(100));
        if n % 10 == 9 {
            if world.data.len() == got {
                world.gateway.suspect(world.now);
            }
            got = world.data.len();
        }
    }
    world.run(ms(100));
    tenths
}

/// Distinct packets that arrived.
fn different(world: &World) -> usize {
    let mut all: Vec<_> = world.data.iter().map(|(_, _, bytes)| bytes).collect();
    all.sort();
    all.dedup();
    all.len()
}

#[test]
fn a_relay_that_answers_and_brings_nothing_is_left_for_one_that_does() {
    let mut world = world(vec![(A, deaf()), (B, ModelRelay::default())]);
    world.run(secs(1));
    assert_eq!(world.using(), Some(addr(A)));
    stream(&mut world, &[FIRST], 70);
    assert_eq!(world.using(), Some(addr(B)));
    assert_eq!(world.lost(), [(addr(A), RelayFailure::NoTraffic)]);
    assert!(!world.data.is_empty(), "within seven seconds");
    assert!(world.tunnel(A).is_empty() && !world.relay(A).teardowns.is_empty());
    world.data.clear();
    stream(&mut world, &[FIRST], 3000);
    assert_eq!(world.data.len(), 3000);
    assert_eq!(world.lost().len(), 1, "that is how it stays");
}

#[test]
fn all_are_tried_until_one_brings_packets() {
    let mut world = world(vec![(A, deaf()), (B, deaf()), (C, ModelRelay::default())]);
    stream(&mut world, &[FIRST], 300);
    assert_eq!(world.using(), Some(addr(C)));
    let expected = [A, B].map(|at| (addr(at), RelayFailure::NoTraffic));
    assert_eq!(world.lost(), expected);
}

#[test]
fn an_idle_source_causes_ever_fewer_relay_changes() {
    let mut world = world(vec![(A, ModelRelay::default()), (B, ModelRelay::default())]);
    for _ in 0..1800 {
        world.run(secs(1));
        world.gateway.suspect(world.now);
    }
    let changes = world.lost().len();
    assert!((8..=30).contains(&changes), "{changes} in half an hour");
    let requests = world.relay(A).requests.len() + world.relay(B).requests.len();
    assert!(requests < 4000, "{requests}");
    world.run(secs(1));
    world.events.clear();
    let sent = stream(&mut world, &[FIRST], 600);
    assert_eq!(different(&world), sent as usize);
    assert_eq!(world.lost(), []);
    // The next loss is noticed fast again.
    for relay in [A, B] {
        if world.using() == Some(addr(relay)) {
            world.relay(relay).deaf = true;
        }
    }
    world.data.clear();
    stream(&mut world, &[FIRST], 70);
    assert!(!world.data.is_empty());
}

#[test]
fn a_relay_that_was_left_for_a_deaf_one_is_used_again() {
    let mut world = world(vec![(A, ModelRelay::default()), (B, deaf())]);
    while world.using() != Some(addr(B)) {
        world.run(secs(1));
        world.gateway.suspect(world.now);
        assert!(world.elapsed() < secs(20));
    }
    let sent = stream(&mut world, &[FIRST], 400);
    assert_eq!(different(&world), sent as usize, "no packet is missing");
    assert_eq!(world.using(), Some(addr(A)));
    let expected = [
        (addr(A), RelayFailure::NoTraffic),
        (addr(B), RelayFailure::NoTraffic),
    ];
    assert_eq!(world.lost(), expected);
    assert!(world.tunnel(B).is_empty(), "it was left");
    assert_eq!(world.relay(A).forged, 0);
}

#[test]
fn a_silent_relay_is_kept_without_an_alternative() {
    let mut world = world(vec![(A, deaf())]);
    stream(&mut world, &[FIRST], 3000);
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.lost(), []);
}

#[test]
fn a_new_subscription_restarts_the_silence_period() {
    let mut world = world(vec![(A, ModelRelay::default()), (B, ModelRelay::default())]);
    world.run(secs(60));
    world.subscribe(ssm("10.0.0.1", "232.1.1.2", 5000));
    world.run(secs(1));
    world.gateway.suspect(world.now);
    world.run(secs(1));
    assert_eq!(world.using(), Some(addr(A)));
}

#[test]
fn a_relay_that_fills_up_is_kept_until_the_other_one_brings_every_flow() {
    for (groups, slow) in [(&[FIRST][..], 1500), (&[FIRST, SECOND], 2500)] {
        let mut world = world(vec![(A, ModelRelay::default()), (B, ModelRelay::default())]);
        world.subscribe(ssm("10.0.0.1", "232.1.1.2", 5000));
        stream(&mut world, groups, 50);
        world.data.clear();
        world.relay(A).limited = true;
        world.relay(B).joins_within = ms(slow);
        if let [_, _] = groups {
            // The relay has that group anyway.
            let begin = world.begin;
            let first = addr(FIRST).ip();
            world.relay(B).joined.insert(first, begin);
        }
        let sent = stream(&mut world, groups, 400) as usize;
        assert_eq!(world.using(), Some(addr(B)));
        assert_eq!(different(&world), sent * groups.len(), "{slow} ms");
        assert!(
            world.data.len() <= sent * groups.len() + 2 * groups.len(),
            "twice"
        );
        assert!(world.tunnel(A).is_empty(), "it was left");
        assert_eq!(world.lost(), [(addr(A), RelayFailure::Limited)]);
    }
}

#[test]
fn a_full_relay_is_used_again_where_the_other_one_lacks_a_flow() {
    let mut world = world(vec![(A, ModelRelay::default()), (B, deaf())]);
    stream(&mut world, &[FIRST], 50);
    world.data.clear();
    world.relay(A).limited = true;
    let sent = stream(&mut world, &[FIRST], 600);
    assert_eq!(different(&world), sent as usize);
    assert!(world.lost().len() >= 2);
    assert!(world.lost().len() <= 20, "{:?}", world.lost());
}

#[test]
fn a_full_relay_is_used_again_where_the_other_one_ends_at_once() {
    let mut world = world(vec![(A, ModelRelay::default()), (B, deaf())]);
    stream(&mut world, &[FIRST], 50);
    world.data.clear();
    world.relay(A).limited = true;
    let mut sent = 0;
    while world.using() != Some(addr(B)) {
        sent += stream(&mut world, &[FIRST], 1);
    }
    world.relay(B).answers = false;
    for _ in 0..30 {
        world.gateway.suspect(world.now);
        sent += stream(&mut world, &[FIRST], 10);
    }
    assert_eq!(world.using(), Some(addr(A)));
    // Each part restarts the numbers.
    assert_eq!(world.data.len(), sent as usize);
}

#[test]
fn a_relay_that_is_slow_to_answer_is_kept_while_its_packets_come() {
    let mut world = world(vec![(A, ModelRelay::default()), (B, ModelRelay::default())]);
    stream(&mut world, &[FIRST], 50);
    world.relay(A).answers = false;
    for n in 0..12 {
        if n % 5 == 0 {
            world.gateway.suspect(world.now);
        }
        world.multicast(SOURCE, FIRST, b"packet");
        world.run(ms(100));
    }
    world.relay(A).answers = true;
    stream(&mut world, &[FIRST], 50);
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.lost(), []);
    assert!(world.relay(B).requests.is_empty());
}
