//! Saving: rows are read in one transaction, and written by a thread that may wait for the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::format::{FAMILY, put, writer};
use super::record::{
    ApiToken, Audit, Channel, Entry, Feed, Gap, Publication, Receiver, Record, SigningEra,
    SigningKey, Token, Update, User,
};
use super::{BackupReport, Contents};
use crate::StoreError;
use crate::database::{Column, Database, Row, Session, Sql, Value, sql, values};
use crate::sql::updates_within;

/// Rows of one read.
const ROWS: i64 = 500;
/// The same of publications, of which each may have megabytes.
const LARGE_ROWS: i64 = 16;
/// Bytes of one read of updates.
const BYTES: i64 = 4 << 20;

/// Records are handed to the thread in parts of about this many bytes.
const PART: usize = 256 << 10;
/// Parts on their way to it.
const PARTS: usize = 8;

/// Records on their way to the file.
struct Output {
    parts: mpsc::Sender<Vec<u8>>,
    part: Vec<u8>,
    contents: Contents,
}

/// Why the records could not be handed over.
enum Failure {
    Store(StoreError),
    Record(io::Error),
    /// The thread ended, and says why.
    Thread,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Output {
    async fn put(&mut self, record: &Record, bytes: &[u8]) -> Result<(), Failure> {
        put(&mut self.part, record, bytes).map_err(Failure::Record)?;
        self.contents.count(record);
        if self.part.len() >= PART {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        let part = std::mem::take(&mut self.part);
        self.parts.send(part).await.map_err(|_| Failure::Thread)
    }
}

pub(crate) async fn backup(database: &Database, to: &Path) -> Result<BackupReport, StoreError> {
    let failed = |reason: String| StoreError::Archive {
        path: to.to_owned(),
        reason,
    };
    let (parts, received) = mpsc::channel(PARTS);
    let path = to.to_owned();
    let thread = tokio::task::spawn_blocking(move || write(&path, received));
    let mut output = Output {
        parts,
        part: Vec::new(),
        contents: Contents::default(),
    };
    let read = read(database, &mut output).await;
    let contents = output.contents;
    // Nothing but the whole makes a file: an empty part says that it is.
    let whole = match &read {
        Ok(()) => output.parts.send(Vec::new()).await.is_ok(),
        Err(_) => false,
    };
    drop(output);
    let written = thread
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    match (read, written) {
        (Ok(()), Ok(Some(bytes))) if whole => Ok(BackupReport { contents, bytes }),
        (Err(Failure::Store(error)), _) => Err(error),
        (Err(Failure::Record(error)), _) | (_, Err(error)) => Err(failed(error.to_string())),
        _ => Err(failed("it was not finished".to_owned())),
    }
}

/// Writes a file beside `path` and puts it there when it is whole and durable. Returns its size;
/// `None` if the records ended before.
fn write(path: &Path, mut parts: mpsc::Receiver<Vec<u8>>) -> io::Result<Option<u64>> {
    check_free(path)?;
    let beside = beside(path);
    let written = write_beside(&beside, &mut parts).and_then(|size| {
        if size.is_some() {
            std::fs::rename(&beside, path)?;
            File::open(folder_of(path))?.sync_all()?;
        }
        Ok(size)
    });
    if !matches!(written, Ok(Some(_))) {
        // A partial file is of no use; if it cannot be removed, the next backup replaces it.
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "it cannot be written ({error}): the folder must exist, be writable, and have room"
            ),
        )
    })
}

fn write_beside(path: &Path, parts: &mut mpsc::Receiver<Vec<u8>>) -> io::Result<Option<u64>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    let mut writer = writer(file)?;
    while let Some(part) = parts.blocking_recv() {
        if part.is_empty() {
            let file = writer.finish()?;
            file.sync_all()?;
            return Ok(Some(file.metadata()?.len()));
        }
        writer.write_all(&part)?;
    }
    Ok(None)
}

/// An older backup is replaced; anything else that is there is not ours to destroy.
fn check_free(path: &Path) -> io::Result<()> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut start = [0; FAMILY.len()];
    if file.read_exact(&mut start).is_ok() && start == FAMILY {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "there is a file of that name that is no backup of flexfeed: choose another name",
    ))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

