//! Reports to relays, and their times.

use std::collections::BTreeSet;

use super::world::*;
use crate::gateway::*;
use crate::report::{GeneralQuery, RecordKind};

const A: &str = "198.51.100.1:2268";

fn connected(relay: ModelRelay, wanted: &[Subscription]) -> (World, Vec<SubscriptionId>) {
    let mut world = World::new([(A, relay)]);
    world.candidates([configured(A)]);
    let ids = wanted.iter().map(|s| world.subscribe(*s)).collect();
    world.run(secs(5));
    assert_eq!(world.using(), Some(addr(A)));
    (world, ids)
}

#[test]
fn all_four_kinds_of_groups_are_reported() {
    let wanted = [
        ssm("10.0.0.1", "232.1.1.1", 5000),
        ssm("10.0.0.2", "232.1.1.1", 5000),
        asm("239.1.1.1", 5000),
        ssm("2001:db8::5", "ff3e::8000:1", 5000),
        asm("ff1e::1", 5000),
    ];
    let (mut world, _) = connected(ModelRelay::default(), &wanted);
    let tunnel = world.tunnel(A);
    assert_eq!(tunnel.len(), 4);
    let sources: BTreeSet<_> = ["10.0.0.1", "10.0.0.2"].map(|s| s.parse().unwrap()).into();
    assert_eq!(tunnel[&"232.1.1.1".parse().unwrap()].sources, sources);
    assert!(tunnel[&"239.1.1.1".parse().unwrap()].any);
    assert!(!tunnel[&"ff3e::8000:1".parse().unwrap()].any);
    assert!(tunnel[&"ff1e::1".parse().unwrap()].any);
    let kinds: BTreeSet<_> = world
        .relay(A)
        .requests
        .iter()
        .map(|(_, _, mld)| *mld)
        .collect();
    assert_eq!(kinds, [false, true].into(), "a cycle for each family");
    let status = world.gateway.status().relay.unwrap();
    assert!(status.igmp && status.mld);
    assert_eq!(world.relay(A).forged, 0);
}

#[test]
fn the_first_report_is_repeated_and_then_each_query_has_one_answer() {
    let relay = ModelRelay {
        query: GeneralQuery {
            qrv: 3,
            qqic: secs(10),
            max_response: secs(1),
        },
        ..ModelRelay::default()
    };
    let (mut world, _) = connected(relay, &[ssm("10.0.0.1", "232.1.1.1", 5000)]);
    assert_eq!(world.relay(A).updates.len(), 3, "robustness of the relay");
    world.run(secs(100));
    let relay = world.relay(A);
    let (requests, updates) = (relay.requests.len(), relay.updates.len());
    assert!((10..=12).contains(&requests), "{requests}");
    assert_eq!(updates, requests + 2);
    let gaps = relay.requests.windows(2).map(|w| w[1].0 - w[0].0);
    for gap in gaps {
        assert!(gap >= secs(9) && gap <= ms(10_100), "{gap:?}");
    }
    let nonces: BTreeSet<_> = relay.requests.iter().map(|r| r.1).collect();
    assert_eq!(nonces.len(), requests, "fresh nonces");
}

#[test]
fn a_long_query_interval_is_shortened_and_a_missing_one_gets_the_default() {
    for qqic in [secs(31_744), secs(0)] {
        let relay = ModelRelay {
            query: GeneralQuery {
                qrv: 2,
                qqic,
                max_response: secs(10),
            },
            ..ModelRelay::default()
        };
        let (mut world, _) = connected(relay, &[asm("239.1.1.1", 5000)]);
        world.run(secs(600));
        let requests = world.relay(A).requests.len();
        assert!((10..=13).contains(&requests), "{requests} for {qqic:?}");
    }
}

