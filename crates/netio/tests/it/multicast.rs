//! Real joins and real IPv4 multicast on the loopback interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netio::{MulticastSender, RecvBatch, UdpSocket, join};
use tokio::time::timeout;

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Also an address of the loopback interface, as all of 127.0.0.0/8 is.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const PATIENCE: Duration = Duration::from_secs(20);

/// A port below 32,768, where the kernel's automatic ports begin.
const PORT: u16 = 27_011;

/// Returns a group that no other process of these tests uses on this machine, by its first byte
/// (`range`) and a number.
fn group(range: u8, number: u8) -> SocketAddr {
    let [.., a, b] = std::process::id().to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(range, a, b, number), PORT))
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

/// Whether the kernel lists `group` as joined on any interface.
fn joined(group: IpAddr) -> bool {
    let IpAddr::V4(group) = group else {
        return false;
    };
    let listed = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    std::fs::read_to_string("/proc/net/igmp")
        .unwrap()
        .contains(&listed)
}

#[tokio::test]
async fn two_receivers_of_an_ssm_group_get_its_source_and_no_other() {
    let group = group(232, 11);
    let receivers = [(); 2].map(|()| join(group, Some(LO), Some(LO)).unwrap());
    let sender = MulticastSender::bind(LO, 1, true).unwrap();
    let stranger = MulticastSender::bind(OTHER, 1, true).unwrap();
    assert_eq!(sender.source(), LO);
    assert_eq!(stranger.socket().local_addr().ip(), OTHER);
    for number in 0..10_u8 {
        stranger.send(group, b"stranger", None).await.unwrap();
        sender.send(group, &[number], None).await.unwrap();
    }
    let expected: Vec<_> = (0..10_u8).map(|number| vec![number]).collect();
    for receiver in &receivers {
        assert_eq!(until(receiver, &[9]).await, expected);
    }
}

#[tokio::test]
async fn an_asm_group_takes_any_source() {
    let group = group(239, 12);
    let receivers = [(); 2].map(|()| join(group, None, Some(LO)).unwrap());
    let first = MulticastSender::bind(LO, 1, true).unwrap();
    let second = MulticastSender::bind(OTHER, 1, true).unwrap();
    first.send(group, b"first", None).await.unwrap();
    second.send(group, b"second", None).await.unwrap();
    for receiver in &receivers {
        assert_eq!(until(receiver, b"second").await, [&b"first"[..], b"second"]);
    }
}

#[tokio::test]
async fn only_the_group_that_was_joined_arrives() {
    // Both on one port: without IP_MULTICAST_ALL=0 and the bind to the group they would mix.
    let ours = group(239, 13);
    let theirs = group(239, 113);
    let we = join(ours, None, Some(LO)).unwrap();
    let they = join(theirs, None, Some(LO)).unwrap();
    let sender = MulticastSender::bind(LO, 1, true).unwrap();
    sender.send(theirs, b"theirs", None).await.unwrap();
    sender.send(ours, b"ours", None).await.unwrap();
    assert_eq!(until(&we, b"ours").await, [b"ours"]);
    assert_eq!(until(&they, b"theirs").await, [b"theirs"]);
}

#[tokio::test]
async fn trains_are_split_at_each_receiver() {
    let group = group(232, 14);
    let receivers = [(); 2].map(|()| join(group, Some(LO), Some(LO)).unwrap());
    let sender = MulticastSender::bind(LO, 1, true).unwrap();
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
async fn a_train_that_is_ecn_capable_arrives_with_its_mark() {
    let group = group(232, 16);
    let receiver = join(group, Some(LO), Some(LO)).unwrap();
    let mut sender = MulticastSender::bind(LO, 1, true).unwrap();
    let mut batch = RecvBatch::new();
    for expected in [0, 2] {
        sender.send(group, &[7; 3000], Some(1000)).await.unwrap();
        let mut marks = Vec::new();
        while marks.len() < 3 {
            let readable = timeout(PATIENCE, receiver.readable()).await;
            readable.unwrap().unwrap();
            let _ = receiver.try_recv(&mut batch, |datagram| marks.push(datagram.ecn));
        }
        assert_eq!(marks, [expected; 3]);
        sender.set_ecn_capable();
    }
}

#[tokio::test]
async fn dropping_the_socket_leaves_the_group() {
    let group = group(232, 15);
    assert!(!joined(group.ip()));
    let socket = join(group, Some(LO), Some(LO)).unwrap();
    assert!(joined(group.ip()));
    drop(socket);
    assert!(!joined(group.ip()));
}

#[tokio::test]
async fn failed_joins_are_explained() {
    let group = group(232, 16);
    // An address for documentation: no interface has it.
    let nowhere = IpAddr::from([203, 0, 113, 77]);
    let text = join(group, Some(LO), Some(nowhere))
        .unwrap_err()
        .to_string();
    let named = group.to_string();
    for part in [named.as_str(), "127.0.0.1", "203.0.113.77", "ip -4"] {
        assert!(text.contains(part), "{text}");
    }
    let text = join("10.1.2.3:4434".parse().unwrap(), None, None)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("10.1.2.3 is not a multicast address"),
        "{text}"
    );
    let text = MulticastSender::bind(nowhere, 1, true)
        .unwrap_err()
        .to_string();
    assert!(text.contains("203.0.113.77"), "{text}");
    for bad in [IpAddr::from([0, 0, 0, 0]), IpAddr::from([232, 1, 1, 1])] {
        let error = MulticastSender::bind(bad, 1, true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert!(MulticastSender::bind(LO, 256, true).is_err());
}
