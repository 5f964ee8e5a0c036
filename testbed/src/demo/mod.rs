//! The demonstration: one source, three receivers with good, no and unreliable multicast, and a
//! view of what happens.

mod live;
mod stop;
mod verdict;
mod view;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::Binaries;
use crate::lab::Multicast;
use crate::readers::Reader;
use crate::scenario::{FeedPlan, PATIENCE, Plan, SeatPlan, Stage, require_no_panic};
use crate::waiting::pause;
use live::{FoundFeed, LiveFeed};
use stop::StopSignal;
use view::View;

/// The receiver that multicast always reaches.
pub const GOOD: &str = "multicast";
/// The receiver that multicast never reaches.
pub const BLOCKED: &str = "blocked";
/// The receiver whose multicast is cut and restored again and again.
pub const CUT: &str = "cut";

/// The time from one cut to the next.
const CUT_EVERY: Duration = Duration::from_secs(20);
/// When the cut begins in each of these periods; it lasts to the end of the period less what is
/// left for the return.
const CUT_AT: Duration = Duration::from_secs(8);
/// When the cut ends in each period.
const RESTORED_AT: Duration = Duration::from_secs(16);

/// Minimum of updates that a timed demo with the generated feed has to bring.
const LEAST_UPDATES: u32 = 100;

/// Entries a second of the generated feed, unless a short run needs more.
const RATE: f64 = 3.0;

/// Options of the demo.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Run for so long and judge what arrived; without it, run until Ctrl-C.
    pub time: Option<Duration>,
    /// Take this feed instead of a generated one.
    pub feed: Option<String>,
}

/// End of a demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoEnd {
    /// The time was over and everything was as promised.
    Proven,
    /// The user ended it.
    Stopped,
}

/// Runs the demo. Everything that it made is gone when this returns, except, after a failure, the
/// run folder.
///
/// # Errors
/// When something does not start, a service ends by itself, or the judgement at the end is not
/// good.
pub fn run(options: &Options) -> Result<DemoEnd> {
    let shortest = CUT_EVERY;
    if let Some(time) = options.time {
        ensure!(
            time >= shortest,
            "DEMO_SECONDS={}: at least {} are needed to see a fall-back and a return",
            time.as_secs(),
            shortest.as_secs()
        );
        // Not found out only after a minute.
        Reader::find()?;
    }
    let found = options.feed.as_deref().map(FoundFeed::find).transpose()?;
    let stop = StopSignal::install()?;
    println!("starting: a switch, a source and three receivers, each in a network of its own …");
    let mut stage = Stage::up_with(plan(options), &Binaries::of_demo()?)?;
    let result = play(&mut stage, options, found, &stop);
    match result {
        Ok(DemoEnd::Proven) => {
            stage.end()?;
            require_no_panic(&stage.logs())?;
            stage.discard();
            Ok(DemoEnd::Proven)
        }
        Ok(DemoEnd::Stopped) => {
            // Whatever is in the way of an orderly end, the user wants it gone.
            let ended = stage.end();
            stage.discard();
            ended.map(|()| DemoEnd::Stopped)
        }
        Err(error) => {
            // The error itself comes last, where it is read.
            eprintln!("{}", stage.describe());
            Err(error)
        }
    }
}

fn plan(options: &Options) -> Plan {
    let mut plan = Plan::new("demo", None);
    let seat = |name, multicast| SeatPlan {
        multicast,
        ..SeatPlan::new(name)
    };
    plan.seats = vec![
        seat(GOOD, Multicast::Open),
        seat(BLOCKED, Multicast::Cut),
        seat(CUT, Multicast::Open),
    ];
    plan.feed = match options.feed {
        None => FeedPlan::Generated {
            seed: 1,
            initial: 3,
        },
        Some(_) => FeedPlan::Followed(live::FILE.into()),
    };
    plan.poll_interval = 1.0;
    plan
}

