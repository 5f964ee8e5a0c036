#![allow(clippy::unwrap_used)]
use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use flexicast::Cursor;
use flexicast::signing::{Era, Lineage, SALT_LEN, Signer, Statement};

use super::*;
use crate::journal::{Journal, Limits};

mod damage;

const CHANNEL: &str = "lore";
const INCARNATION: Uuid = Uuid::from_u128(1);
/// First update that the source signed.
const FIRST: u64 = 4;

fn signer(seed: u8) -> Signer {
    Signer::from_seed(&[seed; 32]).unwrap()
}

fn signed(seed: u8, seq: u64) -> Bytes {
    let statement = Statement {
        channel: CHANNEL,
        incarnation: INCARNATION,
        seq,
        deadline_ms: 0,
    };
    let content = format!("update {seq} {}", "x".repeat(40));
    let signed = signer(seed).sign(&statement, &[7; SALT_LEN], content.as_bytes());
    signed.unwrap().into()
}

fn unsigned(seq: u64) -> Bytes {
    format!("\0update {seq}").into()
}

fn lineage(eras: &[(u64, Option<u64>, u8)]) -> Lineage {
    let eras = eras.iter().map(|(first, last, seed)| Era {
        first: *first,
        last: *last,
        incarnation: INCARNATION,
        key: signer(*seed).key(),
    });
    Lineage::new(eras.collect()).unwrap()
}

/// Data folder with a journal.
struct Home(tempfile::TempDir);

impl Home {
    /// Journal of three unsigned updates and, from [`FIRST`] on, of signed ones, in files of four.
    fn new(last: u64) -> Self {
        let home = Home(tempfile::tempdir().unwrap());
        let mut journal = home.journal();
        journal.name_keys(INCARNATION, &lineage(&[(FIRST, None, 1)]));
        let cursor = Cursor {
            incarnation: INCARNATION,
            seq: 0,
        };
        journal.begin(cursor, false);
        (1..FIRST).for_each(|seq| journal.take(INCARNATION, seq, &unsigned(seq)));
        (FIRST..=last).for_each(|seq| journal.take(INCARNATION, seq, &signed(1, seq)));
        journal.write().unwrap();
        home
    }

    fn journal(&self) -> Journal {
        let limits = Limits {
            updates: 32,
            bytes: 1 << 20,
        };
        Journal::open(&self.folder(), limits).unwrap().0
    }

    fn folder(&self) -> PathBuf {
        journal::folder(self.0.path(), CHANNEL)
    }

    fn files(&self) -> Vec<PathBuf> {
        journal::list(&self.folder()).unwrap()
    }

    fn verify_by(&self, rules: &Rules) -> (String, bool) {
        verify(self.0.path(), rules).unwrap()
    }

    fn verify(&self) -> (String, bool) {
        self.verify_by(&Rules::default())
    }

