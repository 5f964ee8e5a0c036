//! Gateways and relays of this crate against each other, in virtual time.

mod network;

use std::collections::BTreeSet;

use amt::gateway::{Event, RelayFailure};
use amt::relay::{Config, GatewayAddress};
use network::*;

const V4: &str = "198.51.100.1:2268";
const V6: &str = "[2001:db8::1]:2268";
const OTHER: &str = "198.51.100.2:2268";
const SSM4: (&str, &str) = ("10.0.0.1", "232.1.1.1");
const SSM6: (&str, &str) = ("2001:db8:5::1", "ff3e::8000:1");

fn with_address() -> Config {
    Config {
        gateway_address: GatewayAddress::Always,
        ..Config::default()
    }
}

#[test]
fn all_outer_and_inner_families_work_with_and_without_a_source() {
    for (relay, host) in [(V4, "203.0.113.9:40000"), (V6, "[2001:db8:9::9]:40000")] {
        for ((source, single), shared) in [(SSM4, "239.1.1.1"), (SSM6, "ff1e::1")] {
            for any in [false, true] {
                let group = if any { shared } else { single };
                let mut network = Network::new([(relay, Config::default())]);
                let gateway = network.gateway(host, &[relay]);
                let wanted = match any {
                    true => subscription(None, group),
                    false => subscription(Some(source), group),
                };
                network.subscribe(gateway, wanted);
                network.run(secs(3));
                network.multicast(source, group, b"one");
                network.multicast(source, "232.9.9.9", b"another group's");
                let stranger = if source.contains(':') {
                    "2001:db8:6::6"
                } else {
                    "10.0.0.6"
                };
                network.multicast(stranger, group, b"another source's");
                network.run(secs(1));
                let expected: &[&[u8]] = match any {
                    true => &[b"one", b"another source's"],
                    false => &[b"one"],
                };
                assert_eq!(network.got(gateway), expected, "{relay} {group} {any}");
                assert_eq!(network.refused(), 0);
            }
        }
    }
}

#[test]
fn gateways_behind_one_address_join_and_leave_independently() {
    let mut network = Network::new([(V4, with_address())]);
    let hosts = [
        "203.0.113.9:40000",
        "203.0.113.9:40001",
        "203.0.113.9:40002",
    ];
    let gateways = hosts.map(|host| network.gateway(host, &[V4]));
    let ids =
        gateways.map(|gateway| network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1)));
    network.run(secs(3));
    assert_eq!(network.relay(V4).tunnels(), 3);
    network.multicast(SSM4.0, SSM4.1, b"for all");
    network.run(secs(1));
    network.unsubscribe(gateways[1], ids[1]);
    network.run(secs(3));
    assert_eq!(network.relay(V4).tunnels(), 2);
    network.multicast(SSM4.0, SSM4.1, b"for two");
    network.run(secs(1));
    assert_eq!(network.got(gateways[0]).len(), 2);
    assert_eq!(network.got(gateways[1]), [b"for all"]);
    assert_eq!(network.got(gateways[2]).len(), 2);
    network.stop(gateways[0]);
    network.stop(gateways[2]);
    network.run(secs(1));
    assert_eq!(network.relay(V4).tunnels(), 0);
    assert_eq!(network.relay(V4).joins().count(), 0, "nothing is joined");
}

#[test]
fn a_tunnel_lives_as_long_as_its_gateway() {
    let config = Config {
        query_interval: secs(20),
        ..Config::default()
    };
    let mut network = Network::new([(V4, config)]);
    let gateway = network.gateway("203.0.113.9:40000", &[V4]);
    network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1));
    network.subscribe(gateway, subscription(None, "ff1e::1"));
    for n in 0..100_u8 {
        network.run(secs(10));
        network.multicast(SSM4.0, SSM4.1, &[n]);
        network.multicast(SSM6.0, "ff1e::1", &[n]);
    }
    network.run(secs(1));
    assert_eq!(
        network.got(gateway).len(),
        200,
        "none lost over many secrets"
    );
    assert_eq!(network.refused(), 0);
    network.vanish(gateway);
    network.run(secs(60));
    assert_eq!(network.relay(V4).tunnels(), 0);
}

#[test]
fn a_rebound_address_is_followed_and_a_reporting_relay_ends_the_old_tunnel_at_once() {
    for (config, tells) in [(with_address(), true), (Config::default(), false)] {
        let mut network = Network::new([(V4, config)]);
        let gateway = network.gateway("203.0.113.9:40000", &[V4]);
        network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1));
        network.run(secs(3));
        network.rebind(gateway, "203.0.113.9:50000");
        network.run(secs(65));
        let tunnels: Vec<_> = network
            .relay(V4)
            .gateways()
            .map(|g| g.gateway.port())
            .collect();
        match tells {
            true => assert_eq!(tunnels, [50000]),
            false => assert_eq!(tunnels, [40000, 50000], "the old one expires later"),
        }
        network.multicast(SSM4.0, SSM4.1, b"here");
        network.run(secs(1));
        assert_eq!(network.got(gateway), [b"here"]);
        let changed = network
            .events(gateway)
            .iter()
            .any(|e| matches!(e, Event::AddressChanged { .. }));
        assert_eq!(changed, tells);
        assert_eq!(network.refused(), 0);
    }
}

