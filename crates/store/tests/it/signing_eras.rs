//! Signing eras: which key signed which updates, whatever happens to their channel.

use std::time::Duration;

use store::{HeadMark, Holder, LeaseOutcome, SigningEra, Store, StoreError};
use uuid::Uuid;

use crate::archive::restore;
use crate::migrations::Raw;
use crate::site::{Site, URL, drafts, encode, keep, on_both};

on_both! {
    an_era_begins_after_the_head_and_stays_open,
    another_key_closes_the_era_at_the_head,
    an_era_without_updates_is_replaced,
    an_era_waits_for_an_append_under_way,
    an_old_fence_begins_no_era,
    a_renewed_channel_closes_its_era,
    another_incarnation_has_another_era,
    a_moved_folder_closes_the_era,
    a_removed_channel_loses_its_eras,
    eras_go_with_their_updates,
    the_last_eras_are_kept,
    a_damaged_era_is_reported,
    eras_are_restored_up_to_the_head,
    an_archive_with_impossible_eras_is_refused,
    an_archive_with_too_many_eras_restores_the_last_ones,
}

const FIRST: [u8; 32] = [1; 32];
const SECOND: [u8; 32] = [2; 32];
const THIRD: [u8; 32] = [3; 32];

/// Appends updates until the channel's head is `head`.
async fn grow(store: &Store, head: usize) {
    let before = store.channels().get("lore").await.unwrap().head;
    let drafts = drafts(usize::try_from(before).unwrap(), head);
    let stored = store
        .updates()
        .append("lore", URL, None, &drafts, None, &encode)
        .await
        .unwrap();
    assert_eq!(stored.last().unwrap().seq, head as u64);
}

/// Begins an era with a key, which follows the one before it.
async fn begin(store: &Store, key: [u8; 32]) -> Vec<SigningEra> {
    let keys = store.signing_keys();
    if keys.list().await.unwrap().iter().all(|row| row.key != key) {
        keys.add(&key, &[]).await.unwrap();
    }
    store
        .signing_eras()
        .begin("lore", None, &key)
        .await
        .unwrap()
}

async fn list(store: &Store) -> Vec<SigningEra> {
    store.signing_eras().list("lore").await.unwrap()
}

async fn incarnation(store: &Store) -> Uuid {
    store.channels().get("lore").await.unwrap().incarnation
}

fn era(first: u64, last: Option<u64>, incarnation: Uuid, key: [u8; 32]) -> SigningEra {
    SigningEra {
        first,
        last,
        incarnation,
        key,
    }
}

async fn an_era_begins_after_the_head_and_stays_open(site: Site) {
    let store = site.lore().await;
    grow(&store, 3).await;
    assert_eq!(list(&store).await, []);
    let wanted = [era(4, None, incarnation(&store).await, FIRST)];
    assert_eq!(begin(&store, FIRST).await, wanted);
    grow(&store, 5).await;
    assert_eq!(begin(&store, FIRST).await, wanted);
    assert_eq!(list(&store).await, wanted);
    // Other channels have their own.
    store.channels().open("news").await.unwrap();
    assert_eq!(store.signing_eras().list("news").await.unwrap(), []);
    let unknown = store.signing_eras().list("nope").await.unwrap_err();
    assert!(
        matches!(unknown, StoreError::UnknownChannel { .. }),
        "{unknown:?}"
    );
    let unknown = store.signing_eras().begin("nope", None, &FIRST).await;
    let unknown = unknown.unwrap_err();
    assert!(
        matches!(unknown, StoreError::UnknownChannel { .. }),
        "{unknown:?}"
    );
}

async fn another_key_closes_the_era_at_the_head(site: Site) {
    let store = site.lore().await;
    let id = incarnation(&store).await;
    begin(&store, FIRST).await;
    grow(&store, 3).await;
    begin(&store, SECOND).await;
    grow(&store, 4).await;
    let wanted = [
        era(1, Some(3), id, FIRST),
        era(4, Some(4), id, SECOND),
        era(5, None, id, THIRD),
    ];
    assert_eq!(begin(&store, THIRD).await, wanted);
    store.close().await;
    assert_eq!(list(&site.open().await).await, wanted);
}

