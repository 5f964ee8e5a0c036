//! The program and its relays: ones that deliver nothing, ones that belong to a source, and ones
//! that return its own packets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use amt::report::RecordKind;
use kit::dns::{AMTRELAY, Answer, LOCAL_RESOLVER, NameServer, Question, relay_at};

use crate::lab::{PATIENCE, Relay, RelayEvent, end, gateway, program};

/// The query interval is far longer than this test waits.
#[test]
fn silence_makes_another_relay_take_over() {
    let (first, second) = (Relay::new(), Relay::new());
    let more = [
        "--relay",
        &second.addr.to_string(),
        "--flow",
        "239.77.1.9:45110",
    ];
    let _gateway = gateway(&first, &more);
    let RelayEvent::Wants(to, _) = first.next_event() else {
        panic!("no Update came first");
    };
    first.send(to, "10.0.0.1:4000", "239.77.1.9:45110", b"the last one");
    first.is_asked();
    let RelayEvent::Wants(_, wants) = second.next_event() else {
        panic!("no Update came to the other relay");
    };
    assert_eq!(wants, [(RecordKind::IsEx, " 239.77.1.9".to_owned())]);
}

/// The relay does not send a single packet.
#[test]
fn a_relay_without_packets_is_replaced() {
    let (deaf, other) = (Relay::new(), Relay::new());
    let at = other.addr.to_string();
    let gateway = gateway(&deaf, &["--relay", &at, "--flow", "239.77.1.8:45111"]);
    // Answers all requests; the other relay answers nothing before this one was chosen.
    let (sender, chosen) = std::sync::mpsc::sync_channel(1);
    let deaf = std::thread::spawn(move || {
        while let RelayEvent::Wants(..) = deaf.next_event() {
            // Once is enough.
            let _ = sender.try_send(());
        }
    });
    chosen.recv_timeout(PATIENCE).expect("no Update came");
    let RelayEvent::Wants(_, wants) = other.next_event() else {
        panic!("no Update came to the other relay");
    };
    assert_eq!(wants, [(RecordKind::IsEx, " 239.77.1.8".to_owned())]);
    let (code, log) = end(gateway);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("it answers, but brings no packets"), "{log}");
    deaf.join().unwrap();
}

#[test]
fn own_packets_do_not_loop() {
    let relay = Relay::new();
    let group = "239.77.1.7:25112";
    let read = UdpSocket::bind(group).unwrap();
    read.join_multicast_v4(&Ipv4Addr::new(239, 77, 1, 7), &Ipv4Addr::LOCALHOST)
        .unwrap();
    read.set_read_timeout(Some(PATIENCE)).unwrap();
    let gateway = gateway(&relay, &["--flow", group]);
    let RelayEvent::Wants(to, _) = relay.next_event() else {
        panic!("no Update came first");
    };
    let mut buffer = [0; 100];
    relay.send(to, "10.0.0.1:4000", group, b"one");
    let (len, from) = read.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"one");
    // The relay receives it on the loopback interface.
    relay.send(to, &from.to_string(), group, b"one");
    relay.send(to, "10.0.0.1:4000", group, b"two");
    let (len, _) = read.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"two");
    let (code, log) = end(gateway);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("come back from the relay"), "{log}");
    assert!(
        log.contains("2 sent on") && log.contains("1 dropped (own)"),
        "{log}"
    );
}

#[test]
fn the_pages_show_the_status() {
    let relay = Relay::new();
    let more = ["--flow", "239.77.1.5:45115", "--http", "127.0.0.1:0"];
    let mut gateway = gateway(&relay, &more);
    let mut log = BufReader::new(gateway.0.stderr.take().unwrap()).lines();
    let mut lines = log.by_ref().map(Result::unwrap);
    let line = lines.find(|line| line.contains("http://")).unwrap();
    let address = line.split('/').nth(2).unwrap();
    let page = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(page("/healthz").ends_with("alive\n"));
    let before = page("/readyz");
    assert!(
        before.contains(" 503 ") && before.contains("1 of 1 tunnels"),
        "{before}"
    );
    let RelayEvent::Wants(to, _) = relay.next_event() else {
        panic!("no Update came first");
    };
    relay.send(to, "10.0.0.1:4000", "239.77.1.5:45115", b"four");
    let begun = Instant::now();
    let mut text = String::new();
    while !text.contains("\nflexfeed_gateway_sent_packets_total 1\n") {
        assert!(begun.elapsed() < PATIENCE, "{text}");
        text = page("/metrics");
    }
    for line in [
        "flexfeed_gateway_connected_tunnels 1",
        "flexfeed_gateway_flows 1",
        "flexfeed_gateway_received_bytes_total 4",
        "flexfeed_gateway_dropped_packets_total{reason=\"malformed\"} 0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
    }
    assert!(
        text.contains("\r\ncontent-type: text/plain; version=0.0.4;"),
        "{text}"
    );
    assert!(page("/readyz").contains(" 200 "));
    let mut second = program(&[
        "--relay",
        "127.0.0.1:9",
        "--flow",
        "239.77.1.5:1",
        "--http",
        address,
    ]);
    let mut said = String::new();
    second
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(second.0.wait().unwrap().code(), Some(1));
    assert!(said.contains("--http"), "{said}");
}

