//! Cost of a receiver for its machine: bytes written to the disk, and memory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use feed::{Entry, Kind, payload};
use flexfeed_receiver::board::{Board, Identity, now_ms};
use flexfeed_receiver::deliver::{Delivery, Item, ItemKind, ORDER, ReceivedUpdate};
use flexfeed_receiver::journal::Limits;
use flexfeed_receiver::link::Pin;
use flexfeed_receiver::sink::{ChannelFiles, Layout, Sink};
use flexfeed_receiver::status::file as status_file;
use flexicast::{Cursor, Via};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Source, SourceConfig, SourceHandle,
};
use jiff::Timestamp;
use testbed::binaries::Binaries;
use testbed::process::cpu_time_of;
use uuid::Uuid;

use crate::figures::Figures;

/// All figures of this file.
pub const NAMES: [&str; 2] = ["bytes_written_per_update_byte", "receiver_rss_mib"];

const CHANNEL: &str = "lore";
const INCARNATION: Uuid = Uuid::from_u128(7);
const TOKEN: &str = "bench";

/// Random bytes in an entry's text, which is their Base64: an encoded update has some more.
const RANDOM: usize = 5_800;
/// Entries in a feed file.
const KEPT: usize = 500;
/// Updates a second, in simulated time.
const RATE: u32 = 2;
/// Updates from an empty data folder on, and then once the files are full.
const FROM_EMPTY: u64 = 1_000;
const STEADY: u64 = 7_200;

/// Updates that the program takes before its memory is looked at.
const UPDATES: u64 = 100_000;
/// Most time for that.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time to settle before memory is measured.
const SETTLE: Duration = Duration::from_secs(25);

/// Measures what is asked for.
///
/// # Errors
/// When a receiver cannot be run, or did not do its work.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [written, memory] = NAMES;
    if figures.wants(&[written]) {
        figures.take(written, bytes_written()?, "ratio");
    }
    if figures.wants(&[memory]) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        figures.take(memory, runtime.block_on(resident())?, "MiB");
    }
    Ok(())
}

/// A folder on the disk that this program was built on: `/tmp` may be memory.
pub fn folder() -> Result<tempfile::TempDir> {
    let program = std::env::current_exe().context("asking where this program is")?;
    let target = program.ancestors().nth(2).unwrap_or(&program);
    tempfile::tempdir_in(target).context("making a data folder")
}

/// Updates of hardly compressible text.
pub struct Updates {
    texts: Vec<String>,
}

impl Updates {
    /// Updates with so many random bytes in their texts.
    pub fn new(random: usize) -> Self {
        let text = |_| {
            let random: Vec<u8> = (0..random).map(|_| rand::random()).collect();
            data_encoding::BASE64.encode(&random)
        };
        Self {
            texts: (0..64).map(text).collect(),
        }
    }

    /// Returns an update as it is stored.
    pub fn encoded(&self, seq: u64) -> Bytes {
        let text = self.texts.get(seq as usize % self.texts.len());
        let text = text.map_or("", String::as_str);
        // No two are the same, wherever an update begins.
        let (before, after) = text.split_at(seq as usize * 7 % text.len());
        let id = format!("urn:bench:{seq}");
        let xml = format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>{id}</id><title>Update {seq}</title>\
             <updated>2026-01-01T00:00:00Z</updated><link href=\"https://lore.example/{seq}/\"/>\
             <content type=\"text\">{after}{before}</content></entry>"
        );
        let entry = Entry {
            id,
            title: Some(format!("Update {seq}")),
            content_text: Some(format!("{after}{before}")),
            xml,
            ..Entry::default()
        };
        let url = "https://lore.example/all/new.atom";
        let now = Timestamp::now();
        payload::encode(&entry, Kind::Created, url, INCARNATION, seq, now).into()
    }
}

/// Bytes that this process has written: to the disk, and by system calls.
fn own_io() -> Result<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/self/io").context("asking what was written")?;
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse().ok())
    };
    let found = field("write_bytes:").zip(field("wchar:"));
    let (disk, calls) = found.context("/proc/self/io has no write_bytes")?;
    Ok([disk, calls])
}

/// The outputs of one channel over a real folder, with a simulated clock: bytes written per byte of
/// updates, from an empty folder and with full files, the worse of the two.
fn bytes_written() -> Result<f64> {
    let folder = folder()?;
    let state = folder.path().join("state");
    std::fs::create_dir_all(&state)?;
    let layout = Layout {
        data: folder.path(),
        state: &state,
        source: "bench:4433",
        delivery_log: None,
        json: true,
        keep: KEPT,
        served: None,
        journal: Limits::default(),
        file_interval: Duration::from_secs(5),
    };
    let (mut files, cursor) = ChannelFiles::open(&layout, CHANNEL)?;
    let identity = Identity {
        name: "bench".to_owned(),
        receiver_id: Uuid::nil(),
        source: "bench:4433".to_owned(),
    };
    let board = Board::new(identity, &[(CHANNEL.to_owned(), cursor)]);
    let status = status_file::path(folder.path());
    let mut channel = Simulated {
        files: &mut files,
        cursor,
        now: Instant::now(),
        step: Duration::from_secs(1) / RATE,
    };
    channel.put(0, ItemKind::Begins { resync: false })?;
    let updates = Updates::new(RANDOM);
    let mut worst: f64 = 0.0;
    let mut seq = 0;
    for (name, count) in [("from empty", FROM_EMPTY), ("with full files", STEADY)] {
        let before = own_io()?;
        let mut bytes = 0;
        for _ in 0..count {
            seq += 1;
            let encoded = updates.encoded(seq);
            bytes += encoded.len();
            let (via, live) = (Via::Flow, true);
            let what = ItemKind::Update(ReceivedUpdate { encoded, via, live });
            let outcome = channel.put(seq, what)?;
            board.delivered(CHANNEL, &outcome);
            status_file::write(&status, &board.status())?;
        }
        let after = own_io()?;
        let [disk, calls] = [0, 1].map(|n| (after[n] - before[n]) as f64 / bytes as f64);
        eprintln!(
            "{name}: {count} updates of {} bytes; {disk:.2} bytes to the disk for each, {calls:.2} \
             by system calls",
            bytes as u64 / count
        );
        // A file system in memory writes nothing to a disk.
        worst = worst.max(disk).max(calls);
    }
    ensure!(
        files.reader().now().map(|now| now.seq) == Some(seq),
        "the journal does not end at update {seq}"
    );
    Ok(worst)
}

