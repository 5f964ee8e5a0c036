//! The relay's data path on real sockets: from multicast to gateways.

use std::net::SocketAddr;
use std::time::Duration;

use amt::Message;
use amt::relay::Config;
use amt::report::RecordKind::{Block, IsEx, IsIn};
use flexfeed_relay::engine::Receive;

use crate::lab::{self, Gateway, NETWORK, PORT, Relay, at, ip, join, send, source};

const S4: &str = "10.1.0.1";
const S6: &str = "fd00:1::1";
const G4: &str = "232.1.1.1";
const G6: &str = "ff3e::8000:1";
const ASM4: &str = "239.1.1.1";

fn by_ports() -> Relay {
    Relay::start(Receive::Ports(vec![PORT]), Config::default())
}

#[tokio::test]
async fn packets_keep_their_headers() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = by_ports();
    for outer in [relay.v4, relay.v6] {
        for (group, from) in [(G4, S4), (G6, S6)] {
            let mut gateway = Gateway::new(outer);
            join(&relay, &mut gateway, group, from).await;
            let (sender, from) = source(from);
            let to = SocketAddr::new(ip(group), PORT);
            for n in 0..20_u8 {
                let payload = vec![n; 100 + usize::from(n)];
                send(&sender, group, &payload, None).await;
                assert_eq!(gateway.payload(from, to), payload);
            }
            // A train, whose last is shorter.
            let train: Vec<u8> = (0..10_300_u32).map(|n| (n / 1200) as u8).collect();
            send(&sender, group, &train, Some(1200)).await;
            for part in train.chunks(1200) {
                assert_eq!(gateway.payload(from, to), part);
            }
            send(&sender, group, &[], None).await;
            assert_eq!(gateway.payload(from, to), &[] as &[u8]);
        }
    }
}

#[tokio::test]
async fn captures_include_any_port_and_own_packets() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = Relay::start(Receive::Capture, Config::default());
    for (group, from) in [(G4, S4), (G6, S6)] {
        let mut gateway = Gateway::new(relay.v4);
        join(&relay, &mut gateway, group, from).await;
        let (sender, from) = source(from);
        for port in [PORT, 1, 65_000] {
            let to = SocketAddr::new(ip(group), port);
            sender.send(to, &[7; 500], None).await.unwrap();
            assert_eq!(gateway.payload(from, to), [7; 500]);
            let train: Vec<u8> = (0..40_300_u32).map(|n| (n / 1200) as u8).collect();
            sender.send(to, &train, Some(1200)).await.unwrap();
            for part in train.chunks(1200) {
                assert_eq!(gateway.payload(from, to), part);
            }
            sender.send(to, &[], None).await.unwrap();
            assert_eq!(gateway.payload(from, to), &[] as &[u8]);
        }
    }
}

#[tokio::test]
async fn a_leave_affects_one_of_several_gateways_at_an_address() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = by_ports();
    let mut gateways: Vec<Gateway> = (0..150).map(|_| Gateway::new(relay.v4)).collect();
    for gateway in &mut gateways {
        join(&relay, gateway, G4, S4).await;
    }
    let (sender, from) = source(S4);
    let to = SocketAddr::new(ip(G4), PORT);
    send(&sender, G4, &[1; 1000], Some(100)).await;
    for gateway in &gateways {
        for _ in 0..10 {
            assert_eq!(gateway.payload(from, to), [1; 100]);
        }
    }
    let first = gateways.remove(0);
    first.update(Block, G4, &[S4]);
    relay.until("the leave", |c| c.gateways.get() == 149);
    send(&sender, G4, &[2; 100], None).await;
    for gateway in &gateways {
        assert_eq!(gateway.payload(from, to), [2; 100]);
    }
    first.assert_silent();
    // By Teardown from another address.
    let second = gateways.remove(0);
    Gateway::new(relay.v4).send(&Message::Teardown {
        mac: second.mac,
        nonce: second.nonce,
        gateway: second.address(),
    });
    relay.until("the teardown", |c| c.gateways.get() == 148);
    assert_eq!(relay.engine.counters().joins.get(), 1);
}

