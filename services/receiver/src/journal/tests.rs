#![allow(clippy::unwrap_used)]
use std::fs;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flexicast::Cursor;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::*;

const SMALL: Limits = Limits {
    updates: 64,
    bytes: 1 << 20,
};

fn inc(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn at(incarnation: u128, seq: u64) -> Cursor {
    Cursor {
        incarnation: inc(incarnation),
        seq,
    }
}

fn body(seq: u64) -> Bytes {
    Bytes::from(format!("update {seq} {}", "x".repeat(seq as usize % 40)))
}

fn open(folder: &Path) -> (Journal, Opened) {
    Journal::open(folder, SMALL).unwrap()
}

fn put(journal: &mut Journal, seqs: impl IntoIterator<Item = u64>) {
    for seq in seqs {
        journal.take(inc(1), seq, &body(seq));
    }
    journal.write().unwrap();
    journal.announce();
}

/// All records, each checked against its header.
fn all(reader: &JournalReader) -> Vec<(u64, Record)> {
    let mut out = Vec::new();
    let mut position = 0;
    while let Some(found) = reader.next(position) {
        let record = reader.read(found.position).unwrap().unwrap();
        assert_eq!(record.header, found.header);
        out.push((found.position, record));
        position = found.position + 1;
    }
    out
}

fn seqs(reader: &JournalReader) -> Vec<u64> {
    all(reader).iter().map(|(_, r)| r.header.seq).collect()
}

fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap();
    files.map(|f| f.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn records_are_read_back_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, opened) = open(folder.path());
    assert_eq!(opened, Opened::default());
    journal.begin(at(1, 2), false);
    put(&mut journal, 3..=5);
    journal.miss(inc(1), 6, 7, Missing::Gone);
    put(&mut journal, [8]);
    journal.begin(at(2, 0), true);
    journal.write().unwrap();
    // Not before everything else of the batch is durable.
    assert_eq!(journal.reader().now(), Some(at(1, 8)));
    assert_eq!(journal.reader().end(), 6);
    journal.announce();
    let before = all(&journal.reader());
    assert_eq!(journal.reader().now(), Some(at(2, 0)));
    drop(journal);
    let (journal, opened) = open(folder.path());
    assert_eq!(opened.cursor, Some(at(2, 0)));
    assert_eq!(opened.damaged, [] as [String; 0]);
    let after = all(&journal.reader());
    assert_eq!(after, before);
    let kinds: Vec<Kind> = after.iter().map(|(_, r)| r.header.kind).collect();
    assert_eq!(kinds[0], Kind::Begins { resync: false });
    assert!(matches!(kinds[1], Kind::Update { at_ms } if at_ms > 1_600_000_000_000));
    let missing = Kind::Missing {
        from: 6,
        why: Missing::Gone,
    };
    assert_eq!((kinds[4], after[4].1.header.seq), (missing, 7));
    assert_eq!(kinds[6], Kind::Begins { resync: true });
    assert_eq!(after[3].1.encoded, body(5));
    assert_eq!(journal.reader().updates_from(2), 3);
}

#[test]
fn repeated_updates_are_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    journal.begin(at(1, 0), false);
    put(&mut journal, 1..=4);
    drop(journal);
    // As after a kill between the journal and the cursor.
    let (mut journal, _) = open(folder.path());
    journal.begin(at(1, 4), true);
    put(&mut journal, 3..=6);
    journal.miss(inc(1), 2, 5, Missing::Gone);
    journal.miss(inc(1), 5, 8, Missing::Gone);
    // The cursor was lost: the source begins with its last ones, without a word.
    journal.begin(at(1, 6), false);
    put(&mut journal, [7, 9]);
    journal.begin(at(1, 20), false);
    put(&mut journal, [21]);
    let records = all(&journal.reader());
    let shown = records.iter().map(|(_, r)| (r.header.kind, r.header.seq));
    let missing = |from, why| Kind::Missing { from, why };
    let notes: Vec<(Kind, u64)> = shown
        .filter(|(kind, _)| !matches!(kind, Kind::Update { .. }))
        .collect();
    assert_eq!(
        notes,
        [
            (Kind::Begins { resync: false }, 0),
            (missing(7, Missing::Gone), 8),
            (missing(10, Missing::Skipped), 20),
        ]
    );
    let updates = records
        .iter()
        .filter(|(_, r)| matches!(r.header.kind, Kind::Update { .. }));
    let updates: Vec<u64> = updates.map(|(_, r)| r.header.seq).collect();
    assert_eq!(updates, [1, 2, 3, 4, 5, 6, 9, 21]);
}

