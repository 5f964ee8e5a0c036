//! Bursts: more entries between two polls than the feed has room for.

use store::{GapRecord, GapState};

use super::archive_server::{ARCHIVE, ArchiveServer, Habit, WINDOW, mail_id, mail_ids};
use super::faults::Trouble;
use super::feed_server::post;
use super::growing::{ids, posts};
use super::*;

struct Scene {
    server: ArchiveServer,
    database: Database,
    store: Arc<dyn Store>,
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

    /// An ingest of the feed at this address, which has 40 mails so far and shows the last 25.
    async fn begin(&self, url: String) -> Life {
        self.server.post_up_to(40);
        let life = Life::with(settings(url), Arc::clone(&self.store)).await;
        life.stored(WINDOW).await;
        life
    }

    async fn polled(&self, polls: usize) {
        let until = self.server.polls() + polls + 1;
        soon("some polls", || self.server.polls() >= until).await;
    }

    async fn gaps(&self) -> Vec<GapRecord> {
        self.store.gaps(CHANNEL, 100).await.unwrap()
    }

    /// Waits until the one gap is no longer looked into.
    async fn settled(&self, life: &mut Life) -> GapRecord {
        let over = |s: &IngestStatus| s.gap.as_ref().is_some_and(|g| g.state != "suspected");
        let shown = life.shows("what became of the gap", over).await;
        let began = Instant::now();
        loop {
            let mut gaps = self.gaps().await;
            assert_eq!(gaps.len(), 1, "{gaps:?}");
            let gap = gaps.remove(0);
            if gap.state != GapState::Suspected {
                assert_eq!(shown.gap, Some(filling::shown(&gap)));
                return gap;
            }
            assert!(began.elapsed() < SOON, "not recorded in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_a_mailing_list_is_found_by_its_search() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(140);
    life.stored(WINDOW + 100).await;
    scene.polled(2).await;
    // Oldest first, those that were found before those of the feed, and nothing from before it was
    // first read, although the search finds that as well.
    assert_eq!(life.ids(), mail_ids(15..140));
    assert_eq!(life.seqs(), dense(125));
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 75));
    assert_eq!(gap.url, scene.server.inbox());
    assert_eq!(scene.server.pages(), 1);
    assert_eq!(life.metrics.suspected_gaps.get(), 1);
    assert_eq!(life.metrics.gap_entries.get(), 75);
    assert_eq!(life.metrics.open_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_arriving_during_a_search_keep_their_order() {
    let scene = Scene::new().await;
    scene.server.habit(Habit::Grows);
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(140);
    life.stored(WINDOW + 130).await;
    scene.polled(2).await;
    assert_eq!(life.ids(), mail_ids(15..170));
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 75));
    assert_eq!(life.metrics.suspected_gaps.get(), 1, "no other one");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_search_is_read_page_by_page() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(700);
    life.stored(WINDOW + 660).await;
    assert_eq!(life.ids(), mail_ids(15..700));
    assert_eq!(scene.settled(&mut life).await.state, GapState::Filled);
    assert!((4..=5).contains(&scene.server.pages()));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_times_of_arrival_the_dates_are_searched() {
    let scene = Scene::new().await;
    scene.server.habit(Habit::NoArrival);
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(140);
    // All of it, also what is dated early; and what was there before is found by its dates too.
    soon("all of the burst", || {
        let ids = life.ids();
        (40..140).all(|n| ids.contains(&mail_id(n)))
    })
    .await;
    let mut ids = life.ids();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "each once");
    assert_eq!(scene.settled(&mut life).await.state, GapState::Filled);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_over_a_restart_is_filled() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.inbox()).await;
    scene.polled(1).await;
    life.end().await;
    scene.store.close().await;

    scene.server.post_up_to(140);
    let store = scene.database.open().await;
    let mut life = Life::with(settings(scene.server.inbox()), Arc::clone(&store)).await;
    life.stored(100).await;
    assert_eq!(life.ids(), mail_ids(40..140));
    let filled = |s: &IngestStatus| s.gap.as_ref().is_some_and(|gap| gap.state == "filled");
    let gap = life.shows("filled", filled).await.gap.unwrap();
    assert_eq!(gap.entries, 75);
    life.end().await;
}

