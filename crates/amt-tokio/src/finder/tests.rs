//! Candidates, and repeated lookups of names.
#![allow(clippy::unwrap_used)]
use super::*;

const PAUSE: Duration = Duration::from_secs(5);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn hint(host: &str, priority: u8) -> Hint {
    Hint {
        host: host.to_owned(),
        port: 2268,
        priority,
    }
}

#[tokio::test]
async fn configured_relays_precede_hints_and_anycast_is_last() {
    let relays = ["192.0.2.1", "anycast", "localhost:7"];
    let relays = relays.map(|r| r.parse().unwrap()).into();
    let mut finder = Finder::new(relays, None, false, PAUSE, 1);
    finder.set_hints(&[
        hint("192.0.2.30", 9),
        hint("192.0.2.20", 1),
        hint("not a name", 0),
        hint("232.1.1.1", 0),
    ]);
    finder.resolve(false);
    assert_eq!(finder.status()[0].lookup, Lookup::UnderWay);
    finder.resolved().await;
    let candidates = finder.candidates();
    let origins: Vec<_> = candidates.iter().map(|c| c.origin).collect();
    let local = candidates.iter().filter(|c| c.addr.port() == 7).count();
    assert!(local >= 1, "the name is found");
    assert_eq!(candidates[0].addr, addr("192.0.2.1:2268"));
    let hints: Vec<_> = candidates
        .iter()
        .filter(|c| c.origin == Origin::Hint)
        .collect();
    assert_eq!(hints[0].addr, addr("192.0.2.20:2268"));
    assert_eq!(hints.len(), 2);
    assert!(origins.is_sorted(), "{origins:?}");
    let anycast: Vec<_> = candidates.iter().filter(|c| c.discover).collect();
    assert_eq!(anycast.len(), 2);
    finder.set_hints(&[]);
    assert!(finder.candidates().iter().all(|c| c.origin != Origin::Hint));
}

#[tokio::test]
async fn a_source_is_looked_up_once_and_may_forbid_anycast() {
    // No server answers there; the answers are put in by hand.
    let nowhere = discovery::Config {
        nameservers: vec![addr("127.0.0.1:9")],
        timeout: Duration::from_millis(20),
    };
    let mut finder = Finder::new(Vec::new(), Some(nowhere), true, PAUSE, 1);
    let source: IpAddr = "192.0.2.10".parse().unwrap();
    assert!(finder.wants(source));
    assert!(!finder.wants(source));
    finder.resolved().await;
    assert!(matches!(finder.status()[0].lookup, Lookup::Failed(_)));
    assert_eq!(finder.candidates().len(), 2, "anycast is what is left");
    let relays = |refused, candidates: &[&str]| Relays {
        candidates: candidates
            .iter()
            .map(|at| Candidate {
                addr: addr(at),
                discover: true,
                origin: Origin::Dns,
            })
            .collect(),
        refused,
        names: BTreeMap::new(),
        unresolved: Vec::new(),
        valid_until: Instant::now(),
    };
    let in_dns = ["192.0.2.9:2268", "192.0.2.3:2268"];
    finder.store_dns_relays(source, Ok(relays(false, &in_dns)));
    let candidates = finder.candidates();
    assert_eq!(candidates[0].addr, addr(in_dns[0]), "the order of the DNS");
    assert!(candidates[0].discover && candidates[0].origin == Origin::Dns);
    assert_eq!(candidates.len(), 4);
    finder.store_dns_relays(source, Ok(relays(true, &[])));
    assert_eq!(finder.candidates(), []);
}

#[tokio::test]
async fn a_failed_lookup_has_a_reason_and_is_repeated() {
    let mut finder = Finder::new(
        vec!["relay.invalid".parse().unwrap()],
        None,
        false,
        PAUSE,
        1,
    );
    finder.resolve(false);
    finder.resolved().await;
    assert!(matches!(finder.status()[0].lookup, Lookup::Failed(_)));
    assert!(finder.candidates().is_empty());
    let now = Instant::now();
    finder.needs_more(now);
    let first = finder.poll_timeout().unwrap();
    assert_eq!(first - now, PAUSE);
    finder.handle_timeout(first);
    assert_eq!(finder.status()[0].lookup, Lookup::UnderWay);
    finder.needs_more(first);
    assert_eq!(finder.poll_timeout(), None, "it is being looked up");
    finder.resolved().await;
    finder.needs_more(first);
    assert_eq!(finder.poll_timeout().unwrap() - first, PAUSE * 2);
    finder.settled();
    assert_eq!(finder.poll_timeout(), None);
}