#[test]
fn changes_are_reported_at_once_and_repeated_within_a_second() {
    let first = ssm("10.0.0.1", "232.1.1.1", 5000);
    let (mut world, ids) = connected(ModelRelay::default(), &[first]);
    let before = world.relay(A).updates.len();
    let at = world.now;
    world.subscribe(ssm("10.0.0.2", "232.1.1.1", 5000));
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(ms(1100));
    let updates = world.relay(A).updates[before..].to_vec();
    assert_eq!(updates[0].0 - at, ms(20), "at once");
    assert_eq!(updates[0].2[0].kind, RecordKind::Allow);
    let blocks = updates.iter().flat_map(|(_, _, records)| records);
    let blocks: Vec<_> = blocks.filter(|r| r.kind == RecordKind::Block).collect();
    assert_eq!(blocks.len(), 2, "reported twice");
    let allows = updates.iter().flat_map(|(_, _, records)| records);
    assert_eq!(allows.filter(|r| r.kind == RecordKind::Allow).count(), 2);
    let tunnel = world.tunnel(A);
    let sources = &tunnel[&"232.1.1.1".parse().unwrap()].sources;
    assert_eq!(*sources, ["10.0.0.2".parse().unwrap()].into());
}

#[test]
fn another_port_of_a_group_is_not_reported() {
    let (mut world, ids) = connected(ModelRelay::default(), &[ssm("10.0.0.1", "232.1.1.1", 5000)]);
    let before = world.relay(A).updates.len();
    let other = world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5001));
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(secs(2));
    assert_eq!(world.relay(A).updates.len(), before);
    world.gateway.unsubscribe(other, world.now);
    world.run(secs(2));
    assert!(world.relay(A).updates.len() > before);
}

#[test]
fn equal_subscriptions_are_counted() {
    let wanted = ssm("10.0.0.1", "232.1.1.1", 5000);
    let (mut world, ids) = connected(ModelRelay::default(), &[wanted, wanted]);
    assert_eq!(ids[0], ids[1]);
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(secs(5));
    assert_eq!(world.tunnel(A).len(), 1);
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(secs(5));
    assert_eq!(world.tunnel(A).len(), 0);
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(secs(5));
}

#[test]
fn any_source_and_sources_of_one_group_take_turns() {
    let (mut world, _) = connected(ModelRelay::default(), &[ssm("10.0.0.1", "239.1.1.1", 5000)]);
    let group = "239.1.1.1".parse().unwrap();
    let any = world.subscribe(asm("239.1.1.1", 5000));
    world.run(secs(2));
    assert!(world.tunnel(A)[&group].any);
    world.gateway.unsubscribe(any, world.now);
    world.run(secs(2));
    let tunnel = world.tunnel(A);
    assert!(!tunnel[&group].any, "any source is over");
    assert_eq!(tunnel[&group].sources.len(), 1);
}

#[test]
fn the_last_one_that_leaves_ends_the_tunnel() {
    let (mut world, ids) = connected(
        ModelRelay::default(),
        &[ssm("10.0.0.1", "232.1.1.1", 5000), asm("ff1e::1", 5000)],
    );
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(secs(2));
    assert_eq!(world.tunnel(A).len(), 1);
    assert!(world.relay(A).teardowns.is_empty());
    assert!(!world.gateway.status().relay.unwrap().igmp);
    world.gateway.unsubscribe(ids[1], world.now);
    world.run(secs(2));
    assert!(world.relay(A).tunnels.is_empty());
    assert!(!world.relay(A).teardowns.is_empty());
    assert_eq!(world.relay(A).forged, 0);
    assert_eq!(world.using(), None);
    let idle = Event::Idle { relay: addr(A) };
    assert_eq!(world.events.last().unwrap().1, idle);
    assert_eq!(world.gateway.poll_timeout(), None, "nothing left to do");
    world.subscribe(asm("ff1e::1", 5000));
    world.run(secs(2));
    assert_eq!(world.tunnel(A).len(), 1, "and it can begin again");
}

