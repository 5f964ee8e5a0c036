//! Databases that were restored from backups, and receivers that must not miss anything by it.

use std::fs;
use std::path::Path;

use flexicast_tokio::Cursor;
use flexicast_tokio::receiver::Event;

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, source};

const RENEWED: &str = "gets a new incarnation";

fn stored(running: &mut Running, head: u64) {
    let head = format!("\"head\":{head},");
    running.until("it is stored", |running| {
        running.page("/status.json").1.contains(&head)
    });
}

fn copy_database(from: &Path, to: &Path) {
    // Without this key, a source signs nothing.
    fs::copy(from.join("signing.key"), to.join("signing.key")).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let name = format!("flexfeed.db{suffix}");
        let _ = fs::remove_file(to.join(&name));
        if from.join(&name).exists() {
            fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_has_overtaken_its_receivers_is_noticed_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let backup = tempfile::tempdir().unwrap();
    let feed = Feed::with(5);
    let mut running = Running::start(source(folder.path(), &feed));
    stored(&mut running, 5);
    let (_, log, _) = running.terminate();
    assert!(!log.contains(RENEWED), "{log}");
    copy_database(folder.path(), backup.path());

    feed.grow(3);
    let mut running = Running::start(source(folder.path(), &feed));
    stored(&mut running, 8);
    let mut receiver = Listening::start(configuration(folder.path()));
    let first = receiver
        .until("the welcome", |event| match event {
            Event::Welcome { incarnation, .. } => Some(*incarnation),
            _ => None,
        })
        .await;
    receiver.update(8).await;
    receiver.handle.shutdown().await;
    let (_, log, _) = running.terminate();
    assert!(!log.contains(RENEWED), "{log}");

    // The backup, and more entries than the receiver knew, while it is away.
    copy_database(backup.path(), folder.path());
    feed.grow(12);
    let mut running = Running::start(source(folder.path(), &feed));
    stored(&mut running, 20);
    let log = running.log();
    assert!(
        log.contains(RENEWED) && log.contains("up to 8 were published"),
        "{log}"
    );
    let mut back = configuration(folder.path());
    back.channels[0].1 = Some(Cursor {
        incarnation: first,
        seq: 8,
    });
    let mut receiver = Listening::start(back.clone());
    let (second, resync) = receiver
        .until("the welcome", |event| match event {
            Event::Welcome {
                incarnation,
                resync,
                ..
            } => Some((*incarnation, *resync)),
            _ => None,
        })
        .await;
    assert!(resync && second != first);
    receiver.update(20).await;
    assert_eq!(receiver.seqs, (1..=20).collect::<Vec<_>>());
    receiver.handle.shutdown().await;

    // A kill and a start change nothing.
    running.signal(rustix::process::Signal::KILL);
    running.end();
    let running = Running::start(source(folder.path(), &feed));
    let page = running.page("/status.json").1;
    assert!(page.contains(&second.to_string()), "{page}");
    let (_, log, _) = running.terminate();
    assert!(!log.contains(RENEWED), "{log}");
}

#[test]
fn a_database_in_another_folder_and_a_copied_folder_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let feed = Feed::with(5);
    let mut running = Running::start(source(folder.path(), &feed));
    stored(&mut running, 5);
    running.terminate();
    copy_database(folder.path(), elsewhere.path());
    let mut running = Running::start(source(elsewhere.path(), &feed));
    stored(&mut running, 5);
    let (_, log, _) = running.terminate();
    assert!(
        log.contains(RENEWED) && log.contains("without its head mark"),
        "{log}"
    );

    if fs::metadata(folder.path().join("lore.head"))
        .unwrap()
        .created()
        .is_err()
    {
        return; // This file system does not know when a file was made.
    }
    let whole = tempfile::tempdir().unwrap();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), whole.path().join(file.file_name())).unwrap();
    }
    let (_, log, _) = Running::start(source(whole.path(), &feed)).terminate();
    assert!(
        log.contains(RENEWED) && log.contains("restored or copied"),
        "{log}"
    );
}
