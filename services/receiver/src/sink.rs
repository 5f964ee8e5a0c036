//! Outputs of one channel: the journal, the Atom and JSON Feed files, the delivery log, the cursor.
//!
//! The journal is the durable output. The feed files are derived from it: they follow in their own
//! time ([`Schedule`]), and the next start fills them up from the journal.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use bytes::Bytes;
use feed::atom::AtomFile;
use feed::feed_file::{DamagedFile, FeedMeta};
use feed::json_feed::JsonFile;
use feed::payload::{self, Update};
use flexicast::Cursor;
use flexicast::signing::Lineage;
use tracing::{info, warn};
use uuid::Uuid;

use crate::cursor::{CursorFile, CursorState, FeedFileCursor};
use crate::delivery_log::{DeliveryLog, Record};
use crate::feeds::{Feeds, Schedule};
use crate::journal::{self, Journal, JournalReader, Kind, Limits, Missing};

/// Outputs of one channel. [`crate::deliver`] calls these in the order that makes a crash harmless.
/// Those that return a result block for the disk, and can be called again after a failure; the
/// others only change memory.
pub trait Sink: Send + 'static {
    /// Returns the largest number of entries in a feed file.
    fn keep(&self) -> usize;
    /// Begins the numbers after `cursor`. Entries lose such numbers from before, which the source
    /// reuses. `resync` if the source has restarted its numbering.
    fn begin(&mut self, cursor: Cursor, resync: bool);
    /// Adds an update, which was sent as `encoded` in this incarnation of the channel. A repetition
    /// changes nothing. `encoded` may name another incarnation: a restored source sends stored
    /// updates unchanged.
    fn take(&mut self, incarnation: Uuid, update: Update, encoded: &Bytes);
    /// Adds an update that no feed file will show, because updates of as many other entries as a
    /// file keeps follow in the same batch.
    fn pass(&mut self, incarnation: Uuid, seq: u64, encoded: &Bytes);
    /// Takes the keys that the source names for the updates of this incarnation of the channel.
    fn name_keys(&mut self, incarnation: Uuid, lineage: &Lineage);
    /// Adds a gap of the updates `from` to `to`.
    fn miss(&mut self, incarnation: Uuid, from: u64, to: u64, why: Missing);
    /// Logs the updates, all or none.
    ///
    /// # Errors
    /// The failed operation, in words for the operator.
    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()>;
    /// Syncs the pending journal records. They are visible to readers from [`Sink::announce`] on.
    ///
    /// # Errors
    /// The failed operation, in words for the operator. Nothing is lost.
    fn write_journal(&mut self) -> anyhow::Result<()>;
    /// Shows the pending updates to readers of the journal and the feeds.
    fn announce(&mut self);
    /// Persists the journal's cursor.
    ///
    /// # Errors
    /// The failed operation, in words for the operator. Nothing is lost.
    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()>;
    /// Returns when [`Sink::write_files`] is due; `None` while nothing has changed.
    fn files_due(&mut self, now: Instant) -> Option<Instant>;
    /// Syncs the feed files of announced updates.
    ///
    /// # Errors
    /// The failed operation, in words for the operator. Nothing is lost.
    fn write_files(&mut self) -> anyhow::Result<()>;
}

/// Files of a channel and their paths.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// Data folder.
    pub data: &'a Path,
    /// State folder.
    pub state: &'a Path,
    /// `host:port` of the source.
    pub source: &'a str,
    /// Delivery log, if enabled.
    pub delivery_log: Option<&'a Path>,
    /// Whether there is a JSON Feed file.
    pub json: bool,
    /// Most entries that each feed file keeps.
    pub keep: usize,
    /// Address at which the files are served, if they are.
    pub served: Option<SocketAddr>,
    /// Bounds of the journal.
    pub journal: Limits,
    /// Shortest time between two writes of the feed files; zero to write them at each change.
    pub file_interval: Duration,
}

/// Files of one channel.
#[derive(Debug)]
pub struct ChannelFiles {
    journal: Journal,
    feeds: Arc<Feeds>,
    log: Option<DeliveryLog>,
    /// Updates not in the feed files' memory yet.
    recent: RecentUpdates,
    schedule: Schedule,
    /// Bytes of updates added, and of files written, since the last query of the schedule.
    earned: u64,
    spent: u64,
    /// Whether an entry was ever written to the feed files.
    has_entries: bool,
    /// Position from which on records may be missing in the feed files on disk.
    filed: u64,
    /// Progress of the channel.
    cursor: Option<Cursor>,
    /// Cursor file, and its content.
    cursor_file: CursorFile,
    noted: Option<FeedFileCursor>,
    /// End of a refill of the feed files.
    refill: Option<Cursor>,
}

/// Bound on pending entries, in bytes.
const RECENT_BYTES: usize = 4 << 20;

