//! The driver against a scripted relay on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod runs;
mod search;

use std::net::SocketAddr;
use std::time::Duration;

use amt::gateway::{Event, RelayFailure, Subscription};
use amt::ip::{Udp, write_udp};
use amt::report::{GeneralQuery, write_query};
use amt::{Mac, Message};
use netio::RecvBatch;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::{Config, Gateway, Hint, Prober, RelayName, probe};

/// Longer than a lookup with silent name servers: some systems ask two of them twice, for 5 s each.
const PATIENCE: Duration = Duration::from_secs(60);

/// Held by tests with probers: two relays may share the usual port of those that ask them.
static PROBERS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Messages received by the relay.
#[derive(Debug, PartialEq)]
enum RelayEvent {
    Request,
    Update(SocketAddr),
    Teardown,
}

/// A relay that answers Requests on its own port and passes on the messages that it receives.
struct Relay {
    name: RelayName,
    addr: SocketAddr,
    socket: std::sync::Arc<UdpSocket>,
    heard: mpsc::Receiver<RelayEvent>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a Query.
fn answer(mld: bool, nonce: u32, limited: bool, gateway: Option<SocketAddr>) -> Vec<u8> {
    let (mut packet, mut out) = (Vec::new(), Vec::new());
    let us = if mld { "fe80::1" } else { "192.0.2.1" };
    let general = GeneralQuery::DEFAULT;
    write_query(mld, us.parse().unwrap(), &general, &mut packet);
    Message::Query {
        limited,
        mac: Mac([1; 6]),
        nonce,
        packet: &packet,
        gateway,
    }
    .encode(&mut out);
    out
}

async fn relay(at: &str, limited: bool) -> Relay {
    let socket = std::sync::Arc::new(UdpSocket::bind(at).await.unwrap());
    let (tell, heard) = mpsc::channel(4096);
    let addr = socket.local_addr().unwrap();
    let own = socket.clone();
    let task = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = own.recv_from(&mut buffer).await {
            let answer = match Message::parse(&buffer[..len]).unwrap() {
                Message::Request { nonce, mld } => {
                    let out = answer(mld, nonce, limited, Some(from));
                    own.send_to(&out, from).await.unwrap();
                    RelayEvent::Request
                }
                Message::Update { .. } => RelayEvent::Update(from),
                Message::Teardown { gateway, .. } => {
                    // An earlier message, where the socket was replaced.
                    assert_eq!(gateway.ip(), from.ip());
                    RelayEvent::Teardown
                }
                other => panic!("a relay got {other:?}"),
            };
            tell.try_send(answer).unwrap();
        }
    });
    Relay {
        name: RelayName::Address(addr),
        addr,
        socket,
        heard,
        task,
    }
}

impl Relay {
    async fn next_event(&mut self) -> RelayEvent {
        tokio::time::timeout(PATIENCE, self.heard.recv())
            .await
            .expect("nothing came")
            .unwrap()
    }

    async fn update(&mut self) -> SocketAddr {
        loop {
            if let RelayEvent::Update(from) = self.next_event().await {
                return from;
            }
        }
    }

    async fn send(&self, to: SocketAddr, source: &str, group: &str, payload: &[u8]) {
        let (mut packet, mut out) = (Vec::new(), Vec::new());
        let udp = Udp {
            from: source.parse().unwrap(),
            to: group.parse().unwrap(),
            ttl: 9,
            payload,
        };
        assert!(write_udp(&udp, 0, &mut packet));
        Message::Data { packet: &packet }.encode(&mut out);
        self.socket.send_to(&out, to).await.unwrap();
    }
}

fn flow() -> Subscription {
    Subscription {
        source: Some("10.0.0.1".parse().unwrap()),
        group: "232.1.1.1".parse().unwrap(),
        port: 5000,
    }
}

fn gateway(relays: &[&Relay]) -> Gateway {
    let config = Config {
        relays: relays.iter().map(|r| r.name.clone()).collect(),
        dns: None,
        ..Config::default()
    };
    Gateway::start(config).unwrap()
}