#[tokio::test]
async fn an_expired_answer_without_relays_is_repeated() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let dns = discovery::Config {
        nameservers: vec![silent.local_addr().unwrap()],
        timeout: Duration::from_secs(20),
    };
    let mut finder = Finder::new(Vec::new(), Some(dns), false, Duration::ZERO, 1);
    let source: IpAddr = "192.0.2.10".parse().unwrap();
    finder.wants(source);
    finder.lookups.abort_all();
    finder.resolved().await;
    let now = Instant::now();
    let valid_until = now + Duration::from_millis(50);
    let none = Relays {
        candidates: Vec::new(),
        refused: false,
        names: BTreeMap::new(),
        unresolved: Vec::new(),
        valid_until,
    };
    finder.store_dns_relays(source, Ok(none));
    finder.needs_more(now);
    assert_eq!(finder.poll_timeout(), Some(valid_until));
    tokio::time::sleep_until(valid_until.into()).await;
    finder.handle_timeout(Instant::now());
    assert!(finder.is_busy());
}

#[tokio::test]
async fn nothing_is_looked_up_twice_at_once() {
    let relays = vec![RelayName::new("localhost", 7).unwrap()];
    let mut finder = Finder::new(relays, None, false, PAUSE, 1);
    finder.resolve(false);
    finder.resolved().await;
    for _ in 0..20 {
        finder.network_changed();
    }
    assert_eq!(finder.lookups.len(), 1);
    assert!(matches!(finder.status()[0].lookup, Lookup::Found(_)));
}

#[tokio::test]
async fn sources_beyond_the_bound_are_deferred() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let dns = discovery::Config {
        nameservers: vec![silent.local_addr().unwrap()],
        timeout: Duration::from_secs(20),
    };
    let mut finder = Finder::new(Vec::new(), Some(dns), true, PAUSE, 1);
    let source = |n: u8| IpAddr::from([192, 0, 2, n]);
    for n in 0..18 {
        assert_eq!(finder.wants(source(n)), n < 16);
    }
    let is_deferred = |finder: &Finder| {
        let status = finder.status();
        let all = status.iter();
        all.filter(|s| matches!(&s.lookup, Lookup::Failed(why) if why.contains("16 sources")))
            .count()
    };
    assert_eq!((finder.status().len(), is_deferred(&finder)), (18, 2));
    // Two flows share one source.
    finder.wants(source(3));
    assert!(!finder.forgets(source(3)));
    assert_eq!(is_deferred(&finder), 2);
    let refused = Relays {
        candidates: Vec::new(),
        refused: true,
        names: BTreeMap::new(),
        unresolved: Vec::new(),
        valid_until: Instant::now(),
    };
    finder.store_dns_relays(source(3), Ok(refused));
    assert_eq!(finder.candidates(), []);
    assert!(finder.forgets(source(3)));
    assert_eq!(
        finder.candidates().len(),
        2,
        "the other sources allow anycast"
    );
    assert_eq!((finder.status().len(), is_deferred(&finder)), (17, 1));
}

#[tokio::test]
async fn the_other_family_of_a_name_is_known() {
    let nowhere = discovery::Config {
        nameservers: vec![addr("127.0.0.1:9")],
        timeout: Duration::from_millis(20),
    };
    let mut finder = Finder::new(Vec::new(), Some(nowhere), true, PAUSE, 1);
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let name = RelayName::new("relay.invalid", 7).unwrap();
    let found = ["192.0.2.1:7", "192.0.2.2:7", "[2001:db8::1]:7"].map(addr);
    finder.know(name, found.into());
    let source = ip("10.0.0.1");
    finder.wants(source);
    let in_dns = vec![ip("192.0.2.9"), ip("2001:db8::9"), ip("2001:db8::8")];
    let relays = Relays {
        candidates: Vec::new(),
        refused: false,
        names: [("other.invalid.".to_owned(), in_dns)].into(),
        unresolved: Vec::new(),
        valid_until: Instant::now(),
    };
    finder.store_dns_relays(source, Ok(relays));
    for (one, others) in [
        ("192.0.2.1", &["2001:db8::1"][..]),
        ("2001:db8::1", &["192.0.2.1", "192.0.2.2"]),
        ("::ffff:192.0.2.9", &["2001:db8::9", "2001:db8::8"]),
        ("2001:db8::9", &["192.0.2.9"]),
        ("192.52.193.1", &["2001:3::1"]),
        ("192.0.2.3", &[]),
    ] {
        let others: Vec<_> = others.iter().map(|other| ip(other)).collect();
        assert_eq!(finder.other_family(ip(one)), others, "{one}");
    }
}
