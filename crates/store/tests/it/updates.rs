//! Updates: stored, numbered, read, forgotten.

use std::collections::BTreeSet;

use store::{Draft, PollRecord, StoreError, StoredUpdate, Validators};

use crate::migrations::Raw;
use crate::site::{Site, URL, draft, encode, keep, on_both, texts, token};

on_both! {
    updates_are_numbered_from_one_and_read_as_encoded,
    reads_are_bounded_by_bytes_but_never_empty,
    updates_are_replaced_where_they_are,
    the_version_stored_last_is_not_stored_again,
    reopening_keeps_everything_and_channels_are_apart,
    validators_advance_with_entries_and_polls_are_recorded_beside_them,
    concurrent_appends_stay_dense_while_others_read,
    an_append_that_does_not_finish_leaves_nothing,
    an_unknown_channel_and_a_bad_name_are_errors,
    a_channel_keeps_its_last_updates_and_returns_the_oldest_seq,
    a_renewed_channel_keeps_everything_but_its_incarnation,
}

async fn updates_are_numbered_from_one_and_read_as_encoded(site: Site) {
    let store = site.lore().await;
    let channel = store.channels().open("lore").await.unwrap();
    assert_eq!((channel.head, channel.first), (0, 1));
    let stored = store
        .updates()
        .append(
            "lore",
            URL,
            None,
            &[draft("a", 1), draft("b", 1), draft("a", 2)],
            None,
            &encode,
        )
        .await
        .unwrap();
    assert_eq!(texts(&stored), ["1:a:1", "2:b:1", "3:a:2"]);
    assert_eq!(
        store.updates().read("lore", 0, 100, 1 << 20).await.unwrap(),
        stored
    );
    assert_eq!(
        store.updates().read("lore", 2, 1, 1 << 20).await.unwrap(),
        stored[1..2]
    );
    assert!(
        store
            .updates()
            .read("lore", 4, 9, 9)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        store
            .updates()
            .read("lore", 1, 0, 9)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        store
            .updates()
            .read("lore", u64::MAX, 9, 9)
            .await
            .unwrap()
            .is_empty()
    );
    let channel = store.channels().open("lore").await.unwrap();
    assert_eq!((channel.head, channel.first), (3, 1));
}

async fn reads_are_bounded_by_bytes_but_never_empty(site: Site) {
    let store = site.lore().await;
    let drafts: Vec<_> = (0..10).map(|n| draft(&format!("e{n}"), 1)).collect();
    store
        .updates()
        .append("lore", URL, None, &drafts, None, &|_, _| vec![7; 1000])
        .await
        .unwrap();
    for (max_bytes, count) in [
        (0, 1),
        (999, 1),
        (1000, 1),
        (1999, 1),
        (2000, 2),
        (5500, 5),
        (1 << 20, 10),
    ] {
        let updates = store
            .updates()
            .read("lore", 1, 100, max_bytes)
            .await
            .unwrap();
        assert_eq!(updates.len(), count, "{max_bytes} bytes");
    }
    // Many that are short, among them long ones: all that fits is there, however it was looked for.
    let drafts: Vec<_> = (0..700).map(|n| draft(&format!("f{n}"), 1)).collect();
    let size = |seq: u64| match seq % 97 {
        0 => 5_000,
        rest => rest as usize,
    };
    store
        .updates()
        .append("lore", URL, None, &drafts, None, &|seq, _| {
            vec![7; size(seq)]
        })
        .await
        .unwrap();
    for (from, limit, max_bytes) in [
        (11, 1000, usize::MAX),
        (11, 1000, 20_000),
        (11, 1000, 4_000),
        (11, 90, 20_000),
        (97, 1000, 100),
        (98, 1000, 4_999),
        (400, 17, 1 << 20),
    ] {
        let updates = store
            .updates()
            .read("lore", from, limit, max_bytes)
            .await
            .unwrap();
        let mut room = max_bytes;
        let fits = |seq: &u64| {
            let is_first = *seq == from;
            let fits = size(*seq) <= room;
            room = room.saturating_sub(size(*seq));
            fits || is_first
        };
        let expected: Vec<u64> = (from..=710).take(limit).take_while(fits).collect();
        let found: Vec<u64> = updates.iter().map(|update| update.seq).collect();
        assert_eq!(found, expected, "{from}, {limit}, {max_bytes}");
    }
}

