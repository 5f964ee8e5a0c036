//! Random runs with a kill or a full disk at any step, compared with a run without any.

use std::fs;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// Entries in a feed file.
const KEPT: usize = 12;

/// Entries that there are: some come again, some leave the files.
const ENTRIES: u64 = 30;

/// Entries that most updates are of: others stay in the files for longer than in the journal.
const BUSY: u64 = 4;

/// Less than the run: what leaves must be in the files.
const JOURNAL: Limits = Limits {
    updates: 24,
    bytes: 64 << 10,
};

/// In memory, where the machine has that: they wait for the disk thousands of times.
fn folder() -> (tempfile::TempDir, u64) {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(folder) => (folder, 60),
        Err(_) => (tempfile::tempdir().unwrap(), 3),
    }
}

/// A source's channel.
struct Source {
    incarnation: Uuid,
    /// By number, from 1 on.
    updates: Vec<Bytes>,
    /// Updates up to this one are gone.
    gone: u64,
    made: u64,
}

impl Source {
    fn head(&self) -> u64 {
        self.updates.len() as u64
    }

    fn publish(&mut self, random: &mut SmallRng) {
        self.made += 1;
        let entries = if random.random_bool(0.8) {
            BUSY
        } else {
            ENTRIES
        };
        let entry = feed::Entry {
            id: format!("urn:{}", random.random_range(0..entries)),
            title: Some(format!("version {}", self.made)),
            content_text: Some("x".repeat(random.random_range(0..900))),
            ..feed::Entry::default()
        };
        let now = "2025-01-01T00:00:00Z".parse().unwrap();
        let (kind, seq) = (feed::Kind::Created, self.head() + 1);
        let encoded = payload::encode(&entry, kind, "u", self.incarnation, seq, now);
        self.updates.push(encoded.into());
    }

    /// Updates sent to a receiver that is at `cursor`.
    fn items(&self, cursor: Option<Cursor>) -> Vec<Item> {
        let item = |seq: u64, kind| Item {
            incarnation: self.incarnation,
            seq,
            kind,
        };
        let mut items = Vec::new();
        let mut next = match cursor {
            Some(cursor) if cursor.incarnation == self.incarnation && cursor.seq <= self.head() => {
                cursor.seq + 1
            }
            other => {
                let resync = other.is_some();
                items.push(item(self.gone, ItemKind::Begins { resync }));
                self.gone + 1
            }
        };
        if next <= self.gone {
            items.push(item(
                self.gone,
                ItemKind::Gap {
                    from: next,
                    why: Missing::Gone,
                },
            ));
            next = self.gone + 1;
        }
        items.extend((next..=self.head()).map(|seq| {
            let encoded = self.updates[seq as usize - 1].clone();
            let via = flexicast::Via::Flow;
            let live = true;
            item(seq, ItemKind::Update(ReceivedUpdate { encoded, via, live }))
        }));
        items
    }
}

struct Receiver {
    folder: PathBuf,
    files: Option<ChannelFiles>,
    cursor: Option<Cursor>,
}

impl Receiver {
    fn start(folder: PathBuf) -> Self {
        let mut receiver = Self {
            folder,
            files: None,
            cursor: None,
        };
        receiver.restart();
        receiver
    }

    fn restart(&mut self) {
        // The one before is gone without another word.
        self.files = None;
        let layout = Layout {
            data: &self.folder,
            state: &state(&self.folder),
            source: "h:1",
            delivery_log: Some(&self.folder.join("log")),
            json: true,
            keep: KEPT,
            served: None,
            journal: JOURNAL,
            file_interval: Duration::from_secs(5),
        };
        let (files, cursor) = ChannelFiles::open(&layout, "lore").unwrap();
        self.files = Some(files);
        self.cursor = cursor;
    }

    fn files(&mut self) -> &mut ChannelFiles {
        self.files.as_mut().unwrap()
    }

    /// Takes everything that the source has.
    fn catch_up(&mut self, source: &Source) {
        let items = source.items(self.cursor);
        for items in items.chunks(JOURNAL.batch().updates) {
            let mut delivery = Delivery::new(items.to_vec(), self.cursor, ORDER);
            delivery.attempt(self.files(), || 0.0).unwrap();
            self.cursor = delivery.into_outcome().cursor.or(self.cursor);
        }
    }