/// Last updates of different entries, as many as a feed file keeps: earlier ones of the same batch
/// would be pushed out again, so they are not added to the files.
#[derive(Debug)]
struct RecentUpdates {
    keep: usize,
    updates: BTreeMap<u64, Update>,
    /// Returns the key of an entry's update.
    keys: HashMap<String, u64>,
    next: u64,
    bytes: usize,
}

impl RecentUpdates {
    fn new(keep: usize) -> Self {
        Self {
            keep,
            updates: BTreeMap::new(),
            keys: HashMap::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Adds an update. Returns the approximate size, in bytes.
    fn push(&mut self, update: Update) -> usize {
        self.bytes += weight(&update);
        let key = self.next;
        self.next += 1;
        let older = self.keys.insert(update.entry.id.clone(), key);
        let older = older.and_then(|key| self.updates.remove(&key));
        self.updates.insert(key, update);
        let pushed_out = match self.updates.len() > self.keep {
            true => self.updates.pop_first().map(|(_, update)| update),
            false => None,
        };
        if let Some(update) = &pushed_out {
            self.keys.remove(&update.entry.id);
        }
        for gone in older.iter().chain(&pushed_out) {
            self.bytes = self.bytes.saturating_sub(weight(gone));
        }
        self.bytes
    }

    /// Returns everything in order.
    fn take(&mut self) -> impl Iterator<Item = Update> + use<> {
        std::mem::replace(self, Self::new(self.keep))
            .updates
            .into_values()
    }
}

/// Returns the approximate memory of an update.
fn weight(update: &Update) -> usize {
    let entry = &update.entry;
    let texts = [&entry.content_html, &entry.content_text, &entry.summary];
    let texts = texts.into_iter().flatten().map(String::len);
    entry.xml.len() + entry.id.len() + texts.sum::<usize>()
}

impl ChannelFiles {
    /// Opens the files of `channel`, and returns the cursor after which updates are needed: the
    /// journal's end.
    ///
    /// Damaged files are reported and rebuilt. Missing entries of the feed files are taken from the
    /// journal; if a feed file is missing or damaged and the journal does not reach back far
    /// enough, as many updates as it holds are requested from the source.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn open(layout: &Layout<'_>, channel: &str) -> anyhow::Result<(Self, Option<Cursor>)> {
        let cursor_file = CursorFile::new(layout.state, channel);
        let noted = load(&cursor_file)?;
        let folder = journal::folder(layout.data, channel);
        let (mut journal, opened) = Journal::open(&folder, layout.journal)?;
        for damage in &opened.damaged {
            warn!(channel, damage, "journal damaged; its readers get a gap");
        }
        let reader = journal.reader();
        let (mut cursor, mut refill) = match (noted, opened.cursor) {
            // With an injected fault, the journal may end before the cursor.
            #[cfg(feature = "fault-injection")]
            (Some(noted), Some(_)) if crate::faults::order().is_some() => {
                (Some(noted.cursor), None)
            }
            (Some(noted), Some(end)) => begin(channel, noted, end, &reader),
            (Some(noted), _) => (Some(noted.cursor), None),
            (None, end) => (end, None),
        };
        if let Some(cursor) = cursor {
            journal.assume(cursor);
        }
        let (feeds, gone) = open_feeds(layout, channel)?;
        let mut filed = reader.end();
        for (path, newest) in feeds.newest() {
            // A kill between two files leaves one of them without valid numbers, so it may lack
            // everything.
            filed = filed.min(match newest {
                Some((incarnation, seq)) => reader.resume(incarnation, seq).position,
                None if gone.contains(&path) => continue,
                None => reader.start(),
            });
        }
        let mut set_back = false;
        if let Some(path) = gone.first() {
            let (position, is_enough) = enough(&reader, layout.keep);
            filed = filed.min(position);
            if is_enough {
                info!(path = %path.display(), "rebuilding the feed file from the journal");
            } else if let Some(cursor) = &mut cursor {
                // A continued refill keeps its start: kills do not move it further back.
                let until = *refill.get_or_insert(*cursor);
                let first = until.seq.saturating_sub(layout.keep as u64);
                cursor.seq = cursor.seq.min(first);
                set_back = true;
                info!(
                    path = %path.display(),
                    first = cursor.seq + 1,
                    "rebuilding the feed file; requesting its entries"
                );
            }
        }
        let mut files = Self {
            journal,
            feeds: Arc::new(feeds),
            log: layout
                .delivery_log
                .map(|path| DeliveryLog::new(path, channel)),
            recent: RecentUpdates::new(layout.keep),
            schedule: Schedule::new(layout.file_interval),
            earned: 0,
            spent: 0,
            has_entries: false,
            filed,
            cursor,
            cursor_file,
            noted,
            refill,
        };
        files.replay(filed)?;
        let ready = match cursor.filter(|_| set_back) {
            // Before the file exists again: a kill in between must not leave it incomplete.
            Some(cursor) => files.note(cursor),
            None => Ok(()),
        };
        // Empty feeds as well, so that feed readers can be pointed to them. A failure is retried by
        // the loop.
        if let Err(error) = ready.and_then(|()| files.write_files()) {
            warn!(channel, %error, "feed files not written; retrying");
        }
        Ok((files, cursor))
    }

    /// Returns the feed files, for readers.
    #[must_use]
    pub fn feeds(&self) -> Arc<Feeds> {
        Arc::clone(&self.feeds)
    }

    /// Returns the journal, for readers.
    #[must_use]
    pub fn reader(&self) -> Arc<JournalReader> {
        self.journal.reader()
    }

    /// Adds the journal's records from `position` on to the feed files' memory.
    fn replay(&mut self, position: u64) -> anyhow::Result<()> {
        let reader = self.journal.reader();
        for position in position..reader.end() {
            let Some(record) = reader.read(position)? else {
                continue;
            };
            let (incarnation, seq) = (record.header.incarnation, record.header.seq);
            match record.header.kind {
                Kind::Begins { .. } => {
                    self.settle();
                    self.feeds.forget_numbers(Cursor { incarnation, seq });
                }
                // The update decoded when it was added.
                Kind::Update { .. } => {
                    if let Ok(mut update) = payload::decode(&record.encoded) {
                        update.incarnation = incarnation;
                        self.push(update);
                    }
                }
                Kind::Missing { .. } => {}
            }
        }
        self.settle();
        Ok(())
    }

    fn push(&mut self, update: Update) {
        if self.recent.push(update) >= RECENT_BYTES {
            self.settle();
        }
    }

    /// Adds the pending updates to the files' memory.
    fn settle(&mut self) {
        for update in self.recent.take() {
            self.feeds.upsert(&update);
        }
    }

    /// Writes the cursor file, up to which the feed files are complete.
    fn note(&mut self, cursor: Cursor) -> anyhow::Result<()> {
        let until = self
            .refill
            .filter(|until| until.incarnation == cursor.incarnation && until.seq > cursor.seq);
        let noted = FeedFileCursor {
            cursor,
            refill: until.is_some(),
        };
        self.refill = until;
        if self.noted != Some(noted) {
            self.cursor_file.store(noted)?;
            self.noted = Some(noted);
        }
        Ok(())
    }

    /// Whether memory has changes that are not on disk.
    fn is_behind(&self) -> bool {
        self.cursor != self.noted.map(|noted| noted.cursor) || !self.feeds.are_written()
    }
}

/// Returns the starting position of a channel that has both a cursor file and a journal, and the
/// end of the refill of its feed files.
fn begin(
    channel: &str,
    noted: FeedFileCursor,
    end: Cursor,
    reader: &JournalReader,
) -> (Option<Cursor>, Option<Cursor>) {
    let FeedFileCursor { cursor, refill } = noted;
    if cursor.incarnation != end.incarnation {
        // A journal without the cursor's incarnation ends before it: it was damaged, or an older
        // version ran without it for a while.
        let known = reader.knows(cursor.incarnation);
        return (Some(if known { end } else { cursor }), None);
    }
    if refill && cursor.seq < end.seq {
        return (Some(cursor), Some(end));
    }
    if end.seq < cursor.seq {
        warn!(
            channel,
            end = end.seq,
            cursor = cursor.seq,
            "journal ends before the cursor; requesting the rest"
        );
    }
    (Some(end), None)
}

/// Opens the feed files of a channel. Also returns those that were missing or damaged.
fn open_feeds(layout: &Layout<'_>, channel: &str) -> anyhow::Result<(Feeds, Vec<PathBuf>)> {
    let path_of = |kind: &str| layout.data.join(format!("{channel}.{kind}"));
    let meta = |kind: &str| {
        let meta = FeedMeta::for_channel(layout.source, channel);
        match layout.served {
            Some(address) => meta.served_at(&format!("http://{address}/feeds/{channel}.{kind}")),
            None => meta,
        }
    };
    // Checked before opening, which moves a damaged file aside.
    let kinds: &[&str] = match layout.json {
        true => &["atom", "json"],
        false => &["atom"],
    };
    let mut gone: Vec<PathBuf> = kinds.iter().map(|kind| path_of(kind)).collect();
    gone.retain(|path| !path.exists());
    let atom = AtomFile::open(&path_of("atom"), meta("atom"), layout.keep)?;
    let json = match layout.json {
        true => Some(JsonFile::open(&path_of("json"), meta("json"), layout.keep)?),
        false => None,
    };
    let damaged = [
        (atom.path(), atom.damaged()),
        (
            json.as_ref().map_or(Path::new(""), JsonFile::path),
            json.as_ref().and_then(JsonFile::damaged),
        ),
    ];
    for (path, damaged) in damaged {
        if let Some(DamagedFile { moved_to, reason }) = damaged {
            warn!(
                path = %path.display(),
                moved_to = %moved_to.display(),
                reason,
                "feed file was damaged; moved aside and restarted"
            );
            gone.push(path.to_owned());
        }
    }
    Ok((Feeds::new(atom, json), gone))
}

/// Returns the position from which on the journal fills a feed file of `keep` entries, and whether
/// it fills it: with updates of as many entries, or everything that the channel ever had here.
fn enough(reader: &JournalReader, keep: usize) -> (u64, bool) {
    let mut entries = HashSet::new();
    let start = reader.start();
    for position in (start..reader.end()).rev() {
        let Ok(Some(record)) = reader.read(position) else {
            return (position + 1, false);
        };
        if let Ok(summary) = payload::summary(&record.encoded) {
            entries.insert(summary.entry_id);
        }
        if entries.len() >= keep {
            return (position, true);
        }
    }
    let first = reader.next(start).map(|record| record.header.kind);
    let is_whole = start == 0 && first == Some(Kind::Begins { resync: false });
    (start, is_whole)
}

fn load(file: &CursorFile) -> anyhow::Result<Option<FeedFileCursor>> {
    Ok(match file.load()? {
        CursorState::Nothing => None,
        CursorState::Cursor(noted) => Some(noted),
        CursorState::Damaged(reason) => {
            warn!(path = %file.path().display(), reason, "cursor file is damaged; continuing by \
                the journal");
            None
        }
    })
}

impl Sink for ChannelFiles {
    fn keep(&self) -> usize {
        self.recent.keep
    }