async fn updates_are_replaced_where_they_are(site: Site) {
    let store = site.lore().await;
    let updates = store.updates();
    let drafts = [draft("a", 1), draft("b", 1)];
    let appended = updates.append("lore", URL, None, &drafts, None, &encode);
    let mut stored = appended.await.unwrap();
    let two = StoredUpdate {
        seq: 2,
        encoded: b"two".to_vec(),
    };
    let gone = StoredUpdate {
        seq: 3,
        ..two.clone()
    };
    let refused = updates.replace("lore", Some(99), std::slice::from_ref(&two));
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced { .. }), "{refused}");
    let read = async || updates.read("lore", 1, 9, 1 << 20).await.unwrap();
    assert_eq!(read().await, stored);
    updates
        .replace("lore", None, &[two.clone(), gone])
        .await
        .unwrap();
    stored[1] = two;
    assert_eq!(read().await, stored);
    let unknown = updates.replace("nope", None, &stored).await.unwrap_err();
    assert!(unknown.to_string().contains("nope"), "{unknown}");
}

async fn the_version_stored_last_is_not_stored_again(site: Site) {
    let store = site.lore().await;
    let one = [draft("a", 1), draft("a", 1), draft("b", 1)];
    let stored = store
        .updates()
        .append("lore", URL, None, &one, None, &encode)
        .await;
    assert_eq!(texts(&stored.unwrap()), ["1:a:1", "2:b:1"]);
    let again = store
        .updates()
        .append("lore", URL, None, &one, None, &encode)
        .await;
    assert!(again.unwrap().is_empty());
    // An edit and its reversal are two changes.
    let edits = [draft("a", 2), draft("a", 1)];
    let stored = store
        .updates()
        .append("lore", URL, None, &edits, None, &encode)
        .await;
    assert_eq!(texts(&stored.unwrap()), ["3:a:2", "4:a:1"]);
    // The same id in another feed is another entry.
    let other = "https://example.org/other.atom";
    let stored = store
        .updates()
        .append("lore", other, None, &one[..1], None, &encode)
        .await;
    assert_eq!(texts(&stored.unwrap()), ["5:a:1"]);
    let known = store
        .entries()
        .hashes("lore", URL, &["a", "b", "never"])
        .await;
    let known: BTreeSet<_> = known
        .unwrap()
        .into_iter()
        .map(|(id, hash)| (id, hash[0]))
        .collect();
    assert_eq!(
        known,
        BTreeSet::from([("a".to_owned(), 1), ("b".to_owned(), 1)])
    );
    assert!(
        store
            .entries()
            .hashes("lore", "https://never.polled/", &["a"])
            .await
            .unwrap()
            .is_empty()
    );
}

async fn reopening_keeps_everything_and_channels_are_apart(site: Site) {
    let store = site.lore().await;
    let lore = store.channels().open("lore").await.unwrap();
    let news = store.channels().open("news").await.unwrap();
    assert_ne!(lore.incarnation, news.incarnation);
    store
        .updates()
        .append("lore", URL, None, &[draft("a", 1)], None, &encode)
        .await
        .unwrap();
    store
        .updates()
        .append("news", URL, None, &[draft("a", 1)], None, &encode)
        .await
        .unwrap();
    let first = store.tokens().add(&token(5, "first")).await.unwrap();
    let again = store.tokens().add(&token(5, "again")).await.unwrap();
    assert_eq!(first, again);
    store.close().await;
    assert!(store.check().await.is_err(), "a closed store says so");

    let store = site.lore().await;
    store.check().await.unwrap();
    let reopened = store.channels().open("lore").await.unwrap();
    assert_eq!(reopened.incarnation, lore.incarnation);
    assert_eq!(reopened.head, 1);
    assert_eq!(store.channels().open("news").await.unwrap().head, 1);
    let valid = store.tokens().valid(&[5; 32]).await.unwrap();
    assert_eq!(valid, store.tokens().list().await.unwrap().pop());
    assert_eq!(store.tokens().valid(&[6; 32]).await.unwrap(), None);

    let elsewhere = site.another();
    let other = elsewhere.lore().await;
    let other = other.channels().open("lore").await.unwrap();
    assert_ne!(other.incarnation, lore.incarnation);
}

