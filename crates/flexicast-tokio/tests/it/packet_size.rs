//! The size of flow packets over real sockets.

use flexicast_tokio::Rung;
use flexicast_tokio::source::SourceStatus;

use crate::site::{Site, any_port};

fn size(status: &SourceStatus) -> usize {
    status.channels[0].flow.as_ref().unwrap().packet_size
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_grow_to_what_the_interface_takes_by_multicast_and_by_replication() {
    let site = Site::new();
    let source = site.source().await;
    let mut near = site.start_receiver(site.receiver_config(source.addr));
    let mut far = site.behind(source.addr);
    near.until_rung(Rung::Multicast).await;
    far.until_rung(Rung::Replicated).await;
    source
        .until("the largest packets", |status| size(status) == 8_972)
        .await;
    site.publish(&source.handle, 200).await;
    near.until_seq(200).await;
    far.until_seq(200).await;
    assert!(near.by_flow("lore") >= 180, "{}", near.by_flow("lore"));
    assert!(far.by_flow("lore") >= 180, "{}", far.by_flow("lore"));
    let counters = source.status().await.counters;
    assert_eq!((counters.copy_errors, counters.multicast_errors), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_packet_is_a_setting() {
    for (limit, steps) in [(1_300, 2), (1_000, 0)] {
        let site = Site::new();
        let mut config = site.config(any_port());
        config.max_udp_payload = Some(limit);
        let source = site.start(config).await;
        let mut probe = site.start_receiver(site.receiver_config(source.addr));
        probe.until_rung(Rung::Multicast).await;
        let mut seen = std::collections::BTreeSet::new();
        source
            .until("the largest packets", |status| {
                seen.insert(size(status));
                size(status) == limit
            })
            .await;
        assert!(seen.len() <= steps + 1, "{seen:?}");
        site.publish(&source.handle, 50).await;
        probe.until_seq(50).await;
        let flow = source.status().await.channels[0].flow.clone().unwrap();
        assert_eq!(flow.packet_size, limit);
        assert!(flow.bytes <= flow.packets * limit as u64, "{flow:?}");
    }
}
