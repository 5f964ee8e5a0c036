//! Load for the relay's data path, in this process over the loopback interface: lossless forwarding
//! rate, cost of a fan-out compared with plain `sendmmsg`, and latency.
//!
//! `cargo run --release -p flexfeed-relay --example load [lossless|fanout|overload|latency]`
// A separate program, whose threads wait for nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amt::report::{Record, RecordKind, write_report};
use amt::{Message, relay::Config};
use flexfeed_relay::engine::{Engine, Receive, Setup};
use netio::direct::{Fanout, Inbox, Target, UdpPort};

const GROUP: &str = "232.1.1.1:4434";
const SOURCE: &str = "127.0.0.1";
const PAYLOAD: usize = 1200;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn relay(receive: Receive) -> (Engine, SocketAddr) {
    let port = UdpPort::bind(at("127.0.0.1:0")).unwrap();
    let address = port.local_addr();
    let engine = Engine::start(Setup {
        relay: Config {
            requests_per_second: 100_000,
            mtu: 9000,
            ..Config::default()
        },
        ports: vec![port],
        receive,
        interface: Some("lo".into()),
    });
    (engine.unwrap(), address)
}

fn gateway(relay: SocketAddr) -> UdpPort {
    UdpPort::from_std(gateway_socket(relay)).unwrap()
}

/// Returns a socket that gets no trains, but each packet by itself.
fn gateway_socket(relay: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |message: &Message<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        socket.send_to(&bytes, relay).unwrap();
    };
    send(&Message::Request {
        nonce: 1,
        mld: false,
    });
    let mut buffer = [0; 2048];
    let len = socket.recv(&mut buffer).unwrap();
    let Message::Query { mac, .. } = Message::parse(&buffer[..len]).unwrap() else {
        panic!();
    };
    let record = Record {
        kind: RecordKind::IsIn,
        group: at(GROUP).ip(),
        sources: vec![SOURCE.parse().unwrap()],
    };
    write_report(false, &[record], 1400, |packet| {
        send(&Message::Update {
            mac,
            nonce: 1,
            packet,
        });
    });
    socket
}

/// Sends at a rate, in trains; returns the number of packets sent.
fn source(rate: u64, train: usize, time: Duration) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let ip: IpAddr = SOURCE.parse().unwrap();
        let sender = netio::MulticastSender::bind(ip, 1, true).unwrap();
        let payload = vec![7; PAYLOAD * train];
        let (begun, mut sent) = (Instant::now(), 0_u64);
        while begun.elapsed() < time {
            let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
            if sent + train as u64 > due {
                thread::yield_now();
                continue;
            }
            sender
                .send(at(GROUP), &payload, Some(PAYLOAD))
                .await
                .unwrap();
            sent += train as u64;
        }
        sent
    })
}

/// Counts the packets of a gateway until `end`.
fn count(port: UdpPort, end: Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let mut inbox = Inbox::new(16);
        let mut poller = netio::direct::Poller::new().unwrap();
        poller.add(&port, 0).unwrap();
        let mut got = 0;
        while !end.load(Ordering::Relaxed) {
            poller.wait(Some(Duration::from_millis(50))).unwrap();
            let _ = inbox.receive(&port, 16, |message| {
                got += message.datagrams().count() as u64
            });
        }
        got
    })
}

fn joined(engine: &Engine, gateways: i64) {
    while engine.counters().gateways.get() < gateways || engine.counters().joins.get() < 1 {
        thread::yield_now();
    }
}

fn lossless(receive: Receive) {
    for train in [1, 10, 40] {
        for rate in [20_000, 40_000, 80_000, 120_000, 200_000, 400_000] {
            let (engine, address) = relay(receive.clone());
            let end = Arc::new(AtomicBool::new(false));
            let gateway = count(gateway(address), Arc::clone(&end));
            joined(&engine, 1);
            let sent = source(rate, train, Duration::from_secs(2));
            thread::sleep(Duration::from_millis(300));
            end.store(true, Ordering::Relaxed);
            let got = gateway.join().unwrap();
            let counters = engine.counters();
            println!(
                "{receive:?} trains of {train:2}, {rate:6}/s: sent {sent} ({:.0}/s) taken {} out \
                 {} got {got} ({:.2} %), overrun {}, refused {}",
                sent as f64 / 2.0,
                counters.native_packets.get(),
                counters.sent_packets.get(),
                got as f64 * 100.0 / sent as f64,
                counters.lost.overrun.get(),
                counters.lost.refused.get(),
            );
            engine.stop();
        }
    }
}

/// Returns the CPU time of the thread.
fn cpu() -> Duration {
    let usage = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let ns = usage.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(ns)
}

fn packets_cpu() -> Duration {
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = entry.unwrap().path();
        if std::fs::read_to_string(path.join("comm")).unwrap().trim() == "packets" {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
            return Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap());
        }
    }
    Duration::ZERO
}