async fn an_era_without_updates_is_replaced(site: Site) {
    let store = site.lore().await;
    let id = incarnation(&store).await;
    begin(&store, FIRST).await;
    assert_eq!(begin(&store, SECOND).await, [era(1, None, id, SECOND)]);
    grow(&store, 1).await;
    begin(&store, THIRD).await;
    let fourth = [4; 32];
    let wanted = [era(1, Some(1), id, SECOND), era(2, None, id, fourth)];
    assert_eq!(begin(&store, fourth).await, wanted);
}

async fn an_era_waits_for_an_append_under_way(site: Site) {
    let store = site.lore().await;
    let id = incarnation(&store).await;
    begin(&store, FIRST).await;
    let mut raw = Raw::to(&site.url).await;
    raw.run(if site.is_postgres() {
        "BEGIN"
    } else {
        "BEGIN IMMEDIATE"
    })
    .await;
    raw.run("UPDATE channels SET head = 5").await;
    let other = store.clone();
    let call = tokio::spawn(async move { begin(&other, SECOND).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    raw.run("COMMIT").await;
    let wanted = [era(1, Some(5), id, FIRST), era(6, None, id, SECOND)];
    assert_eq!(call.await.unwrap(), wanted);
}

async fn an_old_fence_begins_no_era(site: Site) {
    let store = site.lore().await;
    let take = async |name: &str| {
        let holder = Holder {
            id: Uuid::new_v4(),
            name: name.to_owned(),
        };
        let taken = store.leases().take("lore", &holder, Duration::ZERO).await;
        match taken.unwrap() {
            LeaseOutcome::Held(lease) => lease.fence,
            LeaseOutcome::Other { name, .. } => panic!("{name} has the lease"),
        }
    };
    let (old, new) = (take("attic").await, take("basement").await);
    let before = begin(&store, FIRST).await;
    for key in [FIRST, SECOND] {
        let refused = store.signing_eras().begin("lore", Some(old), &key).await;
        let error = refused.unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::Fenced { fence, current, .. } if (fence, current) == (old, new)
            ),
            "{error:?}"
        );
    }
    assert_eq!(list(&store).await, before);
    store.signing_keys().add(&SECOND, &[]).await.unwrap();
    let begun = store.signing_eras().begin("lore", Some(new), &SECOND).await;
    assert_eq!(begun.unwrap()[0].key, SECOND);
}

async fn a_renewed_channel_closes_its_era(site: Site) {
    let store = site.lore().await;
    let old = incarnation(&store).await;
    begin(&store, FIRST).await;
    grow(&store, 3).await;
    let refused = store.channels().renew("lore", Some(7)).await;
    assert!(refused.unwrap_err().is_fenced());
    assert_eq!(list(&store).await, [era(1, None, old, FIRST)]);
    let new = store.channels().renew("lore", None).await.unwrap();
    let closed = era(1, Some(3), old, FIRST);
    assert_eq!(list(&store).await, std::slice::from_ref(&closed));
    // The same key signs for another incarnation.
    let open = era(4, None, new.incarnation, FIRST);
    assert_eq!(begin(&store, FIRST).await, [closed.clone(), open]);
    store.channels().renew("lore", None).await.unwrap();
    assert_eq!(list(&store).await, [closed], "an era without updates");
}

/// As by a program that knows no eras, or by hand.
async fn another_incarnation_has_another_era(site: Site) {
    let store = site.lore().await;
    let old = incarnation(&store).await;
    begin(&store, FIRST).await;
    grow(&store, 2).await;
    let new = Uuid::from_u128(9);
    let mut raw = Raw::to(&site.url).await;
    raw.run(&format!("UPDATE channels SET incarnation = '{new}'"))
        .await;
    let wanted = [era(1, Some(2), old, FIRST), era(3, None, new, FIRST)];
    assert_eq!(begin(&store, FIRST).await, wanted);
}

