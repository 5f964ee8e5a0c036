//! Gateways of several flows, against relays that answer and forward nothing.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use amt::report::{GeneralQuery, write_query};
use amt::{Mac, Message};
use amt_tokio::RelayName;
use flexicast::control::Credential;
use flexicast::receiver::ReceiverConfig;
use tokio::net::UdpSocket;

use super::*;

const SOURCE: &str = "10.0.0.1";
const OTHER_SOURCE: &str = "10.0.0.2";

struct Relay {
    addr: SocketAddr,
    answers: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(at: &str) -> Relay {
    let socket = UdpSocket::bind((at, 0)).await.unwrap();
    let addr = socket.local_addr().unwrap();
    let (answers, asked) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let counter = Arc::clone(&asked);
    let is_up = Arc::clone(&answers);
    let task = tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            let Ok(Message::Request { nonce, .. }) = Message::parse(&buffer[..len]) else {
                continue;
            };
            counter.fetch_add(1, Ordering::Relaxed);
            if !is_up.load(Ordering::Relaxed) {
                continue;
            }
            let (mut packet, mut answer) = (Vec::new(), Vec::new());
            write_query(false, addr.ip(), &GeneralQuery::DEFAULT, &mut packet);
            let query = Message::Query {
                limited: false,
                mac: Mac([7; 6]),
                nonce,
                packet: &packet,
                gateway: None,
            };
            query.encode(&mut answer);
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    Relay {
        addr,
        answers,
        asked,
        task,
    }
}

/// Tunnels with the receiver that wants them.
struct Site {
    tunnels: Tunnels,
    core: Core,
    statuses: Vec<RelayStatus>,
}

impl Site {
    fn new(relays: &[&Relay]) -> Site {
        let configured = relays.iter().map(|relay| RelayName::Address(relay.addr));
        let relays = Relays {
            configured: configured.collect(),
            ..Relays::default()
        };
        let credential = Credential::Enrol {
            token: Vec::new(),
            secret: [1; 32],
            instance: [2; 8],
        };
        // It has no flow: reports about tunnels change nothing.
        let receiver = ReceiverConfig::new(uuid::Uuid::from_u128(1), credential, Vec::new());
        Site {
            tunnels: Tunnels::new(Some(relays)),
            core: Core::new(receiver),
            statuses: Vec::new(),
        }
    }

    fn open(&mut self, flow: u8, number: u64, source: &str) -> Result<(), RelayStatus> {
        let endpoint = Endpoint {
            source: Some(source.parse().unwrap()),
            group: SocketAddr::from(([232, 1, 1, flow], 5000)),
        };
        let id = (FlowId([flow; 8]), number);
        let opened = self
            .tunnels
            .open(id, format!("{flow}"), vec![endpoint], Vec::new());
        opened.map(|_| ())
    }

    async fn run(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        loop {
            let ready = tokio::time::timeout_at(end, self.tunnels.ready());
            let is_over = ready.await.is_err();
            self.statuses.extend(self.tunnels.receive(&mut self.core));
            if is_over {
                return;
            }
        }
    }

    fn slot(&self, number: u64, source: &str) -> &GatewaySlot {
        let source = Some(source.parse().unwrap());
        &self.tunnels.slots[&GatewayKey { number, source }]
    }

