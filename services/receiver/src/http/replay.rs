//! Clients that disconnect at any event and return get each update once, in order, and every gap is
//! announced.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use feed::payload;
use flexicast::Cursor;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use uuid::Uuid;

use super::events::ClientStream;
use crate::journal::{Journal, JournalReader, Limits, Missing};

const CHANNELS: [&str; 2] = ["lore", "net"];

fn encoded(incarnation: Uuid, seq: u64) -> Bytes {
    let entry = feed::Entry {
        id: format!("urn:{seq}"),
        ..feed::Entry::default()
    };
    let stored = jiff::Timestamp::UNIX_EPOCH;
    payload::encode(&entry, feed::Kind::Created, "u", incarnation, seq, stored).into()
}

/// Updates received and missing, as (incarnation, number).
#[derive(Debug, Default, Clone, PartialEq)]
struct History {
    updates: Vec<(Uuid, u64)>,
    missing: Vec<(Uuid, u64)>,
}

/// Journal of a channel that is written, killed, and reopened.
struct Writer {
    folder: tempfile::TempDir,
    limits: Limits,
    journal: Journal,
    at: Cursor,
    truth: History,
}

impl Writer {
    fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), limits).unwrap().0;
        let at = Cursor {
            incarnation: Uuid::new_v4(),
            seq: 0,
        };
        let mut writer = Self {
            folder,
            limits,
            journal,
            at,
            truth: History::default(),
        };
        writer.journal.begin(at, false);
        writer
    }

    fn something(&mut self, rng: &mut SmallRng) {
        let incarnation = self.at.incarnation;
        match rng.random_range(0..20) {
            0 => {
                let to = self.at.seq + rng.random_range(1..4);
                let from = self.at.seq + 1;
                self.journal.miss(incarnation, from, to, Missing::Gone);
                self.truth
                    .missing
                    .extend((from..=to).map(|seq| (incarnation, seq)));
                self.at.seq = to;
            }
            1 => {
                self.at = Cursor {
                    incarnation: Uuid::new_v4(),
                    seq: rng.random_range(0..3),
                };
                self.journal.begin(self.at, true);
            }
            // Delivered again, as after a kill before the cursor was written.
            2 => {
                for seq in self.at.seq.saturating_sub(2).max(1)..=self.at.seq {
                    self.journal
                        .take(incarnation, seq, &encoded(incarnation, seq));
                }
            }
            _ => {
                self.at.seq += 1;
                let seq = self.at.seq;
                self.journal
                    .take(incarnation, seq, &encoded(incarnation, seq));
                self.truth.updates.push((incarnation, seq));
            }
        }
        self.journal.write().unwrap();
        self.journal.announce();
    }

    fn killed(&mut self) {
        self.journal = Journal::open(self.folder.path(), self.limits).unwrap().0;
    }
}

/// Client that keeps its position over connections.
#[derive(Default)]
struct Reader {
    last: Option<String>,
    seen: History,
    /// Whether a gap without an end was announced.
    open_gap: bool,
}

impl Reader {
    /// Reads from a connection that breaks after some events.
    fn connect(&mut self, journals: &[Arc<JournalReader>; 2], events: usize) {
        let channels = CHANNELS.iter().zip(journals);
        let channels = channels.map(|(name, journal)| ((*name).to_owned(), Arc::clone(journal)));
        let mut client = ClientStream::new(channels.collect(), self.last.as_deref());
        let mut text = client.greeting();
        while client.pull(&mut text) > 0 {}
        let mut left = events;
        for block in text.split("\n\n").filter(|block| !block.is_empty()) {
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
            if let Some(data) = field("data: ") {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.take(field("event: "), &serde_json::from_str(data).unwrap());
            }
            if let Some(id) = field("id: ") {
                self.last = Some(id.to_owned());
            }
        }
    }

    fn take(&mut self, kind: Option<&str>, data: &Value) {
        match kind {
            None => {
                let id = data["id"].as_str().unwrap();
                let (incarnation, seq) = id.split_once('/').unwrap();
                let update = (incarnation.parse().unwrap(), seq.parse().unwrap());
                self.seen.updates.push(update);
            }
            Some("gap") => {
                let incarnation: Uuid = data["incarnation"].as_str().unwrap().parse().unwrap();
                let from = data["from"].as_u64().unwrap();
                match data["to"].as_u64() {
                    Some(to) => {
                        assert!(from <= to, "{data}");
                        let lost = (from..=to).map(|seq| (incarnation, seq));
                        self.seen.missing.extend(lost);
                    }
                    None => self.open_gap = true,
                }
            }
            Some("resync") => {}
            Some(other) => panic!("{other}"),
        }
    }
}

fn run(seed: u64, limits: Limits) -> ([Writer; 2], Reader) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut writers = [Writer::new(limits), Writer::new(limits)];
    let journals =
        |writers: &[Writer; 2]| [writers[0].journal.reader(), writers[1].journal.reader()];
    let mut reader = Reader {
        last: Some("0".into()),
        ..Reader::default()
    };
    for _ in 0..60 {
        for _ in 0..rng.random_range(0..12) {
            let which = rng.random_range(0..2);
            writers[which].something(&mut rng);
        }
        if rng.random_bool(0.2) {
            writers[0].killed();
        }
        let events = rng.random_range(0..10);
        reader.connect(&journals(&writers), events);
    }
    for _ in 0..2 {
        reader.connect(&journals(&writers), usize::MAX);
    }
    (writers, reader)
}

#[test]
fn a_large_journal_delivers_each_update_once_and_in_order() {
    for seed in 0..15 {
        let (writers, reader) = run(seed, Limits::default());
        let seen = &reader.seen;
        for writer in &writers {
            let truth = &writer.truth;
            let mine = seen.updates.iter();
            let known = |update: &&(Uuid, u64)| {
                let mut all = truth.updates.iter();
                all.any(|(incarnation, _)| *incarnation == update.0)
            };
            let mine: Vec<_> = mine.filter(known).copied().collect();
            assert_eq!(mine, truth.updates, "seed {seed}");
            // A gap may be announced twice if the connection broke at that moment.
            let mut announced = seen.missing.clone();
            announced.sort_unstable();
            for missing in &truth.missing {
                assert!(
                    announced.binary_search(missing).is_ok(),
                    "seed {seed}: {missing:?}"
                );
            }
        }
        assert!(!reader.open_gap, "seed {seed}");
    }
}

#[test]
fn a_small_journal_repeats_nothing_and_announces_every_gap() {
    let limits = Limits {
        updates: 16,
        bytes: 1 << 20,
    };
    let mut gaps = 0;
    for seed in 100..115 {
        let (writers, reader) = run(seed, limits);
        let seen = &reader.seen;
        let mut once = seen.updates.clone();
        once.sort_unstable();
        let count = once.len();
        once.dedup();
        assert_eq!(once.len(), count, "seed {seed}");
        let mut announced = seen.missing.clone();
        announced.sort_unstable();
        gaps += usize::from(reader.open_gap);
        for writer in &writers {
            for update in &writer.truth.updates {
                let came = once.binary_search(update).is_ok();
                let known = announced.binary_search(update).is_ok();
                assert!(came || known || reader.open_gap, "seed {seed}: {update:?}");
                assert!(
                    !(came && known),
                    "seed {seed}: {update:?} arrived and was announced missing"
                );
            }
        }
    }
    assert!(gaps > 0, "the journal never was too small");
}
