//! What a disk, a kill or a hand changed.

use super::*;
use crate::journal::{OVERHEAD, RecordHeader};

/// A byte that the disk changed costs one record, and is found where it is.
#[test]
fn every_changed_byte_is_found() {
    let home = Home::new(7);
    let path = home.files().remove(1);
    let whole = fs::read(&path).unwrap();
    for (at, flip) in (0..whole.len()).flat_map(|at| [(at, 0x10), (at, 1)]) {
        let mut changed = whole.clone();
        changed[at] ^= flip;
        fs::write(&path, &changed).unwrap();
        let (text, is_well) = home.verify();
        assert!(!is_well, "byte {at}:\n{text}");
        has(&text, &[&format!("{}, byte ", path.display())]);
        // Damage does not hide the records behind it, also not that of a length.
        let verified = if at < 27 { 0 } else { 3 };
        has(
            &text,
            &[&format!("{verified} verified, 3 unsigned, 0 failed")],
        );
    }
    let mut changed = whole.clone();
    changed[27 + OVERHEAD + 2] ^= 1;
    fs::write(&path, changed).unwrap();
    has(
        &home.verify().0,
        &["byte 27 (update 4?): the record is damaged"],
    );
    fs::write(&path, whole).unwrap();
    assert!(home.verify().1);
}

/// A length that reaches beyond the end of the last file looks like what a kill leaves.
#[test]
fn wrong_lengths_do_not_hide_the_records_behind_them() {
    let home = Home::new(7);
    let path = home.files().remove(1);
    let mut changed = fs::read(&path).unwrap();
    let size = OVERHEAD + signed(1, 4).len();
    changed[27 + 1] ^= 1;
    fs::write(&path, &changed).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well, "{text}");
    let first = format!("byte 27: the record is damaged; {size} bytes were not read");
    has(&text, &["3 verified, 3 unsigned", &first, "1 FAILED"]);
    // Nor do two of them, and with the last one it is no kill either.
    changed[27 + size + 1] ^= 1;
    changed[27 + 3 * size + 1] ^= 1;
    fs::write(&path, &changed).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well, "{text}");
    let both = format!(
        "byte 27: the record is damaged; {} bytes were not read",
        2 * size
    );
    let last = format!(
        "byte {}: the record is damaged; {size} bytes",
        27 + 3 * size
    );
    has(&text, &["1 verified, 3 unsigned", &both, &last, "2 FAILED"]);
    // Where no record is found, the rest is counted: here there is none but a torn one.
    changed.truncate(27 + size - 1);
    fs::write(&path, &changed).unwrap();
    let (text, is_well) = home.verify();
    assert!(is_well, "{text}");
    let cut = format!(
        "the last record is not complete, {} bytes were not read",
        size - 1
    );
    has(&text, &["byte 27: ", &cut]);
}

/// A feed may contain what looks like records: a search among them ends, and proves nothing.
#[test]
fn a_search_among_what_looks_like_records_ends() {
    let home = Home::new(7);
    let path = home.files().remove(1);
    let mut bytes = fs::read(&path).unwrap();
    let looks = Record {
        header: RecordHeader {
            kind: Kind::Update { at_ms: 1 },
            incarnation: INCARNATION,
            seq: 5,
        },
        encoded: vec![0; 100_000].into(),
    };
    let mut one = Vec::new();
    looks.write(u64::MAX, &mut one);
    bytes.truncate(27);
    // One that claims more than there is, of those.
    bytes.extend_from_slice(&(8_u32 << 20).to_be_bytes());
    (0..100_000).for_each(|_| bytes.extend_from_slice(&one[..OVERHEAD]));
    fs::write(&path, bytes).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well, "{text}");
    has(
        &text,
        &["nothing behind it can be read", "4500004 bytes were"],
    );
}

#[test]
fn a_file_missing_in_the_middle_is_a_failure() {
    let home = Home::new(20);
    let files = home.files();
    fs::remove_file(&files[2]).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well);
    let gap = format!(
        "FAILED: records 8 to 11 are missing before {}",
        files[3].display()
    );
    has(&text, &["13 verified, 3 unsigned, 0 failed", &gap]);
    // The oldest files leave when the journal is full.
    fs::remove_file(&files[0]).unwrap();
    fs::remove_file(&files[1]).unwrap();
    let (text, is_well) = home.verify();
    assert!(is_well, "{text}");
    has(&text, &["9 verified, 0 unsigned, 0 failed"]);
}

#[test]
fn a_cut_off_end_is_no_failure_and_a_cut_off_middle_is() {
    let home = Home::new(7);
    let files = home.files();
    let last = fs::read(&files[1]).unwrap();
    for length in 0..last.len() {
        fs::write(&files[1], &last[..length]).unwrap();
        let (text, is_well) = home.verify();
        assert!(is_well, "{length} bytes:\n{text}");
        let is_noted = text.contains("the source sends it again");
        assert!(is_noted || text.contains("unsigned, 0 failed"), "{text}");
    }
    fs::write(&files[1], &last).unwrap();
    let middle = fs::read(&files[0]).unwrap();
    fs::write(&files[0], &middle[..middle.len() - 1]).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well);
    let place = format!("FAILED: {}, byte ", files[0].display());
    has(&text, &[&place, "ends in the middle of a record"]);
    fs::write(&files[0], [b'x'; 100]).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well);
    has(&text, &["byte 0: the file is not part of a journal"]);
}