async fn a_moved_folder_closes_the_era(site: Site) {
    let store = site.lore().await;
    let mark = site.path("lore.head");
    HeadMark::adopt(&mark, &store, "lore", None).await.unwrap();
    let old = incarnation(&store).await;
    begin(&store, FIRST).await;
    grow(&store, 2).await;
    HeadMark::adopt(&mark, &store, "lore", None).await.unwrap();
    assert_eq!(list(&store).await, [era(1, None, old, FIRST)]);
    let elsewhere = site.path("elsewhere.head");
    let adopted = HeadMark::adopt(&elsewhere, &store, "lore", None).await;
    assert!(adopted.unwrap().renewal.is_some());
    assert_eq!(list(&store).await, [era(1, Some(2), old, FIRST)]);
}

async fn a_removed_channel_loses_its_eras(site: Site) {
    let store = site.lore().await;
    begin(&store, FIRST).await;
    grow(&store, 2).await;
    begin(&store, SECOND).await;
    assert!(store.channels().remove("lore").await.unwrap());
    store.channels().open("lore").await.unwrap();
    assert_eq!(list(&store).await, []);
    let mut raw = Raw::to(&site.url).await;
    assert_eq!(raw.count("SELECT COUNT(*) FROM signing_eras").await, 0);
}

async fn eras_go_with_their_updates(site: Site) {
    let store = site.lore().await;
    for (key, head) in [(FIRST, 3), (SECOND, 6), (THIRD, 9)] {
        begin(&store, key).await;
        grow(&store, head).await;
    }
    let retain = async |count| {
        let retained = store.updates().retain("lore", &keep(count), 9).await;
        retained.unwrap();
        let eras = list(&store).await;
        eras.iter().map(|era| era.first).collect::<Vec<_>>()
    };
    assert_eq!(retain(7).await, [1, 4, 7], "update 3 is left");
    assert_eq!(retain(6).await, [4, 7]);
    assert_eq!(retain(4).await, [4, 7], "update 6 is left");
    assert_eq!(retain(3).await, [7]);
    assert_eq!(retain(1).await, [7]);
    begin(&store, [4; 32]).await;
    assert_eq!(retain(0).await, [10], "the open era stays");
}

async fn the_last_eras_are_kept(site: Site) {
    let store = site.lore().await;
    for head in 1..=257_usize {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&head.to_be_bytes());
        begin(&store, key).await;
        grow(&store, head).await;
    }
    let firsts = |eras: &[SigningEra]| eras.iter().map(|era| era.first).collect::<Vec<_>>();
    let eras = list(&store).await;
    assert_eq!(firsts(&eras), (2..=257).collect::<Vec<_>>());
    let eras = begin(&store, FIRST).await;
    assert_eq!(firsts(&eras), (3..=258).collect::<Vec<_>>());
    assert_eq!((eras[254].last, eras[255].last), (Some(257), None));
}

async fn a_damaged_era_is_reported(site: Site) {
    let store = site.lore().await;
    begin(&store, FIRST).await;
    let mut raw = Raw::to(&site.url).await;
    let short = blob(&site, b"short");
    let cases = [
        (format!("public_key = {short}"), "key of 5 bytes"),
        ("incarnation = 'none'".to_owned(), "incarnation \"none\""),
    ];
    for (damage, words) in cases {
        raw.run(&format!("UPDATE signing_eras SET {damage}")).await;
        let error = store.signing_eras().list("lore").await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(words) && text.contains("channel \"lore\" from update 1 on"),
            "{text}"
        );
    }
}

/// Bytes as a literal of the database's language.
fn blob(site: &Site, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if site.is_postgres() {
        format!(r"'\x{hex}'")
    } else {
        format!("X'{hex}'")
    }
}

/// Inserts an era of the only channel, whatever it covers.
async fn insert(site: &Site, raw: &mut Raw, first: i64, last: i64) {
    let (id, key) = (Uuid::from_u128(7), blob(site, &FIRST));
    raw.run(&format!(
        "INSERT INTO signing_eras (channel_id, first_seq, last_seq, incarnation, public_key)
             SELECT id, {first}, {last}, '{id}', {key} FROM channels"
    ))
    .await;
}

