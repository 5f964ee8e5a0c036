//! A store that fails.

use axum::http::StatusCode;
use store::{Failure, Fault, FaultRule, Faults, Holder, LeaseOutcome};

use super::feed_server::{Post, post};
use super::*;

/// Fault of the store, as an ingest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// The disk is full: nothing is written.
    Full,
    /// The disk is full after this number of appends.
    FullAfter(usize),
    /// Appends are written, and reported as failed.
    LostReplies,
    /// Nothing can be read or written.
    Unreadable,
}

impl StoreFault {
    pub(crate) fn inject(self, faults: &Faults) {
        let full = FaultRule::new(Fault::Fail(Failure::DiskFull));
        faults.inject(match self {
            Self::Full => full.on(&["store updates", "record a poll"]),
            Self::FullAfter(appends) => full.on(&["store updates"]).after(appends),
            Self::LostReplies => {
                FaultRule::new(Fault::LostReply(Failure::DiskFull)).on(&["store updates"])
            }
            Self::Unreadable => full.on(&[
                "store updates",
                "record a poll",
                "read the version",
                "look up entries",
                "read updates",
            ]),
        });
    }
}

fn posts(ids: &[&str]) -> Vec<Post> {
    ids.iter().rev().map(|id| post(id, id)).collect()
}

/// Returns an ingest with a faulty store, and a follower with a working one.
async fn faulty(server: &FeedServer, database: &Database) -> (Faults, Life) {
    let (store, faults) = database.open_with_faults().await;
    let life = Life::apart(settings(server.url()), store, database.open().await).await;
    (faults, life)
}

/// Makes the store fail while entries come, and work again.
async fn fail_and_recover(trouble: StoreFault) {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (faults, mut life) = faulty(&server, &database).await;
    life.stored(1).await;

    trouble.inject(&faults);
    server.give(&posts(&["a", "b", "c"]));
    let status = life
        .shows("the failure", |s| s.store_failure.is_some())
        .await;
    let (state, detail) = status.feed();
    assert_eq!(state, FeedState::Paused);
    assert!(detail.contains("no space left"), "{detail}");
    // Entries that could not be stored are kept while the feed continues without them.
    server.give(&posts(&["c", "d"]));
    let failures = faults.failures();
    soon("several attempts", || faults.failures() > failures + 2).await;
    // Continuity is recognised although nothing can be stored: d and e were in the feed only now.
    life.polled(&server, 2).await;
    server.give(&posts(&["d", "e"]));
    life.polled(&server, 2).await;
    server.give(&posts(&["e", "f"]));
    life.polled(&server, 2).await;
    if trouble != StoreFault::LostReplies {
        assert_eq!(life.seqs(), [1]);
        let held = life.status.borrow().pending;
        // Without reads, the ingest cannot know that a is stored.
        let a = usize::from(trouble == StoreFault::Unreadable);
        assert_eq!(held, 5 + a, "b to f, each once");
    }

    faults.clear();
    life.stored(6).await;
    life.polled(&server, 2).await;
    assert_eq!(life.ids(), ["a", "b", "c", "d", "e", "f"], "{trouble:?}");
    assert_eq!(life.seqs(), dense(6), "{trouble:?}");
    let status = life
        .shows("good again", |s| s.store_failure.is_none())
        .await;
    assert_eq!(status.pending, 0);
    assert!(life.metrics.store_failures.get() >= 3);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_delays_updates_and_loses_none() {
    fail_and_recover(StoreFault::Full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_writing_stores_nothing_twice() {
    fail_and_recover(StoreFault::LostReplies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_read_delays_updates_and_loses_none() {
    fail_and_recover(StoreFault::Unreadable).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_memory_is_bounded() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (faults, life) = faulty(&server, &database).await;
    life.stored(1).await;
    StoreFault::Full.inject(&faults);
    // Documents of almost a megabyte each, until no more are fetched.
    let text = "x".repeat((1 << 20) - 4096);
    let held = || life.status.borrow().pending;
    let mut given = 0;
    loop {
        given += 1;
        assert!(given < 50, "for ever");
        server.give(&[post(&format!("big {given}"), &text)]);
        let failures = faults.failures();
        let asked = || held() == given;
        soon("an answer", || asked() || faults.failures() > failures + 2).await;
        if !asked() {
            break;
        }
    }
    assert!((2..=10).contains(&held()), "{}", held());
    let before = server.requests();
    let failures = faults.failures();
    soon("one more attempt", || faults.failures() > failures).await;
    assert_eq!(server.requests(), before, "nothing more is asked for");
    // The ingest resumes from there.
    faults.clear();
    let last = format!("big {given}");
    soon("the last one", || life.ids().last() == Some(&last)).await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_does_not_keep_the_ingest_from_ending() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (faults, mut life) = faulty(&server, &database).await;
    life.stored(1).await;
    StoreFault::Full.inject(&faults);
    server.give(&posts(&["a", "b"]));
    life.shows("the failure", |s| s.store_failure.is_some())
        .await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_ends_when_another_source_has_the_channel() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    store.channels().open(CHANNEL).await.unwrap();
    let holder = |n| Holder {
        id: Uuid::from_u128(n),
        name: format!("source {n}"),
    };
    let moment = Duration::from_millis(1);
    let take = async |n| loop {
        match store
            .leases()
            .take(CHANNEL, &holder(n), moment)
            .await
            .unwrap()
        {
            LeaseOutcome::Held(lease) => break lease.fence,
            LeaseOutcome::Other { .. } => tokio::time::sleep(moment).await,
        }
    };
    server.give(&posts(&["a"]));
    let fenced = IngestSettings {
        fence: Some(take(1).await),
        ..settings(server.url())
    };
    let life = Life::with(fenced, store.clone()).await;
    life.stored(1).await;
    take(2).await;
    // The ingest notices at the next change, and stores nothing of it.
    life.polled(&server, 2).await;
    server.give(&posts(&["a", "b"]));
    assert_eq!(life.ended().await, EndReason::Fenced);
    assert_eq!(stored(&store).await, [(1, "a".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gone_feeds_last_entries_are_stored_first() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (faults, mut life) = faulty(&server, &database).await;
    life.stored(1).await;
    StoreFault::Full.inject(&faults);
    server.give(&posts(&["a", "b"]));
    life.shows("the failure", |s| s.store_failure.is_some())
        .await;
    server.give_document(StatusCode::GONE, "text/plain", "no more".into());
    life.shows("gone", |s| s.state == FeedState::Gone).await;
    faults.clear();
    life.stored(2).await;
    assert_eq!(life.ended().await, EndReason::Gone);
    let store = database.open().await;
    let row = store
        .feeds()
        .get(CHANNEL, &server.url())
        .await
        .unwrap()
        .unwrap();
    assert!(row.gone_ms.is_some());
}
