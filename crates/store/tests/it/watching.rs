//! Watches: woken also by another process, and after the server was away.

use std::time::{Duration, Instant};

use store::{Batch, NewCommand, ReceiverEdit, Store, Topic, Watch};
use tokio::time::timeout;
use uuid::Uuid;

use crate::messages::live;
use crate::outage::start;
use crate::rows::{enrol, moved};
use crate::site::{Site, on_both};

on_both! {
    a_write_wakes_watches_in_this_process_and_in_others,
    a_message_wakes_the_source_soon,
    a_watch_that_was_dropped_and_a_store_that_was_closed_leave_nothing_behind,
}

/// No wake-up takes longer. Generous: the machine may be busy.
const BOUND: Duration = Duration::from_secs(20);

fn news() -> Batch {
    Batch {
        moves: vec![moved(1, 1, "silent")],
        ..Batch::default()
    }
}

async fn woken(watch: &mut Watch) {
    timeout(BOUND, watch.changed()).await.unwrap();
}

/// Until what it rang for when it began to listen is over.
async fn settled(watches: &mut [Watch]) {
    let quiet = Duration::from_millis(1500);
    for watch in watches {
        while timeout(quiet, watch.changed()).await.is_ok() {}
    }
}

async fn a_write_wakes_watches_in_this_process_and_in_others(site: Site) {
    let (here, there) = (site.open().await, site.open().await);
    enrol(&here, 1).await;
    let mut changes = [here.watch(Topic::Changes), there.watch(Topic::Changes)];
    let mut commands = [here.watch(Topic::Commands), there.watch(Topic::Commands)];
    settled(&mut changes).await;
    settled(&mut commands).await;
    for n in 0..3 {
        // A change of each kind.
        match n {
            0 => drop(here.records().write(&news()).await.unwrap()),
            1 => {
                let edit = ReceiverEdit {
                    label: Some("x".to_owned()),
                    ..ReceiverEdit::default()
                };
                let set = here.receivers().edit(Uuid::from_u128(1), &edit).await;
                assert!(set.unwrap().is_some());
            }
            _ => assert!(here.receivers().revoke(Uuid::from_u128(1)).await.unwrap()),
        }
        for watch in &mut changes {
            woken(watch).await;
        }
    }
    settle_commands_untouched(&mut commands).await;
    here.commands().ask(&NewCommand::default()).await.unwrap();
    for watch in &mut commands {
        woken(watch).await;
    }
    close(&[here, there]).await;
}

async fn a_message_wakes_the_source_soon(site: Site) {
    let (here, there) = (site.open().await, site.open().await);
    live(&here, "lore", 60_000).await;
    let mut messages = [there.watch(Topic::Messages), here.watch(Topic::Messages)];
    settled(&mut messages).await;
    let mut took = Vec::new();
    for n in 0..9 {
        let sent = here.messages().send("lore", &n.to_string(), b"x").await;
        assert!(!sent.unwrap().is_repeat);
        let started = Instant::now();
        for watch in &mut messages {
            woken(watch).await;
        }
        took.push(started.elapsed());
    }
    took.sort();
    // Each message is sent as soon as the one before it was heard of, so that it waits for a whole
    // period where the database is polled.
    assert!(took[4] < Duration::from_millis(300), "{took:?}");
    close(&[here, there]).await;
}

/// Nothing woke those who wait for commands.
async fn settle_commands_untouched(commands: &mut [Watch]) {
    for watch in commands {
        let early = timeout(Duration::from_millis(100), watch.changed()).await;
        assert!(early.is_err());
    }
}

async fn close(all: &[Store]) {
    for opened in all {
        timeout(BOUND, opened.close()).await.unwrap();
    }
}

async fn a_watch_that_was_dropped_and_a_store_that_was_closed_leave_nothing_behind(site: Site) {
    let opened = site.open().await;
    drop(opened.watch(Topic::Changes));
    let mut watch = opened.watch(Topic::Changes);
    // The ring at the start of listening may have been for the first watch only.
    opened.records().write(&news()).await.unwrap();
    woken(&mut watch).await;
    close(std::slice::from_ref(&opened)).await;
    // No waiter is woken any more, and nothing fails.
    let mut late = opened.watch(Topic::Changes);
    let never = timeout(Duration::from_millis(300), late.changed()).await;
    assert!(never.is_err());
    let left = site.open().await;
    if site.is_postgres() {
        let mut raw = crate::migrations::Raw::to(&site.url).await;
        let listening = "SELECT COUNT(*) FROM pg_stat_activity
            WHERE datname = current_database() AND query LIKE '%LISTEN%'";
        let started = Instant::now();
        while raw.count(listening).await > 1 {
            assert!(started.elapsed() < BOUND);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        raw.close().await;
    }
    left.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_continues_after_a_restart_of_the_server() {
    let mut server = start().await;
    let url = server.url();
    let (reader, writer) = (
        store::open(&url).await.unwrap(),
        store::open(&url).await.unwrap(),
    );
    let mut watch = [reader.watch(Topic::Changes)];
    settled(&mut watch).await;
    server = tokio::task::spawn_blocking(move || {
        server.kill().unwrap();
        server.restart().unwrap();
        server
    })
    .await
    .unwrap();
    // The new connection rings, for something may have been missed.
    woken(&mut watch[0]).await;
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < 3 * BOUND);
        if writer.records().write(&news()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        if timeout(Duration::from_secs(2), watch[0].changed())
            .await
            .is_ok()
        {
            break;
        }
    }
    close(&[reader, writer]).await;
    drop(server);
}