    fn begin(&mut self, cursor: Cursor, resync: bool) {
        self.settle();
        self.feeds.forget_numbers(cursor);
        self.journal.begin(cursor, resync);
    }

    fn take(&mut self, incarnation: Uuid, mut update: Update, encoded: &Bytes) {
        self.earned += encoded.len() as u64;
        self.journal.take(incarnation, update.seq, encoded);
        // Journal, files and cursor must agree on the meaning of a number.
        update.incarnation = incarnation;
        self.push(update);
    }

    fn pass(&mut self, incarnation: Uuid, seq: u64, encoded: &Bytes) {
        self.earned += encoded.len() as u64;
        self.journal.take(incarnation, seq, encoded);
    }

    fn name_keys(&mut self, incarnation: Uuid, lineage: &Lineage) {
        self.journal.name_keys(incarnation, lineage);
    }

    fn miss(&mut self, incarnation: Uuid, from: u64, to: u64, why: Missing) {
        self.journal.miss(incarnation, from, to, why);
    }

    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()> {
        Ok(self
            .log
            .as_ref()
            .map_or(Ok(()), |log| log.append(records))?)
    }

    fn write_journal(&mut self) -> anyhow::Result<()> {
        // The files on disk need the records that leave the journal, which is their only source.
        if self.journal.would_drop(self.filed) {
            self.write_files().map_err(|error| {
                anyhow!("journal full: its oldest updates are not in the feed files yet: {error}")
            })?;
        }
        Ok(self.journal.write()?)
    }

