//! Saving: rows are read in one transaction, and written by a thread that may wait for the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::accounts;
use super::format::{FAMILY, Record, put, writer};
use super::{BackupReport, Contents};
use crate::StoreError;
use crate::database::{Database, Row, Session, sql, values};
use crate::sql::updates_within;

/// Rows of one read.
pub(super) const ROWS: i64 = 500;
/// Bytes of one read of updates.
const BYTES: i64 = 4 << 20;

/// Records are handed to the thread in parts of about this many bytes.
const PART: usize = 256 << 10;
/// Parts on their way to it.
const PARTS: usize = 8;

/// Records on their way to the file.
pub(super) struct Output {
    parts: mpsc::Sender<Vec<u8>>,
    part: Vec<u8>,
    pub(super) contents: Contents,
}

/// Why the records could not be handed over.
pub(super) enum Failure {
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
    pub(super) async fn put(&mut self, record: &Record, bytes: &[u8]) -> Result<(), Failure> {
        put(&mut self.part, record, bytes).map_err(Failure::Record)?;
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
        // It is of no use; if it cannot be removed, the next backup replaces it.
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
    session.take_your_time().await?;
    let row = session
        .row(
            sql!(
                "SELECT (SELECT COUNT(*) FROM channels), (SELECT COUNT(*) FROM feeds),
                     (SELECT COUNT(*) FROM entries), (SELECT COUNT(*) FROM updates),
                     (SELECT COUNT(*) FROM gaps), (SELECT COUNT(*) FROM tokens),
                     (SELECT COUNT(*) FROM receivers), (SELECT COUNT(*) FROM users),
                     (SELECT COUNT(*) FROM api_tokens), (SELECT COUNT(*) FROM audit), " NOW
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
    };
    let head = Record::Head {
        made_ms: session.get(&row, 10)?,
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
    }
    gaps(&mut session, output).await?;
    tokens(&mut session, output).await?;
    receivers(&mut session, output).await?;
    accounts::save(&mut session, output).await?;
    let contents = output.contents;
    output.put(&Record::End { contents }, &[]).await?;
    output.flush().await?;
    session.rollback().await?;
    Ok(())
}

async fn channels(session: &mut Session, output: &mut Output) -> Result<Vec<i64>, Failure> {
    let rows = session
        .rows(
            sql!(
                "SELECT id, name, head, created_at, groups, rate_bps, private, keep_count, keep_age,
                     origin, active FROM channels ORDER BY id"
            ),
            values![],
        )
        .await?;
    let mut keys = Vec::new();
    for row in &rows {
        let key = session.get(row, 0)?;
        let record = Record::Channel {
            key,
            name: session.get(row, 1)?,
            head: session.get(row, 2)?,
            created: session.get(row, 3)?,
            groups: session.get(row, 4)?,
            rate_bps: session.get(row, 5)?,
            private: session.get(row, 6)?,
            keep_count: session.get(row, 7)?,
            keep_age: session.get(row, 8)?,
            origin: session.get(row, 9)?,
            active: session.get(row, 10)?,
        };
        output.put(&record, &[]).await?;
        output.contents.channels += 1;
        keys.push(key);
    }
    Ok(keys)
}

/// Without the times at which polls are due: after a restore they are polled at once.
async fn feeds(session: &mut Session, output: &mut Output) -> Result<Vec<i64>, Failure> {
    let rows = session
        .rows(
            sql!(
                "SELECT id, channel_id, url, etag, last_modified, last_poll, state, detail, address,
                     local, min_interval, max_interval, title, origin, active, moved_to, gone_at,
                     poll_interval, paused FROM feeds ORDER BY id"
            ),
            values![],
        )
        .await?;
    let mut keys = Vec::new();
    for row in &rows {
        let key = session.get(row, 0)?;
        let record = Record::Feed {
            key,
            channel: session.get(row, 1)?,
            url: session.get(row, 2)?,
            etag: session.get(row, 3)?,
            last_modified: session.get(row, 4)?,
            last_poll: session.get(row, 5)?,
            state: session.get(row, 6)?,
            detail: session.get(row, 7)?,
            address: session.get(row, 8)?,
            local: session.get(row, 9)?,
            min_interval: session.get(row, 10)?,
            max_interval: session.get(row, 11)?,
            title: session.get(row, 12)?,
            origin: session.get(row, 13)?,
            active: session.get(row, 14)?,
            moved_to: session.get(row, 15)?,
            gone_at: session.get(row, 16)?,
            poll_interval: session.get(row, 17)?,
            paused: session.get(row, 18)?,
        };
        output.put(&record, &[]).await?;
        output.contents.feeds += 1;
        keys.push(key);
    }
    Ok(keys)
}

async fn entries(session: &mut Session, output: &mut Output, feed: i64) -> Result<(), Failure> {
    // No id is empty.
    let mut after = String::new();
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT entry_id, hash, seq FROM entries WHERE feed_id = $1 AND entry_id > $2
                     ORDER BY entry_id LIMIT $3"
                ),
                values![feed, &after, ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let hash: Vec<u8> = session.get(row, 1)?;
            let record = Record::Entry {
                feed,
                id: session.get(row, 0)?,
                seq: session.get(row, 2)?,
            };
            output.put(&record, &hash).await?;
            output.contents.entries += 1;
        }
    }
}

