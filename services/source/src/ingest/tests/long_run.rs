//! Random runs: bursts, changes, a failing store, restarts.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::archive_server::{ArchiveServer, WINDOW, mail_id};
use super::faults::StoreFault;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_entry_is_stored_once_under_random_faults() {
    for seed in 0..4 {
        run(seed).await;
    }
}

async fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (server, database) = (ArchiveServer::start().await, Database::new());
    let url = if seed.is_multiple_of(2) {
        server.inbox()
    } else {
        server.blog()
    };
    let inner = database.open().await;
    let (store, faults) = database.open_with_faults().await;
    let begin = async || Life::apart(settings(url.clone()), store.clone(), inner.clone()).await;
    let trouble = |trouble: StoreFault| {
        faults.clear();
        trouble.inject(&faults);
    };
    let mut count = WINDOW;
    server.post_up_to(count);
    let mut life = begin().await;
    life.stored(WINDOW).await;
    for _ in 0..40 {
        match rng.random_range(0..10) {
            0..=3 => count += rng.random_range(1..WINDOW),
            4..=5 => count += rng.random_range(WINDOW..6 * WINDOW),
            6 => server.edit(rng.random_range(0..count)),
            7 => trouble(StoreFault::Full),
            8 => trouble([StoreFault::LostReplies, StoreFault::Unreadable][rng.random_range(0..2)]),
            _ => {
                life.end().await;
                life = begin().await;
            }
        }
        server.post_up_to(count);
        if rng.random_bool(0.6) {
            let until = server.polls() + rng.random_range(1..4);
            soon("some polls", || server.polls() >= until).await;
        }
        if rng.random_bool(0.5) {
            faults.clear();
        }
    }
    faults.clear();
    let all: HashSet<String> = (0..count).map(mail_id).collect();
    let began = Instant::now();
    loop {
        let there = stored(&inner).await;
        let ids: HashSet<String> = there.iter().map(|(_, id)| id.clone()).collect();
        if ids == all {
            let seqs: Vec<u64> = there.iter().map(|(seq, _)| *seq).collect();
            assert_eq!(seqs, dense(there.len() as u64));
            break;
        }
        let gaps = inner.gaps().list(CHANNEL, 5).await.unwrap();
        let missing: Vec<usize> = (0..count).filter(|n| !ids.contains(&mail_id(*n))).collect();
        assert!(
            began.elapsed() < SOON,
            "seed {seed}: {missing:?} of {count} are missing; {gaps:?}; {:?}",
            life.status.borrow()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    life.end().await;
    // No version twice.
    let updates = inner
        .updates()
        .read(CHANNEL, 1, 100_000, usize::MAX)
        .await
        .unwrap();
    let mut versions = HashSet::new();
    for update in updates {
        let entry = payload::decode(&update.encoded).unwrap().entry;
        assert!(
            versions.insert((entry.id, entry.content_text)),
            "seed {seed}"
        );
    }
}
