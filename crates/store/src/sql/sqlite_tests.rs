//! Tests that look inside: a full disk, deleted and damaged rows, other schemas, many updates.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::location::Location;
use crate::model::{Applicant, Draft, Kind, NewToken, Validators, Verdict};
use crate::{Store, StoreError};

const URL: &str = "https://example.org/new.atom";

async fn open(path: &Path) -> Result<Store, StoreError> {
    Store::at(Location::file(path)).await
}

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap()
}

fn draft(number: usize) -> Draft {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    Draft {
        entry_id: format!("urn:entry:{number}"),
        hash,
        kind: Kind::Created,
        index: number,
    }
}

fn etag(text: &str) -> Validators {
    Validators {
        etag: Some(text.to_owned()),
        last_modified: None,
    }
}

#[tokio::test]
async fn a_full_disk_stores_nothing_is_reported_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("a.db")).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let drafts: Vec<_> = (0..20).map(draft).collect();
    store
        .updates()
        .append(
            "lore",
            URL,
            None,
            &drafts[..5],
            Some(&etag("one")),
            &|_, _| vec![1; 100],
        )
        .await
        .unwrap();
    // SQLite reports this limit exactly as it reports ENOSPC.
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(store.database.sqlite_writer())
        .await
        .unwrap();
    let limit = |pages: i64| sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
    sqlx::query(limit(pages + 10))
        .execute(store.database.sqlite_writer())
        .await
        .unwrap();
    let big = |_: u64, _: &Draft| vec![2; 20_000];
    let error = store
        .updates()
        .append("lore", URL, None, &drafts[5..], Some(&etag("two")), &big)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("a.db"), "{error}");
    // Neither the part that fitted nor the validators are there.
    assert_eq!(store.channels().open("lore").await.unwrap().head, 5);
    assert_eq!(
        store.feeds().validators("lore", URL).await.unwrap(),
        etag("one")
    );
    // The limit is of the connection, which the failure replaced.
    let stored = store
        .updates()
        .append("lore", URL, None, &drafts, Some(&etag("two")), &big)
        .await
        .unwrap();
    let seqs: Vec<_> = stored.iter().map(|update| update.seq).collect();
    assert_eq!(seqs, (6..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_deleted_seq_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let store = open(&path).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let drafts: Vec<_> = (0..10).map(draft).collect();
    let encode = |seq: u64, _: &Draft| seq.to_be_bytes().to_vec();
    store
        .updates()
        .append("lore", URL, None, &drafts, None, &encode)
        .await
        .unwrap();
    sqlx::query("DELETE FROM updates WHERE seq <= 4")
        .execute(store.database.sqlite_writer())
        .await
        .unwrap();
    let channel = store.channels().open("lore").await.unwrap();
    assert_eq!((channel.first, channel.head), (5, 10));
    let left = store.updates().read("lore", 1, 100, 1 << 20).await.unwrap();
    assert_eq!(left.first().unwrap().seq, 5);
    sqlx::query("DELETE FROM updates")
        .execute(store.database.sqlite_writer())
        .await
        .unwrap();
    store.close().await;
    let store = open(&path).await.unwrap();
    let channel = store.channels().open("lore").await.unwrap();
    assert_eq!((channel.first, channel.head), (11, 10));
    let stored = store
        .updates()
        .append("lore", URL, None, &[draft(10)], None, &encode)
        .await
        .unwrap();
    assert_eq!(stored[0].seq, 11);
}

#[tokio::test]
async fn impossible_rows_are_reported_as_damage() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("a.db")).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let drafts: Vec<_> = (0..3).map(draft).collect();
    store
        .updates()
        .append("lore", URL, None, &drafts, None, &|_, _| vec![0])
        .await
        .unwrap();
    let damage = async |sql: &'static str| {
        sqlx::query(sql)
            .execute(store.database.sqlite_writer())
            .await
            .unwrap();
    };
    damage("UPDATE channels SET head = 2").await;
    let error = store.channels().open("lore").await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    damage("UPDATE channels SET head = -7").await;
    let error = store
        .updates()
        .append("lore", URL, None, &[draft(9)], None, &|_, _| vec![0])
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    damage("UPDATE channels SET head = 9223372036854775807").await;
    let error = store
        .updates()
        .append("lore", URL, None, &[draft(9)], None, &|_, _| vec![0])
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    damage("UPDATE channels SET head = 3, incarnation = 'x'").await;
    let error = store.channels().open("lore").await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    damage("UPDATE entries SET hash = X'00'").await;
    let error = store
        .entries()
        .hashes("lore", URL, &["urn:entry:0"])
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    open(&path).await.unwrap().close().await;
    let mut connection = raw(&path).await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (99, 'the future', TRUE, X'00', 0)",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Newer { found: 99, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("upgrade the program"), "{error}");
}

