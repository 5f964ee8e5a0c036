//! Messages, MACs, limits and expiry.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::lab::{Lab, at, dropped, ip, record, report};
use crate::relay::{Config, DropReason, Event, Faults, GatewayAddress, Join, Outcome};
use crate::report::RecordKind::{Block, IsEx, IsIn, ToIn};
use crate::{Mac, Message};

const S: &str = "192.0.2.1";
const G: &str = "232.1.2.3";
const SECOND: Duration = Duration::from_secs(1);

fn lab() -> Lab {
    Lab::new(Config::default())
}

#[test]
fn a_discovery_is_answered_with_the_address_it_was_sent_to() {
    let mut lab = lab();
    let handled = lab.send(at("203.0.113.5:4000"), &Message::Discovery { nonce: 9 });
    assert_eq!(handled, Outcome::Answer);
    assert_eq!(lab.answer.len(), 12);
    match Message::parse(&lab.answer).unwrap() {
        Message::Advertisement { nonce: 9, relay } => assert_eq!(relay, ip("198.51.100.1")),
        other => panic!("{other:?}"),
    }
    lab.send(at("[2001:db8:1::5]:4000"), &Message::Discovery { nonce: 9 });
    assert_eq!(lab.answer.len(), 24);
    assert_eq!(lab.relay.tunnels(), 0);
}

#[test]
fn an_anycast_address_is_never_advertised() {
    let anycast = super::super::LocalEndpoint {
        ip: crate::ANYCAST_V4.into(),
        socket: 0,
    };
    let mut bytes = Vec::new();
    Message::Discovery { nonce: 1 }.encode(&mut bytes);
    let from = at("203.0.113.5:4000");
    let mut plain = lab();
    let now = plain.now;
    let handled = plain
        .relay
        .handle(from, anycast, &bytes, now, &mut plain.answer);
    assert_eq!(handled, dropped(DropReason::NoAddress));
    let mut configured = Lab::new(Config {
        advertise_v4: Some(Ipv4Addr::new(198, 51, 100, 7)),
        ..Config::default()
    });
    let handled = configured
        .relay
        .handle(from, anycast, &bytes, now, &mut configured.answer);
    assert_eq!(handled, Outcome::Answer);
    assert!(configured.answer.ends_with(&[198, 51, 100, 7]));
}

