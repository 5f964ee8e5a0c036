//! The operator's console with 5,000 receivers that all change, on PostgreSQL: how long its lists
//! take, and what 200 pages that watch cost it. And how much a first visit loads.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use kit::postgres::Postgres;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use store::{
    Applicant, Batch, MoveRow, NewToken, PulseRow, ReceiverCounts, SentBytes, SourceInfo, StateRow,
    Store,
};
use testbed::binaries::Binaries;
use testbed::http;
use testbed::process::cpu_time_of;
use testbed::waiting::pause;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 5] = [
    "console_p95_ms",
    "console_p50_ms",
    "console_sse200_core_share",
    "console_sse200_deltas_per_s",
    "web_first_load_kb",
];

const CHANNEL: &str = "lore";
const RECEIVERS: usize = 5_000;
/// Interval at which progress rows are written: with their number, 1,000 a second, the source's
/// maximum.
const EACH: Duration = Duration::from_millis(250);
const ROWS: usize = 250;
/// Of those rows, how many move to another rung.
const MOVES: usize = 3;
/// Watching pages.
const PAGES: usize = 200;
/// Measurement time of each figure.
const FOR: Duration = Duration::from_secs(20);
/// Callers of lists at the same time, and how long each rests after an answer.
const CALLERS: usize = 2;
const REST: Duration = Duration::from_millis(10);
/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "bench";
const PASSWORD: &str = "correct horse battery";

/// Measures what is asked for.
///
/// # Errors
/// When the console or its database cannot be started, or an answer is not what it has to be.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [p95, p50, share, deltas, first_load] = NAMES;
    if figures.wants(&[first_load]) {
        figures.take(first_load, first_load_kb()?, "kB");
    }
    if !figures.wants(&[p95, p50, share, deltas]) {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let server = Postgres::start()?;
    let url = server.create("console")?;
    let opened = runtime.block_on(store::open(&url))?;
    let receivers = runtime.block_on(populate(&opened))?;
    let mut console = Console::start(&url)?;
    console.wait_for_all()?;
    let written = Arc::new(AtomicU64::new(0));
    let writer = runtime.spawn(write(opened, receivers.clone(), Arc::clone(&written)));
    if figures.wants(&[p95, p50]) {
        let mut times = call(&console, &receivers)?;
        times.sort_by(f64::total_cmp);
        figures.take(p95, quantile(&times, 95), "ms");
        figures.take(p50, median(times), "ms");
    }
    if figures.wants(&[share, deltas]) {
        let seen = runtime.block_on(watch(&mut console))?;
        figures.take(share, seen.core_share, "cores");
        figures.take(deltas, seen.deltas_per_s, "1/s");
    }
    ensure!(!writer.is_finished(), "the database took no more rows");
    writer.abort();
    let rows = written.load(Ordering::Relaxed);
    eprintln!("console: {rows} rows were written meanwhile");
    Ok(())
}

fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Returns the size that the dashboard's own script reports.
fn first_load_kb() -> Result<f64> {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web");
    ensure!(
        web.join("dist/manifest.json").exists(),
        "there is no dashboard in {}: run ./dev web",
        web.display()
    );
    let output = Command::new("node")
        .arg("scripts/size.mjs")
        .current_dir(&web)
        .output()
        .context("starting node")?;
    let text = String::from_utf8_lossy(&output.stdout);
    eprint!("{text}");
    let rest = text.split_once("web_first_load_kb ").map(|(_, rest)| rest);
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("node scripts/size.mjs ended with {}", output.status))
}

/// Receivers as a source leaves them in the database.
async fn populate(opened: &Store) -> Result<Vec<Uuid>> {
    eprintln!("console: admitting {RECEIVERS} receivers …");
    opened.channels().open(CHANNEL).await?;
    let token = [7; 32];
    let new = NewToken {
        hash: token,
        label: "bench".into(),
        limit: None,
        expires_ms: None,
        public: false,
        channels: Vec::new(),
    };
    opened.tokens().add(&new).await?;
    let mut receivers = Vec::with_capacity(RECEIVERS);
    for n in 0..RECEIVERS {
        let receiver = Uuid::new_v4();
        let mut credential = [0; 32];
        credential[..16].copy_from_slice(receiver.as_bytes());
        let name = format!("host-{n:04}.site-{}.example", n % 40);
        let applicant = Applicant {
            token: Some(token),
            receiver,
            credential,
            name: &name,
            software: "flexfeed-receiver/0.1.0",
            address: "192.0.2.7:4433",
            channels: &[CHANNEL.to_owned()],
        };
        opened.receivers().admit(&applicant).await?;
        receivers.push(receiver);
    }
    let mut random = StdRng::seed_from_u64(6);
    for part in receivers.chunks(1_000) {
        let batch = Batch {
            states: part.iter().map(|id| state(*id, 0, &mut random)).collect(),
            info: Some(SourceInfo {
                holder: "bench".into(),
                software: "flexfeed-source/0.1.0".into(),
                started_ms: now_ms(),
                public_address: vec!["feeds.example:4433".into()],
                listen: "0.0.0.0:4433".into(),
                at_ms: now_ms(),
                ..SourceInfo::default()
            }),
            ..Batch::default()
        };
        opened.records().write(&batch).await?;
    }
    Ok(receivers)
}

fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

const RUNGS: [&str; 4] = ["multicast", "amt", "replicated", "unicast"];

fn state(receiver: Uuid, head: u64, random: &mut StdRng) -> StateRow {
    let backlog = random.random_range(0..3);
    StateRow {
        receiver,
        channel: CHANNEL.into(),
        connected: true,
        rung: RUNGS[random.random_range(0..RUNGS.len())].into(),
        since_ms: now_ms(),
        cause: "joined".into(),
        cursor: Some(head.saturating_sub(backlog)),
        backlog,
        key_sequence: Some(1),
        rtt_us: Some(random.random_range(1_000..90_000)),
        address: "192.0.2.7:4433".into(),
        session: None,
        legs: String::new(),
        updated_ms: now_ms(),
        change: 0,
    }
}

/// Writes as a source does whose receivers all get something.
async fn write(opened: Store, receivers: Vec<Uuid>, written: Arc<AtomicU64>) -> Result<()> {
    let mut random = StdRng::seed_from_u64(7);
    let mut turns = tokio::time::interval(EACH);
    let mut at = 0;
    for turn in 1_u64.. {
        turns.tick().await;
        let part: Vec<Uuid> = receivers
            .iter()
            .cycle()
            .skip(at)
            .take(ROWS)
            .copied()
            .collect();
        at = (at + ROWS) % receivers.len();
        let states: Vec<StateRow> = part
            .iter()
            .map(|id| state(*id, turn, &mut random))
            .collect();
        let moves = states.iter().take(MOVES).map(|state| MoveRow {
            id: 0,
            at_ms: state.since_ms,
            receiver: state.receiver,
            name: "bench".into(),
            channel: CHANNEL.into(),
            from: "multicast".into(),
            to: state.rung.clone(),
            cause: "stalled".into(),
            change: 0,
        });
        let count = RECEIVERS as u64;
        let pulse = PulseRow {
            channel: CHANNEL.into(),
            at_ms: now_ms(),
            head: turn,
            counts: ReceiverCounts {
                receivers: count,
                connected: count,
                multicast: count,
                ..ReceiverCounts::default()
            },
            delivered: turn % count,
            bytes: SentBytes {
                flow: turn * 1_200,
                ..SentBytes::default()
            },
            ..PulseRow::default()
        };
        let batch = Batch {
            moves: moves.collect(),
            pulses: turn
                .is_multiple_of(4)
                .then_some(pulse)
                .into_iter()
                .collect(),
            states,
            ..Batch::default()
        };
        opened.records().write(&batch).await?;
        written.fetch_add(ROWS as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// A running `flexfeed-console`, and what a browser that is signed in to it sends.
pub(crate) struct Console {
    child: Child,
    pub(crate) address: String,
    pub(crate) cookie: String,
    pub(crate) csrf: String,
}

impl Drop for Console {
    fn drop(&mut self) {
        // The process has ended already, or ends now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Console {
    pub(crate) fn start(database: &str) -> Result<Self> {
        let program = Binaries::find()?.console;
        let command = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            command.args(arguments).env("DATABASE_URL", database);
            command
        };
        let mut adding = command(&["user", "add", NAME, "--role", "operator"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let mut input = adding.stdin.take().context("no input")?;
        writeln!(input, "{PASSWORD}")?;
        drop(input);
        ensure!(adding.wait()?.success(), "a user could not be added");
        let mut child = command(&["--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()?;
        let log = child.stderr.take().context("no log")?;
        let mut console = Console {
            child,
            address: String::new(),
            cookie: String::new(),
            csrf: String::new(),
        };
        let mut lines = BufReader::new(log).lines();
        console.address = loop {
            let line = lines.next().context("the console ended")??;
            if let Some((_, rest)) = line.split_once("the console is at http://") {
                break rest.trim_end_matches('/').to_owned();
            }
        };
        // A full pipe must not block the program.
        std::thread::spawn(move || lines.for_each(drop));
        let url = format!("http://{}/api/v1/session", console.address);
        let body = json!({"name": NAME, "password": PASSWORD}).to_string();
        let answer = http::send("POST", &url, &[], &body)?;
        let cookie = answer.header.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = value.split(';').next()?.trim();
            name.eq_ignore_ascii_case("set-cookie")
                .then(|| value.to_owned())
        });
        console.cookie = cookie.with_context(|| format!("signing in: {}", answer.status))?;
        let session: Value = serde_json::from_slice(&answer.body)?;
        console.csrf = session["csrf"].as_str().unwrap_or_default().to_owned();
        Ok(console)
    }

    fn get(&self, path: &str) -> Result<Value> {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let answer = http::send("GET", &url, &[("Cookie", &self.cookie)], "")?;
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "{path}: {} {text}", answer.status);
        serde_json::from_str(&text).with_context(|| path.to_owned())
    }

    fn wait_for_all(&self) -> Result<()> {
        let begun = Instant::now();
        while self.get("receivers?limit=1")?["total"] != RECEIVERS {
            ensure!(begun.elapsed() < PATIENCE, "the console does not see all");
            pause(Duration::from_millis(100));
        }
        Ok(())
    }

    /// The CPU time of all its threads so far.
    fn cpu_time(&self) -> Result<Duration> {
        cpu_time_of(self.child.id())
    }
}

/// The calls of lists and of single receivers: a path and a check of the answer.
fn calls(random: &mut StdRng, receivers: &[Uuid]) -> (&'static str, String) {
    let one = receivers[random.random_range(0..receivers.len())];
    let rung = RUNGS[random.random_range(0..RUNGS.len())];
    let offset = random.random_range(0..RECEIVERS - 200);
    match random.random_range(0..8) {
        0 => ("page", "receivers?limit=100".into()),
        1 => (
            "deep",
            format!("receivers?limit=100&sort=rtt&order=desc&offset={offset}"),
        ),
        2 => (
            "rung",
            format!("receivers?limit=100&sort=lag&order=desc&rung={rung}"),
        ),
        3 => (
            "search",
            format!("receivers?limit=100&q=host-{:02}", offset / 100),
        ),
        4 => ("large", "receivers?limit=500&sort=since&order=desc".into()),
        5 => ("one", format!("receivers/{one}")),
        6 => ("moves", format!("receivers/{one}/moves")),
        _ => ("overview", "overview".into()),
    }
}

/// Milliseconds of each call.
fn call(console: &Console, receivers: &[Uuid]) -> Result<Vec<f64>> {
    let taken: Mutex<Vec<(&'static str, f64)>> = Mutex::default();
    std::thread::scope(|scope| {
        let taken = &taken;
        let caller = |seed| {
            move || -> Result<()> {
                let mut random = StdRng::seed_from_u64(seed);
                let begun = Instant::now();
                while begun.elapsed() < FOR {
                    let (kind, path) = calls(&mut random, receivers);
                    let asked = Instant::now();
                    let answer = console.get(&path)?;
                    let ms = asked.elapsed().as_secs_f64() * 1_000.0;
                    let right = match kind {
                        "page" | "deep" => answer["items"]
                            .as_array()
                            .is_some_and(|all| all.len() == 100),
                        "large" => answer["items"]
                            .as_array()
                            .is_some_and(|all| all.len() == 500),
                        "rung" | "search" => answer["items"]
                            .as_array()
                            .is_some_and(|all| !all.is_empty()),
                        "moves" => answer["items"].is_array(),
                        "one" => path.ends_with(answer["id"].as_str().unwrap_or("?")),
                        _ => answer["receivers"]["total"] == RECEIVERS,
                    };
                    ensure!(right, "{path} is answered by {answer}");
                    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                    taken.push((kind, ms));
                    drop(taken);
                    pause(REST);
                }
                Ok(())
            }
        };
        let callers: Vec<_> = (0..CALLERS as u64)
            .map(|seed| scope.spawn(caller(seed)))
            .collect();
        for one in callers {
            match one.join() {
                Ok(result) => result?,
                Err(_) => bail!("a caller panicked"),
            }
        }
        Ok(())
    })?;
    let taken = taken.into_inner().unwrap_or_else(PoisonError::into_inner);
    for kind in [
        "page", "deep", "rung", "search", "large", "one", "moves", "overview",
    ] {
        let mut times: Vec<f64> = taken
            .iter()
            .filter(|(of, _)| *of == kind)
            .map(|(_, ms)| *ms)
            .collect();
        times.sort_by(f64::total_cmp);
        eprintln!(
            "console, {kind}: {} calls, p50 {:.2} ms, p95 {:.2} ms, max {:.2} ms",
            times.len(),
            quantile(&times, 50),
            quantile(&times, 95),
            times.last().copied().unwrap_or(0.0)
        );
        ensure!(times.len() > 20, "too few calls of {kind} to judge by");
    }
    Ok(taken.into_iter().map(|(_, ms)| ms).collect())
}

struct Watched {
    core_share: f64,
    deltas_per_s: f64,
}

/// Views of the watching pages: people look for different things.
const WATCHED: [&str; 8] = [
    "",
    "?limit=100",
    "?limit=100&sort=lag&order=desc",
    "?limit=100&rung=unicast",
    "?limit=100&rung=amt&sort=since&order=desc",
    "?limit=50&q=host-00",
    "?limit=50&q=site-7.",
    "?limit=200&sort=rtt&order=desc",
];

/// Events received by a page during the measurement.
#[derive(Default)]
struct Observations {
    deltas: AtomicU64,
    bytes: AtomicU64,
}

/// Measures the console's cost of 200 watching pages.
async fn watch(console: &mut Console) -> Result<Watched> {
    let counting = Arc::new(AtomicBool::new(false));
    let mut pages = Vec::new();
    for n in 0..PAGES {
        // HTTP/1.0 keeps the server from sending chunks.
        let request = format!(
            "GET /api/v1/events{} HTTP/1.0\r\nHost: {}\r\nCookie: {}\r\n\r\n",
            WATCHED[n % WATCHED.len()],
            console.address,
            console.cookie
        );
        let mut stream = TcpStream::connect(&console.address).await?;
        stream.write_all(request.as_bytes()).await?;
        let seen = Arc::new(Observations::default());
        let reads = page(stream, Arc::clone(&counting), Arc::clone(&seen));
        pages.push((tokio::spawn(reads), seen));
    }
    // By then all have their snapshots.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, begun) = (console.cpu_time()?, Instant::now());
    counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(FOR).await;
    counting.store(false, Ordering::Relaxed);
    let (spent, took) = (console.cpu_time()?.saturating_sub(before), begun.elapsed());
    let (mut deltas, mut bytes) = (0, 0);
    for (reads, seen) in pages {
        if reads.is_finished() {
            reads.await??;
            bail!("a page's events ended");
        }
        reads.abort();
        let of_page = seen.deltas.load(Ordering::Relaxed);
        // One each second, and a generous bound for a busy machine.
        ensure!(
            of_page >= FOR.as_secs() / 3,
            "a page got {of_page} events in {took:?}"
        );
        deltas += of_page;
        bytes += seen.bytes.load(Ordering::Relaxed);
    }
    let seconds = took.as_secs_f64();
    eprintln!(
        "console, {PAGES} pages: {deltas} events and {bytes} bytes in {seconds:.1} s, {:.2} s of \
         CPU",
        spent.as_secs_f64()
    );
    Ok(Watched {
        core_share: spent.as_secs_f64() / seconds,
        deltas_per_s: deltas as f64 / seconds / PAGES as f64,
    })
}

/// Reads events until the measurement ends; their data has to be JSON.
async fn page(stream: TcpStream, counting: Arc<AtomicBool>, seen: Arc<Observations>) -> Result<()> {
    let mut lines = tokio::io::BufReader::new(stream).lines();
    let status = lines.next_line().await?.unwrap_or_default();
    ensure!(status.contains(" 200 "), "events: {status}");
    let (mut in_delta, mut checked) = (false, false);
    while let Some(line) = lines.next_line().await? {
        if let Some(data) = line.strip_prefix("data:") {
            if counting.load(Ordering::Relaxed) && in_delta {
                seen.deltas.fetch_add(1, Ordering::Relaxed);
                seen.bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
            }
            if in_delta && !checked {
                let _: Value = serde_json::from_str(data).context("an event's data")?;
                checked = true;
            }
        } else if let Some(event) = line.strip_prefix("event:") {
            in_delta = event.trim() == "delta";
        }
    }
    Ok(())
}
