//! Receivers far behind, served by one shard of a source and by two: a whole source with an engine,
//! real sockets and whole receivers, but the store in memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::Cursor;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig, Redundancy, Verify};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Source, SourceConfig, SourceHandle,
};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::cpu::thread_time_of;
use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 1] = ["shard_speedup_2"];

const CHANNEL: &str = "bench";
const RECEIVERS: usize = 200;
/// Updates that each receiver is behind, and the bytes in each.
const UPDATES: u64 = 2_000;
const BYTES: usize = 512;
/// Runs with each number of shards, in turn.
const ROUNDS: usize = 3;
/// Time limit of a run.
const BOUND: Duration = Duration::from_secs(300);
/// Name of the thread of the engine.
const ENGINE: &str = "engine";
/// Processors that the speed-up is computed for.
const PROCESSORS: u32 = 2;

/// Measures what is asked for.
///
/// # Errors
/// When a receiver does not get every update once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(play(1)?);
        two.push(play(2)?);
    }
    figures.take(NAMES[0], median(one) / median(two), "ratio");
    Ok(())
}

/// Returns the seconds that the threads of a source with so many shards would need on
/// [`PROCESSORS`] of its own for 200 receivers: the CPU time of the busiest thread, or that of all
/// threads divided by the processors if that is more.
fn play(shards: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let shelf = Arc::new(Shelf::new());
    let source = Running::start(folder.path(), Arc::clone(&shelf), shards)?;
    let names = source.threads(shards);
    let before = times(&names)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("receivers")
        .enable_all()
        .build()?;
    let start = Instant::now();
    let followed: Result<()> = runtime.block_on(async {
        let mut receivers = JoinSet::new();
        for _ in 0..RECEIVERS {
            receivers.spawn(follow(source.addr, Arc::clone(&shelf)));
        }
        let all = async {
            while let Some(followed) = receivers.join_next().await {
                followed??;
            }
            anyhow::Ok(())
        };
        let followed = tokio::time::timeout(BOUND, all).await;
        followed.map_err(|_| anyhow!("not all receivers had everything after {BOUND:?}"))?
    });
    let wall = start.elapsed();
    let after = times(&names)?;
    source.end(&runtime)?;
    followed?;
    let spent = before
        .iter()
        .zip(&after)
        .map(|(from, to)| to.saturating_sub(*from));
    let spent: Vec<Duration> = spent.collect();
    let all: Duration = spent.iter().sum();
    let busiest = spent.iter().max().copied().unwrap_or_default();
    eprintln!("{shards} shards: {wall:.2?} beside the receivers; CPU of {names:?}: {spent:.2?}");
    Ok(busiest.max(all / PROCESSORS).as_secs_f64())
}

fn times(threads: &[String]) -> Result<Vec<Duration>> {
    threads.iter().map(|name| thread_time_of(name)).collect()
}

/// A source on threads of its own.
struct Running {
    handle: SourceHandle,
    addr: SocketAddr,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Running {
    fn start(folder: &Path, shelf: Arc<Shelf>, shards: usize) -> Result<Running> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&cert, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = SourceConfig {
            channels: vec![ChannelConfig {
                head: UPDATES,
                ..ChannelConfig::new(CHANNEL, shelf.incarnation)
            }],
            rate_bps: 1_000_000_000,
            unicast_rate_bps: None,
            shards: NonZeroUsize::new(shards).context("no shards")?,
            ..SourceConfig::new(any, cert, key, [5; 32])
        };
        let (ready, bound) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(ENGINE.into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let source = Source::bind(config, shelf).await?;
                    ready.send((source.handle(), source.local_addr()))?;
                    Ok(source.run().await?)
                })
            })?;
        match bound.recv() {
            Ok((handle, addr)) => Ok(Running {
                handle,
                addr,
                thread,
            }),
            Err(_) => {
                let ended = thread.join().map_err(|_| anyhow!("the source panicked"))?;
                ended.and(Err(anyhow!("the source ended at once")))
            }
        }
    }

    /// Returns the names of its threads.
    fn threads(&self, shards: usize) -> Vec<String> {
        let numbers = (0..shards).filter(|_| shards > 1);
        let shards = numbers.map(|number| format!("shard-{number}"));
        [ENGINE.to_owned()].into_iter().chain(shards).collect()
    }

    fn end(self, runtime: &tokio::runtime::Runtime) -> Result<()> {
        runtime.block_on(self.handle.shutdown());
        self.thread
            .join()
            .map_err(|_| anyhow!("the source panicked"))?
    }
}

/// Receives everything from the first update on.
async fn follow(server: SocketAddr, shelf: Arc<Shelf>) -> Result<()> {
    let incarnation = shelf.incarnation;
    let config = ReceiverConfig {
        server: server.to_string(),
        known: Vec::new(),
        verify: Verify::Insecure,
        token: Vec::new(),
        credential: [1; 32],
        receiver_id: Uuid::new_v4(),
        name: "bench".into(),
        software: "bench".into(),
        channels: vec![(
            CHANNEL.into(),
            Some(Cursor {
                incarnation,
                seq: 0,
            }),
        )],
        interface: None,
        multicast: false,
        replicated: false,
        amt: None,
        redundancy: Redundancy::One,
        qlog: None,
        check: None,
        verify_updates: true,
        pinned_keys: Vec::new(),
    };
    let (handle, mut events) = Receiver::start(config);
    let mut next = 1;
    while next <= UPDATES {
        match events.recv().await.context("the receiver ended")? {
            Event::Update { seq, encoded, .. } => {
                ensure!(
                    seq == next && encoded == update(seq),
                    "update {seq} arrived in the place of {next}"
                );
                handle.confirm(CHANNEL, Cursor { incarnation, seq });
                next += 1;
            }
            Event::Refused { reason, .. } => bail!("refused: {reason}"),
            // On a busy machine, a source can be silent for too long: the receiver connects again,
            // which the source pays for.
            _ => {}
        }
    }
    handle.shutdown().await;
    Ok(())
}

fn update(seq: u64) -> Bytes {
    let bytes = (0..BYTES as u64).map(|i| (i * 31 + seq) as u8);
    bytes.collect::<Vec<_>>().into()
}

/// The store.
struct Shelf {
    updates: Vec<Bytes>,
    incarnation: Uuid,
}

impl Shelf {
    fn new() -> Self {
        Shelf {
            updates: (1..=UPDATES).map(update).collect(),
            incarnation: Uuid::new_v4(),
        }
    }
}

#[async_trait]
impl Backlog for Shelf {
    async fn updates(
        &self,
        _channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        let limit = limit.min(max_bytes / BYTES).max(1);
        let all = (from..).zip(self.updates.iter().skip(from as usize - 1));
        Ok(all.take(limit).map(|(seq, b)| (seq, b.clone())).collect())
    }

    async fn authorise(&self, _request: &Admission) -> Result<(), AdmissionError> {
        Ok(())
    }
}
