//! From the feed's server to the store, and from the store to a receiver, on SQLite and on
//! PostgreSQL. Everything is durable as it is in service: both databases and the head mark wait for
//! the disk.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use feed::fetch::FetchConfig;
use feed::{Entry, Kind, payload, schedule};
use flexfeed_source::ingest::{Bounds, GapSettings, Hooks, Ingest, IngestSettings};
use flexfeed_source::metrics::Metrics;
use flexfeed_source::publish::{Acquisition, LeaseGuard, LeaseTerms, Publisher, PublisherParts};
use flexfeed_source::transport::Transport;
use flexicast::signing::{Signer, Statement};
use flexicast_tokio::source::{History, SourceStatus};
use jiff::Timestamp;
use kit::postgres::Postgres;
use store::{FeedSettings, HeadMark, Holder, Origin, Retention, Store};
use testbed::lore::{Book, Origin as BookOrigin, WINDOW};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::figures::Figures;

/// All figures of this file.
pub const NAMES: [&str; 6] = [
    "ingest_entries_per_s_sqlite",
    "ingest_entries_per_s_postgres",
    "publish_per_s_sqlite",
    "publish_per_s_postgres",
    "publish_batched_per_s_sqlite",
    "publish_batched_per_s_postgres",
];

const CHANNEL: &str = "lore";
const FEED: &str = "http://bench.example/all/new.atom";
/// Measurement time of each figure.
const FOR: Duration = Duration::from_secs(5);
/// Updates in one transaction, where it is not one alone.
const BATCH: usize = 100;

/// Measures what is asked for.
///
/// # Errors
/// When a database cannot be made, or what was measured did not do its work.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let folder = tempfile::tempdir().context("making a folder for the databases")?;
    let server = Postgres::start()?;
    let [ingest_lite, ingest_pg, one_lite, one_pg, many_lite, many_pg] = NAMES;
    let places = [
        ("sqlite", ingest_lite, one_lite, many_lite),
        ("postgres", ingest_pg, one_pg, many_pg),
    ];
    for (kind, ingest, one, many) in places {
        let url = |name: &str| -> Result<String> {
            if kind == "postgres" {
                return server.create(name);
            }
            let path = folder.path().join(format!("{name}.db"));
            Ok(format!("sqlite://{}", path.display()))
        };
        if figures.wants(&[ingest]) {
            let rate = runtime.block_on(take_in(&url("ingest")?))?;
            figures.take(ingest, rate, "entries/s");
        }
        for (name, batch) in [(one, 1), (many, BATCH)] {
            if figures.wants(&[name]) {
                let url = url(&format!("publish{batch}"))?;
                let rate = runtime.block_on(publish(&url, folder.path(), batch, None))?;
                figures.take(name, rate, "updates/s");
            }
        }
    }
    Ok(())
}

/// A feed of 25 entries, one of which is another one at each poll.
#[derive(Clone)]
struct Feed {
    book: Arc<Mutex<Book>>,
    polls: Arc<AtomicU64>,
}

async fn feed_document(State(feed): State<Feed>) -> impl IntoResponse {
    let mut book = feed.book.lock().unwrap_or_else(PoisonError::into_inner);
    feed.polls.fetch_add(1, Ordering::Relaxed);
    let document = book.grow(1).and_then(|()| book.give_out());
    let document = document.unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/atom+xml")], document)
}

