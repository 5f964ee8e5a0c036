//! How fast the store is on this machine, on SQLite and on a throw-away PostgreSQL that syncs to disk.
//!
//! `cargo run --release -p flexfeed-store --example measure [FOLDER]`: the databases go to FOLDER, or to
//! the folder for temporary files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use postgres::{Options, Postgres};
use store::{Draft, Kind, Store};

const URL: &str = "https://example.org/new.atom";
const UPDATES: usize = 100_000;
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

async fn measure(name: &str, store: &dyn Store) {
    store.open_channel("lore").await.unwrap();
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
        store.known("lore", URL, &ids).await.unwrap();
        store
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
            .append("lore", URL, None, &part, None, &encode)
            .await
            .unwrap();
    }
    rate(name, "appended in parts of 64", UPDATES, started.elapsed());

    for (limit, bytes) in [(256, 4 << 20), (1024, 4 << 20)] {
        let started = Instant::now();
        let (mut from, mut count) = (501, 0);
        loop {
            let updates = store.updates("lore", from, limit, bytes).await.unwrap();
            let Some(last) = updates.last() else { break };
            from = last.seq + 1;
            count += updates.len();
        }
        assert_eq!(count, UPDATES);
        let what = format!("read in parts of {limit}");
        rate(name, &what, count, started.elapsed());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let started = Instant::now();
    let report = store.backup(&file).await.unwrap();
    rate(name, "saved", UPDATES, started.elapsed());
    let target = folder.path().join("restored.db");
    let started = Instant::now();
    store::restore_file(&target, &file, &mut |_| {})
        .await
        .unwrap();
    rate("sqlite", "restored", UPDATES, started.elapsed());
    println!("{name}: the backup has {} bytes", report.bytes);
}

fn rate(name: &str, what: &str, count: usize, time: Duration) {
    let rate = count as f64 / time.as_secs_f64();
    println!("{name}: {count} updates {what} in {time:.2?}: {rate:.0}/s");
}

#[tokio::main]
async fn main() {
    let place = std::env::args_os().nth(1).map(PathBuf::from);
    let place = place.unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&place).unwrap();
    let store = store::open_file(&folder.path().join("a.db")).await.unwrap();
    measure("sqlite", &*store).await;
    store.close().await;

    let options = Options {
        place: Some(place),
        ..Options::default()
    };
    let server = tokio::task::spawn_blocking(move || Postgres::start_with(&options))
        .await
        .unwrap()
        .unwrap();
    let store = store::open(&server.url()).await.unwrap();
    measure("postgres", &*store).await;
    store.close().await;
}
