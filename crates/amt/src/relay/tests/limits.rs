//! Limits: what exceeds them is refused, and present state continues.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::lab::{Lab, at, dropped, ip, record};
use crate::Message;
use crate::relay::{Config, DropReason, Event, Join, Outcome};
use crate::report::RecordKind::{Allow, Block, IsEx, IsIn, ToEx, ToIn};

const S: &str = "192.0.2.1";
const G: &str = "232.1.2.3";
const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(125);

#[test]
fn at_capacity_only_present_gateways_are_served() {
    let mut lab = Lab::new(Config {
        max_gateways: 2,
        ..Config::default()
    });
    let (one, two, three) = (
        at("203.0.113.5:1"),
        at("203.0.113.6:1"),
        at("203.0.113.7:1"),
    );
    lab.join(one, &[record(IsIn, G, &[S])]);
    assert!(!lab.request(two, 1, false).1);
    lab.join(two, &[record(IsIn, G, &[S])]);
    let (mac, limited) = lab.request(three, 1, false);
    assert!(limited);
    let handled = lab.update(three, 1, mac, &[record(IsIn, G, &[S])]);
    assert_eq!(handled, dropped(DropReason::Full));
    assert!(!lab.request(one, 1, false).1);
    assert_eq!(
        lab.join(one, &[record(Allow, G, &["192.0.2.2"])]),
        Outcome::Accepted
    );
    assert_eq!(lab.receivers("192.0.2.2", G), [one]);
    lab.join(two, &[record(ToIn, G, &[])]);
    assert!(!lab.request(three, 1, false).1);
}

#[test]
fn a_gateway_beyond_its_limit_gets_the_memberships_that_fit() {
    let mut lab = Lab::new(Config {
        max_groups_per_gateway: 4,
        ..Config::default()
    });
    let from = at("203.0.113.5:1");
    let handled = lab.join(
        from,
        &[
            record(IsIn, G, &[S, "192.0.2.2"]),
            record(IsEx, "239.1.1.1", &[]),
            record(IsIn, "232.1.1.1", &["192.0.2.1", "192.0.2.2"]),
            record(IsEx, "239.1.1.2", &[]),
        ],
    );
    assert_eq!(handled, dropped(DropReason::TooManyGroups));
    assert_eq!(lab.receivers(S, G), [from]);
    assert_eq!(lab.receivers(S, "239.1.1.1"), [from]);
    assert_eq!(lab.receivers(S, "232.1.1.1"), [from]);
    assert!(lab.receivers("192.0.2.2", "232.1.1.1").is_empty());
    assert!(lab.receivers(S, "239.1.1.2").is_empty());
    // An excluded source does not fit any more, and the rest of the group does.
    let handled = lab.join(from, &[record(ToEx, "239.1.1.1", &[S])]);
    assert_eq!(handled, dropped(DropReason::TooManyGroups));
    assert_eq!(lab.receivers("192.0.2.9", "239.1.1.1"), [from]);
    // Leaving is always possible.
    assert_eq!(lab.join(from, &[record(Block, G, &[S])]), Outcome::Accepted);
    let handled = lab.join(from, &[record(ToEx, "239.1.1.1", &[S])]);
    assert_eq!(handled, Outcome::Accepted);
    assert!(lab.receivers(S, "239.1.1.1").is_empty());
}

#[test]
fn a_gateway_at_its_limit_keeps_its_memberships() {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    let sources: Vec<String> = (1..=65).map(|n| format!("192.0.2.{n}")).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    assert_eq!(
        lab.join(from, &[record(IsIn, G, &sources[1..])]),
        Outcome::Accepted
    );
    for _ in 0..4 {
        // All of them in each report, as its kernel says it.
        let handled = lab.join(from, &[record(IsIn, G, &sources)]);
        assert_eq!(handled, dropped(DropReason::TooManyGroups));
        assert!(lab.receivers(sources[0], G).is_empty());
        for source in &sources[1..] {
            assert_eq!(lab.receivers(source, G), [from], "{source}");
        }
        lab.pass(INTERVAL);
    }
    // A gateway that starts with too many gets as many as there is room for.
    let second = at("203.0.113.5:2");
    lab.join(second, &[record(IsIn, G, &sources)]);
    let got = sources
        .iter()
        .filter(|source| lab.receivers(source, G).contains(&second));
    assert_eq!(got.count(), 64);
    // A new list replaces the old one even if both do not fit.
    let other: Vec<String> = (1..=64).map(|n| format!("198.51.100.{n}")).collect();
    let other: Vec<&str> = other.iter().map(String::as_str).collect();
    let handled = lab.join(second, &[record(ToIn, G, &other)]);
    assert_eq!(handled, Outcome::Accepted);
    assert_eq!(lab.receivers(other[63], G), [second]);
}

