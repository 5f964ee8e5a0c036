//! Searches and stores that fail while a gap is filled.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_search_is_retried_while_polls_continue() {
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
    for trouble in [
        StoreFault::Full,
        StoreFault::FullAfter(1),
        StoreFault::LostReplies,
    ] {
        let scene = Scene::new().await;
        scene.server.post_up_to(40);
        let (store, faults) = scene.database.open_with_faults().await;
        let settings = settings(scene.server.inbox());
        let mut life = Life::apart(settings, store, scene.store.clone()).await;
        life.stored(WINDOW).await;
        scene.server.habit(Habit::Challenge);
        scene.server.post_up_to(240);
        life.stored(2 * WINDOW).await;
        scene.polled(1).await;
        trouble.inject(&faults);
        scene.server.habit(Habit::None);
        let failing = |s: &IngestStatus| s.store_failure.is_some();
        life.shows("the failure", failing).await;
        // More than one attempt, and none of them counts as a success.
        scene.polled(3).await;
        // If everything is written in spite of the errors, that is found out at some time.
        if trouble != StoreFault::LostReplies {
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
        // No new entry comes, and the recovery of the store shows all the same.
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
    // At growing intervals.
    assert_eq!(scene.server.pages(), 8);
    assert!(scene.server.polls() >= 127, "{}", scene.server.polls());
    scene.polled(3).await;
    assert_eq!(scene.server.pages(), 8, "no more of it");
    assert_eq!(life.metrics.open_gaps.get(), 1);
    life.stored(WINDOW + 25).await;
    assert_eq!(life.ids()[WINDOW..], mail_ids(115..140));
    life.end().await;
}
