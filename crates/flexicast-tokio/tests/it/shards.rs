//! Receivers whose connections are divided among shards.

use std::num::NonZeroUsize;
use std::time::Duration;

use flexicast_tokio::Rung;
use tokio::net::UdpSocket;

use crate::site::proxy::Nat;
use crate::site::{Probe, Running, Site, any_port};

async fn source(site: &Site, shards: usize) -> Running {
    let mut config = site.config(any_port());
    config.shards = NonZeroUsize::new(shards).unwrap();
    site.start(config).await
}

/// Starts receivers of all rungs until there are two in each shard, and returns them.
async fn receivers_in_all_shards(site: &Site, source: &Running) -> Vec<Probe> {
    let mut probes = Vec::new();
    while source.status().await.shards.iter().any(|count| *count < 2) {
        assert!(probes.len() < 100, "{:?}", source.status().await.shards);
        let probe = match probes.len() % 3 {
            0 => site.receiver(source.addr),
            1 => site.behind(source.addr),
            _ => {
                let mut config = site.receiver_config(source.addr);
                config.multicast = false;
                site.start_receiver(config)
            }
        };
        probes.push(probe);
        let connected = probes.len();
        source
            .until("it is there", |s| s.receivers.len() == connected)
            .await;
    }
    probes
}

async fn until_seq(probes: &mut [Probe], seq: u64) {
    for probe in probes {
        probe.until_seq(seq).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_of_all_shards_get_every_update() {
    let site = Site::new();
    let source = source(&site, 3).await;
    let mut probes = receivers_in_all_shards(&site, &source).await;
    site.publish(&source.handle, 500).await;
    until_seq(&mut probes, 500).await;
    let status = source.status().await;
    assert_eq!(status.shards.iter().sum::<usize>(), probes.len());
    assert_eq!(status.receivers.len(), probes.len());
    let sessions: std::collections::BTreeSet<_> =
        status.receivers.iter().map(|r| r.session).collect();
    assert_eq!(sessions.len(), probes.len(), "one number each");
    assert_eq!(
        (status.counters.shard_failures, status.counters.misdelivered),
        (0, 0)
    );
    source.handle.drain(Duration::from_secs(60)).await;
    for mut probe in probes {
        assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
        let reason = probe.until_reason().await;
        assert!(reason.contains("shuts down"), "{reason}");
    }
}

/// The kernel chooses the shard by the receiver's address: after a change of it, datagrams arrive
/// at others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_moves_stays_in_its_shard() {
    let site = Site::new();
    let source = source(&site, 4).await;
    let nat = Nat::new(source.addr).await;
    let mut probe = site.behind(nat.addr);
    probe.until_rung(Rung::Replicated).await;
    let before = source.status().await.shards;
    let mut round = 0;
    while round < 8 || source.status().await.counters.misdelivered == 0 {
        assert!(round < 14, "a connection bears no more moves");
        round += 1;
        nat.rebind().await;
        site.publish(&source.handle, 20).await;
        probe.until_seq(site.store.head("lore")).await;
        source
            .until("it is elsewhere", |s| s.counters.migrations >= round)
            .await;
    }
    let status = source.status().await;
    assert_eq!(status.shards, before);
    assert_eq!((status.counters.resets, status.receivers.len()), (0, 1));
    assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
}

/// Receivers of a shard that fails connect again and miss nothing; those of others notice nothing.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_fails_is_restarted_alone() {
    let site = Site::new();
    let source = source(&site, 2).await;
    let mut probes = receivers_in_all_shards(&site, &source).await;
    site.publish(&source.handle, 50).await;
    until_seq(&mut probes, 50).await;
    for round in 1..=2 {
        let before = source.status().await.shards;
        let attacker = UdpSocket::bind(any_port()).await.unwrap();
        let poison = flexicast_tokio::source::POISON;
        attacker.send_to(poison, source.addr).await.unwrap();
        source
            .until("it failed", |s| s.counters.shard_failures == round)
            .await;
        site.publish(&source.handle, 100).await;
        until_seq(&mut probes, site.store.head("lore")).await;
        source
            .until("all are back", |s| s.receivers.len() == probes.len())
            .await;
        // What a receiver reports is in order.
        site.publish(&source.handle, 1).await;
        until_seq(&mut probes, site.store.head("lore")).await;
        let hit: Vec<_> = probes
            .iter()
            .filter(|p| !p.disconnected.is_empty())
            .collect();
        assert!(before.contains(&hit.len()), "{} of {before:?}", hit.len());
        for probe in &mut probes {
            for reason in probe.disconnected.drain(..) {
                assert!(reason.contains("restarted"), "{reason}");
            }
        }
    }
    assert!(!source.task.is_finished());
}

/// A shard that hangs is replaced like one that fails, and goes on in the end without an effect.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_hangs_is_replaced() {
    let site = Site::new();
    let source = source(&site, 2).await;
    let mut probes = receivers_in_all_shards(&site, &source).await;
    site.publish(&source.handle, 50).await;
    until_seq(&mut probes, 50).await;
    let before = source.status().await.shards;
    let attacker = UdpSocket::bind(any_port()).await.unwrap();
    let stupor = flexicast_tokio::source::STUPOR;
    let hung_at = std::time::Instant::now();
    attacker.send_to(stupor, source.addr).await.unwrap();
    source
        .until("it was given up", |s| s.counters.shard_hangs == 1)
        .await;
    let lasts = flexicast_tokio::source::STUPOR_LASTS;
    assert!(hung_at.elapsed() < lasts, "while it still hung");
    site.publish(&source.handle, 100).await;
    until_seq(&mut probes, 150).await;
    let all = probes.len();
    source
        .until("all are back", |s| s.receivers.len() == all)
        .await;
    site.publish(&source.handle, 1).await;
    until_seq(&mut probes, 151).await;
    let hit = probes.iter().filter(|p| !p.disconnected.is_empty());
    let hit = hit.count();
    assert!(before.contains(&hit), "{hit} of {before:?}");
    probes.iter_mut().for_each(|p| p.disconnected.clear());

    // It goes on while receivers write to the socket that it shares with its successor.
    while hung_at.elapsed() < lasts + Duration::from_secs(1) {
        site.publish(&source.handle, 1).await;
        until_seq(&mut probes, site.store.head("lore")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = source.status().await;
    let counters = status.counters;
    assert_eq!((counters.shard_failures, counters.shard_hangs), (1, 1));
    assert_eq!(status.receivers.len(), all);
    for probe in &probes {
        assert!(probe.disconnected.is_empty(), "{:?}", probe.disconnected);
    }
}
