//! A feed that works, and a source that is restarted.

use feed::Kind;

use super::feed_server::{Post, post};
use super::*;

/// Posts `from..=to`, newest first.
fn posts(from: usize, to: usize) -> Vec<Post> {
    (from..=to)
        .rev()
        .map(|n| post(&format!("urn:post:{n}"), &format!("text {n}")))
        .collect()
}

fn ids(from: usize, to: usize) -> Vec<String> {
    (from..=to).map(|n| format!("urn:post:{n}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_entry_is_published_once_in_order_as_the_feed_grows() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 3));
    let mut life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(3).await;
    server.give(&posts(2, 5));
    life.published(5).await;
    server.give(&posts(5, 9));
    life.published(9).await;
    life.polled(&server, 2).await;

    assert_eq!(life.seqs(), dense(9));
    assert_eq!(life.ids(), ids(1, 9), "the oldest first");
    let incarnation = store.open_channel(CHANNEL).await.unwrap().incarnation;
    for (update, seq) in life.updates().iter().zip(1..) {
        assert_eq!(update.kind, Kind::Created);
        assert_eq!((update.seq, update.incarnation), (seq, incarnation));
        assert_eq!(update.feed_url, server.url());
    }
    // What was published is what is stored.
    let in_store: Vec<_> = dense(9).into_iter().zip(ids(1, 9)).collect();
    assert_eq!(stored(&*store).await, in_store);
    assert!(server.not_modified() > 0, "polls are conditional");
    let status = life.state(FeedState::NotModified).await;
    assert_eq!((status.head, status.store_failure), (9, None));
    assert!(status.last_poll_ms.is_some());
    assert_eq!(status.last_success_ms, status.last_poll_ms);
    assert_eq!(life.metrics.updates.get(), 9);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_entries_are_published_and_redated_ones_are_not() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 2));
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(2).await;

    let mut redated = posts(1, 2);
    for post in &mut redated {
        post.updated = "2026-01-01T00:00:00Z".into();
    }
    server.give(&redated);
    life.polled(&server, 2).await;
    assert_eq!(life.seqs(), dense(2), "a new date is no news");

    server.give(&[
        post("urn:post:1", "corrected"),
        post("urn:post:2", "text 2"),
    ]);
    life.published(3).await;
    let update = life.updates().pop().unwrap();
    assert_eq!(update.kind, Kind::Updated);
    assert_eq!(update.entry.id, "urn:post:1");
    assert_eq!(update.entry.content_text.as_deref(), Some("corrected"));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_document_is_taken_in_whole() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 500));
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(500).await;
    life.polled(&server, 2).await;
    assert_eq!(life.ids(), ids(1, 500));
    let validators = store.validators(CHANNEL, &server.url()).await.unwrap();
    assert!(validators.etag.is_some(), "stored with the last part");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_publishes_nothing_twice_and_misses_nothing() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(1, 4));
    let store = database.open().await;
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(4).await;
    life.polled(&server, 1).await;
    life.end().await;
    store.close().await;

    // The validators were kept: the unchanged feed is not even sent again.
    let store = database.open().await;
    let before = server.not_modified();
    let mut life = Life::begin(&server, Arc::clone(&store)).await;
    assert_eq!(life.status.borrow().head, 4);
    life.state(FeedState::NotModified).await;
    assert!(server.not_modified() > before);
    assert_eq!(life.seqs(), Vec::<u64>::new());
    life.end().await;
    store.close().await;

    // The feed grows while nobody looks.
    server.give(&posts(3, 7));
    let store = database.open().await;
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(3).await;
    assert_eq!(life.ids(), ids(5, 7));
    assert_eq!(life.seqs(), [5, 6, 7]);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_between_storing_and_publishing_loses_nothing() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(1, 150));
    let store = database.open().await;
    // The transport takes 70 updates and no more; the ingest is ended while it waits for room.
    let life = Life::with_room(&server, Arc::clone(&store), 70).await;
    life.published(70).await;
    soon("stored beyond that", || life.status.borrow().head > 70).await;
    let first: Vec<String> = life.ids();
    life.end().await;
    store.close().await;

    let store = database.open().await;
    let head = store.open_channel(CHANNEL).await.unwrap().head;
    assert!((71..=150).contains(&head), "{head}");
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(150 - usize::try_from(head).unwrap()).await;
    life.polled(&server, 1).await;
    // What was published, then the backlog that receivers fetch from the store, then the rest.
    let backlog = stored(&*store).await.into_iter().map(|(_, id)| id);
    let backlog: Vec<String> = backlog.take(usize::try_from(head).unwrap()).collect();
    assert_eq!(first, backlog[..70]);
    assert_eq!([backlog, life.ids()].concat(), ids(1, 150));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_has_turned_over_is_a_suspected_gap() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 3));
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(3).await;
    server.give(&posts(3, 5));
    life.published(5).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    server.give(&posts(10, 12));
    life.published(8).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    life.polled(&server, 2).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    life.end().await;

    // The same across a restart.
    server.give(&posts(20, 22));
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.published(3).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    assert_eq!(life.ids(), ids(20, 22));
    life.end().await;
}
