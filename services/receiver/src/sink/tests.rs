#![allow(clippy::unwrap_used)]
mod kills;

use super::*;
use crate::deliver::tests::encoded;
use crate::deliver::{Delivery, Item, ItemKind, ORDER, ReceivedUpdate, Step};
use feed::feed_file::KEEP;

fn state(folder: &Path) -> PathBuf {
    let state = folder.join("state");
    std::fs::create_dir_all(&state).unwrap();
    state
}

fn files(folder: &Path, json: bool) -> (ChannelFiles, Option<Cursor>) {
    files_of(folder, json, KEEP)
}

fn files_of(folder: &Path, json: bool, keep: usize) -> (ChannelFiles, Option<Cursor>) {
    files_with(folder, json, keep, Limits::default())
}

fn files_with(
    folder: &Path,
    json: bool,
    keep: usize,
    journal: Limits,
) -> (ChannelFiles, Option<Cursor>) {
    let layout = Layout {
        data: folder,
        state: &state(folder),
        source: "h:1",
        delivery_log: None,
        json,
        keep,
        served: None,
        journal,
        file_interval: Duration::from_secs(5),
    };
    ChannelFiles::open(&layout, "lore").unwrap()
}

fn open(folder: &Path) -> Option<Cursor> {
    files(folder, false).1
}

fn noted(cursor: Cursor) -> FeedFileCursor {
    FeedFileCursor {
        cursor,
        refill: false,
    }
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
    file.store(noted(at(1200))).unwrap();
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

/// The ids in both files on disk, which are the same.
fn ids(folder: &Path, keep: usize) -> Vec<String> {
    let meta = || FeedMeta::for_channel("h:1", "lore");
    let atom = AtomFile::open(&folder.join("lore.atom"), meta(), keep).unwrap();
    let json = JsonFile::open(&folder.join("lore.json"), meta(), keep).unwrap();
    assert!(atom.ids().eq(json.ids()));
    atom.ids().map(str::to_owned).collect()
}

/// Any number of entries can be kept, and another one at the next start.
#[test]
fn files_keep_as_many_entries_as_configured() {
    let put = |folder: &Path, keep: usize, seqs: std::ops::RangeInclusive<u64>| {
        let (mut files, _) = files_of(folder, true, keep);
        let items = seqs.clone().map(|seq| Item {
            incarnation: at(0).incarnation,
            seq,
            kind: ItemKind::Update(ReceivedUpdate {
                encoded: encoded(seq),
                via: flexicast::Via::Flow,
                live: true,
            }),
        });
        let mut delivery = Delivery::new(items.collect(), None, ORDER);
        delivery.attempt(&mut files, || 0.0).unwrap();
        files.write_files().unwrap();
        ids(folder, keep)
    };
    for keep in [1, 7, 600] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        // In one batch, most of which a small file never shows, and in two.
        let first = put(folder, keep, 1..=700);
        let expected = |head: u64, keep: usize| {
            let newest = (1..=head).rev().take(keep);
            newest.map(|seq| format!("urn:{seq}")).collect::<Vec<_>>()
        };
        assert!(first == expected(700, keep), "{keep}");
        assert!(put(folder, keep, 701..=703) == expected(703, keep));
        // A file that is gone is made again from the journal.
        std::fs::remove_file(folder.join("lore.json")).unwrap();
        let cursor = files_of(folder, true, keep).1;
        assert_eq!(cursor, Some(at(703)));
        assert!(ids(folder, keep) == expected(703, keep));
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
    file.store(noted(at(1200))).unwrap();
    assert_eq!(files(folder, true).1, Some(at(700)));
    assert!(folder.join("lore.json").exists());
    assert_eq!(files(folder, true).1, Some(at(700)));
    file.store(noted(at(1200))).unwrap();
    std::fs::write(folder.join("lore.json"), "{").unwrap();
    assert_eq!(files(folder, true).1, Some(at(700)));
}

/// Sparing the files what they would push out again gives the same files.
#[test]
fn a_large_batch_has_the_result_of_many_small_ones() {
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
                kind: ItemKind::Update(ReceivedUpdate {
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
        assert_eq!(files.reader().updates_from(0), 1500);
        files.write_files().unwrap();
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
        files.announce();
        files.write_cursor(at(*seqs.end())).unwrap();
        files.write_files().unwrap();
        files.reader()
    };
    put(1..=9);
    let segment = std::fs::read_dir(folder.join("journal/lore")).unwrap();
    let segment = segment.map(|f| f.unwrap().path()).next().unwrap();
    let whole = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(open(folder), Some(at(8)));
    let reader = put(9..=10);
    assert_eq!(reader.updates_from(0), 10);
    // An older program did not write one: it begins with what is new.
    std::fs::remove_dir_all(folder.join("journal")).unwrap();
    assert_eq!(open(folder), Some(at(10)));
    let reader = put(8..=12);
    assert_eq!(reader.updates_from(0), 2);
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
            kind: ItemKind::Update(ReceivedUpdate {
                encoded: encoded(seq),
                via: flexicast::Via::Flow,
                live: true,
            }),
        });
        // A kill before the cursor: everything comes once more.
        let order = &[Step::Take, Step::Journal, Step::Announce];
        let mut delivery = Delivery::new(items.collect(), None, order);
        delivery.attempt(&mut files, || 0.0).unwrap();
        files.write_files().unwrap();
        (
            files.reader().updates_from(0),
            std::fs::read_to_string(files.feeds().atom_path()).unwrap(),
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
    file.store(noted(ahead)).unwrap();
    let expected = Cursor { seq: 6, ..ahead };
    assert_eq!(open(folder), Some(expected));
}

fn updates(seqs: std::ops::RangeInclusive<u64>) -> Vec<Item> {
    let items = seqs.map(|seq| Item {
        incarnation: at(0).incarnation,
        seq,
        kind: ItemKind::Update(ReceivedUpdate {
            encoded: encoded(seq),
            via: flexicast::Via::Flow,
            live: true,
        }),
    });
    items.collect()
}

fn deliver(files: &mut ChannelFiles, seqs: std::ops::RangeInclusive<u64>) {
    let mut delivery = Delivery::new(updates(seqs), None, ORDER);
    delivery.attempt(files, || 0.0).unwrap();
}

fn newest_first(last: u64) -> Vec<String> {
    (1..=last).rev().map(|seq| format!("urn:{seq}")).collect()
}

/// The Atom feed as it is in memory.
fn served(files: &ChannelFiles) -> String {
    let snapshot = files.feeds().snapshot(crate::feeds::Format::Atom).unwrap();
    let pieces = snapshot.pieces().iter();
    let text: Vec<u8> = pieces.flat_map(|p| p.as_ref()).copied().collect();
    String::from_utf8(text).unwrap()
}

/// A journal that is soon full.
const SHORT: Limits = Limits {
    updates: 24,
    bytes: 64 << 20,
};

/// Files that are written before the journal drops what they lack show nothing ahead of it.
#[test]
fn a_full_journal_writes_the_files_of_announced_updates() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut files, _) = files_with(folder, true, KEEP, SHORT);
    files.begin(at(0), false);
    deliver(&mut files, 1..=3);
    deliver(&mut files, 4..=20);
    assert_eq!(ids(folder, KEEP), newest_first(3));
    let order = &[Step::Take, Step::Journal];
    let mut delivery = Delivery::new(updates(21..=30), Some(at(20)), order);
    delivery.attempt(&mut files, || 0.0).unwrap();
    assert_eq!(ids(folder, KEEP), newest_first(20));
    assert!(!served(&files).contains("urn:21"));
    files.announce();
    assert!(served(&files).contains("urn:30"));
}

