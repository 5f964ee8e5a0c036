#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Mutex;

use async_trait::async_trait;
use flexicast_tokio::source::{History, SourceStatus};
use store::{ChannelSettings, Draft, Fault, FaultRule, Holder, Kind};
use tokio::time::timeout;
use uuid::Uuid;

use super::*;
use crate::metrics::Metrics;

/// Timeout for everything that should happen soon.
const SOON: Duration = Duration::from_secs(120);

/// Transport that records published updates, as long as there is room.
#[derive(Default)]
struct Recorder {
    published: Mutex<Vec<(u64, Bytes)>>,
    messages: Mutex<Vec<(u64, Bytes)>>,
    first: Mutex<u64>,
    room: Mutex<Option<usize>>,
    changed: Notify,
}

impl Recorder {
    fn seqs(&self) -> Vec<u64> {
        let published = self.published.lock().unwrap();
        published.iter().map(|(seq, _)| *seq).collect()
    }

    fn set_room(&self, room: Option<usize>) {
        *self.room.lock().unwrap() = room;
        self.changed.notify_waiters();
    }

    async fn until(&self, last: u64) {
        let there = async {
            while self.seqs().last() != Some(&last) {
                let changed = self.changed.notified();
                if self.seqs().last() == Some(&last) {
                    return;
                }
                changed.await;
            }
        };
        if timeout(SOON, there).await.is_err() {
            panic!("update {last} in {:?}", self.seqs());
        }
    }
}

#[async_trait]
impl Transport for Recorder {
    async fn publish(&self, _: &str, seq: u64, encoded: Bytes) {
        loop {
            let changed = self.changed.notified();
            let is_full = {
                let published = self.published.lock().unwrap();
                let room = *self.room.lock().unwrap();
                room.is_some_and(|room| published.len() >= room)
            };
            if !is_full {
                break;
            }
            changed.await;
        }
        self.published.lock().unwrap().push((seq, encoded));
        self.changed.notify_waiters();
    }

    async fn send_message(
        &self,
        _: &str,
        number: u64,
        message: Bytes,
    ) -> Result<(), crate::transport::Unsent> {
        self.messages.lock().unwrap().push((number, message));
        self.changed.notify_waiters();
        Ok(())
    }

    async fn set_first(&self, _: &str, first: u64) {
        *self.first.lock().unwrap() = first;
    }

    async fn status(&self) -> Option<SourceStatus> {
        None
    }

    async fn history(&self, _: u64) -> Option<History> {
        None
    }
}

struct Site {
    folder: tempfile::TempDir,
    store: Store,
    transport: Arc<Recorder>,
    wake: Arc<Notify>,
    keep: watch::Sender<Retention>,
    stored: u64,
}

fn holder(name: &str) -> Holder {
    Holder {
        id: Uuid::new_v4(),
        name: name.into(),
    }
}

/// Returns terms so short that tests see leases end.
fn short() -> LeaseTerms {
    LeaseTerms {
        ttl: Duration::from_millis(1500),
        renew: Duration::from_millis(100),
        ..LeaseTerms::default()
    }
}

/// Returns terms for a lease without renewal: a busy machine may stall for some seconds.
fn long() -> LeaseTerms {
    LeaseTerms {
        ttl: Duration::from_secs(300),
        ..LeaseTerms::default()
    }
}

async fn take(store: &Store, holder: &Holder, terms: LeaseTerms) -> LeaseGuard {
    match LeaseGuard::take(store, "lore", holder, terms)
        .await
        .unwrap()
    {
        Acquisition::Held(lease) => lease,
        Acquisition::Other { name } => panic!("held by {name}"),
    }
}

