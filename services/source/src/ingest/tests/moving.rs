//! Feeds that move, and feeds that are removed.

use axum::http::StatusCode;

use super::feed_server::post;
use super::*;

async fn row(store: &Store, server: &FeedServer) -> FeedRow {
    store
        .feeds()
        .get(CHANNEL, &server.url())
        .await
        .unwrap()
        .unwrap()
}

/// Waits until the move from one address to the other is recorded.
async fn recorded(store: &Store, from: &FeedServer, to: &FeedServer) {
    let began = Instant::now();
    while row(store, from).await.moved_to != Some(to.url()) {
        assert!(began.elapsed() < SOON, "not recorded in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the number of requests: the last one may still be in its socket.
async fn counted(server: &FeedServer) -> usize {
    loop {
        let before = server.requests();
        tokio::time::sleep(Duration::from_millis(200)).await;
        if server.requests() == before {
            return before;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gone_feed_is_not_polled_until_added_again() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    store.channels().open(CHANNEL).await.unwrap();
    let given = settings(server.url());
    store.feeds().put(CHANNEL, &given.feed).await.unwrap();
    server.give(&[post("a", "1")]);
    let life = Life::begin(&server, store.clone()).await;
    life.stored(1).await;
    server.give_document(StatusCode::GONE, "text/plain", "no more".into());
    let mut status = life.status.clone();
    assert_eq!(life.ended().await, EndReason::Gone);
    let shown = status.borrow_and_update().clone();
    assert_eq!(shown.state, FeedState::Gone);
    assert!(shown.detail.contains("410"), "{}", shown.detail);
    assert_eq!(shown.next_poll_ms, None);
    let recorded = row(&store, &server).await;
    assert!(recorded.gone_ms.is_some());
    assert_eq!(recorded.last_poll.unwrap().state, "gone");

    // No further requests.
    let before = server.requests();
    let life = Life::begin(&server, store.clone()).await;
    assert_eq!(life.ended().await, EndReason::Gone);
    assert_eq!(server.requests(), before);

    store.feeds().put(CHANNEL, &given.feed).await.unwrap();
    server.give(&[post("b", "2"), post("a", "1")]);
    let life = Life::begin(&server, store.clone()).await;
    life.stored(1).await;
    assert_eq!(life.ids(), ["b"]);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_move_is_used_at_the_next_start() {
    let (old, new, database) = (
        FeedServer::start().await,
        FeedServer::start().await,
        Database::new(),
    );
    let store = database.open().await;
    new.give(&[post("a", "1")]);
    old.lead_to(StatusCode::MOVED_PERMANENTLY, &new.url());
    let mut life = Life::begin(&old, store.clone()).await;
    life.stored(1).await;
    let status = life.shows("moved", |s| s.moved_to.is_some()).await;
    assert_eq!(status.moved_to, Some(new.url()));
    recorded(&store, &old, &new).await;
    life.end().await;

    let before = counted(&old).await;
    new.give(&[post("b", "2"), post("a", "1")]);
    let life = Life::begin(&old, store.clone()).await;
    life.stored(1).await;
    assert_eq!(life.ids(), ["b"], "the same feed at another address");
    assert_eq!(life.updates()[0].feed_url, old.url(), "by its own name");
    assert_eq!(old.requests(), before, "asked at the new address at once");

    // The new address breaks: the old one is polled again, and redirects elsewhere by now.
    let third = FeedServer::start().await;
    third.give(&[post("c", "3"), post("b", "2")]);
    old.lead_to(StatusCode::PERMANENT_REDIRECT, &third.url());
    new.give_document(StatusCode::NOT_FOUND, "text/plain", "lost".into());
    life.stored(2).await;
    assert_eq!(life.ids(), ["b", "c"]);
    recorded(&store, &old, &third).await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_gone_at_its_new_address_is_polled_at_its_own() {
    let (old, new, database) = (
        FeedServer::start().await,
        FeedServer::start().await,
        Database::new(),
    );
    let store = database.open().await;
    new.give(&[post("a", "1")]);
    old.lead_to(StatusCode::MOVED_PERMANENTLY, &new.url());
    let life = Life::begin(&old, store.clone()).await;
    life.stored(1).await;
    recorded(&store, &old, &new).await;
    life.end().await;

    new.give_document(StatusCode::GONE, "text/plain", "no more".into());
    old.give(&[post("b", "2"), post("a", "1")]);
    let life = Life::begin(&old, store.clone()).await;
    life.stored(1).await;
    assert_eq!(life.ids(), ["b"]);
    life.end().await;
    assert_eq!(row(&store, &old).await.gone_ms, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_moves_and_moves_to_no_feed_are_ignored() {
    let (old, new, database) = (
        FeedServer::start().await,
        FeedServer::start().await,
        Database::new(),
    );
    let store = database.open().await;
    new.give(&[post("a", "1")]);
    old.lead_to(StatusCode::FOUND, &new.url());
    let mut life = Life::begin(&old, store.clone()).await;
    life.stored(1).await;
    new.give_document(StatusCode::OK, "text/html", "<html>log in</html>".into());
    old.lead_to(StatusCode::MOVED_PERMANENTLY, &new.url());
    life.state(FeedState::NotAFeed).await;
    life.polled(&old, 2).await;
    assert_eq!(life.status.borrow().moved_to, None);
    life.end().await;
    assert_eq!(row(&store, &old).await.moved_to, None);
}
