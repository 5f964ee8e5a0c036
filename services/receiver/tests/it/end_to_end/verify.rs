//! The command `verify` on what a receiver has stored.

use std::path::Path;

use flexfeed_receiver::journal::{self, Found};

use super::*;

/// Runs `verify`; returns its exit code and output.
fn verify(data: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut command = receiver(&["verify", "--data", text(data)]);
    let output = command.args(more).output().unwrap();
    let said = program::said(&output) + &String::from_utf8_lossy(&output.stdout);
    (output.status.code(), said)
}

#[track_caller]
fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

/// Path of the newest file of the journal.
fn newest(data: &Path) -> PathBuf {
    let files = std::fs::read_dir(data.join("journal/lore")).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let logs = paths.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
    logs.max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_is_proved_while_the_receiver_runs_and_a_changed_byte_is_named() {
    let mut site = Site::start().await;
    for seq in 1..=3 {
        site.publish(seq).await;
    }
    site.stop().await;
    site.sign_from(4);
    site.again().await;
    let home = Home::new(site.link());
    let (code, said) = verify(&home.data(), &[]);
    assert_eq!(code, Some(1), "{said}");
    has(&said, &["journal", text(&home.data())]);

    let running = home.start();
    for seq in 4..=30 {
        site.publish(seq).await;
    }
    home.cursor(30).await;
    let key = site.public_key();
    for more in [&[][..], &["--key", &key]] {
        let (code, said) = verify(&home.data(), more);
        assert_eq!(code, Some(0), "{said}");
        let counts = "updates 1 to 30: 27 verified, 3 unsigned, 0 failed";
        has(&said, &[counts, "stored before the source signed"]);
    }
    let other = format!("ed25519:{}", "A".repeat(43));
    let (code, said) = verify(&home.data(), &["--key", &other]);
    assert_eq!(code, Some(1), "{said}");
    has(
        &said,
        &["FAILED: update 4 (", "none of those given by --key"],
    );
    let (code, said) = verify(&home.data(), &["--require-signed"]);
    assert_eq!(code, Some(1), "{said}");
    has(&said, &["FAILED: update 3 (", "not signed"]);
    let (code, said) = verify(&home.data(), &["--key", "short"]);
    assert_eq!(code, Some(2), "{said}");
    has(
        &said,
        &["'short'", "ed25519: and the 43 Base64url characters"],
    );
    stop(running);

    let path = newest(&home.data());
    let mut bytes = std::fs::read(&path).unwrap();
    let mut place = 0;
    journal::scan(&path, |offset, found| {
        if matches!(&found, Found::Record(record) if record.header.seq == 17) {
            place = offset;
        }
    })
    .unwrap();
    bytes[place as usize + 200] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (code, said) = verify(&home.data(), &[]);
    assert_eq!(code, Some(1), "{said}");
    let place = format!(
        "FAILED: {}, byte {place} (update 17?): the record is damaged",
        text(&path)
    );
    has(&said, &[&place, "26 verified"]);

    // The next start drops the rest and gets it again.
    let running = home.start();
    running.wait_for("channel=\"lore\" head=30");
    home.until("the rest of the journal", |_| {
        verify(&home.data(), &[])
            .1
            .contains("27 verified, 3 unsigned, 0 failed")
    })
    .await;
    stop(running);
    assert_eq!(verify(&home.data(), &[]).0, Some(0));
}
