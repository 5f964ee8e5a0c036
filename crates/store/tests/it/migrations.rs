//! Databases of every earlier version, of later ones, of other programs, and empty ones.
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection};
use store::{
    Applicant, Batch, ChannelSettings, GapState, PollRecord, ReceiverEdit, Store, StoreError,
    Validators, Verdict,
};
use uuid::Uuid;

use crate::site::{Site, URL, draft, drafts, encode, on_both, texts};

on_both! {
    a_database_of_version_1_is_migrated_with_its_rows,
    a_database_of_version_2_is_migrated_with_its_rows,
    a_database_of_version_3_is_migrated_with_its_rows,
    a_database_of_version_4_is_migrated_with_its_rows,
    many_open_a_new_database_at_once,
    many_open_an_old_database_at_once,
    a_newer_database_is_refused_and_left_alone,
    a_migration_that_fails_leaves_the_database_as_it_was,
    the_database_of_another_program_is_refused,
}

/// The folder of migrations, read independently of how the store embeds them.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");

const INCARNATION: &str = "6f0e2a54-9d9c-4b54-8a35-0c7e8e1c0d11";

async fn migrations(database: &str) -> Migrator {
    Migrator::new(Path::new(FOLDER).join(database))
        .await
        .unwrap()
}

/// A bare connection to either.
pub enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Raw {
    pub async fn to(url: &str) -> Self {
        if url.starts_with("postgres") {
            let options: PgConnectOptions = url.parse().unwrap();
            Self::Postgres(options.connect().await.unwrap())
        } else {
            let options: SqliteConnectOptions = url.parse().unwrap();
            let options = options.create_if_missing(true);
            Self::Sqlite(options.connect().await.unwrap())
        }
    }

    pub async fn run(&mut self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => {
                sqlx::raw_sql(sql).execute(connection).await.unwrap();
            }
            Self::Postgres(connection) => {
                sqlx::raw_sql(sql).execute(connection).await.unwrap();
            }
        }
    }

    pub async fn count(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => {
                sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
            }
            Self::Postgres(connection) => {
                sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
            }
        }
    }

    async fn migrate_to(&mut self, version: i64) {
        match self {
            Self::Sqlite(connection) => {
                let migrator = migrations("sqlite").await;
                migrator.run_to(version, connection).await.unwrap();
            }
            Self::Postgres(connection) => {
                let migrator = migrations("postgres").await;
                migrator.run_to(version, connection).await.unwrap();
            }
        }
    }

    pub async fn close(self) {
        match self {
            Self::Sqlite(connection) => connection.close().await.unwrap(),
            Self::Postgres(connection) => connection.close().await.unwrap(),
        }
    }
}

/// Bytes as a literal of the database's language.
fn blob(site: &Site, byte: u8) -> String {
    let hex = format!("{byte:02x}").repeat(32);
    if site.is_postgres() {
        format!(r"'\x{hex}'")
    } else {
        format!("X'{hex}'")
    }
}

/// A database as version 1 left it: a channel with a feed, two entries in three updates, and a
/// token.
async fn version_1(site: &Site) {
    let mut raw = Raw::to(&site.url).await;
    raw.migrate_to(1).await;
    let (one, two, token) = (blob(site, 1), blob(site, 2), blob(site, 9));
    raw.run(&format!(
        "INSERT INTO channels (id, name, incarnation, head, created_at)
             VALUES (5, 'lore', '{INCARNATION}', 3, 1000);
         INSERT INTO feeds (id, channel_id, url, etag, last_modified, last_poll, state, detail)
             VALUES (8, 5, '{URL}', '\"x\"', NULL, 2000, 'ok', '2 entries');
         INSERT INTO entries (feed_id, entry_id, hash, seq)
             VALUES (8, 'a', {two}, 3), (8, 'b', {one}, 2);
         INSERT INTO updates (channel_id, seq, feed_id, entry_id, kind, created_at, encoded) VALUES
             (5, 1, 8, 'a', 'created', 1001, {one}), (5, 2, 8, 'b', 'created', 1002, {one}),
             (5, 3, 8, 'a', 'updated', 1003, {two});
         INSERT INTO tokens (hash, label, created_at)
             VALUES ({token}, 'first enrolment link', 1004);"
    ))
    .await;
    raw.close().await;
}

