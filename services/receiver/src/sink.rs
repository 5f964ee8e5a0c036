//! Where the updates of one channel end up: the journal, the Atom and JSON Feed files, the delivery
//! log, the cursor.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use feed::atom::AtomFile;
use feed::feed_file::{Damaged, FeedMeta};
use feed::json_feed::JsonFile;
use feed::payload::Update;
use flexicast::Cursor;
use tracing::{info, warn};
use uuid::Uuid;

use crate::cursor::{CursorFile, Found};
use crate::delivery_log::{DeliveryLog, Record};
use crate::journal::{self, Journal, Limits, Missing, Tape};

/// The outputs of one channel. [`crate::deliver`] calls these in the order that makes a crash
/// harmless. Those that return a result block for the disk, and can be called again where they
/// failed; the others only change memory.
pub trait Sink: Send + 'static {
    /// Returns how many entries a feed file keeps at most.
    fn keep(&self) -> usize;
    /// Updates come with the numbers after `cursor` from here on. What has such a number already
    /// is known by it no longer: the source gives the numbers again. `resync` if the source says so
    /// by itself.
    fn begin(&mut self, cursor: Cursor, resync: bool);
    /// Takes an update in, which was sent as `encoded` in this incarnation of the channel. Taking it
    /// again changes nothing. `encoded` may name another one: a source that was restored sends what
    /// it kept as it was stored.
    fn take(&mut self, incarnation: Uuid, update: Update, encoded: &Bytes);
    /// Takes an update in that no feed file will show: updates of as many other entries as a file
    /// keeps follow before the files are written.
    fn pass(&mut self, incarnation: Uuid, seq: u64, encoded: &Bytes);
    /// The updates `from` to `to` are missing.
    fn miss(&mut self, incarnation: Uuid, from: u64, to: u64, why: Missing);
    /// Makes the journal of what was taken in durable. Nobody reads it before
    /// [`Sink::announce`].
    ///
    /// # Errors
    /// What failed, in words for the operator. Nothing is lost then.
    fn write_journal(&mut self) -> anyhow::Result<()>;
    /// Makes the files of what was taken in durable.
    ///
    /// # Errors
    /// What failed, in words for the operator. Nothing is lost then.
    fn write_output(&mut self) -> anyhow::Result<()>;
    /// Tells those who read the journal.
    fn announce(&mut self);
    /// Logs the updates, all or none.
    ///
    /// # Errors
    /// What failed, in words for the operator.
    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()>;
    /// Makes the cursor durable.
    ///
    /// # Errors
    /// What failed, in words for the operator. The older cursor is still there then.
    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()>;
}

/// Which files a channel has, and where.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// The data folder.
    pub data: &'a Path,
    /// The folder of the cursors.
    pub state: &'a Path,
    /// The source's `host:port`.
    pub source: &'a str,
    /// The delivery log, if there is to be one.
    pub delivery_log: Option<&'a Path>,
    /// Whether there is a JSON Feed file.
    pub json: bool,
    /// How many entries each feed file keeps at most.
    pub keep: usize,
    /// Where the files are served, if they are.
    pub served: Option<SocketAddr>,
    /// The journal's bounds.
    pub journal: Limits,
    /// Nobody looks whether the journal is as far as the cursor: only for sabotage.
    pub journal_unchecked: bool,
}

/// The files of one channel.
#[derive(Debug)]
pub struct ChannelFiles {
    journal: Journal,
    atom: AtomFile,
    json: Option<JsonFile>,
    log: Option<DeliveryLog>,
    cursor: CursorFile,
    /// Taken in, and not yet in the feed files' memory.
    recent: Recent,
}

/// So many bytes of entries wait at most.
const RECENT_BYTES: usize = 32 << 20;

/// The last updates of different entries, as many as a feed file keeps: what goes before them in
/// one batch would be pushed out again, so the files are spared it.
#[derive(Debug)]
struct Recent {
    keep: usize,
    updates: BTreeMap<u64, Update>,
    /// The key of an entry's update.
    keys: HashMap<String, u64>,
    next: u64,
    bytes: usize,
}

