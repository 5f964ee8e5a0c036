//! Memory that a connected receiver without traffic costs at the source.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::figures::Figures;
use crate::pair::{Maker, Pair};
use crate::site::Site;

/// All figures of this file.
pub const NAMES: [&str; 3] = [
    "source_bytes_per_idle_receiver",
    "source_heap_per_idle_receiver",
    "quiche_heap_per_connection",
];

/// Receivers before the measurement: buffers and tables that do not depend on their number are
/// there.
const BEFORE: usize = 100;
/// Receivers that are measured.
const MEASURED: usize = 400;
/// Time in which nothing happens any more before memory is looked at.
const SETTLE: Duration = Duration::from_secs(10);

/// Measures what is asked for.
///
/// # Errors
/// When the receivers do not become members of the flow.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [resident, heap, quiche] = NAMES;
    if figures.wants(&[resident, heap]) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (before, after) = runtime.block_on(members())?;
        let each = |value: fn(&Memory) -> usize| {
            value(&after).saturating_sub(value(&before)) as f64 / MEASURED as f64
        };
        figures.take(resident, each(|memory| memory.resident), "bytes");
        figures.take(heap, each(|memory| memory.heap), "bytes");
    }
    if figures.wants(&[quiche]) {
        figures.take(quiche, connections()?, "bytes");
    }
    Ok(())
}

/// Memory of this process, in bytes.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// Private and resident (`RssAnon`).
    resident: usize,
    /// Allocated by `malloc`, which Rust and BoringSSL use alike.
    heap: usize,
}

impl Memory {
    fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/self/status")?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib =
            line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
        // SAFETY: the function has no arguments and only reads the allocator's state, under its
        // locks.
        let info = unsafe { libc::mallinfo2() };
        Ok(Memory {
            resident: kib.context("/proc/self/status has no RssAnon")? * 1024,
            heap: info.uordblks + info.hblkhd,
        })
    }
}

/// A source with members of its flow: first some, then many more, which have nothing to do.
async fn members() -> Result<(Memory, Memory)> {
    let site = Site::start().await?;
    let first = site.swarm(BEFORE, &[])?;
    site.wait_rung(BEFORE, "multicast").await?;
    tokio::time::sleep(SETTLE).await;
    let before = Memory::now()?;
    let more = site.swarm(MEASURED, &[])?;
    site.wait_rung(BEFORE + MEASURED, "multicast").await?;
    tokio::time::sleep(SETTLE).await;
    let after = Memory::now()?;
    eprintln!("{BEFORE} idle receivers: {before:?}; {MEASURED} more: {after:?}");
    first.end()?;
    more.end()?;
    site.stop().await;
    Ok((before, after))
}

/// Bytes of a server's connection of quiche after its handshake.
fn connections() -> Result<f64> {
    let mut maker = Maker::new()?;
    let warm: Result<Vec<Pair>> = (0..BEFORE).map(|_| Ok(maker.connect()?.0)).collect();
    let warm = warm?;
    let before = Memory::now()?;
    let mut servers = Vec::with_capacity(MEASURED);
    for _ in 0..MEASURED {
        servers.push(maker.connect()?.0.server);
    }
    let after = Memory::now()?;
    let each = (after.heap - before.heap) as f64 / servers.len() as f64;
    drop(warm);
    Ok(each)
}
