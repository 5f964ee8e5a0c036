//! Figure 5 of the paper: goodput per receiver against their number.

mod sends;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::chart::{Axis, Chart, Line, short};
use super::document::Document;
use crate::figures::median;
use crate::generation::{Cost, side_by_side};
use crate::parcel::Parcel;
use crate::replicated::{self, LARGE, Load};

/// Numbers of receivers.
const SIZES: [usize; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];
/// Bytes to all receivers of one run of generation, and at least to each.
const STREAM: usize = 20_000_000;
const LEAST: usize = 614_400;
/// Runs for each median.
const RUNS: usize = 3;
/// The paper's offered rate.
const OFFERED: f64 = 80e6;
/// Receivers of QUIC acknowledge every second packet (RFC 9000 section 13.2.2), and so do the
/// paper's of a flow without a delay.
const PACKETS_PER_ACK: f64 = 2.0;
/// Seconds between the acknowledgements of one receiver with the paper's delay.
const FC5: f64 = 0.005;

/// Costs with one number of receivers, in ns of CPU time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    receivers: usize,
    /// Bits of updates in a packet.
    payload: f64,
    /// Making a packet of the flow.
    flow: f64,
    /// Making a packet of quiche's.
    quiche: f64,
    /// Taking in an acknowledgement of a member, without the socket.
    flow_ack: f64,
    /// The same of a client of quiche.
    quiche_ack: f64,
    /// Bytes of UDP payload of a member's acknowledgement.
    ack_bytes: f64,
    /// Making and sending a packet of quiche's to one receiver.
    unicast: f64,
    /// A replicated packet, for each receiver.
    replicated: f64,
    /// Sending a packet to a group.
    group: f64,
    /// Copying a packet's bytes.
    copy: f64,
    /// Reading an acknowledgement from a socket and sending the answer.
    socket_ack: f64,
}

/// Measures all points.
///
/// # Errors
/// When a side did not deliver what it was given.
pub fn measure() -> Result<Vec<Point>> {
    SIZES
        .iter()
        .map(|receivers| measure_at(*receivers))
        .collect()
}

fn measure_at(receivers: usize) -> Result<Point> {
    let parcel = Parcel::new((STREAM / receivers).max(LEAST));
    let mut taken: [Vec<f64>; 9] = Default::default();
    let (mut payload, mut ack_bytes) = (0.0, 0.0);
    let load = Load {
        receivers,
        bytes: LARGE,
        updates: (5_000 / receivers).clamp(6, 100),
        runs: 1,
    };
    for _ in 0..RUNS {
        let (flow, quiche) = side_by_side(receivers, &parcel)?;
        payload = parcel.len() as f64 * 8.0 / flow.packets as f64;
        ack_bytes = flow.ack_bytes as f64 / flow.ack_packets as f64;
        let sent = replicated::side_by_side(load)?;
        let per_ack = |cost: Cost| cost.acks.as_nanos() as f64 / cost.ack_packets as f64;
        let made = |cost: Cost| cost.generate.as_nanos() as f64 / cost.packets as f64;
        let values = [
            made(flow),
            made(quiche),
            per_ack(flow),
            per_ack(quiche),
            sent.unicast.ns_per_packet(),
            sent.replicated.ns_per_packet(),
            sends::to_group(load.updates)?,
            sends::copy(load.updates)?,
            sends::acknowledgements(receivers, ack_bytes as usize)?,
        ];
        for (taken, value) in taken.iter_mut().zip(values) {
            taken.push(value);
        }
    }
    let [
        flow,
        quiche,
        flow_ack,
        quiche_ack,
        unicast,
        replicated,
        group,
        copy,
        socket_ack,
    ] = taken.map(median);
    let point = Point {
        receivers,
        payload,
        flow,
        quiche,
        flow_ack,
        quiche_ack,
        ack_bytes,
        unicast,
        replicated,
        group,
        copy,
        socket_ack,
    };
    eprintln!("{point:?}");
    Ok(point)
}

impl Point {
    fn members(self) -> f64 {
        self.receivers as f64
    }

    /// Bit/s of updates to each receiver that one core gives, where a packet to all of them costs
    /// so much.
    fn goodput(self, cost: f64) -> f64 {
        self.payload * 1e9 / cost
    }

    /// Acknowledgements of a receiver per packet with the delay of the paper's `FC-5`, at the
    /// paper's rate.
    fn delayed_acks(self) -> f64 {
        self.payload / OFFERED / FC5
    }

    fn acks(self, per_packet: f64) -> f64 {
        self.members() * per_packet * (self.flow_ack + self.socket_ack)
    }

    /// Costs of a packet to all receivers: generation only.
    fn generation(self) -> [f64; 3] {
        [self.copy, self.members() * self.quiche, self.flow]
    }

    /// The same with sends and acknowledgements.
    fn real(self) -> [f64; 5] {
        let every_second = 1.0 / PACKETS_PER_ACK;
        let quiche_acks = self.members() * every_second * (self.quiche_ack + self.socket_ack);
        [
            self.copy + self.group,
            self.members() * self.unicast + quiche_acks,
            self.flow + self.group + self.acks(every_second),
            self.flow + self.group + self.acks(self.delayed_acks()),
            self.members() * self.replicated + self.acks(self.delayed_acks()),
        ]
    }

