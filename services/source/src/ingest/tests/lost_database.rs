//! A database on a server of its own, which goes away.

use kit::postgres::Postgres;

use super::growing::{ids, posts};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_delays_updates_and_loses_none() {
    let mut database = tokio::task::spawn_blocking(Postgres::start)
        .await
        .unwrap()
        .unwrap();
    let server = FeedServer::start().await;
    let store = store::open(&database.url()).await.unwrap();
    server.give(&posts(1, 5));
    let mut life = Life::begin(&server, store.clone()).await;
    life.stored(5).await;
    life.polled(&server, 1).await;

    database.kill().unwrap();
    server.give(&posts(3, 8));
    let status = life
        .shows("the failure", |s| s.store_failure.is_some())
        .await;
    assert_eq!(status.feed().0, FeedState::Paused);
    // The feed continues, and each document has entries that the one before had not.
    for last in 9..=14 {
        let before = server.requests();
        server.give(&posts(last - 3, last));
        soon("a poll", || server.requests() > before + 1).await;
    }
    assert_eq!(life.seqs(), dense(5));

    let database = tokio::task::spawn_blocking(move || {
        database.restart().unwrap();
        database
    });
    let _database = database.await.unwrap();
    life.stored(14).await;
    assert_eq!(life.ids(), ids(1, 14));
    assert_eq!(life.seqs(), dense(14));
    let status = life
        .shows("good again", |s| s.store_failure.is_none())
        .await;
    assert_eq!(status.pending, 0);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
    store.close().await;
}