#[test]
fn numbers_that_are_given_again_are_new_updates() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    put(&mut journal, 1..=6);
    journal.begin(at(1, 2), true);
    put(&mut journal, 3..=4);
    assert_eq!(seqs(&journal.reader()), [1, 2, 3, 4, 5, 6, 2, 3, 4]);
    // Rather again than not at all.
    assert_eq!(journal.reader().resume(inc(1), 3).position, 3);
}

#[test]
fn a_torn_tail_of_any_length_is_cut_off_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    put(&mut journal, 1..=3);
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap();
    let path = path.unwrap().path();
    let kept = fs::metadata(&path).unwrap().len();
    put(&mut journal, 4..=5);
    drop(journal);
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        // Possible remains after a power cut: a part of the data, or a part and zeros.
        {
            let zeros = [0, 13, whole.len() - cut][cut % 3];
            let torn = [&whole[..cut], &vec![0; zeros]].concat();
            fs::write(&path, &torn).unwrap();
            let (mut journal, opened) = open(folder.path());
            assert_eq!(opened.damaged, [] as [String; 0], "{cut}");
            let left = seqs(&journal.reader());
            let most: Vec<u64> = (1..=5).collect();
            assert!(most.starts_with(&left), "{cut}: {left:?}");
            if cut as u64 >= kept {
                assert!(left.len() >= 3, "{cut}: {left:?}");
            }
            put(&mut journal, 1..=6);
            assert_eq!(seqs(&journal.reader()), [1, 2, 3, 4, 5, 6], "{cut}");
            drop(journal);
            let (journal, _) = open(folder.path());
            assert_eq!(seqs(&journal.reader()), [1, 2, 3, 4, 5, 6], "{cut}");
            assert_eq!(all(&journal.reader())[4].1.encoded, body(5));
            drop(journal);
            for file in fs::read_dir(folder.path()).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_never_makes_another_update() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    put(&mut journal, 1..=5);
    let truth = all(&journal.reader());
    drop(journal);
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap();
    let path = path.unwrap().path();
    let whole = fs::read(&path).unwrap();
    for byte in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[byte] ^= 1 << (byte % 8);
        fs::write(&path, &bytes).unwrap();
        let (journal, _) = open(folder.path());
        let left = all(&journal.reader());
        assert!(truth.starts_with(&left) && left.len() < 5, "{byte}");
        drop(journal);
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn damage_in_the_middle_costs_one_segment_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    for seq in 1..=60 {
        put(&mut journal, [seq]);
    }
    drop(journal);
    let paths = super::segment::list(folder.path()).unwrap();
    assert!(paths.len() >= 6, "{paths:?}");
    let mut bytes = fs::read(&paths[2]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&paths[2], bytes).unwrap();
    let (mut journal, opened) = open(folder.path());
    assert_eq!(opened.damaged.len(), 1, "{opened:?}");
    let name = paths[2].file_name().unwrap().to_str().unwrap();
    assert!(opened.damaged[0].contains(name), "{opened:?}");
    assert_eq!(opened.cursor, Some(at(1, 60)));
    let left = seqs(&journal.reader());
    assert!(left.is_sorted() && left.len() > 50 && left.len() < 60);
    // The positions of the others stay.
    for (position, record) in all(&journal.reader()) {
        assert_eq!(position + 1, record.header.seq);
    }
    let lost = (1..=60).find(|seq| !left.contains(seq)).unwrap();
    let resume = journal.reader().resume(inc(1), lost);
    assert!(
        resume.gap.is_some_and(|(from, _)| from == lost + 1),
        "{resume:?}"
    );
    put(&mut journal, [61]);
    drop(journal);
    // Even a file that is nothing at all.
    fs::write(&paths[2], "x").unwrap();
    let (journal, opened) = open(folder.path());
    assert_eq!(opened.damaged.len(), 1, "{opened:?}");
    assert_eq!(seqs(&journal.reader()).last(), Some(&61));
}

