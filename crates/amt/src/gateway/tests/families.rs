//! Groups of both address families through one relay.

use super::world::*;
use crate::gateway::*;

const A: &str = "198.51.100.1:2268";

fn v4() -> Subscription {
    ssm("10.0.0.1", "232.1.1.1", 5000)
}

fn v6() -> Subscription {
    ssm("2001:db8::5", "ff3e::8000:1", 5000)
}

/// Both families, one subscribed some time after the other.
fn connected(relay: ModelRelay, apart: std::time::Duration) -> World {
    let mut world = World::new([(A, relay)]);
    world.candidates([configured(A)]);
    world.subscribe(v4());
    world.run(apart);
    world.subscribe(v6());
    world.run(secs(5));
    assert_eq!(world.tunnel(A).len(), 2);
    world
}

fn linux() -> ModelRelay {
    ModelRelay {
        one_nonce: true,
        tells_address: false,
        ..ModelRelay::default()
    }
}

#[test]
fn a_changed_address_that_one_family_notices_is_told_for_both() {
    for apart in [0, 5, 11, 30] {
        let mut world = connected(ModelRelay::default(), secs(apart));
        let before = world.here;
        world.here = addr("203.0.113.77:50000");
        let mut waited = 0;
        while world.tunnel(A).is_empty() {
            world.run(ms(50));
            waited += 1;
            assert!(waited < 20 * 25, "the next query is long due");
        }
        world.run(ms(100));
        assert_eq!(world.tunnel(A).len(), 2, "{apart} s apart");
        let relay = world.relay(A);
        assert_eq!(relay.teardowns.len(), 1, "one tunnel");
        assert_eq!(relay.teardowns[0].1, before);
        assert_eq!(relay.forged, 0);
    }
}

#[test]
fn a_relay_that_keeps_one_nonce_serves_both_after_suspicions_and_changes() {
    for apart in [0, 7, 13] {
        let mut world = connected(linux(), secs(apart));
        for round in 0..5_u16 {
            world.gateway.suspect(world.now);
            world.here = addr("203.0.113.77:50000");
            world.here.set_port(50_000 + round);
            world.gateway.network_changed(world.now);
            world.run(ms(100));
            assert_eq!(world.tunnel(A).len(), 2, "{apart} s apart, round {round}");
            world.run(secs(3));
        }
        assert_eq!(world.relay(A).forged, 0);
    }
}

#[test]
fn changes_of_one_family_are_told_after_the_other_one_asked() {
    let mut world = connected(linux(), secs(13));
    for round in 0..40_u8 {
        let source = format!("10.0.1.{round}");
        let id = world.subscribe(ssm(&source, "232.1.1.2", 5000));
        world.run(ms(100));
        let group = "232.1.1.2".parse().unwrap();
        assert!(world.tunnel(A).contains_key(&group), "round {round}");
        world.gateway.unsubscribe(id, world.now);
        world.run(ms(100));
        assert!(!world.tunnel(A).contains_key(&group), "round {round}");
        world.run(ms(1700));
    }
    assert_eq!(world.relay(A).forged, 0);
}

/// What was told between a Request and its answer has a nonce that such a relay has forgotten.
#[test]
fn what_was_told_while_the_relay_was_asked_is_told_again() {
    let mut world = connected(linux(), secs(0));
    world.delay = ms(400);
    world.gateway.suspect(world.now);
    world.run(ms(10));
    world.subscribe(ssm("10.0.0.7", "232.7.7.7", 5000));
    world.subscribe(ssm("2001:db8::7", "ff3e::8000:7", 5000));
    // The relay is further away than it was thought: Requests were repeated, and the last one counts.
    world.run(secs(2));
    assert_eq!(world.tunnel(A).len(), 4);
    assert!(world.relay(A).requests.len() > 6);
}

#[test]
fn both_families_are_asked_for_together() {
    let mut world = connected(ModelRelay::default(), secs(7));
    world.run(secs(200));
    let begin = world.begin;
    let requests = &world.relay(A).requests;
    let late = requests.iter().filter(|(at, ..)| *at > begin + secs(60));
    let late: Vec<_> = late.collect();
    assert!(late.len() >= 10, "{}", late.len());
    for pair in late.chunks(2) {
        let [one, other] = pair else {
            continue;
        };
        assert_eq!((one.0, one.1), (other.0, other.1), "one time, one nonce");
        assert_ne!(one.2, other.2);
    }
}

/// amtrelayd compares the length of an MLD message with that of an IPv6 header.
#[test]
fn no_mld_message_is_shorter_than_an_ipv6_header() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    let id = world.subscribe(asm("ff1e::1", 5000));
    world.run(secs(30));
    world.gateway.unsubscribe(id, world.now);
    world.subscribe(asm("ff1e::2", 5000));
    world.run(secs(30));
    assert_eq!(world.tunnel(A).len(), 1);
    world.gateway.stop();
    world.run(secs(1));
    assert!(world.tunnel(A).is_empty());
    assert!(world.relay(A).shortest_mld >= Some(40));
}