#[test]
fn a_query_has_the_size_that_gateways_expect() {
    let mut lab = lab();
    let from = at("203.0.113.5:4000");
    lab.request(from, 1, false);
    assert_eq!(lab.answer.len(), 48);
    let mut always = Lab::new(Config {
        gateway_address: GatewayAddress::Always,
        ..Config::default()
    });
    always.request(from, 1, false);
    assert_eq!(always.answer.len(), 66);
    match Message::parse(&always.answer).unwrap() {
        Message::Query { gateway, .. } => assert_eq!(gateway, Some(from)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gateway_that_ignores_a_query_with_its_address_gets_one_without() {
    let mut lab = Lab::new(Config {
        gateway_address: GatewayAddress::UntilUnanswered,
        ..Config::default()
    });
    let (modern, kernel) = (at("203.0.113.5:4000"), at("203.0.113.5:4001"));
    let len = |lab: &mut Lab, from, mld| {
        lab.request(from, 1, mld);
        lab.answer.len()
    };
    assert_eq!(len(&mut lab, kernel, false), 66);
    assert_eq!(len(&mut lab, kernel, false), 48);
    // MLD is another exchange.
    assert_eq!(len(&mut lab, kernel, true), 88 + 18);
    lab.join(kernel, &[record(IsIn, G, &[S])]);
    lab.pass(SECOND);
    assert_eq!(len(&mut lab, kernel, false), 48);
    lab.join(modern, &[record(IsIn, G, &[S])]);
    lab.pass(SECOND);
    assert_eq!(len(&mut lab, modern, false), 66);
}

#[test]
fn an_update_with_the_querys_mac_makes_a_tunnel() {
    let mut lab = lab();
    let from = at("203.0.113.5:4000");
    assert_eq!(lab.join(from, &[record(IsIn, G, &[S])]), Outcome::Accepted);
    assert_eq!(lab.receivers(S, G), [from]);
    assert!(lab.receivers("192.0.2.2", G).is_empty());
    let join = Join {
        source: Some(ip(S)),
        group: ip(G),
    };
    assert_eq!(lab.events, [Event::Join(join)]);
    assert_eq!(lab.join(from, &[record(ToIn, G, &[])]), Outcome::Accepted);
    assert!(lab.receivers(S, G).is_empty());
    assert_eq!(lab.relay.tunnels(), 0);
    assert_eq!(lab.events, [Event::Join(join), Event::Leave(join)]);
}

#[test]
fn a_mac_holds_for_its_address_port_and_nonce_only() {
    let mut lab = lab();
    let from = at("203.0.113.5:4000");
    let (mac, _) = lab.request(from, 77, false);
    let wanted = [record(IsIn, G, &[S])];
    for (other, nonce) in [
        ("203.0.113.5:4001", 77),
        ("203.0.113.6:4000", 77),
        ("203.0.113.5:4000", 78),
        ("[2001:db8::5]:4000", 77),
    ] {
        let handled = lab.update(at(other), nonce, mac, &wanted);
        assert_eq!(handled, dropped(DropReason::Mac), "{other}");
    }
    for bit in 0..48 {
        let mut forged = mac;
        forged.0[bit / 8] ^= 1 << (bit % 8);
        let handled = lab.update(from, 77, forged, &wanted);
        assert_eq!(handled, dropped(DropReason::Mac), "bit {bit}");
    }
    assert_eq!(lab.relay.tunnels(), 0);
    assert!(lab.events.is_empty());
    assert_eq!(lab.update(from, 77, mac, &wanted), Outcome::Accepted);
}

#[test]
fn one_nonce_serves_a_whole_query_interval() {
    let mut lab = lab();
    let from = at("203.0.113.5:4000");
    let (mac, _) = lab.request(from, 1, false);
    for _ in 0..13 {
        let handled = lab.update(from, 1, mac, &[record(IsIn, G, &[S])]);
        assert_eq!(handled, Outcome::Accepted);
        lab.pass(Duration::from_secs(10));
    }
    assert_eq!(lab.receivers(S, G), [from]);
}

#[test]
fn a_gateway_without_further_requests_is_served_while_it_reports() {
    let config = Config {
        query_interval: SECOND,
        max_response: SECOND / 2,
        ..Config::default()
    };
    let mut lab = Lab::new(config);
    let (from, other) = (at("203.0.113.5:4000"), at("203.0.113.5:4001"));
    let wanted = [record(IsIn, G, &[S])];
    let wanted_v6 = [record(IsIn, "ff3e::8000:1", &["2001:db8:9::1"])];
    let (mac, _) = lab.request(from, 1, false);
    let (mac_v6, _) = lab.request(from, 2, true);
    // Three times the lifetime of a secret.
    for _ in 0..3 * 540 {
        assert_eq!(lab.update(from, 1, mac, &wanted), Outcome::Accepted);
        assert_eq!(lab.update(from, 2, mac_v6, &wanted_v6), Outcome::Accepted);
        lab.pass(SECOND);
    }
    assert_eq!(lab.receivers(S, G), [from]);
    // By now the MAC is valid for this tunnel alone.
    for (wrong, nonce, mac) in [
        (other, 1, mac),
        (at("203.0.113.6:4000"), 1, mac),
        (from, 3, mac),
        (from, 1, Mac([0; 6])),
    ] {
        let handled = lab.update(wrong, nonce, mac, &wanted);
        assert_eq!(handled, dropped(DropReason::Mac), "{wrong} {nonce}");
    }
    let teardown = Message::Teardown {
        mac,
        nonce: 1,
        gateway: from,
    };
    assert_eq!(lab.send(other, &teardown), Outcome::Accepted);
    assert_eq!(lab.relay.tunnels(), 0);
    // The tunnel's end forgets its proofs.
    let handled = lab.update(from, 1, mac, &wanted);
    assert_eq!(handled, dropped(DropReason::Mac));
}

#[test]
fn a_teardown_finds_the_tunnel_of_a_link_local_gateway() {
    let mut lab = lab();
    let from = at("[fe80::5%3]:4000");
    let (mac, _) = lab.request(from, 1, false);
    lab.update(from, 1, mac, &[record(IsIn, G, &[S])]);
    let teardown = Message::Teardown {
        mac,
        nonce: 1,
        gateway: from,
    };
    // On another link it is another gateway.
    let handled = lab.send(at("[fe80::5%4]:4001"), &teardown);
    assert_eq!(handled, dropped(DropReason::NoTunnel));
    let handled = lab.send(at("[fe80::5%3]:4001"), &teardown);
    assert_eq!(handled, Outcome::Accepted);
    assert_eq!(lab.relay.tunnels(), 0);
}

#[test]
fn without_reports_a_membership_expires_and_the_tunnel_with_it() {
    let mut lab = lab();
    let (one, two) = (at("203.0.113.5:4000"), at("203.0.113.5:4001"));
    lab.join(one, &[record(IsIn, G, &[S])]);
    lab.pass(Duration::from_secs(200));
    lab.join(two, &[record(IsIn, G, &[S])]);
    assert_eq!(lab.receivers(S, G), [one, two]);
    lab.pass(Duration::from_secs(60));
    assert_eq!(lab.receivers(S, G), [two]);
    assert_eq!(lab.relay.tunnels(), 1);
    lab.pass(Duration::from_secs(200));
    assert_eq!(lab.relay.tunnels(), 0);
    assert!(matches!(lab.events.last(), Some(Event::Leave(_))));
}

#[test]
fn with_expiry_off_a_tunnel_stays() {
    let mut lab = Lab::new(Config::default());
    lab.relay.inject_faults(Faults {
        expiry_off: true,
        ..Faults::default()
    });
    lab.join(at("203.0.113.5:4000"), &[record(IsIn, G, &[S])]);
    lab.pass(Duration::from_secs(10_000));
    assert_eq!(lab.relay.tunnels(), 1);
}

#[test]
fn teardown_needs_the_mac_of_the_address_that_it_names() {
    let mut lab = lab();
    let (old, new) = (at("203.0.113.5:4000"), at("203.0.113.77:1234"));
    let (mac, _) = lab.request(old, 5, false);
    lab.update(old, 5, mac, &[record(IsIn, G, &[S])]);
    let teardown = |mac, nonce, gateway| Message::Teardown {
        mac,
        nonce,
        gateway,
    };
    let handled = lab.send(new, &teardown(Mac([1; 6]), 5, old));
    assert_eq!(handled, dropped(DropReason::Mac));
    let handled = lab.send(new, &teardown(mac, 6, old));
    assert_eq!(handled, dropped(DropReason::Mac));
    let handled = lab.send(new, &teardown(mac, 5, at("203.0.113.5:4001")));
    assert_eq!(handled, dropped(DropReason::Mac));
    assert_eq!(lab.receivers(S, G), [old]);
    assert_eq!(lab.send(new, &teardown(mac, 5, old)), Outcome::Accepted);
    assert!(lab.receivers(S, G).is_empty());
    let handled = lab.send(new, &teardown(mac, 5, old));
    assert_eq!(handled, dropped(DropReason::NoTunnel));
}

#[test]
fn gateways_behind_one_address_have_a_tunnel_each() {
    let mut lab = lab();
    let all: Vec<_> = (0..500)
        .map(|n| at(&format!("203.0.113.5:{}", 10_000 + n)))
        .collect();
    for from in &all {
        lab.pass(SECOND / 50);
        lab.join(*from, &[record(IsIn, G, &[S])]);
    }
    assert_eq!(lab.receivers(S, G), all);
    assert_eq!(lab.events.len(), 1);
    lab.join(all[3], &[record(Block, G, &[S])]);
    let left = lab.receivers(S, G);
    assert_eq!(left.len(), 499);
    assert!(!left.contains(&all[3]));
}

#[test]
fn a_draining_relay_accepts_no_new_gateway() {
    let mut lab = lab();
    let (one, two) = (at("203.0.113.5:1"), at("203.0.113.6:1"));
    lab.join(one, &[record(IsIn, G, &[S])]);
    lab.relay.drain();
    assert!(lab.request(one, 1, false).1);
    let (mac, limited) = lab.request(two, 1, false);
    assert!(limited);
    let handled = lab.update(two, 1, mac, &[record(IsIn, G, &[S])]);
    assert_eq!(handled, dropped(DropReason::Draining));
    assert_eq!(lab.receivers(S, G), [one]);
    assert_eq!(lab.join(one, &[record(ToIn, G, &[])]), Outcome::Accepted);
    assert_eq!(lab.relay.tunnels(), 0);
}

#[test]
fn allow_and_deny_lists_select_gateways() {
    let mut lab = Lab::new(Config {
        allow: vec![
            "203.0.113.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ],
        deny: vec!["203.0.113.128/25".parse().unwrap()],
        ..Config::default()
    });
    let ask = Message::Request {
        nonce: 1,
        mld: false,
    };
    for (from, served) in [
        ("203.0.113.1:1", true),
        ("[::ffff:203.0.113.1]:1", true),
        ("203.0.113.200:1", false),
        ("198.51.100.1:1", false),
        ("[2001:db8::9]:1", true),
        ("[2001:db9::9]:1", false),
    ] {
        let expected = match served {
            true => Outcome::Answer,
            false => dropped(DropReason::Denied),
        };
        assert_eq!(lab.send(at(from), &ask), expected, "{from}");
    }
    assert!("203.0.113.0/33".parse::<crate::relay::Prefix>().is_err());
    assert!("example.org".parse::<crate::relay::Prefix>().is_err());
}

#[test]
fn messages_of_relays_are_ignored() {
    let mut lab = lab();
    let from = at("203.0.113.5:1");
    for bytes in [&[][..], &[0x11], &[0x06, 0], &[0x13; 40], &[0xff; 1500]] {
        let handled = lab.send_bytes(from, bytes);
        assert!(matches!(handled, Outcome::Dropped(_)), "{bytes:?}");
        assert!(lab.answer.is_empty());
    }
    let (mac, _) = lab.request(from, 1, false);
    let garbage = Message::Update {
        mac,
        nonce: 1,
        packet: &[0x45; 60],
    };
    assert_eq!(lab.send(from, &garbage), dropped(DropReason::Report));
    assert_eq!(lab.relay.tunnels(), 0);
}

#[test]
fn inner_and_outer_families_combine_freely() {
    let mut lab = lab();
    let (v4, v6) = (at("203.0.113.5:1"), at("[2001:db8:5::5]:1"));
    for from in [v4, v6] {
        lab.join(from, &[record(IsIn, G, &[S])]);
        lab.join(from, &[record(IsIn, "ff3e::8000:1", &["2001:db8:9::1"])]);
        lab.join(from, &[record(IsEx, "239.1.1.1", &[])]);
        lab.join(from, &[record(IsEx, "ff1e::1", &[])]);
    }
    for (source, group) in [
        (S, G),
        ("2001:db8:9::1", "ff3e::8000:1"),
        ("10.9.8.7", "239.1.1.1"),
        ("2001:db8:7::7", "ff1e::1"),
    ] {
        assert_eq!(lab.receivers(source, group), [v4, v6], "{group}");
        let list = lab.relay.recipients(ip(source), ip(group)).unwrap();
        // The room differs by the outer header; sockets are in order.
        assert_eq!(list.room, 1450);
        let rooms: Vec<_> = list.all.iter().map(|one| one.room).collect();
        assert_eq!(rooms, [1470, 1450]);
        assert_eq!(list.all[0].local.socket, 0);
    }
}

#[test]
fn a_narrow_path_narrows_all_tunnels_over_it_for_a_while() {
    let mut lab = lab();
    let (one, two) = (at("203.0.113.5:1"), at("203.0.113.6:1"));
    lab.join(one, &[record(IsIn, G, &[S])]);
    lab.join(two, &[record(IsIn, G, &[S])]);
    let room = |lab: &mut Lab| lab.relay.recipients(ip(S), ip(G)).unwrap().room;
    assert_eq!(room(&mut lab), 1470);
    lab.relay.path_mtu(ip("203.0.113.5"), 1280, lab.now);
    assert_eq!(room(&mut lab), 1250);
    // No message can make the path unusable.
    lab.relay.path_mtu(ip("203.0.113.5"), 68, lab.now);
    assert_eq!(room(&mut lab), 552 - 30);
    lab.relay.path_mtu(ip("203.0.113.5"), 9000, lab.now);
    assert_eq!(room(&mut lab), 552 - 30);
    for _ in 0..4 {
        lab.pass(Duration::from_secs(160));
        lab.join(one, &[record(IsIn, G, &[S])]);
    }
    assert_eq!(room(&mut lab), 1470);
}

#[test]
fn a_report_may_have_an_unspecified_source() {
    let packet = report(&[record(IsIn, G, &[S])]);
    // As VLC and Linux do, and the writer of reports, too.
    assert_eq!(&packet[12..16], &[0; 4]);
}

#[test]
fn faults_take_protections_off() {
    let with = |faults| {
        let mut lab = Lab::new(Config::default());
        lab.relay.inject_faults(faults);
        lab
    };
    let mut no_mac = with(Faults {
        mac_check_off: true,
        ..Faults::default()
    });
    let (one, two) = (at("203.0.113.5:1"), at("203.0.113.5:2"));
    let handled = no_mac.update(one, 1, Mac([0; 6]), &[record(IsIn, G, &[S])]);
    assert_eq!(handled, Outcome::Accepted);
    let mut by_address = with(Faults {
        nat_by_address: true,
        ..Faults::default()
    });
    by_address.join(one, &[record(IsIn, G, &[S])]);
    by_address.join(two, &[record(IsIn, G, &[S])]);
    assert_eq!(by_address.receivers(S, G), [two]);
}