async fn eras_are_restored_up_to_the_head(site: Site) {
    let store = site.lore().await;
    let old = incarnation(&store).await;
    grow(&store, 2).await;
    begin(&store, FIRST).await;
    grow(&store, 5).await;
    begin(&store, SECOND).await;
    grow(&store, 6).await;
    let file = site.path("backup");
    let wanted = [era(3, Some(5), old, FIRST), era(6, Some(6), old, SECOND)];
    // Once while the last era is open, and once with an open one that has no update.
    for saved in [2, 3] {
        let contents = store.backup(&file).await.unwrap().contents;
        assert_eq!(contents.signing_eras, saved);
        // By this, programs that know no eras refuse the archive.
        let archive = std::fs::read(&file).unwrap();
        assert!(archive.starts_with(b"flexfeed-backup 5\n"));
        for other in [Site::sqlite(), Site::postgres()] {
            assert_eq!(restore(&other, &file).await.unwrap().contents, contents);
            let restored = other.open().await;
            assert_eq!(list(&restored).await, wanted);
            // The same key signs for the new incarnation.
            let eras = begin(&restored, SECOND).await;
            let open = era(7, None, incarnation(&restored).await, SECOND);
            assert_eq!((&eras[..2], &eras[2..]), (&wanted[..], &[open][..]));
        }
        begin(&store, [3; 32]).await;
    }
    // An archive may say what no database does.
    let mut raw = Raw::to(&site.url).await;
    raw.run("DELETE FROM signing_eras").await;
    insert(&site, &mut raw, 4, 90).await;
    insert(&site, &mut raw, 91, 95).await;
    store.backup(&file).await.unwrap();
    let other = site.another();
    restore(&other, &file).await.unwrap();
    let wanted = [era(4, Some(6), Uuid::from_u128(7), FIRST)];
    assert_eq!(list(&other.open().await).await, wanted);
}

async fn an_archive_with_impossible_eras_is_refused(site: Site) {
    let store = site.lore().await;
    grow(&store, 5).await;
    let mut raw = Raw::to(&site.url).await;
    raw.run(if site.is_postgres() {
        "ALTER TABLE signing_eras DROP CONSTRAINT signing_eras_check"
    } else {
        "PRAGMA ignore_check_constraints = ON"
    })
    .await;
    insert(&site, &mut raw, 2, 3).await;
    let short = blob(&site, b"short");
    let cases = [
        (
            format!("UPDATE signing_eras SET public_key = {short}"),
            "from update 2 on: key of 5 bytes",
        ),
        (
            "UPDATE signing_eras SET incarnation = 'none'".to_owned(),
            "from update 2 on: incarnation \"none\"",
        ),
        (
            "UPDATE signing_eras SET last_seq = 1".to_owned(),
            "from update 2 on: ends with update 1",
        ),
    ];
    let (file, other) = (site.path("backup"), site.another());
    let refused = async |words: &str| {
        store.backup(&file).await.unwrap();
        let error = restore(&other, &file).await.unwrap_err();
        assert!(matches!(error, StoreError::Archive { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    for (damage, words) in cases {
        raw.run(&damage).await;
        refused(words).await;
    }
    raw.run("DELETE FROM signing_eras").await;
    insert(&site, &mut raw, 1, 3).await;
    insert(&site, &mut raw, 3, 4).await;
    refused("from update 3 on: only updates from 4 on have no era yet").await;
    raw.run("DELETE FROM signing_eras WHERE first_seq = 1")
        .await;
    store.backup(&file).await.unwrap();
    restore(&other, &file).await.unwrap();
}

async fn an_archive_with_too_many_eras_restores_the_last_ones(site: Site) {
    let store = site.lore().await;
    grow(&store, 260).await;
    let mut raw = Raw::to(&site.url).await;
    for seq in 1..=260 {
        insert(&site, &mut raw, seq, seq).await;
    }
    let file = site.path("backup");
    store.backup(&file).await.unwrap();
    let other = site.another();
    restore(&other, &file).await.unwrap();
    let eras = list(&other.open().await).await;
    assert_eq!((eras.len(), eras[0].first), (256, 5));
}
