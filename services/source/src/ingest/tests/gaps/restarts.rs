//! Gaps that a later run of the ingest fills.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_over_a_restart_is_filled() {
    let scene = Scene::new().await;
    let life = scene.begin(scene.server.inbox()).await;
    scene.polled(1).await;
    life.end().await;
    scene.store.close().await;

    scene.server.post_up_to(140);
    let store = scene.database.open().await;
    let mut life = Life::with(settings(scene.server.inbox()), store.clone()).await;
    life.stored(100).await;
    assert_eq!(life.ids(), mail_ids(40..140));
    let filled = |s: &IngestStatus| s.gap.as_ref().is_some_and(|gap| gap.state == "filled");
    let gap = life.shows("filled", filled).await.gap.unwrap();
    assert_eq!(gap.entries, 75);
    life.end().await;
}

/// Ends an ingest while a gap cannot be searched, and lets others continue. Between two of them,
/// `more` mails come.
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

    // The search fails there as well, and entries come.
    scene.server.post_up_to(240 + more);
    let life = Life::with(settings(url(&scene.server)), scene.store.clone()).await;
    life.stored(more.min(WINDOW)).await;
    scene.polled(2).await;
    ids.extend(life.ids());
    life.end().await;

    scene.server.habit(Habit::None);
    let mut life = Life::with(settings(url(&scene.server)), scene.store.clone()).await;
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
    // No second record begins.
    scene.polled(2).await;
    let pages = scene.server.pages();
    life.end().await;
    let life = Life::with(settings(url(&scene.server)), scene.store.clone()).await;
    scene.polled(2).await;
    assert_eq!(scene.server.pages(), pages);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_left_gap_is_filled_after_a_restart() {
    continues_after_restarts(ArchiveServer::inbox, 0).await;
    // Enough that the last archive document overlaps with the feed, as proof.
    continues_after_restarts(ArchiveServer::blog, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_left_gap_merges_with_the_next() {
    continues_after_restarts(ArchiveServer::inbox, 100).await;
    continues_after_restarts(ArchiveServer::blog, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_cannot_be_resumed_is_settled() {
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
            .gaps()
            .record(CHANNEL, &gap(after, 0))
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
    let life = Life::with(settings(scene.server.plain()), scene.store.clone()).await;
    let gaps = open(3).await;
    assert!(gaps[0].detail.contains("ended before"), "{gaps:?}");
    assert!(gaps[1].detail.contains("another gap after"), "{gaps:?}");
    life.end().await;
    scene
        .store
        .gaps()
        .record(CHANNEL, &gap(Some(3), 0))
        .await
        .unwrap();
    let life = Life::with(settings(scene.server.plain()), scene.store.clone()).await;
    let gaps = open(4).await;
    assert!(gaps[0].detail.contains("no archive"), "{gaps:?}");
    life.end().await;
}