    fn announce(&mut self) {
        self.settle();
        self.journal.announce();
    }

    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()> {
        self.cursor = Some(cursor);
        #[cfg(feature = "fault-injection")]
        if crate::faults::order().is_some() {
            return self.note(cursor);
        }
        // An older version relies on the cursor file, whose numbers must keep their meaning.
        let goes_on = self.noted.is_some_and(|noted| {
            noted.cursor.incarnation == cursor.incarnation && noted.cursor.seq <= cursor.seq
        });
        if goes_on {
            return Ok(());
        }
        self.write_files().map_err(|error| {
            anyhow!("cursor not written: the feed files come before new numbers: {error}")
        })
    }

    fn files_due(&mut self, now: Instant) -> Option<Instant> {
        let (earned, spent) = (
            std::mem::take(&mut self.earned),
            std::mem::take(&mut self.spent),
        );
        if earned > 0 {
            self.schedule.earn(earned, now);
        }
        if spent > 0 {
            self.schedule.spend(spent, now);
        }
        if !self.is_behind() {
            return None;
        }
        let size = self.feeds.size();
        // The first entry of a channel is written immediately.
        if !self.has_entries && size > 0 {
            return Some(now);
        }
        Some(self.schedule.due(size, now))
    }

    fn write_files(&mut self) -> anyhow::Result<()> {
        let end = self.journal.reader().end();
        let size = self.feeds.size();
        self.spent += self.feeds.write()?;
        self.filed = end;
        self.has_entries = size > 0;
        match self.cursor {
            Some(cursor) => self.note(cursor),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
