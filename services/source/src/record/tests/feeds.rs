//! Feeds, by the hour and by change.

use std::time::Duration;

use super::CHANNEL;
use super::site::Site;
use crate::ingest::PollReport;
use crate::status::FeedState::{self, Challenged, NotModified, Ok};

const URL: &str = "https://example.org/f";

fn poll(state: FeedState, excerpt: Option<&str>) -> PollReport {
    PollReport {
        channel: CHANNEL.into(),
        url: URL.into(),
        at_ms: 7_200_000,
        state,
        detail: "as it was".into(),
        entries: 2,
        excerpt: excerpt.map(str::to_owned),
    }
}

/// Feeds are polled at once, while the takeover of earlier records takes some seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_that_end_before_it_is_recorded_are_kept() {
    let site = Site::new().await;
    site.slow_down(Duration::from_millis(1_500), Duration::ZERO);
    let source = site.source(1).await;
    let first = poll(Challenged, Some("<h1>Are you human?"));
    source.polls.send(first).await.unwrap();
    site.until("its event", async |site| {
        let records = site.opened.records();
        let events = records.feed_events(None, None, 10).await.unwrap();
        events.iter().any(|event| event.excerpt.is_some())
    })
    .await;
    let records = site.opened.records();
    let hours = records.feed_history(CHANNEL, URL, 0, i64::MAX);
    let counts: Vec<_> = hours.await.unwrap().iter().map(|h| h.entries).collect();
    assert_eq!(counts, [2]);
    source.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feeds_are_recorded_by_hour_and_by_change() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    site.until("it records", async |site| site.states().await.len() == 1)
        .await;
    for poll in [
        poll(Ok, None),
        poll(NotModified, None),
        poll(Challenged, Some("<h1>Are you human?")),
        poll(Challenged, Some("<h1>Are you human?")),
        poll(Ok, None),
    ] {
        source.polls.send(poll).await.unwrap();
    }
    let url = URL;
    site.until("two events", async |site| {
        let asked = site
            .opened
            .records()
            .feed_events(Some((CHANNEL, url)), None, 10);
        asked.await.unwrap().len() == 2
    })
    .await;
    let records = site.opened.records();
    let events = records.feed_events(None, None, 10).await.unwrap();
    let words: Vec<_> = events.iter().map(|event| event.state.as_str()).collect();
    assert_eq!(words, ["ok", "challenged"], "the newest first");
    assert_eq!(events[1].excerpt.as_deref(), Some("<h1>Are you human?"));
    let hours = records
        .feed_history(CHANNEL, url, 0, i64::MAX)
        .await
        .unwrap();
    let counts: Vec<_> = hours
        .iter()
        .map(|h| (h.polls, h.challenged, h.entries))
        .collect();
    assert_eq!(counts, [(5, 2, 10)]);
    source.end().await;
}
