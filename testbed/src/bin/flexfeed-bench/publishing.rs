//! Entries published over the console's API, in batches, until the source has stored them as
//! updates: on SQLite and on PostgreSQL, durable as in service.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use flexfeed_source::ingest::{Bounds, PublicationIntake, PublicationSettings};
use flexfeed_source::metrics::Metrics;
use flexicast::signing::Signer;
use kit::postgres::Postgres;
use serde_json::{Value, json};
use store::Store;
use testbed::http;
use testbed::waiting::pause;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::console::Console;
use crate::figures::Figures;

/// All figures of this file.
pub const NAMES: [&str; 2] = ["publish_api_per_s", "publish_api_per_s_postgres"];

const CHANNEL: &str = "lore";
const BATCH: usize = 100;
/// Measurement time of each figure.
const FOR: Duration = Duration::from_secs(5);
/// Time limit for the source, after the last batch.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures what is asked for.
///
/// # Errors
/// The console or its database cannot be started, or an entry is lost.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [sqlite, postgres] = NAMES;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if figures.wants(&[sqlite]) {
        let folder = tempfile::tempdir().context("making a folder for the database")?;
        let url = format!("sqlite://{}", folder.path().join("flexfeed.db").display());
        figures.take(sqlite, publish(&runtime, &url)?, "entries/s");
    }
    if figures.wants(&[postgres]) {
        let server = Postgres::start()?;
        let url = server.create("publishing")?;
        figures.take(postgres, publish(&runtime, &url)?, "entries/s");
    }
    Ok(())
}

/// Returns the entries per second that one client publishes, and the source stores meanwhile.
fn publish(runtime: &tokio::runtime::Runtime, url: &str) -> Result<f64> {
    let store = runtime.block_on(store::open(url))?;
    runtime.block_on(store.channels().open(CHANNEL))?;
    let stop = CancellationToken::new();
    runtime.spawn(intake(&store)?.run(stop.clone()));
    let console = Console::start(url)?;
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < FOR {
        send(&console, sent)?;
        sent += BATCH;
    }
    while runtime.block_on(head(&store))? < sent as u64 {
        ensure!(began.elapsed() < FOR + PATIENCE, "entries were lost");
        pause(Duration::from_millis(5));
    }
    let rate = sent as f64 / began.elapsed().as_secs_f64();
    stop.cancel();
    Ok(rate)
}

fn intake(store: &Store) -> Result<PublicationIntake> {
    let settings = PublicationSettings {
        channel: CHANNEL.to_owned(),
        incarnation: Uuid::from_u128(7),
        fence: None,
        signer: Some(Arc::new(Signer::from_seed(&[1; 32])?)),
        deadline_ms: Arc::new(AtomicU64::new(0)),
        store_retry: Duration::from_millis(100),
        bounds: Bounds::default(),
    };
    let metrics = Metrics::default().channel(CHANNEL);
    let wake = Arc::new(Notify::new());
    Ok(PublicationIntake::new(
        settings,
        store.clone(),
        wake,
        metrics,
    ))
}

async fn head(store: &Store) -> Result<u64> {
    let channels = store.channels().list().await?;
    let channel = channels.first().context("there is no channel")?;
    Ok(channel.channel.head)
}

/// Sends a batch, again as long as it is refused because too much waits or is sent.
fn send(console: &Console, first: usize) -> Result<()> {
    let event = |number: usize| {
        json!({"specversion": "1.0", "id": number.to_string(), "source": "/bench", "type": "bench",
            "subject": format!("Entry {number}"), "datacontenttype": "text/plain",
            "data": "A line of some length, as in a short notice. ".repeat(10)})
    };
    let batch: Vec<Value> = (first..first + BATCH).map(event).collect();
    let batch = json!(batch).to_string();
    let url = format!(
        "http://{}/api/v1/channels/{CHANNEL}/publish",
        console.address
    );
    let fields = [
        ("Content-Type", "application/cloudevents-batch+json"),
        ("Cookie", console.cookie.as_str()),
        ("X-CSRF-Token", console.csrf.as_str()),
    ];
    loop {
        let answer = http::send("POST", &url, &fields, &batch)?;
        match answer.status {
            202 => return Ok(()),
            429 => pause(Duration::from_millis(20)),
            status => bail!("{status}: {}", String::from_utf8_lossy(&answer.body)),
        }
    }
}
