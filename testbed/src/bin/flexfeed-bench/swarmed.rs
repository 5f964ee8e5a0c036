//! CPU time of a whole source per byte that is delivered to 200 receivers: by multicast with
//! acknowledgements, against unicast.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use feed::{Entry, Kind, payload};
use jiff::Timestamp;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use testbed::urgent::RealTime;

use crate::cpu::process_time;
use crate::figures::{Figures, median};
use crate::processor::{OneProcessor, OtherProcessors};
use crate::site::{INCARNATION, Site};

/// All figures of this file.
pub const NAMES: [&str; 3] = [
    "source_cpu_vs_unicast_n200",
    "source_cpu_multicast_ns_per_kb",
    "source_cpu_unicast_ns_per_kb",
];

const RECEIVERS: usize = 200;
/// Bit/s of updates.
const RATE: u64 = 5_000_000;
/// Random bytes in an entry's text, which is their Base64: an encoded update has some more.
const RANDOM: usize = 800;
/// Time of publishing.
const TIME: Duration = Duration::from_secs(10);
/// Runs per median.
const RUNS: usize = 3;
/// Different texts.
const TEXTS: usize = 64;

/// Measures what is asked for.
///
/// # Errors
/// When a receiver did not get every update once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    // The source and its receivers, as on machines that have nothing else to do.
    let urgent = RealTime::begin(RealTime::MEASURED);
    if let Err(error) = &urgent {
        eprintln!("what else this machine does may move receivers off the flow: {error}");
    }
    // The receivers share no cache with the source, as if they were on other machines.
    let one = OneProcessor::begin().context("keeping to one processor")?;
    let others = one.others();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let updates: Arc<[Bytes]> = updates().into();
    // What publishes is a task of the source's own runtime, as in the program.
    let deliver = |rung, more: &'static [&'static str]| {
        runtime.block_on(runtime.spawn(deliver(Arc::clone(&updates), rung, more, others)))
    };
    let (mut multicast, mut unicast) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        multicast.push(deliver("multicast", &[])??);
        unicast.push(deliver("unicast", &["--no-multicast", "--no-replicate"])??);
    }
    let (multicast, unicast) = (median(multicast), median(unicast));
    drop((one, urgent));
    let [ratio, by_multicast, by_unicast] = NAMES;
    figures.take(ratio, unicast / multicast, "ratio");
    figures.take(by_multicast, multicast, "ns/KB");
    figures.take(by_unicast, unicast, "ns/KB");
    Ok(())
}

/// The updates of one run, made before anything is measured.
fn updates() -> Vec<Bytes> {
    let mut random = SmallRng::seed_from_u64(7);
    let texts: Vec<String> = (0..TEXTS)
        .map(|_| {
            let mut bytes = [0; RANDOM];
            random.fill_bytes(&mut bytes);
            data_encoding::BASE64.encode(&bytes)
        })
        .collect();
    let (mut made, mut bytes) = (Vec::new(), 0);
    let wanted = RATE / 8 * TIME.as_secs();
    for (seq, text) in (1..).zip(texts.iter().cycle()) {
        let id = format!("urn:bench:{seq}");
        let xml = format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>{id}</id><title>Update {seq}</title>\
             <updated>2026-01-01T00:00:00Z</updated><content type=\"text\">{text}</content></entry>"
        );
        let entry = Entry {
            id,
            title: Some(format!("Update {seq}")),
            content_text: Some(text.clone()),
            xml,
            ..Entry::default()
        };
        let url = "https://lore.example/all/new.atom";
        let now = Timestamp::now();
        let update = payload::encode(&entry, Kind::Created, url, INCARNATION, seq, now);
        bytes += update.len() as u64;
        made.push(Bytes::from(update));
        if bytes >= wanted {
            break;
        }
    }
    made
}

/// Publishes the updates at their rate to receivers on one rung. Returns the CPU time of this
/// process in ns per 1,024 bytes that are delivered.
async fn deliver(
    updates: Arc<[Bytes]>,
    rung: &'static str,
    more: &'static [&'static str],
    others: OtherProcessors,
) -> Result<f64> {
    let site = Site::start().await?;
    let swarm = others.run(|| site.swarm(RECEIVERS, more))??;
    site.wait_rung(RECEIVERS, rung).await?;
    // Handshakes and proofs are over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let step = TIME.div_f64(updates.len() as f64);
    let (before, begun) = (process_time(), tokio::time::Instant::now());
    for (n, update) in (0..).zip(updates.iter()) {
        tokio::time::sleep_until(begun + step * n).await;
        site.publish(update.clone()).await;
    }
    let published = begun.elapsed();
    site.wait_confirmed().await?;
    let used = process_time() - before;
    let bytes: usize = updates.iter().map(Bytes::len).sum();
    let each = bytes / updates.len();
    eprintln!(
        "{RECEIVERS} receivers by {rung}: {} updates of {each} bytes, published in \
         {published:.1?}, CPU time {used:.2?}",
        updates.len()
    );
    // All that each receiver got is compared there with what the others got.
    swarm.end()?;
    site.stop().await;
    Ok(used.as_nanos() as f64 / (bytes * RECEIVERS) as f64 * 1024.0)
}