#[tokio::test]
async fn any_source_and_single_ones_bring_each_packet_once() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = by_ports();
    let (mut one, mut any) = (Gateway::new(relay.v4), Gateway::new(relay.v6));
    join(&relay, &mut one, ASM4, S4).await;
    any.request(false);
    any.update(IsEx, ASM4, &[]);
    relay.until("both", |c| c.gateways.get() == 2);
    let (sender, from) = source(S4);
    let to = SocketAddr::new(ip(ASM4), PORT);
    for n in 0..5_u8 {
        send(&sender, ASM4, &[n; 10], None).await;
        assert_eq!(one.payload(from, to), [n; 10]);
        assert_eq!(any.payload(from, to), [n; 10]);
    }
    one.assert_silent();
    any.assert_silent();
}

#[tokio::test]
async fn oversized_packets_are_fragmented_inside_or_dropped() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let config = Config {
        mtu: 1280,
        ..Config::default()
    };
    let relay = Relay::start(Receive::Ports(vec![PORT]), config);
    let mut gateway = Gateway::new(relay.v6);
    join(&relay, &mut gateway, G4, S4).await;
    join(&relay, &mut gateway, G6, S6).await;
    let (sender, _) = source(S4);
    send(&sender, G4, &[9; 1400], None).await;
    let (first, second) = (gateway.packet(), gateway.packet());
    assert!(first.len() <= 1230 && second.len() <= 1230);
    let offset = |packet: &[u8]| u16::from_be_bytes([packet[6], packet[7]]);
    assert_eq!(offset(&first), 0x2000);
    let behind = usize::from(offset(&second) & 0x1fff) * 8;
    assert_eq!(behind, first.len() - 20);
    assert_eq!(behind + second.len() - 20, 1408);
    assert_eq!(relay.engine.counters().fragmented.get(), 1);
    let (sender, from) = source(S6);
    send(&sender, G6, &[9; 1400], None).await;
    send(&sender, G6, &[8; 1000], None).await;
    let to = SocketAddr::new(ip(G6), PORT);
    assert_eq!(gateway.payload(from, to), [8; 1000]);
    assert_eq!(relay.engine.counters().lost.too_large.get(), 1);
    relay.until("the source is notified", |c| c.icmp.get() == 1);
}

#[tokio::test]
async fn the_first_oversized_packet_is_fragmented_too() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    lab::shell("ip link set lo mtu 1280");
    let relay = by_ports();
    for outer in [relay.v4, relay.v6] {
        let fragmented = relay.engine.counters().fragmented.get();
        let mut gateway = Gateway::new(outer);
        join(&relay, &mut gateway, G4, S4).await;
        let (sender, _) = source(S4);
        send(&sender, G4, &[9; 2800], Some(1400)).await;
        let pieces: Vec<usize> = (0..4).map(|_| gateway.packet().len()).collect();
        assert_eq!(pieces.iter().sum::<usize>(), 2 * (1400 + 8) + 4 * 20);
        let counters = relay.engine.counters();
        relay.until("the count", |c| c.fragmented.get() == fragmented + 2);
        assert_eq!(counters.lost.too_large.get(), 0);
        gateway.update(Block, G4, &[S4]);
        relay.until("the end", |c| c.gateways.get() == 0);
    }
    // A packet that must not be fragmented is lost, and its source is notified.
    let mut gateway = Gateway::new(relay.v4);
    lab::shell("ip link set lo mtu 1281");
    join(&relay, &mut gateway, G6, S6).await;
    let (sender, _) = source(S6);
    send(&sender, G6, &[9; 1400], None).await;
    relay.until("the source is notified", |c| c.icmp.get() == 1);
    assert_eq!(relay.engine.counters().lost.too_large.get(), 1);
}

#[tokio::test]
async fn memberships_expire_and_the_group_is_left() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let config = Config {
        query_interval: Duration::from_secs(1),
        max_response: Duration::from_millis(500),
        ..Config::default()
    };
    let relay = Relay::start(Receive::Ports(vec![PORT]), config);
    let mut gateway = Gateway::new(relay.v4);
    join(&relay, &mut gateway, G4, S4).await;
    relay.until("the end", |c| c.gateways.get() == 0 && c.joins.get() == 0);
}

