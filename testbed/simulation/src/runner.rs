//! Many seeds, on several threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{Fault, Report, Script, Violation, play, run_twice};

/// Options of a batch of runs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seeds to run.
    pub seeds: Range<u64>,
    /// Runs in parallel.
    pub threads: usize,
    /// Each so-manieth seed is played twice and must be the same; 0 for none.
    pub twice: u64,
    /// Injected fault.
    pub fault: Option<Fault>,
    /// After so many violations the rest is not run.
    pub most_violations: usize,
}

/// Progress of a batch.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub runs: u64,
    /// All seeds below this one are done.
    pub done_below: u64,
    /// Real time.
    pub took: Duration,
    /// Receivers, virtual time, events, updates, packets, and keys of all runs together.
    pub receivers: usize,
    /// Virtual time of all runs together.
    pub time: Duration,
    /// Events of all runs together.
    pub events: u64,
    /// Updates that applications took.
    pub updates: u64,
    /// Flow packets.
    pub packets: u64,
    /// Keys that were handed out.
    pub keys: u64,
    /// Other event counts over all runs.
    pub seen: BTreeMap<String, u64>,
    /// The seed that took longest in real time, and how long.
    pub slowest: (u64, Duration),
    /// Broken promises.
    pub violations: Vec<Violation>,
}

struct Progress {
    next: u64,
    /// Seeds under way.
    running: Vec<u64>,
    summary: Summary,
    shown: Instant,
}

impl Progress {
    fn take(&mut self, plan: &Plan) -> Option<u64> {
        let enough = self.summary.violations.len() >= plan.most_violations;
        if enough || self.next >= plan.seeds.end {
            return None;
        }
        let seed = self.next;
        self.next += 1;
        self.running.push(seed);
        Some(seed)
    }

    fn done(&mut self, seed: u64, took: Duration, result: Result<Report, Violation>) {
        self.running.retain(|s| *s != seed);
        let running = self.running.iter().min().copied();
        let summary = &mut self.summary;
        summary.runs += 1;
        summary.done_below = running.unwrap_or(self.next);
        summary.slowest = summary.slowest.max_by_time((seed, took));
        match result {
            Ok(report) => {
                summary.receivers += report.receivers;
                summary.time += report.time;
                summary.events += report.events;
                summary.updates += report.updates;
                summary.packets += report.packets;
                summary.keys += report.keys;
                for (what, times) in report.seen {
                    *summary.seen.entry(what).or_default() += times;
                }
            }
            Err(violation) => summary.violations.push(violation),
        }
    }
}

trait MaxByTime {
    fn max_by_time(self, other: Self) -> Self;
}

impl MaxByTime for (u64, Duration) {
    fn max_by_time(self, other: Self) -> Self {
        if other.1 > self.1 { other } else { self }
    }
}

/// Runs all seeds of a plan. `show` is called every few seconds, and for each violation as it is
/// found.
pub fn run(plan: &Plan, show: impl Fn(&Summary, Option<&Violation>) + Sync) -> Summary {
    const SHOW_EVERY: Duration = Duration::from_secs(5);
    let begun = Instant::now();
    let progress = Mutex::new(Progress {
        next: plan.seeds.start,
        running: Vec::new(),
        summary: Summary {
            done_below: plan.seeds.start,
            ..Summary::default()
        },
        shown: begun,
    });
    // A thread that panicked outside of a run left the numbers as they were.
    let lock = || progress.lock().unwrap_or_else(|e| e.into_inner());
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = lock().take(plan) else {
                        return;
                    };
                    let started = Instant::now();
                    let result = if plan.twice > 0 && seed % plan.twice == 0 {
                        run_twice(seed, plan.fault)
                    } else {
                        play(Script::random(seed), plan.fault, false)
                    };
                    let mut progress = lock();
                    progress.done(seed, started.elapsed(), result);
                    progress.summary.took = begun.elapsed();
                    let found = progress.summary.violations.last();
                    if let Some(violation) = found.filter(|v| v.seed == seed) {
                        show(&progress.summary, Some(violation));
                    } else if progress.shown.elapsed() >= SHOW_EVERY {
                        progress.shown = Instant::now();
                        show(&progress.summary, None);
                    }
                }
            });
        }
    });
    let mut progress = progress.into_inner().unwrap_or_else(|e| e.into_inner());
    progress.summary.took = begun.elapsed();
    progress.summary
}