struct Witness {
    reader: Arc<JournalReader>,
    seen: Mutex<Vec<u64>>,
    refuse: Mutex<bool>,
}

impl Guard for Witness {
    fn leaving(&self, end: u64) -> anyhow::Result<()> {
        if *self.refuse.lock().unwrap() {
            anyhow::bail!("no room for dead letters");
        }
        let mut seen = self.seen.lock().unwrap();
        let mut position = 0;
        while let Some(found) = self.reader.next(position)
            && found.position < end
        {
            // The record is still readable when its guard is called.
            let record = self.reader.read(found.position).unwrap().unwrap();
            seen.push(record.header.seq);
            position = found.position + 1;
        }
        Ok(())
    }
}

#[test]
fn bounds_hold_and_guards_are_called_before_records_leave() {
    for (limits, seed) in [
        (
            Limits {
                updates: 40,
                bytes: 1 << 20,
            },
            1,
        ),
        (
            Limits {
                updates: 100_000,
                bytes: 64 << 10,
            },
            2,
        ),
        (
            Limits {
                updates: 16,
                bytes: 2 << 10,
            },
            3,
        ),
        (
            Limits {
                updates: 1,
                bytes: 1,
            },
            4,
        ),
    ] {
        let mut rng = SmallRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(folder.path(), limits).unwrap();
        let witness = Arc::new(Witness {
            reader: journal.reader(),
            seen: Mutex::default(),
            refuse: Mutex::new(false),
        });
        journal.reader().guard(witness.clone());
        let mut next = 1;
        for _ in 0..150 {
            // As much at once as is allowed.
            let most = limits.batch();
            let (mut records, mut bytes) = (0, 0);
            while records < most.updates.min(60) && bytes < most.bytes.max(1) {
                let size = rng.random_range(0..1000);
                journal.take(inc(1), next, &Bytes::from(vec![7; size]));
                (records, bytes) = (records + 1, bytes + (OVERHEAD + size) as u64);
                next += 1;
            }
            journal.write().unwrap();
            journal.announce();
            let kept = all(&journal.reader()).len();
            assert!(kept <= limits.updates, "{kept}, {limits:?}");
            let all = size(folder.path());
            let longest = 1000 + OVERHEAD as u64;
            // Two updates have room in any case: the last one that there was, and the next.
            assert!(
                all <= limits.bytes.max(2 * longest + 100),
                "{all}, {limits:?}"
            );
            // And no more leaves than has to, once there was enough.
            let eighth = limits.updates.div_ceil(8);
            let full = kept + eighth >= limits.updates;
            let full = full || all + limits.bytes / 8 + longest >= limits.bytes;
            assert!(full || kept as u64 == next - 1, "{kept}, {all}, {limits:?}");
        }
        let mut known = witness.seen.lock().unwrap().clone();
        assert!(!known.is_empty());
        known.extend(seqs(&journal.reader()));
        assert_eq!(known, (1..next).collect::<Vec<_>>(), "{limits:?}");
        assert_eq!(journal.reader().start() + 1, seqs(&journal.reader())[0]);
        // A guard that cannot take over holds the journal, and nothing is lost.
        *witness.refuse.lock().unwrap() = true;
        let mut refused = false;
        for _ in 0..200 {
            journal.take(inc(1), next, &Bytes::from(vec![7; 500]));
            next += 1;
            match journal.write() {
                Ok(()) => journal.announce(),
                Err(error) => {
                    refused = true;
                    assert!(error.to_string().contains("no room for dead letters"));
                    break;
                }
            }
        }
        assert!(refused, "{limits:?}");
        *witness.refuse.lock().unwrap() = false;
        journal.write().unwrap();
        journal.announce();
        let mut known = witness.seen.lock().unwrap().clone();
        known.extend(seqs(&journal.reader()));
        assert_eq!(known, (1..next).collect::<Vec<_>>(), "{limits:?}");
    }
}