fn play(
    stage: &mut Stage,
    options: &Options,
    found: Option<FoundFeed>,
    stop: &StopSignal,
) -> Result<DemoEnd> {
    let live = found
        .map(|found| found.keep(stage.run_folder()))
        .transpose()?;
    let ready = wait_until_ready(stage, stop)?;
    let Some(before) = ready else {
        return Ok(DemoEnd::Stopped);
    };
    if live.is_none() {
        stage.set_rate(rate(options.time))?;
    }
    let stopped = watch(stage, options, stop, live.as_ref())?;
    if stopped {
        return Ok(DemoEnd::Stopped);
    }
    if live.is_none() {
        stage.set_rate(0.0)?;
    }
    stage.set_multicast(CUT, Multicast::Open)?;
    println!("time is over; waiting for what is under way, then judging …");
    let updates = verdict::settle(stage, live.is_none())?;
    let least = match live {
        None => u64::from(LEAST_UPDATES),
        Some(_) => 1,
    };
    let report = verdict::judge(stage, before, updates, least)?;
    println!("{report}");
    Ok(DemoEnd::Proven)
}

/// Growth that is enough for the judgement also in a short run, with a reserve.
fn rate(time: Option<Duration>) -> f64 {
    let needed = time.map_or(0.0, |time| {
        f64::from(LEAST_UPDATES + 30) / time.as_secs_f64()
    });
    RATE.max(needed)
}

/// Waits until the receivers that can be are on multicast. Returns the head at that time, `None` if
/// the user ended it.
fn wait_until_ready(stage: &mut Stage, stop: &StopSignal) -> Result<Option<u64>> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if stop.asked() {
            return Ok(None);
        }
        stage.check_running()?;
        if let Some(status) = stage.source_status() {
            let on = |name: &str, rung: &str| {
                status
                    .receivers
                    .iter()
                    .any(|one| one.name == name && one.rung == rung)
            };
            if on(GOOD, "multicast") && on(CUT, "multicast") && on(BLOCKED, "unicast") {
                return Ok(Some(status.head));
            }
        }
        pause(Duration::from_millis(100));
    }
    bail!("the receivers did not get onto their rungs within {PATIENCE:?}");
}

/// Shows what happens and cuts and restores multicast, until the time is over (`false`) or the user
/// ends it (`true`).
fn watch(
    stage: &mut Stage,
    options: &Options,
    stop: &StopSignal,
    live: Option<&LiveFeed>,
) -> Result<bool> {
    let mut view = View::new(std::io::stdout().is_terminal(), stage, options)?;
    let start = Instant::now();
    let mut cut = false;
    loop {
        let elapsed = start.elapsed();
        if stop.asked() {
            view.finish();
            return Ok(true);
        }
        if options.time.is_some_and(|time| elapsed >= time) {
            view.finish();
            return Ok(false);
        }
        stage.check_running()?;
        let want_cut = cut_at(elapsed);
        if want_cut != cut {
            let state = if want_cut {
                Multicast::Cut
            } else {
                Multicast::Open
            };
            stage.set_multicast(CUT, state)?;
            cut = want_cut;
        }
        view.show(stage, elapsed, cut, live.and_then(LiveFeed::trouble));
        pause(Duration::from_millis(250));
    }
}

/// Whether the third receiver's multicast is cut at a time.
fn cut_at(elapsed: Duration) -> bool {
    let in_period = Duration::from_millis(
        u64::try_from(elapsed.as_millis() % CUT_EVERY.as_millis()).unwrap_or(0),
    );
    (CUT_AT..RESTORED_AT).contains(&in_period)
}

/// Reads the options from `DEMO_SECONDS` and `FEED`.
///
/// # Errors
/// Names the variable that is wrong and how to write it.
pub fn options_from_environment() -> Result<Options> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let time = variable("DEMO_SECONDS")
        .map(|text| {
            text.parse()
                .map(Duration::from_secs)
                .with_context(|| format!("DEMO_SECONDS={text:?}: write a whole number of seconds"))
        })
        .transpose()?;
    let feed = variable("FEED");
    if let Some(url) = &feed {
        ensure!(
            url.starts_with("http://") || url.starts_with("https://"),
            "FEED={url:?}: write the feed's address, https://…"
        );
    }
    std::io::stdout().flush()?;
    Ok(Options { time, feed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_one_cut_and_time_to_return() {
        let cut: Vec<u64> = (0..40)
            .filter(|second| cut_at(Duration::from_secs(*second)))
            .collect();
        let expected: Vec<u64> = (8..16).chain(28..36).collect();
        assert_eq!(cut, expected);
    }

    #[test]
    fn short_runs_grow_faster() {
        assert!(rate(Some(Duration::from_secs(20))) * 20.0 > f64::from(LEAST_UPDATES));
        assert!((rate(None) - RATE).abs() < f64::EPSILON);
    }
}
