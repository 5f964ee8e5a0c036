//! The summary of a run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::board::Board;
use crate::latency::Percentiles;
use crate::position::{ViaCounts, Violations};

/// Measured use of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measurement {
    /// Time of the measurement.
    pub time: Duration,
    /// Processor time in it.
    pub cpu: Duration,
    /// Resident memory at its end, in bytes.
    pub resident: u64,
    /// The same before the first receiver was started.
    pub resident_before: u64,
}

/// Numbers of receivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Receivers {
    /// Started.
    pub started: u64,
    /// Served at the end.
    pub served: u64,
    /// Refused for good.
    pub refused: u64,
    /// Left by intention, and came back.
    pub returned: u64,
}

/// Updates of the measurement per receiver, of all channels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Updates {
    /// Of the receiver with the fewest.
    pub min: u64,
    /// Of half of the receivers at most.
    pub median: u64,
    /// Of the receiver with the most.
    pub max: u64,
    /// Most, per second.
    pub per_second: f64,
}

/// Use of the machine by this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Duration of the measurement, in seconds.
    pub measured_s: f64,
    /// Processor time in it, in seconds.
    pub cpu_s: f64,
    /// The same per receiver.
    pub cpu_s_per_receiver: f64,
    /// Average number of busy cores.
    pub cores: f64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Growth of the resident memory per receiver, in bytes.
    pub resident_bytes_per_receiver: u64,
}

/// Outcome of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Reasons for exit code 1; none if every receiver got every update once, in order.
    pub failures: Vec<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Receivers.
    pub receivers: Receivers,
    /// Served receivers at the end, by channel and rung.
    pub rungs: BTreeMap<String, BTreeMap<String, u64>>,
    /// Updates of the measurement.
    pub updates: Updates,
    /// Updates of the whole run at all receivers, by path.
    pub via: ViaCounts,
    /// Broken promises of delivery.
    pub violations: Violations,
    /// From storing at the source to delivery, in ms, of live updates of the measurement.
    pub latency_ms: Percentiles,
    /// Moves to a worse rung, by rungs and cause.
    pub fall_backs: BTreeMap<String, u64>,
    /// Connections that failed or were lost, by reason.
    pub disconnections: BTreeMap<String, u64>,
    /// Refusals, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Use of the machine.
    pub cost: Cost,
}

impl Summary {
    /// Sums up; the receivers are still connected.
    #[must_use]
    pub fn new(board: &Board, started: u32, seed: u64, measurement: Measurement) -> Self {
        let totals = board.totals();
        let events = board.events();
        let mut violations = totals.violations;
        violations.behind = board.behind();
        let mut rungs: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for ((channel, rung), count) in totals.rungs {
            let of = rungs.entry(channel).or_default();
            of.insert(rung.to_string(), count);
        }
        let receivers = Receivers {
            started: started.into(),
            served: totals.served,
            refused: totals.refused,
            returned: events.returns,
        };
        let measured = board.measured(started as usize);
        let at = |index: usize| measured.get(index).copied().unwrap_or_default();
        let seconds = measurement.time.as_secs_f64().max(1e-3);
        let max = measured.last().copied().unwrap_or_default();
        let updates = Updates {
            min: at(0),
            median: at(measured.len().saturating_sub(1) / 2),
            max,
            per_second: max as f64 / seconds,
        };
        let count = f64::from(started).max(1.0);
        let cpu = measurement.cpu.as_secs_f64();
        let grown = measurement
            .resident
            .saturating_sub(measurement.resident_before);
        let cost = Cost {
            measured_s: measurement.time.as_secs_f64(),
            cpu_s: cpu,
            cpu_s_per_receiver: cpu / count,
            cores: cpu / seconds,
            resident_bytes: measurement.resident,
            resident_bytes_per_receiver: grown / u64::from(started.max(1)),
        };
        Summary {
            failures: failures(&receivers, &violations),
            seed,
            receivers,
            rungs,
            updates,
            via: totals.via,
            violations,
            latency_ms: board.latencies().percentiles(),
            fall_backs: events.fall_backs,
            disconnections: events.disconnections,
            refusals: events.refusals,
            cost,
        }
    }
}

