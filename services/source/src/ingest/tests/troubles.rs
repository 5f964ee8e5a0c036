//! A failing feed, and one that recovers.

use axum::http::StatusCode;

use super::feed_server::post;
use super::*;

fn page(title: &str) -> String {
    format!("<!doctype html><html><head><title>{title}</title></head><body>x</body></html>")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_in_place_of_the_feed_is_reported_and_later_entries_are_not_missed() {
    let (mut server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&[post("a", "1")]);
    let mut life = Life::begin(&server, store.clone()).await;
    life.stored(1).await;

    server.give_document(StatusCode::OK, "text/html", page("Under construction"));
    let status = life.state(FeedState::NotAFeed).await;
    assert!(
        status.detail.contains("'Under construction'"),
        "{}",
        status.detail
    );
    assert!(status.detail.contains(&server.url()), "{}", status.detail);
    // Also if the page stays, and the server would answer that it is unmodified.
    life.polled(&server, 2).await;
    assert_eq!(life.status.borrow().state, FeedState::NotAFeed);

    let bot_check = page("Making sure you're not a bot!");
    server.give_document(StatusCode::OK, "text/html", bot_check);
    life.state(FeedState::Challenged).await;

    server.give_document(StatusCode::NOT_FOUND, "text/plain", "gone".into());
    let status = life
        .shows("404", |s| s.detail.contains("answered 404"))
        .await;
    assert_eq!(status.state, FeedState::Error);

    server.go_away().await;
    life.shows("no server", |s| {
        s.state == FeedState::Error && !s.detail.contains("answered 404")
    })
    .await;
    assert_eq!(life.seqs(), [1], "none of that is an update");
    let record = store
        .feeds()
        .get(CHANNEL, &server.url())
        .await
        .unwrap()
        .unwrap();
    let poll = record.last_poll.unwrap();
    assert!(
        ["not-a-feed", "challenged", "error"].contains(&poll.state.as_str()),
        "{poll:?}"
    );

    server.give(&[post("c", "3"), post("b", "2"), post("a", "1")]);
    server.come_back().await;
    life.stored(3).await;
    assert_eq!(life.ids(), ["a", "b", "c"]);
    life.shows("good again", |s| s.state.is_good()).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    for result in [
        FeedState::NotAFeed,
        FeedState::Challenged,
        FeedState::Error,
        FeedState::Ok,
    ] {
        assert!(life.metrics.polls(result) > 0, "{result:?}");
    }
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_at_the_start_is_polled_later() {
    let (mut server, database) = (FeedServer::start().await, Database::new());
    server.give(&[post("a", "1")]);
    server.go_away().await;
    let mut life = Life::begin(&server, database.open().await).await;
    let status = life.state(FeedState::Error).await;
    assert!(status.detail.contains(&server.url()), "{}", status.detail);
    server.come_back().await;
    life.stored(1).await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_cannot_be_read_costs_only_itself() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let feed = "<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>x</title>\
                <entry><id>good</id><title>t</title><content>c</content></entry>\
                <entry></entry></feed>";
    server.give_document(StatusCode::OK, "application/atom+xml", feed.into());
    let life = Life::begin(&server, database.open().await).await;
    life.stored(1).await;
    assert_eq!(life.ids(), ["good"]);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_cannot_be_used_is_a_state_of_the_feed() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let mut private = settings(server.url());
    private.feed.local = false;
    let mut life = Life::with(private, database.open().await).await;
    let status = life.state(FeedState::Error).await;
    assert!(status.detail.contains("not a public"), "{}", status.detail);
    assert!(status.detail.contains("local"), "{}", status.detail);
    assert_eq!(server.requests(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_honoured() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give_document(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "".into());
    server.ask_to_wait("3600");
    let store = database.open().await;
    let mut life = Life::begin(&server, store.clone()).await;
    let status = life.state(FeedState::Error).await;
    let wait = status.next_poll_ms.unwrap() - status.last_poll_ms.unwrap();
    assert!((3_600_000..=4_000_000).contains(&wait), "{wait}");
    assert_eq!(server.requests(), 1);
    // The database shows it, too.
    let row = recorded(&store, &server, |poll| poll.next_ms.is_some()).await;
    assert_eq!(
        row.next_ms,
        status.next_poll_ms.and_then(|ms| i64::try_from(ms).ok())
    );
    life.end().await;
}

/// Returns the record of the last poll, once it fulfils the condition.
async fn recorded(
    store: &Store,
    server: &FeedServer,
    is: impl Fn(&PollRecord) -> bool,
) -> PollRecord {
    let began = Instant::now();
    loop {
        let row = store.feeds().get(CHANNEL, &server.url()).await.unwrap();
        let poll = row.and_then(|row| row.last_poll);
        match poll {
            Some(poll) if is(&poll) => return poll,
            other => assert!(began.elapsed() < SOON, "not in time; there is {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Otherwise the wait would be invisible until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_recorded_also_soon_after_the_poll_before() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give_document(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "".into());
    let life = Life::begin(&server, store.clone()).await;
    recorded(&store, &server, |poll| poll.state == "error").await;
    server.ask_to_wait("3600");
    let long = |poll: &PollRecord| {
        let wait = poll.next_ms.map(|next| next - poll.at_ms);
        wait.is_some_and(|wait| wait >= 3_600_000)
    };
    recorded(&store, &server, long).await;
    life.end().await;
}
