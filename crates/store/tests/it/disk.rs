//! Disks that fill up: nothing more is stored, what there is is served, and with new room it goes
//! on.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::postgres::PASSWORD;
use store::Store;

use crate::migrations::Raw;
use crate::outage::start;
use crate::site::{URL, drafts, etag};

/// A small file system of its own, as long as this value lives. Only for the superuser.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(folder: &'a Path, kilobytes: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: only the superuser can mount a small disk");
            return None;
        }
        let size = format!("size={kilobytes}k");
        command("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], folder);
        Some(Self(folder))
    }

    fn grow(&self, kilobytes: u32) {
        let size = format!("remount,size={kilobytes}k");
        command("mount", &["-o", &size], self.0);
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // Processes with open files on it end first.
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

fn command(program: &str, arguments: &[&str], folder: &Path) {
    let status = Command::new(program)
        .args(arguments)
        .arg(folder)
        .status()
        .unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

/// Fills the disk up, looks what still works, makes room, and looks whether everything does.
async fn fill_up(store: &Store, make_room: impl FnOnce()) {
    store.channels().open("lore").await.unwrap();
    // Nothing can press these bytes together.
    let mut state = 1_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let noise: Vec<u8> = (0..25_000).flat_map(|_| noise()).collect();
    let encode = |_: u64, _: &store::Draft| noise.clone();
    let mut number = 0;
    let error = loop {
        let drafts = drafts(number * 3, number * 3 + 3);
        let validators = etag(&number.to_string());
        match store
            .updates()
            .append("lore", URL, None, &drafts, Some(&validators), &encode)
            .await
        {
            Ok(stored) => assert_eq!(stored.len(), 3),
            Err(error) => break error,
        }
        number += 1;
        assert!(number < 2000, "the disk is not small");
    };
    assert!(error.is_full(), "{error:?}");
    assert!(error.to_string().contains("no space left"), "{error}");
    assert!(!error.to_string().contains(PASSWORD), "{error}");
    assert!(number > 0);
    // Stored updates are served.
    let head = number as u64 * 3;
    let updates = store
        .updates()
        .read("lore", 1, 65_536, usize::MAX)
        .await
        .unwrap();
    assert_eq!(updates.len() as u64, head, "appends are whole");
    let channel = store.channels().list().await.unwrap().remove(0).channel;
    assert_eq!(channel.head, head);
    let validators = store.feeds().validators("lore", URL).await.unwrap();
    assert_eq!(validators, etag(&(number - 1).to_string()));

    make_room();
    let began = Instant::now();
    let drafts = drafts(number * 3, number * 3 + 3);
    let stored = loop {
        match store
            .updates()
            .append("lore", URL, None, &drafts, None, &encode)
            .await
        {
            Ok(stored) => break stored,
            Err(error) if began.elapsed() < Duration::from_secs(60) => {
                assert!(error.is_full() || error.is_unavailable(), "{error:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    let seqs: Vec<_> = stored.iter().map(|update| update.seq).collect();
    assert_eq!(seqs, [head + 1, head + 2, head + 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_sqlite_stops_writing_only_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path(), 8 << 10) else {
        return;
    };
    let store = store::open_file(&folder.path().join("a.db")).await.unwrap();
    fill_up(&store, || disk.grow(64 << 10)).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_postgresql_stops_writing_only_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path(), 24 << 10) else {
        return;
    };
    let server = start().await;
    let space = folder.path().join("space");
    std::fs::create_dir(&space).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    server.give(&space).unwrap();
    let mut raw = Raw::to(&server.url()).await;
    raw.run(&format!(
        "CREATE TABLESPACE small LOCATION '{}'",
        space.display()
    ))
    .await;
    raw.run("CREATE DATABASE small TABLESPACE small").await;
    let store = store::open(&server.url_of("small")).await.unwrap();
    fill_up(&store, || disk.grow(128 << 10)).await;
    store.close().await;
}