#[test]
fn present_memberships_continue_at_a_full_relay() {
    let mut lab = Lab::new(Config {
        max_joins: 3,
        ..Config::default()
    });
    let (one, two) = (at("203.0.113.5:1"), at("203.0.113.6:1"));
    lab.join(one, &[record(IsIn, G, &[S])]);
    lab.join(two, &[record(IsEx, "239.1.1.1", &[])]);
    lab.join(two, &[record(IsIn, "239.1.1.2", &[S])]);
    let handled = lab.join(one, &[record(Allow, G, &["192.0.2.2"])]);
    assert_eq!(handled, dropped(DropReason::TooManyGroups));
    for _ in 0..4 {
        let handled = lab.join(one, &[record(IsIn, G, &[S, "192.0.2.2"])]);
        assert_eq!(handled, dropped(DropReason::TooManyGroups));
        let all = [
            record(IsEx, "239.1.1.1", &["192.0.2.3"]),
            record(IsIn, "239.1.1.2", &[S]),
        ];
        assert_eq!(lab.join(two, &all), Outcome::Accepted);
        assert_eq!(lab.receivers(S, G), [one]);
        assert!(lab.receivers("192.0.2.2", G).is_empty());
        assert_eq!(lab.receivers(S, "239.1.1.1"), [two]);
        assert_eq!(lab.receivers(S, "239.1.1.2"), [two]);
        lab.pass(INTERVAL);
    }
    // Replacing one membership by another is possible.
    let all = [
        record(IsEx, "239.1.1.1", &[]),
        record(IsIn, "239.1.1.2", &[S]),
    ];
    lab.join(two, &all);
    let handled = lab.join(two, &[record(ToIn, "239.1.1.1", &[S])]);
    assert_eq!(handled, Outcome::Accepted);
    let handled = lab.join(two, &[record(ToEx, "239.1.1.2", &[])]);
    assert_eq!(handled, Outcome::Accepted);
    assert_eq!(lab.receivers(S, "239.1.1.1"), [two]);
    assert_eq!(lab.receivers("192.0.2.77", "239.1.1.2"), [two]);
    // Another tunnel wants the same source: a further one does not fit, and this one stays.
    lab.join(one, &[record(IsIn, "239.1.1.1", &[S])]);
    for _ in 0..3 {
        let all = [record(IsIn, G, &[S]), record(IsIn, "239.1.1.1", &[S])];
        lab.join(one, &all);
        lab.join(two, &[record(IsEx, "239.1.1.2", &[])]);
        let handled = lab.join(two, &[record(IsEx, "239.1.1.1", &[])]);
        assert_eq!(handled, dropped(DropReason::TooManyGroups));
        assert_eq!(lab.receivers(S, "239.1.1.1"), [one, two]);
        lab.pass(INTERVAL);
    }
}

#[test]
fn the_limit_of_joins_covers_all_tunnels() {
    let mut lab = Lab::new(Config {
        max_joins: 2,
        ..Config::default()
    });
    let (one, two) = (at("203.0.113.5:1"), at("203.0.113.6:1"));
    lab.join(one, &[record(IsIn, G, &[S, "192.0.2.2"])]);
    let handled = lab.join(two, &[record(IsIn, "232.1.1.1", &[S])]);
    assert_eq!(handled, dropped(DropReason::TooManyGroups));
    // A present join serves every tunnel.
    assert_eq!(lab.join(two, &[record(IsIn, G, &[S])]), Outcome::Accepted);
    assert_eq!(lab.receivers(S, G), [one, two]);
    lab.join(one, &[record(ToIn, G, &[])]);
    assert_eq!(
        lab.join(two, &[record(IsIn, "232.1.1.1", &[S])]),
        Outcome::Accepted
    );
}

#[test]
fn sources_beside_any_source_count_before_they_have_to_be_joined() {
    let mut lab = Lab::new(Config {
        max_joins: 100,
        ..Config::default()
    });
    let any = at("203.0.113.5:1");
    lab.join(any, &[record(IsEx, "239.1.1.1", &[])]);
    for port in 2..20 {
        let sources: Vec<String> = (0..10)
            .map(|n| format!("192.0.2.{}", port * 10 + n))
            .collect();
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        let from = at(&format!("203.0.113.5:{port}"));
        lab.join(from, &[record(IsIn, "239.1.1.1", &sources)]);
    }
    assert_eq!(lab.events.len(), 1);
    lab.events.clear();
    lab.join(any, &[record(ToIn, "239.1.1.1", &[])]);
    let joins = lab.events.iter();
    let joins = joins
        .filter(|event| matches!(event, Event::Join(_)))
        .count();
    assert_eq!(joins, 99);
    assert_eq!(lab.relay.joins().count(), 99);
}