    /// Writes an update of a file again, changed, with a valid check: not what a disk does.
    fn forge(&self, path: &Path, change: impl Fn(&mut Record)) {
        let whole = fs::read(path).unwrap();
        let mut position = u64::from_be_bytes(whole[19..27].try_into().unwrap());
        let mut forged = whole[..27].to_vec();
        journal::scan(path, |_, found| {
            let Found::Record(mut record) = found else {
                panic!("{found:?}");
            };
            change(&mut record);
            record.write(position, &mut forged);
            position += 1;
        })
        .unwrap();
        fs::write(path, forged).unwrap();
    }
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

fn change_content(record: &mut Record, seq: u64) {
    if record.header.seq == seq {
        let mut bytes = record.encoded.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        record.encoded = bytes.into();
    }
}

#[test]
fn an_intact_journal_is_proved() {
    let (text, is_well) = Home::new(20).verify();
    assert!(is_well, "{text}");
    has(
        &text,
        &[
            "lore, incarnation 00000000-0000-0000-0000-000000000001, updates 1 to 20: 17 verified, \
             3 unsigned, 0 failed",
            "3 unsigned: stored before the source signed",
            "No failure. 17 updates are proved by the keys that the source announced",
        ],
    );
}

#[test]
fn a_changed_update_is_named_and_refused() {
    let home = Home::new(20);
    let path = &home.files()[2];
    home.forge(path, |record| change_content(record, 9));
    let (text, is_well) = home.verify();
    assert!(!is_well);
    has(
        &text,
        &[
            "16 verified, 3 unsigned, 1 failed",
            "FAILED: update 9 (",
            &format!("{}, byte ", path.display()),
            "the bytes are not those that the source signed",
            "1 FAILED. 16 updates",
        ],
    );
}

/// A holder of another key, or of old updates alone, cannot fill a journal.
#[test]
fn other_keys_and_other_places_are_refused() {
    for (forged, reason) in [
        (signed(2, 9), "another update, incarnation or key"),
        (signed(1, 8), "another update, incarnation or key"),
        (
            {
                let mut bytes = signed(2, 9).to_vec();
                bytes[4..12].copy_from_slice(&signer(1).key().id().0);
                bytes.into()
            },
            "not signed by the source's key",
        ),
    ] {
        let home = Home::new(20);
        home.forge(&home.files()[2], |record| {
            if record.header.seq == 9 {
                record.encoded = forged.clone();
            }
        });
        let (text, is_well) = home.verify();
        assert!(!is_well);
        has(&text, &["FAILED: update 9 (", reason]);
    }
}

#[test]
fn given_keys_replace_the_announced_ones() {
    let home = Home::new(20);
    let rules = |seeds: &[u8]| Rules {
        keys: seeds.iter().map(|seed| signer(*seed).key()).collect(),
        require_signed: false,
    };
    for seeds in [&[1][..], &[2, 1]] {
        let (text, is_well) = home.verify_by(&rules(seeds));
        assert!(is_well, "{text}");
        let key = signer(1).key().id().to_string();
        has(&text, &["17 updates are proved by the given keys", &key]);
    }
    let (text, is_well) = home.verify_by(&rules(&[2]));
    assert!(!is_well);
    has(
        &text,
        &[
            "0 verified, 3 unsigned, 17 failed",
            "is none of those given by --key",
        ],
    );
}

/// A forger who rewrites the folder as a whole strips signatures: then they have to be required.
#[test]
fn stripped_signatures_are_counted_apart_and_can_be_required() {
    let home = Home::new(20);
    home.forge(&home.files()[2], |record| {
        record.encoded = Bytes::copy_from_slice(flexicast::signing::content(&record.encoded));
    });
    let (text, is_well) = home.verify();
    assert!(is_well, "{text}");
    has(
        &text,
        &[
            "13 verified, 7 unsigned, 0 failed",
            "4 unsigned although the source signed",
        ],
    );
    let rules = Rules {
        keys: Vec::new(),
        require_signed: true,
    };
    let (text, is_well) = home.verify_by(&rules);
    assert!(!is_well);
    has(
        &text,
        &["13 verified, 0 unsigned, 7 failed", "it is not signed"],
    );
}

#[test]
fn a_journal_without_keys_says_what_to_do() {
    let home = Home::new(20);
    let path = home.folder().join("lineage.json");
    fs::write(&path, "{\"version\":1,\"incarnations\":3}").unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well);
    has(&text, &[&format!("FAILED: {} is damaged", path.display())]);
    fs::remove_file(&path).unwrap();
    let (text, is_well) = home.verify();
    assert!(!is_well);
    has(
        &text,
        &[
            "17 failed",
            "the journal has no keys for its incarnation",
            "3 unsigned: nothing is known of the source's keys",
        ],
    );
    // The receiver gets the keys at its next start, and the journal stays.
    let mut journal = home.journal();
    journal.name_keys(INCARNATION, &lineage(&[(FIRST, None, 1)]));
    journal.write().unwrap();
    assert!(home.verify().1);
}

