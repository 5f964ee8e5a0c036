//! The native side on real interfaces, which appear and disappear and see packets twice.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use amt::relay::Config;
use amt::report::RecordKind::{IsEx, IsIn, ToIn};
use flexfeed_relay::engine::Receive;

use crate::lab::{Gateway, NETWORK, PATIENCE, PORT, Relay, ip, join, send, shell, source};

const S4: &str = "10.1.0.1";
const G4: &str = "232.1.1.1";

/// As after the start, with another index in the kernel.
const AGAIN: &str = "set -e
ip link add native type veth peer name other
for i in native other; do ip link set $i addrgenmode none; ip link set $i up; done
ip addr add 10.1.0.1/24 dev native
ip addr add 10.2.0.1/24 dev other";

/// Sends until something arrives: not every link is up at once.
async fn until_a_packet_passes(gateway: &Gateway) {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "nothing comes");
        let (sender, _) = source(S4);
        send(&sender, G4, b"hello", None).await;
        let got = gateway.payloads();
        if !got.is_empty() {
            // Earlier packets may be among them; each arrives once.
            assert!(got.iter().all(|one| one == b"hello"));
            return;
        }
    }
}

/// Returns the processor time of the packet thread.
fn cpu() -> Duration {
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = entry.unwrap().path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.trim() == "packets" {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
            return Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap());
        }
    }
    panic!("no thread");
}

#[tokio::test]
async fn joins_come_back_with_their_interface() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = Relay::start(Receive::Ports(vec![PORT, 5000]), Config::default());
    let mut gateway = Gateway::new(relay.v4);
    join(&relay, &mut gateway, G4, S4).await;
    until_a_packet_passes(&gateway).await;
    for _ in 0..2 {
        shell("ip link del native");
        shell(AGAIN);
        until_a_packet_passes(&gateway).await;
        relay.until("all is well", |c| {
            c.joins.get() == 1 && c.joins_missing.get() == 0
        });
    }
}

#[tokio::test]
async fn joins_follow_the_route() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    shell("ip route add 232.0.0.0/8 dev lo");
    for receive in [Receive::Ports(vec![PORT]), Receive::Capture] {
        let relay = Relay::start_on(None, receive, Config::default());
        let mut gateway = Gateway::new(relay.v4);
        join(&relay, &mut gateway, G4, S4).await;
        let (sender, _) = source(S4);
        send(&sender, G4, b"elsewhere", None).await;
        gateway.assert_silent();
        shell("ip route change 232.0.0.0/8 dev native");
        until_a_packet_passes(&gateway).await;
        shell("ip route change 232.0.0.0/8 dev lo");
    }
}

#[tokio::test]
async fn a_capture_survives_its_interface() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = Relay::start(Receive::Capture, Config::default());
    let mut gateway = Gateway::new(relay.v4);
    join(&relay, &mut gateway, G4, S4).await;
    until_a_packet_passes(&gateway).await;
    assert_eq!(relay.engine.counters().not_capturing.get(), 0);
    shell("ip link set native down");
    relay.until("not capturing", |c| c.not_capturing.get() == 1);
    let before = cpu();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // A busy loop would take two seconds.
    let used = cpu() - before;
    assert!(used < Duration::from_secs(1), "{used:?} for nothing");
    shell("ip link set native up");
    until_a_packet_passes(&gateway).await;
    relay.until("it captures", |c| c.not_capturing.get() == 0);
    shell("ip link del native");
    relay.until("not capturing", |c| c.not_capturing.get() == 1);
    let before = cpu();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = cpu() - before;
    assert!(used < Duration::from_secs(1), "{used:?} for nothing");
    shell(AGAIN);
    until_a_packet_passes(&gateway).await;
    relay.until("it captures", |c| c.not_capturing.get() == 0);
    relay.until("it has joined", |c| c.joins.get() == 1);
}

