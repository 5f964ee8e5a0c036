//! Real joins and real IPv6 multicast, each test in a network namespace of its own.
//!
//! By default, the loopback interface has no IPv6 multicast, and a test must not change the
//! machine's routes; so a test restarts itself inside a fresh namespace.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use netio::{MulticastSender, RecvBatch, UdpSocket, join, route_source};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// Two interfaces with both address families, the first with two addresses, the second also with a
/// link-local one that is known. Their other ends have no addresses, but routes for multicast.
const NETWORK: &str = "\
ip link add a1 type veth peer name b1
ip link add a2 type veth peer name b2
for i in a1 a2 b1 b2; do ip link set $i addrgenmode none; ip link set $i up; done
ip addr add fd00:1::1/64 dev a1 nodad
ip addr add fd00:1::2/64 dev a1 nodad
ip addr add 10.1.0.1/24 dev a1
ip addr add fd00:2::1/64 dev a2 nodad
ip addr add fe80::2/64 dev a2 nodad
";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn group(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn sender(interface: &str) -> MulticastSender {
    MulticastSender::bind(ip(interface), 1, true).unwrap()
}

/// Receives until the datagram `last` arrives; returns the payloads, with it.
async fn until(socket: &UdpSocket, last: &[u8]) -> Vec<Vec<u8>> {
    let mut batch = RecvBatch::new();
    let mut got: Vec<Vec<u8>> = Vec::new();
    timeout(PATIENCE, async {
        while got.last().is_none_or(|data| data != last) {
            socket.readable().await.unwrap();
            let received = socket.try_recv(&mut batch, |datagram| {
                assert_eq!(datagram.to, Some(socket.local_addr().ip()));
                got.push(datagram.data.to_vec());
            });
            if let Err(error) = received {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            }
        }
    })
    .await
    .expect("the last datagram within the time");
    got
}

/// Whether the kernel lists `group` as joined on an interface.
fn joined(interface: &str, group: IpAddr) -> bool {
    let IpAddr::V6(group) = group else {
        return false;
    };
    let listed: String = group
        .octets()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    std::fs::read_to_string("/proc/net/igmp6")
        .unwrap()
        .lines()
        .any(|line| line.contains(&listed) && line.split_whitespace().any(|word| word == interface))
}

#[tokio::test]
async fn two_receivers_of_an_ssm_group_get_its_source_and_no_other() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let group = group("[ff3e::4646:1]:47011");
    let ours = ip("fd00:1::1");
    let receivers = [(); 2].map(|()| join(group, Some(ours), Some(ours)).unwrap());
    let ours = sender("fd00:1::1");
    let stranger = sender("fd00:1::2");
    assert_eq!(ours.source(), ip("fd00:1::1"));
    assert_eq!(stranger.socket().local_addr().ip(), ip("fd00:1::2"));
    for number in 0..10_u8 {
        stranger.send(group, b"stranger", None).await.unwrap();
        ours.send(group, &[number], None).await.unwrap();
    }
    let expected: Vec<_> = (0..10_u8).map(|number| vec![number]).collect();
    for receiver in &receivers {
        assert_eq!(until(receiver, &[9]).await, expected);
    }
    assert_eq!(ours.counters(), netio::Counters::default());
}

#[tokio::test]
async fn an_asm_group_takes_any_source_and_only_that_group() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let ours = group("[ff1e::4646:2]:47012");
    let theirs = group("[ff1e::4646:3]:47012");
    let on = Some(ip("fd00:1::2"));
    let we = join(ours, None, on).unwrap();
    let they = join(theirs, None, on).unwrap();
    let first = sender("fd00:1::1");
    let second = sender("fd00:1::2");
    first.send(theirs, b"theirs", None).await.unwrap();
    first.send(ours, b"first", None).await.unwrap();
    second.send(ours, b"second", None).await.unwrap();
    assert_eq!(until(&we, b"second").await, [&b"first"[..], b"second"]);
    assert_eq!(until(&they, b"theirs").await, [b"theirs"]);
}

#[tokio::test]
async fn trains_are_split_at_each_receiver() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let group = group("[ff3e::4646:4]:47014");
    let source = ip("fd00:1::1");
    let receivers = [(); 2].map(|()| join(group, Some(source), Some(source)).unwrap());
    let sender = sender("fd00:1::1");
    let mut train: Vec<u8> = (0..40_u8).flat_map(|number| [number; 1180]).collect();
    train.extend([200; 77]);
    sender.send(group, &train, Some(1180)).await.unwrap();
    let expected: Vec<_> = train.chunks(1180).map(<[u8]>::to_vec).collect();
    for receiver in &receivers {
        assert_eq!(until(receiver, &[200; 77]).await, expected);
    }
    assert_eq!(sender.counters().send_lost, 0);
}

#[tokio::test]
async fn the_interface_decides_and_either_family_names_it() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let flow = group("[ff3e::4646:5]:47015");
    let source = Some(ip("fd00:1::1"));
    let wrong = join(flow, source, Some(ip("fd00:2::1"))).unwrap();
    // a1 is found by its IPv4 address for an IPv6 group …
    let right = join(flow, source, Some(ip("10.1.0.1"))).unwrap();
    assert!(joined("a1", flow.ip()) && joined("a2", flow.ip()));
    sender("fd00:1::1").send(flow, b"x", None).await.unwrap();
    assert_eq!(until(&right, b"x").await, [b"x"]);
    let nothing = wrong.try_recv(&mut RecvBatch::new(), |_| panic!("on another interface"));
    assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    // … and by its IPv6 address for an IPv4 group, for one source and for any.
    let v4 = sender("10.1.0.1");
    for (flow, source) in [
        ("232.70.70.5:47015", Some(ip("10.1.0.1"))),
        ("239.70.70.5:47016", None),
    ] {
        let socket = join(group(flow), source, Some(ip("fd00:1::1"))).unwrap();
        v4.send(group(flow), b"four", None).await.unwrap();
        assert_eq!(until(&socket, b"four").await, [b"four"]);
    }
}

