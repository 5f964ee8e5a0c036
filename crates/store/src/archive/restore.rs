//! Restoring, in one transaction: all of an archive, or nothing of it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;
use uuid::Uuid;

use super::batch::Batch;
use super::format::{Reader, invalid};
use super::record::{Record, SigningEra};
use super::{Contents, Progress, RestoreReport};
use crate::StoreError;
use crate::database::{Database, Session, Value, sql, values};
use crate::model::ENDORSEMENT_LEN;
use crate::sql::{close_era, grow_version, trim_eras};

/// Records that were read ahead.
const AHEAD: usize = 64;

/// Length of the public key of a signing era.
const KEY: usize = 32;

/// A restore that is under way.
struct Restore<'a> {
    session: Session,
    path: PathBuf,
    /// The new numbers of rows, by the old ones.
    channels: HashMap<i64, i64>,
    feeds: HashMap<i64, i64>,
    tokens: HashMap<i64, i64>,
    users: HashMap<i64, i64>,
    /// First seq that the next signing era of a channel may have.
    unsigned_from: HashMap<i64, i64>,
    batch: Batch,
    progress: Progress,
    tell: &'a mut (dyn FnMut(Progress) + Send),
}

/// Puts what is in the archive `from` into an empty database.
pub(crate) async fn restore_into(
    database: &Database,
    from: &Path,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<RestoreReport, StoreError> {
    let failed = |error: io::Error| StoreError::Archive {
        path: from.to_owned(),
        reason: error.to_string(),
    };
    // The checksum stands at the end: whatever is wrong is found before the database is touched.
    let path = from.to_owned();
    tokio::task::spawn_blocking(move || verify(&path))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(failed)?;
    let (records, mut received) = mpsc::channel(AHEAD);
    let path = from.to_owned();
    let thread = tokio::task::spawn_blocking(move || read(&path, &records));
    let Some((
        Record::Head {
            made_ms, contents, ..
        },
        _,
    )) = received.recv().await
    else {
        drop(received);
        let read = thread
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        return Err(failed(
            read.err()
                .unwrap_or_else(|| invalid("it does not begin with its head")),
        ));
    };
    let mut session = database.write("restore a backup").await?;
    session.extend_timeout().await?;
    check_empty(&mut session).await?;
    let mut restore = Restore {
        session,
        path: from.to_owned(),
        channels: HashMap::new(),
        feeds: HashMap::new(),
        tokens: HashMap::new(),
        users: HashMap::new(),
        unsigned_from: HashMap::new(),
        batch: Batch::default(),
        progress: Progress {
            done: Contents::default(),
            of: contents,
        },
        tell,
    };
    let mut end = None;
    while let Some((record, bytes)) = received.recv().await {
        if let Record::End { contents } = record {
            end = Some(contents);
        } else {
            restore.record(record, bytes).await?;
        }
    }
    thread
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(failed)?;
    restore.write_batch().await?;
    restore.close_eras().await?;
    let done = restore.progress.done;
    if end != Some(done) || contents != done {
        return Err(failed(invalid(
            "it does not hold as many rows as it says: it is damaged",
        )));
    }
    renew_changes(&mut restore.session).await?;
    grow_version(&mut restore.session).await?;
    restore.session.commit().await?;
    (restore.tell)(restore.progress);
    Ok(RestoreReport {
        contents: done,
        made_ms,
    })
}

fn open(path: &Path) -> io::Result<Reader<File>> {
    let file = File::open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("it cannot be read ({error})")))?;
    Reader::new(file)
}

/// Reads an archive to its end.
fn verify(path: &Path) -> io::Result<()> {
    let mut reader = open(path)?;
    while reader.next()?.is_some() {}
    Ok(())
}

fn read(path: &Path, records: &mpsc::Sender<(Record, Vec<u8>)>) -> io::Result<()> {
    let mut reader = open(path)?;
    while let Some(record) = reader.next()? {
        if records.blocking_send(record).is_err() {
            // The other end is gone: the database failed, and its error is reported.
            return Ok(());
        }
    }
    Ok(())
}

/// Starts a new epoch of changes, with numbers that the saved database never gave: consoles that
/// have its records in memory notice that this is another database.
async fn renew_changes(session: &mut Session) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "UPDATE change_number SET epoch = " NOW ",
                     number = CASE WHEN number < " NOW " THEN " NOW " ELSE number + 1 END
                 WHERE id = 1"
            ),
            values![],
        )
        .await
        .map(|_| ())
}

