//! Files that are written beside the transport: a thread of their own does it, and what it cannot
//! keep up with is left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// Files that are open at once; further connections are not written down.
const MAX_OPEN: usize = 512;
/// Pieces that wait for the thread.
const WAITING: usize = 1024;
/// A file's records are handed over when they are that many bytes, or that old.
const PIECE: usize = 32 << 10;
const HAND_OVER: Duration = Duration::from_secs(1);

enum WriteJob {
    Open(u64, PathBuf),
    Append(u64, Vec<u8>),
    Close(u64),
}

/// State shared by the files of one folder.
struct Shared {
    /// Something went wrong: nothing is written any more.
    failed: AtomicBool,
    open: AtomicUsize,
    next: AtomicU64,
    left_out: AtomicU64,
}

/// A folder of files, with the thread that writes them.
pub(crate) struct QlogFolder {
    files: QlogFiles,
    thread: Option<JoinHandle<()>>,
}

/// Makes files in a folder; cheap to clone.
#[derive(Clone)]
pub(crate) struct QlogFiles {
    path: PathBuf,
    shared: Arc<Shared>,
    jobs: SyncSender<WriteJob>,
}

impl QlogFolder {
    /// Begins to write into a folder, which is made if it is not there. Whatever goes wrong is
    /// logged once, and then nothing is written.
    pub(crate) fn new(path: PathBuf) -> Self {
        let shared = Arc::new(Shared {
            failed: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        });
        let (jobs, inbox) = sync_channel(WAITING);
        let (folder, theirs) = (path.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("qlog".into())
            .spawn(move || write_files(&folder, &theirs, &inbox));
        let thread = match thread {
            Ok(thread) => Some(thread),
            Err(error) => {
                give_up(&shared, &path, &error);
                None
            }
        };
        let files = QlogFiles { path, shared, jobs };
        QlogFolder { files, thread }
    }

    pub(crate) fn files(&self) -> &QlogFiles {
        &self.files
    }

    /// Waits until everything is written. All files have to be dropped before, and all that make
    /// further ones.
    pub(crate) async fn finish(self) {
        let QlogFiles { shared, jobs, .. } = self.files;
        drop(jobs);
        if let Some(thread) = self.thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        let left_out = shared.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            info!(
                pieces = left_out,
                "qlog: the disk was too slow, so parts were left out"
            );
        }
    }
}

impl QlogFiles {
    /// Begins a file; `None` when too many are open or writing has failed.
    pub(crate) fn create(&self, name: &str) -> Option<Log> {
        let shared = self.shared.clone();
        if shared.failed.load(Ordering::Relaxed) {
            return None;
        }
        if shared.open.fetch_add(1, Ordering::Relaxed) >= MAX_OPEN {
            shared.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let log = Log {
            id,
            shared,
            jobs: self.jobs.clone(),
            records: Vec::new(),
            handed_over: Instant::now(),
        };
        log.jobs
            .try_send(WriteJob::Open(id, self.path.join(name)))
            .ok()?;
        Some(log)
    }
}

/// One file. Writing to it never waits and never fails.
pub(crate) struct Log {
    id: u64,
    shared: Arc<Shared>,
    jobs: SyncSender<WriteJob>,
    /// Pending output: it may end anywhere, but is handed over only at the end of a line.
    records: Vec<u8>,
    handed_over: Instant,
}

impl Log {
    fn hand_over(&mut self) {
        self.handed_over = Instant::now();
        let records = std::mem::take(&mut self.records);
        if !records.is_empty()
            && self
                .jobs
                .try_send(WriteJob::Append(self.id, records))
                .is_err()
        {
            self.shared.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !self.shared.failed.load(Ordering::Relaxed) {
            self.records.extend_from_slice(bytes);
            let due = self.records.len() >= PIECE || self.handed_over.elapsed() >= HAND_OVER;
            if due && bytes.ends_with(b"\n") {
                self.hand_over();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.hand_over();
        // A full queue only keeps the file open until the end.
        let _ = self.jobs.try_send(WriteJob::Close(self.id));
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn give_up(shared: &Shared, path: &std::path::Path, error: &std::io::Error) {
    if !shared.failed.swap(true, Ordering::Relaxed) {
        warn!(path = %path.display(), %error, "qlog: cannot write, so nothing more is written; \
            check that the folder exists and has room");
    }
}

fn write_files(folder: &std::path::Path, shared: &Shared, inbox: &Receiver<WriteJob>) {
    if let Err(error) = std::fs::create_dir_all(folder) {
        give_up(shared, folder, &error);
    }
    let mut files: BTreeMap<u64, (PathBuf, File)> = BTreeMap::new();
    while let Ok(job) = inbox.recv() {
        if shared.failed.load(Ordering::Relaxed) {
            files.clear();
            continue;
        }
        match job {
            WriteJob::Open(id, path) => match File::create(&path) {
                Ok(file) => drop(files.insert(id, (path, file))),
                Err(error) => give_up(shared, &path, &error),
            },
            WriteJob::Append(id, records) => {
                if let Some((path, file)) = files.get_mut(&id)
                    && let Err(error) = file.write_all(&records)
                {
                    give_up(shared, path, &error);
                }
            }
            WriteJob::Close(id) => drop(files.remove(&id)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[tokio::test]
    async fn qlog_files_are_complete_and_a_bad_folder_is_harmless() {
        let place = tempfile::tempdir().unwrap();
        let folder = QlogFolder::new(place.path().join("new"));
        let mut log = folder.files().create("a.sqlog").unwrap();
        log.write_all(b"{\"a\":1}\n").unwrap();
        log.write_all(b"{\"b\":").unwrap();
        log.write_all(b"2}\n").unwrap();
        drop(log);
        folder.finish().await;
        let text = std::fs::read_to_string(place.path().join("new/a.sqlog")).unwrap();
        assert_eq!(text, "{\"a\":1}\n{\"b\":2}\n");

        let file = place.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        let folder = QlogFolder::new(file.join("below"));
        // The thread finds out on its own; until then and after, writing goes nowhere and harms
        // nothing.
        for _ in 0..100 {
            if let Some(mut log) = folder.files().create("a.sqlog") {
                log.write_all(b"x\n").unwrap();
            }
        }
        folder.finish().await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "in the way");
    }

    #[test]
    fn open_files_are_bounded() {
        let place = tempfile::tempdir().unwrap();
        let folder = QlogFolder::new(place.path().to_owned());
        let open: Vec<_> = (0..MAX_OPEN * 2)
            .filter_map(|i| folder.files().create(&i.to_string()))
            .collect();
        assert!(open.len() <= MAX_OPEN, "{}", open.len());
    }
}