#[test]
fn late_native_changes_are_merged() {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    let packet = |kind, source: &str| super::lab::report(&[record(kind, G, &[source])]);
    let (mac, _) = lab.request(from, 1, false);
    // Events are not taken meanwhile: joins that are undone leave nothing.
    let local = super::lab::v4_local();
    let mut answer = Vec::new();
    for n in 0..3000_u32 {
        let source = Ipv4Addr::from(0x0a00_0000 + n).to_string();
        for kind in [Allow, Block] {
            let packet = &packet(kind, &source);
            let mut bytes = Vec::new();
            Message::Update {
                mac,
                nonce: 1,
                packet,
            }
            .encode(&mut bytes);
            lab.now += SECOND / 1000;
            let now = lab.now;
            lab.relay.handle(from, local, &bytes, now, &mut answer);
        }
    }
    assert!(!lab.relay.has_events());
    // With very many leaves, joins and leaves take turns.
    let join = |n: u32| Join {
        source: Some(Ipv4Addr::from(0x0a00_0000 + n).into()),
        group: ip(G),
    };
    let mut held = std::collections::BTreeSet::new();
    let mut most = 0;
    for n in 0..20_000_u32 {
        for (kind, n) in [(Allow, n), (Block, n.wrapping_sub(10))] {
            let source = Ipv4Addr::from(0x0a00_0000_u32.wrapping_add(n)).to_string();
            let packet = &packet(kind, &source);
            let mut bytes = Vec::new();
            Message::Update {
                mac,
                nonce: 1,
                packet,
            }
            .encode(&mut bytes);
            lab.now += SECOND / 1000;
            let now = lab.now;
            lab.relay.handle(from, local, &bytes, now, &mut answer);
        }
        // One event for two.
        match lab.relay.poll_event() {
            Some(Event::Join(join)) => assert!(held.insert(join)),
            Some(Event::Leave(join)) => assert!(held.remove(&join)),
            None => {}
        }
        most = most.max(held.len());
    }
    assert!(most < 1200, "{most}");
    while let Some(event) = lab.relay.poll_event() {
        match event {
            Event::Join(join) => assert!(held.insert(join)),
            Event::Leave(join) => assert!(held.remove(&join)),
        }
    }
    let wanted: std::collections::BTreeSet<Join> = (19_990..20_000).map(join).collect();
    assert_eq!(held, wanted);
}

#[test]
fn updates_of_one_address_are_bounded() {
    let mut lab = Lab::new(Config {
        requests_per_second: 100,
        ..Config::default()
    });
    let from = at("203.0.113.5:1");
    let (mac, _) = lab.request(from, 1, false);
    let wanted = [record(IsIn, G, &[S])];
    let taken = (0..5000).filter(|_| lab.update(from, 1, mac, &wanted) == Outcome::Accepted);
    assert_eq!(taken.count(), 800);
    lab.pass(SECOND);
    assert_eq!(lab.update(from, 1, mac, &wanted), Outcome::Accepted);
}

#[test]
fn a_gateway_with_a_tunnel_has_a_limit_of_its_own() {
    let mut lab = Lab::new(Config {
        requests_per_second: 10,
        ..Config::default()
    });
    let (from, other) = (at("203.0.113.5:1"), at("203.0.113.5:2"));
    lab.join(from, &[record(IsIn, G, &[S])]);
    let ask = Message::Request {
        nonce: 1,
        mld: false,
    };
    for _ in 0..60 {
        // As a Linux gateway does; the others leave nothing.
        while lab.send(other, &ask) == Outcome::Answer {}
        assert_eq!(lab.send(from, &ask), Outcome::Answer);
        assert_eq!(lab.send(from, &ask), Outcome::Answer);
        lab.pass(2 * SECOND);
    }
    while lab.send(other, &ask) == Outcome::Answer {}
    // It has not much more than that.
    let answers = (0..100).filter(|_| lab.send(from, &ask) == Outcome::Answer);
    assert_eq!(answers.count(), 8);
}

#[test]
fn floods_leave_nothing_behind() {
    let mut lab = Lab::new(Config {
        requests_per_second: 100,
        ..Config::default()
    });
    let mut answered = 0_u64;
    for n in 0..100_000_u32 {
        let from = std::net::SocketAddr::from((Ipv4Addr::from(0x0b00_0000 + n * 7), 1000));
        let mut bytes = Vec::new();
        let message = match n % 2 {
            0 => Message::Discovery { nonce: n },
            _ => Message::Request {
                nonce: n,
                mld: n % 4 == 1,
            },
        };
        message.encode(&mut bytes);
        lab.send_bytes(from, &bytes);
        answered += lab.answer.len() as u64;
        // No larger than the RFC's messages: an Advertisement, and a Query of IGMP or MLD.
        assert!(lab.answer.len() <= 88);
    }
    assert!(answered > 0);
    assert_eq!(lab.relay.tunnels(), 0);
    assert!(lab.events.is_empty());
    // One address gets its share only.
    let one = at("203.0.113.5:1");
    let ask = Message::Request {
        nonce: 1,
        mld: false,
    };
    let answers = (0..10_000).filter(|_| lab.send(one, &ask) == Outcome::Answer);
    assert_eq!(answers.count(), 200);
    lab.pass(SECOND);
    assert_eq!(lab.send(one, &ask), Outcome::Answer);
}