#[test]
fn a_full_relay_keeps_its_gateways_and_redirects_others() {
    let config = Config {
        max_gateways: 2,
        ..with_address()
    };
    let mut network = Network::new([(V4, config), (OTHER, with_address())]);
    let hosts = ["203.0.113.1:1000", "203.0.113.2:1000", "203.0.113.3:1000"];
    let gateways = hosts.map(|host| network.gateway(host, &[V4, OTHER]));
    for gateway in gateways {
        network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1));
        network.run(secs(1));
    }
    network.run(secs(300));
    network.multicast(SSM4.0, SSM4.1, b"for all");
    network.run(secs(1));
    for gateway in gateways {
        assert_eq!(network.got(gateway), [b"for all"]);
    }
    assert_eq!(network.relay(V4).tunnels(), 2);
    assert_eq!(network.relay(OTHER).tunnels(), 1);
    assert_eq!(network.using(gateways[0]), Some(address(V4)), "it stayed");
}

#[test]
fn a_draining_relay_is_left_by_all_without_loss() {
    let mut network = Network::new([(V4, with_address()), (OTHER, with_address())]);
    let hosts = ["203.0.113.1:1000", "203.0.113.2:1000"];
    let gateways = hosts.map(|host| network.gateway(host, &[V4, OTHER]));
    for gateway in gateways {
        network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1));
    }
    network.run(secs(5));
    network.relay(V4).drain();
    for n in 0..700_u16 {
        network.multicast(SSM4.0, SSM4.1, &n.to_be_bytes());
        network.run(ms(100));
    }
    network.run(secs(1));
    assert_eq!(network.relay(V4).tunnels(), 0);
    assert_eq!(network.relay(OTHER).tunnels(), 2);
    let lost = Event::Lost {
        relay: address(V4),
        why: RelayFailure::Limited,
    };
    for gateway in gateways {
        assert!(network.events(gateway).contains(&lost));
        let got: BTreeSet<_> = network.got(gateway).iter().map(|p| p.to_vec()).collect();
        assert_eq!(got.len(), 700, "a packet is missing");
    }
}

#[test]
fn a_restarted_relay_is_found_again() {
    let mut network = Network::new([(V4, with_address())]);
    let gateway = network.gateway("203.0.113.9:40000", &[V4]);
    network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1));
    network.run(secs(5));
    // New secrets, and no tunnels.
    network.restart(V4, with_address());
    network.suspect(gateway);
    network.run(secs(3));
    network.multicast(SSM4.0, SSM4.1, b"again");
    network.run(secs(1));
    assert_eq!(network.got(gateway), [b"again"]);
}

#[test]
fn any_losses_converge() {
    for seed in 0..40 {
        let config = Config {
            query_interval: secs(15),
            requests_per_second: 1000,
            ..with_address()
        };
        let mut network = Network::new([(V4, config.clone()), (V6, config)]);
        network.seed = seed;
        network.loss = 1 + seed % 4;
        let gateways = [
            ("203.0.113.9:1", V4),
            ("[2001:db8:9::9]:1", V6),
            ("203.0.113.9:2", V4),
        ]
        .map(|(host, first)| network.gateway(host, &[first, V4, V6]));
        for gateway in gateways {
            let early = network.subscribe(gateway, subscription(Some(SSM4.0), SSM4.1));
            network.subscribe(gateway, subscription(None, "239.5.5.5"));
            network.run(secs(40));
            network.unsubscribe(gateway, early);
            network.subscribe(gateway, subscription(Some(SSM6.0), SSM6.1));
        }
        network.run(secs(100));
        network.loss = 0;
        network.run(secs(150));
        for gateway in gateways {
            network.forget(gateway);
        }
        network.multicast(SSM4.0, SSM4.1, b"left");
        network.multicast(SSM6.0, SSM6.1, b"six");
        network.multicast("10.0.0.3", "239.5.5.5", b"any");
        network.run(secs(1));
        for gateway in gateways {
            let got: BTreeSet<_> = network.got(gateway).iter().map(|p| p.to_vec()).collect();
            let expected: BTreeSet<_> = [b"six".to_vec(), b"any".to_vec()].into();
            assert_eq!(got, expected, "seed {seed}");
            network.stop(gateway);
        }
        network.run(secs(1));
        assert_eq!(network.relay(V4).tunnels() + network.relay(V6).tunnels(), 0);
    }
}