fn fanout() {
    let n = 100;
    // The lower bound: one datagram to each in one sendmmsg. The queues are not read: a datagram
    // costs the same whether its queue is full or not.
    let sinks: Vec<UdpSocket> = (0..n)
        .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
        .collect();
    let targets: Vec<Target> = sinks
        .iter()
        .map(|sink| Target {
            to: sink.local_addr().unwrap(),
            from: None,
        })
        .collect();
    let port = UdpPort::bind(at("127.0.0.1:0")).unwrap();
    let mut fanout = Fanout::new();
    let payload = vec![1; PAYLOAD + 30];
    let rounds = 2000;
    let targets = || targets.iter().copied();
    for _ in 0..rounds {
        fanout.send(&port, &payload, payload.len(), targets(), |_, _| {});
    }
    let begun = cpu();
    for _ in 0..rounds {
        fanout.send(&port, &payload, payload.len(), targets(), |_, _| {});
    }
    let floor = (cpu() - begun).as_nanos() as f64 / f64::from(rounds * n);
    println!("floor: {floor:.0} ns per packet and gateway");
    for train in [1, 4, 16] {
        let (engine, address) = relay(Receive::Ports(vec![4434]));
        let gateways: Vec<UdpSocket> = (0..n).map(|_| gateway_socket(address)).collect();
        joined(&engine, n.into());
        let before = packets_cpu();
        // Slow enough that packets arrive one by one if they are sent so.
        let rate = 500 * train as u64;
        source(rate, train, Duration::from_secs(3));
        thread::sleep(Duration::from_millis(200));
        let used = packets_cpu() - before;
        let out = engine.counters().sent_packets.get();
        let each = used.as_nanos() as f64 / out as f64;
        println!(
            "trains of {train}: {out} packets out, {each:.0} ns each, ratio {:.2}",
            each / floor
        );
        engine.stop();
        drop(gateways);
    }
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1024.0
}

fn overload() {
    let (engine, address) = relay(Receive::Ports(vec![4434]));
    let gateways: Vec<UdpSocket> = (0..50).map(|_| gateway_socket(address)).collect();
    joined(&engine, 50);
    let before = rss_mib();
    let sent = source(2_000_000, 40, Duration::from_secs(10));
    let counters = engine.counters();
    println!(
        "overload: sent {sent}, taken {}, out {}, overrun {}, refused {}; grew by {:.1} MiB",
        counters.native_packets.get(),
        counters.sent_packets.get(),
        counters.lost.overrun.get(),
        counters.lost.refused.get(),
        rss_mib() - before,
    );
    engine.stop();
    drop(gateways);
}

fn latency() {
    let percentile = |mut all: Vec<u64>| {
        all.sort_unstable();
        (all[all.len() / 2], all[all.len() * 99 / 100])
    };
    let rounds = 5000;
    let begun = Instant::now();
    let stamp = Arc::new(AtomicU64::new(0));
    let measure = |receiver: UdpSocket, send: &dyn Fn()| {
        let stamped = Arc::clone(&stamp);
        let receiving = thread::spawn(move || {
            let mut buffer = [0; 2048];
            let mut all = Vec::new();
            for _ in 0..rounds {
                receiver.recv(&mut buffer).unwrap();
                let now = begun.elapsed().as_nanos() as u64;
                all.push(now - stamped.load(Ordering::SeqCst));
            }
            all
        });
        for _ in 0..rounds {
            thread::sleep(Duration::from_micros(300));
            stamp.store(begun.elapsed().as_nanos() as u64, Ordering::SeqCst);
            send();
        }
        percentile(receiving.join().unwrap())
    };
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let payload = [5; PAYLOAD];
    let (p50, p99) = measure(receiver, &|| {
        sender.send_to(&payload, to).unwrap();
    });
    println!("loopback UDP: p50 {} us, p99 {} us", p50 / 1000, p99 / 1000);
    let (engine, address) = relay(Receive::Ports(vec![4434]));
    let receiver = gateway_socket(address);
    joined(&engine, 1);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let multicast = socket2::SockRef::from(&sender);
    multicast
        .set_multicast_if_v4(&"127.0.0.1".parse().unwrap())
        .unwrap();
    let (through, p99) = measure(receiver, &|| {
        sender.send_to(&payload, at(GROUP)).unwrap();
    });
    println!(
        "through the relay: p50 {} us, p99 {} us; added p50 / loopback p50 {:.2}",
        through / 1000,
        p99 / 1000,
        (through as f64 - p50 as f64) / p50 as f64
    );
    engine.stop();
}

fn main() {
    let which = std::env::args().nth(1);
    let wanted = |name: &str| which.as_deref().is_none_or(|which| which == name);
    if wanted("latency") {
        latency();
    }
    if wanted("fanout") {
        fanout();
    }
    if wanted("lossless") {
        lossless(Receive::Ports(vec![4434]));
    }
    if which.as_deref() == Some("capture") {
        lossless(Receive::Capture);
    }
    if wanted("overload") {
        overload();
    }
}