async fn updates(session: &mut Session, output: &mut Output, channel: i64) -> Result<(), Failure> {
    let mut from = 0_i64;
    loop {
        let rows = session
            .rows(
                updates_within!("seq, encoded, feed_id, entry_id, kind, created_at"),
                values![channel, from, ROWS, BYTES],
            )
            .await?;
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let seq: i64 = session.get(row, 0)?;
            let encoded: Vec<u8> = session.get(row, 1)?;
            let record = Record::Update {
                channel,
                feed: session.get(row, 2)?,
                seq,
                entry: session.get(row, 3)?,
                kind: session.get(row, 4)?,
                created: session.get(row, 5)?,
            };
            output.put(&record, &encoded).await?;
            output.contents.updates += 1;
            from = seq.saturating_add(1);
        }
    }
}

async fn gaps(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let mut after = 0_i64;
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT id, channel_id, url, noticed_at, state, detail, entries, after_seq FROM gaps
                     WHERE id > $1 ORDER BY id LIMIT $2"
                ),
                values![after, ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let record = Record::Gap {
                channel: session.get(row, 1)?,
                url: session.get(row, 2)?,
                at: session.get(row, 3)?,
                state: session.get(row, 4)?,
                detail: session.get(row, 5)?,
                entries: session.get(row, 6)?,
                after: session.get(row, 7)?,
            };
            output.put(&record, &[]).await?;
            output.contents.gaps += 1;
        }
    }
}

async fn tokens(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let rows = session
        .rows(
            sql!(
                "SELECT id, label, uses, use_limit, expires_at, public, channels, created_at,
                     revoked_at, hash FROM tokens ORDER BY id"
            ),
            values![],
        )
        .await?;
    for row in &rows {
        let hash: Vec<u8> = session.get(row, 9)?;
        let record = Record::Token {
            key: session.get(row, 0)?,
            label: session.get(row, 1)?,
            uses: session.get(row, 2)?,
            limit: session.get(row, 3)?,
            expires: session.get(row, 4)?,
            public: session.get(row, 5)?,
            channels: session.get(row, 6)?,
            created: session.get(row, 7)?,
            revoked: session.get(row, 8)?,
        };
        output.put(&record, &hash).await?;
        output.contents.tokens += 1;
    }
    Ok(())
}

async fn receivers(session: &mut Session, output: &mut Output) -> Result<(), Failure> {
    let mut after = String::new();
    loop {
        let rows = session
            .rows(
                sql!(
                    "SELECT id, name, software, address, channels, token_id, enrolled_at, seen_at,
                         revoked_at, credential, label, tags, held FROM receivers WHERE id > $1 ORDER BY id LIMIT $2"
                ),
                values![&after, ROWS],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = session.get(last, 0)?;
        for row in &rows {
            let credential: Vec<u8> = session.get(row, 9)?;
            output.put(&receiver(session, row)?, &credential).await?;
            output.contents.receivers += 1;
        }
    }
}

fn receiver(session: &Session, row: &Row) -> Result<Record, StoreError> {
    Ok(Record::Receiver {
        id: session.get(row, 0)?,
        name: session.get(row, 1)?,
        software: session.get(row, 2)?,
        address: session.get(row, 3)?,
        channels: session.get(row, 4)?,
        token: session.get(row, 5)?,
        enrolled: session.get(row, 6)?,
        seen: session.get(row, 7)?,
        revoked: session.get(row, 8)?,
        label: session.get(row, 10)?,
        tags: session.get(row, 11)?,
        held: session.get(row, 12)?,
    })
}
