//! The program as others use it: a relay, `flexfeed-gateway`, and a Python program that joins the
//! group on the loopback interface and is unaware of AMT.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use amt::report::RecordKind;

use crate::lab::{PATIENCE, Program, Relay, RelayEvent, end, gateway, lines};

/// Joins a group from any source and prints the received packets, up to a number.
const READER: &str = r#"
import socket, struct, sys
group, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((group, port))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
             socket.inet_aton(group) + socket.inet_aton("127.0.0.1"))
s.settimeout(30)
print("joined", flush=True)
for _ in range(count):
    data, sender = s.recvfrom(65536)
    print(sender[0], data.decode(), flush=True)
"#;

/// The same for an IPv6 group.
const READER6: &str = r#"
import socket, struct, sys
group, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind((group, port))
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP,
             socket.inet_pton(socket.AF_INET6, group)
             + struct.pack("@I", socket.if_nametoindex("lo")))
s.settimeout(30)
print("joined", flush=True)
for _ in range(count):
    data, sender = s.recvfrom(65536)
    print(sender[0], data.decode(), flush=True)
"#;

#[test]
fn a_python_program_receives_the_group() {
    let relay = Relay::new();
    let mut reader = Program(
        Command::new("python3")
            .args(["-c", READER, "232.77.1.1", "25107", "40"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is needed for this test"),
    );
    let read = lines(&mut reader);
    assert_eq!(read.recv_timeout(PATIENCE).unwrap(), "joined");
    let flow = [
        "--source",
        "10.0.0.1",
        "--group",
        "232.77.1.1",
        "--port",
        "25107",
    ];
    let gateway = gateway(&relay, &flow);
    let RelayEvent::Wants(to, wants) = relay.next_event() else {
        panic!("no Update came first");
    };
    let expected = (RecordKind::IsIn, "10.0.0.1 232.77.1.1".to_owned());
    assert_eq!(wants, [expected]);
    for n in 0..40 {
        relay.send(to, "10.0.0.2:4000", "232.77.1.1:25107", b"another source's");
        // Lengths that make trains, and ends of trains.
        let text = format!("{n}-{}", "x".repeat(if n % 7 == 6 { 300 } else { 700 }));
        relay.send(to, "10.0.0.1:4000", "232.77.1.1:25107", text.as_bytes());
    }
    for n in 0..40 {
        let line = read.recv_timeout(PATIENCE).expect("a packet is missing");
        let (sender, text) = line.split_once(' ').unwrap();
        assert_eq!(sender, "127.0.0.1", "unlike the help");
        assert!(text.starts_with(&format!("{n}-x")), "{text}");
    }
    let (code, log) = end(gateway);
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains(
            "40 packets received, 40 sent on, 0 lost on the way out, 40 dropped (not-subscribed)"
        ),
        "{log}"
    );
    // The gateway has left: everything, and then the tunnel.
    let mut left = false;
    while let RelayEvent::Wants(_, wants) = relay.next_event() {
        left |= wants.iter().any(|(kind, _)| *kind == RecordKind::Block);
    }
    assert!(left);
}

#[test]
fn an_ipv6_group_is_read_with_the_route_that_the_help_names() {
    if !kit::in_namespace!("ip -6 route add local ff00::/8 dev lo") {
        return;
    }
    let relay = Relay::at("[::1]:0");
    let mut reader = Program(
        Command::new("python3")
            .args(["-c", READER6, "ff3e::8000:77", "45109", "20"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is needed for this test"),
    );
    let read = lines(&mut reader);
    assert_eq!(read.recv_timeout(PATIENCE).unwrap(), "joined");
    let gateway = gateway(&relay, &["--flow", "2001:db8::7@[ff3e::8000:77]:45109"]);
    let RelayEvent::Wants(to, _) = relay.next_event() else {
        panic!("no Update came first");
    };
    for n in 0..20 {
        let text = format!("{n}-six");
        let group = "[ff3e::8000:77]:45109";
        relay.send(to, "[2001:db8::7]:4000", group, text.as_bytes());
    }
    for n in 0..20 {
        let line = read.recv_timeout(PATIENCE).expect("a packet is missing");
        assert_eq!(line, format!("::1 {n}-six"));
    }
    let (code, log) = end(gateway);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_missing_relay_is_reported_with_a_remedy() {
    let silent = Relay::new();
    let mut gateway = gateway(&silent, &["--flow", "239.77.1.1:45108", "--status", "1"]);
    let stderr = BufReader::new(gateway.0.stderr.take().unwrap());
    let begun = Instant::now();
    let mut lines = stderr.lines().map_while(Result::ok);
    let complaint = lines.find(|line| line.contains("WARN")).unwrap();
    assert!(begun.elapsed() < PATIENCE);
    assert!(complaint.contains("it does not answer"), "{complaint}");
    assert!(complaint.contains("see that the relay runs"), "{complaint}");
    let status = lines
        .find(|line| line.contains("packets received"))
        .unwrap();
    assert!(status.contains("no relay"), "{status}");
    assert!(
        gateway.0.try_wait().unwrap().is_none(),
        "the gateway stopped"
    );
}

#[test]
fn unusable_arguments_are_fatal_with_a_reason() {
    for (arguments, code, reason) in [
        (&["--flow", "10.0.0.1:5000"][..], 1, "not a multicast group"),
        (
            &["--flow", "239.77.1.1:1", "--out-interface", "nothing0"],
            1,
            "no interface named nothing0",
        ),
        (&["--flow", "239.77.1.1"], 2, "write SOURCE@GROUP:PORT"),
        (
            &["--flow", "239.77.1.1:1", "--log-level", "a=b=c"],
            2,
            "no log level",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_flexfeed-gateway"))
            .args(["--relay", "127.0.0.1"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(reason), "{arguments:?}: {text}");
    }
}