async fn is_version_1_brought_up_to_date(store: &Store) {
    let channels = store.channels().list().await.unwrap();
    let row = &channels[0];
    assert_eq!(row.channel.incarnation.to_string(), INCARNATION);
    assert_eq!((row.channel.head, row.channel.first), (3, 1));
    assert_eq!(row.settings, ChannelSettings::default());
    assert_eq!((row.active, row.created_ms), (true, 1000));
    let feeds = store.feeds().list(None).await.unwrap();
    let feed = &feeds[0];
    assert_eq!((feed.settings.address.as_str(), feed.active), (URL, true));
    let validators = Validators {
        etag: Some("\"x\"".to_owned()),
        last_modified: None,
    };
    assert_eq!(feed.validators, validators);
    let poll = feed.last_poll.clone().unwrap();
    assert_eq!((poll.at_ms, poll.detail.as_str()), (2000, "2 entries"));
    assert_eq!(
        (poll.interval_ms, poll.next_ms, poll.gone),
        (None, None, false)
    );
    let updates = store.updates().read("lore", 1, 9, 999).await.unwrap();
    let bytes: Vec<_> = updates.iter().map(|u| (u.seq, u.encoded[0])).collect();
    assert_eq!(bytes, [(1, 1), (2, 1), (3, 2)]);
    assert_eq!(store.signing_eras().list("lore").await.unwrap(), []);
    let tokens = store.tokens().list().await.unwrap();
    assert_eq!(tokens[0].label, "first enrolment link");
    assert_eq!((tokens[0].limit, tokens[0].expires_ms), (None, None));
    assert!(!tokens[0].public && tokens[0].channels.is_empty());
}

async fn a_database_of_version_1_is_migrated_with_its_rows(site: Site) {
    version_1(&site).await;
    let store = site.open().await;
    is_version_1_brought_up_to_date(&store).await;
    // And works: what is known is known, numbers go on, the token admits.
    let again = [draft("a", 2), draft("b", 1), draft("c", 1)];
    let stored = store
        .updates()
        .append("lore", URL, Some(0), &again, None, &encode)
        .await
        .unwrap();
    assert_eq!(texts(&stored), ["4:c:1"]);
    let applicant = Applicant {
        token: Some([9; 32]),
        receiver: Uuid::from_u128(1),
        credential: [3; 32],
        name: "",
        software: "",
        address: "",
        channels: &[],
    };
    assert_eq!(
        store.receivers().admit(&applicant).await.unwrap(),
        Verdict::Admitted { enrolled: true }
    );
    assert!(
        store
            .tokens()
            .add(&crate::site::token(1, "new"))
            .await
            .unwrap()
            .id
            > 0
    );
    let made = store
        .channels()
        .put("news", &ChannelSettings::default())
        .await;
    assert!(made.unwrap().channel.is_new);
    store.close().await;
    let store = site.open().await;
    assert_eq!(store.channels().open("lore").await.unwrap().head, 4);
}

/// As version 1, and what came with version 2: a lease, a gap, a token that has a number.
async fn a_database_of_version_2_is_migrated_with_its_rows(site: Site) {
    version_1(&site).await;
    let mut raw = Raw::to(&site.url).await;
    raw.migrate_to(2).await;
    let holder = Uuid::from_u128(7);
    raw.run(&format!(
        "UPDATE channels SET fence = 3, holder = '{holder}', holder_name = 'attic';
         INSERT INTO gaps (channel_id, url, noticed_at, state, detail, entries)
             VALUES (5, '{URL}', 1005, 'suspected', 'none of 25', 0);"
    ))
    .await;
    raw.close().await;
    let store = site.open().await;
    is_version_1_brought_up_to_date(&store).await;
    let row = store.channels().list().await.unwrap().remove(0);
    assert_eq!((row.lease, row.last_holder), (None, Some(holder)));
    let mut gap = store.gaps().list("lore", 9).await.unwrap().remove(0);
    assert_eq!((gap.state, gap.after), (GapState::Suspected, None));
    gap.state = GapState::Open;
    assert_eq!(store.gaps().record("lore", &gap).await.unwrap(), gap.id);
    let stored = store
        .updates()
        .append("lore", URL, Some(3), &drafts(0, 1), None, &encode)
        .await
        .unwrap();
    assert_eq!(stored[0].seq, 4);
}

