//! Receivers without multicast that get the flow through AMT relays.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flexicast::control::{RelayAddress, RelayHint};
use flexicast_tokio::receiver::{Event, Redundancy, RelayName, Relays};
use flexicast_tokio::source::SourceStatus;
use flexicast_tokio::{Cause, Rung};

use crate::site::relay::Relay;
use crate::site::{Probe, Running, Site};

/// A receiver reachable by these relays only, in addition to the announced ones.
fn behind(site: &Site, server: SocketAddr, relays: &[SocketAddr]) -> Probe {
    let mut config = site.receiver_config(server);
    let configured = relays.iter().map(|relay| RelayName::Address(*relay));
    config.multicast = false;
    config.amt = Some(Relays {
        configured: configured.collect(),
        ..Relays::default()
    });
    site.start_receiver(config)
}

fn hint(addr: SocketAddr, priority: u8) -> RelayHint {
    RelayHint {
        priority,
        address: RelayAddress::Ip(addr.ip()),
        port: addr.port(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_reaches_receivers_without_multicast() {
    let site = Site::new();
    let relay = Relay::start(site.group(0)).await;
    let source = site.source().await;
    let mut probe = behind(&site, source.addr, &[relay.addr]);
    let mut member = site.receiver(source.addr);
    probe.until_rung(Rung::Amt).await;
    member.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 300).await;
    probe.until_seq(300).await;
    member.until_seq(300).await;
    assert!(probe.by_flow("lore") >= 280, "{}", probe.by_flow("lore"));
    assert!(relay.forwarded.load(Ordering::Relaxed) >= 300);
    let status = source.status().await;
    let mut rungs: Vec<_> = status
        .receivers
        .iter()
        .map(|r| &r.channels[0].rung[..])
        .collect();
    rungs.sort_unstable();
    assert_eq!(rungs, ["amt", "multicast"]);
    assert_eq!(status.channels[0].flow.as_ref().unwrap().replicas, 0);
}

/// A relay of Linux serves one port of each address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_port_is_as_set_and_kept_for_the_next_run() {
    let site = Site::new();
    let relay = Relay::start(site.group(0)).await;
    let source = site.source().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("amt.json");
    // Outside the range of those that the kernel chooses.
    let free = |port: &u16| std::net::UdpSocket::bind(("0.0.0.0", *port)).is_ok();
    let port = (10_000..20_000).find(free).unwrap();
    // The second run knows it from the file.
    for set in [Some(port), None] {
        let mut config = site.receiver_config(source.addr);
        config.multicast = false;
        config.amt = Some(Relays {
            configured: vec![RelayName::Address(relay.addr)],
            port: set,
            memory: Some(file.clone()),
            ..Relays::default()
        });
        let mut probe = site.start_receiver(config);
        probe.until_rung(Rung::Amt).await;
        let from = relay.gateways.lock().unwrap().last().copied();
        assert_eq!(from.map(|from| from.port()), Some(port), "{set:?}");
        probe.handle.shutdown().await;
    }
}

/// Nothing is configured: the source says where its relay is, and that is all that it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_relay_is_found() {
    let site = Site::new();
    let relay = Relay::start(site.group(0)).await;
    let source = site.source().await;
    let mut probe = behind(&site, source.addr, &[]);
    loop {
        // Without a relay it says so, and goes on.
        if let Event::Relay { relay, text, .. } = probe.event().await {
            assert_eq!(relay, None);
            assert!(text.contains("relay"), "{text}");
            break;
        }
    }
    source.handle.set_relays(vec![hint(relay.addr, 1)]).await;
    probe.until_rung(Rung::Amt).await;
    site.publish(&source.handle, 100).await;
    probe.until_seq(100).await;
    assert!(probe.by_flow("lore") >= 80, "{}", probe.by_flow("lore"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_relay_is_left_for_the_next_one_and_nothing_is_lost() {
    let site = Site::new();
    let first = Relay::start(site.group(0)).await;
    let second = Relay::start(site.group(0)).await;
    let source = site.lively_source().await;
    source.handle.set_relays(vec![hint(first.addr, 1)]).await;
    let mut probe = behind(&site, source.addr, &[]);
    probe.until_rung(Rung::Amt).await;
    // Not before: where the first one is slow to answer, the second would win.
    let relays = vec![hint(first.addr, 1), hint(second.addr, 2)];
    source.handle.set_relays(relays).await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    assert_eq!(second.forwarded.load(Ordering::Relaxed), 0);
    drop(first);
    let publish = async {
        for _ in 0..60 {
            site.publish(&source.handle, 2).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let follow = async {
        let mut causes = Vec::new();
        let mut other = None;
        let mut why = None;
        while causes.is_empty() || probe.rung_of("lore") != Rung::Amt || other.is_none() {
            match probe.event().await {
                Event::Rung { rung, cause, .. } => causes.push((rung, cause)),
                Event::Explained {
                    rung: Rung::Amt,
                    cause,
                    ..
                } => why = Some(cause),
                Event::Relay { relay, .. } => other = relay,
                _ => {}
            }
        }
        (causes, why, other)
    };
    let ((), (causes, why, other)) = tokio::join!(publish, follow);
    assert_eq!(other, Some(second.addr));
    let (rung, cause) = causes[0];
    assert_eq!(rung, Rung::Unicast);
    // Mostly the missing acknowledgements come first.
    let known = why.unwrap_or(cause);
    assert_eq!(known, Cause::RelayLost, "first {cause}");
    let moves = source.status().await.moves;
    let left = moves.iter().find(|step| step.from == "amt").unwrap();
    assert_eq!((&left.to[..], &left.cause[..]), ("unicast", "relay-lost"));
    assert_eq!(causes.last(), Some(&(Rung::Amt, Cause::Joined)));
    let before = second.forwarded.load(Ordering::Relaxed);
    site.publish(&source.handle, 50).await;
    let head = site.store.head("lore");
    probe.until_seq(head).await;
    assert!(second.forwarded.load(Ordering::Relaxed) > before);
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
}

/// Copies do not wait for a relay that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_relay_copies_come() {
    let site = Site::new();
    let source = site.source().await;
    let mut config = site.receiver_config(source.addr);
    (config.multicast, config.replicated) = (false, true);
    config.amt = Some(Relays::default());
    let mut probe = site.start_receiver(config);
    probe.until_rung(Rung::Replicated).await;
    // A relay that turns up later is better than copies.
    let relay = Relay::start(site.group(0)).await;
    source.handle.set_relays(vec![hint(relay.addr, 1)]).await;
    probe.until_rung(Rung::Amt).await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    assert_eq!(
        source.status().await.channels[0]
            .flow
            .as_ref()
            .unwrap()
            .replicas,
        0
    );
}

/// A relay that takes no further gateways, or is about to end, goes on with those that it has until
/// they have another one: that is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_empties_itself_is_left_without_a_gap() {
    let site = Site::new();
    let first = Relay::start(site.group(0)).await;
    let second = Relay::start(site.group(0)).await;
    let source = site.source().await;
    let relays = vec![hint(first.addr, 1), hint(second.addr, 2)];
    source.handle.set_relays(relays).await;
    let mut probe = behind(&site, source.addr, &[]);
    probe.until_rung(Rung::Amt).await;
    first.limited.store(true, Ordering::Relaxed);
    for _ in 0..1000 {
        site.publish(&source.handle, 1).await;
        let head = site.store.head("lore");
        probe.until_seq(head).await;
        if second.forwarded.load(Ordering::Relaxed) > 20 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(second.forwarded.load(Ordering::Relaxed) > 20);
    assert_eq!(probe.rung_of("lore"), Rung::Amt);
    let moves = source.status().await.moves;
    let reported: Vec<_> = moves.iter().map(|m| (&m.to[..], &m.cause[..])).collect();
    assert_eq!(reported, [("amt", "joined")]);
}

/// A receiver with neither multicast nor a relay can say what it has tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_brings_nothing_is_a_known_reason() {
    let site = Site::new();
    // Answers, and forwards a group without a sender.
    let deaf = Relay::start(site.group(7)).await;
    let source = site.source().await;
    let mut probe = behind(&site, source.addr, &[deaf.addr]);
    let reported = loop {
        if let Event::Explained {
            rung, on, cause, ..
        } = probe.event().await
        {
            break (rung, on, cause);
        }
    };
    assert_eq!(reported, (Rung::Amt, Rung::Unicast, Cause::ProbeTimeout));
    let step = loop {
        if let Some(step) = source.status().await.moves.pop() {
            break step;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(
        (&step.from[..], &step.to[..], &step.cause[..]),
        ("amt", "unicast", "probe-timeout")
    );
    site.publish(&source.handle, 20).await;
    probe.until_seq(20).await;
}

/// Returns the legs of the only receiver with their states.
fn legs(status: &SourceStatus) -> Vec<String> {
    let channels = status.receivers.iter().flat_map(|r| &r.channels);
    let legs = channels.flat_map(|channel| &channel.legs);
    legs.map(|leg| format!("{} {}", leg.leg, leg.state))
        .collect()
}

/// A receiver takes the flow natively and through a relay, which dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_legs_dies_without_a_fall_back() {
    let site = Site::new();
    let relay = Relay::start(site.group(0)).await;
    let source = site.lively_source().await;
    let mut config = site.receiver_config(source.addr);
    config.amt = Some(Relays {
        configured: vec![RelayName::Address(relay.addr)],
        ..Relays::default()
    });
    config.redundancy = Redundancy::Two;
    let mut probe = site.start_receiver(config);
    probe.until_rung(Rung::Multicast).await;
    let both = ["multicast working", "amt working"];
    source
        .until("both legs", |status| legs(status) == both)
        .await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    let forwarded = relay.forwarded.load(Ordering::Relaxed);
    assert!(forwarded >= 50, "{forwarded} packets by the relay");
    drop(relay);
    for _ in 0..150 {
        site.publish(&source.handle, 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let one = ["multicast working", "amt lost"];
    source
        .until("the lost leg", |status| legs(status) == one)
        .await;
    probe.until_seq(200).await;
    let status = source.status().await;
    assert_eq!(status.counters.protocol.fall_backs, 0);
    assert_eq!(status.counters.protocol.legs_lost, 1);
    assert_eq!(probe.rung_of("lore"), Rung::Multicast);
}

/// A relay that answers and brings nothing, while multicast works, was no leg that could be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_never_worked_is_recorded_as_no_lost_leg() {
    let site = Site::new();
    let deaf = Relay::start(site.group(7)).await;
    let source = site.lively_source().await;
    let mut config = site.receiver_config(source.addr);
    config.amt = Some(Relays {
        configured: vec![RelayName::Address(deaf.addr)],
        ..Relays::default()
    });
    config.redundancy = Redundancy::Two;
    let mut probe = site.start_receiver(config);
    probe.until_rung(Rung::Multicast).await;
    let one = ["multicast working", "amt lost"];
    source
        .until("the attempt", |status| legs(status) == one)
        .await;
    let status = source.status().await;
    assert_eq!(status.counters.protocol.legs_lost, 0);
    let moves: Vec<_> = status.moves.iter().map(|m| &m.cause[..]).collect();
    assert!(!moves.contains(&"leg-lost"), "{moves:?}");
}

/// Two relays at different addresses, and a receiver behind them, which is on both.
async fn on_two_relays(site: &Site, server: SocketAddr) -> ([Relay; 2], Probe) {
    let first = Relay::start(site.group(0)).await;
    let second = Relay::start_at("127.0.0.2:0".parse().unwrap(), site.group(0)).await;
    let mut config = site.receiver_config(server);
    let configured = [first.addr, second.addr].map(RelayName::Address);
    config.multicast = false;
    config.amt = Some(Relays {
        configured: configured.to_vec(),
        ..Relays::default()
    });
    config.redundancy = Redundancy::Two;
    let mut probe = site.start_receiver(config);
    probe.until_rung(Rung::Amt).await;
    ([first, second], probe)
}

/// Publishes an update each 20 ms.
async fn publish_slowly(site: &Site, source: &Running, updates: usize) {
    for _ in 0..updates {
        site.publish(&source.handle, 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A receiver without multicast is on two relays, one of which dies, and never on one twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_relays_dies_without_a_fall_back() {
    let site = Site::new();
    let source = site.lively_source().await;
    let ([first, second], mut probe) = on_two_relays(&site, source.addr).await;
    let both = ["amt working", "amt-2 working"];
    source
        .until("both legs", |status| legs(status) == both)
        .await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    for relay in [&first, &second] {
        let forwarded = relay.forwarded.load(Ordering::Relaxed);
        assert!(forwarded >= 50, "{forwarded} packets by {}", relay.addr);
    }
    drop(first);
    publish_slowly(&site, &source, 200).await;
    let one = |status: &SourceStatus| {
        let mut legs = legs(status);
        legs.sort_by_key(|leg| !leg.ends_with("working"));
        legs.len() == 2 && legs[0].ends_with("working") && legs[1].ends_with("lost")
    };
    source.until("the lost leg", one).await;
    probe.until_seq(250).await;
    // The one that lost its relay does not take the other's: one gateway reports there.
    let gateways = second.gateways.lock().unwrap().clone();
    assert!(
        gateways.iter().all(|from| *from == gateways[0]),
        "{gateways:?}"
    );
    let status = source.status().await;
    assert_eq!(status.counters.protocol.fall_backs, 0);
    assert_eq!(status.counters.protocol.legs_lost, 1);
    assert_eq!(probe.rung_of("lore"), Rung::Amt);
    let last = status.moves.last().unwrap();
    let step = (&last.from[..], &last.to[..], &last.cause[..]);
    assert_eq!(step, ("amt", "amt", "leg-lost"));
}

/// With one relay there is one leg; another one, when it is announced, is the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_relay_is_another_one_than_the_first() {
    let site = Site::new();
    let first = Relay::start(site.group(0)).await;
    // Another port of the same host is no other relay.
    let same = Relay::start(site.group(0)).await;
    let source = site.lively_source().await;
    let mut config = site.receiver_config(source.addr);
    config.multicast = false;
    let configured = [first.addr, same.addr].map(RelayName::Address);
    config.amt = Some(Relays {
        configured: configured.to_vec(),
        ..Relays::default()
    });
    config.redundancy = Redundancy::Two;
    let mut probe = site.start_receiver(config);
    let why = loop {
        if let Event::Relay {
            number: 1,
            relay,
            text,
            ..
        } = probe.event().await
        {
            break (relay, text);
        }
    };
    assert_eq!(why.0, None);
    assert!(why.1.contains("it has the flow's other leg"), "{}", why.1);
    probe.until_rung(Rung::Amt).await;
    let second = Relay::start_at("127.0.0.2:0".parse().unwrap(), site.group(0)).await;
    source.handle.set_relays(vec![hint(second.addr, 1)]).await;
    let both = ["amt working", "amt-2 working"];
    source
        .until("both legs", |status| legs(status) == both)
        .await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    let used = [&first, &same].map(|relay| relay.forwarded.load(Ordering::Relaxed));
    assert!(used.contains(&0), "{used:?}");
    assert!(second.forwarded.load(Ordering::Relaxed) >= 50);
    assert_eq!(source.status().await.counters.protocol.fall_backs, 0);
}
