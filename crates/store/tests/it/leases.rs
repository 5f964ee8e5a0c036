//! Leases: one publisher at a time, whatever the others believe.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use store::{Holder, Lease, LeaseOutcome, Store, StoreError};
use tokio::io::{AsyncBufReadExt, BufReader};
use uuid::Uuid;

use crate::site::{Site, URL, draft, encode, on_both};

on_both! {
    a_lease_passes_to_another_holder_when_it_ends,
    an_append_with_an_old_fence_is_refused,
    only_the_holder_renews_a_channel,
    a_lease_does_not_fit_a_database_that_was_replaced,
    the_last_holder_of_a_lease_stays_known,
    of_many_concurrent_callers_one_takes_the_lease,
    a_frozen_holder_stores_nothing_after_its_successor_has,
    appends_of_several_processes_are_dense,
}

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);

fn holder(name: &str) -> Holder {
    Holder {
        id: Uuid::new_v4(),
        name: name.to_owned(),
    }
}

async fn take(store: &Store, holder: &Holder, ttl: Duration) -> Option<Lease> {
    match store.leases().take("lore", holder, ttl).await.unwrap() {
        LeaseOutcome::Held(lease) => Some(lease),
        LeaseOutcome::Other { .. } => None,
    }
}

/// Waits until `holder` gets the lease.
async fn take_soon(store: &Store, holder: &Holder) -> Lease {
    let started = Instant::now();
    loop {
        if let Some(lease) = take(store, holder, LONG).await {
            return lease;
        }
        assert!(started.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_lease_passes_to_another_holder_when_it_ends(site: Site) {
    let (store, second) = (site.lore().await, site.open().await);
    let (a, b) = (holder("attic"), holder("basement"));
    assert_eq!(store.channels().list().await.unwrap()[0].lease, None);
    let held = take(&store, &a, LONG).await.unwrap();
    let first = held.fence;
    assert_eq!(held.channel.as_str(), "lore");
    let LeaseOutcome::Other { name, for_ms } =
        second.leases().take("lore", &b, LONG).await.unwrap()
    else {
        panic!("both have it");
    };
    assert_eq!(name, "attic");
    assert!((3_500_000..=3_600_000).contains(&for_ms), "{for_ms}");
    let shown = second
        .channels()
        .list()
        .await
        .unwrap()
        .remove(0)
        .lease
        .unwrap();
    assert_eq!((shown.name.as_str(), shown.fence), ("attic", first));
    // Its holder may take it again, or renew it, and it stays the same one.
    assert_eq!(take(&store, &a, LONG).await.unwrap(), held);
    assert!(store.leases().renew(&held, &a, LONG).await.unwrap());
    assert!(!second.leases().renew(&held, &b, LONG).await.unwrap());

    store.leases().release(&held).await.unwrap();
    let next = take(&second, &b, SHORT).await.unwrap();
    assert_eq!(next.fence, first + 1);
    assert!(!store.leases().renew(&held, &a, LONG).await.unwrap());
    // A lease taken by another holder cannot be released.
    store.leases().release(&held).await.unwrap();
    assert!(second.leases().renew(&next, &b, SHORT).await.unwrap());

    // It is not renewed, and the next applicant gets it.
    let third = take_soon(&store, &a).await;
    assert_eq!(third.fence, first + 2);
    assert!(!second.leases().renew(&next, &b, LONG).await.unwrap());

    // One that expired is still its holder's, until another holder takes it.
    let renewed = take(&store, &a, Duration::ZERO).await.unwrap();
    assert_eq!(
        store.channels().list().await.unwrap()[0].lease,
        None,
        "expired"
    );
    assert!(store.leases().renew(&renewed, &a, LONG).await.unwrap());
    assert_eq!(take(&second, &b, LONG).await, None);
    // After a release, the same holder is a new one.
    store.leases().release(&renewed).await.unwrap();
    let taken = take(&store, &a, LONG).await.unwrap();
    assert_eq!(taken.fence, renewed.fence + 1);
    assert!(store.leases().take("nope", &a, LONG).await.is_err());
}

async fn an_append_with_an_old_fence_is_refused(site: Site) {
    let (store, second) = (site.lore().await, site.open().await);
    let (a, b) = (holder("attic"), holder("basement"));
    let old = take(&store, &a, LONG).await.unwrap();
    let append = async |store: &Store, fence, id| {
        let drafts = [draft(id, 1)];
        store
            .updates()
            .append("lore", URL, fence, &drafts, None, &encode)
            .await
    };
    assert_eq!(append(&store, Some(old.fence), "a").await.unwrap().len(), 1);
    store.leases().release(&old).await.unwrap();
    let new = take(&second, &b, LONG).await.unwrap();
    let error = append(&store, Some(old.fence), "b").await.unwrap_err();
    assert!(error.is_fenced() && !error.is_unavailable(), "{error}");
    assert!(
        matches!(
            error,
            StoreError::Fenced { fence, current, .. }
                if (fence, current) == (old.fence, new.fence)
        ),
        "{error:?}"
    );
    let future = append(&store, Some(99), "b").await.unwrap_err();
    assert!(future.is_fenced(), "{future}");
    assert_eq!(
        append(&second, Some(new.fence), "b").await.unwrap()[0].seq,
        2
    );
    // Without a fence, the lease is not checked.
    assert_eq!(append(&store, None, "c").await.unwrap()[0].seq, 3);
    assert_eq!(store.channels().open("lore").await.unwrap().head, 3);
}

async fn only_the_holder_renews_a_channel(site: Site) {
    let store = site.lore().await;
    let old = take(&store, &holder("attic"), Duration::ZERO)
        .await
        .unwrap();
    let new = take(&store, &holder("basement"), LONG).await.unwrap();
    let before = store.channels().get("lore").await.unwrap();
    let refused = store.channels().renew("lore", Some(old.fence)).await;
    assert!(refused.unwrap_err().is_fenced());
    assert_eq!(store.channels().get("lore").await.unwrap(), before);
    let renewed = store
        .channels()
        .renew("lore", Some(new.fence))
        .await
        .unwrap();
    assert_ne!(renewed.incarnation, before.incarnation);
    let again = store.channels().renew("lore", None).await.unwrap();
    assert_ne!(again.incarnation, renewed.incarnation);
    assert!(store.channels().renew("nope", None).await.is_err());
}

/// A holder that continues while its database is recreated, or restored, and taken by another.
async fn a_lease_does_not_fit_a_database_that_was_replaced(site: Site) {
    let store = site.lore().await;
    let old = take(&store, &holder("attic"), LONG).await.unwrap();
    let backup = site.path("backup");
    store.backup(&backup).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (fresh, restored) = (site.another(), site.another());
    store::restore(&restored.url, &backup, &mut |_| {})
        .await
        .unwrap();
    for other in [fresh.lore().await, restored.open().await] {
        let lease = take(&other, &holder("basement"), LONG).await.unwrap();
        assert_ne!(lease.fence, old.fence);
        let late = [draft("late", 1)];
        let refused = other
            .updates()
            .append("lore", URL, Some(old.fence), &late, None, &encode);
        assert!(refused.await.unwrap_err().is_fenced());
    }
}

async fn the_last_holder_of_a_lease_stays_known(site: Site) {
    let store = site.lore().await;
    let last = async || store.channels().list().await.unwrap()[0].last_holder;
    assert_eq!(last().await, None);
    let attic = holder("attic");
    let lease = take(&store, &attic, LONG).await.unwrap();
    assert_eq!(last().await, Some(attic.id));
    store.leases().release(&lease).await.unwrap();
    let row = store.channels().list().await.unwrap().remove(0);
    assert_eq!((row.lease, row.last_holder), (None, Some(attic.id)));
    // A late renewal does not revive a released lease.
    assert!(!store.leases().renew(&lease, &attic, LONG).await.unwrap());
    let next = holder("basement");
    take(&store, &next, LONG).await.unwrap();
    assert_eq!(last().await, Some(next.id));
}

async fn of_many_concurrent_callers_one_takes_the_lease(site: Site) {
    let (store, second) = (site.lore().await, site.open().await);
    let mut last = 0;
    for _ in 0..5 {
        let asking: Vec<_> = (0..16)
            .map(|n| {
                let store = if n % 2 == 0 { &store } else { &second }.clone();
                tokio::spawn(async move { take(&store, &holder("one"), LONG).await })
            })
            .collect();
        let mut leases = Vec::new();
        for asked in asking {
            leases.extend(asked.await.unwrap());
        }
        assert_eq!(leases.len(), 1, "{leases:?}");
        assert!(leases[0].fence > last);
        last = leases[0].fence;
        store.leases().release(&leases[0]).await.unwrap();
    }
}

/// One that is in the middle of an append when its lease ends, and goes on when another one has
/// stored more: as a process does that was stopped.
async fn a_frozen_holder_stores_nothing_after_its_successor_has(site: Site) {
    let (store, second) = (site.lore().await, site.open().await);
    let (a, b) = (holder("attic"), holder("basement"));
    let done = Arc::new(AtomicBool::new(false));
    // The fences that something was stored with, and how often one was refused.
    let seen = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    // Two who take the lease from one another for a moment and append one by one.
    let publish = |store: Store, me: Holder, prefix: &'static str| {
        let (done, seen) = (Arc::clone(&done), Arc::clone(&seen));
        tokio::spawn(async move {
            let (mut stored, mut number) = (Vec::new(), 0);
            while !done.load(Ordering::Relaxed) {
                let Some(lease) = take(&store, &me, Duration::from_millis(30)).await else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                // This holder never checks whether it still has the lease.
                for _ in 0..20 {
                    number += 1;
                    let drafts = [draft(&format!("{prefix}{number}"), 1)];
                    let fence = Some(lease.fence);
                    match store
                        .updates()
                        .append("lore", URL, fence, &drafts, None, &encode)
                        .await
                    {
                        Ok(updates) => {
                            stored.extend(updates.iter().map(|u| (u.seq, lease.fence)));
                            seen.lock().unwrap().0.insert(lease.fence);
                        }
                        Err(StoreError::Fenced { .. }) => {
                            seen.lock().unwrap().1 += 1;
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    // Long enough for the other one to get SQLite's lock, which has no queue.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            stored
        })
    };
    let first = publish(store.clone(), a, "a");
    let other = publish(second, b, "b");
    let started = Instant::now();
    let often = || {
        let seen = seen.lock().unwrap();
        seen.0.len() >= 10 && seen.1 >= 3
    };
    while !often() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no renewal was late: {seen:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut stored = first.await.unwrap();
    stored.extend(other.await.unwrap());
    stored.sort_unstable();
    let seqs: Vec<_> = stored.iter().map(|(seq, _)| *seq).collect();
    let head = store.channels().open("lore").await.unwrap().head;
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>(), "dense, none double");
    assert!(
        stored.windows(2).all(|two| two[0].1 <= two[1].1),
        "a smaller fence never comes after a larger one"
    );
}

/// Names the database to the process that appends; without it that test does nothing.
const DATABASE: &str = "FLEXFEED_TEST_APPENDER_DATABASE";
const PREFIX: &str = "FLEXFEED_TEST_APPENDER_PREFIX";
const APPENDS: usize = 40;

#[tokio::test]
async fn appender() {
    let (Ok(url), Ok(prefix)) = (std::env::var(DATABASE), std::env::var(PREFIX)) else {
        return;
    };
    let store = store::open(&url).await.unwrap();
    store.channels().open("lore").await.unwrap();
    for n in 0..APPENDS {
        let drafts: Vec<_> = (0..3)
            .map(|m| draft(&format!("{prefix}/{n}/{m}"), 1))
            .collect();
        let stored = store
            .updates()
            .append("lore", URL, None, &drafts, None, &encode)
            .await
            .unwrap();
        let seqs: Vec<_> = stored.iter().map(|update| update.seq.to_string()).collect();
        println!("\nstored {}", seqs.join(" "));
    }
}

/// Several sources open, and so make, the database at the same time.
async fn appends_of_several_processes_are_dense(site: Site) {
    let processes: Vec<_> = (0..3)
        .map(|n| {
            tokio::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "leases::appender", "--nocapture"])
                .env(DATABASE, &site.url)
                .env(PREFIX, n.to_string())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap()
        })
        .collect();
    let mut seqs = Vec::new();
    for mut process in processes {
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some(stored) = line.strip_prefix("stored ") {
                seqs.extend(stored.split(' ').map(|seq| seq.parse::<u64>().unwrap()));
            }
        }
        assert!(process.wait().await.unwrap().success());
    }
    seqs.sort_unstable();
    let count = (3 * APPENDS * 3) as u64;
    assert_eq!(seqs, (1..=count).collect::<Vec<_>>());
    let store = site.open().await;
    assert_eq!(store.channels().open("lore").await.unwrap().head, count);
    let updates = store
        .updates()
        .read("lore", 1, 9999, 1 << 20)
        .await
        .unwrap();
    assert_eq!(updates.len() as u64, count);
}