/// Ends an ingest while a gap cannot be looked into, and has others go on. Between two of them, so
/// many more mails come.
async fn continues_after_restarts(url: impl Fn(&ArchiveServer) -> String, more: usize) {
    let scene = Scene::new().await;
    let life = scene.begin(url(&scene.server)).await;
    scene.server.habit(Habit::Challenge);
    scene.server.post_up_to(240);
    life.stored(2 * WINDOW).await;
    scene.polled(1).await;
    let mut ids = life.ids();
    life.end().await;
    let suspected = scene.gaps().await;
    assert_eq!(suspected[0].state, GapState::Suspected);
    assert_eq!(suspected[0].after, Some(WINDOW as u64));

    // It fails there as well, and something comes.
    scene.server.post_up_to(240 + more);
    let life = Life::with(settings(url(&scene.server)), Arc::clone(&scene.store)).await;
    life.stored(more.min(WINDOW)).await;
    scene.polled(2).await;
    ids.extend(life.ids());
    life.end().await;

    scene.server.habit(Habit::None);
    let mut life = Life::with(settings(url(&scene.server)), Arc::clone(&scene.store)).await;
    life.stored(WINDOW + 200 + more - ids.len()).await;
    let gap = scene.settled(&mut life).await;
    let found = 200 - WINDOW + more - more.min(WINDOW);
    assert_eq!((gap.state, gap.entries), (GapState::Filled, found as u64));
    assert_eq!(gap.id, suspected[0].id);
    ids.extend(life.ids());
    ids.sort();
    let mut expected = mail_ids(15..240 + more);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    // And is not begun once more.
    scene.polled(2).await;
    let pages = scene.server.pages();
    life.end().await;
    let life = Life::with(settings(url(&scene.server)), Arc::clone(&scene.store)).await;
    scene.polled(2).await;
    assert_eq!(scene.server.pages(), pages);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_was_left_unfilled_is_filled_after_a_restart() {
    continues_after_restarts(ArchiveServer::inbox, 0).await;
    // So many that the last archive document overlaps with the feed, as proof.
    continues_after_restarts(ArchiveServer::blog, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_was_left_unfilled_is_one_with_the_next() {
    continues_after_restarts(ArchiveServer::inbox, 100).await;
    continues_after_restarts(ArchiveServer::blog, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_cannot_be_gone_on_with_is_settled() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.plain()).await;
    life.end().await;
    let gap = |after, at_ms| GapRecord {
        id: 0,
        url: scene.server.plain(),
        at_ms,
        state: GapState::Suspected,
        detail: "none of 25".into(),
        entries: 0,
        after,
    };
    for after in [None, Some(3), None] {
        scene
            .store
            .record_gap(CHANNEL, &gap(after, 0))
            .await
            .unwrap();
    }
    let open = async |count: usize| {
        let began = Instant::now();
        loop {
            let gaps = scene.gaps().await;
            assert_eq!(gaps.len(), count);
            if gaps.iter().all(|gap| gap.state == GapState::Open) {
                return gaps;
            }
            assert!(began.elapsed() < SOON, "{gaps:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let life = Life::with(settings(scene.server.plain()), Arc::clone(&scene.store)).await;
    let gaps = open(3).await;
    assert!(gaps[0].detail.contains("ended before"), "{gaps:?}");
    assert!(gaps[1].detail.contains("another gap after"), "{gaps:?}");
    life.end().await;
    scene
        .store
        .record_gap(CHANNEL, &gap(Some(3), 0))
        .await
        .unwrap();
    let life = Life::with(settings(scene.server.plain()), Arc::clone(&scene.store)).await;
    let gaps = open(4).await;
    assert!(gaps[0].detail.contains("no way"), "{gaps:?}");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_left_the_feed_long_ago_may_be_forgotten() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(140);
    life.stored(WINDOW + 100).await;
    life.end().await;
    let keep = store::Retention {
        count: Some(1),
        age_ms: None,
    };
    scene.store.retain(CHANNEL, &keep, 125).await.unwrap();
    let mut tidy = settings(scene.server.inbox());
    tidy.bounds = Bounds {
        known: 5,
        tidy: Duration::ZERO,
        ..Bounds::default()
    };
    let url = scene.server.inbox();
    let life = Life::with(tidy, Arc::clone(&scene.store)).await;
    let began = Instant::now();
    loop {
        let known = scene
            .store
            .known_since(CHANNEL, &url, 0, 999)
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
async fn a_failed_search_is_retried_and_the_feed_goes_on() {
    for habit in [Habit::Challenge, Habit::Breaks] {
        let scene = Scene::new().await;
        let mut life = scene.begin(scene.server.inbox()).await;
        scene.server.habit(habit);
        scene.server.post_up_to(500);
        // The document itself does not wait for ever.
        let newest = mail_id(499);
        soon("the newest one", || life.ids().contains(&newest)).await;
        scene.server.habit(Habit::None);
        life.stored(WINDOW + 460).await;
        let mut all = life.ids();
        all.sort();
        let mut expected = mail_ids(15..500);
        expected.sort();
        assert_eq!(all, expected, "{habit:?}: each once");
        let gap = scene.settled(&mut life).await;
        let found = 460 - WINDOW as u64;
        assert_eq!((gap.state, gap.entries), (GapState::Filled, found));
        assert_eq!(life.metrics.suspected_gaps.get(), 1);
        life.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_found_during_a_store_failure_are_stored_later() {
    for trouble in [Trouble::Full, Trouble::FullAfter(1), Trouble::LostReplies] {
        let scene = Scene::new().await;
        scene.server.post_up_to(40);
        let (store, faults) = scene.database.open_with_faults().await;
        let settings = settings(scene.server.inbox());
        let mut life = Life::apart(settings, store, Arc::clone(&scene.store)).await;
        life.stored(WINDOW).await;
        scene.server.habit(Habit::Challenge);
        scene.server.post_up_to(240);
        life.stored(2 * WINDOW).await;
        scene.polled(1).await;
        trouble.inject(&faults);
        scene.server.habit(Habit::None);
        let failing = |s: &IngestStatus| s.store_failure.is_some();
        life.shows("the failure", failing).await;
        // More than one attempt, and none of them is taken for a success.
        scene.polled(3).await;
        // Where everything is written in spite of the errors, that comes to light at some time.
        if trouble != Trouble::LostReplies {
            let gap = &scene.gaps().await[0];
            assert_eq!(gap.state, GapState::Suspected, "{trouble:?}");
        }
        faults.clear();
        let gap = scene.settled(&mut life).await;
        assert_eq!(
            (gap.state, gap.entries),
            (GapState::Filled, 175),
            "{trouble:?}"
        );
        life.stored(WINDOW + 200).await;
        let mut all = life.ids();
        all.sort();
        let mut expected = mail_ids(15..240);
        expected.sort();
        assert_eq!(all, expected, "{trouble:?}: each once");
        // Nothing new comes, and it shows all the same that the store works.
        life.shows("good again", |s| !failing(s)).await;
        assert_eq!(life.metrics.gap_entries.get(), 175);
        life.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_cannot_be_filled_stays_open() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.habit(Habit::Challenge);
    scene.server.post_up_to(140);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Open, 0));
    assert!(gap.detail.contains("bot check"), "{}", gap.detail);
    // Ever more rarely.
    assert_eq!(scene.server.pages(), 8);
    assert!(scene.server.polls() >= 127, "{}", scene.server.polls());
    scene.polled(3).await;
    assert_eq!(scene.server.pages(), 8, "no more of it");
    assert_eq!(life.metrics.open_gaps.get(), 1);
    life.stored(WINDOW + 25).await;
    assert_eq!(life.ids()[WINDOW..], mail_ids(115..140));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_a_weblog_is_found_in_its_archive() {
    for habit in [Habit::None, Habit::OldestFirst] {
        let scene = Scene::new().await;
        scene.server.habit(habit);
        let mut life = scene.begin(scene.server.blog()).await;
        scene.server.post_up_to(143);
        life.stored(WINDOW + 103).await;
        scene.polled(2).await;
        assert_eq!(life.ids(), mail_ids(15..143), "{habit:?}");
        let gap = scene.settled(&mut life).await;
        assert_eq!((gap.state, gap.entries), (GapState::Filled, 78));
        // No further back than to what was seen.
        assert_eq!(scene.server.pages(), (118usize.div_ceil(ARCHIVE)) - 3);
        life.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_entry_on_top_of_an_archive_document_hides_nothing() {
    // Whether the gap ends in that document, or there are more.
    for (edited, until) in [(false, 72), (false, 143), (true, 143)] {
        let scene = Scene::new().await;
        scene.server.habit(Habit::Pinned { edited });
        let mut life = scene.begin(scene.server.blog()).await;
        scene.server.post_up_to(until);
        let gap = scene.settled(&mut life).await;
        let found = (until - WINDOW - 40) as u64;
        assert_eq!((gap.state, gap.entries), (GapState::Filled, found));
        life.stored(WINDOW + until - 40).await;
        assert_eq!(life.ids(), mail_ids(15..until), "edited: {edited}");
        life.end().await;
    }
}

/// The archive ends where the feed begins, as it should, and nothing ever comes after that.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_only_adjoins_is_no_proof() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut settings = settings(scene.server.blog());
    settings.gaps.pause = Duration::from_millis(5);
    let mut life = Life::with(settings, Arc::clone(&scene.store)).await;
    life.stored(WINDOW).await;
    scene.server.post_up_to(145);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Partly, 80));
    assert!(gap.detail.contains("not certain"), "{}", gap.detail);
    life.stored(WINDOW + 105).await;
    let mut ids = life.ids();
    ids.sort();
    let mut expected = mail_ids(15..145);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_without_an_end_are_left_at_a_bound() {
    for habit in [Habit::Circle, Habit::Endless] {
        let scene = Scene::new().await;
        let mut life = scene.begin(scene.server.blog()).await;
        scene.server.habit(habit);
        scene.server.post_up_to(400);
        let gap = scene.settled(&mut life).await;
        assert_eq!(gap.state, GapState::Partly, "{habit:?}");
        assert!(scene.server.pages() <= 100, "{}", scene.server.pages());
        scene.polled(2).await;
        assert!(scene.server.pages() <= 100, "once");
        let newest = mail_id(399);
        soon("the newest one", || life.ids().last() == Some(&newest)).await;
        life.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_has_a_gap_at_each_poll_asks_for_little() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.blog()).await;
    scene.server.habit(Habit::Endless);
    for gap in 1..=6 {
        let count = 40 + gap * 2 * WINDOW;
        scene.server.post_up_to(count);
        // The feed itself goes on.
        let newest = mail_id(count - 1);
        soon("the newest one", || life.ids().contains(&newest)).await;
    }
    assert_eq!(life.metrics.suspected_gaps.get(), 6);
    assert_eq!(scene.server.pages(), finding::PAGES_PER_HOUR);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_in_a_feed_without_an_archive_is_shown() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.plain()).await;
    scene.server.post_up_to(140);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Open, 0));
    assert!(gap.detail.contains("no way"), "{}", gap.detail);
    // The gap is shown before what came with it is stored.
    scene.polled(2).await;
    life.stored(WINDOW + 25).await;
    assert_eq!(life.ids()[WINDOW..], mail_ids(115..140));
    assert_eq!(scene.gaps().await.len(), 1, "once");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_can_be_left_alone() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let left = IngestSettings {
        gaps: GapSettings {
            fill: false,
            ..GapSettings::default()
        },
        ..settings(scene.server.inbox())
    };
    let mut life = Life::with(left, Arc::clone(&scene.store)).await;
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
    let life = Life::begin(&server, Arc::clone(&store)).await;
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
    let life = Life::begin(&server, Arc::clone(&store)).await;
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
    let mut life = Life::begin(&server, Arc::clone(&store)).await;
    life.state(FeedState::NotModified).await;
    life.end().await;
    let life = Life::begin(&server, Arc::clone(&store)).await;
    life.polled(&server, 1).await;
    server.give(&posts(1, 2));
    life.stored(2).await;
    // All of them change at once, and are all there still.
    server.give(&[
        post("c", "1"),
        post("urn:post:2", "new"),
        post("urn:post:1", "new"),
    ]);
    life.stored(5).await;
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

/// A real public-inbox goes on answering from an index that it opened up to half a minute before.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_lags_behind_the_feed_proves_nothing() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.lag(Habit::Lags, 40);
    scene.server.post_up_to(140);
    let again = |s: &IngestStatus| {
        let gap = s.gap.as_ref();
        gap.is_some_and(|gap| gap.state == "suspected" && gap.detail.contains("lacks 25"))
    };
    life.shows("that it proves nothing", again).await;
    // The feed goes on, with more than one attempt, some of which find a part.
    for _ in 0..3 {
        let asked = scene.server.pages();
        soon("another attempt", || scene.server.pages() > asked).await;
    }
    scene.server.post_up_to(150);
    scene.polled(2).await;
    assert_eq!(scene.gaps().await[0].state, GapState::Suspected);
    scene.server.habit(Habit::None);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 75));
    life.stored(WINDOW + 110).await;
    let mut ids = life.ids();
    ids.sort();
    let mut expected = mail_ids(15..150);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    life.end().await;
}

/// While the search lags, one burst follows another.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_is_not_filled_yet_is_one_with_the_next() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.lag(Habit::Lags, 40);
    for burst in 1..=3 {
        let count = 40 + 100 * burst;
        scene.server.post_up_to(count);
        let newest = mail_id(count - 1);
        soon("the newest one", || life.ids().contains(&newest)).await;
    }
    assert_eq!(life.metrics.suspected_gaps.get(), 3);
    scene.server.habit(Habit::None);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 225));
    life.stored(WINDOW + 300).await;
    let mut ids = life.ids();
    ids.sort();
    let mut expected = mail_ids(15..340);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    assert_eq!(life.metrics.open_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_lags_for_ever_leaves_the_gap_open() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut settings = settings(scene.server.inbox());
    settings.gaps.pause = Duration::from_millis(5);
    let mut life = Life::with(settings, Arc::clone(&scene.store)).await;
    life.stored(WINDOW).await;
    scene.server.lag(Habit::Lags, 40);
    scene.server.post_up_to(140);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Open, 0));
    assert!(gap.detail.contains("not certain"), "{}", gap.detail);
    assert_eq!(scene.server.pages(), 8);
    assert_eq!(life.metrics.open_gaps.get(), 1);
    life.end().await;
}

/// As when two machines with indexes of their own answer in turn.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_two_indexes_are_not_taken_for_one_list() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.lag(Habit::GoesBack, 400);
    scene.server.post_up_to(700);
    let again = |s: &IngestStatus| {
        let gap = s.gap.as_ref();
        gap.is_some_and(|gap| gap.state == "suspected" && gap.detail.contains("follow one"))
    };
    life.shows("that it proves nothing", again).await;
    scene.server.habit(Habit::None);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 635));
    life.stored(WINDOW + 660).await;
    let mut ids = life.ids();
    ids.sort();
    let mut expected = mail_ids(15..700);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_lags_behind_the_feed_proves_nothing() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut settings = settings(scene.server.blog());
    // The feed moves on before it is too late.
    settings.gaps.pause = Duration::from_secs(1);
    let mut life = Life::with(settings, Arc::clone(&scene.store)).await;
    life.stored(WINDOW).await;
    scene.server.lag(Habit::Lags, 40);
    scene.server.post_up_to(140);
    let again = |s: &IngestStatus| {
        let gap = s.gap.as_ref();
        gap.is_some_and(|gap| gap.state == "suspected" && gap.detail.contains("shares no entry"))
    };
    life.shows("that it proves nothing", again).await;
    // What has left the feed since is not in there.
    scene.server.post_up_to(150);
    let again = |s: &IngestStatus| {
        let gap = s.gap.as_ref();
        gap.is_some_and(|gap| gap.state == "suspected" && gap.detail.contains("has left"))
    };
    life.shows("that it lacks something", again).await;
    scene.server.habit(Habit::None);
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 75));
    life.stored(WINDOW + 110).await;
    let mut ids = life.ids();
    ids.sort();
    let mut expected = mail_ids(15..150);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    life.end().await;
}

