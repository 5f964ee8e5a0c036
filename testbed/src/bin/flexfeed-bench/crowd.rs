//! The source's state machine with up to a million members, in virtual time (`simulation::crowd`):
//! what the members' acknowledgements, losses and fall-backs cost.

use std::time::Duration;

use anyhow::{Context, Result};
use flexicast::source::Faults;
use serde::{Deserialize, Serialize};
use simulation::crowd::{Counts, Crowd, CrowdPlan, Meter, Part};

use crate::cpu::Stopwatch;
use crate::figures::Figures;

/// All figures of this file.
pub const NAMES: [&str; 5] = [
    "crowd_core_share_n1000",
    "crowd_core_share_n10000",
    "crowd_ack_ns_n1000",
    "crowd_ack_ns_n10000",
    "crowd_bytes_per_member_n10000",
];

/// Updates, and so packets, a second: 0.88 Mbit/s.
pub const RATE: u32 = 100;
/// Share of the members that lose multicast.
pub const CUT: f64 = 0.1;
/// Time between two samples after the cut.
const SAMPLE: Duration = Duration::from_millis(100);

/// Members, losses and shards of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Members of all shards.
    pub members: usize,
    /// Members of one shard.
    pub shard: usize,
    /// Loss of packets and of acknowledgements.
    pub loss: f64,
}

/// Results of one run, in units per second of flow.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Of what.
    pub cell: Cell,
    /// Acknowledgement delay that the source asks for, in ms.
    pub ack_delay_ms: f64,
    /// Acknowledgements.
    pub acks: f64,
    /// Their bytes.
    pub ack_bytes: f64,
    /// CPU seconds of each part of the work.
    pub cores: [f64; 6],
    /// CPU time of one acknowledgement, in ns.
    pub ack_ns: f64,
    /// Bytes of memory per member, at the end of the time.
    pub memory: f64,
    /// Repairs on unicast paths.
    pub repairs: f64,
    /// Their bytes.
    pub repair_bytes: f64,
    /// Packets that were sent again on the flow, by one shard on average.
    pub shared_repairs: f64,
    /// Members that fell back although multicast reached them.
    pub lost_members: f64,
    /// Consequences of a loss of multicast.
    pub surge: Surge,
}

/// Consequences of a loss of multicast by a part of the members.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Surge {
    /// Members that lost it.
    pub cut: f64,
    /// Time until nine tenths of them had fallen back, in ms.
    pub time_ms: f64,
    /// Sessions that moved in a second, at most.
    pub sessions: f64,
    /// Bytes to unicast paths in a second, at most.
    pub bytes: f64,
    /// The same in the last second of the run.
    pub bytes_after: f64,
}

impl Outcome {
    /// CPU seconds of all parts.
    pub fn total_cores(&self) -> f64 {
        self.cores.iter().sum()
    }
}

/// A stopwatch for each part.
struct Watches([Stopwatch; 6]);

impl Watches {
    fn new() -> Watches {
        Watches([Stopwatch::new(); 6])
    }

    fn seconds(&self) -> [f64; 6] {
        self.0.map(|watch| watch.total().as_secs_f64())
    }
}

impl Meter for Watches {
    fn time<T>(&mut self, part: Part, work: impl FnOnce() -> T) -> T {
        let at = Part::ALL.iter().position(|other| *other == part);
        match at.and_then(|at| self.0.get_mut(at)) {
            Some(watch) => watch.time(work),
            None => work(),
        }
    }
}

/// Measures what is asked for.
///
/// # Errors
/// When a receiver did not get every update.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    for members in [1_000, 10_000] {
        let outcome = run(Cell {
            members,
            shard: members,
            loss: 0.01,
        })?;
        let share = outcome.total_cores();
        figures.take(&format!("crowd_core_share_n{members}"), share, "cores");
        figures.take(&format!("crowd_ack_ns_n{members}"), outcome.ack_ns, "ns");
        let bytes = outcome.memory;
        figures.take(
            &format!("crowd_bytes_per_member_n{members}"),
            bytes,
            "bytes",
        );
    }
    Ok(())
}

