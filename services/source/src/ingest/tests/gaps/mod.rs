//! Bursts: more entries between two polls than the feed has room for.

mod failures;
mod lagging;
mod late_arrivals;
mod mailing_list;
mod restarts;
mod weblog;

use store::{GapRecord, GapState};

use super::archive_server::{ARCHIVE, ArchiveServer, Habit, WINDOW, mail_id, mail_ids};
use super::faults::StoreFault;
use super::feed_server::post;
use super::growing::{ids, posts};
use super::*;

struct Scene {
    server: ArchiveServer,
    database: Database,
    store: Store,
}

impl Scene {
    async fn new() -> Self {
        let database = Database::new();
        Self {
            server: ArchiveServer::start().await,
            store: database.open().await,
            database,
        }
    }

    /// Starts an ingest of the feed at this address, which has 40 mails so far and shows the last
    /// 25.
    async fn begin(&self, url: String) -> Life {
        self.server.post_up_to(40);
        let life = Life::with(settings(url), self.store.clone()).await;
        life.stored(WINDOW).await;
        life
    }

    async fn polled(&self, polls: usize) {
        let until = self.server.polls() + polls + 1;
        soon("some polls", || self.server.polls() >= until).await;
    }

    async fn gaps(&self) -> Vec<GapRecord> {
        self.store.gaps().list(CHANNEL, 100).await.unwrap()
    }

    /// Waits until the search for the one gap has ended.
    async fn settled(&self, life: &mut Life) -> GapRecord {
        let over = |s: &IngestStatus| s.gap.as_ref().is_some_and(|g| g.state != "suspected");
        let shown = life.shows("the result of the gap", over).await;
        let began = Instant::now();
        loop {
            let mut gaps = self.gaps().await;
            assert_eq!(gaps.len(), 1, "{gaps:?}");
            let gap = gaps.remove(0);
            if gap.state != GapState::Suspected {
                assert_eq!(shown.gap, Some(gap::shown(&gap)));
                return gap;
            }
            assert!(began.elapsed() < SOON, "not recorded in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_known_entries_are_removed() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(140);
    life.stored(WINDOW + 100).await;
    life.end().await;
    let keep = store::Retention {
        count: Some(1),
        age_ms: None,
    };
    scene
        .store
        .updates()
        .retain(CHANNEL, &keep, 125)
        .await
        .unwrap();
    let mut tidy = settings(scene.server.inbox());
    tidy.bounds = Bounds {
        known: 5,
        tidy: Duration::ZERO,
        ..Bounds::default()
    };
    let url = scene.server.inbox();
    let life = Life::with(tidy, scene.store.clone()).await;
    let began = Instant::now();
    loop {
        let known = scene
            .store
            .entries()
            .since(CHANNEL, &url, 0, 999)
            .await
            .unwrap();
        // Those that the feed still has.
        if known.len() == WINDOW {
            break;
        }
        assert!(began.elapsed() < SOON, "{} are known", known.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.polled(2).await;
    assert!(life.ids().is_empty(), "nothing comes back as new");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_entry_does_not_hide_a_gap() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    let mut shelf_after_burst = mail_ids(40..100);
    scene.server.post_up_to(100);
    scene.server.edit(30);
    life.stored(WINDOW + 61).await;
    shelf_after_burst.push(mail_id(30));
    assert_eq!(life.ids()[WINDOW..], shelf_after_burst);
    assert_eq!(scene.settled(&mut life).await.state, GapState::Filled);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_in_a_feed_without_an_archive_is_shown() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.plain()).await;
    scene.server.post_up_to(140);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Open, 0));
    assert!(gap.detail.contains("no archive"), "{}", gap.detail);
    // The gap is shown before the entries of its document are stored.
    scene.polled(2).await;
    life.stored(WINDOW + 25).await;
    assert_eq!(life.ids()[WINDOW..], mail_ids(115..140));
    assert_eq!(scene.gaps().await.len(), 1, "once");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gap_filling_can_be_disabled() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let left = IngestSettings {
        gaps: GapSettings {
            fill: false,
            ..GapSettings::default()
        },
        ..settings(scene.server.inbox())
    };
    let mut life = Life::with(left, scene.store.clone()).await;
    life.stored(WINDOW).await;
    scene.server.post_up_to(140);
    assert_eq!(scene.settled(&mut life).await.state, GapState::Open);
    assert_eq!(scene.server.pages(), 0);
    life.stored(WINDOW + 25).await;
    assert_eq!(life.ids()[WINDOW..], mail_ids(115..140));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_feed_that_has_turned_over_is_a_suspected_gap() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&posts(1, 3));
    let life = Life::begin(&server, store.clone()).await;
    life.stored(3).await;
    server.give(&posts(3, 5));
    life.stored(5).await;
    // An empty document says nothing, and the next one is compared with the one before it.
    server.give(&[]);
    life.polled(&server, 1).await;
    server.give(&posts(4, 6));
    life.stored(6).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    server.give(&posts(10, 12));
    life.stored(9).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    life.polled(&server, 2).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    life.end().await;

    // The same across a restart.
    server.give(&posts(20, 22));
    let life = Life::begin(&server, store.clone()).await;
    life.stored(3).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    assert_eq!(life.ids(), ids(20, 22));
    life.end().await;
    server.give(&[
        post("urn:post:23", "text 23"),
        post("urn:post:22", "text 22"),
    ]);
    let life = Life::begin(&server, store).await;
    life.stored(1).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_entries_of_a_feed_are_no_gap() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    server.give(&[]);
    let mut life = Life::begin(&server, store.clone()).await;
    life.state(FeedState::NotModified).await;
    life.end().await;
    let life = Life::begin(&server, store.clone()).await;
    life.polled(&server, 1).await;
    server.give(&posts(1, 2));
    life.stored(2).await;
    // All of them change at once, and all are still present.
    server.give(&[
        post("c", "1"),
        post("urn:post:2", "new"),
        post("urn:post:1", "new"),
    ]);
    life.stored(5).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_are_frequent_after_a_suspected_gap() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut slow = settings(scene.server.inbox());
    slow.schedule.min = Duration::from_millis(100);
    slow.schedule.max = Duration::from_millis(400);
    let mut life = Life::with(slow, scene.store.clone()).await;
    let wait = |s: &IngestStatus| s.next_poll_ms.unwrap() - s.last_poll_ms.unwrap();
    let status = life.shows("a poll", |s| s.next_poll_ms.is_some()).await;
    assert!((350..=450).contains(&wait(&status)), "{}", wait(&status));
    scene.server.post_up_to(140);
    let status = life.shows("a shorter wait", |s| wait(s) <= 115).await;
    assert!(wait(&status) >= 99, "the minimum is one: {}", wait(&status));
    life.shows("the ordinary wait again", |s| wait(s) >= 350)
        .await;
    life.end().await;
}
