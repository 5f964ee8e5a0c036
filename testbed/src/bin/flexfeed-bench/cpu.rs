//! CPU time of the calling thread: what a ratio of costs is made of. Time in which the thread did not run does not count.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Adds up the CPU time of pieces of work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stopwatch {
    total: Duration,
}

impl Stopwatch {
    /// Does a piece of work and adds its CPU time. Reading the clock costs about a quarter of a microsecond, so a piece should be many packets.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = thread_time();
        let out = work();
        self.total += thread_time().saturating_sub(start);
        out
    }

    /// What was added up.
    pub fn total(self) -> Duration {
        self.total
    }
}
