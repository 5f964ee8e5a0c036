//! Search for relays: names, the DNS, and servers that do not answer.

use std::net::{IpAddr, Ipv4Addr};

use amt::gateway::UsedRelay;
use rand::RngExt;

use super::*;
use crate::{Lookup, discovery};
use kit::dns::{AMTRELAY, Answer, NameServer, relay_at};

fn quickly() -> amt::gateway::Timing {
    amt::gateway::Timing {
        hold_down: Duration::from_millis(20),
        ..Default::default()
    }
}

/// Runs the gateway for one step.
async fn step(gateway: &mut Gateway, batch: &mut RecvBatch) {
    let wait = tokio::time::timeout(PATIENCE, gateway.ready());
    wait.await.expect("it sleeps for ever");
    gateway.receive(batch, |_| {}).unwrap();
}

#[tokio::test]
async fn a_lack_of_relays_is_reported_once_with_the_reason_and_retried() {
    let config = Config {
        relays: vec!["relay.invalid".parse().unwrap()],
        dns: None,
        timing: quickly(),
        ..Config::default()
    };
    let mut gateway = Gateway::start(config).unwrap();
    gateway.subscribe(flow()).unwrap();
    let none = Event::NoRelay {
        candidates: 0,
        retry: None,
    };
    assert_eq!(event(&mut gateway).await, none);
    let failures = gateway.status().failures();
    assert!(failures[0].contains("relay.invalid:2268: "), "{failures:?}");
    assert_eq!(failures.len(), 1);
    let mut batch = RecvBatch::new();
    let mut again = 0;
    let mut under_way = false;
    while again < 4 {
        step(&mut gateway, &mut batch).await;
        let now = gateway.status().names[0].lookup == Lookup::UnderWay;
        if now && !under_way {
            again += 1;
        }
        under_way = now;
    }
    assert_eq!(gateway.poll_event(), None);
}

#[tokio::test]
async fn a_late_name_server_is_asked_until_it_answers() {
    let server = NameServer::start();
    // The standard port, at an address that no other test uses.
    let relay = loop {
        let [.., a, b, c] = rand::rng().random::<[u8; 4]>();
        let ip = Ipv4Addr::new(127, a | 1, b, c);
        if tokio::net::UdpSocket::bind((ip, amt::PORT)).await.is_ok() {
            break relay(&format!("{ip}:{}", amt::PORT), false).await;
        }
    };
    let config = Config {
        dns: Some(discovery::Config {
            nameservers: vec![server.addr],
            timeout: Duration::from_millis(200),
        }),
        timing: quickly(),
        ..Config::default()
    };
    let mut gateway = Gateway::start(config).unwrap();
    gateway.subscribe(flow()).unwrap();
    assert!(matches!(
        event(&mut gateway).await,
        Event::NoRelay { candidates: 0, .. }
    ));
    let mut batch = RecvBatch::new();
    let mut rounds = 0;
    let mut asked = server.asked(AMTRELAY);
    while rounds < 3 {
        step(&mut gateway, &mut batch).await;
        let failed = matches!(gateway.status().names[0].lookup, Lookup::Failed(_));
        if failed && server.asked(AMTRELAY) > asked {
            asked = server.asked(AMTRELAY);
            rounds += 1;
        }
    }
    let records = vec![relay_at(1, relay.addr.ip())];
    server.says("1.0.0.10.in-addr.arpa.", AMTRELAY, Answer::records(records));
    let connected = event(&mut gateway).await;
    assert!(matches!(connected, Event::Connected { relay: at, .. } if at == relay.addr));
}

#[tokio::test]
async fn events_during_a_subscription_wake_the_program() {
    let config = Config {
        dns: None,
        ..Config::default()
    };
    let mut gateway = Gateway::start(config).unwrap();
    gateway.subscribe(flow()).unwrap();
    let ready = tokio::time::timeout(PATIENCE, gateway.ready()).await;
    assert!(ready.is_ok(), "that there is no relay is known");
    assert!(matches!(gateway.poll_event(), Some(Event::NoRelay { .. })));
    let ready = tokio::time::timeout(Duration::from_millis(100), gateway.ready()).await;
    assert!(ready.is_err(), "there is nothing more");
}

