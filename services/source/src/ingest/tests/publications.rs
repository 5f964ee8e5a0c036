//! Publications become updates, each once.

use std::sync::atomic::AtomicU64;

use feed::publication::{Content, FEED_URL, Publication};
use jiff::Timestamp;
use signing::{Header, Signer};
use store::{Failure, Fault, FaultRule, Holder, LeaseOutcome, NewPublication};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ingest::{PublicationIntake, PublicationSettings};
use crate::metrics::Metrics;

async fn publish(store: &Store, ids: &[&str]) {
    let new = ids.iter().map(|id| {
        let content = Content {
            id: Some((*id).to_owned()),
            body: format!("text of {id}").into_bytes(),
            ..Content::default()
        };
        let now = Timestamp::now();
        let publication = Publication::from_content(content, String::new(), now).unwrap();
        let (entry_id, payload) = publication.into_parts();
        NewPublication { entry_id, payload }
    });
    let new: Vec<_> = new.collect();
    let added = store.publications().add(CHANNEL, FEED_URL, &new).await;
    added.unwrap();
}

fn intake(store: &Store, fence: Option<u64>) -> (PublicationIntake, Arc<Notify>) {
    let settings = PublicationSettings {
        channel: CHANNEL.to_owned(),
        incarnation: Uuid::from_u128(7),
        fence,
        signer: Some(Arc::new(Signer::from_seed(&[1; 32]).unwrap())),
        deadline_ms: Arc::new(AtomicU64::new(60_000)),
        store_retry: Duration::from_millis(10),
        bounds: Bounds::default(),
    };
    let wake = Arc::new(Notify::new());
    let metrics = Metrics::default().channel(CHANNEL);
    let intake = PublicationIntake::new(settings, store.clone(), Arc::clone(&wake), metrics);
    (intake, wake)
}

async fn open() -> (Database, Store, store::Faults) {
    let database = Database::new();
    let (store, faults) = database.open_with_faults().await;
    store.channels().open(CHANNEL).await.unwrap();
    (database, store, faults)
}

/// Waits until so many updates are stored, and nothing waits any more.
async fn taken(store: &Store, count: usize) -> Vec<String> {
    let what = || format!("{count} updates");
    let look = async || {
        let stored = stored(store).await;
        let waiting = store.publications().waiting(CHANNEL, 1, 1).await.unwrap();
        (stored.len() >= count && waiting.is_empty()).then_some(stored)
    };
    let stored = on_tokio::until_some_within(SOON, what, look).await;
    assert!(stored.iter().map(|(seq, _)| *seq).eq(1..=count as u64));
    stored.into_iter().map(|(_, id)| id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn publications_become_signed_updates() {
    let (_database, store, _) = open().await;
    publish(&store, &["b", "a"]).await;
    let (intake, wake) = intake(&store, None);
    let stop = CancellationToken::new();
    let running = tokio::spawn(intake.run(stop.clone()));
    assert_eq!(taken(&store, 2).await, ["b", "a"]);
    tokio::time::timeout(SOON, wake.notified()).await.unwrap();
    // What comes later is noticed, what comes again is not stored.
    publish(&store, &["a", "c", "b"]).await;
    assert_eq!(taken(&store, 3).await, ["b", "a", "c"]);
    let updates = store
        .updates()
        .read(CHANNEL, 3, 1, usize::MAX)
        .await
        .unwrap();
    let header = Header::parse(&updates[0].encoded).unwrap();
    assert!(header.deadline_ms().is_some());
    let update = payload::decode(&updates[0].encoded).unwrap();
    assert_eq!((&*update.feed_url, update.seq), (FEED_URL, 3));
    assert_eq!(update.entry.content_text.as_deref(), Some("text of c"));
    assert_eq!(update.entry.title.as_deref(), Some("text of c"));
    stop.cancel();
    tokio::time::timeout(SOON, running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_neither_loses_nor_doubles_publications() {
    let full = || FaultRule::new(Fault::Fail(Failure::DiskFull));
    let lost = || FaultRule::new(Fault::LostReply(Failure::DiskFull));
    let cases = [
        full().on(&["store updates"]),
        lost().on(&["store updates"]),
        full().on(&["delete publications"]),
        lost().on(&["delete publications"]),
    ];
    for rule in cases {
        let (database, store, faults) = open().await;
        publish(&store, &["a", "b"]).await;
        faults.inject(rule);
        let (intake, _wake) = intake(&store, None);
        let stop = CancellationToken::new();
        let running = tokio::spawn(intake.run(stop.clone()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        faults.clear();
        let other = database.open().await;
        publish(&other, &["c"]).await;
        assert_eq!(taken(&other, 3).await, ["a", "b", "c"]);
        stop.cancel();
        tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_of_the_lease_stores_publications() {
    let (_database, store, _) = open().await;
    let holder = Holder {
        id: Uuid::from_u128(1),
        name: "attic".to_owned(),
    };
    let ttl = Duration::from_secs(600);
    let LeaseOutcome::Held(lease) = store.leases().take(CHANNEL, &holder, ttl).await.unwrap()
    else {
        panic!("the lease is free");
    };
    publish(&store, &["a"]).await;
    let (late, _) = intake(&store, Some(lease.fence - 1));
    tokio::time::timeout(SOON, late.run(CancellationToken::new()))
        .await
        .unwrap();
    assert!(stored(&store).await.is_empty());
    let (current, _) = intake(&store, Some(lease.fence));
    let stop = CancellationToken::new();
    let running = tokio::spawn(current.run(stop.clone()));
    assert_eq!(taken(&store, 1).await, ["a"]);
    stop.cancel();
    tokio::time::timeout(SOON, running).await.unwrap().unwrap();
}
