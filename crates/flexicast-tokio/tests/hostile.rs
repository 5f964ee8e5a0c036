//! Peers that do what no peer should.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod site;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use flexicast_tokio::Rung;
use site::{LIMIT, Site};

/// The first packets of handshakes that nobody goes on with.
fn first_packets(server: SocketAddr, count: u32) -> Vec<Vec<u8>> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
    config.set_application_protos(&[b"flexfeed/1"]).unwrap();
    let local = "127.0.0.1:9".parse().unwrap();
    let first = |number: u32| {
        let mut id = [0x77; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let scid = quiche::ConnectionId::from_ref(&id);
        let mut conn = quiche::connect(None, &scid, local, server, &mut config).unwrap();
        let mut out = vec![0; 1300];
        let (len, _) = conn.send(&mut out).unwrap();
        out.truncate(len);
        out
    };
    (0..count).map(first).collect()
}

/// Handshakes that are begun and abandoned do not fill the table: past a number of them, an address has to be proved first, which a receiver does without
/// noticing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_handshakes_keep_nobody_out() {
    let site = Site::new();
    let source = site.source().await;
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packets = first_packets(source.addr, 600);
    let begun = Instant::now();
    let counters = loop {
        for (number, packet) in packets.iter().enumerate() {
            flood.send_to(packet, source.addr).unwrap();
            if number % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // What its socket had no room for is lost.
        let counters = source.status().await.counters;
        if counters.retries >= 100 {
            break counters;
        }
        assert!(begun.elapsed() < LIMIT, "{counters:?}");
    };
    let open = counters.handshakes - counters.handshakes_abandoned;
    assert!(open <= 100, "{counters:?}");
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 50).await;
    probe.until_seq(50).await;
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    source
        .until("abandoned handshakes end", |s| {
            s.counters.handshakes_abandoned > 0
        })
        .await;
}

/// Packets for connections that never were provoke a bounded number of resets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_are_bounded_and_counted() {
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = [0x41; 60];
    for number in 0..3000u32 {
        packet[5..9].copy_from_slice(&number.to_be_bytes());
        noise.send_to(&packet, source.addr).unwrap();
    }
    site.publish(&source.handle, 20).await;
    probe.until_seq(20).await;
    source
        .until("some are withheld", |s| {
            s.counters.resets > 0 && s.counters.resets_withheld > 0
        })
        .await;
}

/// Packets of unknown versions get a bounded number of answers, each smaller than its packet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_negotiations_are_bounded() {
    let site = Site::new();
    let source = site.source().await;
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = first_packets(source.addr, 1).remove(0);
    packet[1..5].copy_from_slice(&0x1a2a_3a4a_u32.to_be_bytes());
    let begun = Instant::now();
    for number in 0..3000 {
        flood.send_to(&packet, source.addr).unwrap();
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    source
        .until("some are not answered", |s| s.counters.stray_datagrams > 0)
        .await;
    flood.set_nonblocking(true).unwrap();
    let (mut answers, mut buffer) = (0, [0; 2048]);
    while let Ok(len) = flood.recv(&mut buffer) {
        assert!(len < packet.len() && buffer[1..5] == [0; 4], "{len}");
        answers += 1;
    }
    assert!(answers > 0);
    let most = 200 * (begun.elapsed().as_secs() + 2);
    assert!(answers <= most, "{answers} of {most}");
}
