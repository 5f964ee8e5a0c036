//! Acknowledgements outside of the connection, over real sockets.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flexicast::feedback::is_feedback;
use flexicast::source::FeedbackCounters;
use flexicast_tokio::Rung;

use crate::site::proxy::{Direction, Nat, filtering};
use crate::site::{LIMIT, Probe, Running, Site};

/// Acknowledgements that are sent both ways before the source has said that feedback arrives.
const TRIALS: u32 = 8;

async fn counters(source: &Running) -> FeedbackCounters {
    source.status().await.counters.protocol.feedback
}

/// Publishes for about as long as `count` acknowledgements take.
async fn publish(site: &Site, source: &Running, probe: &mut Probe, count: u64) {
    for _ in 0..count {
        site.publish(&source.handle, 1).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    probe.until_seq(site.store.head("lore")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_every_rung_acknowledge_by_feedback_packets() {
    let site = Site::new();
    let source = site.source().await;
    let mut member = site.receiver(source.addr);
    let mut far = site.behind(source.addr);
    member.until_rung(Rung::Multicast).await;
    far.until_rung(Rung::Replicated).await;
    publish(&site, &source, &mut member, 40).await;
    far.until_seq(40).await;
    let found = counters(&source).await;
    assert!(found.packets >= 40, "{found:?}");
    assert_eq!((found.invalid, found.elsewhere), (0, 0));
    let flow = source.status().await.channels[0].flow.clone();
    assert_eq!(flow.map(|flow| flow.members), Some(2));
}

/// Where nothing but QUIC gets through, members stay by DATAGRAM frames and send few packets in
/// vain; where something begins to drop the packets, one fall-back shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_without_feedback_is_no_obstacle() {
    let site = Site::new();
    let source = site.lively_source().await;
    let (seen, open) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (counts, is_open) = (Arc::clone(&seen), Arc::clone(&open));
    let lose = move |direction: Direction, _: u32, datagram: &[u8]| {
        let is_one = direction == Direction::ToSource && is_feedback(datagram);
        counts.fetch_add(u32::from(is_one), Ordering::Relaxed);
        is_one && !is_open.load(Ordering::Relaxed)
    };
    let mut probe = site.receiver(filtering(source.addr, lose.clone()).await);
    probe.until_rung(Rung::Multicast).await;
    publish(&site, &source, &mut probe, 40).await;
    assert_eq!(seen.load(Ordering::Relaxed), TRIALS);
    assert_eq!(counters(&source).await, FeedbackCounters::default());
    assert_eq!(probe.rung_of("lore"), Rung::Multicast);

    open.store(true, Ordering::Relaxed);
    let mut probe = site.receiver(filtering(source.addr, lose).await);
    probe.until_rung(Rung::Multicast).await;
    publish(&site, &source, &mut probe, 20).await;
    assert!(counters(&source).await.packets > 10);
    open.store(false, Ordering::Relaxed);
    let fall_backs = source.status().await.counters.protocol.fall_backs;
    while source.status().await.counters.protocol.fall_backs == fall_backs {
        publish(&site, &source, &mut probe, 1).await;
    }
    probe.until_rung(Rung::Unicast).await;
    probe.until_rung(Rung::Multicast).await;
    publish(&site, &source, &mut probe, 40).await;
    assert_eq!(probe.rung_of("lore"), Rung::Multicast);
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
}

/// A member whose address changes while nothing but feedback goes to the source is found again at
/// once, and not with the next frame that its connection happens to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_behind_another_address_is_found_by_its_feedback() {
    const ROUNDS: u64 = 5;
    let site = Site::new();
    let source = site.source().await;
    let nat = Nat::new(source.addr).await;
    let mut probe = site.receiver(nat.addr);
    probe.until_rung(Rung::Multicast).await;
    publish(&site, &source, &mut probe, 20).await;
    let mut waited = Duration::ZERO;
    for round in 1..=ROUNDS {
        nat.rebind().await;
        let since = Instant::now();
        while source.status().await.counters.migrations < round {
            publish(&site, &source, &mut probe, 1).await;
        }
        waited += since.elapsed();
        // Cursors follow each other in a second: none is near.
        publish(&site, &source, &mut probe, 8).await;
    }
    let found = counters(&source).await;
    assert!(found.elsewhere > 0, "{found:?}");
    assert!(
        waited < Duration::from_millis(400) * ROUNDS as u32,
        "{waited:?}"
    );
    assert_eq!(probe.rung_of("lore"), Rung::Multicast);
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
}

/// Datagrams to addresses of feedback that is not there are neither answered nor taken for QUIC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_feedback_is_not_answered() {
    let site = Site::new();
    let source = site.source().await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(300);
    socket.set_read_timeout(Some(timeout)).unwrap();
    for len in [9, 30, 60, 1200] {
        let mut datagram = vec![0xc7; len];
        datagram[0] = 0x43;
        socket.send_to(&datagram, source.addr).unwrap();
    }
    let wanted = |s: &flexicast_tokio::source::SourceStatus| s.counters.stray_datagrams == 4;
    source.until("the datagrams have come", wanted).await;
    let answer = tokio::task::spawn_blocking(move || socket.recv(&mut [0; 100]));
    assert!(answer.await.unwrap().is_err(), "an answer");
    let counters = source.status().await.counters;
    assert_eq!(
        (counters.protocol.feedback.invalid, counters.resets),
        (0, 0)
    );
}

/// Memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}

/// A flood of datagrams that look like feedback packets ends where it is read: the engine gets none
/// of it, nothing grows, and the members' true packets still arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_noise_leaves_room_for_feedback() {
    const FLOOD: u64 = 200_000;
    if !kit::alone!() {
        return;
    }
    let site = Site::new();
    let source = site.source().await;
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    publish(&site, &source, &mut probe, 20).await;
    let (before, memory) = (counters(&source).await, resident_kib());
    let (is_over, target) = (Arc::new(AtomicBool::new(false)), source.addr);
    let stops = Arc::clone(&is_over);
    let flood = std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut datagram = [0x43; 60];
        let mut number = 0u64;
        while !stops.load(Ordering::Relaxed) {
            number += 1;
            let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x80;
            datagram[1..9].copy_from_slice(&id.to_le_bytes());
            let _ = socket.send_to(&datagram, target);
        }
    });
    let begun = Instant::now();
    let strays = loop {
        publish(&site, &source, &mut probe, 10).await;
        let strays = source.status().await.counters.stray_datagrams;
        if strays >= FLOOD {
            break strays;
        }
        assert!(begun.elapsed() < LIMIT, "{strays}");
    };
    let found = counters(&source).await;
    is_over.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    // Of so many a few can bear a tag by chance.
    let passed = found.invalid - before.invalid;
    assert!(
        passed * 100_000 <= strays,
        "{passed} of {strays} reached the engine"
    );
    assert!(found.packets > before.packets, "{found:?}");
    assert_eq!(probe.rung_of("lore"), Rung::Multicast);
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    let grown = resident_kib().saturating_sub(memory);
    assert!(grown < 32 << 10, "{grown} KiB after {strays} datagrams");
}
