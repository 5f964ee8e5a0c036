//! CPU time of the calling thread: what a ratio of costs is made of. Time in which the thread did
//! not run does not count.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of all threads of this process, those that have ended included.
pub fn process_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Returns the CPU time of this process's thread with that name.
///
/// # Errors
/// When there is none, or the kernel does not say.
pub fn thread_time_of(name: &str) -> Result<Duration> {
    for entry in std::fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == name {
            let text = std::fs::read_to_string(path.join("schedstat"))?;
            let ns = text.split(' ').next().context("an empty schedstat")?;
            return Ok(Duration::from_nanos(ns.parse()?));
        }
    }
    bail!("there is no thread {name}")
}

/// Adds up the CPU time of pieces of work.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    total: Duration,
    /// Time that the clock itself adds to each piece.
    overhead: Duration,
}

impl Stopwatch {
    /// A stopwatch that knows what reading the clock costs here: the median of many readings.
    pub fn new() -> Self {
        let mut costs: Vec<Duration> = (0..1001)
            .map(|_| {
                let start = thread_time();
                thread_time().saturating_sub(start)
            })
            .collect();
        costs.sort_unstable();
        Stopwatch {
            total: Duration::ZERO,
            overhead: costs[costs.len() / 2],
        }
    }

    /// Does a piece of work and adds its CPU time, without what reading the clock costs.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = thread_time();
        let out = work();
        let spent = thread_time().saturating_sub(start);
        self.total += spent.saturating_sub(self.overhead);
        out
    }

    /// Returns the sum.
    pub fn total(self) -> Duration {
        self.total
    }
}