#[test]
fn empty_folders_are_no_failure_and_none_is() {
    let folder = tempfile::tempdir().unwrap();
    let error = verify(folder.path(), &Rules::default()).unwrap_err();
    has(&error.to_string(), &[folder.path().to_str().unwrap()]);
    fs::create_dir(folder.path().join("journal")).unwrap();
    let (text, is_well) = verify(folder.path(), &Rules::default()).unwrap();
    assert!(is_well);
    has(&text, &["There is no channel in"]);
    fs::create_dir(journal::folder(folder.path(), CHANNEL)).unwrap();
    let (text, is_well) = verify(folder.path(), &Rules::default()).unwrap();
    assert!(is_well);
    has(&text, &["lore: no update"]);
}

#[test]
fn required_signatures_need_something_that_is_signed() {
    let folder = tempfile::tempdir().unwrap();
    let rules = Rules {
        keys: Vec::new(),
        require_signed: true,
    };
    fs::create_dir(folder.path().join("journal")).unwrap();
    let (text, is_well) = verify(folder.path(), &rules).unwrap();
    assert!(!is_well);
    has(&text, &["There is no channel in", "1 FAILED"]);
    fs::create_dir(journal::folder(folder.path(), CHANNEL)).unwrap();
    let (text, is_well) = verify(folder.path(), &rules).unwrap();
    assert!(!is_well);
    has(&text, &["lore: no update", "FAILED: no update is verified"]);
}

/// Only what is before all eras can be from before the source signed.
#[test]
fn unsigned_updates_after_signed_ones_are_refused() {
    for (eras, counts) in [
        (
            &[(FIRST, Some(8), 1), (12, None, 1)][..],
            "13 verified, 4 unsigned, 3 failed",
        ),
        (&[(FIRST, Some(7), 1)], "4 verified, 3 unsigned, 13 failed"),
    ] {
        let home = Home::new(20);
        let mut journal = home.journal();
        journal.name_keys(INCARNATION, &lineage(eras));
        journal.write().unwrap();
        for path in &home.files()[2..] {
            home.forge(path, |record| {
                let seq = record.header.seq;
                if eras.len() == 1 || (8..12).contains(&seq) {
                    record.encoded = unsigned(seq);
                }
            });
        }
        let (text, is_well) = home.verify();
        assert!(!is_well);
        let reason = "it is not signed, although the source signed updates before it";
        has(&text, &[counts, "FAILED: update 9 (", reason]);
        has(&text, &["3 unsigned: stored before the source signed"]);
    }
}

/// A receiver that runs stores keys while its journal is read.
#[test]
fn keys_are_read_again_before_a_failure() {
    let home = Home::new(7);
    let (mut keys, damaged) = Keys::open(&home.folder()).unwrap();
    assert_eq!(damaged, None);
    let mut journal = home.journal();
    journal.name_keys(INCARNATION, &lineage(&[(FIRST, Some(7), 1), (8, None, 2)]));
    journal.take(INCARNATION, 8, &signed(2, 8));
    journal.take(INCARNATION, 9, &signed(1, 9));
    journal.write().unwrap();
    let mut verdicts = Vec::new();
    journal::scan(&home.files()[2], |_, found| {
        if let Found::Record(record) = found {
            verdicts.push(keys.judge(CHANNEL, &record, &Rules::default()));
        }
    })
    .unwrap();
    let forged = Verdict::Failed(Forgery::Misplaced.into());
    assert_eq!(verdicts, [Verdict::Verified, forged]);
}

/// After a restore the source has other updates with the same numbers.
#[test]
fn each_incarnation_has_its_own_keys() {
    let home = Home::new(9);
    let mut journal = home.journal();
    let other = Uuid::from_u128(2);
    journal.begin(
        Cursor {
            incarnation: other,
            seq: 7,
        },
        true,
    );
    let era = |first, last, incarnation, seed| Era {
        first,
        last,
        incarnation,
        key: signer(seed).key(),
    };
    let eras = vec![era(FIRST, Some(7), INCARNATION, 1), era(8, None, other, 2)];
    journal.name_keys(other, &Lineage::new(eras).unwrap());
    let statement = Statement {
        channel: CHANNEL,
        incarnation: other,
        seq: 8,
        deadline_ms: 0,
    };
    let update = signer(2).sign(&statement, &[3; SALT_LEN], b"new").unwrap();
    journal.take(other, 8, &update.into());
    journal.write().unwrap();
    let (text, is_well) = home.verify();
    assert!(is_well, "{text}");
    has(
        &text,
        &[
            "updates 1 to 9: 6 verified",
            "updates 8 to 8: 1 verified, 0 unsigned, 0 failed",
        ],
    );
}

