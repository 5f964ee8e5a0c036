//! Admission: copies of a receiver, returning receivers, and the end of a source.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use flexicast_tokio::Rung;
use flexicast_tokio::receiver::Event;

use crate::site::proxy::Nat;
use crate::site::{Probe, Running, Site, any_port};

const SECOND: Duration = Duration::from_secs(1);

/// The code and words of the next refusal, and when it is tried again.
async fn refused(probe: &mut Probe) -> (u64, String, Duration) {
    let mut said = None;
    loop {
        match probe.event().await {
            Event::Refused {
                code,
                reason,
                fatal,
            } => {
                assert!(!fatal, "{reason}");
                said = Some((code, reason));
            }
            Event::Disconnected { retry_in, .. } => {
                if let Some((code, reason)) = said.take() {
                    return (code, reason, retry_in);
                }
            }
            Event::Welcome { .. } => panic!("served"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_receiver_is_refused_until_the_original_has_died() {
    let site = Site::new();
    let source = site.source().await;
    let config = site.receiver_config(source.addr);
    let nat = Nat::new(source.addr).await;
    let mut through = config.clone();
    through.server = nat.addr.to_string();
    let mut original = site.start_receiver(through);
    original.until_rung(Rung::Multicast).await;
    let mut copy = site.start_receiver(config.clone());
    let (code, reason, retry_in) = refused(&mut copy).await;
    assert_eq!(code, 6, "{reason}");
    assert!(
        reason.contains("data folder") && reason.contains("127.0.0.1:"),
        "{reason}"
    );
    assert!(retry_in >= 30 * SECOND, "{retry_in:?}");
    copy.handle.shutdown().await;
    site.publish(&source.handle, 20).await;
    original.until_seq(20).await;
    assert!(
        original.disconnected.is_empty(),
        "{:?}",
        original.disconnected
    );
    let counters = source.status().await.counters;
    assert_eq!((counters.protocol.ids_in_use, counters.refused), (1, 1));

    // The original is cut off without a word, as by a power failure.
    nat.cut.store(true, Relaxed);
    let begun = Instant::now();
    let mut heir = site.start_receiver(config);
    heir.until_rung(Rung::Multicast).await;
    // After a refusal it would try again after 30 s.
    assert!(begun.elapsed() < 25 * SECOND, "{:?}", begun.elapsed());
    assert!(heir.disconnected.is_empty(), "{:?}", heir.disconnected);
    source
        .until("one receiver", |s| s.receivers.len() == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_said_goodbye_is_followed_at_once() {
    let site = Site::new();
    let source = site.source().await;
    let config = site.receiver_config(source.addr);
    for _ in 0..5 {
        let mut probe = site.start_receiver(config.clone());
        probe.until_rung(Rung::Multicast).await;
        assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
        probe.handle.shutdown().await;
    }
    assert_eq!(source.status().await.counters.protocol.ids_in_use, 0);
}

/// The same program that comes back, by a race or after its network was away, or from another
/// address, is never taken for a copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_program_is_let_in_however_it_comes_back() {
    let site = Site::new();
    let source = site.lively_source().await;
    let nat = Nat::new(source.addr).await;
    let mut probe = site.start_receiver(site.receiver_config(nat.addr));
    probe.until_rung(Rung::Multicast).await;
    for round in 1..=3u64 {
        // Another port of the NAT; then a silence that ends the connection at the receiver and not
        // at the source.
        nat.rebind().await;
        site.publish(&source.handle, 5).await;
        probe.until_seq(round * 10 - 5).await;
        nat.cut.store(true, Relaxed);
        let before = probe.disconnected.len();
        while probe.disconnected.len() == before {
            probe.event().await;
        }
        nat.cut.store(false, Relaxed);
        site.publish(&source.handle, 5).await;
        probe.until_seq(round * 10).await;
    }
    let counters = source.status().await.counters;
    assert_eq!((counters.protocol.ids_in_use, counters.refused), (0, 0));
}

/// A draining source delivers published updates before its goodbye, to members and to unicast
/// receivers; no new receiver is admitted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_delivers_published_updates() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.rate_bps = 2_000_000;
    config.channels[0].flow.as_mut().unwrap().rate_bps = 2_000_000;
    let source = site.start(config).await;
    let mut member = site.receiver(source.addr);
    let mut wanted = site.receiver_config(source.addr);
    wanted.multicast = false;
    let mut alone = site.start_receiver(wanted);
    member.until_rung(Rung::Multicast).await;
    alone.until_seq(0).await;
    source
        .until("both are here", |s| s.receivers.len() == 2)
        .await;
    // About 4 s at this rate: the newcomer is there before the end.
    site.publish(&source.handle, 200).await;
    let Running { handle, addr, task } = source;
    let begun = Instant::now();
    let drained = tokio::spawn({
        let handle = handle.clone();
        async move { handle.drain(600 * SECOND).await }
    });
    let newcomer = async {
        let mut newcomer = site.receiver(addr);
        let (code, reason, _) = refused(&mut newcomer).await;
        assert_eq!(code, 4, "{reason}");
        assert!(reason.contains("shutting down"), "{reason}");
    };
    tokio::join!(newcomer, member.until_seq(200), alone.until_seq(200));
    for probe in [&mut member, &mut alone] {
        let reason = probe.until_reason().await;
        assert!(reason.contains("shuts down"), "{reason}");
    }
    drained.await.unwrap();
    task.await.unwrap();
    assert!(
        begun.elapsed() < 60 * SECOND,
        "{:?}: it ends by itself",
        begun.elapsed()
    );
    assert!(handle.status().await.is_none());
}

/// A drain ends in time also where a receiver takes nothing, and when a second one is more in a
/// hurry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_in_time() {
    let site = Site::new();
    let source = site.source().await;
    let nat = Nat::new(source.addr).await;
    let mut wanted = site.receiver_config(nat.addr);
    wanted.multicast = false;
    let mut stuck = site.start_receiver(wanted);
    while !matches!(stuck.event().await, Event::Welcome { .. }) {}
    nat.cut.store(true, Relaxed);
    site.publish(&source.handle, 100).await;
    let begun = Instant::now();
    let slow = source.handle.clone();
    let slow = tokio::spawn(async move { slow.drain(600 * SECOND).await });
    source.handle.drain(SECOND / 2).await;
    slow.await.unwrap();
    let took = begun.elapsed();
    // The idle timeout would end it after 30 s.
    assert!(took >= SECOND / 2 && took < 25 * SECOND, "{took:?}");
}