/// Keeps others from writing, and looks whether they have.
async fn check_empty(session: &mut Session) -> Result<(), StoreError> {
    if session.is_postgres() {
        session
            .execute(
                sql!("LOCK TABLE channels, tokens, receivers, users IN EXCLUSIVE MODE"),
                values![],
            )
            .await?;
    }
    let rows: i64 = session
        .scalar(
            sql!(
                "SELECT (SELECT COUNT(*) FROM channels) + (SELECT COUNT(*) FROM tokens)
                     + (SELECT COUNT(*) FROM receivers) + (SELECT COUNT(*) FROM users)
                     + (SELECT COUNT(*) FROM signing_keys)"
            ),
            values![],
        )
        .await?;
    if rows > 0 {
        return Err(StoreError::Open {
            url: session.url.to_string(),
            reason:
                "a backup is only restored into an empty database, and this one is not: name a \
                     new one with --database-url, or move this one away"
                    .to_owned(),
        });
    }
    Ok(())
}

impl Restore<'_> {
    async fn record(&mut self, record: Record, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.progress.done.count(&record);
        match record {
            Record::Entry(mut entry) => {
                entry.feed = self.new_key(&self.feeds, entry.feed)?;
                self.batch.bytes += entry.id.len();
                self.batch.entries.push((entry, bytes));
            }
            Record::Update(mut update) => {
                update.channel = self.new_key(&self.channels, update.channel)?;
                update.feed = self.new_key(&self.feeds, update.feed)?;
                self.batch.bytes += update.entry.len() + bytes.len();
                self.batch.updates.push((update, bytes));
            }
            single => return self.single(single, &bytes).await,
        }
        if self.batch.is_full() {
            self.write_batch().await?;
        }
        Ok(())
    }

    fn new_key(&self, keys: &HashMap<i64, i64>, old: i64) -> Result<i64, StoreError> {
        keys.get(&old)
            .copied()
            .ok_or_else(|| self.damaged("a row in it belongs to another one that is not there"))
    }

    fn damaged(&self, reason: &str) -> StoreError {
        StoreError::Archive {
            path: self.path.clone(),
            reason: format!("it is damaged: {reason}"),
        }
    }

    /// Restores a row of which there are few.
    async fn single(&mut self, record: Record, bytes: &[u8]) -> Result<(), StoreError> {
        let key_length = bytes.len();
        let blob = Value::from(bytes);
        match record {
            Record::Channel(row) => {
                let incarnation = Uuid::new_v4().to_string();
                let sql = sql!(
                    "INSERT INTO channels (name, head, created_at, groups, rate_bps, private,
                         keep_count, keep_age, origin, active, packet_authentication, fec,
                         deadline_ms, incarnation, fence)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, COALESCE($11, 'none'),
                         COALESCE($12, 'adaptive'), $13, $14, " NOW ") RETURNING id"
                );
                let values = row.values(values![&incarnation]);
                let id = self.session.scalar(sql, &values).await?;
                self.channels.insert(row.key, id);
            }
            Record::Feed(mut row) => {
                row.channel = self.new_key(&self.channels, row.channel)?;
                let sql = sql!(
                    "INSERT INTO feeds (channel_id, url, etag, last_modified, last_poll, state,
                         detail, address, local, min_interval, max_interval, title, origin, active,
                         moved_to, gone_at, poll_interval, paused)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                         $17, $18) RETURNING id"
                );
                let id = self.session.scalar(sql, &row.values(&[])).await?;
                self.feeds.insert(row.key, id);
            }
            Record::Publication(mut row) => {
                row.channel = self.new_key(&self.channels, row.channel)?;
                let sql = sql!(
                    "INSERT INTO publications (channel_id, entry_id, created_at, payload)
                     VALUES ($1, $2, $3, $4)"
                );
                self.session.execute(sql, &row.values(&[blob])).await?;
            }
            Record::SigningEra(mut row) => {
                row.channel = self.new_key(&self.channels, row.channel)?;
                self.check_era(&row, key_length)?;
                let sql = sql!(
                    "INSERT INTO signing_eras (channel_id, first_seq, last_seq, incarnation,
                         public_key)
                     VALUES ($1, $2, $3, $4, $5)"
                );
                self.session.execute(sql, &row.values(&[blob])).await?;
            }
            Record::SigningKey(row) => {
                let split = bytes.split_first_chunk::<KEY>();
                let split = split.filter(|(_, rest)| rest.len() % ENDORSEMENT_LEN == 0);
                let (key, endorsements) = split.ok_or_else(|| self.damaged("a key is cut off"))?;
                let sql = sql!(
                    "INSERT INTO signing_keys (created_at, public_key, endorsements)
                     VALUES ($1, $2, $3)"
                );
                let values = row.values(values![key, endorsements]);
                self.session.execute(sql, &values).await?;
            }
            Record::Gap(mut row) => {
                row.channel = self.new_key(&self.channels, row.channel)?;
                let sql = sql!(
                    "INSERT INTO gaps (channel_id, url, noticed_at, state, detail, entries,
                         after_seq)
                     VALUES ($1, $2, $3, $4, $5, $6, $7)"
                );
                self.session.execute(sql, &row.values(&[])).await?;
            }
            Record::Token(row) => {
                let sql = sql!(
                    "INSERT INTO tokens (label, uses, use_limit, expires_at, public, channels,
                         created_at, revoked_at, hash)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id"
                );
                let id = self.session.scalar(sql, &row.values(&[blob])).await?;
                self.tokens.insert(row.key, id);
            }
            Record::Receiver(mut row) => {
                let token = row.token.map(|token| self.new_key(&self.tokens, token));
                row.token = token.transpose()?;
                let sql = sql!(
                    "INSERT INTO receivers (id, name, software, address, channels, token_id,
                         enrolled_at, seen_at, revoked_at, label, tags, held, credential)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
                );
                self.session.execute(sql, &row.values(&[blob])).await?;
            }
            Record::User(row) => {
                let sql = sql!(
                    "INSERT INTO users (name, password, role, created_at, disabled_at, issuer,
                         subject)
                     VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id"
                );
                let id = self.session.scalar(sql, &row.values(&[])).await?;
                self.users.insert(row.key, id);
            }
            Record::ApiToken(mut row) => {
                row.user = self.new_key(&self.users, row.user)?;
                let sql = sql!(
                    "INSERT INTO api_tokens (user_id, name, scopes, created_at, expires_at, seen_at,
                         revoked_at, hash)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
                );
                self.session.execute(sql, &row.values(&[blob])).await?;
            }
            Record::Audit(row) => {
                let sql = sql!(
                    "INSERT INTO audit (at, actor, via, action, target, detail, outcome, address)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
                );
                self.session.execute(sql, &row.values(&[])).await?;
            }
            Record::Head { .. } | Record::Entry(_) | Record::Update(_) | Record::End { .. } => {
                return Err(self.damaged("a record is in the wrong place"));
            }
        }
        Ok(())
    }

    /// Checks a signing era, which comes after the earlier ones of its channel.
    fn check_era(&mut self, era: &SigningEra, key_length: usize) -> Result<(), StoreError> {
        let last = era.last.unwrap_or(i64::MAX);
        let next = last.saturating_add(1);
        let from = self.unsigned_from.insert(era.channel, next).unwrap_or(1);
        let reason = if era.first < from {
            format!("only updates from {from} on have no era yet")
        } else if last < era.first {
            format!("ends with update {last}")
        } else if let Err(error) = era.incarnation.parse::<Uuid>() {
            format!("incarnation {:?}: {error}", era.incarnation)
        } else if key_length != KEY {
            format!("key of {key_length} bytes")
        } else {
            return Ok(());
        };
        let first = era.first;
        Err(self.damaged(&format!("signing era from update {first} on: {reason}")))
    }

    /// Closes the eras of all channels at their heads: they get other incarnations, and seqs beyond
    /// the head are assigned again.
    async fn close_eras(&mut self) -> Result<(), StoreError> {
        for &channel in self.unsigned_from.keys() {
            close_era(&mut self.session, channel).await?;
            trim_eras(&mut self.session, channel).await?;
        }
        Ok(())
    }

    async fn write_batch(&mut self) -> Result<(), StoreError> {
        let batch = std::mem::take(&mut self.batch);
        batch.write(&mut self.session).await?;
        (self.tell)(self.progress);
        Ok(())
    }
}