fn failures(receivers: &Receivers, violations: &Violations) -> Vec<String> {
    let mut failures = Vec::new();
    if receivers.served < receivers.started {
        let Receivers {
            started, served, ..
        } = receivers;
        failures.push(format!("{served} of {started} receivers are served"));
    }
    let all = [
        (violations.missing, "left out without a word"),
        (violations.repeated, "delivered again or late"),
        (violations.wrong, "with wrong bytes"),
        (violations.gone, "gone at the source"),
        (violations.behind, "not delivered at the end"),
    ];
    let broken = all.into_iter().filter(|(count, _)| *count > 0);
    failures.extend(broken.map(|(count, what)| format!("updates {what}: {count}")));
    failures
}

/// Number of bytes in MiB or KiB.
fn bytes(count: u64) -> String {
    match count as f64 / 1024.0 {
        kib if kib >= 1024.0 => format!("{:.1} MiB", kib / 1024.0),
        kib => format!("{kib:.1} KiB"),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receivers {
            started,
            served,
            refused,
            returned,
        } = self.receivers;
        writeln!(
            f,
            "receivers    {started} started, {served} served, {refused} refused, {returned} left and \
             returned"
        )?;
        for (channel, rungs) in &self.rungs {
            let rungs = rungs.iter().map(|(rung, count)| format!("{count} {rung}"));
            let rungs = rungs.collect::<Vec<_>>().join(", ");
            writeln!(f, "rungs        {channel}: {rungs}")?;
        }
        let Updates {
            min,
            median,
            max,
            per_second,
        } = self.updates;
        writeln!(
            f,
            "updates      {min} min, {median} median, {max} max per receiver in {:.0} s \
             ({per_second:.1}/s)",
            self.cost.measured_s
        )?;
        let via = self.via;
        writeln!(
            f,
            "paths        {} flow, {} repaired, {} unicast",
            via.flow, via.repaired, via.unicast
        )?;
        let broken = self.violations;
        writeln!(
            f,
            "violations   {} missing, {} repeated, {} wrong, {} gone, {} behind",
            broken.missing, broken.repeated, broken.wrong, broken.gone, broken.behind
        )?;
        let latency = self.latency_ms;
        writeln!(
            f,
            "latency      p50 {} ms, p99 {} ms, max {} ms",
            latency.p50, latency.p99, latency.max
        )?;
        let lists = [
            ("fall-backs", &self.fall_backs),
            ("lost", &self.disconnections),
            ("refusals", &self.refusals),
        ];
        for (name, counts) in lists {
            if counts.is_empty() {
                writeln!(f, "{name:<12} none")?;
            }
            for (text, count) in counts {
                writeln!(f, "{name:<12} {count} × {text}")?;
            }
        }
        let cost = &self.cost;
        writeln!(
            f,
            "processor    {:.1} s ({:.2} cores), {:.1} ms per receiver",
            cost.cpu_s,
            cost.cores,
            cost.cpu_s_per_receiver * 1e3
        )?;
        writeln!(
            f,
            "memory       {}, {} per receiver",
            bytes(cost.resident_bytes),
            bytes(cost.resident_bytes_per_receiver)
        )?;
        if max == 0 {
            writeln!(
                f,
                "warning      nothing was published, so nothing was measured"
            )?;
        }
        writeln!(f, "seed         {}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_broken_promise_is_a_failure() {
        let receivers = Receivers {
            started: 3,
            served: 3,
            ..Receivers::default()
        };
        assert!(failures(&receivers, &Violations::default()).is_empty());
        let broken = Violations {
            missing: 1,
            repeated: 2,
            wrong: 3,
            gone: 4,
            behind: 5,
        };
        assert_eq!(failures(&receivers, &broken).len(), 5);
        let few = Receivers {
            served: 2,
            ..receivers
        };
        let text = failures(&few, &Violations::default()).join("; ");
        assert_eq!(text, "2 of 3 receivers are served");
    }

    #[test]
    fn costs_are_divided_by_receivers_and_seconds() {
        let board = Board::new(&["lore".to_owned()], 4);
        let measurement = Measurement {
            time: Duration::from_secs(10),
            cpu: Duration::from_secs(5),
            resident: 9 << 20,
            resident_before: 1 << 20,
        };
        let summary = Summary::new(&board, 4, 7, measurement);
        let cost = &summary.cost;
        assert_eq!((cost.cores, cost.cpu_s_per_receiver), (0.5, 1.25));
        assert_eq!(cost.resident_bytes_per_receiver, 2 << 20);
        let text = summary.to_string();
        assert!(
            text.contains("memory       9.0 MiB, 2.0 MiB per receiver"),
            "{text}"
        );
        assert!(text.contains("4 started, 0 served"), "{text}");
    }
}
