//! Gaps that are filled by a public-inbox's search.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_a_mailing_list_is_found_by_its_search() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.post_up_to(140);
    life.stored(WINDOW + 100).await;
    scene.polled(2).await;
    // Oldest first, the found ones before those of the feed, and nothing from before it was first
    // read, although the search finds that as well.
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
    // All of it, also mails that are dated early; and earlier entries are found by their dates too.
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

/// Many mails at once whose headers have times before and after those of mails that were seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_with_dates_overlapping_seen_entries_is_found() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    // From the oldest mail of the feed on, between all of them, and beyond; the search has them on
    // five pages, of which the last two have mails that were seen.
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