impl Site {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        store.channels().open("lore").await.unwrap();
        Self {
            folder,
            store,
            transport: Arc::new(Recorder::default()),
            wake: Arc::new(Notify::new()),
            keep: watch::Sender::new(Retention::default()),
            stored: 0,
        }
    }

    /// Stores further updates, as an ingest does.
    async fn grow(&mut self, count: u64, fence: Option<u64>) -> Result<(), StoreError> {
        let drafts: Vec<Draft> = (self.stored..self.stored + count)
            .map(|n| {
                let mut hash = [0; 32];
                hash[..8].copy_from_slice(&n.to_le_bytes());
                Draft {
                    entry_id: n.to_string(),
                    hash,
                    kind: Kind::Created,
                    index: 0,
                }
            })
            .collect();
        let encode = |seq: u64, _: &Draft| format!("{seq} {}", Uuid::new_v4()).into_bytes();
        self.store
            .updates()
            .append("lore", "http://f/", fence, &drafts, None, &encode)
            .await?;
        self.stored += count;
        self.wake.notify_one();
        Ok(())
    }

    async fn publisher(&self, lease: LeaseGuard) -> Publisher {
        let mark = self.folder.path().join("lore.head");
        let adopted = HeadMark::adopt(&mark, &self.store, "lore", None)
            .await
            .unwrap();
        let works = PublisherParts {
            store: self.store.clone(),
            transport: Arc::<Recorder>::clone(&self.transport),
            lease,
            wake: Arc::clone(&self.wake),
            keep: self.keep.subscribe(),
            metrics: Metrics::default().channel("lore"),
        };
        Publisher::new(adopted, works)
    }
}

async fn open(folder: &Path) -> Store {
    store::open_file(&folder.join("flexfeed.db")).await.unwrap()
}

/// Runs a publisher until it ends by itself, or is stopped.
fn run(
    mut publisher: Publisher,
) -> (
    CancellationToken,
    tokio::task::JoinHandle<(PublisherEnd, Publisher)>,
) {
    let stop = CancellationToken::new();
    let token = stop.clone();
    let task = tokio::spawn(async move {
        let ended = publisher.run(&token).await;
        (ended, publisher)
    });
    (stop, task)
}

async fn ended(task: tokio::task::JoinHandle<(PublisherEnd, Publisher)>) -> PublisherEnd {
    timeout(SOON, task).await.unwrap().unwrap().0
}

#[tokio::test]
async fn stored_updates_are_published_once_in_order_and_drained_at_the_end() {
    let mut site = Site::start().await;
    site.grow(3, None).await.unwrap();
    let lease = take(&site.store, &holder("a"), LeaseTerms::default()).await;
    let publisher = site.publisher(lease.clone()).await;
    assert_eq!(publisher.channel().head, 3, "stored updates are backlog");
    let status = publisher.status();
    let (stop, task) = run(publisher);
    for _ in 0..5 {
        site.grow(100, Some(lease.fence())).await.unwrap();
    }
    site.transport.until(503).await;
    assert_eq!(site.transport.seqs(), (4..=503).collect::<Vec<_>>());
    assert_eq!(
        (status.borrow().head, status.borrow().published),
        (503, 503)
    );
    stop.cancel();
    site.grow(7, Some(lease.fence())).await.unwrap();
    assert_eq!(ended(task).await, PublisherEnd::Stopped);
    // The bytes are those of the store.
    let stored = site
        .store
        .updates()
        .read("lore", 4, 1000, 1 << 20)
        .await
        .unwrap();
    let published = site.transport.published.lock().unwrap().clone();
    for (stored, (seq, bytes)) in stored.iter().zip(&published) {
        assert_eq!((stored.seq, &stored.encoded[..]), (*seq, &bytes[..]));
    }
}

