//! Mails that arrive with dates before those in the feed.

use super::*;

/// Mails that never are in the feed, because it has enough newer ones when they arrive.
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
    let mut life = Life::with(settings, scene.store.clone()).await;
    life.stored(WINDOW).await;
    // Entries from before the feed was first read are not part of it, whatever their dates.
    let looks = async |more: usize| {
        let asked = scene.server.pages();
        soon("looks", || scene.server.pages() >= asked + more).await;
    };
    looks(3).await;
    // DocumentSummary all of them, between two that were never seen, and between two that were.
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

/// A search may take a minute.
#[tokio::test(flavor = "multi_thread")]
async fn polls_continue_during_a_search_for_late_arrivals() {
    let scene = Scene::new().await;
    let now = Timestamp::now().as_second() - archive_server::FIRST;
    for n in 0..40 {
        let at = i64::try_from(n).unwrap();
        scene.server.post_dated(n, now - 7200 + 60 * at);
    }
    scene.server.habit(Habit::Stalls);
    let mut settings = settings(scene.server.inbox());
    settings.gaps.late = Some(Duration::from_millis(100));
    let life = Life::with(settings, scene.store.clone()).await;
    life.stored(WINDOW).await;
    soon("a look", || scene.server.pages() == 1).await;
    for n in 40..60 {
        let at = i64::try_from(n).unwrap();
        scene.server.post_dated(n, now - 7200 + 60 * at);
        life.stored(WINDOW + n - 39).await;
    }
    assert_eq!(scene.server.pages(), 1, "one look at a time");
    // The source ends during a search.
    life.end().await;
}
