//! Cost of signatures in a receiver's whole process: `flexfeed-receiver` on the loopback interface.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flexicast::signing::{Era, Lineage, Signer, Statement};

use crate::figures::{Figures, median};
use crate::receiver::{Program, Updates};
use crate::site::{CHANNEL, INCARNATION, Site};

/// All figures of this file.
pub const NAMES: [&str; 2] = ["auth_recv_ratio", "auth_recv_goodput_ratio"];

const RUNS: usize = 3;
/// Random bytes in an update of about 2 kB, and in one of 64 KiB: they are sent as their Base64,
/// compressed.
const SMALL: usize = 1_700;
const LARGE: usize = 64_000;
/// Updates of a run, and of a second in which they are not sent as fast as possible.
const MANY: u64 = 3_000;
const FEW: u64 = 1_500;
const PER_S: u32 = 200;

/// Shortest CPU time that says anything.
const LEAST: Duration = Duration::from_millis(200);

/// Measures what is asked for.
///
/// # Errors
/// When a receiver cannot be run, or does not get the updates.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let [live, goodput] = NAMES;
    for (name, random, count, per_s) in [
        (live, SMALL, MANY, Some(PER_S)),
        (goodput, LARGE, FEW, None),
    ] {
        if !figures.wants(&[name]) {
            continue;
        }
        let updates = Updates::new(random);
        let mut ratios = Vec::new();
        for run in 1..=RUNS {
            let plain = runtime.block_on(cpu_time(&updates, count, per_s, false))?;
            let signed = runtime.block_on(cpu_time(&updates, count, per_s, true))?;
            eprintln!("{name}, run {run} of {RUNS}: without {plain:.0?}, with {signed:.0?}");
            ratios.push(match per_s {
                Some(_) => signed.as_secs_f64() / plain.as_secs_f64(),
                None => plain.as_secs_f64() / signed.as_secs_f64(),
            });
        }
        figures.take(name, median(ratios), "ratio");
    }
    Ok(())
}

/// CPU time of a receiver for so many updates by the flow.
async fn cpu_time(
    updates: &Updates,
    count: u64,
    per_s: Option<u32>,
    signs: bool,
) -> Result<Duration> {
    let signer = Signer::from_seed(&[7; 32]).context("making a key")?;
    let era = Era {
        first: 1,
        last: None,
        incarnation: INCARNATION,
        key: signer.key(),
    };
    let eras = if signs { vec![era] } else { Vec::new() };
    let site = Site::start_signed(Lineage::new(eras)?).await?;
    let encoded = |seq: u64| {
        let content = updates.encoded(seq);
        if !signs {
            return Ok(content);
        }
        let statement = Statement {
            channel: CHANNEL,
            incarnation: INCARNATION,
            seq,
            deadline_ms: 0,
        };
        let salt = u128::from(seq).to_be_bytes();
        let signed = signer.sign(&statement, &salt, &content);
        signed.map(bytes::Bytes::from).context("signing")
    };
    let all: Vec<_> = (1..=count).map(encoded).collect::<Result<_>>()?;
    let folder = crate::receiver::folder()?;
    let more = ["--interface", "127.0.0.1"];
    let mut program = Program::start(site.link(), &folder.path().join("data"), &more)?;
    site.wait_rung(1, "multicast").await?;
    let before = program.cpu_time()?;
    let mut pace = per_s.map(|per_s| tokio::time::interval(Duration::from_secs(1) / per_s));
    for update in all {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        site.publish(update).await;
    }
    program.reach(count).await?;
    let used = program.cpu_time()? - before;
    site.wait_rung(1, "multicast").await?;
    site.stop().await;
    ensure!(used > LEAST, "{used:?} is too short to compare");
    Ok(used)
}