#[tokio::test]
async fn a_bridge_and_its_ports_bring_each_packet_once() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    shell(
        "set -e
ip link add name br0 type bridge mcast_snooping 0
ip link set br0 addrgenmode none
ip addr flush dev native
ip link set native master br0
ip link set br0 up
ip addr add 10.1.0.1/24 dev br0
ip route add 232.0.0.0/8 dev br0
ip route add 239.0.0.0/8 dev other",
    );
    let relay = Relay::start_on(None, Receive::Capture, Config::default());
    let mut gateway = Gateway::new(relay.v4);
    join(&relay, &mut gateway, G4, S4).await;
    // Sent by this host, and by the network; the same packet is seen on the bridge and on its port.
    let begun = Instant::now();
    let (sender, _) = source(S4);
    loop {
        assert!(begun.elapsed() < PATIENCE);
        send(&sender, G4, &[0], None).await;
        if !gateway.payloads().is_empty() {
            break;
        }
    }
    for n in 1..=10_u8 {
        send(&sender, G4, &[n], None).await;
    }
    let mut got: Vec<u8> = Vec::new();
    let begun = Instant::now();
    while got.len() < 10 {
        assert!(begun.elapsed() < PATIENCE, "{got:?}");
        let came = gateway.payloads();
        // The first packets may arrive late.
        got.extend(came.iter().map(|one| one[0]).filter(|n| *n > 0));
    }
    assert_eq!(got, (1..=10).collect::<Vec<u8>>());
    // No packet of a group that is joined elsewhere.
    gateway.update(IsEx, "239.1.1.1", &[]);
    relay.until("the join", |c| c.joins.get() == 2);
    send(&sender, "239.1.1.1", &[1], None).await;
    gateway.assert_silent();
}

#[tokio::test]
async fn packets_from_the_network_lose_a_hop() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = Relay::start(Receive::Capture, Config::default());
    for (group, near, far) in [
        (G4, "10.1.0.1", "10.2.0.1"),
        ("ff3e::8000:1", "fd00:1::1", "fd00:2::1"),
    ] {
        let mut gateway = Gateway::new(relay.v4);
        gateway.request(ip(group).is_ipv6());
        gateway.update(IsIn, group, &[near, far]);
        relay.until("the joins", |c| c.joins.get() == 2);
        let to = SocketAddr::new(ip(group), PORT);
        let ttl = |packet: &[u8]| packet[if group.contains(':') { 7 } else { 8 }];
        for (from, sent, got) in [
            (far, 1, None),
            (far, 2, Some(1)),
            (far, 64, Some(63)),
            (near, 1, Some(1)),
            (near, 64, Some(64)),
        ] {
            let expired = relay.engine.counters().lost.expired.get();
            let sender = netio::MulticastSender::bind(ip(from), sent, false).unwrap();
            sender.send(to, b"hello", None).await.unwrap();
            match got {
                Some(hops) => {
                    let packet = gateway.packet();
                    assert_eq!(ttl(&packet), hops, "{from} {sent}");
                    // Checksums are right, too.
                    let udp = amt::ip::parse_udp(&packet).unwrap();
                    assert_eq!(udp.payload, b"hello");
                }
                None => {
                    relay.until("the count", |c| c.lost.expired.get() > expired);
                    gateway.assert_silent();
                }
            }
        }
        gateway.update(ToIn, group, &[]);
        relay.until("the leave", |c| c.gateways.get() == 0 && c.joins.get() == 0);
    }
}

#[tokio::test]
async fn many_joins_and_leaves_are_all_applied() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    // Each group and port takes a socket.
    netio::direct::raise_descriptor_limit().unwrap();
    let config = Config {
        max_groups_per_gateway: 400,
        ..Config::default()
    };
    let relay = Relay::start(Receive::Ports(vec![PORT]), config);
    let mut gateway = Gateway::new(relay.v4);
    gateway.request(false);
    for n in 0..300 {
        gateway.update(IsIn, &format!("232.2.{}.{}", n / 200, n % 200), &[S4]);
    }
    relay.until("all joins", |c| {
        c.joins.get() + c.joins_missing.get() == 300
    });
    let teardown = amt::Message::Teardown {
        mac: gateway.mac,
        nonce: gateway.nonce,
        gateway: gateway.address(),
    };
    gateway.send(&teardown);
    relay.until("all leaves", |c| c.joins.get() == 0);
}
