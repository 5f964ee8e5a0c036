//! Replication to many destinations, over real sockets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netio::direct::{Destination, Destinations, Inbox, ReplicationFailure, Replicator, Target};
use netio::{Packets, UdpSocket};

use crate::udp::refuse_segmentation;

const PATIENCE: Duration = Duration::from_secs(20);

/// An interface without hosts: what is sent there stays in the socket's buffer.
const NETWORK: &str = "\
ip link add away type veth peer name other
for i in away other; do ip link set $i addrgenmode none; ip link set $i up; done
ip addr add 10.1.0.1/24 dev away
";

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn start(socket: &UdpSocket, threads: usize) -> (Replicator, Receiver<ReplicationFailure>) {
    let (report, failures) = sync_channel(1000);
    let report = Mutex::new(report);
    let threads = NonZeroUsize::new(threads).unwrap();
    let failed = move |failure| report.lock().unwrap().send(failure).unwrap();
    (Replicator::new(socket, threads, failed).unwrap(), failures)
}

fn destination(id: u64, to: SocketAddr) -> Arc<Destination> {
    let from = Some(match to {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    });
    Arc::new(Destination::new(id, Target { to, from }))
}

/// Packets `numbers`, each with its number in it; every fifth is shorter.
fn packets(numbers: std::ops::Range<u32>) -> Arc<Packets> {
    let mut packets = Packets::default();
    for number in numbers {
        let mut packet = vec![number as u8; if number % 5 == 4 { 700 } else { 1197 }];
        packet[..4].copy_from_slice(&number.to_be_bytes());
        packets.push(&packet);
    }
    Arc::new(packets)
}

/// Takes `count` packets; returns their numbers and senders.
fn take(sink: &std::net::UdpSocket, count: usize) -> Vec<(u32, SocketAddr)> {
    sink.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 2000];
    let one = |_| {
        let (len, from) = sink.recv_from(&mut buffer).unwrap();
        let number = u32::from_be_bytes(buffer[..4].try_into().unwrap());
        assert_eq!(len, if number % 5 == 4 { 700 } else { 1197 });
        assert!(buffer[4..len].iter().all(|byte| *byte == number as u8));
        (number, from)
    };
    (0..count).map(one).collect()
}

fn is_empty(sink: &std::net::UdpSocket) -> bool {
    sink.set_nonblocking(true).unwrap();
    sink.recv(&mut [0; 10]).is_err()
}