/// A channel whose time is simulated.
struct Simulated<'a> {
    files: &'a mut ChannelFiles,
    cursor: Option<Cursor>,
    now: Instant,
    step: Duration,
}

impl Simulated<'_> {
    /// Puts one item out, and then what is due until the next one.
    fn put(&mut self, seq: u64, kind: ItemKind) -> Result<flexfeed_receiver::deliver::Outcome> {
        let incarnation = INCARNATION;
        let item = Item {
            incarnation,
            seq,
            kind,
        };
        let mut delivery = Delivery::new(vec![item], self.cursor, ORDER);
        delivery.attempt(self.files, now_ms)?;
        let outcome = delivery.into_outcome();
        self.cursor = outcome.cursor;
        let next = self.now + self.step;
        while let Some(due) = self.files.files_due(self.now).filter(|due| *due < next) {
            self.now = self.now.max(due);
            self.files.write_files()?;
        }
        self.now = next;
        Ok(outcome)
    }
}

struct Store(Updates);

#[async_trait]
impl Backlog for Store {
    async fn updates(
        &self,
        _channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> std::result::Result<Vec<(u64, Bytes)>, BoxError> {
        let mut bytes = 0;
        let updates = (from..=UPDATES)
            .take(limit)
            .map(|seq| (seq, self.0.encoded(seq)));
        let fitting = updates.take_while(|(seq, encoded)| {
            bytes += encoded.len();
            *seq == from || bytes <= max_bytes
        });
        Ok(fitting.collect())
    }

    async fn authorise(&self, _: &Admission) -> std::result::Result<(), AdmissionError> {
        Ok(())
    }
}

/// A source in this process, for a receiver on this machine.
async fn source(folder: &Path) -> Result<(SourceHandle, String)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let pin = flexicast_tokio::spki_pin(made.cert.der()).context("a certificate without a key")?;
    let config = SourceConfig {
        channels: vec![ChannelConfig {
            name: CHANNEL.to_owned(),
            incarnation: INCARNATION,
            head: UPDATES,
            first: 1,
            private: false,
            lineage: Default::default(),
            endorsements: Vec::new(),
            flow: None,
        }],
        rate_bps: 1_000_000_000,
        unicast_rate_bps: None,
        fall_back: Duration::from_millis(150),
        heartbeat: Duration::from_secs(1),
        ..SourceConfig::new(([127, 0, 0, 1], 0).into(), cert, key, rand::random())
    };
    let source = Source::bind(config, Arc::new(Store(Updates::new(RANDOM)))).await?;
    let (handle, address) = (source.handle(), source.local_addr());
    tokio::spawn(source.run());
    let link = format!("flexfeed://{TOKEN}@{address}?pin={}&ch={CHANNEL}", Pin(pin));
    Ok((handle, link))
}

/// A receiver's process, which ends with this.
pub struct Program {
    child: Child,
    data: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts the receiver with more arguments.
    pub fn start(link: &str, data: &Path, more: &[&str]) -> Result<Self> {
        let program = Binaries::find()?.receiver;
        let child = Command::new(program)
            .args(["--history", "all", "--no-amt"])
            .args(more)
            .args(["--http", "127.0.0.1:0", "--log-level", "warn", "--data"])
            .arg(data)
            .env("FLEXFEED_LINK", link)
            .stdin(Stdio::null())
            .spawn()
            .context("starting the receiver")?;
        Ok(Self {
            child,
            data: data.to_owned(),
        })
    }

    /// Waits until its outputs have this update.
    ///
    /// # Errors
    /// When it ends, or is not in time.
    pub async fn reach(&mut self, seq: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = status_file::read(&self.data).ok().flatten();
            let mut channels = status.iter().flat_map(|status| &status.channels);
            let pid = status.as_ref().map(|status| status.pid);
            if pid == Some(self.child.id()) && channels.any(|channel| channel.cursor >= seq) {
                return Ok(());
            }
            if let Some(code) = self.child.try_wait()? {
                bail!("the receiver ended: {code}");
            }
            ensure!(begun.elapsed() < PATIENCE, "update {seq} does not arrive");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the CPU time of all its threads.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu_time_of(self.child.id())
    }

    /// Private resident memory (`RssAnon`), in MiB.
    fn private(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
        Ok(kib.with_context(|| format!("{path} has no RssAnon"))? / 1024.0)
    }
}

/// Private memory of the program after it has taken all updates, and after another start, the
/// larger of the two.
async fn resident() -> Result<f64> {
    let folder = folder()?;
    let (handle, link) = source(folder.path()).await?;
    let data = folder.path().join("data");
    let mut most: f64 = 0.0;
    for name in ["after all updates", "after another start"] {
        let mut program = Program::start(&link, &data, &["--no-multicast"])?;
        program.reach(UPDATES).await?;
        tokio::time::sleep(SETTLE).await;
        let private = program.private()?;
        eprintln!("{name}: {private:.1} MiB");
        most = most.max(private);
    }
    handle.shutdown().await;
    Ok(most)
}
