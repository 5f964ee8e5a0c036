//! Gaps that are filled from a weblog's archive documents (RFC 5005).

use super::*;

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
        // No further back than to the entries that were seen.
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
    let mut life = Life::with(settings, scene.store.clone()).await;
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
async fn endless_archives_are_bounded() {
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
async fn requests_for_gaps_are_bounded_per_hour() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.blog()).await;
    scene.server.habit(Habit::Endless);
    for gap in 1..=6 {
        let count = 40 + gap * 2 * WINDOW;
        scene.server.post_up_to(count);
        // The feed itself continues.
        let newest = mail_id(count - 1);
        soon("the newest one", || life.ids().contains(&newest)).await;
    }
    assert_eq!(life.metrics.suspected_gaps.get(), 6);
    assert_eq!(scene.server.pages(), search::PAGES_PER_HOUR);
    life.end().await;
}

/// A gap's detail is logged and shown, and the query of an address may have keys.
#[tokio::test(flavor = "multi_thread")]
async fn gap_details_hide_the_query_of_an_archive() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.blog()).await;
    scene.server.habit(Habit::Redirects);
    scene.server.post_up_to(140);
    let gap = scene.settled(&mut life).await;
    assert!(gap.detail.contains("key=***"), "{}", gap.detail);
    assert!(!gap.detail.contains("s3cret"), "{}", gap.detail);
    life.end().await;
}