#[tokio::test]
async fn garbage_and_forgeries_change_nothing() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = by_ports();
    let mut gateway = Gateway::new(relay.v4);
    gateway.request(false);
    let other = Gateway {
        mac: gateway.mac,
        ..Gateway::new(relay.v4)
    };
    other.update(IsIn, G4, &[S4]);
    for len in 0..200 {
        let garbage = vec![len as u8; len];
        gateway.socket.send_to(&garbage, gateway.relay).unwrap();
    }
    relay.until("all of it", |c| {
        c.dropped.iter().map(|one| one.get()).sum::<u64>() >= 200
    });
    assert_eq!(relay.engine.counters().gateways.get(), 0);
    join(&relay, &mut gateway, G4, S4).await;
}

#[tokio::test]
async fn datagrams_to_a_group_are_no_messages() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let port = netio::direct::UdpPort::bind(at("0.0.0.0:0")).unwrap();
    let address = at(&format!("127.0.0.1:{}", port.local_addr().port()));
    let relay = Relay::with_ports(vec![port], address, address);
    let mut gateway = Gateway::new(address);
    gateway.request(false);
    gateway.update(IsEx, ASM4, &[]);
    relay.until("the join", |c| c.joins.get() == 1);
    let before = relay.engine.counters().messages.other.get();
    let (sender, _) = source(S4);
    let to = SocketAddr::new(ip(ASM4), address.port());
    for _ in 0..10 {
        sender.send(to, &[0x55; 100], None).await.unwrap();
    }
    gateway.request(false);
    assert_eq!(relay.engine.counters().messages.other.get(), before);
}

#[tokio::test]
async fn overflowing_messages_are_counted() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let port = netio::direct::UdpPort::bind(at("127.0.0.1:0")).unwrap();
    let small = socket2::SockRef::from(&port);
    small.set_recv_buffer_size(2048).unwrap();
    let address = port.local_addr();
    let relay = Relay::with_ports(vec![port], address, address);
    let flood = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let begun = std::time::Instant::now();
    while relay.engine.counters().lost.messages.get() == 0 {
        assert!(begun.elapsed() < lab::PATIENCE, "it takes everything");
        for _ in 0..1000 {
            flood.send_to(&[0x55; 1000], address).unwrap();
        }
    }
}

#[tokio::test]
async fn a_view_and_a_drain() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = by_ports();
    let mut gateway = Gateway::new(relay.v4);
    join(&relay, &mut gateway, G4, S4).await;
    let view = relay.engine.view().await.unwrap();
    assert_eq!(view.gateways.0, 1);
    assert_eq!(view.shown_gateways[0].gateway, gateway.address());
    assert_eq!(view.shown_gateways[0].groups, [(ip(G4), vec![ip(S4)])]);
    assert_eq!(view.shown_groups[0].group, ip(G4));
    relay.engine.drain();
    let mut late = Gateway::new(relay.v4);
    assert!(late.request(false), "the L flag");
    late.update(IsIn, G4, &[S4]);
    relay.until("the refusal", |c| c.dropped[6].get() == 1);
    let (sender, from) = source(S4);
    send(&sender, G4, &[1; 10], None).await;
    let to = at("232.1.1.1:4434");
    assert_eq!(gateway.payload(from, to), [1; 10]);
    late.assert_silent();
}

#[tokio::test]
async fn overflowing_packets_are_counted() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let relay = by_ports();
    let mut gateways: Vec<Gateway> = (0..100).map(|_| Gateway::new(relay.v4)).collect();
    for gateway in &mut gateways {
        join(&relay, gateway, G4, S4).await;
    }
    let (sender, _) = source(S4);
    let train = vec![1; 1000 * 60];
    // As fast as possible, until the relay overflows.
    let begun = std::time::Instant::now();
    while relay.engine.counters().lost.overrun.get() == 0 {
        assert!(begun.elapsed() < lab::PATIENCE, "it takes everything");
        for _ in 0..100 {
            send(&sender, G4, &train, Some(1000)).await;
        }
    }
    // The relay forwards again afterwards.
    relay.until("it forwards", |c| c.sent_packets.get() > 1000);
}