#[tokio::test]
async fn a_publisher_dropped_while_waiting_continues_from_there() {
    let mut site = Site::start().await;
    let lease = take(&site.store, &holder("a"), long()).await;
    let mut publisher = site.publisher(lease).await;
    site.grow(20, None).await.unwrap();
    let stop = CancellationToken::new();
    for room in [3, 3, 11, 11] {
        site.transport.set_room(Some(room));
        tokio::select! {
            ended = publisher.run(&stop) => panic!("{ended}"),
            () = site.transport.until(room as u64) => {}
        }
        // And no more.
        let stuck = timeout(Duration::from_millis(300), publisher.run(&stop)).await;
        assert!(stuck.is_err());
        assert_eq!(site.transport.seqs().len(), room);
    }
    site.transport.set_room(None);
    stop.cancel();
    let done = timeout(SOON, publisher.run(&stop)).await.unwrap();
    assert_eq!(done, PublisherEnd::Stopped);
    assert_eq!(site.transport.seqs(), (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn without_the_lease_nothing_is_published_and_nothing_appended() {
    let mut site = Site::start().await;
    let (a, b) = (holder("a"), holder("b"));
    let terms = short();
    let (old, began) = loop {
        let began = Instant::now();
        let old = take(&site.store, &a, terms).await;
        match LeaseGuard::take(&site.store, "lore", &b, terms)
            .await
            .unwrap()
        {
            Acquisition::Other { name } => {
                assert_eq!(name, "a");
                break (old, began);
            }
            Acquisition::Held(lease) => {
                // The machine stalled in between.
                assert!(began.elapsed() >= terms.ttl, "two have it");
                lease.release(&site.store).await.unwrap();
            }
        }
    };
    // As if the process had been stopped: nothing is renewed. Its own time ends before that of the
    // database.
    let waited = async {
        while old.holds() {
            sleep(Duration::from_millis(20)).await;
        }
        let asked = LeaseGuard::take(&site.store, "lore", &b, terms)
            .await
            .unwrap();
        if let Acquisition::Held(lease) = asked {
            // A stalled machine asks only now.
            let is_over = began.elapsed() >= terms.ttl;
            assert!(
                is_over,
                "the old one relied on it longer than it was its own"
            );
            return lease;
        }
        loop {
            let asked = LeaseGuard::take(&site.store, "lore", &b, terms)
                .await
                .unwrap();
            match asked {
                Acquisition::Held(lease) => break lease,
                Acquisition::Other { .. } => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let new = timeout(SOON, waited).await.unwrap();
    assert!(new.fence() > old.fence());

    // The publisher resumes, with updates to publish and to store.
    let publisher = site.publisher(old.clone()).await;
    site.grow(5, Some(new.fence())).await.unwrap();
    let refused = site.grow(1, Some(old.fence())).await.unwrap_err();
    assert!(refused.is_fenced(), "{refused}");
    let (_stop, task) = run(publisher);
    assert_eq!(ended(task).await, PublisherEnd::Lost(LeaseLoss::Taken));
    assert_eq!(site.transport.seqs(), Vec::<u64>::new());
}

#[tokio::test]
async fn a_lapsed_lease_is_regained_if_it_is_free() {
    let mut site = Site::start().await;
    let lease = take(&site.store, &holder("a"), short()).await;
    while lease.holds() {
        sleep(Duration::from_millis(50)).await;
    }
    let (stop, task) = run(site.publisher(lease.clone()).await);
    site.grow(2, Some(lease.fence())).await.unwrap();
    site.transport.until(2).await;
    timeout(SOON, lease.held()).await.unwrap();
    stop.cancel();
    assert_eq!(ended(task).await, PublisherEnd::Stopped);

    // A released lease ends at once, and the next source gets it at once.
    lease.release(&site.store).await.unwrap();
    assert!(!lease.holds());
    let next = take(&site.store, &holder("b"), short()).await;
    assert!(next.fence() > lease.fence());
}

#[tokio::test]
async fn a_database_out_of_reach_ends_the_lease_if_another_source_may_reach_it() {
    let site = Site::start().await;
    let terms = LeaseTerms {
        ttl: Duration::from_millis(200),
        renew: Duration::from_millis(20),
        cut_off: Some(Duration::from_millis(200)),
        ..LeaseTerms::default()
    };
    let lease = take(&site.store, &holder("a"), terms).await;
    site.store.close().await;
    let lost = timeout(SOON, lease.keep(&site.store)).await.unwrap();
    assert_eq!(lost, LeaseLoss::CutOff);
    assert!(lease.trouble().is_some());

    let alone = LeaseTerms {
        cut_off: None,
        ..terms
    };
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    store.channels().open("lore").await.unwrap();
    let lease = take(&store, &holder("a"), alone).await;
    store.close().await;
    let kept = timeout(Duration::from_secs(1), lease.keep(&store)).await;
    assert!(kept.is_err(), "no other source can have it: {kept:?}");
}

#[tokio::test]
async fn only_published_updates_are_deleted() {
    let mut site = Site::start().await;
    let lease = take(&site.store, &holder("a"), LeaseTerms::default()).await;
    site.keep.send_replace(Retention {
        count: Some(10),
        age_ms: None,
    });
    let publisher = site.publisher(lease).await;
    let status = publisher.status();
    site.transport.set_room(Some(5));
    let (_stop, task) = run(publisher);
    site.grow(100, None).await.unwrap();
    site.transport.until(5).await;
    assert_eq!(status.borrow().first, 1);
    site.transport.set_room(None);
    site.transport.until(100).await;
    let cut = async {
        while status.borrow().first != 91 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, cut).await.unwrap();
    assert_eq!(site.transport.seqs(), (1..=100).collect::<Vec<_>>());
    assert_eq!(*site.transport.first.lock().unwrap(), 91);
    let kept = site
        .store
        .updates()
        .read("lore", 1, 1000, 1 << 20)
        .await
        .unwrap();
    assert_eq!(kept.first().unwrap().seq, 91);
    task.abort();
}

#[tokio::test]
async fn a_database_that_is_set_back_under_the_publisher_is_noticed() {
    let mut site = Site::start().await;
    let lease = take(&site.store, &holder("a"), long()).await;
    site.grow(2, None).await.unwrap();
    let mut publisher = site.publisher(lease.clone()).await;
    site.grow(3, None).await.unwrap();
    let stop = CancellationToken::new();
    let until = async {
        tokio::select! {
            ended = publisher.run(&stop) => panic!("{ended}"),
            () = site.transport.until(5) => {}
        }
    };
    until.await;
    // Another database in its place: shorter, and then with others under the same numbers.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = open(elsewhere.path()).await;
    other.channels().open("lore").await.unwrap();
    site.store = other.clone();
    publisher.works.store = other.clone();
    site.stored = 0;
    site.grow(4, None).await.unwrap();
    let found = timeout(SOON, publisher.publish_all(&stop)).await.unwrap();
    assert_eq!(found, PublisherEnd::SetBack, "shorter");
    site.grow(4, None).await.unwrap();
    let found = timeout(SOON, publisher.publish_all(&stop)).await.unwrap();
    assert_eq!(
        found,
        PublisherEnd::SetBack,
        "others under the same numbers"
    );
    assert_eq!(site.transport.seqs(), [3, 4, 5]);
}

/// Retention by age removes the last published update as well; the answer does not arrive.
#[tokio::test]
async fn an_interrupted_retention_is_no_database_that_was_set_back() {
    let mut site = Site::start().await;
    let lease = take(&site.store, &holder("a"), long()).await;
    let mut publisher = site.publisher(lease).await;
    site.grow(5, None).await.unwrap();
    let stop = CancellationToken::new();
    let by_age = Retention {
        count: None,
        age_ms: Some(-1),
    };
    site.keep.send_replace(by_age);
    // As if it had been dropped between the deletion and the answer.
    publisher.publish_stored().await.ok().unwrap();
    let first = FaultRule::new(Fault::Hang).every(usize::MAX);
    let faults = site.store.faults();
    faults.inject(first.on(&["delete old updates"]));
    let deleting = publisher.forget_old();
    // Long enough that it is the one that hangs, and not the next.
    timeout(Duration::from_secs(2), deleting).await.unwrap_err();
    assert!(publisher.is_tidying, "it has begun");
    site.store
        .updates()
        .retain("lore", &by_age, 5)
        .await
        .unwrap();
    assert_eq!(publisher.status.borrow().first, 1);
    let mut status = publisher.status();
    tokio::select! {
        ended = publisher.publish_all(&stop) => panic!("{ended}"),
        status = timeout(SOON, status.wait_for(|status| status.first == 6)) => {
            status.unwrap().unwrap();
        }
    }
    assert!(!publisher.is_tidying);
    // A real setback afterwards is noticed.
    site.grow(1, None).await.unwrap();
    site.transport.until(5).await;
}

/// Store that answers only when the lease has ended, and another source has the channel.
#[tokio::test]
async fn a_read_after_the_end_of_the_lease_is_ignored() {
    let mut site = Site::start().await;
    let a = holder("a");
    // The lease has to last until the first updates are published, on a busy machine too.
    let terms = LeaseTerms {
        ttl: Duration::from_secs(5),
        ..short()
    };
    let old = take(&site.store, &a, terms).await;
    let mut publisher = site.publisher(old.clone()).await;
    site.grow(3, None).await.unwrap();
    let first = timeout(SOON, publisher.publish_stored()).await.unwrap();
    first.ok().unwrap();
    let path = site.folder.path().join("flexfeed.db");
    let late = store::open_file(&path).await.unwrap();
    let faults = late.faults().clone();
    faults.inject(
        FaultRule::new(Fault::Pause)
            .on(&["read updates"])
            .at_statement(1),
    );
    publisher.works.store = late;
    let reading = tokio::spawn(async move {
        let ended = publisher.publish_stored().await;
        ended.is_err()
    });
    timeout(SOON, faults.paused()).await.unwrap();
    while old.holds() {
        sleep(Duration::from_millis(20)).await;
    }
    // The next holder deletes the old one's last update.
    let next = site.store.updates().retain(
        "lore",
        &Retention {
            count: Some(0),
            age_ms: None,
        },
        3,
    );
    next.await.unwrap();
    faults.resume();
    // Waiting for a lease that will not recover.
    let waits = timeout(Duration::from_millis(500), reading).await;
    assert!(waits.is_err(), "it took the other's doing for its own");
}

#[tokio::test]
async fn messages_are_signed_and_sent_while_the_channel_is_live() {
    let site = Site::start().await;
    let lease = take(&site.store, &holder("a"), long()).await;
    let signer = Arc::new(signing::Signer::from_seed(&[7; 32]).unwrap());
    let incarnation = site.store.channels().get("lore").await.unwrap().incarnation;
    let key = signer.key();
    let relay = MessageRelay::new(
        "lore",
        incarnation,
        MessageParts {
            store: site.store.clone(),
            transport: Arc::<Recorder>::clone(&site.transport),
            lease,
            signer,
            metrics: Metrics::default().channel("lore"),
        },
    );
    let is_live = watch::Sender::new(false);
    let task = tokio::spawn(relay.run(is_live.subscribe()));
    let refused = site.store.messages().send("lore", "m0", b"text").await;
    assert!(
        matches!(refused, Err(StoreError::NotLive { .. })),
        "{refused:?}"
    );
    let live = ChannelSettings {
        deadline_ms: Some(60_000),
        ..ChannelSettings::default()
    };
    site.store.channels().put("lore", &live).await.unwrap();
    is_live.send_replace(true);
    for id in ["m1", "m2", "m3"] {
        site.store
            .messages()
            .send("lore", id, id.as_bytes())
            .await
            .unwrap();
    }
    let sent = || site.transport.messages.lock().unwrap().clone();
    let all_sent = async {
        while sent().len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, all_sent).await.unwrap();
    let era = signing::Era {
        first: 1,
        last: None,
        incarnation,
        key,
    };
    let lineage = signing::Lineage::new(vec![era]).unwrap();
    for ((number, message), id) in sent().iter().zip(["m1", "m2", "m3"]) {
        let header = lineage.verify_message("lore", *number, message).unwrap();
        assert!(header.deadline_ms().is_some());
        assert_eq!(signing::content(message), id.as_bytes());
    }
    assert!(
        sent().is_sorted_by(|one, next| one.0 < next.0),
        "numbers ascend"
    );
    drop(is_live);
    timeout(SOON, task).await.unwrap().unwrap();
}