async fn validators_advance_with_entries_and_polls_are_recorded_beside_them(site: Site) {
    let store = site.lore().await;
    assert_eq!(store.feeds().get("lore", URL).await.unwrap(), None);
    assert_eq!(
        store.feeds().validators("lore", URL).await.unwrap(),
        Validators::default()
    );
    let validators = Validators {
        etag: Some("W/\"1\"".to_owned()),
        last_modified: Some("Fri, 21 Nov 2025 03:00:00 GMT".to_owned()),
    };
    store
        .updates()
        .append(
            "lore",
            URL,
            None,
            &[draft("a", 1)],
            Some(&validators),
            &encode,
        )
        .await
        .unwrap();
    store
        .updates()
        .append("lore", URL, None, &[draft("b", 1)], None, &encode)
        .await
        .unwrap();
    let poll = PollRecord {
        at_ms: 1_763_694_000_000,
        state: "ok".to_owned(),
        detail: "ü".repeat(5_000),
        ..PollRecord::default()
    };
    store.feeds().record_poll("lore", URL, &poll).await.unwrap();
    let feed = store.feeds().get("lore", URL).await.unwrap().unwrap();
    assert_eq!(feed.validators, validators);
    let recorded = feed.last_poll.unwrap();
    assert_eq!(
        (recorded.at_ms, recorded.state.as_str()),
        (poll.at_ms, "ok")
    );
    assert_eq!(recorded.detail, "ü".repeat(512), "a long text is cut");
    // Nothing new, but new validators.
    let none = Validators::default();
    store
        .updates()
        .append("lore", URL, None, &[], Some(&none), &encode)
        .await
        .unwrap();
    assert_eq!(store.feeds().validators("lore", URL).await.unwrap(), none);
}

async fn concurrent_appends_stay_dense_while_others_read(site: Site) {
    const TASKS: usize = 8;
    const APPENDS: usize = 12;
    const DRAFTS: usize = 5;
    let store = site.lore().await;
    let second = site.lore().await;
    let writers: Vec<_> = (0..TASKS)
        .map(|task| {
            // Half of them by another set of connections, as another process would.
            let store = if task % 2 == 0 { &store } else { &second }.clone();
            tokio::spawn(async move {
                let mut seqs = Vec::new();
                for append in 0..APPENDS {
                    let drafts: Vec<_> = (0..DRAFTS)
                        .map(|n| draft(&format!("{task}/{append}/{n}"), 1))
                        .collect();
                    let stored = store
                        .updates()
                        .append("lore", URL, None, &drafts, None, &encode)
                        .await
                        .unwrap();
                    assert_eq!(stored.len(), DRAFTS);
                    assert!(stored.windows(2).all(|two| two[1].seq == two[0].seq + 1));
                    seqs.extend(stored.into_iter().map(|update| update.seq));
                }
                seqs
            })
        })
        .collect();
    let reader = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut next = 1;
            while next <= (TASKS * APPENDS * DRAFTS) as u64 {
                let updates = store
                    .updates()
                    .read("lore", next, 64, 1 << 20)
                    .await
                    .unwrap();
                for update in &updates {
                    assert_eq!(update.seq, next, "a reader never sees a hole");
                    assert!(update.encoded.starts_with(format!("{next}:").as_bytes()));
                    next += 1;
                }
                if updates.len() < 64 {
                    assert_eq!((next - 1) % DRAFTS as u64, 0, "appends appear whole");
                }
                tokio::task::yield_now().await;
            }
        })
    };
    let mut seqs = Vec::new();
    for writer in writers {
        seqs.extend(writer.await.unwrap());
    }
    reader.await.unwrap();
    seqs.sort_unstable();
    let count = (TASKS * APPENDS * DRAFTS) as u64;
    assert_eq!(seqs, (1..=count).collect::<Vec<_>>());
    assert_eq!(store.channels().open("lore").await.unwrap().head, count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_wait_for_each_other_whatever_the_isolation_of_the_server_is() {
    let site = Site::postgres();
    let mut raw = Raw::to(&site.url).await;
    raw.run(
        r"DO $$ BEGIN EXECUTE format(
            'ALTER DATABASE %I SET default_transaction_isolation = %L',
            current_database(), 'repeatable read'); END $$",
    )
    .await;
    raw.close().await;
    concurrent_appends_stay_dense_while_others_read(site).await;
}