async fn wait_until_sent(replicator: &Replicator) {
    let begun = Instant::now();
    while replicator.queued() > 0 {
        assert!(begun.elapsed() < PATIENCE, "{}", replicator.queued());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The socket of a source that is bound to all addresses, with receivers of both families.
#[tokio::test]
async fn every_destination_gets_every_packet_in_order() {
    let socket = UdpSocket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
    let port = socket.local_addr().port();
    let sinks: Vec<_> = (0..300)
        .map(|n| match n % 2 {
            0 => std::net::UdpSocket::bind(loopback()).unwrap(),
            _ => std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap(),
        })
        .collect();
    let (replicator, failures) = start(&socket, 2);
    let mut set = Destinations::default();
    let all = (0..).zip(&sinks);
    let all = all.map(|(id, sink)| destination(id, sink.local_addr().unwrap()));
    replicator.assign(&mut set, all);
    assert_eq!(set.len(), 300);
    let mut first = 0;
    let mut bytes = 0;
    for count in [1, 2, 15, 64] {
        // Room for all of it in the receivers' buffers.
        let batch = packets(first..first + count);
        bytes += batch.trains().map(|(train, _)| train.len()).sum::<usize>();
        replicator.send(&batch, &set);
        wait_until_sent(&replicator).await;
        for sink in &sinks {
            let got = take(sink, count as usize);
            assert!(
                got.iter()
                    .map(|(number, _)| *number)
                    .eq(first..first + count)
            );
            assert!(got.iter().all(|(_, from)| from.port() == port));
        }
        first += count;
    }
    assert_eq!(set.sent_bytes(), bytes as u64 * 300);
    assert_eq!(replicator.dropped(), 0);
    assert!(failures.try_recv().is_err());
}

#[tokio::test]
async fn changes_of_the_destinations_are_in_order_with_the_packets() {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let sinks: Vec<_> = (0..3)
        .map(|_| std::net::UdpSocket::bind(loopback()).unwrap())
        .collect();
    let at = |n: usize| sinks[n].local_addr().unwrap();
    let (replicator, _failures) = start(&socket, 1);
    let mut set = Destinations::default();
    let stays = destination(7, at(0));
    let leaves = destination(8, at(1));
    replicator.assign(
        &mut set,
        [Arc::clone(&stays), Arc::clone(&leaves)].into_iter(),
    );
    replicator.send(&packets(0..20), &set);
    wait_until_sent(&replicator).await;
    leaves.close();
    // Not even while the set is still the old one.
    replicator.send(&packets(20..25), &set);
    replicator.assign(&mut set, [stays, destination(9, at(2))].into_iter());
    replicator.send(&packets(25..40), &set);
    wait_until_sent(&replicator).await;
    let numbers = |sink, count| -> Vec<u32> {
        let got = take(sink, count).into_iter();
        got.map(|(number, _)| number).collect()
    };
    assert!(numbers(&sinks[0], 40).into_iter().eq(0..40));
    assert!(numbers(&sinks[1], 20).into_iter().eq(0..20));
    assert!(numbers(&sinks[2], 15).into_iter().eq(25..40));
    assert!(sinks.iter().all(is_empty));
    drop(replicator);
    assert_eq!(
        Arc::strong_count(&leaves),
        1,
        "the thread holds nothing any more"
    );
}

#[tokio::test]
async fn a_refused_destination_is_reported_once_and_the_others_get_everything() {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let sinks: Vec<_> = (0..200)
        .map(|_| std::net::UdpSocket::bind(loopback()).unwrap())
        .collect();
    let (replicator, failures) = start(&socket, 1);
    let mut set = Destinations::default();
    let mut all: Vec<_> = (0..)
        .zip(&sinks)
        .map(|(id, sink)| destination(id, sink.local_addr().unwrap()))
        .collect();
    // Broadcast, which needs a permission of the socket.
    all[150] = destination(150, "255.255.255.255:9".parse().unwrap());
    replicator.assign(&mut set, all.iter().map(Arc::clone));
    replicator.send(&packets(0..10), &set);
    replicator.send(&packets(10..20), &set);
    let failure = failures.recv_timeout(PATIENCE).unwrap();
    assert_eq!((failure.id, failure.errno), (150, libc::EACCES));
    wait_until_sent(&replicator).await;
    assert!(failures.try_recv().is_err() && !all[150].is_open());
    for (number, sink) in sinks.iter().enumerate().filter(|(n, _)| *n != 150) {
        assert_eq!(take(sink, 20).len(), 20, "{number}");
    }
    assert_eq!(replicator.dropped(), 0, "no lack of room");
}

#[tokio::test]
async fn without_segmentation_all_packets_arrive_in_order() {
    let socket = std::net::UdpSocket::bind(loopback()).unwrap();
    refuse_segmentation(&socket);
    let socket = UdpSocket::from_std(socket).unwrap();
    let sinks: Vec<_> = (0..140)
        .map(|_| std::net::UdpSocket::bind(loopback()).unwrap())
        .collect();
    let (replicator, failures) = start(&socket, 1);
    let mut set = Destinations::default();
    let all = (0..).zip(&sinks);
    let all = all.map(|(id, sink)| destination(id, sink.local_addr().unwrap()));
    replicator.assign(&mut set, all);
    for first in [0, 20] {
        replicator.send(&packets(first..first + 20), &set);
        wait_until_sent(&replicator).await;
    }
    for sink in &sinks {
        let got = take(sink, 40);
        assert!(got.iter().map(|(number, _)| *number).eq(0..40));
    }
    assert!(failures.try_recv().is_err());
}

#[test]
fn a_full_buffer_costs_packets_and_no_time_of_the_owner() {
    if !kit::in_namespace!(NETWORK) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let socket = UdpSocket::bind("10.1.0.1:0".parse().unwrap()).unwrap();
    socket2::SockRef::from(&socket)
        .set_send_buffer_size(4096)
        .unwrap();
    let (replicator, failures) = start(&socket, 1);
    let mut set = Destinations::default();
    let all = (0..50).map(|n| {
        let to = SocketAddr::from(([10, 1, 0, 2], 10_000 + n));
        let target = Target { to, from: None };
        Arc::new(Destination::new(n.into(), target))
    });
    replicator.assign(&mut set, all);
    let batch = packets(0..40);
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let begun = Instant::now();
        replicator.send(&batch, &set);
        slowest = slowest.max(begun.elapsed());
        assert!(replicator.queued() <= 256, "{}", replicator.queued());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert!(
        replicator.dropped() > 100 * 40 * 50,
        "{}",
        replicator.dropped()
    );
    assert!(failures.try_recv().is_err(), "no destination is to blame");
    let begun = Instant::now();
    drop(replicator);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

/// A sink that takes trains gets them whole: equal packets share a system call.
#[tokio::test]
async fn packets_that_wait_together_leave_as_trains() {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let sink = netio::direct::UdpPort::bind(loopback()).unwrap();
    let (replicator, _failures) = start(&socket, 1);
    let mut set = Destinations::default();
    replicator.assign(&mut set, [destination(0, sink.local_addr())].into_iter());
    let mut equal = Packets::default();
    (0..60).for_each(|_| equal.push(&[3; 1000]));
    replicator.send(&Arc::new(equal), &set);
    wait_until_sent(&replicator).await;
    let mut inbox = Inbox::new(8);
    let mut messages = Vec::new();
    let begun = Instant::now();
    while messages.iter().sum::<usize>() < 60_000 && begun.elapsed() < PATIENCE {
        inbox
            .receive(&sink, 8, |message| messages.push(message.data.len()))
            .unwrap();
    }
    assert_eq!(messages, [60_000], "one message of the kernel");
}

/// Also over IPv4 from a socket for both families, and where the kernel does not segment.
#[tokio::test]
async fn replicated_packets_are_ecn_capable() {
    for segmented in [true, false] {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let both = std::net::UdpSocket::bind(any).unwrap();
        if !segmented {
            refuse_segmentation(&both);
        }
        let both = UdpSocket::from_std(both).unwrap();
        let (replicator, _failures) = start(&both, 1);
        for to in [
            SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ] {
            let sink = UdpSocket::bind(to).unwrap();
            let mut set = Destinations::default();
            replicator.assign(&mut set, [destination(0, sink.local_addr())].into_iter());
            replicator.send(&packets(0..10), &set);
            let (mut batch, mut marks) = (netio::RecvBatch::new(), Vec::new());
            while marks.len() < 10 {
                let readable = tokio::time::timeout(PATIENCE, sink.readable()).await;
                readable.unwrap().unwrap();
                let _ = sink.try_recv(&mut batch, |datagram| marks.push(datagram.ecn));
            }
            assert_eq!(marks, [2; 10], "{to}");
        }
    }
}