#[test]
fn a_stop_leaves_at_once() {
    let (mut world, _) = connected(
        ModelRelay::default(),
        &[ssm("10.0.0.1", "232.1.1.1", 5000), asm("ff1e::1", 5000)],
    );
    world.relay(A).updates.clear();
    world.gateway.stop();
    world.run(ms(25));
    let records = world
        .relay(A)
        .updates
        .iter()
        .flat_map(|(_, _, r)| r.clone());
    let groups: BTreeSet<_> = records.map(|record| record.group).collect();
    assert_eq!(groups.len(), 2, "each family's groups");
    assert!(world.relay(A).tunnels.is_empty());
    assert!(!world.relay(A).teardowns.is_empty());
    assert_eq!(world.gateway.poll_timeout(), None);
}

#[test]
fn a_relay_that_reports_no_address_works_and_gets_no_teardown() {
    let relay = ModelRelay {
        tells_address: false,
        ..ModelRelay::default()
    };
    let (mut world, ids) = connected(relay, &[ssm("10.0.0.1", "232.1.1.1", 5000)]);
    assert_eq!(world.tunnel(A).len(), 1);
    world.gateway.unsubscribe(ids[0], world.now);
    world.run(secs(2));
    assert_eq!(world.tunnel(A).len(), 0, "it left all the same");
    assert!(world.relay(A).teardowns.is_empty());
}

#[test]
fn many_subscriptions_are_reported_in_several_packets_up_to_the_bound() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.candidates([configured(A)]);
    for n in 0..MAX_SUBSCRIPTIONS {
        let group = format!("ff3e::8000:{n:x}");
        world.subscribe(ssm("2001:db8::5", &group, 5000));
    }
    let now = world.now;
    let more = world.gateway.subscribe(asm("ff1e::1", 5000), now);
    assert_eq!(more, Err(SubscribeError::TooMany));
    world.run(secs(5));
    assert_eq!(world.tunnel(A).len(), MAX_SUBSCRIPTIONS);
    assert_eq!(world.gateway.counters().unsent, 0);
    let mut crowd = World::new([]);
    for n in 0..MAX_SOURCES_PER_GROUP {
        crowd.subscribe(ssm(&format!("10.0.1.{n}"), "232.1.1.1", 5000));
    }
    let more = ssm("10.0.2.1", "232.1.1.1", 5000);
    let more = crowd.gateway.subscribe(more, crowd.now);
    assert_eq!(more, Err(SubscribeError::TooMany));
}

#[test]
fn subscriptions_that_no_relay_could_serve_are_rejected() {
    let mut world = World::new([]);
    for (wrong, text) in [
        (asm("10.0.0.1", 1), "not a multicast group"),
        (asm("224.0.0.251", 1), "single link"),
        (asm("ff02::fb", 1), "single link"),
        (asm("ff31::1", 1), "single link"),
        (asm("232.1.1.1", 1), "give its source"),
        (asm("ff3e::8000:1", 1), "give its source"),
        (
            ssm("2001:db8::1", "232.1.1.1", 1),
            "different address families",
        ),
        (ssm("232.1.1.2", "232.1.1.1", 1), "cannot be the source"),
        (ssm("0.0.0.0", "232.1.1.1", 1), "cannot be the source"),
        (asm("239.1.1.1", 0), "port"),
    ] {
        let error = world.gateway.subscribe(wrong, world.now).unwrap_err();
        assert!(error.to_string().contains(text), "{wrong}: {error}");
    }
    assert_eq!(world.gateway.status().subscriptions, 0);
}

#[test]
fn a_lost_update_is_repeated() {
    let mut world = World::new([(A, ModelRelay::default())]);
    world.lose_every = Some(2);
    world.candidates([configured(A)]);
    world.subscribe(ssm("10.0.0.1", "232.1.1.1", 5000));
    // The Request arrives, the first Update does not.
    world.run(ms(90));
    assert_eq!(world.using(), Some(addr(A)));
    assert_eq!(world.tunnel(A).len(), 0);
    world.run(secs(1));
    assert_eq!(world.tunnel(A).len(), 1);
}
