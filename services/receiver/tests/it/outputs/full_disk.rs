//! Outputs on a full disk.

use super::*;

/// A file system of its own, with little room.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<SmallDisk> {
        std::fs::create_dir_all(&at).unwrap();
        let options = "size=2m,nr_inodes=200";
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs", text(&at)])
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!(
                "SKIPPED: a full disk needs a file system of its own, which only root can mount"
            );
            return None;
        }
        Some(SmallDisk(at))
    }

    /// Fills the disk up to `left` bytes. Restarts if another writer takes the room meanwhile.
    fn fill(&self, left: u64) {
        let filler = self.0.join("filler");
        for _ in 0..100 {
            let disk = rustix::fs::statvfs(&self.0).unwrap();
            let room = (disk.f_bavail * disk.f_frsize).saturating_sub(left);
            match std::fs::write(&filler, vec![b'.'; room as usize]) {
                Ok(()) => return,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
            }
            let _ = std::fs::remove_file(&filler);
        }
        panic!("its room is never the same for a moment");
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }

    /// Leaves no room for one more file, be it empty.
    fn fill_with_files(&self) {
        let folder = self.0.join("files");
        std::fs::create_dir(&folder).unwrap();
        let made = (0..).map(|n| std::fs::write(folder.join(n.to_string()), ""));
        let last = made.take(1000).find(Result::is_err);
        let error = last.unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn free_files(&self) {
        std::fs::remove_dir_all(self.0.join("files")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", text(&self.0)]).status();
    }
}

/// Whatever of it does not fit: the journal, a feed file, the cursor file, a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path().join("disk")) else {
        return;
    };
    let site = Site::start().await;
    let hooks = HookServer::start();
    hooks.answer("/bad", 500);
    let settings = format!(
        "[[webhook]]\nurl = \"{}\"\nname = \"good\"\n\
         [[webhook]]\nurl = \"{}\"\nname = \"bad\"\nattempts = 1\n",
        hooks.url("/good"),
        hooks.url("/bad"),
    );
    let mut home = Home::new(site.link(), settings);
    home.data = disk.0.join("data");
    let mut running = home.start();
    until("a cursor", async || {
        home.data.join("state/lore.json").exists()
    })
    .await;
    let mut listener = Listener::new(&home);
    let mut seq = 0;
    // Each time something else is the first that does not fit.
    for (round, left) in [0, 4 << 10, 8 << 10, 16 << 10, 24 << 10, 40 << 10]
        .into_iter()
        .enumerate()
    {
        disk.fill(left);
        for _ in 0..60 {
            seq += 1;
            site.publish(seq).await;
        }
        if left == 0 {
            running.wait_for("nothing is lost");
            until("not ready", async || {
                home.get("/readyz")
                    .await
                    .is_some_and(|(code, text)| code == 503 && text.contains("space"))
            })
            .await;
        } else {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        if round % 2 == 1 {
            kill(running);
            disk.free();
            running = home.start();
        } else {
            disk.free();
        }
        home.cursor(seq).await;
        listener.read(seq as usize).await;
    }
    until("the hooks", async || {
        hooks.seqs("/good").last() == Some(&seq) && home.dead("bad").last() == Some(&seq)
    })
    .await;
    assert_eq!(listener.seqs, in_order(seq));
    assert_eq!(listener.notes, []);
    assert_eq!(first_times(&hooks.seqs("/good")), in_order(seq));
    assert_eq!(first_times(&home.dead("bad")), in_order(seq));
    until("the files", async || {
        entries(&home.data) == newest_first(seq) && home.items() == newest_first(seq)
    })
    .await;
    until("ready", async || {
        home.get("/readyz").await.unwrap().0 == 200
    })
    .await;
    stop(running);
}

/// A start is no worse off than the receiver that runs: it waits for room, and does not give up.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_waits_for_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path().join("disk")) else {
        return;
    };
    let site = Site::start().await;
    let mut home = Home::new(site.link(), String::new());
    home.data = disk.0.join("data");
    let running = home.start();
    site.publish(1).await;
    home.cursor(1).await;
    stop(running);
    disk.fill_with_files();
    let running = Running::start(&mut home.command());
    running.wait_for("make room");
    running.wait_for("feeds, events and status are at");
    site.publish(2).await;
    running.wait_for("nothing is lost");
    disk.free_files();
    home.cursor(2).await;
    until("the file", async || entries(&home.data) == newest_first(2)).await;
    stop(running);

    // A new receiver's error names the room it needs.
    disk.fill_with_files();
    home.data = disk.0.join("new");
    let (code, said) = program::ends(&mut home.command());
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("has no room left") && !said.contains("chown"),
        "{said}"
    );
}