#[tokio::test]
async fn relays_of_unsubscribed_sources_are_forgotten() {
    let server = NameServer::start();
    let records = vec![relay_at(1, "192.0.2.77".parse::<IpAddr>().unwrap())];
    server.says("1.0.0.10.in-addr.arpa.", AMTRELAY, Answer::records(records));
    let config = Config {
        dns: Some(discovery::Config {
            nameservers: vec![server.addr],
            timeout: Duration::from_secs(10),
        }),
        ..Config::default()
    };
    let mut gateway = Gateway::start(config).unwrap();
    let mut other = flow();
    other.port = 5001;
    let ids = [flow(), other].map(|flow| gateway.subscribe(flow).unwrap());
    let mut batch = RecvBatch::new();
    while gateway.status().candidates.is_empty() {
        step(&mut gateway, &mut batch).await;
    }
    gateway.unsubscribe(ids[0]);
    // Twice is no more than once.
    gateway.unsubscribe(ids[0]);
    assert_eq!(gateway.status().names.len(), 1, "the other flow wants it");
    gateway.unsubscribe(ids[1]);
    let status = gateway.status();
    assert!(status.names.is_empty() && status.candidates.is_empty());
}

/// A relay's addresses of both families are those of one relay if they have one name.
#[tokio::test]
async fn the_other_address_of_an_excluded_relay_is_left_alone() {
    let (v4, mut v6) = (
        relay("127.0.0.1:0", false).await,
        relay("[::1]:0", false).await,
    );
    let name = RelayName::new("relay.invalid", 2268).unwrap();
    let config = |relays| Config {
        relays,
        dns: None,
        timing: quickly(),
        ..Config::default()
    };
    let ip = v4.addr.ip();
    let taken = UsedRelay {
        relay: ip,
        found_at: ip,
    };
    let mut gateway = Gateway::start(config(vec![name.clone()])).unwrap();
    gateway.know(name, vec![v4.addr, v6.addr]);
    gateway.exclude([taken]);
    gateway.subscribe(flow()).unwrap();
    let none = event(&mut gateway).await;
    assert!(
        matches!(none, Event::NoRelay { candidates: 2, .. }),
        "{none}"
    );
    assert!(v6.heard.try_recv().is_err(), "it was asked");
    gateway.exclude([]);
    let connected = event(&mut gateway).await;
    assert!(matches!(connected, Event::Connected { .. }), "{connected}");
    // Which of the two was the first to answer is chance.
    let relay = gateway.relay().unwrap().relay;
    assert!(gateway.may_share(taken), "{relay}");
    let known: Vec<_> = gateway.relay_with_aliases();
    assert_eq!((known[0].relay, known.len()), (relay, 2));
    assert!(known.iter().any(|known| known.relay == v6.addr.ip()));
    // A first gateway keeps its relay for a further one, whatever it learns of their names.
    gateway.avoid([taken]);
    gateway.know(
        RelayName::new("other.invalid", 2268).unwrap(),
        vec![v4.addr, v6.addr],
    );
    assert_eq!(gateway.relay().map(|own| own.relay), Some(relay));
    assert!(gateway.poll_event().is_none());
    gateway.exclude([taken]);
    let why = RelayFailure::Excluded;
    let lost = event(&mut gateway).await;
    assert!(
        matches!(lost, Event::Lost { why: it, .. } if it == why),
        "{lost}"
    );

    // With names of their own, they are two.
    let relays = vec![v4.name.clone(), v6.name.clone()];
    let mut gateway = Gateway::start(config(relays)).unwrap();
    gateway.exclude([taken]);
    gateway.subscribe(flow()).unwrap();
    let connected = event(&mut gateway).await;
    assert!(matches!(connected, Event::Connected { relay, .. } if relay == v6.addr));
    assert!(!gateway.may_share(taken));
}