/// Entries per second that are fetched, read, compared, and stored where they are new.
async fn take_in(url: &str) -> Result<f64> {
    let store = store::open(url).await?;
    let channel = store.channels().open(CHANNEL).await?;
    let book = Book::open(BookOrigin::Generated(3), WINDOW as u32, 0, None)?;
    let feed = Feed {
        book: Arc::new(Mutex::new(book)),
        polls: Arc::default(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}/feed", listener.local_addr()?);
    let app = Router::new()
        .route("/feed", get(feed_document))
        .with_state(feed.clone());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let settings = IngestSettings {
        channel: CHANNEL.to_owned(),
        incarnation: channel.incarnation,
        fence: None,
        deadline_ms: Arc::default(),
        signer: None,
        feed: put_feed(&store, &address).await?,
        fetch: FetchConfig::new(address),
        schedule: schedule::Settings {
            fixed: Some(Duration::ZERO),
            ..schedule::Settings::default()
        },
        first_poll: Duration::ZERO,
        store_retry: Duration::from_secs(1),
        gaps: GapSettings::default(),
        bounds: Bounds::default(),
        hooks: Hooks::default(),
    };
    let metrics = Metrics::default().channel(CHANNEL);
    let ingest = Ingest::new(settings, store.clone(), Arc::default(), metrics);
    let stop = CancellationToken::new();
    let running = tokio::spawn(ingest.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, begun) = (feed.polls.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(FOR).await;
    let (after, took) = (feed.polls.load(Ordering::Relaxed), begun.elapsed());
    stop.cancel();
    running.await?;
    server.abort();
    let head = store.channels().open(CHANNEL).await?.head;
    let shown = WINDOW as u64 + feed.polls.load(Ordering::Relaxed);
    // The first document shows one entry more than there is room for, and the last answer may not
    // have been taken in any more.
    ensure!(
        head + 2 >= shown && head <= shown,
        "{head} updates were stored of {shown} entries"
    );
    store.close().await;
    Ok(((after - before) * WINDOW as u64) as f64 / took.as_secs_f64())
}

async fn put_feed(store: &Store, address: &str) -> Result<FeedSettings> {
    let settings = FeedSettings {
        url: FEED.to_owned(),
        address: address.to_owned(),
        local: true,
        min_interval_ms: None,
        max_interval_ms: None,
        title: None,
        origin: Origin::Managed,
    };
    Ok(store.feeds().put(CHANNEL, &settings).await?.settings)
}

/// Counts what is published, and checks that it comes in order.
#[derive(Default)]
struct Counter {
    last: AtomicU64,
    disorder: AtomicU64,
    came: Notify,
}

#[async_trait]
impl Transport for Counter {
    async fn publish(&self, _channel: &str, seq: u64, _encoded: Bytes) {
        if self.last.swap(seq, Ordering::AcqRel) + 1 != seq {
            self.disorder.fetch_add(1, Ordering::Relaxed);
        }
        self.came.notify_one();
    }

    async fn send_message(
        &self,
        _: &str,
        _: u64,
        _: bytes::Bytes,
    ) -> Result<(), flexfeed_source::transport::Unsent> {
        Ok(())
    }

    async fn set_first(&self, _channel: &str, _first: u64) {}

    async fn status(&self) -> Option<SourceStatus> {
        None
    }

    async fn history(&self, _: u64) -> Option<History> {
        None
    }
}

/// Returns the signed update. One that could not be signed is empty, which shows.
pub(super) fn signed(
    signer: &Signer,
    channel: &str,
    incarnation: Uuid,
    seq: u64,
    content: &[u8],
) -> Vec<u8> {
    let statement = Statement {
        channel,
        incarnation,
        seq,
        deadline_ms: 0,
    };
    let signed = signer.sign(&statement, &rand::random(), content);
    signed.unwrap_or_default()
}

/// Updates per second that are stored, signed with this key, marked and handed to the transport,
/// each transaction after the one before.
pub(super) async fn publish(
    url: &str,
    folder: &Path,
    batch: usize,
    signer: Option<&Signer>,
) -> Result<f64> {
    let store = store::open(url).await?;
    store.channels().open(CHANNEL).await?;
    put_feed(&store, FEED).await?;
    let holder = Holder {
        id: Uuid::new_v4(),
        name: "bench".to_owned(),
    };
    let Acquisition::Held(lease) =
        LeaseGuard::take(&store, CHANNEL, &holder, LeaseTerms::default()).await?
    else {
        bail!("another source publishes the channel of a new database");
    };
    let fence = Some(lease.fence());
    let mark = folder.join(format!("{}.head", Uuid::new_v4()));
    let adopted = HeadMark::adopt(&mark, &store, CHANNEL, fence).await?;
    let incarnation = adopted.channel.incarnation;
    let counter = Arc::new(Counter::default());
    let wake = Arc::new(Notify::new());
    let (_keep, keep) = watch::channel(Retention::default());
    let mut publisher = Publisher::new(
        adopted,
        PublisherParts {
            store: store.clone(),
            transport: Arc::clone(&counter) as Arc<dyn Transport>,
            lease,
            wake: Arc::clone(&wake),
            keep,
            metrics: Metrics::default().channel(CHANNEL),
        },
    );
    let stop = CancellationToken::new();
    let ending = stop.clone();
    let running = tokio::spawn(async move { publisher.run(&ending).await });

    let model = Book::open(BookOrigin::Generated(4), 1, 0, None)?.give_out()?;
    let model = feed::parse::parse(&model, FEED)?;
    let model = model
        .entries
        .first()
        .context("the generator gave no entry")?;
    let mut stored = 0u64;
    let begun = Instant::now();
    while begun.elapsed() < FOR {
        let drafts: Vec<store::Draft> = (0..batch)
            .map(|index| store::Draft {
                entry_id: format!("urn:x-flexfeed-bench:{}", stored + index as u64),
                hash: [1; 32],
                kind: store::Kind::Created,
                index,
            })
            .collect();
        let encode = |seq: u64, draft: &store::Draft| {
            let entry = Entry {
                id: draft.entry_id.clone(),
                ..model.clone()
            };
            let now = Timestamp::now();
            let content = payload::encode(&entry, Kind::Created, FEED, incarnation, seq, now);
            match signer {
                Some(signer) => signed(signer, CHANNEL, incarnation, seq, &content),
                None => content,
            }
        };
        let appended = store
            .updates()
            .append(CHANNEL, FEED, fence, &drafts, None, &encode)
            .await?;
        stored += appended.len() as u64;
        wake.notify_one();
        while counter.last.load(Ordering::Acquire) < stored {
            let waiting = tokio::time::timeout(Duration::from_secs(30), counter.came.notified());
            waiting.await.context("waiting for the publisher")?;
        }
    }
    let took = begun.elapsed();
    stop.cancel();
    running.await?;
    store.close().await;
    ensure!(
        counter.disorder.load(Ordering::Relaxed) == 0,
        "updates were published out of order"
    );
    Ok(stored as f64 / took.as_secs_f64())
}