/// Many mails at once whose headers say times before and after those of mails that were seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_with_dates_overlapping_seen_entries_is_found() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    // From the oldest mail of the feed on, between all of them, and beyond; the search has them
    // on five pages, of which the last two have mails that were seen.
    let first = 20 * 15 + 7;
    for n in 40..840 {
        let at = i64::try_from(n - 40).unwrap();
        scene.server.post_dated(n, first + at);
    }
    soon("all of the burst", || life.seqs().len() >= WINDOW + 800).await;
    let gap = scene.settled(&mut life).await;
    assert_eq!((gap.state, gap.entries), (GapState::Filled, 775));
    let mut ids = life.ids();
    ids.sort();
    let mut expected = mail_ids(15..840);
    expected.sort();
    assert_eq!(ids, expected, "each once");
    life.end().await;
}

/// Mails that never are in the feed, for it has newer ones enough when they arrive.
#[tokio::test(flavor = "multi_thread")]
async fn mails_with_old_dates_arrive_late_and_are_shown_as_a_gap() {
    let scene = Scene::new().await;
    let now = Timestamp::now().as_second() - archive_server::FIRST;
    for n in 0..40 {
        let at = i64::try_from(n).unwrap();
        scene.server.post_dated(n, now - 7200 + 60 * at);
    }
    let mut settings = settings(scene.server.inbox());
    settings.gaps.late = Some(Duration::from_millis(100));
    let mut life = Life::with(settings, Arc::clone(&scene.store)).await;
    life.stored(WINDOW).await;
    // What was there before the feed was first read is none of it, whatever its dates.
    let looks = async |more: usize| {
        let asked = scene.server.pages();
        soon("looks", || scene.server.pages() >= asked + more).await;
    };
    looks(3).await;
    // Before all of them, between two that were never seen, and between two that were.
    for (n, at) in [
        (100, -10_000),
        (101, -7200 + 90),
        (102, -7200 + 60 * 20 + 30),
    ] {
        scene.server.post_dated(n, now + at);
    }
    life.stored(WINDOW + 3).await;
    looks(3).await;
    let found: Vec<String> = life.ids().split_off(WINDOW);
    let mut expected = mail_ids([100, 101]);
    // The third one is in the feed itself.
    expected.push(mail_id(102));
    let mut sorted = found.clone();
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);
    let gaps = scene.gaps().await;
    let count: u64 = gaps.iter().map(|gap| gap.entries).sum();
    assert_eq!(count, 2, "{gaps:?}");
    assert!(
        gaps.iter().all(|gap| gap.state == GapState::Filled),
        "{gaps:?}"
    );
    assert!(gaps[0].detail.contains("dates before"), "{gaps:?}");
    let late = |s: &IngestStatus| s.gap.as_ref().is_some_and(|gap| gap.state == "filled");
    life.shows("that they came late", late).await;
    assert_eq!(life.metrics.gap_entries.get(), 2);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

