//! Operations on single receivers, and their history.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use flexicast_tokio::Rung;
use flexicast_tokio::source::{HistoryEvent, HistoryEventKind, Move};

use crate::site::{Running, Site};

const SECOND: Duration = Duration::from_secs(1);

async fn history(source: &Running) -> Vec<HistoryEvent> {
    let mut all: Vec<HistoryEvent> = Vec::new();
    loop {
        let after = all.last().map_or(0, |h| h.number);
        let part = source.handle.history(after).await.unwrap();
        assert_eq!(part.missed, 0);
        all.extend(part.events);
        if all.last().map_or(0, |h| h.number) >= part.last {
            break;
        }
    }
    let numbers: Vec<u64> = all.iter().map(|h| h.number).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    all
}

fn moves(history: &[HistoryEvent]) -> Vec<&Move> {
    let moves = history.iter().filter_map(|h| match &h.what {
        HistoryEventKind::Moved(step) => Some((h, step)),
        _ => None,
    });
    moves
        .map(|(h, step)| {
            assert_eq!((h.number, h.at_ms), (step.number, step.at_ms));
            step
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_receiver_stays_on_unicast_also_when_it_comes_back() {
    let site = Site::new();
    let source = site.source().await;
    let config = site.receiver_config(source.addr);
    let id = config.receiver_id;
    let mut probe = site.start_receiver(config);
    let mut other = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    other.until_rung(Rung::Multicast).await;
    let held = BTreeSet::from([id]);
    source.handle.hold(held.clone()).await;
    probe.until_rung(Rung::Unicast).await;
    site.publish(&source.handle, 10).await;
    probe.until_seq(10).await;
    assert_eq!(probe.by_flow("lore"), 0);
    let status = source.status().await;
    let id = id.to_string();
    let its = |id: &str| {
        let receiver = status.receivers.iter().find(|r| r.id == id).unwrap();
        receiver.channels[0].clone()
    };
    assert_eq!(
        (its(&id).rung.as_str(), its(&id).cause.as_deref()),
        ("unicast", Some("held"))
    );

    assert_eq!(source.handle.disconnect(id.parse().unwrap()).await, Some(1));
    let reason = probe.until_reason().await;
    assert!(reason.contains("operator"), "{reason}");
    source.handle.hold(held).await;
    site.publish(&source.handle, 10).await;
    probe.until_seq(20).await;
    // Packets of the flow would have shown by now that it works.
    tokio::time::sleep(2 * SECOND).await;
    site.publish(&source.handle, 10).await;
    probe.until_seq(30).await;
    assert_eq!(probe.rung_of("lore"), Rung::Unicast);
    assert_eq!(other.rung_of("lore"), Rung::Multicast);
    source.handle.hold(BTreeSet::new()).await;
    probe.until_rung(Rung::Multicast).await;
    let all = history(&source).await;
    let its: Vec<_> = moves(&all)
        .into_iter()
        .filter(|m| m.receiver == id)
        .collect();
    let its: Vec<_> = its
        .iter()
        .map(|m| (m.to.as_str(), m.cause.as_str()))
        .collect();
    assert_eq!(
        its,
        [
            ("multicast", "joined"),
            ("unicast", "held"),
            ("multicast", "joined")
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_receiver_comes_back_by_itself() {
    let site = Site::new();
    let source = site.source().await;
    let config = site.receiver_config(source.addr);
    let id = config.receiver_id;
    let mut probe = site.start_receiver(config);
    probe.until_rung(Rung::Multicast).await;
    let first = source.status().await.receivers[0].clone();
    assert!(first.software.contains("test") && first.connected_ms > 0);
    let begun = Instant::now();
    assert_eq!(source.handle.disconnect(id).await, Some(1));
    probe.until_reason().await;
    probe.until_rung(Rung::Multicast).await;
    assert!(begun.elapsed() < 15 * SECOND, "{:?}", begun.elapsed());
    site.publish(&source.handle, 3).await;
    probe.until_seq(3).await;
    source
        .until("the old connection is over", |s| s.receivers.len() == 1)
        .await;
    let second = source.status().await.receivers[0].clone();
    assert!(second.session > first.session, "{first:?} {second:?}");
    assert_eq!(
        source.handle.disconnect(uuid::Uuid::new_v4()).await,
        Some(0)
    );

    let mut ended = None;
    while ended.is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let all = history(&source).await;
        ended = all.into_iter().find_map(|h| match h.what {
            HistoryEventKind::Disconnected {
                session,
                receiver,
                reason,
            } => Some((session, receiver, reason)),
            _ => None,
        });
    }
    let (session, receiver, reason) = ended.unwrap();
    assert_eq!((session, receiver), (first.session, id));
    assert!(reason.contains("operator"), "{reason}");
    let all = history(&source).await;
    let connected: Vec<_> = all
        .iter()
        .filter_map(|h| match &h.what {
            HistoryEventKind::Connected {
                session,
                receiver,
                name,
                ..
            } => Some((*session, *receiver, name.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(
        connected,
        [(first.session, id, "probe"), (second.session, id, "probe")]
    );
    assert!(
        moves(&all).iter().all(|m| m.cause == "joined"),
        "its end is no move: {all:?}"
    );
}

/// A move and the place that it leads to have the same time, whenever one asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_is_exact_in_time() {
    let site = Site::new();
    let source = site.source().await;
    let mut latest = source.handle.latest();
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    latest.wait_for(|number| *number >= 2).await.unwrap();
    let all = history(&source).await;
    assert!(
        matches!(all[0].what, HistoryEventKind::Connected { .. }),
        "{all:?}"
    );
    let step = moves(&all)[0].clone();
    assert_eq!(
        (step.number, step.from.as_str(), step.to.as_str()),
        (2, "unicast", "multicast")
    );
    for _ in 0..20 {
        let status = source.status().await;
        assert_eq!(status.receivers[0].channels[0].since_ms, step.at_ms);
        assert_eq!(status.receivers[0].connected_ms, all[0].at_ms);
        assert_eq!(status.moves.last().unwrap().number, step.number);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let bytes = source.status().await.channels[0].bytes;
    site.publish(&source.handle, 20).await;
    probe.until_seq(20).await;
    let after = source.status().await.channels[0].bytes;
    assert!(after.flow > bytes.flow && after.by_unicast_alone > bytes.by_unicast_alone);
    assert_eq!((after.unicast, after.copies), (bytes.unicast, 0));
}