    /// Ends in the middle of it.
    fn be_killed(&mut self, source: &Source, random: &mut SmallRng) {
        let items = source.items(self.cursor);
        let most = items.len().min(JOURNAL.batch().updates);
        let items = items[..random.random_range(0..=most)].to_vec();
        let done = random.random_range(0..=ORDER.len());
        let folder = self.folder.join("journal/lore");
        let journal = || {
            let files = fs::read_dir(&folder).unwrap();
            let files = files.map(|file| file.unwrap().path());
            let with_length = files.map(|path| {
                let length = fs::metadata(&path).unwrap().len();
                (path, length)
            });
            with_length.max()
        };
        let before = journal();
        if !items.is_empty() {
            let mut delivery = Delivery::new(items, self.cursor, &ORDER[..done]);
            delivery.attempt(self.files(), || 0.0).unwrap();
        }
        if random.random_bool(0.5) {
            // One of the files cannot be written: those before it are new, the others old.
            let blocked = ["lore.atom", "lore.json", "state/lore.json", "none/none"]
                [random.random_range(0..4)];
            let (folder, name) = blocked.split_once('/').unwrap_or((".", blocked));
            let temporary = self.folder.join(folder).join(format!(".{name}.tmp"));
            let _ = fs::create_dir(&temporary);
            let _ = self.files().write_files();
            let _ = fs::remove_dir(&temporary);
        } else if let (Some((path, length)), Some((last, grown))) = (before, journal())
            && path == last
            && done == 3
        {
            // Torn while the journal was written.
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(random.random_range(length..=grown)).unwrap();
        }
        self.restart();
    }

    /// The journal's records without their times.
    fn journal(&mut self) -> Vec<String> {
        let reader = self.files().reader();
        let places = (reader.start()..reader.end()).map(|position| {
            let header = reader.next(position).unwrap().header;
            let kind = match header.kind {
                Kind::Update { .. } => "update".to_owned(),
                other => format!("{other:?}"),
            };
            format!("{kind} {}/{}", header.incarnation, header.seq)
        });
        places.collect()
    }

    fn feeds(&self) -> (String, String) {
        let read = |kind: &str| fs::read_to_string(self.folder.join(format!("lore.{kind}")));
        (read("atom").unwrap(), read("json").unwrap())
    }
}

#[test]
fn a_kill_at_any_step_loses_and_repeats_nothing() {
    for seed in 0..folder().1 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (folder, _) = folder();
        let mut killed = Receiver::start(folder.path().join("killed"));
        let mut spared = Receiver::start(folder.path().join("spared"));
        let mut source = Source {
            incarnation: Uuid::from_u128(u128::from(seed)),
            updates: Vec::new(),
            gone: 0,
            made: 0,
        };
        let mut numbers = Vec::new();
        for step in 0..25 {
            match random.random_range(0..12) {
                0 if step > 4 => {
                    // An older backup.
                    let left = random.random_range(source.gone..=source.head());
                    source.updates.truncate(left as usize);
                }
                1 if step > 4 => {
                    source.incarnation = Uuid::from_u128(random.random());
                    source.updates.clear();
                    source.gone = 0;
                }
                2 => source.gone = random.random_range(source.gone..=source.head()),
                _ => (0..random.random_range(1..30)).for_each(|_| source.publish(&mut random)),
            }
            while random.random_bool(0.4) {
                killed.be_killed(&source, &mut random);
            }
            killed.catch_up(&source);
            spared.catch_up(&source);
            spared.files().write_files().unwrap();
            numbers.extend((source.gone + 1..=source.head()).map(|seq| format!("\"seq\":{seq},")));
        }
        // The last kill finds files of whatever age.
        killed.restart();
        assert_eq!(killed.cursor, spared.cursor, "seed {seed}");
        let (atom, json) = (killed.feeds(), spared.feeds());
        assert!(atom == json, "seed {seed}:\n{}\n{}", atom.0, json.0);
        let (journal, expected) = (killed.journal(), spared.journal());
        let both = journal.len().min(expected.len());
        assert!(both > 10, "seed {seed}");
        assert_eq!(
            journal[journal.len() - both..],
            expected[expected.len() - both..],
            "seed {seed}"
        );
        let log = fs::read_to_string(killed.folder.join("log")).unwrap();
        let logged = |number: &String| log.contains(number.as_str());
        assert!(numbers.iter().all(logged), "seed {seed}");
    }
}
