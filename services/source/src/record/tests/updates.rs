//! Updates and their holders.

use store::{Batch, SampleRow};

use super::CHANNEL;
use super::made::id;
use super::site::Site;
use crate::clock::now_ms;

/// Updates published before this source started count in the last hour, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hourly_count_continues_with_the_next_source() {
    let site = Site::new().await;
    let step_ms = SampleRow::STEPS[0];
    let sample = |age_ms: i64, updates| {
        let at_ms = now_ms() - age_ms;
        SampleRow {
            channel: CHANNEL.into(),
            step_ms,
            at_ms: at_ms - at_ms.rem_euclid(step_ms),
            weight: 1,
            updates,
            ..SampleRow::default()
        }
    };
    let batch = Batch {
        samples: vec![sample(4_000_000, 9), sample(600_000, 5_000)],
        ..Batch::default()
    };
    site.opened.records().write(&batch).await.unwrap();
    let source = site.source(1).await;
    let says = async |wanted: u64| {
        site.until("so many in an hour", async |site| {
            let pulses = site.opened.records().snapshot().await.unwrap().pulses;
            pulses.iter().any(|pulse| pulse.updates_per_hour == wanted)
        })
        .await;
    };
    says(5_000).await;
    // More than are followed.
    source.made.seen.lock().unwrap().head = 5_004;
    says(10_004).await;
    source.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_and_their_holders_are_followed() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.connect(1);
    site.until("both", async |site| site.states().await.len() == 2)
        .await;
    source.made.seen.lock().unwrap().head = 4;
    site.until("published", async |site| {
        let rows = site
            .opened
            .records()
            .progress(CHANNEL, None, 10)
            .await
            .unwrap();
        rows.len() == 4
            && rows
                .iter()
                .all(|row| row.expected == 2 && row.half_ms.is_none())
    })
    .await;
    source.made.confirm();
    site.until("delivered", async |site| {
        let rows = site
            .opened
            .records()
            .progress(CHANNEL, None, 10)
            .await
            .unwrap();
        rows.len() == 4
            && rows
                .iter()
                .all(|row| row.delivered == 2 && row.all_ms.is_some())
    })
    .await;
    site.until("the totals", async |site| {
        let pulses = site.opened.records().snapshot().await.unwrap().pulses;
        pulses
            .iter()
            .any(|p| (p.channel.as_str(), p.head, p.delivered) == (CHANNEL, 4, 2))
    })
    .await;
    source.made.disconnect(1);
    site.until("one is away", async |site| {
        let states = site.states().await;
        let away = states.iter().find(|row| row.receiver == id(1)).unwrap();
        (away.connected, away.rung.as_str(), away.cause.as_str()) == (false, "offline", "gone")
            && away.cursor == Some(4)
    })
    .await;
    let info = site
        .opened
        .records()
        .snapshot()
        .await
        .unwrap()
        .info
        .unwrap();
    assert_eq!(info.holder, "source 1");
    // Nothing has changed about it; that it is there is said again and again.
    site.until("another sign of life", async |site| {
        let now = site
            .opened
            .records()
            .snapshot()
            .await
            .unwrap()
            .info
            .unwrap();
        now.at_ms > info.at_ms
    })
    .await;
    source.end().await;
}