/// A relay of Linux serves one port of each address until the tunnel there expires.
#[test]
fn a_killed_gateway_restarts_on_its_port() {
    let relay = Relay::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tunnels.json");
    let file = file.to_str().unwrap();
    // Outside the range of ports that the kernel chooses.
    let port = (20_000..30_000)
        .find_map(|port: u16| UdpSocket::bind(("0.0.0.0", port)).ok())
        .map(|free| free.local_addr().unwrap().port())
        .unwrap();
    let flow = ["--flow", "239.77.1.4:45116", "--state-file", file];
    let chosen = port.to_string();
    let mut first = gateway(&relay, &[&flow[..], &["--local-port", &chosen]].concat());
    let RelayEvent::Wants(from, _) = relay.next_event() else {
        panic!("no Update came first");
    };
    assert_eq!(from.port(), port);
    let begun = Instant::now();
    while !std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"gateway\"")) {
        assert!(begun.elapsed() < PATIENCE, "the state file is empty");
        std::thread::yield_now();
    }
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    // Updates of the first are still in transit; then the relay is queried again.
    let second = gateway(&relay, &flow);
    relay.is_asked();
    let RelayEvent::Wants(from, _) = relay.next_event() else {
        panic!("the tunnel in use was taken down");
    };
    assert_eq!(from.port(), port);
    let (code, log) = end(second);
    assert_eq!(code, Some(0), "{log}");
    while let RelayEvent::Wants(..) = relay.next_event() {}
    let kept = std::fs::read_to_string(file).unwrap();
    assert!(
        kept.contains(&chosen) && !kept.contains("\"gateway\""),
        "{kept}"
    );

    // The port is in use.
    let _taken = UdpSocket::bind(("0.0.0.0", port)).unwrap();
    let third = gateway(&relay, &flow);
    relay.is_asked();
    let RelayEvent::Wants(from, _) = relay.next_event() else {
        panic!("nothing was left to take down");
    };
    assert_ne!(from.port(), port);
    let (_, log) = end(third);
    assert!(log.contains("not free") && log.contains(&chosen), "{log}");
}

#[test]
fn a_silent_name_server_does_not_delay_the_exit() {
    if !kit::in_namespace!(LOCAL_RESOLVER) {
        return;
    }
    let silent = UdpSocket::bind("127.0.0.1:53").unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let gateway = program(&["--relay", "relay.example", "--flow", "239.77.1.6:45113"]);
    // The name resolution is in progress.
    silent.recv_from(&mut [0; 600]).unwrap();
    let asked = Instant::now();
    let (code, log) = end(gateway);
    assert_eq!(code, Some(0), "{log}");
    // The name resolution alone takes half a minute.
    assert!(
        asked.elapsed() < Duration::from_secs(28),
        "{:?}",
        asked.elapsed()
    );
}

/// Answers queries for AMTRELAY records: `1.0.0.10.in-addr.arpa` has the relay 127.0.1.1,
/// `2.0.0.10.in-addr.arpa` 127.0.1.2. Other names do not exist.
fn relay_of(question: &Question) -> Answer {
    let first = question.name.as_bytes()[0];
    let relay = IpAddr::from([127, 0, 1, first.wrapping_sub(b'0')]);
    let has_relay = question.kind == AMTRELAY;
    Answer::records(has_relay.then(|| relay_at(1, relay)).into_iter().collect())
}

#[test]
fn each_source_with_its_own_relays_has_a_gateway() {
    if !kit::in_namespace!(LOCAL_RESOLVER) {
        return;
    }
    let _server = NameServer::answering("127.0.0.1:53", relay_of);
    let relays = [1, 2].map(|n| (n, Relay::at(&format!("127.0.1.{n}:2268"))));
    let flows = [
        "--dns",
        "--flow",
        "10.0.0.1@232.77.1.1:45114",
        "--flow",
        "10.0.0.2@232.77.1.2:45114",
    ];
    let _gateway = program(&flows);
    // At the same time: each relay answers while the other one waits.
    let heard = relays.map(|(n, relay)| {
        std::thread::spawn(move || {
            let RelayEvent::Wants(from, wants) = relay.next_event() else {
                panic!("relay {n} was left");
            };
            let expected = format!("10.0.0.{n} 232.77.1.{n}");
            assert_eq!(wants, [(RecordKind::IsIn, expected)]);
            from
        })
    });
    let from: Vec<SocketAddr> = heard.into_iter().map(|h| h.join().unwrap()).collect();
    assert_ne!(from[0], from[1], "two tunnels");
}