impl Recent {
    fn new(keep: usize) -> Self {
        Self {
            keep,
            updates: BTreeMap::new(),
            keys: HashMap::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Takes an update in. Returns how many bytes it holds now, about.
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

    /// Everything in order.
    fn take(&mut self) -> impl Iterator<Item = Update> + use<> {
        std::mem::replace(self, Self::new(self.keep))
            .updates
            .into_values()
    }
}

/// What holds the most of an update's memory.
fn weight(update: &Update) -> usize {
    let entry = &update.entry;
    let texts = [&entry.content_html, &entry.content_text, &entry.summary];
    let texts = texts.into_iter().flatten().map(String::len);
    entry.xml.len() + entry.id.len() + texts.sum::<usize>()
}

impl ChannelFiles {
    /// Opens the files of `channel`, and says from where on updates are needed.
    ///
    /// Damaged files are reported and begun anew. Where a feed file is gone or damaged, the cursor
    /// goes back by as much as the file holds, and where the journal has lost its end, to there, so
    /// that the source fills them again.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub fn open(layout: &Layout<'_>, channel: &str) -> anyhow::Result<(Self, Option<Cursor>)> {
        let file = CursorFile::new(layout.state, channel);
        let mut cursor = load(&file)?;
        let folder = journal::folder(layout.data, channel);
        let (mut journal, opened) = Journal::open(&folder, layout.journal)?;
        for damage in &opened.damaged {
            warn!(
                "the journal of {channel} is damaged: {damage}; who has not read that part yet is told of a gap"
            );
        }
        let mut moved = false;
        if let Some(cursor) = &mut cursor {
            journal.assume(*cursor);
            if let Some(last) = opened.cursor
                && last.incarnation == cursor.incarnation
                && last.seq < cursor.seq
                && !layout.journal_unchecked
            {
                warn!(
                    "the journal of {channel} ends at update {}, before the cursor; asking for the rest again",
                    last.seq
                );
                cursor.seq = last.seq;
                moved = true;
            }
        }
        let place = |kind: &str| layout.data.join(format!("{channel}.{kind}"));
        let meta = |kind: &str| {
            let meta = FeedMeta::for_channel(layout.source, channel);
            match layout.served {
                Some(address) => {
                    meta.served_at(&format!("http://{address}/feeds/{channel}.{kind}"))
                }
                None => meta,
            }
        };
        // Looked at before anything is opened: a damaged file is moved aside then.
        let kinds: &[&str] = if layout.json {
            &["atom", "json"]
        } else {
            &["atom"]
        };
        let mut anew: Vec<PathBuf> = kinds.iter().map(|kind| place(kind)).collect();
        anew.retain(|path| !path.exists());
        let atom = AtomFile::open(&place("atom"), meta("atom"), layout.keep)?;
        let json = match layout.json {
            true => Some(JsonFile::open(&place("json"), meta("json"), layout.keep)?),
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
            if let Some(Damaged { moved_to, reason }) = damaged {
                warn!(
                    "{} was damaged ({reason}); it is kept as {}, and a new one is begun",
                    path.display(),
                    moved_to.display()
                );
                anew.push(path.to_owned());
            }
        }
        if let (Some(cursor), Some(path)) = (&mut cursor, anew.first()) {
            cursor.seq = cursor.seq.saturating_sub(layout.keep as u64);
            moved = true;
            info!(
                "{} is begun anew; asking for its entries again, from update {} on",
                path.display(),
                cursor.seq + 1
            );
        }
        let mut files = Self {
            journal,
            atom,
            json,
            log: layout
                .delivery_log
                .map(|path| DeliveryLog::new(path, channel)),
            cursor: file,
            recent: Recent::new(layout.keep),
        };
        let ready = match cursor.filter(|_| moved) {
            // Before there is a file again: a kill in between must not leave it empty for good.
            Some(cursor) => files.write_cursor(cursor),
            None => Ok(()),
        };
        // Empty feeds, so that readers can be pointed to them at once. If it fails, the first
        // delivery fails too, is reported, and is tried again.
        if let Err(error) = ready.and_then(|()| files.write_output()) {
            warn!("{error}");
        }
        Ok((files, cursor))
    }

    /// Where the Atom file is.
    #[must_use]
    pub fn atom_path(&self) -> &Path {
        self.atom.path()
    }

    /// Hands what waits to the files' memory.
    fn settle(&mut self) {
        for update in self.recent.take() {
            self.atom.upsert(&update);
            if let Some(json) = &mut self.json {
                json.upsert(&update);
            }
        }
    }

    /// The journal, for readers.
    #[must_use]
    pub fn tape(&self) -> Arc<Tape> {
        self.journal.tape()
    }
}

fn load(file: &CursorFile) -> anyhow::Result<Option<Cursor>> {
    Ok(match file.load()? {
        Found::Nothing => None,
        Found::Cursor(cursor) => Some(cursor),
        Found::Damaged(reason) => {
            warn!(
                "the cursor {} is damaged ({reason}); going on without it: the source sends its last updates again, \
                 and those that the outputs hold already stay as they are",
                file.path().display()
            );
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
        self.atom.forget_numbers(cursor.incarnation, cursor.seq);
        if let Some(json) = &mut self.json {
            json.forget_numbers(cursor.incarnation, cursor.seq);
        }
        self.journal.begin(cursor, resync);
    }

    fn take(&mut self, incarnation: Uuid, mut update: Update, encoded: &Bytes) {
        self.journal.take(incarnation, update.seq, encoded);
        // Journal, files and cursor have to agree on what is the same number.
        update.incarnation = incarnation;
        if self.recent.push(update) >= RECENT_BYTES {
            self.settle();
        }
    }

    fn pass(&mut self, incarnation: Uuid, seq: u64, encoded: &Bytes) {
        self.journal.take(incarnation, seq, encoded);
    }

    fn miss(&mut self, incarnation: Uuid, from: u64, to: u64, why: Missing) {
        self.journal.miss(incarnation, from, to, why);
    }

    fn write_journal(&mut self) -> anyhow::Result<()> {
        Ok(self.journal.write()?)
    }

    fn write_output(&mut self) -> anyhow::Result<()> {
        self.settle();
        let Some(json) = &mut self.json else {
            return Ok(self.atom.write()?);
        };
        // Side by side: most of the time goes to waiting for the disk.
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("json".to_owned());
            let beside = match builder.spawn_scoped(scope, || json.write()) {
                Ok(beside) => beside,
                Err(error) => anyhow::bail!("cannot start a thread to write with: {error}"),
            };
            let atom = self.atom.write();
            let json = beside.join();
            atom?;
            match json {
                Ok(written) => Ok(written?),
                Err(_) => anyhow::bail!("writing the JSON Feed file ended for an unknown reason"),
            }
        })
    }

    fn announce(&mut self) {
        self.journal.announce();
    }

    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()> {
        Ok(self
            .log
            .as_ref()
            .map_or(Ok(()), |log| log.append(records))?)
    }

    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()> {
        Ok(self.cursor.store(cursor)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::deliver::tests::encoded;
    use crate::deliver::{Delivery, Item, ORDER, Received, Step, What};
    use feed::feed_file::KEEP;
    use feed::payload;
    use uuid::Uuid;

    fn state(folder: &Path) -> PathBuf {
        let state = folder.join("state");
        std::fs::create_dir_all(&state).unwrap();
        state
    }

    fn files(folder: &Path, json: bool) -> (ChannelFiles, Option<Cursor>) {
        files_of(folder, json, KEEP)
    }

    fn files_of(folder: &Path, json: bool, keep: usize) -> (ChannelFiles, Option<Cursor>) {
        let layout = Layout {
            data: folder,
            state: &state(folder),
            source: "h:1",
            delivery_log: None,
            json,
            keep,
            served: None,
            journal: Limits::default(),
            journal_unchecked: false,
        };
        ChannelFiles::open(&layout, "lore").unwrap()
    }

    fn open(folder: &Path) -> Option<Cursor> {
        files(folder, false).1
    }

    fn at(seq: u64) -> Cursor {
        Cursor {
            incarnation: Uuid::from_u128(7),
            seq,
        }
    }

    #[test]
    fn a_file_that_is_gone_is_asked_for_again_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(open(folder), None);
        let file = CursorFile::new(&state(folder), "lore");
        file.store(at(1200)).unwrap();
        assert_eq!(open(folder), Some(at(1200)));
        std::fs::remove_file(folder.join("lore.atom")).unwrap();
        assert_eq!(open(folder), Some(at(700)));
        // Killed before anything came: the file is there, and still to be filled.
        assert_eq!(open(folder), Some(at(700)));
        std::fs::write(folder.join("lore.atom"), "<feed").unwrap();
        assert_eq!(open(folder), Some(at(200)));
        std::fs::remove_file(folder.join("lore.atom")).unwrap();
        assert_eq!(open(folder), Some(at(0)));
    }

    /// Any number of entries can be kept, and another one at the next start.
    #[test]
    fn files_keep_as_many_entries_as_configured() {
        let put = |folder: &Path, keep: usize, seqs: std::ops::RangeInclusive<u64>| {
            let (mut files, _) = files_of(folder, true, keep);
            let items = seqs.clone().map(|seq| Item {
                incarnation: at(0).incarnation,
                seq,
                what: What::Update(Received {
                    encoded: encoded(seq),
                    via: flexicast::Via::Flow,
                    live: true,
                }),
            });
            let mut delivery = Delivery::new(items.collect(), None, ORDER);
            delivery.attempt(&mut files, || 0.0).unwrap();
            let json = files.json.as_ref().unwrap();
            assert!(files.atom.ids().eq(json.ids()));
            files.atom.ids().map(str::to_owned).collect::<Vec<_>>()
        };
        for keep in [1, 7, 600] {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            // In one batch, most of which a small file never shows, and in two.
            let ids = put(folder, keep, 1..=700);
            let expected = |head: u64, keep: usize| {
                let newest = (1..=head).rev().take(keep);
                newest.map(|seq| format!("urn:{seq}")).collect::<Vec<_>>()
            };
            assert!(ids == expected(700, keep), "{keep}");
            assert!(put(folder, keep, 701..=703) == expected(703, keep));
            // A file that is gone is asked for as far back as it reached.
            std::fs::remove_file(folder.join("lore.json")).unwrap();
            let cursor = files_of(folder, true, keep).1;
            assert_eq!(cursor, Some(at(703 - keep as u64)));
            // A smaller number holds from the next start on.
            assert!(put(folder, 1, 704..=704) == expected(704, 1));
        }
    }

    #[test]
    fn a_json_file_that_is_new_or_damaged_is_filled_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        open(folder);
        let file = CursorFile::new(&state(folder), "lore");
        file.store(at(1200)).unwrap();
        assert_eq!(files(folder, true).1, Some(at(700)));
        assert!(folder.join("lore.json").exists());
        assert_eq!(files(folder, true).1, Some(at(700)));
        file.store(at(1200)).unwrap();
        std::fs::write(folder.join("lore.json"), "{").unwrap();
        assert_eq!(files(folder, true).1, Some(at(700)));
    }

    /// Sparing the files what they would push out again gives the same files.
    #[test]
    fn a_large_batch_leaves_what_many_small_ones_leave() {
        let entry = |seq: u64| {
            // Some entries come again and again, some of them after a long time.
            let id = if seq.is_multiple_of(7) { seq % 91 } else { seq };
            let entry = feed::Entry {
                id: format!("urn:{id}"),
                title: Some(format!("version {seq}")),
                ..feed::Entry::default()
            };
            let kind = feed::Kind::Created;
            let now = "2025-01-01T00:00:00Z".parse().unwrap();
            Bytes::from(payload::encode(
                &entry,
                kind,
                "u",
                Uuid::from_u128(7),
                seq,
                now,
            ))
        };
        let mut found = Vec::new();
        for batch in [1500, 40] {
            let folder = tempfile::tempdir().unwrap();
            let (mut files, _) = files(folder.path(), true);
            let items: Vec<Item> = (1..=1500)
                .map(|seq| Item {
                    incarnation: at(0).incarnation,
                    seq,
                    what: What::Update(Received {
                        encoded: entry(seq),
                        via: flexicast::Via::Unicast,
                        live: false,
                    }),
                })
                .collect();
            for items in items.chunks(batch) {
                let mut delivery = Delivery::new(items.to_vec(), None, ORDER);
                delivery.attempt(&mut files, || 0.0).unwrap();
            }
            assert_eq!(files.tape().updates_from(0), 1500);
            let read = |kind: &str| std::fs::read(folder.path().join(format!("lore.{kind}")));
            found.push((read("atom").unwrap(), read("json").unwrap()));
        }
        assert!(found[0] == found[1]);
    }

    #[test]
    fn a_journal_that_lost_its_end_gets_it_again_and_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let put = |seqs: std::ops::RangeInclusive<u64>| {
            let (mut files, _) = files(folder, false);
            for seq in seqs.clone() {
                let encoded = encoded(seq);
                files.take(
                    at(0).incarnation,
                    payload::decode(&encoded).unwrap(),
                    &encoded,
                );
            }
            files.write_journal().unwrap();
            files.write_output().unwrap();
            files.announce();
            files.write_cursor(at(*seqs.end())).unwrap();
            files.tape()
        };
        put(1..=9);
        let segment = std::fs::read_dir(folder.join("journal/lore")).unwrap();
        let segment = segment.map(|f| f.unwrap().path()).next().unwrap();
        let whole = std::fs::read(&segment).unwrap();
        std::fs::write(&segment, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(open(folder), Some(at(8)));
        let tape = put(9..=10);
        assert_eq!(tape.updates_from(0), 10);
        // An older program did not write one: it begins with what is new.
        std::fs::remove_dir_all(folder.join("journal")).unwrap();
        assert_eq!(open(folder), Some(at(10)));
        let tape = put(8..=12);
        assert_eq!(tape.updates_from(0), 2);
    }

    /// A store that was restored has a new incarnation, and keeps updates that name the old one.
    #[test]
    fn updates_that_name_an_older_incarnation_count_by_the_channels() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let channel = Uuid::from_u128(8);
        assert_ne!(channel, at(0).incarnation);
        let put = |until: u64| {
            let (mut files, _) = files(folder, false);
            let items = (1..=until).map(|seq| Item {
                incarnation: channel,
                seq,
                what: What::Update(Received {
                    encoded: encoded(seq),
                    via: flexicast::Via::Flow,
                    live: true,
                }),
            });
            // A kill before the cursor: everything comes once more.
            let order = &[Step::Take, Step::Journal, Step::Output, Step::Announce];
            let mut delivery = Delivery::new(items.collect(), None, order);
            delivery.attempt(&mut files, || 0.0).unwrap();
            (
                files.tape().updates_from(0),
                std::fs::read_to_string(files.atom_path()).unwrap(),
            )
        };
        let (updates, first) = put(5);
        assert_eq!(updates, 5);
        assert_eq!(put(6).0, 6);
        assert!(first.contains(&channel.to_string()), "{first}");
        assert!(!first.contains(&at(0).incarnation.to_string()), "{first}");
        // The journal ends where the cursor's incarnation has it.
        let file = CursorFile::new(&state(folder), "lore");
        let ahead = Cursor {
            incarnation: channel,
            seq: 9,
        };
        file.store(ahead).unwrap();
        let expected = Cursor { seq: 6, ..ahead };
        assert_eq!(open(folder), Some(expected));
    }
}
