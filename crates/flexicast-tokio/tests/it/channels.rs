//! Channels that come and go while a source serves others.

use std::time::Duration;

use bytes::Bytes;
use flexicast_tokio::receiver::Event;
use flexicast_tokio::source::Absence;
use flexicast_tokio::{Error, Rung};

use crate::site::{Probe, Site, any_port};

/// Returns the receiver's next refusal.
async fn refused(probe: &mut Probe) -> (u64, String, bool) {
    loop {
        if let Event::Refused {
            code,
            reason,
            fatal,
        } = probe.event().await
        {
            return (code, reason, fatal);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_come_and_go_under_traffic() {
    let site = Site::new();
    let source = site.source().await;
    let mut stays = site.receiver(source.addr);
    stays.until_rung(Rung::Multicast).await;
    let mut config = site.receiver_config(source.addr);
    config.channels = vec![("news".into(), None)];
    let traffic = async {
        for _ in 0..150 {
            site.publish(&source.handle, 2).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let changes = async {
        for round in 1..=3u64 {
            let news = site.channel("news", 1);
            source.handle.add_channel(news.clone()).await.unwrap();
            let again = source.handle.add_channel(news).await;
            assert!(matches!(again, Err(Error::TwoChannels(name)) if name == "news"));
            let mut config = config.clone();
            config.channels[0].1 = site.cursor((round - 1) * 20).filter(|c| c.seq > 0);
            let mut listens = site.start_receiver(config);
            listens.until_rung_of("news", Rung::Multicast).await;
            site.publish_on(&source.handle, "news", 20).await;
            listens.until_seq_of("news", round * 20).await;
            let gone = source.handle.remove_channel("news", Absence::Gone);
            let (reason, ()) = tokio::join!(listens.until_reason(), gone);
            assert!(
                reason.contains("\"news\" is not served here any more"),
                "{reason}"
            );
            let (code, reason, fatal) = refused(&mut listens).await;
            assert!(code == 2 && fatal, "{code} {reason}");
            // Of no channel.
            let late = Bytes::from_static(b"late");
            source.handle.publish("news", round * 20 + 1, late).await;
            source.handle.set_first("news", 3).await;
        }
    };
    tokio::join!(traffic, changes, stays.until_seq(300));
    assert!(stays.disconnected.is_empty(), "{:?}", stays.disconnected);
    assert_eq!(stays.rung_of("lore"), Rung::Multicast);
    assert!(stays.by_flow("lore") >= 280, "{}", stays.by_flow("lore"));
    let names: Vec<_> = source.status().await.channels;
    assert_eq!(names.len(), 1);
}

/// A receiver of two channels loses its connection with one of them, and goes on where it was once
/// the channel is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_elsewhere_is_waited_for() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.channels.push(site.channel("news", 1));
    let source = site.start(config).await;
    let mut wanted = site.receiver_config(source.addr);
    wanted.channels.push(("news".into(), None));
    let mut probe = site.start_receiver(wanted);
    site.publish(&source.handle, 10).await;
    site.publish_on(&source.handle, "news", 10).await;
    probe.until_seq(10).await;
    probe.until_seq_of("news", 10).await;
    source
        .handle
        .remove_channel("news", Absence::Elsewhere)
        .await;
    let (code, reason, fatal) = refused(&mut probe).await;
    assert!(code == 4 && !fatal, "{code} {reason}");
    assert!(
        reason.contains("another source publishes \"news\""),
        "{reason}"
    );
    // Its other channel goes on meanwhile.
    site.publish(&source.handle, 10).await;
    source
        .handle
        .add_channel(site.channel("news", 1))
        .await
        .unwrap();
    site.publish_on(&source.handle, "news", 10).await;
    probe.until_seq(20).await;
    probe.until_seq_of("news", 20).await;
}

/// A source may begin without channels, and knows of some that others publish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_begins_without_channels() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.channels.clear();
    let source = site.start(config).await;
    source.handle.elsewhere("lore").await;
    let mut probe = site.receiver(source.addr);
    let (code, _, fatal) = refused(&mut probe).await;
    assert!(code == 4 && !fatal, "{code}");
    source
        .handle
        .add_channel(site.channel("lore", 0))
        .await
        .unwrap();
    site.publish(&source.handle, 5).await;
    probe.until_seq(5).await;
    probe.until_rung(Rung::Multicast).await;
    // An interface that does not exist: nothing has happened.
    let mut wrong = site.channel("news", 1);
    wrong.flow.as_mut().unwrap().endpoints[0].interface = [192, 0, 2, 77].into();
    let error = source.handle.add_channel(wrong).await.unwrap_err();
    assert!(error.to_string().contains("192.0.2.77"), "{error}");
    source
        .handle
        .add_channel(site.channel("news", 1))
        .await
        .unwrap();
    source.handle.shutdown().await;
    source.task.await.unwrap();
    let late = source.handle.add_channel(site.channel("more", 2)).await;
    assert!(matches!(late, Err(Error::Stopped)));
}