/// As version 2, and what came with version 3; and receivers, one of them revoked.
async fn a_database_of_version_3_is_migrated_with_its_rows(site: Site) {
    version_1(&site).await;
    let mut raw = Raw::to(&site.url).await;
    raw.migrate_to(3).await;
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let credential = blob(&site, 3);
    raw.run(&format!(
        "INSERT INTO gaps (channel_id, url, noticed_at, state, detail, entries, after_seq)
             VALUES (5, '{URL}', 1005, 'open', 'none of 25', 0, 2);
         UPDATE settings SET version = 70;
         INSERT INTO receivers (id, credential, name, software, address, channels, token_id,
                 enrolled_at, seen_at, revoked_at) VALUES
             ('{first}', {credential}, 'cellar', 'flexfeed 0', '192.0.2.1:1', '[\"lore\"]',
                 (SELECT id FROM tokens), 1006, 1007, NULL),
             ('{second}', {credential}, 'attic', 'flexfeed 0', '192.0.2.2:1', '[]', NULL, 1008,
                 1009, 1010)"
    ))
    .await;
    raw.close().await;
    let opened = site.open().await;
    is_version_1_brought_up_to_date(&opened).await;
    assert_eq!(opened.version().await.unwrap(), 70);
    assert!(!opened.feeds().list(None).await.unwrap()[0].paused);
    let gap = opened.gaps().list("lore", 9).await.unwrap().remove(0);
    assert_eq!((gap.state, gap.after), (GapState::Open, Some(2)));
    let rows = opened.receivers().list().await.unwrap();
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["cellar", "attic"]);
    assert_eq!(rows[0].channels, ["lore"]);
    assert_eq!(rows[1].revoked_ms, Some(1010));
    assert!(
        rows.iter()
            .all(|row| row.label.is_none() && row.tags.is_empty() && !row.held)
    );
    // The console has them from the beginning, and they are changed as new ones are.
    let snapshot = opened.records().snapshot().await.unwrap();
    assert_eq!(snapshot.receivers, rows);
    assert_eq!(snapshot.upto, u64::try_from(snapshot.epoch).unwrap());
    let hold = ReceiverEdit {
        held: Some(true),
        ..ReceiverEdit::default()
    };
    let held = opened.receivers().edit(first, &hold).await.unwrap();
    assert!(held.unwrap().held);
    opened.records().write(&Batch::default()).await.unwrap();
    let changes = opened
        .records()
        .changes_since(snapshot.upto, 9)
        .await
        .unwrap();
    let mut changed: Vec<_> = changes.receivers.iter().map(|row| row.id).collect();
    changed.sort();
    assert_eq!(changed, [first, second]);
    assert!(opened.users().setup_open().await.unwrap());
    assert_eq!(opened.receivers().revoked().await.unwrap(), [second]);
    let known = Applicant {
        token: None,
        receiver: first,
        credential: [3; 32],
        name: "cellar",
        software: "flexfeed 1",
        address: "192.0.2.1:1",
        channels: &[],
    };
    assert_eq!(
        opened.receivers().admit(&known).await.unwrap(),
        Verdict::Admitted { enrolled: false }
    );
}

/// As version 3, and what came with version 4: a feed that rests, and a user of the
/// console.
async fn a_database_of_version_4_is_migrated_with_its_rows(site: Site) {
    version_1(&site).await;
    let mut raw = Raw::to(&site.url).await;
    raw.migrate_to(4).await;
    raw.run(
        "UPDATE feeds SET paused = TRUE;
         INSERT INTO users (name, role, created_at) VALUES ('olga', 'operator', 1011);",
    )
    .await;
    raw.close().await;
    let opened = site.open().await;
    is_version_1_brought_up_to_date(&opened).await;
    let users = opened.users().list().await.unwrap();
    assert_eq!((users.len(), users[0].name.as_str()), (1, "olga"));
    let row = opened.feeds().get("lore", URL).await.unwrap().unwrap();
    assert!(row.paused);
    let poll = PollRecord {
        at_ms: 3000,
        next_ms: Some(3_600_000),
        ..row.last_poll.unwrap()
    };
    opened
        .feeds()
        .record_poll("lore", URL, &poll)
        .await
        .unwrap();
    let row = opened.feeds().get("lore", URL).await.unwrap().unwrap();
    assert_eq!(row.last_poll, Some(poll));
}

async fn open_many(site: &Site) -> Vec<Store> {
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let url = site.url.clone();
            tokio::spawn(async move { store::open(&url).await })
        })
        .collect();
    let mut stores = Vec::new();
    for opened in opening {
        stores.push(opened.await.unwrap().unwrap());
    }
    stores
}

async fn many_open_a_new_database_at_once(site: Site) {
    let stores = open_many(&site).await;
    for (number, store) in stores.iter().enumerate() {
        let channel = store.channels().open("lore").await.unwrap();
        assert_eq!(channel.is_new, number == 0);
    }
}

async fn many_open_an_old_database_at_once(site: Site) {
    version_1(&site).await;
    for store in open_many(&site).await {
        is_version_1_brought_up_to_date(&store).await;
    }
}