/// A look at the search may take a minute.
#[tokio::test(flavor = "multi_thread")]
async fn polls_go_on_while_late_arrivals_are_looked_for() {
    let scene = Scene::new().await;
    let now = Timestamp::now().as_second() - archive_server::FIRST;
    for n in 0..40 {
        let at = i64::try_from(n).unwrap();
        scene.server.post_dated(n, now - 7200 + 60 * at);
    }
    scene.server.habit(Habit::Stalls);
    let mut settings = settings(scene.server.inbox());
    settings.gaps.late = Some(Duration::from_millis(100));
    let life = Life::with(settings, Arc::clone(&scene.store)).await;
    life.stored(WINDOW).await;
    soon("a look", || scene.server.pages() == 1).await;
    for n in 40..60 {
        let at = i64::try_from(n).unwrap();
        scene.server.post_dated(n, now - 7200 + 60 * at);
        life.stored(WINDOW + n - 39).await;
    }
    assert_eq!(scene.server.pages(), 1, "one look at a time");
    // The source ends while a look goes on.
    life.end().await;
}

/// A gap's detail is logged and shown, and the query of an address may have keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_says_no_query_of_an_archive() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.blog()).await;
    scene.server.habit(Habit::Redirects);
    scene.server.post_up_to(140);
    let gap = scene.settled(&mut life).await;
    assert!(gap.detail.contains("key=***"), "{}", gap.detail);
    assert!(!gap.detail.contains("s3cret"), "{}", gap.detail);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_suspected_gap_it_is_polled_faster() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut slow = settings(scene.server.inbox());
    slow.schedule.min = Duration::from_millis(100);
    slow.schedule.max = Duration::from_millis(400);
    let mut life = Life::with(slow, Arc::clone(&scene.store)).await;
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
