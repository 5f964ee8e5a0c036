//! Bounds of pending rows.

use store::{Fence, MoveRow};
use uuid::Uuid;

use super::CHANNEL;
use super::site::Site;
use crate::metrics::RecordMetrics;
use crate::record::outbox::Outbox;

#[test]
fn rows_without_room_are_counted_and_the_oldest_dropped() {
    let metrics = RecordMetrics::default();
    let outbox = Outbox::new(metrics.clone());
    for n in 0..100_010 {
        outbox.step(
            n,
            MoveRow {
                id: 0,
                at_ms: i64::try_from(n).unwrap(),
                receiver: Uuid::nil(),
                name: String::new(),
                channel: CHANNEL.into(),
                from: "unicast".into(),
                to: "multicast".into(),
                cause: "joined".into(),
                change: 0,
            },
        );
    }
    assert_eq!(metrics.counted("moves"), (10, 0));
    assert!(outbox.take().is_none(), "no lease to write by");
    outbox.set_fences(vec![Fence {
        channel: CHANNEL.into(),
        fence: 1,
    }]);
    let batch = outbox.take().unwrap();
    assert_eq!(batch.moves[0].at_ms, 10);
    assert!(batch.moves.len() < 10_000, "written in parts");
}

/// The receiver is connected, and the console shows its state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_without_channels_says_that_it_is_there() {
    let site = Site::new().await;
    let source = site.idle_source();
    source.made.connect(0);
    site.until("what it is", async |site| {
        let snapshot = site.opened.records().snapshot().await.unwrap();
        snapshot.info.is_some_and(|info| info.holder == "idle")
    })
    .await;
    source.end().await;
    assert_eq!(site.states().await, [], "nothing else");
}