/// A file that cannot be written stops the channel where the journal would drop what it lacks,
/// with an error that says so, and loses nothing.
#[test]
fn a_full_journal_names_the_file_that_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut files, _) = files_with(folder, true, KEEP, SHORT);
    files.begin(at(0), false);
    deliver(&mut files, 1..=3);
    block(folder, "lore.json");
    deliver(&mut files, 4..=20);
    let mut delivery = Delivery::new(updates(21..=30), Some(at(20)), ORDER);
    let error = delivery.attempt(&mut files, || 0.0).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("journal full: "), "{error}");
    assert!(error.contains("lore.json"), "{error}");
    unblock(folder, "lore.json");
    delivery.attempt(&mut files, || 0.0).unwrap();
    files.write_files().unwrap();
    assert_eq!(ids(folder, KEEP), newest_first(30));
}

/// The journal is ahead of the files, which follow when they are due.
#[test]
fn an_update_writes_the_journal_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, _) = files(folder.path(), true);
    files.begin(at(0), false);
    deliver(&mut files, 1..=3);
    // The first entries are written at once.
    assert_eq!(ids(folder.path(), KEEP), newest_first(3));
    let begun = Instant::now();
    let due = |files: &mut ChannelFiles| files.files_due(begun);
    assert_eq!(due(&mut files), None);
    let cursor_file = || std::fs::read(state(folder.path()).join("lore.json")).unwrap();
    let noted = cursor_file();
    for seq in 4..=9 {
        deliver(&mut files, seq..=seq);
        assert!(due(&mut files).unwrap() >= begun + Duration::from_secs(5));
    }
    assert_eq!(ids(folder.path(), KEEP), newest_first(3));
    assert_eq!(cursor_file(), noted);
    // Readers of the feed in memory have them.
    assert!(served(&files).contains("urn:9"));
    drop(files);
    // A kill: the next start takes them from the journal, and asks the source for nothing.
    let (files, cursor) = super::tests::files(folder.path(), true);
    assert_eq!(cursor, Some(at(9)));
    assert_eq!(ids(folder.path(), KEEP), newest_first(9));
    drop(files);
    // The cursor may be lost as well.
    std::fs::remove_file(state(folder.path()).join("lore.json")).unwrap();
    assert_eq!(open(folder.path()), Some(at(9)));
}

