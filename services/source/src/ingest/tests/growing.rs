//! A working feed, and a source that is restarted.

use feed::Kind;

use super::faults::StoreFault;
use super::feed_server::{Post, post};
use super::*;

/// Returns posts `from..=to`, newest first.
pub(super) fn posts(from: usize, to: usize) -> Vec<Post> {
    (from..=to)
        .rev()
        .map(|n| post(&format!("urn:post:{n}"), &format!("text {n}")))
        .collect()
}

pub(super) fn ids(from: usize, to: usize) -> Vec<String> {
    (from..=to).map(|n| format!("urn:post:{n}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_entry_is_stored_once_in_order_as_the_feed_grows() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 3));
    let mut life = Life::begin(&server, store.clone()).await;
    life.stored(3).await;
    server.give(&posts(2, 5));
    life.stored(5).await;
    server.give(&posts(5, 9));
    life.stored(9).await;
    life.polled(&server, 2).await;

    assert_eq!(life.seqs(), dense(9));
    assert_eq!(life.ids(), ids(1, 9), "the oldest first");
    let incarnation = store.channels().open(CHANNEL).await.unwrap().incarnation;
    for (update, seq) in life.updates().iter().zip(1..) {
        assert_eq!(update.kind, Kind::Created);
        assert_eq!((update.seq, update.incarnation), (seq, incarnation));
        assert_eq!(update.feed_url, server.url());
    }
    assert!(server.not_modified() > 0, "polls are conditional");
    let status = life.state(FeedState::NotModified).await;
    assert_eq!((status.pending, status.store_failure), (0, None));
    assert_eq!(status.title.as_deref(), Some("Lists"));
    assert!(status.next_poll_ms >= status.last_poll_ms);
    assert!(status.last_poll_ms.is_some());
    assert_eq!(status.last_success_ms, status.last_poll_ms);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_entries_are_stored_and_redated_ones_are_not() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 2));
    let life = Life::begin(&server, store.clone()).await;
    life.stored(2).await;

    let mut redated = posts(1, 2);
    for post in &mut redated {
        post.updated = "2026-01-01T00:00:00Z".into();
    }
    server.give(&redated);
    life.polled(&server, 2).await;
    assert_eq!(life.seqs(), dense(2), "a new date is no change");

    server.give(&[
        post("urn:post:1", "corrected"),
        post("urn:post:2", "text 2"),
    ]);
    life.stored(3).await;
    let update = life.updates().pop().unwrap();
    assert_eq!(update.kind, Kind::Updated);
    assert_eq!(update.entry.id, "urn:post:1");
    assert_eq!(update.entry.content_text.as_deref(), Some("corrected"));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_document_is_stored_whole() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 500));
    let life = Life::begin(&server, store.clone()).await;
    life.stored(500).await;
    life.polled(&server, 2).await;
    assert_eq!(life.ids(), ids(1, 500));
    let validators = store
        .feeds()
        .validators(CHANNEL, &server.url())
        .await
        .unwrap();
    assert!(validators.etag.is_some(), "stored with the last part");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_stores_nothing_twice_and_misses_nothing() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(1, 4));
    let store = database.open().await;
    let life = Life::begin(&server, store.clone()).await;
    life.stored(4).await;
    life.polled(&server, 1).await;
    life.end().await;
    store.close().await;

    // The validators were kept: the unchanged feed is not even sent again.
    let store = database.open().await;
    let before = server.not_modified();
    let mut life = Life::begin(&server, store.clone()).await;
    life.state(FeedState::NotModified).await;
    assert!(server.not_modified() > before);
    assert_eq!(life.seqs(), Vec::<u64>::new());
    life.end().await;
    store.close().await;

    // The feed grows while no source polls it.
    server.give(&posts(3, 7));
    let store = database.open().await;
    let life = Life::begin(&server, store.clone()).await;
    life.stored(3).await;
    assert_eq!(life.ids(), ids(5, 7));
    assert_eq!(life.seqs(), [5, 6, 7]);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_the_middle_of_a_document_loses_nothing() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(1, 150));
    let store = database.open().await;
    // The store takes the first part of the document and fails at the second one.
    let (faulty, faults) = database.open_with_faults().await;
    StoreFault::FullAfter(1).inject(&faults);
    let mut life = Life::apart(settings(server.url()), faulty, store.clone()).await;
    life.stored(64).await;
    let status = life.shows("failure", |s| s.store_failure.is_some()).await;
    assert_eq!(status.pending, 150 - 64);
    let validators = store
        .feeds()
        .validators(CHANNEL, &server.url())
        .await
        .unwrap();
    assert_eq!(validators, Validators::default(), "only with the last part");
    life.end().await;

    let life = Life::begin(&server, store.clone()).await;
    life.stored(150 - 64).await;
    life.polled(&server, 1).await;
    let all: Vec<String> = stored(&store).await.into_iter().map(|(_, id)| id).collect();
    assert_eq!(all, ids(1, 150));
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_feeds_share_a_channel() {
    let (first, second) = (FeedServer::start().await, FeedServer::start().await);
    let database = Database::new();
    let store = database.open().await;
    // The same ids in both: a feed's entries are its own.
    first.give(&posts(1, 30));
    second.give(&posts(1, 40));
    let lives = [
        Life::begin(&first, store.clone()).await,
        Life::begin(&second, store.clone()).await,
    ];
    let head = async || store.channels().open(CHANNEL).await.unwrap().head;
    let began = Instant::now();
    while head().await < 70 {
        assert!(began.elapsed() < SOON, "not in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for life in lives {
        life.end().await;
    }
    let updates = store
        .updates()
        .read(CHANNEL, 1, 1000, usize::MAX)
        .await
        .unwrap();
    let seqs: Vec<u64> = updates.iter().map(|u| u.seq).collect();
    assert_eq!(seqs, dense(70));
    for (server, count) in [(&first, 30), (&second, 40)] {
        let updates = updates.iter().map(|u| payload::decode(&u.encoded).unwrap());
        let of: Vec<String> = updates
            .filter(|u| u.feed_url == server.url())
            .map(|u| u.entry.id)
            .collect();
        assert_eq!(of, ids(1, count));
    }
}