/// An older copy of the source's store was taken back: its numbers come a second time.
#[test]
fn a_reader_from_before_numbers_were_set_back_misses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    journal.begin(at(1, 8), false);
    put(&mut journal, 9..=10);
    // The records of 11 to 25 were lost with the receiver's disk.
    journal.begin(at(1, 7), true);
    put(&mut journal, 8..=12);
    let resume = journal.reader().resume(inc(1), 25);
    let from = Resume {
        position: 3,
        known: None,
        gap: None,
    };
    assert_eq!(resume, from);
    let record = journal.reader().next(3).unwrap();
    assert_eq!(record.header.kind, Kind::Begins { resync: true });
}

#[test]
fn a_reader_continues_at_its_position() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    journal.begin(at(1, 10), false);
    put(&mut journal, 11..=14);
    journal.miss(inc(1), 15, 17, Missing::Gone);
    put(&mut journal, 18..=20);
    let reader = journal.reader();
    let known = |seq| Some(at(1, seq));
    let go = |position, seq, gap| Resume {
        position,
        known: known(seq),
        gap,
    };
    assert_eq!(reader.resume(inc(1), 12), go(3, 12, None));
    assert_eq!(reader.resume(inc(1), 10), go(1, 10, None));
    // Within what is missing: the record of it says the rest.
    assert_eq!(reader.resume(inc(1), 15), go(5, 15, None));
    assert_eq!(reader.resume(inc(1), 20), go(9, 20, None));
    // Before what is here.
    assert_eq!(reader.resume(inc(1), 4), go(0, 4, Some((5, Some(10)))));
    // Further than this receiver.
    assert_eq!(reader.resume(inc(1), 900), go(9, 900, None));
    // Of a store that this receiver has never seen.
    let stranger = reader.resume(inc(9), 5);
    assert_eq!((stranger.position, stranger.gap), (0, Some((6, None))));
    assert_eq!(stranger.known, None);

    journal.begin(at(2, 0), true);
    journal.take(inc(2), 1, &body(1));
    journal.write().unwrap();
    journal.announce();
    // The rest of the old numbering, then the new one.
    assert_eq!(reader.resume(inc(1), 19), go(8, 19, None));
    assert_eq!(reader.resume(inc(1), 20), go(9, 20, None));
    assert_eq!(reader.resume(inc(1), 25).position, 9);
    assert_eq!(reader.resume(inc(2), 1).position, 11);
    assert_eq!(reader.cursor_before(9), Some(at(1, 20)));
    assert_eq!(reader.cursor_before(11), Some(at(2, 1)));
    assert_eq!(reader.cursor_before(0), None);
}

/// Whatever is put in, whenever it is killed: each update is there once, in order.
#[test]
fn any_history_with_kills_is_one_history() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().unwrap();
        // Nothing leaves.
        let limits = Limits {
            updates: 100_000,
            bytes: 1 << 30,
        };
        let (mut next, mut cursor) = (1u64, 0u64);
        for _ in 0..20 {
            let (mut journal, opened) = Journal::open(folder.path(), limits).unwrap();
            let there = opened.cursor.map_or(0, |c| c.seq);
            assert!(there >= cursor, "{there} < {cursor}");
            // The source sends again from the cursor on.
            let mut seq = cursor + 1;
            for _ in 0..rng.random_range(1..6) {
                let upto = seq + rng.random_range(0..5);
                for s in seq..upto {
                    journal.take(inc(1), s, &body(s));
                }
                seq = upto;
                journal.write().unwrap();
                if rng.random_bool(0.8) {
                    journal.announce();
                    cursor = seq - 1;
                }
            }
            next = next.max(seq);
            drop(journal);
            // A kill in the middle of a write: never before what the cursor stands for.
            let path = super::segment::list(folder.path()).unwrap().pop();
            if let Some(path) = path
                && rng.random_bool(0.5)
            {
                let mut bytes = fs::read(&path).unwrap();
                bytes.extend(vec![rng.random::<u8>(); rng.random_range(0..60)]);
                fs::write(&path, bytes).unwrap();
            }
        }
        let (journal, opened) = Journal::open(folder.path(), limits).unwrap();
        assert_eq!(opened.damaged, [] as [String; 0]);
        let found = seqs(&journal.reader());
        assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
        assert!(found.len() as u64 >= cursor && (found.len() as u64) < next + 1);
    }
}
