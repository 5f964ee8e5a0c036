//! Retention of a channel: by number, by age, by both, while others write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::{Retention, Store};

use crate::migrations::Raw;
use crate::site::{Site, URL, draft, drafts, encode, keep, on_both};

on_both! {
    old_updates_are_deleted_and_the_stricter_limit_decides,
    a_clock_that_was_set_back_keeps_too_much_rather_than_too_little,
    unpublished_updates_stay,
    old_updates_are_deleted_during_appends_and_reads,
    entries_are_forgotten_after_their_updates,
    entries_after_a_seq_are_listed,
}

const HOUR: i64 = 3_600_000;

fn limits(count: Option<u64>, age_ms: Option<i64>) -> Retention {
    Retention { count, age_ms }
}

async fn old_updates_are_deleted_and_the_stricter_limit_decides(site: Site) {
    let store = site.lore().await;
    // More than are looked at and deleted in one part.
    store
        .updates()
        .append("lore", URL, None, &drafts(0, 3000), None, &encode)
        .await
        .unwrap();
    let mut raw = Raw::to(&site.url).await;
    raw.run(&format!(
        "UPDATE updates SET created_at = created_at - {} WHERE seq <= 2200",
        2 * HOUR
    ))
    .await;
    let retain = async |keep| store.updates().retain("lore", &keep, 3000).await.unwrap();
    assert_eq!(retain(limits(None, None)).await, 1);
    assert_eq!(retain(limits(None, Some(3 * HOUR))).await, 1);
    assert_eq!(retain(limits(Some(2990), Some(3 * HOUR))).await, 11);
    assert_eq!(retain(limits(Some(2990), Some(HOUR))).await, 2201);
    assert_eq!(retain(limits(Some(100), Some(HOUR))).await, 2901);
    let left = store
        .updates()
        .read("lore", 1, 1000, 1 << 20)
        .await
        .unwrap();
    assert_eq!((left.len(), left[0].seq), (100, 2901));
    raw.run(&format!(
        "UPDATE updates SET created_at = created_at - {}",
        2 * HOUR
    ))
    .await;
    assert_eq!(retain(limits(Some(100), Some(HOUR))).await, 3001);
    let channel = store.channels().open("lore").await.unwrap();
    assert_eq!((channel.first, channel.head), (3001, 3000));
    // Deleted updates do not return as new.
    let again = store
        .updates()
        .append("lore", URL, None, &drafts(0, 9), None, &encode)
        .await;
    assert!(again.unwrap().is_empty());
}

async fn a_clock_that_was_set_back_keeps_too_much_rather_than_too_little(site: Site) {
    let store = site.lore().await;
    store
        .updates()
        .append("lore", URL, None, &drafts(0, 9), None, &encode)
        .await
        .unwrap();
    let mut raw = Raw::to(&site.url).await;
    // Only a beginning can go: behind the young one in the middle everything stays.
    raw.run(&format!(
        "UPDATE updates SET created_at = created_at - {} WHERE seq <> 4",
        2 * HOUR
    ))
    .await;
    let first = store
        .updates()
        .retain("lore", &limits(None, Some(HOUR)), 9)
        .await;
    assert_eq!(first.unwrap(), 4);
    let left = store.updates().read("lore", 1, 100, 1 << 20).await.unwrap();
    assert_eq!(left.len(), 6);
}

async fn unpublished_updates_stay(site: Site) {
    let store = site.lore().await;
    store
        .updates()
        .append("lore", URL, None, &drafts(0, 100), None, &encode)
        .await
        .unwrap();
    let mut raw = Raw::to(&site.url).await;
    raw.run(&format!(
        "UPDATE updates SET created_at = created_at - {}",
        2 * HOUR
    ))
    .await;
    let retain = async |keep, published| {
        store
            .updates()
            .retain("lore", &keep, published)
            .await
            .unwrap()
    };
    assert_eq!(retain(limits(Some(10), None), 0).await, 1);
    assert_eq!(retain(limits(Some(10), None), 40).await, 31);
    assert_eq!(retain(limits(None, Some(HOUR)), 40).await, 41);
    assert_eq!(retain(limits(Some(0), Some(HOUR)), 60).await, 61);
    assert_eq!(store.channels().open("lore").await.unwrap().head, 100);
}

