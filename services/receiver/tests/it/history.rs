//! With what a receiver begins that has nothing yet, or has nothing any more.

use std::path::Path;
use std::time::Duration;

use crate::program::{self, PATIENCE, Running, ends, receiver, text};
use crate::site::{Site, entries};

/// More than what a receiver gets that asks for nothing.
const PUBLISHED: u64 = 250;

fn start(data: &Path, link: &str, more: &[&str]) -> Running {
    let mut command = receiver(&["--data", text(data), "--http", "off"]);
    Running::start(command.args(more).env("FLEXFEED_LINK", link))
}

/// Waits until the Atom file has exactly these entries, the newest first.
async fn has(data: &Path, expected: impl DoubleEndedIterator<Item = u64>) {
    let expected: Vec<u64> = expected.rev().collect();
    let end = tokio::time::Instant::now() + PATIENCE;
    while entries(data) != expected {
        let found = entries(data);
        assert!(
            tokio::time::Instant::now() < end,
            "{} of {} entries, {:?} to {:?}",
            found.len(),
            expected.len(),
            found.first(),
            found.last()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn site() -> Site {
    let site = Site::start().await;
    for seq in 1..=PUBLISHED {
        site.publish(seq).await;
    }
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_receiver_begins_with_the_configured_history() {
    let site = site().await;
    let folder = tempfile::tempdir().unwrap();
    for (name, more, said, first) in [
        ("usual", &[][..], "with the source's last updates", 151),
        ("some", &["--history", "120"][..], "last 120 updates", 131),
        ("all", &["--history", "all"][..], "everything", 1),
    ] {
        let data = folder.path().join(name);
        let running = start(&data, &site.link(), more);
        running.wait_for(said);
        has(&data, first..=PUBLISHED).await;
    }
    let data = folder.path().join("none");
    let running = start(&data, &site.link(), &["--history", "0"]);
    running.wait_for("first=251");
    site.publish(PUBLISHED + 1).await;
    has(&data, PUBLISHED + 1..=PUBLISHED + 1).await;
}

/// A container without a volume is a new receiver after each start, and gets what the source still
/// has, including updates it missed. With its folder it continues, whatever history is requested.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_without_its_folder_gets_the_kept_history() {
    let mut site = site().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let all = ["--history", "all"];
    let running = start(&data, &site.link(), &all);
    has(&data, 1..=PUBLISHED).await;
    drop(running);
    for seq in PUBLISHED + 1..=PUBLISHED + 130 {
        site.publish(seq).await;
    }
    std::fs::remove_dir_all(&data).unwrap();
    let running = start(&data, &site.link(), &all);
    has(&data, 1..=PUBLISHED + 130).await;
    assert_eq!(site.enrolled(), 2);
    drop(running);

    // The retention has taken its share.
    site.stop().await;
    site.forget_before(200);
    site.again().await;
    std::fs::remove_dir_all(&data).unwrap();
    let running = start(&data, &site.link(), &all);
    has(&data, 200..=PUBLISHED + 130).await;
    running.signal(program::Signal::TERM);
    running.wait_for("stopped; the next start");
    drop(running);

    let running = start(&data, &site.link(), &all);
    running.wait_for(&format!("continues after update {}", PUBLISHED + 130));
    running.wait_for(&format!("first={}", PUBLISHED + 131));
}

/// With the token used up, a receiver without its folder is given the reason and the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_without_folder_and_token_is_given_the_remedy() {
    let site = site().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let running = start(&data, &site.link(), &[]);
    has(&data, 151..=PUBLISHED).await;
    drop(running);
    std::fs::remove_dir_all(&data).unwrap();
    let mut command = receiver(&["--data", text(&data), "--http", "off"]);
    command.env("FLEXFEED_LINK", site.link_with_wrong_token());
    let (code, said) = tokio::task::spawn_blocking(move || ends(&mut command))
        .await
        .unwrap();
    assert_eq!(code, Some(1), "{said}");
    for part in ["-v feeds:/data", "without --limit", text(&data)] {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}