/// Runs the gateway until it has an event.
async fn event(gateway: &mut Gateway) -> Event {
    let mut batch = RecvBatch::new();
    let next = async {
        loop {
            if let Some(event) = gateway.poll_event() {
                return event;
            }
            gateway.recv(&mut batch, |_| {}).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, next)
        .await
        .expect("no event")
}

/// Runs the gateway until packets arrive.
async fn packets(gateway: &mut Gateway, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut batch = RecvBatch::new();
    let mut all = Vec::new();
    let next = async {
        while all.len() < count {
            let each = |p: crate::Packet<'_>| all.push((p.from, p.data.to_vec()));
            gateway.recv(&mut batch, each).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, next)
        .await
        .expect("no packets");
    all
}

#[tokio::test]
async fn packets_come_out_over_both_families_outside() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let mut relay = relay(at, false).await;
        let mut gateway = gateway(&[&relay]);
        let id = gateway.subscribe(flow()).unwrap();
        let connected = event(&mut gateway).await;
        assert!(matches!(connected, Event::Connected { relay: at, .. } if at == relay.addr));
        let to = relay.update().await;
        for n in 0..100_u8 {
            relay
                .send(to, "10.0.0.1:4000", "232.1.1.1:5000", &[n; 700])
                .await;
            relay
                .send(to, "10.0.0.2:4000", "232.1.1.1:5000", b"another source")
                .await;
        }
        let all = packets(&mut gateway, 100).await;
        for (n, (from, bytes)) in all.iter().enumerate() {
            assert_eq!(from.to_string(), "10.0.0.1:4000");
            assert_eq!(*bytes, [n as u8; 700]);
        }
        let status = gateway.status();
        assert_eq!(status.relay.unwrap().gateway, Some(to));
        assert_eq!(status.counters.data, 100);
        gateway.unsubscribe(id);
        assert!(matches!(event(&mut gateway).await, Event::Idle { .. }));
        assert!(gateway.status().relay.is_none());
    }
}

#[tokio::test]
async fn a_stop_and_a_drop_leave_the_relay() {
    for stop in [true, false] {
        let mut relay = relay("127.0.0.1:0", false).await;
        let mut gateway = gateway(&[&relay]);
        gateway.subscribe(flow()).unwrap();
        event(&mut gateway).await;
        relay.update().await;
        match stop {
            true => gateway.stop().await,
            false => drop(gateway),
        }
        while relay.next_event().await != RelayEvent::Teardown {}
    }
}

#[tokio::test]
async fn a_relay_that_ends_is_replaced_by_one_that_the_source_announces() {
    let mut first = relay("127.0.0.1:0", false).await;
    let mut second = relay("[::1]:0", false).await;
    let mut gateway = gateway(&[&first]);
    gateway.subscribe(flow()).unwrap();
    event(&mut gateway).await;
    first.update().await;
    gateway.set_hints(&[Hint {
        host: second.addr.ip().to_string(),
        port: second.addr.port(),
        priority: 0,
    }]);
    first.task.abort();
    gateway.suspect();
    let why = RelayFailure::Timeout;
    let relay = first.addr;
    assert_eq!(event(&mut gateway).await, Event::Lost { relay, why });
    let connected = event(&mut gateway).await;
    assert!(matches!(connected, Event::Connected { relay, .. } if relay == second.addr));
    let to = second.update().await;
    second
        .send(to, "10.0.0.1:4000", "232.1.1.1:5000", b"on")
        .await;
    assert_eq!(packets(&mut gateway, 1).await[0].1, b"on");
}

#[tokio::test]
async fn a_name_is_looked_up_without_waiting_for_it() {
    let mut relay = relay("127.0.0.1:0", false).await;
    let port = relay.addr.port();
    let config = Config {
        relays: vec![
            "relay.invalid".parse().unwrap(),
            RelayName::new("localhost", port).unwrap(),
        ],
        dns: None,
        ..Config::default()
    };
    let mut gateway = Gateway::start(config).unwrap();
    gateway.subscribe(flow()).unwrap();
    let first = event(&mut gateway).await;
    assert!(
        matches!(first, Event::Connected { relay: at, .. } if at == relay.addr),
        "that there is none is not said before all names were looked up: {first}"
    );
    relay.update().await;
    assert_eq!(gateway.status().names.len(), 2);
}

#[tokio::test]
async fn hints_after_the_subscription_are_used() {
    let relay = relay("127.0.0.1:0", false).await;
    let mut gateway = gateway(&[]);
    gateway.subscribe(flow()).unwrap();
    gateway.set_hints(&[Hint {
        host: "127.0.0.1".to_owned(),
        port: relay.addr.port(),
        priority: 3,
    }]);
    let first = event(&mut gateway).await;
    assert!(matches!(first, Event::Connected { .. }), "{first}");
}

#[tokio::test]
async fn a_wait_that_is_cancelled_loses_nothing() {
    let mut relay = relay("127.0.0.1:0", false).await;
    let mut gateway = gateway(&[&relay]);
    gateway.subscribe(flow()).unwrap();
    event(&mut gateway).await;
    let to = relay.update().await;
    let mut batch = RecvBatch::new();
    let mut got = 0;
    for _ in 0..200 {
        relay
            .send(to, "10.0.0.1:4000", "232.1.1.1:5000", b"packet")
            .await;
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            n = gateway.recv(&mut batch, |_| {}) => got += n.unwrap(),
        }
    }
    while got < 200 {
        let more = gateway.recv(&mut batch, |_| {});
        got += tokio::time::timeout(PATIENCE, more)
            .await
            .expect("lost")
            .unwrap();
    }
    assert_eq!(got, 200);
}