async fn an_append_that_does_not_finish_leaves_nothing(site: Site) {
    let store = site.lore().await;
    let drafts = [draft("a", 1), draft("b", 1), draft("c", 1)];
    let task = {
        let (store, drafts) = (store.clone(), drafts.clone());
        tokio::spawn(async move {
            let encode = |seq: u64, draft: &Draft| {
                assert!(seq < 3, "the encoder fails at the third");
                encode(seq, draft)
            };
            store
                .updates()
                .append("lore", URL, None, &drafts, None, &encode)
                .await
        })
    };
    assert!(task.await.unwrap_err().is_panic());
    assert!(
        store
            .updates()
            .read("lore", 1, 9, 999)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        store
            .entries()
            .hashes("lore", URL, &["a"])
            .await
            .unwrap()
            .is_empty()
    );
    let stored = store
        .updates()
        .append("lore", URL, None, &drafts, None, &encode)
        .await;
    assert_eq!(texts(&stored.unwrap()), ["1:a:1", "2:b:1", "3:c:1"]);
}

async fn an_unknown_channel_and_a_bad_name_are_errors(site: Site) {
    let store = site.lore().await;
    let error = store
        .updates()
        .append("nope", URL, None, &[draft("a", 1)], None, &encode)
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::UnknownChannel { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("\"nope\""), "{error}");
    assert!(store.updates().read("nope", 1, 1, 1).await.is_err());
    assert!(store.feeds().get("nope", URL).await.is_err());
    for name in [String::new(), "x".repeat(256)] {
        let error = store.channels().open(&name).await.unwrap_err();
        assert!(matches!(error, StoreError::ChannelName { .. }), "{error}");
    }
}

async fn a_channel_keeps_its_last_updates_and_returns_the_oldest_seq(site: Site) {
    let store = site.lore().await;
    let other = store.channels().open("other").await.unwrap();
    assert!(other.is_new);
    assert!(!store.channels().open("other").await.unwrap().is_new);
    // More than are deleted in one part.
    let drafts: Vec<_> = (0..2500).map(|n| draft(&format!("e{n}"), 1)).collect();
    for channel in ["lore", "other"] {
        let stored = store
            .updates()
            .append(channel, URL, None, &drafts, None, &encode)
            .await;
        assert_eq!(stored.unwrap().len(), 2500);
    }
    assert_eq!(
        store
            .updates()
            .retain("lore", &keep(5000), 2500)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        store
            .updates()
            .retain("lore", &keep(2500), 2500)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        store
            .updates()
            .retain("lore", &keep(30), 2500)
            .await
            .unwrap(),
        2471
    );
    assert_eq!(
        store
            .updates()
            .retain("lore", &keep(30), 2500)
            .await
            .unwrap(),
        2471
    );
    let channel = store.channels().open("lore").await.unwrap();
    assert_eq!((channel.first, channel.head), (2471, 2500));
    let left = store.updates().read("lore", 1, 100, 1 << 20).await.unwrap();
    assert_eq!((left.len(), left[0].seq), (30, 2471));
    // Entries of deleted updates are still known.
    let again = store
        .updates()
        .append("lore", URL, None, &drafts[..9], None, &encode)
        .await;
    assert!(again.unwrap().is_empty());
    assert_eq!(
        store
            .updates()
            .retain("lore", &keep(0), 2500)
            .await
            .unwrap(),
        2501
    );
    let stored = store
        .updates()
        .append("lore", URL, None, &[draft("e0", 2)], None, &encode)
        .await
        .unwrap();
    assert_eq!(stored[0].seq, 2501);
    assert_eq!(store.channels().open("lore").await.unwrap().first, 2501);
    assert_eq!(store.channels().open("other").await.unwrap().first, 1);
    assert!(store.updates().retain("nope", &keep(1), 1).await.is_err());
}

async fn a_renewed_channel_keeps_everything_but_its_incarnation(site: Site) {
    let store = site.lore().await;
    store
        .updates()
        .append(
            "lore",
            URL,
            None,
            &[draft("a", 1), draft("b", 1)],
            None,
            &encode,
        )
        .await
        .unwrap();
    let before = store.channels().open("lore").await.unwrap();
    let renewed = store.channels().renew("lore", None).await.unwrap();
    assert_ne!(renewed.incarnation, before.incarnation);
    assert_eq!((renewed.head, renewed.first), (2, 1));
    store.close().await;
    let store = site.lore().await;
    assert_eq!(store.channels().open("lore").await.unwrap(), renewed);
    assert!(store.channels().renew("nope", None).await.is_err());
}
