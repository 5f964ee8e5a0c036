//! Cost of the authentication types of MCQUIC (its section 4.2), against a flow without them, at
//! both ends, without sockets.

use anyhow::Result;
use flexicast::authentication::PacketAuthentication;
use flexicast::protect::Algorithm;
use serde::{Deserialize, Serialize};

use crate::figures::{Figures, median};
use crate::parcel::{PIECE, Parcel};
use crate::receiving::{Ends, FlowCost, Setup, by_flow};

/// All figures of this file.
pub const NAMES: [&str; 10] = [
    "auth_signature_vs_plain",
    "auth_tags_vs_plain_n1",
    "auth_tags_vs_plain_n10",
    "auth_tags_vs_plain_n30",
    "auth_tags_vs_plain_n100",
    "auth_stream_vs_plain",
    "auth_recv_signature_vs_plain",
    "auth_recv_tags_vs_plain_n1",
    "auth_recv_tags_vs_plain_n100",
    "auth_recv_stream_vs_plain",
];

/// Numbers of receivers of the figures.
const SIZES: [usize; 4] = [1, 10, 30, 100];
/// Bytes that the receivers of a run get together, and each of them at most.
const ALL: usize = 100_000_000;
const EACH: usize = 10_000_000;
const RUNS: usize = 5;

/// Authentication type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Type {
    /// A signature behind each packet (`MC_A`).
    Signature,
    /// A tag for each receiver (`MC_Y`).
    Tags,
    /// A signature of each update as a whole (`MC_S`).
    Stream,
}

/// Goodput with a type, as a part of that without.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ratios {
    /// Of making the packets.
    pub made: f64,
    /// Of receiving them.
    pub received: f64,
}

fn setup(kind: Type, receivers: usize) -> Setup {
    let mut setup = Setup {
        receivers,
        ..Setup::plain(Algorithm::Aes128Gcm)
    };
    match kind {
        Type::Signature => setup.packets = Some(PacketAuthentication::Signature),
        Type::Tags => setup.packets = Some(PacketAuthentication::Tags),
        Type::Stream => setup.packets = Some(PacketAuthentication::Stream),
    }
    setup
}

/// Delivers `bytes` as updates of `size` bytes, with the type and without.
///
/// # Errors
/// When a receiver did not get the bytes.
pub fn side_by_side(kind: Type, receivers: usize, bytes: usize, size: usize) -> Result<Ratios> {
    let parcel = Parcel::new(bytes);
    let plain = Setup {
        receivers,
        ..Setup::plain(Algorithm::Aes128Gcm)
    };
    let plain = by_flow(Ends::joined(plain)?, &parcel, size, 1)?;
    let with = by_flow(Ends::joined(setup(kind, receivers))?, &parcel, size, 1)?;
    let ratio = |of: fn(&FlowCost) -> f64| of(&plain) / of(&with);
    let ratios = Ratios {
        made: ratio(|cost| cost.made.as_secs_f64()),
        received: ratio(|cost| cost.received.time.as_secs_f64()),
    };
    eprintln!("{kind:?}, {receivers} receivers, {size} bytes: {ratios:.3?}");
    Ok(ratios)
}

/// Returns the medians of some runs with updates of `size` bytes.
///
/// # Errors
/// When a receiver did not get the bytes.
pub fn ratios(kind: Type, receivers: usize, size: usize, runs: usize) -> Result<Ratios> {
    // Each update is a step of all ends, which small ones make many of.
    let bytes = (ALL / receivers).min(EACH).min(size.saturating_mul(10_000));
    let runs = (0..runs).map(|_| side_by_side(kind, receivers, bytes, size));
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let of = |value: fn(&Ratios) -> f64| median(runs.iter().map(value).collect());
    Ok(Ratios {
        made: of(|ratios| ratios.made),
        received: of(|ratios| ratios.received),
    })
}

/// Measures what is asked for.
///
/// # Errors
/// When a receiver did not get the bytes.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let single = [(Type::Signature, "signature"), (Type::Stream, "stream")];
    for (kind, name) in single {
        take(figures, kind, 1, &format!("{name}_vs_plain"))?;
    }
    for receivers in SIZES {
        let name = format!("tags_vs_plain_n{receivers}");
        take(figures, Type::Tags, receivers, &name)?;
    }
    Ok(())
}

/// Measures a type for both ends, of whose figures some may be none of this file's.
fn take(figures: &mut Figures, kind: Type, receivers: usize, name: &str) -> Result<()> {
    let (made, received) = (format!("auth_{name}"), format!("auth_recv_{name}"));
    let known = [made, received].into_iter();
    let known: Vec<_> = known.filter(|name| NAMES.contains(&&name[..])).collect();
    if !figures.wants(&known) {
        return Ok(());
    }
    let ratios = ratios(kind, receivers, PIECE, RUNS)?;
    for (name, value) in known.iter().zip([ratios.made, ratios.received]) {
        figures.take(name, value, "ratio");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_receivers_get_the_bytes_by_each_type() {
        for kind in [Type::Signature, Type::Tags, Type::Stream] {
            let ratios = side_by_side(kind, 3, 300_000, 50_000).unwrap();
            assert!(ratios.made > 0.0 && ratios.made < 1.0, "{kind:?}");
        }
    }

    #[test]
    fn the_names_are_those_that_are_measured() {
        let mut figures = Figures::new("none of them".into());
        measure(&mut figures).unwrap();
        for receivers in SIZES {
            let name = format!("auth_tags_vs_plain_n{receivers}");
            assert!(NAMES.contains(&&name[..]), "{name}");
        }
    }
}
