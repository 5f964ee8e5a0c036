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

/// Subscribes to both families, one some time after the other.
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
        reads_p: ReadsP::Linux,
        ..ModelRelay::default()
    }
}

#[test]
fn a_changed_address_noticed_by_one_family_is_reported_for_both() {
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
fn changes_of_one_family_are_reported_after_a_request_of_the_other() {
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

/// A report between a Request and its answer has a nonce that such a relay has forgotten.
#[test]
fn reports_during_a_request_are_repeated() {
    let mut world = connected(linux(), secs(0));
    world.delay = ms(400);
    world.gateway.suspect(world.now);
    world.run(ms(10));
    world.subscribe(ssm("10.0.0.7", "232.7.7.7", 5000));
    world.subscribe(ssm("2001:db8::7", "ff3e::8000:7", 5000));
    // The relay is farther away than assumed: Requests were repeated, and the last one counts.
    world.run(secs(2));
    assert_eq!(world.tunnel(A).len(), 4);
    assert!(world.relay(A).requests.len() > 6);
}

/// Subscribes to the IPv6 group alone, and waits for the relay's tunnel.
fn by_mld_alone(relay: ModelRelay) -> World {
    let mut world = World::new([(A, relay)]);
    world.candidates([configured(A)]);
    world.subscribe(v6());
    world.run(secs(4));
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 1);
    world
}

#[test]
fn the_p_flag_follows_the_position_that_the_relay_reads() {
    let mut world = by_mld_alone(linux());
    assert_eq!(world.relay(A).mld_flags, [0x01, 0x80]);
    let requests = &world.relay(A).requests;
    let (first, second) = (requests[0].0, requests[1].0);
    assert!(second - first < ms(700), "the usual repetition");
    // The position is remembered, even beyond the tunnel.
    let id = world.gateway.subscribe(v6(), world.now).unwrap();
    for _ in 0..2 {
        world.gateway.unsubscribe(id, world.now);
    }
    world.run(secs(4));
    assert_eq!(world.using(), None);
    world.relay(A).mld_flags.clear();
    world.subscribe(v6());
    world.run(ms(100));
    assert_eq!(world.tunnel(A).len(), 1);
    world.run(secs(600));
    assert!(world.relay(A).mld_flags.len() > 20);
    assert!(world.relay(A).mld_flags.iter().all(|flags| *flags == 0x80));
    assert_eq!(world.lost(), []);
}

#[test]
fn the_rfc_position_of_p_is_found_after_a_lost_request() {
    let strict = || ModelRelay {
        reads_p: ReadsP::Rfc,
        ..ModelRelay::default()
    };
    let mut world = by_mld_alone(strict());
    assert_eq!(world.relay(A).mld_flags, [0x01]);
    world.run(secs(600));
    assert!(world.relay(A).mld_flags.iter().all(|flags| *flags == 0x01));

    let mut world = World::new([]);
    world.candidates([configured(A)]);
    world.subscribe(v6());
    world.run(ms(300));
    // The first one was lost, and the second is read as a Request for IGMP.
    world.relays.insert(addr(A), strict());
    world.run(secs(3));
    assert_eq!(world.relay(A).mld_flags, [0x80, 0x01]);
    assert_eq!(world.dropped, [DropReason::BadQuery]);
    assert_eq!(world.tunnel(A).len(), 1);
}

/// A relay takes another one's place at an address; the learnt position does not matter.
#[test]
fn a_replaced_relay_program_at_the_same_address_is_recognised() {
    for (before, after) in [(ReadsP::Linux, ReadsP::Rfc), (ReadsP::Rfc, ReadsP::Linux)] {
        let mut world = by_mld_alone(ModelRelay {
            reads_p: before,
            ..linux()
        });
        world.relays.insert(
            addr(A),
            ModelRelay {
                reads_p: after,
                ..linux()
            },
        );
        world.gateway.network_changed(world.now);
        world.run(secs(5));
        assert_eq!(world.tunnel(A).len(), 1, "{before:?}, then {after:?}");
    }
}

#[test]
fn a_linux_relay_brings_ipv4_and_ipv6_groups() {
    for apart in [0, 7] {
        let mut world = connected(linux(), secs(apart));
        world.run(secs(600));
        assert_eq!(world.tunnel(A).len(), 2, "{apart} s apart");
        assert_eq!(world.relay(A).forged, 0);
        assert_eq!(world.lost(), []);
        let reported = world.events.iter();
        let unanswered = |e: &&(_, Event)| matches!(e.1, Event::Unanswered { .. });
        assert_eq!(reported.filter(unanswered).count(), 0);
        // Once unknown, and then known.
        let flags = &world.relay(A).mld_flags;
        let rfc = flags.iter().filter(|flags| **flags == 0x01).count();
        assert_eq!((rfc, flags[0]), (1, 0x01));
    }
}

#[test]
fn a_discovered_relay_of_linux_brings_ipv6_groups() {
    const ANYCAST: &str = "[2001:3::1]:2268";
    const FOUND: &str = "[2001:db8::1]:2268";
    let advertiser = ModelRelay {
        advertises: Some(addr(FOUND).ip()),
        ..linux()
    };
    let mut world = World::new([(ANYCAST, advertiser), (FOUND, linux())]);
    world.candidates([anycast(ANYCAST)]);
    world.subscribe(v6());
    world.run(secs(2));
    assert_eq!(world.using(), Some(addr(FOUND)));
    assert_eq!(world.relay(FOUND).mld_flags, [0x01, 0x80]);
    assert_eq!(world.tunnel(FOUND).len(), 1);
}

#[test]
fn both_families_are_requested_together() {
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