async fn read(database: &Database, output: &mut Output) -> Result<(), Failure> {
    let mut session = database.snapshot("make a backup").await?;
    session.extend_timeout().await?;
    let row = session
        .row(
            sql!(
                "SELECT (SELECT COUNT(*) FROM channels), (SELECT COUNT(*) FROM feeds),
                     (SELECT COUNT(*) FROM entries), (SELECT COUNT(*) FROM updates),
                     (SELECT COUNT(*) FROM gaps), (SELECT COUNT(*) FROM tokens),
                     (SELECT COUNT(*) FROM receivers), (SELECT COUNT(*) FROM users),
                     (SELECT COUNT(*) FROM api_tokens), (SELECT COUNT(*) FROM audit),
                     (SELECT COUNT(*) FROM signing_eras),
                     (SELECT COUNT(*) FROM signing_keys),
                     (SELECT COUNT(*) FROM publications), " NOW
            ),
            values![],
        )
        .await?
        .ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
    let contents = Contents {
        channels: session.count(&row, 0)?,
        feeds: session.count(&row, 1)?,
        entries: session.count(&row, 2)?,
        updates: session.count(&row, 3)?,
        gaps: session.count(&row, 4)?,
        tokens: session.count(&row, 5)?,
        receivers: session.count(&row, 6)?,
        users: session.count(&row, 7)?,
        api_tokens: session.count(&row, 8)?,
        audit: session.count(&row, 9)?,
        signing_eras: session.count(&row, 10)?,
        signing_keys: session.count(&row, 11)?,
        publications: session.count(&row, 12)?,
    };
    let head = Record::Head {
        made_ms: session.get(&row, 13)?,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        contents,
    };
    output.put(&head, &[]).await?;
    let channels = channels(&mut session, output).await?;
    let feeds = feeds(&mut session, output).await?;
    for feed in feeds {
        entries(&mut session, output, feed).await?;
    }
    for channel in channels {
        updates(&mut session, output, channel).await?;
        publications(&mut session, output, channel).await?;
        signing_eras(&mut session, output, channel).await?;
    }
    signing_keys(&mut session, output).await?;
    rest(&mut session, output).await?;
    let contents = output.contents;
    output.put(&Record::End { contents }, &[]).await?;
    output.flush().await?;
    session.rollback().await?;
    Ok(())
}

/// Saves the rows of a table in the order of the first column, which is above `$1`; at most `$2` at
/// once.
async fn table<K: Column + Default>(
    session: &mut Session,
    output: &mut Output,
    sql: Sql,
    mut read: impl FnMut(&Session, &Row) -> Result<(Record, Vec<u8>), StoreError>,
) -> Result<(), Failure>
where
    for<'a> Value<'a>: From<&'a K>,
{
    let mut after = K::default();
    loop {
        let rows = session
            .rows(sql, &[Value::from(&after), Value::Int(Some(ROWS))])
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let (record, bytes) = read(session, row)?;
            output.put(&record, &bytes).await?;
        }
    }
}

async fn channels(session: &mut Session, output: &mut Output) -> Result<Vec<i64>, Failure> {
    let sql = sql!(
        "SELECT id, name, head, created_at, groups, rate_bps, private, keep_count, keep_age, origin,
             active, packet_authentication, fec, deadline_ms FROM channels WHERE id > $1
             ORDER BY id LIMIT $2"
    );
    let mut keys = Vec::new();
    table::<i64>(session, output, sql, |session, row| {
        keys.push(session.get(row, 0)?);
        Ok((Channel::read(session, row, 0)?, Vec::new()))
    })
    .await?;
    Ok(keys)
}

/// Without the times at which polls are due: after a restore they are polled at once.
async fn feeds(session: &mut Session, output: &mut Output) -> Result<Vec<i64>, Failure> {
    let sql = sql!(
        "SELECT id, channel_id, url, etag, last_modified, last_poll, state, detail, address, local,
             min_interval, max_interval, title, origin, active, moved_to, gone_at, poll_interval,
             paused FROM feeds WHERE id > $1 ORDER BY id LIMIT $2"
    );
    let mut keys = Vec::new();
    table::<i64>(session, output, sql, |session, row| {
        keys.push(session.get(row, 0)?);
        Ok((Feed::read(session, row, 0)?, Vec::new()))
    })
    .await?;
    Ok(keys)
}

async fn entries(session: &mut Session, output: &mut Output, feed: i64) -> Result<(), Failure> {
    // No id is empty.
    let mut after = String::new();
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT feed_id, entry_id, seq, hash FROM entries
                     WHERE feed_id = $1 AND entry_id > $2 ORDER BY entry_id LIMIT $3"
                ),
                values![feed, &after, ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 1)?;
        for row in &rows {
            let hash: Vec<u8> = session.get(row, 3)?;
            output.put(&Entry::read(session, row, 0)?, &hash).await?;
        }
    }
}

