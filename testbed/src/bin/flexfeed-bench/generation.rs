//! The source's cost of making a stream's packets for n receivers: by a flow, against unicast
//! quiche.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::figures::{Figures, median};
use crate::pair::Maker;
use crate::parcel::Parcel;
use crate::{flow, unicast};

/// Numbers of receivers, runs per median, and bytes of the stream that every receiver gets: fewer
/// where there are many receivers, for each of whose connections quiche makes all of its packets.
const SIZES: [(usize, usize, usize); 5] = [
    (1, 9, 100_000_000),
    (10, 5, 100_000_000),
    (50, 3, 100_000_000),
    (200, 3, 20_000_000),
    (1000, 3, 10_000_000),
];

/// All figures of this file.
pub const NAMES: [&str; 20] = [
    "gen_vs_quiche_n1",
    "gen_vs_quiche_n10",
    "gen_vs_quiche_n50",
    "gen_vs_quiche_n200",
    "gen_vs_quiche_n1000",
    "gen_with_acks_vs_quiche_n1",
    "gen_with_acks_vs_quiche_n10",
    "gen_with_acks_vs_quiche_n50",
    "gen_with_acks_vs_quiche_n200",
    "gen_with_acks_vs_quiche_n1000",
    "gen_flow_ns_n1",
    "gen_flow_ns_n10",
    "gen_flow_ns_n50",
    "gen_flow_ns_n200",
    "gen_flow_ns_n1000",
    "gen_quiche_ns_n1",
    "gen_quiche_ns_n10",
    "gen_quiche_ns_n50",
    "gen_quiche_ns_n200",
    "gen_quiche_ns_n1000",
];

/// CPU time that one side took for one stream.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// To make the packets.
    pub generate: Duration,
    /// To take in the receivers' acknowledgements.
    pub acks: Duration,
    /// Number of packets that were made.
    pub packets: u64,
    /// Number of packets with acknowledgements.
    pub ack_packets: u64,
    /// Their bytes.
    pub ack_bytes: u64,
}

impl Cost {
    fn ns_per_packet(self) -> f64 {
        self.generate.as_nanos() as f64 / self.packets as f64
    }

    fn seconds_with_acks(self) -> f64 {
        (self.generate + self.acks).as_secs_f64()
    }
}

/// Measures what is asked for.
///
/// # Errors
/// When one of the sides did not deliver what it was given.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let kinds = [
        "gen_vs_quiche",
        "gen_with_acks_vs_quiche",
        "gen_flow_ns",
        "gen_quiche_ns",
    ];
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    for (receivers, runs, bytes) in SIZES {
        let names = kinds.map(|kind| format!("{kind}_n{receivers}"));
        if !figures.wants(&names) {
            continue;
        }
        let parcel = Parcel::new(bytes);
        let mut taken = kinds.map(|_| Vec::new());
        for run in 1..=runs {
            let (flow, quiche) = side_by_side(receivers, &parcel)?;
            eprintln!(
                "{receivers} receivers, run {run} of {runs}: flow {:.0?} + acknowledgements \
                 {:.0?}, quiche {:.0?} + {:.0?}",
                flow.generate, flow.acks, quiche.generate, quiche.acks
            );
            let values = [
                quiche.generate.as_secs_f64() / flow.generate.as_secs_f64(),
                quiche.seconds_with_acks() / flow.seconds_with_acks(),
                flow.ns_per_packet(),
                quiche.ns_per_packet(),
            ];
            for (taken, value) in taken.iter_mut().zip(values) {
                taken.push(value);
            }
        }
        for ((name, values), unit) in names
            .into_iter()
            .zip(taken)
            .zip(["ratio", "ratio", "ns", "ns"])
        {
            figures.take(&name, median(values), unit);
        }
    }
    Ok(())
}

/// The flow, and then quiche, with the same AEAD.
pub fn side_by_side(receivers: usize, parcel: &Parcel) -> Result<(Cost, Cost)> {
    let mut maker = Maker::new()?;
    let connected: Result<Vec<_>> = (0..receivers).map(|_| maker.connect()).collect();
    let (clients, algorithms): (Vec<_>, Vec<_>) = connected?.into_iter().unzip();
    let algorithm = algorithms.first().copied().unwrap_or_default();
    ensure!(
        algorithms.iter().all(|a| *a == algorithm),
        "the benchmark's connections negotiated different ciphers"
    );
    let flow = flow::deliver(receivers, algorithm, parcel)?;
    let quiche = unicast::deliver(clients, parcel)?;
    for (side, packets, copies) in [
        ("flow", flow.packets, 1),
        ("quiche", quiche.packets, receivers),
    ] {
        let payload = parcel.len() as f64 * copies as f64 / packets as f64;
        ensure!(
            payload > 1100.0 || parcel.len() < 1_000_000,
            "the {side}'s packets carry only {payload:.0} bytes on average: this compares nothing"
        );
    }
    Ok((flow, quiche))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_deliver_to_every_receiver() {
        let parcel = Parcel::new(1_500_000);
        let (flow, quiche) = side_by_side(3, &parcel).unwrap();
        assert!(flow.packets >= 1_500_000 / 1200);
        assert!(
            quiche.packets > 2 * flow.packets,
            "each of three gets its own"
        );
        assert!(flow.acks > Duration::ZERO && quiche.acks > Duration::ZERO);
    }

    #[test]
    fn the_names_are_those_that_are_measured() {
        let mut names = Vec::new();
        for kind in [
            "gen_vs_quiche",
            "gen_with_acks_vs_quiche",
            "gen_flow_ns",
            "gen_quiche_ns",
        ] {
            names.extend(SIZES.map(|(receivers, ..)| format!("{kind}_n{receivers}")));
        }
        assert_eq!(names, NAMES);
    }
}
