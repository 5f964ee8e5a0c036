//! Replication of flow packets to receivers without multicast, by the sending threads.

use std::num::NonZeroUsize;

use flexicast_tokio::Rung;
use flexicast_tokio::source::SourceStatus;

use crate::site::{Probe, Site, any_port};

fn replicas(status: &SourceStatus) -> usize {
    status.channels[0].flow.as_ref().unwrap().replicas
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_threads_serve_several_receivers_and_channels() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.channels.push(site.channel("news", 1));
    config.replication_threads = NonZeroUsize::new(2).unwrap();
    let source = site.start(config).await;
    let mut probes: Vec<Probe> = (0..5)
        .map(|_| {
            let mut config = site.receiver_config(source.addr);
            (config.multicast, config.replicated) = (false, true);
            config.channels.push(("news".into(), None));
            site.start_receiver(config)
        })
        .collect();
    for probe in &mut probes {
        probe.until_rung_of("lore", Rung::Replicated).await;
        probe.until_rung_of("news", Rung::Replicated).await;
    }
    for _ in 0..20 {
        site.publish_on(&source.handle, "lore", 10).await;
        site.publish_on(&source.handle, "news", 5).await;
    }
    for probe in &mut probes {
        probe.until_seq_of("lore", 200).await;
        probe.until_seq_of("news", 100).await;
        assert!(probe.by_flow("lore") >= 180, "{}", probe.by_flow("lore"));
        assert!(probe.by_flow("news") >= 90, "{}", probe.by_flow("news"));
    }
    source
        .until("all is sent", |status| status.replication_queue == 0)
        .await;
    let status = source.status().await;
    assert_eq!(replicas(&status), 5);
    let (counters, bytes) = (status.counters, status.channels[0].bytes);
    assert_eq!((counters.copies_dropped, counters.copy_errors), (0, 0));
    // Whole updates, once for each receiver, and what is around them.
    let content: usize = (1..=200)
        .map(|seq| crate::site::body("lore", seq).len())
        .sum();
    assert!(bytes.copies >= 5 * content as u64, "{bytes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_replicated_receivers_is_a_setting() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.max_replicas = 1;
    let source = site.start(config).await;
    let mut first = site.behind(source.addr);
    first.until_rung(Rung::Replicated).await;
    let mut second = site.behind(source.addr);
    source
        .until("the second one is refused", |status| {
            status.counters.protocol.replication.refused > 0
        })
        .await;
    site.publish(&source.handle, 50).await;
    first.until_seq(50).await;
    second.until_seq(50).await;
    assert!(first.by_flow("lore") >= 45, "{}", first.by_flow("lore"));
    assert_eq!(second.by_flow("lore"), 0, "by its own connection");
    assert_eq!(replicas(&source.status().await), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_to_the_address_of_a_receiver_that_has_gone() {
    let site = Site::new();
    let source = site.source().await;
    let mut stays = site.behind(source.addr);
    stays.until_rung(Rung::Replicated).await;
    let known = source.status().await.receivers[0].addr.clone();
    let mut leaves = site.behind(source.addr);
    leaves.until_rung(Rung::Replicated).await;
    let status = source.status().await;
    let addresses = status.receivers.iter().map(|r| r.addr.clone());
    let gone: Vec<String> = addresses.filter(|addr| *addr != known).collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
    leaves.handle.shutdown().await;
    source
        .until("one has gone", |status| {
            status.receivers.len() == 1 && replicas(status) == 1
        })
        .await;
    let empty = std::net::UdpSocket::bind(gone[0].as_str()).unwrap();
    empty.set_nonblocking(true).unwrap();
    site.publish(&source.handle, 100).await;
    stays.until_seq(100).await;
    assert!(stays.by_flow("lore") >= 90, "{}", stays.by_flow("lore"));
    let error = empty.recv(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}