/// A source forgets eras with their updates; this journal still has these.
#[test]
fn keys_that_the_source_forgot_stay() {
    let home = Home::new(9);
    let mut journal = home.journal();
    for eras in [
        &[(FIRST, Some(9), 1), (10, Some(11), 2), (12, None, 3)][..],
        &[(10, Some(11), 2), (12, None, 3)],
        &[(12, None, 3)],
    ] {
        journal.name_keys(INCARNATION, &lineage(eras));
    }
    for (seed, seq) in [(2, 10), (2, 11), (3, 12)] {
        journal.take(INCARNATION, seq, &signed(seed, seq));
    }
    journal.write().unwrap();
    let (text, is_well) = home.verify();
    assert!(is_well, "{text}");
    has(&text, &["9 verified, 3 unsigned, 0 failed"]);
    // So they do over a restart.
    let mut journal = home.journal();
    journal.name_keys(INCARNATION, &lineage(&[(13, None, 3)]));
    journal.take(INCARNATION, 13, &signed(3, 13));
    journal.write().unwrap();
    assert!(home.verify().1);
}

#[test]
fn keys_of_incarnations_that_have_left_the_journal_leave() {
    let home = Home::new(9);
    let mut journal = home.journal();
    for n in 2..100 {
        let incarnation = Uuid::from_u128(n);
        journal.begin(
            Cursor {
                incarnation,
                seq: 0,
            },
            true,
        );
        journal.name_keys(incarnation, &lineage(&[(1, None, 1)]));
        journal.write().unwrap();
        journal.announce();
    }
    let text = fs::read_to_string(home.folder().join("lineage.json")).unwrap();
    assert_eq!(text.matches("eras").count(), 16, "{text}");
    let (file, damaged) = LineageFile::open(&home.folder()).unwrap();
    assert_eq!(damaged, None);
    assert!(file.of(INCARNATION).is_none() && file.of(Uuid::from_u128(99)).is_some());
}

/// The numbering can restart twice before the first records of it are written.
#[test]
fn keys_of_incarnations_that_are_not_written_yet_stay() {
    let home = Home::new(9);
    let mut journal = home.journal();
    for n in 2..5 {
        let incarnation = Uuid::from_u128(n);
        journal.name_keys(incarnation, &lineage(&[(1, None, 1)]));
        journal.take(incarnation, 1, &signed(1, 1));
    }
    journal.write().unwrap();
    let (file, _) = LineageFile::open(&home.folder()).unwrap();
    for n in 1..5 {
        assert!(file.of(Uuid::from_u128(n)).is_some(), "{n}");
    }
}

#[test]
fn many_failures_are_counted_and_not_all_listed() {
    let home = Home::new(20);
    for path in home.files() {
        home.forge(&path, |record| {
            if record.header.seq >= FIRST {
                record.encoded = signed(2, record.header.seq);
            }
        });
    }
    let mut progress = Progress::new("verifying");
    let rules = Rules::default();
    let findings = verify_channel(home.0.path(), CHANNEL, &rules, &mut progress);
    let mut findings = findings.unwrap();
    assert_eq!((findings.failed, findings.failures.len()), (17, 17));
    (0..100).for_each(|_| findings.fail("more".into()));
    let mut text = String::new();
    findings.write(CHANNEL, &mut text);
    assert_eq!(text.matches("FAILED").count(), MAX_LISTED);
    has(&text, &["and 67 more"]);
}