#[tokio::test]
async fn without_an_interface_the_routes_decide() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let route = |arguments: &str| {
        let mut command = Command::new("ip");
        command.args(["-6", "route"]).args(arguments.split(' '));
        assert!(command.status().unwrap().success(), "{arguments}");
    };
    // The kernel takes any interface that does multicast, also one that has no address.
    route("add multicast ff3f::/16 dev b1 table local metric 1");
    let text = route_source(ip("ff3f::1")).unwrap_err().to_string();
    assert!(text.contains("without an address"), "{text}");
    for end in ["b1", "b2", "a2"] {
        route(&format!("del multicast ff00::/8 dev {end} table local"));
    }
    let source = route_source(ip("ff3e::4646:6")).unwrap();
    assert!(
        [ip("fd00:1::1"), ip("fd00:1::2")].contains(&source),
        "{source}"
    );
    route("add multicast ff3e::/16 dev a2 table local metric 1");
    let source = route_source(ip("ff3e::4646:6")).unwrap();
    assert_eq!(source, ip("fd00:2::1"));
    let flow = group("[ff3e::4646:6]:47016");
    let socket = join(flow, Some(source), None).unwrap();
    assert!(joined("a2", flow.ip()) && !joined("a1", flow.ip()));
    sender("fd00:2::1").send(flow, b"x", None).await.unwrap();
    assert_eq!(until(&socket, b"x").await, [b"x"]);
}

#[tokio::test]
async fn link_local_addresses_and_groups_work_with_their_interface() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let flow = group("[ff32::4646:7]:47017");
    let source = ip("fe80::2");
    let error = join(flow, Some(source), None).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("name the interface"), "{error}");
    let socket = join(flow, Some(source), Some(source)).unwrap();
    let sender = sender("fe80::2");
    assert_eq!(sender.source(), source);
    sender.send(flow, b"link", None).await.unwrap();
    assert_eq!(until(&socket, b"link").await, [b"link"]);
    // A link-local source also reaches a group of wide scope, on the same link.
    let wide = group("[ff3e::4646:7]:47017");
    let socket = join(wide, Some(source), Some(source)).unwrap();
    sender.send(wide, b"wide", None).await.unwrap();
    assert_eq!(until(&socket, b"wide").await, [b"wide"]);
}

#[tokio::test]
async fn dropping_the_socket_leaves_the_group() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let on = ip("fd00:1::1");
    for (flow, source) in [
        ("[ff3e::4646:8]:47018", Some(on)),
        ("[ff1e::4646:8]:47018", None),
    ] {
        let flow = group(flow);
        assert!(!joined("a1", flow.ip()));
        let socket = join(flow, source, Some(on)).unwrap();
        assert!(joined("a1", flow.ip()));
        drop(socket);
        assert!(!joined("a1", flow.ip()));
    }
}

#[tokio::test]
async fn failed_joins_and_sends_are_explained() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let flow = group("[ff3e::4646:9]:47019");
    let here = ip("fd00:1::1");
    // An address for documentation: no interface has it.
    let nowhere = ip("2001:db8::77");
    let failed = |result: io::Result<UdpSocket>, parts: &[&str]| {
        let text = result.unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    };
    failed(
        join(flow, Some(here), Some(nowhere)),
        &["[ff3e::4646:9]:47019", "fd00:1::1", "2001:db8::77", "ip -6"],
    );
    failed(
        join(group("[fd00:1::5]:4434"), None, None),
        &["fd00:1::5 is not a multicast address", "ff00::/8"],
    );
    failed(
        join(flow, Some(ip("10.1.0.1")), None),
        &["different address families"],
    );
    let holder = std::net::UdpSocket::bind("[::]:47019").unwrap();
    failed(
        join(flow, None, Some(here)),
        &["port 47019", "SO_REUSEADDR"],
    );
    drop(holder);
    let refused = |interface: &str| {
        MulticastSender::bind(ip(interface), 1, true)
            .unwrap_err()
            .to_string()
    };
    let text = refused("2001:db8::77");
    assert!(text.contains("`ip -6 addr`"), "{text}");
    let text = refused("::1");
    assert!(text.contains("no route for IPv6 multicast"), "{text}");
    for bad in ["::", "ff3e::1"] {
        let error = MulticastSender::bind(ip(bad), 1, true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert!(MulticastSender::bind(here, 256, true).is_err());
    let sender = sender("fd00:1::1");
    let error = sender
        .send(group("232.70.70.9:47019"), b"x", None)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("each family"), "{error}");
    // Without an interface with IPv6 multicast, there is no route to a group.
    for interface in ["a1", "a2", "b1", "b2"] {
        let mut down = Command::new("ip");
        down.args(["link", "set", interface, "down"]);
        assert!(down.status().unwrap().success());
    }
    failed(join(flow, None, None), &["no route towards the group"]);
    let text = route_source(flow.ip()).unwrap_err().to_string();
    assert!(text.contains("no route towards ff3e::4646:9"), "{text}");
}
