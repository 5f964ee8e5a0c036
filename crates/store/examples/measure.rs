//! Measures the store on this machine, on SQLite and on a throw-away PostgreSQL that syncs to
//! disk.
//!
//! `cargo run --release -p flexfeed-store --example measure [FOLDER]`: the databases go to FOLDER,
//! or to the folder for temporary files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kit::postgres::{Options, Postgres};
use store::{Batch, Draft, Kind, StateRow, Store};
use uuid::Uuid;

const URL: &str = "https://example.org/new.atom";
const UPDATES: usize = 100_000;
const RECEIVERS: usize = 100_000;
/// About what a mail is, compressed.
const BYTES: usize = 1500;

fn drafts(from: usize, to: usize) -> Vec<Draft> {
    (from..to)
        .map(|n| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&n.to_be_bytes());
            Draft {
                entry_id: format!("<20261121.{n}.example@lists.example.org>"),
                hash,
                kind: Kind::Created,
                index: n,
            }
        })
        .collect()
}

fn encode(seq: u64, _: &Draft) -> Vec<u8> {
    let mut state = seq | 1 << 40;
    (0..BYTES)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

async fn measure(name: &str, store: &Store) {
    store.channels().open("lore").await.unwrap();
    // Polls of 25 entries of which one is new, as ingest does them.
    let mut times = Vec::new();
    let started = Instant::now();
    for n in 25..525 {
        let begun = Instant::now();
        let document = drafts(n - 25, n);
        let ids: Vec<_> = document
            .iter()
            .map(|draft| draft.entry_id.as_str())
            .collect();
        store.entries().hashes("lore", URL, &ids).await.unwrap();
        store
            .updates()
            .append("lore", URL, None, &document[24..], None, &encode)
            .await
            .unwrap();
        times.push(begun.elapsed());
    }
    let all = started.elapsed();
    times.sort();
    println!(
        "{name}: polls of 25 entries, 1 new: {:.0}/s, median {:?}, 99 % {:?}",
        500.0 / all.as_secs_f64(),
        times[250],
        times[495]
    );

    let started = Instant::now();
    for from in (1000..UPDATES + 1000).step_by(64) {
        let part = drafts(from, (from + 64).min(UPDATES + 1000));
        store
            .updates()
            .append("lore", URL, None, &part, None, &encode)
            .await
            .unwrap();
    }
    rate(
        name,
        "updates appended in parts of 64",
        UPDATES,
        started.elapsed(),
    );

    for (limit, bytes) in [(256, 4 << 20), (1024, 4 << 20)] {
        let started = Instant::now();
        let (mut from, mut count) = (501, 0);
        loop {
            let updates = store
                .updates()
                .read("lore", from, limit, bytes)
                .await
                .unwrap();
            let Some(last) = updates.last() else { break };
            from = last.seq + 1;
            count += updates.len();
        }
        assert_eq!(count, UPDATES);
        let what = format!("updates read in parts of {limit}");
        rate(name, &what, count, started.elapsed());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let started = Instant::now();
    let report = store.backup(&file).await.unwrap();
    rate(name, "updates saved", UPDATES, started.elapsed());
    let target = folder.path().join("restored.db");
    let started = Instant::now();
    store::restore_file(&target, &file, &mut |_| {})
        .await
        .unwrap();
    rate("sqlite", "updates restored", UPDATES, started.elapsed());
    println!("{name}: the backup has {} bytes", report.bytes);
}

/// Measures the console's records with many receivers.
async fn measure_records(name: &str, records: &Store) {
    let states = |from: usize, to: usize, round: i64| Batch {
        states: (from..to)
            .map(|n| StateRow {
                receiver: Uuid::from_u128(n as u128),
                channel: "lore".to_owned(),
                connected: true,
                rung: "multicast".to_owned(),
                since_ms: 1_800_000_000_000,
                cause: "it proved that packets arrive".to_owned(),
                cursor: Some(70_000),
                backlog: 0,
                key_sequence: Some(3),
                rtt_us: Some(12_000),
                address: "[2001:db8::1]:4433".to_owned(),
                session: Some(round),
                legs: String::new(),
                updated_ms: 1_800_000_000_000 + round,
                change: 0,
            })
            .collect(),
        ..Batch::default()
    };
    let mut last = 0;
    for round in 0..3 {
        let started = Instant::now();
        for from in (0..RECEIVERS).step_by(1000) {
            let batch = states(from, from + 1000, round);
            last = records.records().write(&batch).await.unwrap();
        }
        rate(
            name,
            "states written in parts of 1,000",
            RECEIVERS,
            started.elapsed(),
        );
    }
    let started = Instant::now();
    let all = records.records().snapshot().await.unwrap().states.len();
    rate(name, "states read at once", all, started.elapsed());
    let started = Instant::now();
    for n in 0..20 {
        records
            .records()
            .write(&states(n * 5000, n * 5000 + 1000, 9))
            .await
            .unwrap();
        let changes = records.records().changes_since(last, 10_000).await.unwrap();
        assert_eq!(changes.states.len(), 1000);
        last = changes.upto;
    }
    rate(
        name,
        "states written and read as changes of 1,000",
        20_000,
        started.elapsed(),
    );
}

fn rate(name: &str, what: &str, count: usize, time: Duration) {
    let rate = count as f64 / time.as_secs_f64();
    println!("{name}: {count} {what} in {time:.2?}: {rate:.0}/s");
}

#[tokio::main]
async fn main() {
    let place = std::env::args_os().nth(1).map(PathBuf::from);
    let place = place.unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&place).unwrap();
    let file = folder.path().join("a.db");
    measure_all("sqlite", store::open_file(&file).await.unwrap()).await;

    let options = Options {
        place: Some(place),
        ..Options::default()
    };
    let server = tokio::task::spawn_blocking(move || Postgres::start_with(&options))
        .await
        .unwrap()
        .unwrap();
    let opened = store::open(&server.url()).await.unwrap();
    measure_all("postgres", opened).await;
}

async fn measure_all(name: &str, opened: Store) {
    measure_records(name, &opened).await;
    measure(name, &opened).await;
    opened.close().await;
}