async fn updates(session: &mut Session, output: &mut Output, channel: i64) -> Result<(), Failure> {
    let mut from = 0_i64;
    loop {
        let rows = session
            .rows(
                updates_within!("encoded, channel_id, feed_id, seq, entry_id, kind, created_at"),
                values![channel, from, ROWS, BYTES],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        from = session.get::<i64>(last, 3)?.saturating_add(1);
        for row in &rows {
            let encoded: Vec<u8> = session.get(row, 0)?;
            output
                .put(&Update::read(session, row, 1)?, &encoded)
                .await?;
        }
    }
}

async fn publications(
    session: &mut Session,
    output: &mut Output,
    channel: i64,
) -> Result<(), Failure> {
    let mut after = 0_i64;
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT id, payload, channel_id, entry_id, created_at FROM publications
                     WHERE channel_id = $1 AND id > $2 ORDER BY id LIMIT $3"
                ),
                values![channel, after, LARGE_ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let payload: Vec<u8> = session.get(row, 1)?;
            output
                .put(&Publication::read(session, row, 2)?, &payload)
                .await?;
        }
    }
}

/// Few enough to be read at once.
async fn signing_eras(
    session: &mut Session,
    output: &mut Output,
    channel: i64,
) -> Result<(), Failure> {
    let rows = session
        .rows(
            sql!(
                "SELECT channel_id, first_seq, last_seq, incarnation, public_key FROM signing_eras
                 WHERE channel_id = $1 ORDER BY first_seq"
            ),
            values![channel],
        )
        .await?;
    for row in &rows {
        let key: Vec<u8> = session.get(row, 4)?;
        output
            .put(&SigningEra::read(session, row, 0)?, &key)
            .await?;
    }
    Ok(())
}

/// Few enough to be read at once.
async fn signing_keys(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let sql = sql!("SELECT created_at, public_key, endorsements FROM signing_keys ORDER BY id");
    for row in &session.rows(sql, values![]).await? {
        let (key, endorsements): (Vec<u8>, Vec<u8>) = (session.get(row, 1)?, session.get(row, 2)?);
        let bytes = [key, endorsements].concat();
        output
            .put(&SigningKey::read(session, row, 0)?, &bytes)
            .await?;
    }
    Ok(())
}

async fn rest(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let gaps = sql!(
        "SELECT id, channel_id, url, noticed_at, state, detail, entries, after_seq FROM gaps
         WHERE id > $1 ORDER BY id LIMIT $2"
    );
    table::<i64>(session, output, gaps, |session, row| {
        Ok((Gap::read(session, row, 1)?, Vec::new()))
    })
    .await?;
    let tokens = sql!(
        "SELECT id, label, uses, use_limit, expires_at, public, channels, created_at, revoked_at,
             hash FROM tokens WHERE id > $1 ORDER BY id LIMIT $2"
    );
    table::<i64>(session, output, tokens, |session, row| {
        Ok((Token::read(session, row, 0)?, session.get(row, 9)?))
    })
    .await?;
    let receivers = sql!(
        "SELECT id, name, software, address, channels, token_id, enrolled_at, seen_at, revoked_at,
             label, tags, held, credential FROM receivers WHERE id > $1 ORDER BY id LIMIT $2"
    );
    table::<String>(session, output, receivers, |session, row| {
        Ok((Receiver::read(session, row, 0)?, session.get(row, 12)?))
    })
    .await?;
    // Browsers that are signed in are left out: they sign in again.
    let users = sql!(
        "SELECT id, name, password, role, created_at, disabled_at, issuer, subject FROM users
         WHERE id > $1 ORDER BY id LIMIT $2"
    );
    table::<i64>(session, output, users, |session, row| {
        Ok((User::read(session, row, 0)?, Vec::new()))
    })
    .await?;
    let api_tokens = sql!(
        "SELECT id, user_id, name, scopes, created_at, expires_at, seen_at, revoked_at, hash
         FROM api_tokens WHERE id > $1 ORDER BY id LIMIT $2"
    );
    table::<i64>(session, output, api_tokens, |session, row| {
        Ok((ApiToken::read(session, row, 1)?, session.get(row, 8)?))
    })
    .await?;
    let audit = sql!(
        "SELECT id, at, actor, via, action, target, detail, outcome, address FROM audit
         WHERE id > $1 ORDER BY id LIMIT $2"
    );
    table::<i64>(session, output, audit, |session, row| {
        Ok((Audit::read(session, row, 1)?, Vec::new()))
    })
    .await
}