#[tokio::test]
async fn the_database_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    let mut connection = raw(&path).await;
    sqlx::query("CREATE TABLE bookmarks (url TEXT)")
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the database of another program"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn appends_to_a_locked_database_report_busy_and_reads_do_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let store = open(&path).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let mut other = raw(&path).await;
    let held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    // Readers do not wait.
    assert!(
        store
            .updates()
            .read("lore", 1, 1, 1)
            .await
            .unwrap()
            .is_empty()
    );
    sqlx::query("PRAGMA busy_timeout = 50")
        .execute(store.database.sqlite_writer())
        .await
        .unwrap();
    let error = store
        .updates()
        .append("lore", URL, None, &[draft(1)], None, &|_, _| vec![0])
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error:?}");
    held.rollback().await.unwrap();
    let stored = store
        .updates()
        .append("lore", URL, None, &[draft(1)], None, &|_, _| vec![0])
        .await
        .unwrap();
    assert_eq!(stored[0].seq, 1);
}

#[tokio::test]
async fn an_invalid_token_occupies_no_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let store = open(&path).await.unwrap();
    let token = NewToken {
        hash: [1; 32],
        label: "one".into(),
        limit: None,
        expires_ms: None,
        public: false,
        channels: Vec::new(),
    };
    let row = store.tokens().add(&token).await.unwrap();
    store.tokens().revoke(row.id).await.unwrap();
    let mut other = raw(&path).await;
    let held = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 50")
        .execute(store.database.sqlite_writer())
        .await
        .unwrap();
    let verdict = async |token: [u8; 32]| {
        let applicant = Applicant {
            token: Some(token),
            receiver: uuid::Uuid::from_u128(1),
            credential: [2; 32],
            name: "r1",
            software: "test",
            address: "[::1]:1",
            channels: &[],
        };
        store.receivers().admit(&applicant).await.unwrap()
    };
    assert_eq!(verdict([9; 32]).await, Verdict::UnknownToken);
    assert_eq!(verdict([1; 32]).await, Verdict::TokenRevoked);
    held.rollback().await.unwrap();
}

#[tokio::test]
async fn a_hundred_thousand_updates_are_read_by_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("a.db")).await.unwrap();
    store.channels().open("lore").await.unwrap();
    store
        .updates()
        .append("lore", URL, None, &[draft(0)], None, &|_, _| vec![0; 500])
        .await
        .unwrap();
    sqlx::query(
        "WITH RECURSIVE n(seq) AS (SELECT 2 UNION ALL SELECT seq + 1 FROM n WHERE seq < 100000)
         INSERT INTO updates SELECT 1, seq, 1, 'urn:entry:' || seq, 'created', 0, zeroblob(500)
             FROM n",
    )
    .execute(store.database.sqlite_writer())
    .await
    .unwrap();
    sqlx::query("UPDATE channels SET head = 100000")
        .execute(store.database.sqlite_writer())
        .await
        .unwrap();
    let mut took: Vec<Duration> = Vec::new();
    // 200 reads; a scan of the table for each would take far longer than this, each time.
    while took.iter().all(|time| *time >= Duration::from_secs(5)) {
        assert!(took.len() < 3, "{took:?}");
        let started = Instant::now();
        for from in (1..100_000).step_by(500) {
            let updates = store
                .updates()
                .read("lore", from, 100, 1 << 20)
                .await
                .unwrap();
            assert_eq!(updates.len(), 100);
            assert_eq!(updates[0].seq, from);
        }
        assert_eq!(store.channels().open("lore").await.unwrap().head, 100_000);
        took.push(started.elapsed());
    }
    let all = store
        .updates()
        .read("lore", 1, usize::MAX, usize::MAX)
        .await;
    assert_eq!(all.unwrap().len(), 65_536, "one read is bounded anyway");
}

#[tokio::test]
async fn commits_are_synced_to_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("a.db")).await.unwrap();
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(store.database.sqlite_writer())
        .await
        .unwrap();
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(store.database.sqlite_writer())
        .await
        .unwrap();
    let foreign_keys: i64 = sqlx::query_scalar("PRAGMA foreign_keys")
        .fetch_one(store.database.sqlite_writer())
        .await
        .unwrap();
    assert_eq!((synchronous, journal.as_str(), foreign_keys), (2, "wal", 1));
}