async fn a_newer_database_is_refused_and_left_alone(site: Site) {
    site.lore().await.close().await;
    let mut raw = Raw::to(&site.url).await;
    let checksum = blob(&site, 0);
    raw.run(&format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (99, 'the future', TRUE, {checksum}, 0); DROP TABLE gaps"
    ))
    .await;
    let error = store::open(&site.url).await.err().unwrap();
    assert!(
        matches!(error, StoreError::Newer { found: 99, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("upgrade the program"), "{error}");
    let known = migrations("sqlite").await.iter().count();
    let known = i64::try_from(known).unwrap();
    let count = raw.count("SELECT COUNT(*) FROM _sqlx_migrations").await;
    assert_eq!(count, known + 1);
    assert_eq!(raw.count("SELECT COUNT(*) FROM channels").await, 1);
}

async fn a_migration_that_fails_leaves_the_database_as_it_was(site: Site) {
    version_1(&site).await;
    let mut raw = Raw::to(&site.url).await;
    // In the way of the last table that version 2 makes.
    raw.run("CREATE TABLE settings (mine BIGINT)").await;
    let error = store::open(&site.url).await.err().unwrap();
    assert!(error.to_string().contains("settings"), "{error}");
    assert_eq!(raw.count("SELECT COUNT(*) FROM _sqlx_migrations").await, 1);
    assert_eq!(raw.count("SELECT COUNT(*) FROM tokens").await, 1);
    raw.run("DROP TABLE settings").await;
    is_version_1_brought_up_to_date(&site.open().await).await;
}

async fn the_database_of_another_program_is_refused(site: Site) {
    let mut raw = Raw::to(&site.url).await;
    raw.run("CREATE TABLE bookmarks (url TEXT)").await;
    let error = store::open(&site.url).await.err().unwrap();
    assert!(error.to_string().contains("of another program"), "{error}");
    let tables = if site.is_postgres() {
        "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'"
    } else {
        "SELECT COUNT(*) FROM sqlite_schema"
    };
    assert_eq!(raw.count(tables).await, 1);
}

/// Old enough to have everything in many parts, and young enough to be quick.
#[tokio::test]
async fn a_large_old_database_is_quick_to_bring_up_to_date() {
    let site = Site::sqlite();
    version_1(&site).await;
    let mut raw = Raw::to(&site.url).await;
    raw.run(
        "WITH RECURSIVE n(seq) AS (SELECT 4 UNION ALL SELECT seq + 1 FROM n WHERE seq < 50000)
         INSERT INTO updates SELECT 5, seq, 8, 'urn:' || seq, 'created', 0, zeroblob(500) FROM n;
         UPDATE channels SET head = 50000",
    )
    .await;
    raw.close().await;
    let started = Instant::now();
    let store = site.open().await;
    assert!(started.elapsed() < Duration::from_secs(20));
    let stored = store
        .updates()
        .append("lore", URL, None, &drafts(0, 1), None, &encode)
        .await
        .unwrap();
    assert_eq!(stored[0].seq, 50_001);
}

/// A table that has just grown has no statistics: a plan that reads the whole feed to look up a few
/// entries would take a hundred times as long.
#[tokio::test]
async fn entries_are_looked_up_by_their_key_in_a_large_feed() {
    let site = Site::postgres();
    let store = site.lore().await;
    store
        .updates()
        .append("lore", URL, None, &drafts(0, 1), None, &encode)
        .await
        .unwrap();
    let mut raw = Raw::to(&site.url).await;
    raw.run(
        "ALTER TABLE entries SET (autovacuum_enabled = false);
         INSERT INTO entries SELECT f.id, 'urn:example:entry:' || n, decode(repeat('00', 32),
             'hex'), n
         FROM feeds f, generate_series(1, 300000) n",
    )
    .await;
    let mut took: Vec<Duration> = Vec::new();
    // A wrong plan is slow each time.
    while took.iter().all(|time| *time >= Duration::from_secs(8)) {
        let round = took.len();
        assert!(round < 3, "{took:?}");
        let started = Instant::now();
        for n in round * 60..round * 60 + 60 {
            let part = drafts(1 + n * 25, 26 + n * 25);
            let ids: Vec<_> = part.iter().map(|draft| draft.entry_id.as_str()).collect();
            assert!(
                store
                    .entries()
                    .hashes("lore", URL, &ids)
                    .await
                    .unwrap()
                    .is_empty()
            );
            let stored = store
                .updates()
                .append("lore", URL, None, &part, None, &encode)
                .await
                .unwrap();
            assert_eq!(stored.len(), 25);
        }
        took.push(started.elapsed());
    }
}