/// The protection works, and the fault takes it off.
#[tokio::test]
async fn packets_of_strangers_are_dropped() {
    for source_check_off in [false, true] {
        let mut first = relay("127.0.0.1:0", false).await;
        let stranger = relay("127.0.0.1:0", false).await;
        let config = Config {
            relays: vec![first.name.clone()],
            dns: None,
            ..Config::default()
        };
        let mut gateway = Gateway::start(config).unwrap();
        gateway.inject_faults(crate::Faults {
            source_check_off,
            ..Default::default()
        });
        gateway.subscribe(flow()).unwrap();
        event(&mut gateway).await;
        let to = first.update().await;
        stranger
            .send(to, "10.0.0.1:4000", "232.1.1.1:5000", b"forged")
            .await;
        first
            .send(to, "10.0.0.1:4000", "232.1.1.1:5000", b"good")
            .await;
        let count = if source_check_off { 2 } else { 1 };
        let got = packets(&mut gateway, count).await;
        let forged = got.iter().any(|(_, bytes)| bytes == b"forged");
        assert_eq!(forged, source_check_off);
    }
}

#[tokio::test]
async fn a_gateway_without_subscriptions_sleeps() {
    let mut relay = relay("127.0.0.1:0", false).await;
    let mut gateway = gateway(&[&relay]);
    let ready = tokio::time::timeout(Duration::from_millis(100), gateway.ready()).await;
    assert!(ready.is_err(), "there is nothing to do");
    assert!(relay.heard.try_recv().is_err());
}

#[tokio::test]
async fn a_probe_reports_whether_a_relay_answers() {
    let _alone = PROBERS.lock().await;
    for limited in [false, true] {
        let relay = relay("127.0.0.1:0", limited).await;
        let answer = probe(&relay.name, false, PATIENCE).await.unwrap();
        assert_eq!(answer.relay, relay.addr);
        assert_eq!(answer.limited, limited);
        assert!(answer.seen_at.is_some());
    }
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let name = RelayName::Address(silent.local_addr().unwrap());
    let error = probe(&name, false, Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
    let name: RelayName = "relay.invalid".parse().unwrap();
    let error = probe(&name, false, PATIENCE).await.unwrap_err();
    assert!(error.to_string().contains("was not found"), "{error}");
}

/// A Linux relay sends the packets of an address to the port that asked first.
#[tokio::test]
async fn a_prober_asks_from_the_same_port_again() {
    let _alone = PROBERS.lock().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let name = RelayName::Address(socket.local_addr().unwrap());
    let relay = tokio::spawn(async move {
        let mut first = None;
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            let to = *first.get_or_insert(from);
            let Ok(Message::Request { nonce, mld }) = Message::parse(&buffer[..len]) else {
                panic!("not a Request");
            };
            let answer = answer(mld, nonce, false, None);
            socket.send_to(&answer, to).await.unwrap();
        }
    });
    // Also in the next run.
    for run in 0..2 {
        let mut prober = Prober::new(name.clone(), false);
        for round in 0..3 {
            let answer = prober.ask(PATIENCE).await;
            assert!(answer.is_ok(), "run {run}, round {round}: {answer:?}");
        }
    }
    relay.abort();
}

/// A Linux relay drops a Request with the P flag at the RFC's position.
#[tokio::test]
async fn a_prober_finds_where_a_relay_reads_p_and_remembers() {
    let _alone = PROBERS.lock().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let name = RelayName::Address(socket.local_addr().unwrap());
    let (tell, mut flags) = mpsc::channel(64);
    let relay = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            tell.send(buffer[1]).await.unwrap();
            let Ok(Message::Request { nonce, mld: true }) = Message::parse(&buffer[..len]) else {
                panic!("not a Request for MLD");
            };
            if buffer[1] & 0x7f == 0 {
                let answer = answer(true, nonce, false, None);
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    let mut prober = Prober::new(name, true);
    for round in 0..3 {
        let answer = prober.ask(PATIENCE).await;
        assert!(answer.is_ok(), "round {round}: {answer:?}");
    }
    relay.abort();
    let mut sent = Vec::new();
    while let Some(flags) = flags.recv().await {
        sent.push(flags);
    }
    assert_eq!(sent[..2], [0x01, 0x80]);
    assert_eq!(sent[2], 0x80, "it is remembered");
}

/// The relay learns the new port at once, not with the next query.
#[tokio::test]
async fn a_failed_socket_is_replaced() {
    let mut relay = relay("127.0.0.1:0", false).await;
    let mut gateway = gateway(&[&relay]);
    gateway.subscribe(flow()).unwrap();
    event(&mut gateway).await;
    let before = relay.update().await;
    gateway.break_socket(relay.addr);
    let mut other = flow();
    other.port = 5001;
    other.group = "232.1.1.2".parse().unwrap();
    gateway.subscribe(other).unwrap();
    let asked = async {
        while relay.next_event().await != RelayEvent::Request {}
        relay.update().await
    };
    let mut batch = RecvBatch::new();
    let run = async {
        loop {
            gateway.recv(&mut batch, |_| {}).await.unwrap();
        }
    };
    let after = tokio::select! {
        after = asked => after,
        () = run => unreachable!(),
    };
    assert_ne!(after, before);
}