async fn old_updates_are_deleted_during_appends_and_reads(site: Site) {
    const KEEP: u64 = 50;
    let (store, second): (Store, Store) = (site.lore().await, site.open().await);
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                let drafts = drafts(count, count + 30);
                second
                    .updates()
                    .append("lore", URL, None, &drafts, None, &encode)
                    .await
                    .unwrap();
                count += 30;
                // SQLite gives its lock to the one that tries at the right moment: one that always
                // has it keeps the others out until they give up.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            count as u64
        })
    };
    let reader = {
        let (store, done) = (store.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let updates = store.updates().read("lore", 1, 200, 1 << 20).await.unwrap();
                assert!(
                    updates.windows(2).all(|two| two[1].seq == two[0].seq + 1),
                    "a hole"
                );
                tokio::task::yield_now().await;
            }
        })
    };
    let (mut before, mut deleted) = (1, 0);
    while deleted < 5 {
        let first = store
            .updates()
            .retain("lore", &keep(KEEP), u64::MAX)
            .await
            .unwrap();
        assert!(first >= before, "what is gone came back");
        deleted += usize::from(first > before);
        before = first;
        let channel = store.channels().open("lore").await.unwrap();
        assert!(channel.first <= channel.head + 1);
    }
    done.store(true, Ordering::Relaxed);
    let count = writer.await.unwrap();
    reader.await.unwrap();
    let first = store.updates().retain("lore", &keep(KEEP), u64::MAX).await;
    assert_eq!(first.unwrap(), count - KEEP + 1);
    assert_eq!(store.channels().open("lore").await.unwrap().head, count);
}

async fn entries_are_forgotten_after_their_updates(site: Site) {
    let store = site.lore().await;
    store
        .updates()
        .append("lore", URL, None, &drafts(0, 3000), None, &encode)
        .await
        .unwrap();
    let other = "https://example.org/other.atom";
    store
        .updates()
        .append("lore", other, None, &drafts(0, 2), None, &encode)
        .await
        .unwrap();
    let known = async |url: &str| {
        let ids: Vec<_> = (0..3000).map(|n| format!("e{n}")).collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let known = store.entries().hashes("lore", url, &ids).await.unwrap();
        let mut known: Vec<usize> = known.keys().map(|id| id[1..].parse().unwrap()).collect();
        known.sort_unstable();
        known
    };
    let forget = async |keep: usize, present: &[&str]| {
        let forgotten = store.entries().forget("lore", URL, keep, present).await;
        forgotten.unwrap()
    };
    assert_eq!(forget(10, &[]).await, 0, "their updates are kept");
    store
        .updates()
        .retain("lore", &keep(502), 3002)
        .await
        .unwrap();
    assert_eq!(forget(3000, &[]).await, 0, "not more than are to be kept");
    // In several parts; what is in the feed stays, and what has an update.
    assert_eq!(forget(10, &["e7", "e2999"]).await, 2499);
    let left: Vec<usize> = std::iter::once(7).chain(2500..3000).collect();
    assert_eq!(known(URL).await, left);
    assert_eq!(known(other).await, [0, 1], "of other feeds nothing goes");
    store
        .updates()
        .retain("lore", &keep(0), 3002)
        .await
        .unwrap();
    assert_eq!(forget(10, &["e7"]).await, 490);
    assert_eq!(known(URL).await.len(), 11);
    assert_eq!(
        store
            .entries()
            .forget("lore", "http://none/", 0, &[])
            .await
            .unwrap(),
        0
    );
    assert!(store.entries().forget("nope", URL, 0, &[]).await.is_err());
    // One that was forgotten is new when it comes back.
    let again = drafts(0, 8);
    let stored = store
        .updates()
        .append("lore", URL, None, &again, None, &encode)
        .await;
    assert_eq!(stored.unwrap().len(), 7);
}

async fn entries_after_a_seq_are_listed(site: Site) {
    let store = site.lore().await;
    for part in [drafts(0, 5), vec![draft("e1", 2)]] {
        let stored = store
            .updates()
            .append("lore", URL, None, &part, None, &encode)
            .await;
        stored.unwrap();
    }
    let since = async |url: &str, seq, limit| {
        let listed = store.entries().since("lore", url, seq, limit).await;
        listed.unwrap()
    };
    assert_eq!(since(URL, 3, 99).await, ["e1", "e4", "e3"]);
    assert_eq!(since(URL, 3, 2).await, ["e1", "e4"]);
    assert!(since(URL, 6, 9).await.is_empty());
    assert!(since("http://none/", 0, 9).await.is_empty());
    assert!(store.entries().since("nope", URL, 0, 9).await.is_err());
}
