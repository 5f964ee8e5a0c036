//! Cost of signatures of updates: beside the same without them.

use anyhow::{Context, Result};
use flexicast::protect::Algorithm;
use flexicast::signing::{Signer, Statement};
use uuid::Uuid;

use crate::figures::{Figures, median};
use crate::intake;
use crate::parcel::{PIECE, Parcel};
use crate::receiving::{Ends, Setup, Signing, by_flow};

/// All figures of this file.
pub const NAMES: [&str; 5] = [
    "auth_gen_ratio",
    "auth_recv_core_ratio",
    "auth_append_ratio",
    "auth_sign_us",
    "auth_bytes_overhead",
];

/// Bytes that are sent in a run.
const STREAM: usize = 50_000_000;
const RUNS: usize = 7;
/// Updates that are sent at once. After a signature or its verification, the code that makes
/// packets is in no cache; in service, neither comes between two packets.
const AT_ONCE: usize = 16;
/// Updates in one transaction.
const BATCH: usize = 100;
/// Bytes of a usual update.
const UPDATE: usize = 6_000;
/// Updates that are signed in a run.
const SIGNED: u32 = 2_000;

/// Measures what is asked for.
///
/// # Errors
/// When a side did not get the bytes, or a database cannot be made.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let [generation, receiving, append, sign, overhead] = NAMES;
    if figures.wants(&[generation, receiving]) {
        let parcel = Parcel::new(STREAM);
        let (mut made, mut received) = (Vec::new(), Vec::new());
        for run in 1..=RUNS {
            let plain = Setup::plain(Algorithm::Aes128Gcm);
            let plain = by_flow(Ends::joined(plain)?, &parcel, PIECE, AT_ONCE)?;
            let signed = Setup {
                signing: Signing::Header(Box::new(signer()?)),
                ..Setup::plain(Algorithm::Aes128Gcm)
            };
            let signed = by_flow(Ends::joined(signed)?, &parcel, PIECE, AT_ONCE)?;
            eprintln!("signatures, run {run} of {RUNS}: without {plain:.0?}, with {signed:.0?}");
            made.push(plain.made.as_secs_f64() / signed.made.as_secs_f64());
            let (plain, signed) = (plain.received.time, signed.received.time);
            received.push(plain.as_secs_f64() / signed.as_secs_f64());
        }
        figures.take(generation, median(made), "ratio");
        figures.take(receiving, median(received), "ratio");
    }
    if figures.wants(&[append]) {
        let ratios = (1..=3).map(|_| append_ratio()).collect::<Result<_>>()?;
        figures.take(append, median(ratios), "ratio");
    }
    if figures.wants(&[sign, overhead]) {
        let (signer, content) = (signer()?, vec![7; UPDATE]);
        let statement = Statement {
            channel: "bench",
            incarnation: Uuid::from_u128(7),
            seq: 1_000_000,
            deadline_ms: 0,
        };
        let begun = std::time::Instant::now();
        let mut length = 0;
        for n in 0..SIGNED {
            let salt = u128::from(n).to_be_bytes();
            length = signer.sign(&statement, &salt, &content)?.len();
        }
        let each = begun.elapsed() / SIGNED;
        figures.take(sign, each.as_secs_f64() * 1e6, "us");
        figures.take(overhead, (length - UPDATE) as f64 / UPDATE as f64, "ratio");
    }
    Ok(())
}

fn signer() -> Result<Signer> {
    Signer::from_seed(&[7; 32]).context("making a key")
}

/// Time of batched appends that are signed, over that of others.
fn append_ratio() -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let folder = tempfile::tempdir().context("making a folder for the databases")?;
    let signer = signer()?;
    let rate = |name: &str, signer: Option<&Signer>| {
        let path = folder.path().join(name);
        let url = format!("sqlite://{}", path.display());
        runtime.block_on(intake::publish(&url, folder.path(), BATCH, signer))
    };
    let plain = rate("plain.db", None)?;
    let signed = rate("signed.db", Some(&signer))?;
    eprintln!("appends a second: {plain:.0}, signed {signed:.0}");
    Ok(plain / signed)
}