    /// Runs until the gateway has a relay, and returns its address.
    async fn relay_of(&mut self, number: u64, source: &str) -> IpAddr {
        for _ in 0..1000 {
            if let Some(relay) = self.slot(number, source).relay {
                return relay.ip();
            }
            self.run(Duration::from_millis(20)).await;
        }
        panic!("no relay");
    }
}

#[tokio::test]
async fn a_flow_takes_no_other_flows_second_relay_away() {
    let (first, second) = (relay("127.0.0.2").await, relay("127.0.0.3").await);
    let mut site = Site::new(&[&first, &second]);
    // On a slow machine, it might answer earlier than the first one.
    second.answers.store(false, Ordering::Relaxed);
    site.open(1, 0, SOURCE).unwrap();
    assert_eq!(site.relay_of(0, SOURCE).await, first.addr.ip());
    second.answers.store(true, Ordering::Relaxed);
    site.open(1, 1, SOURCE).unwrap();
    assert_eq!(site.relay_of(1, SOURCE).await, second.addr.ip());
    // Another flow, whose first relay is the second one of the first flow.
    first.answers.store(false, Ordering::Relaxed);
    site.open(2, 0, OTHER_SOURCE).unwrap();
    assert_eq!(site.relay_of(0, OTHER_SOURCE).await, second.addr.ip());
    first.answers.store(true, Ordering::Relaxed);
    let status = site.open(2, 1, SOURCE).unwrap_err();
    assert!(status.text.contains("other leg"), "{}", status.text);
    site.run(Duration::from_millis(500)).await;
    assert_eq!(site.relay_of(1, SOURCE).await, second.addr.ip());
    // It may try again, to the same end.
    assert_eq!(site.tunnels.doubt(FlowId([2; 8]), 1), None);
    assert_eq!(site.relay_of(1, SOURCE).await, second.addr.ip());

    // One whose first tunnel comes to that relay later leaves the gateway that both use.
    site.open(3, 1, SOURCE).unwrap();
    site.open(3, 0, OTHER_SOURCE).unwrap();
    site.statuses.clear();
    site.run(Duration::from_millis(100)).await;
    assert_eq!(site.relay_of(1, SOURCE).await, second.addr.ip());
    let left = site.statuses.iter().map(|s| (&s.channel[..], s.number));
    assert_eq!(left.collect::<Vec<_>>(), [("3", 1)]);
    assert_eq!(site.statuses[0].relay, None);

    // Once the other flow does not need it there, it is in the way no more.
    let _ = site.tunnels.end(FlowId([3; 8]), 0);
    let found = site.tunnels.doubt(FlowId([3; 8]), 1).unwrap();
    assert_eq!(found.relay, Some(second.addr));
}

#[tokio::test]
async fn an_exclusion_ends_with_the_gateway_that_has_the_relay() {
    let (first, second) = (relay("127.0.0.2").await, relay("127.0.0.3").await);
    let mut site = Site::new(&[&first, &second]);
    site.open(1, 0, SOURCE).unwrap();
    site.relay_of(0, SOURCE).await;
    site.open(1, 1, SOURCE).unwrap();
    site.relay_of(1, SOURCE).await;
    assert_eq!(site.slot(0, SOURCE).taken.len(), 1);
    // Beyond this number, gateways without a flow are dropped.
    for n in 0..MAX_PLACES as u8 / 2 {
        site.open(100 + n, 0, &format!("10.0.1.{n}")).unwrap();
    }
    let _ = site.tunnels.end(FlowId([1; 8]), 1);
    assert!(site.tunnels.slots.keys().all(|key| key.number == 0));
    assert_eq!(site.slot(0, SOURCE).taken, BTreeSet::new());
}

#[tokio::test]
async fn a_reopened_second_gateway_leaves_the_first_ones_relay_alone() {
    let only = relay("127.0.0.2").await;
    let mut site = Site::new(&[&only]);
    site.open(1, 0, SOURCE).unwrap();
    site.relay_of(0, SOURCE).await;
    for _ in 0..3 {
        site.open(1, 1, SOURCE).unwrap();
        site.run(Duration::from_millis(200)).await;
        assert_eq!(only.asked.load(Ordering::Relaxed), 1);
        let _ = site.tunnels.end(FlowId([1; 8]), 1);
    }
    assert!(site.statuses.iter().any(|status| status.number == 1));
}

#[tokio::test]
async fn second_gateways_keep_no_first_one_from_being_opened() {
    let mut site = Site::new(&[]);
    let source = |n: usize| format!("10.0.1.{n}");
    for number in [1, 0] {
        for n in 0..MAX_PLACES {
            site.open(n as u8, number, &source(n)).unwrap();
        }
        let refused = site.open(200, number, &source(200)).unwrap_err();
        assert!(refused.text.contains("32 sources"), "{}", refused.text);
        let _ = site.tunnels.end(FlowId([200; 8]), number);
    }
    // One that no flow needs is dropped.
    let _ = site.tunnels.end(FlowId([0; 8]), 0);
    site.open(200, 0, &source(200)).unwrap();
}
