//! The engine's handle without a thread that responds, and the formation of trains.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use amt::Message;
use amt::relay::LocalEndpoint;
use amt::report::{Record, RecordKind, write_report};

use super::dispatch::Dispatcher;
use super::*;

const GROUP: &str = "232.1.1.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an engine whose thread never begins a turn.
fn stuck() -> (Engine, std::sync::mpsc::Receiver<oneshot::Sender<View>>) {
    let (views, waiting) = sync_channel(VIEWS);
    let engine = Engine {
        views,
        controls: Arc::default(),
        waker: Poller::new().unwrap().waker(),
        counters: Arc::default(),
        thread: std::sync::Mutex::new(None),
        ended: tokio::sync::watch::channel(false).1,
    };
    (engine, waiting)
}

#[tokio::test]
async fn controls_reach_a_thread_under_many_requests() {
    let (engine, waiting) = stuck();
    for _ in 0..VIEWS {
        let (answer, _) = oneshot::channel();
        engine.views.try_send(answer).unwrap();
    }
    assert!(engine.view().await.is_none());
    engine.drain();
    engine.stop();
    assert!(engine.controls.drain.load(Ordering::Acquire));
    assert!(engine.controls.stop.load(Ordering::Acquire));
    drop(waiting);
}

#[tokio::test]
async fn a_thread_is_alive_if_it_turns() {
    let (engine, _waiting) = stuck();
    assert!(!engine.is_alive(Duration::from_millis(20)).await);
    let controls = Arc::clone(&engine.controls);
    let turning = std::thread::spawn(move || {
        while !controls.stop.load(Ordering::Acquire) {
            controls.turns.fetch_add(1, Ordering::Release);
            std::thread::yield_now();
        }
    });
    assert!(engine.is_alive(Duration::from_secs(20)).await);
    engine.stop();
    turning.join().unwrap();
}

/// After the whole process stalled for longer than the limit, the thread first gets a chance to
/// begin a turn.
#[tokio::test]
async fn a_stalled_process_does_not_count_as_a_stuck_thread() {
    let looks = std::cell::Cell::new(0);
    let turned = || {
        looks.set(looks.get() + 1);
        if looks.get() == 2 {
            // The process stalls.
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(Duration::from_millis(100));
        }
        looks.get() > 3
    };
    assert!(comes(Duration::from_millis(50), turned, || false).await);
}

/// Pushes packets from some sources, one by one, as from a capture.
fn push(dispatcher: &mut Dispatcher<'_>, sources: &[&str]) {
    for source in sources {
        dispatcher.push(ip(source), ip(GROUP), 100, |place| {
            place[..100].fill(7);
            100
        });
    }
    dispatcher.flush();
}

#[test]
fn alternating_flows_still_form_trains() {
    let port = UdpPort::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gateway = UdpPort::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let now = Instant::now();
    let mut relay = Relay::new(amt::relay::Config::default(), [1; 32], now);
    let local = LocalEndpoint {
        ip: ip("127.0.0.1"),
        socket: 0,
    };
    let from = gateway.local_addr();
    let mut answer = Vec::new();
    let mut send = |relay: &mut Relay, message: &Message<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        relay.handle(from, local, &bytes, now, &mut answer);
        match Message::parse(&answer) {
            Ok(Message::Query { mac, .. }) => Some(mac),
            _ => None,
        }
    };
    let (nonce, mld) = (1, false);
    let mac = send(&mut relay, &Message::Request { nonce, mld }).unwrap();
    let wanted = Record {
        kind: RecordKind::IsIn,
        group: ip(GROUP),
        sources: vec![ip("192.0.2.1"), ip("192.0.2.2")],
    };
    write_report(mld, &[wanted], 1400, |packet| {
        send(&mut relay, &Message::Update { mac, nonce, packet });
    });
    let counters = Arc::new(Counters::default());
    let mut forwarder = Forwarder::new(vec![port], Arc::clone(&counters));
    let mut dispatcher = Dispatcher {
        relay: &mut relay,
        forwarder: &mut forwarder,
        trains: &mut Trains::new(),
        counters: &counters,
        now,
    };
    let (one, two, unwanted) = ("192.0.2.1", "192.0.2.2", "192.0.2.3");
    push(
        &mut dispatcher,
        &[one, unwanted, one, two, unwanted, one, two],
    );
    assert_eq!(counters.unwanted.get(), 2);
    assert_eq!(counters.sent_packets.get(), 5);
    // A train arrives as one message of the kernel.
    let mut trains = Vec::new();
    Inbox::new(8)
        .receive(&gateway, 8, |message| {
            trains.push(message.datagrams().count());
        })
        .unwrap();
    assert_eq!(trains, [3, 2]);
}
