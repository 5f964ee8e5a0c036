//! A receiver that is 100,000 updates behind, and what its catching up does to the others: whole
//! programs, a database in SQLite, files and delivery logs written.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use feed::{Entry, Kind, payload};
use flexicast::signing::Signer;
use jiff::Timestamp;
use testbed::delivery::{Delivery, check_once_in_order};
use testbed::lab::Multicast;
use testbed::lore::{Book, FEED_PATH, Origin, WINDOW};
use testbed::scenario::{CHANNEL, PATIENCE, Plan, QUICK_ACK_MS, Stage, now_ms};
use testbed::waiting::pause;

use crate::figures::{Figures, median};
use crate::intake;

/// All figures of this file.
pub const NAMES: [&str; 3] = [
    "catchup_updates_per_s",
    "catchup_live_p50_ratio",
    "catchup_live_p99_ratio",
];

/// Backlog of the receiver, in updates.
const BEHIND: u64 = 100_000;
/// Stored in one transaction.
const CHUNK: usize = 5_000;
/// Live updates per second, and how often the source looks for them, in seconds.
const RATE: f64 = 40.0;
const POLL_INTERVAL: f64 = 0.25;
/// Measurement time of the idle latency.
const IDLE: Duration = Duration::from_secs(10);
/// Until everybody has everything.
const BOUND: Duration = Duration::from_secs(300);
/// Receivers present all the time: on multicast and on unicast.
const OTHERS: [&str; 2] = ["r1", "r2"];
const LATE: &str = "r3";

/// Measures what is asked for.
///
/// # Errors
/// When the scenario cannot be played, or an update did not arrive once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let mut plan = Plan::new("bench-catchup", None).with_port("r2", Multicast::Cut);
    plan.poll_interval = POLL_INTERVAL;
    plan.ack_delay_ms = QUICK_ACK_MS;
    // Rates for a link of one gigabit; the defaults are meant for slower ones.
    plan.source_args = vec!["--rate", "1G", "--unicast-rate", "1G"];
    let mut seen = None;
    Stage::play(plan, |stage| {
        seen = Some(play(stage)?);
        Ok(())
    })?;
    let seen = seen.context("the scenario ended without a result")?;
    let [rate, p50, p99] = NAMES;
    figures.take(rate, seen.per_second, "updates/s");
    figures.take(p50, seen.p50_ratio, "ratio");
    figures.take(p99, seen.p99_ratio, "ratio");
    Ok(())
}

struct Observations {
    per_second: f64,
    p50_ratio: f64,
    p99_ratio: f64,
}

fn play(stage: &mut Stage) -> Result<Observations> {
    stage.wait_rung(&["r1"], "multicast")?;
    let before = stage.settle()?;
    stage.seat_mut(LATE)?.kill()?;
    stage.kill_source()?;
    eprintln!("storing {BEHIND} updates …");
    fill(stage)?;
    stage.restart_source()?;
    let head = stage.source_status_now()?.head;
    ensure!(
        head >= before + BEHIND,
        "the source serves {head} updates after {BEHIND} were stored"
    );
    wait_cursors(stage, &OTHERS, head)?;
    stage.wait_rung(&["r1"], "multicast")?;

    stage.set_rate(RATE)?;
    pause(Duration::from_secs(2));
    let idle = now_ms() as f64;
    pause(IDLE);
    let begun = now_ms() as f64;
    stage.restart_seat(LATE)?;
    // By its status: reading a log of 100,000 lines again and again would take what is measured.
    wait_cursors(stage, &[LATE], head)?;
    let last = stage
        .seat(LATE)?
        .deliveries()?
        .iter()
        .filter(|one| one.seq <= head)
        .map(|one| one.at_ms)
        .fold(0.0, f64::max);
    stage.set_rate(0.0)?;
    let end = stage.wait("the feed shown as far as it grew", PATIENCE, |stage| {
        let state = stage.feed_state()?;
        let shown = state.pending == 0 && state.unseen == 0;
        Ok(shown.then_some(BEHIND + state.entries))
    })?;
    stage.wait_head(end)?;
    wait_cursors(stage, &[OTHERS[0], OTHERS[1], LATE], end)?;
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    for name in [OTHERS[0], OTHERS[1], LATE] {
        let deliveries = stage.seat(name)?.deliveries()?;
        check_once_in_order(&deliveries, end).context(name)?;
        if name != LATE {
            quiet.extend(latencies(&deliveries, head, idle..begun));
            busy.extend(latencies(&deliveries, head, begun..last));
        }
    }
    ensure!(
        quiet.len() > 100 && busy.len() > 20,
        "too few live updates to judge by: {} and {}",
        quiet.len(),
        busy.len()
    );
    let caught_up = (head - before) as f64;
    let seconds = (last - begun) / 1_000.0;
    eprintln!(
        "{caught_up} updates in {seconds:.2} s; live latency p50 {:.2} ms, p99 {:.2} ms; before: \
         {:.2} ms, {:.2} ms",
        median(busy.clone()),
        p99(busy.clone()),
        median(quiet.clone()),
        p99(quiet.clone()),
    );
    Ok(Observations {
        per_second: caught_up / seconds,
        p50_ratio: median(busy.clone()) / median(quiet.clone()),
        p99_ratio: p99(busy) / p99(quiet),
    })
}