/// Makes writing this file fail.
fn block(folder: &Path, name: &str) {
    std::fs::create_dir(folder.join(format!(".{name}.tmp"))).unwrap();
}

fn unblock(folder: &Path, name: &str) {
    std::fs::remove_dir(folder.join(format!(".{name}.tmp"))).unwrap();
}

/// A kill or a full disk between two files at the first entries of a channel.
#[test]
fn an_empty_file_is_filled_like_the_other_one() {
    for late in ["lore.json", "lore.atom"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (mut files, _) = files(folder, true);
        files.begin(at(0), false);
        files.write_files().unwrap();
        block(folder, late);
        let mut delivery = Delivery::new(updates(1..=3), Some(at(0)), ORDER);
        // The file fails at the first write, or by the first cursor.
        let _ = delivery.attempt(&mut files, || 0.0);
        assert!(files.write_files().is_err());
        drop(files);
        unblock(folder, late);
        let (_files, cursor) = super::tests::files(folder, true);
        assert_eq!(cursor, Some(at(3)));
        assert_eq!(ids(folder, KEEP), newest_first(3), "{late}");
    }
}

/// The same where a store that was restored has taken all numbers of one file back.
#[test]
fn a_file_of_an_old_incarnation_is_filled_like_the_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut files, _) = files(folder, true);
    files.begin(at(0), false);
    deliver(&mut files, 1..=3);
    files.write_files().unwrap();
    files.begin(at(0), true);
    files.write_journal().unwrap();
    files.announce();
    files.write_cursor(at(0)).unwrap();
    files.write_files().unwrap();
    deliver(&mut files, 1..=5);
    block(folder, "lore.json");
    assert!(files.write_files().is_err());
    drop(files);
    unblock(folder, "lore.json");
    let (_files, cursor) = super::tests::files(folder, true);
    assert_eq!(cursor, Some(at(5)));
    assert_eq!(ids(folder, KEEP), newest_first(5));
}

/// Entries of a lost file come from the journal, or from the source, until the file has them.
#[test]
fn a_deleted_file_is_rebuilt_from_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut files, _) = files(folder, true);
    files.begin(at(700), false);
    deliver(&mut files, 701..=720);
    drop(files);
    // The journal has all that this receiver ever had.
    std::fs::remove_file(folder.join("lore.atom")).unwrap();
    std::fs::write(folder.join("lore.json"), "{").unwrap();
    assert_eq!(super::tests::files(folder, true).1, Some(at(720)));
    assert_eq!(ids(folder, KEEP).len(), 20);
    // One that began later has not.
    std::fs::remove_dir_all(folder.join("journal")).unwrap();
    let (mut files, cursor) = super::tests::files(folder, true);
    assert_eq!(cursor, Some(at(720)));
    deliver(&mut files, 721..=730);
    drop(files);
    std::fs::remove_file(folder.join("lore.atom")).unwrap();
    let (files, cursor) = super::tests::files(folder, true);
    assert_eq!(cursor, Some(at(230)));
    drop(files);
    // Killed before there was a file again: it begins there, not further back.
    std::fs::remove_file(folder.join("lore.atom")).unwrap();
    let (mut files, cursor) = super::tests::files(folder, true);
    assert_eq!(cursor, Some(at(230)));
    deliver(&mut files, 231..=240);
    files.write_files().unwrap();
    drop(files);
    // Killed meanwhile: it goes on there, not at the journal's end.
    let (mut files, cursor) = super::tests::files(folder, true);
    assert_eq!(cursor, Some(at(240)));
    deliver(&mut files, 241..=731);
    files.write_files().unwrap();
    assert_eq!(ids(folder, KEEP).len(), KEEP);
    assert_eq!(files.reader().updates_from(0), 11);
    drop(files);
    assert_eq!(open(folder), Some(at(731)));
}