    /// Bit/s of acknowledgements from all receivers at the paper's rate.
    fn ack_rate(self, per_packet: f64) -> f64 {
        // With the headers of UDP and IP, as on a link.
        let bits = (self.ack_bytes + 28.0) * 8.0;
        OFFERED / self.payload * per_packet * self.members() * bits
    }
}

const GENERATION: [&str; 3] = ["plain UDP: a copy", "unicast QUIC", "flow"];
const REAL: [&str; 5] = [
    "plain UDP",
    "unicast QUIC",
    "FC",
    "FC-5",
    "FC-msg, delay 5 ms",
];
/// The paper's QUIC on 64 threads: what is offered, or 20 Gbit/s to all together.
const THEIR_QUIC: f64 = 20e9;
/// The paper's flows with 1,000 receivers, all together: `FC`, `FC-5`.
const THEIR_FLOWS: [(&str, f64); 2] = [("FC", 78e9), ("FC-5", 80e9)];

fn line(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        name: name.to_owned(),
        colour,
        dashed: false,
        marked: true,
        points,
    }
}

fn theirs(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        dashed: true,
        marked: false,
        ..line(&format!("paper: {name}, 64 threads"), colour, points)
    }
}

/// Draws the figure and writes its tables.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(points: &[Point], document: &mut Document) -> Result<()> {
    let of = |value: &dyn Fn(&Point) -> f64| -> Vec<(f64, f64)> {
        points.iter().map(|p| (p.members(), value(p))).collect()
    };
    let receivers = || Axis::log("receivers", (1.0, 1_000.0));
    let goodput = || Axis::log("goodput of each receiver (bit/s), one core", (1e5, 1e12));
    let generation = (0..GENERATION.len()).map(|at| {
        let value = |p: &Point| p.goodput(p.generation()[at]);
        line(GENERATION[at], at, of(&value))
    });
    let mut real: Vec<Line> = (0..REAL.len())
        .map(|at| line(REAL[at], at, of(&|p: &Point| p.goodput(p.real()[at]))))
        .collect();
    real.push(theirs(
        "QUIC",
        1,
        of(&|p| OFFERED.min(THEIR_QUIC / p.members())),
    ));
    for ((name, all), colour) in THEIR_FLOWS.into_iter().zip(2..) {
        // They offer 80 Mbit/s and report the sum of 1,000 receivers.
        real.push(theirs(name, colour, of(&|_| OFFERED.min(all / 1_000.0))));
    }
    let acks = vec![
        line("FC", 2, of(&|p| p.ack_rate(1.0 / PACKETS_PER_ACK))),
        line("FC-5", 3, of(&|p| p.ack_rate(p.delayed_acks()))),
        theirs("FC", 2, vec![(200.0, 1.4e9), (1_000.0, 1.4e9)]),
        theirs("FC-5, at most", 3, vec![(500.0, 200e6), (1_000.0, 200e6)]),
    ];
    let charts = [
        Chart {
            title: "Making packets".to_owned(),
            x: receivers(),
            y: goodput(),
            lines: generation.collect(),
        },
        Chart {
            title: "With sends on loopback and acknowledgements".to_owned(),
            x: receivers(),
            y: goodput(),
            lines: real,
        },
        Chart {
            title: "Acknowledgements at 80 Mbit/s".to_owned(),
            x: receivers(),
            y: Axis::log("from all receivers (bit/s)", (1e4, 1e10)),
            lines: acks,
        },
    ];
    document.draw("goodput", &charts)?;
    let head = ["Receivers"].into_iter().chain(GENERATION).chain(REAL);
    let mut rows = vec![head.map(str::to_owned).collect()];
    for point in points {
        let costs = point.generation().into_iter().chain(point.real());
        let values = costs.map(|cost| short(point.goodput(cost)));
        let mut row = vec![point.receivers.to_string()];
        row.extend(values);
        rows.push(row);
    }
    document.set_table("goodput", &rows)?;
    let head = [
        "Receivers",
        "make: flow",
        "make: quiche",
        "make and send: quiche",
        "replicate",
        "send to a group",
        "take in an ack: flow",
        "take in an ack: quiche",
        "ack by the socket",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for p in points {
        let costs = [
            p.flow,
            p.quiche,
            p.unicast,
            p.replicated,
            p.group,
            p.flow_ack,
            p.quiche_ack,
            p.socket_ack,
        ];
        let mut row = vec![p.receivers.to_string()];
        row.extend(costs.map(|cost| format!("{cost:.0}")));
        rows.push(row);
    }
    document.set_table("goodput costs", &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parcel::UDP_PAYLOAD;

    #[test]
    fn every_side_delivers_and_costs_something() {
        let point = measure_at(2).unwrap();
        assert!(point.payload > 1_100.0 * 8.0 && point.payload < UDP_PAYLOAD as f64 * 8.0);
        for cost in point.generation().into_iter().chain(point.real()) {
            assert!(cost > 0.0, "{point:?}");
        }
        let [udp, _, flow, delayed, _] = point.real();
        assert!(udp < delayed && delayed < flow, "{point:?}");
        assert!(point.ack_rate(0.5) > point.ack_rate(point.delayed_acks()));
    }
}