/// Runs one cell: two delays and a second to begin with, a delay and two seconds that are measured,
/// and then multicast fails for a tenth of the members. With more than 100,000, it is a delay and
/// half a second each.
///
/// # Errors
/// When a receiver did not get every update.
pub fn run(cell: Cell) -> Result<Outcome> {
    let before = resident()?;
    let mut crowd = Crowd::new(CrowdPlan {
        members: cell.members,
        shards: cell.members.div_ceil(cell.shard),
        loss: cell.loss,
        rate: RATE,
        seed: 11,
        faults: Faults::default(),
    })?;
    let delay = crowd.ack_delay();
    let mut watches = Watches::new();
    let many = cell.members > 100_000;
    let half = Duration::from_millis(500);
    crowd.run(
        if many {
            half + delay
        } else {
            half * 2 + delay * 2
        },
        &mut watches,
    )?;
    let time = if many { half + delay } else { half * 4 + delay };
    let start = crowd.counts();
    watches = Watches::new();
    crowd.run(time, &mut watches)?;
    let steady = crowd.counts() - start;
    let cores = watches.seconds().map(|s| s / time.as_secs_f64());
    let surge = surge(&mut crowd, delay)?;
    crowd.settle(Duration::from_secs(5) + delay * 10, &mut watches)?;
    crowd.drop_receivers();
    let with = resident()?;
    let shards = cell.members.div_ceil(cell.shard) as f64;
    drop(crowd);
    let memory = with.saturating_sub(resident()?.max(before)) as f64 / cell.members as f64;
    let rate = |count: u64| count as f64 / time.as_secs_f64();
    let acks = rate(steady.acks);
    let outcome = Outcome {
        cell,
        ack_delay_ms: delay.as_secs_f64() * 1e3,
        acks,
        ack_bytes: rate(steady.ack_bytes),
        cores,
        ack_ns: cores[2] * 1e9 / (acks * (1.0 - cell.loss)),
        memory,
        repairs: rate(steady.streams),
        repair_bytes: rate(steady.stream_bytes),
        shared_repairs: rate(steady.shared_repairs) / shards,
        lost_members: rate(steady.fall_backs),
        surge,
    };
    eprintln!("{outcome:?}");
    Ok(outcome)
}

/// Cuts a part of the members off.
fn surge(crowd: &mut Crowd, delay: Duration) -> Result<Surge> {
    let before = crowd.counts();
    let members = crowd.members() as f64;
    crowd.cut(CUT);
    // Three delays with their jitter, two round trips, and a second.
    let time = Duration::from_millis(1_500) + delay * 4;
    let samples = time.as_millis() / SAMPLE.as_millis();
    let mut watches = Watches::new();
    let mut seen: Vec<Counts> = vec![before];
    for _ in 0..samples {
        crowd.run(SAMPLE, &mut watches)?;
        seen.push(crowd.counts());
    }
    let per_second = 1.0 / SAMPLE.as_secs_f64();
    let most = |value: fn(Counts) -> u64| {
        let steps = seen.windows(2).map(|pair| value(pair[1] - pair[0]));
        steps.max().unwrap_or(0) as f64 * per_second
    };
    let cut = members * CUT;
    let moved = |counts: &&Counts| (counts.fall_backs - before.fall_backs) as f64 >= cut * 0.9;
    let took = seen.iter().take_while(|counts| !moved(counts)).count();
    let end = crowd.counts();
    let last = seen.iter().rev().nth(10).map_or(end, |then| end - *then);
    Ok(Surge {
        cut,
        time_ms: took as f64 * SAMPLE.as_secs_f64() * 1e3,
        sessions: most(|counts| counts.fall_backs),
        bytes: most(|counts| counts.stream_bytes),
        bytes_after: last.stream_bytes as f64,
    })
}

/// Returns the resident memory of this process in bytes, without what is free.
fn resident() -> Result<u64> {
    // SAFETY: glibc's malloc is the allocator here, and the call has no other effect than to return
    // free memory.
    unsafe { libc::malloc_trim(0) };
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.context("no resident memory")?.split_whitespace();
    let kib: u64 = words.take(1).collect::<String>().parse()?;
    Ok(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_crowd_is_measured_whole() {
        let outcome = run(Cell {
            members: 200,
            shard: 100,
            loss: 0.01,
        })
        .unwrap();
        // Each acknowledges once in 25 ms and half an interval of packets, or a little later.
        let expected = 200.0 / 0.030;
        assert!((outcome.acks / expected - 1.0).abs() < 0.06, "{outcome:?}");
        assert!(outcome.total_cores() > 0.0 && outcome.ack_ns > 0.0);
        assert!(outcome.repairs > 150.0 && outcome.repairs < 260.0);
        let surge = outcome.surge;
        assert_eq!(surge.cut, 20.0);
        assert!(surge.time_ms > 100.0 && surge.time_ms < 500.0);
        // 20 receivers, 100 updates a second and a little more than their bytes.
        let bytes = 20.0 * 100.0 * 1_100.0;
        assert!(surge.bytes_after > bytes && surge.bytes_after < bytes * 1.5);
    }
}