fn wait_cursors(stage: &mut Stage, names: &[&str], seq: u64) -> Result<()> {
    stage.wait("all to have everything", BOUND, |stage| {
        for name in names {
            let channel = stage.seat(name)?.channel()?;
            if channel.is_none_or(|channel| channel.cursor < seq) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

fn latencies(
    deliveries: &[Delivery],
    after: u64,
    during: std::ops::Range<f64>,
) -> impl Iterator<Item = f64> {
    deliveries
        .iter()
        .filter(move |one| one.seq > after && during.contains(&one.at_ms))
        .map(|one| one.latency_ms)
}

fn p99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * 99 / 100).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(0.0)
}

/// Stores updates as if they had been published without any receiver.
fn fill(stage: &Stage) -> Result<()> {
    let data = stage.run_folder().join("source");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let seed = std::fs::read(data.join("signing.key")).context("reading the signing key")?;
    let seed = seed.as_slice().try_into().context("a seed of 32 bytes")?;
    let signer = Signer::from_seed(seed)?;
    runtime.block_on(store_updates(&data.join("flexfeed.db"), &signer))?;
    for name in ["flexfeed.db", "flexfeed.db-wal", "flexfeed.db-shm"] {
        let path = data.join(name);
        if path.exists() {
            stage.source_node().hand_over(&path)?;
        }
    }
    Ok(())
}

async fn store_updates(database: &Path, signer: &Signer) -> Result<()> {
    let store = store::open_file(database).await?;
    let channel = store.channels().open(CHANNEL).await?;
    let feeds = store.feeds().list(Some(CHANNEL)).await?;
    let url = feeds.first().map(|feed| feed.settings.url.clone());
    let url = url.with_context(|| format!("the source has no feed such as {FEED_PATH}"))?;
    let models = models()?;
    let drafts: Vec<store::Draft> = (0..BEHIND)
        .map(|n| store::Draft {
            entry_id: format!("urn:x-flexfeed-bench:{n}"),
            hash: [7; 32],
            kind: store::Kind::Created,
            index: n as usize,
        })
        .collect();
    for chunk in drafts.chunks(CHUNK) {
        let encode = |seq: u64, draft: &store::Draft| {
            let mut entry = models[draft.index % models.len()].clone();
            entry.xml = entry.xml.replacen(&entry.id, &draft.entry_id, 1);
            entry.id.clone_from(&draft.entry_id);
            let now = Timestamp::now();
            let incarnation = channel.incarnation;
            let content = payload::encode(&entry, Kind::Created, &url, incarnation, seq, now);
            intake::signed(signer, CHANNEL, incarnation, seq, &content)
        };
        store
            .updates()
            .append(CHANNEL, &url, None, chunk, None, &encode)
            .await?;
    }
    store.close().await;
    Ok(())
}

/// Entries as lore has them.
fn models() -> Result<Vec<Entry>> {
    let mut models = Vec::new();
    for seed in 0..8 {
        let mut book = Book::open(Origin::Generated(seed), WINDOW as u32, 0, None)?;
        let parsed = feed::parse::parse(&book.give_out()?, "https://lore.example/all/new.atom")?;
        models.extend(parsed.entries);
    }
    Ok(models)
}
