//! Archives and indexes that are older than the feed.

use super::*;

/// A real public-inbox keeps answering from an index that it opened up to half a minute before.
#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_search_proves_nothing() {
    let scene = Scene::new().await;
    let mut life = scene.begin(scene.server.inbox()).await;
    scene.server.lag(Habit::Lags, 40);
    scene.server.post_up_to(140);
    let again = |s: &IngestStatus| {
        let gap = s.gap.as_ref();
        gap.is_some_and(|gap| gap.state == "suspected" && gap.detail.contains("lacks 25"))
    };
    life.shows("that it proves nothing", again).await;
    // The feed continues, with more than one attempt, some of which find a part.
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
async fn an_unfilled_gap_merges_with_the_next() {
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
async fn a_permanently_lagging_search_leaves_the_gap_open() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut settings = settings(scene.server.inbox());
    settings.gaps.pause = Duration::from_millis(5);
    let mut life = Life::with(settings, scene.store.clone()).await;
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

/// Emulates two machines with indexes of their own that answer in turn.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_two_indexes_are_not_combined() {
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
async fn a_lagging_archive_proves_nothing() {
    let scene = Scene::new().await;
    scene.server.post_up_to(40);
    let mut settings = settings(scene.server.blog());
    // The feed moves on before it is too late.
    settings.gaps.pause = Duration::from_secs(1);
    let mut life = Life::with(settings, scene.store.clone()).await;
    life.stored(WINDOW).await;
    scene.server.lag(Habit::Lags, 40);
    scene.server.post_up_to(140);
    let again = |s: &IngestStatus| {
        let gap = s.gap.as_ref();
        gap.is_some_and(|gap| gap.state == "suspected" && gap.detail.contains("shares no entry"))
    };
    life.shows("that it proves nothing", again).await;
    // The index lacks the entries that have left the feed since.
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
