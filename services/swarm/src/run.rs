//! A run: start, warm-up, measurement, summary, end.

use std::future::Future;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use service::program::print;
use service::signals::{self, Stop};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::cli::Options;
use crate::fleet::Fleet;
use crate::http::Pages;
use crate::summary::{Measurement, Summary};
use crate::usage::{self, Usage};

/// Time limit for all receivers to be served after the last one was started.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for the last updates of the measurement to reach every receiver.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// Interval of checks for both.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of progress lines, on a terminal and in a log.
const PROGRESS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Runs the swarm for the time of the options, or until a signal.
///
/// # Errors
/// A promise of delivery was broken, or the swarm cannot run; in words for the operator.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let stop = signals::stop_token("stopping the receivers", Stop::exit_code)?;
    usage::allow_sockets(options.receivers)?;
    let seed = options.seed.unwrap_or_else(rand::random);
    let board = Arc::new(Board::new(&options.link.channels, options.receivers));
    let pages = Pages::open(options, &board)?;
    let progress = (!options.json).then(|| tokio::spawn(report(board.clone(), options.receivers)));
    let mut fleet = Fleet::new(options, seed, board.clone());
    let measurement = play(options, &mut fleet, &board, &stop).await;
    if let Some(progress) = progress {
        progress.abort();
    }
    let summary = Summary::new(&board, fleet.started(), seed, measurement);
    fleet.stop().await;
    if let Some(pages) = pages {
        pages.stop().await;
    }
    print(&match options.json {
        true => format!("{:#}\n", serde_json::to_value(&summary)?),
        false => summary.to_string(),
    });
    if !summary.failures.is_empty() {
        bail!("{}", summary.failures.join("; "));
    }
    Ok(())
}

/// Plays all phases; a signal ends the present one, and skips those up to the end of the
/// measurement.
async fn play(
    options: &Options,
    fleet: &mut Fleet,
    board: &Board,
    stop: &CancellationToken,
) -> Measurement {
    let before = Usage::now();
    let ramp = fleet.ramp_up(options.receivers, options.ramp);
    let ready = until(stop, ramp).await
        && until(stop, served(board, options.receivers)).await
        && until(stop, tokio::time::sleep(options.warm_up)).await;
    let (begun, first) = (Instant::now(), Usage::now());
    board.begin_measurement();
    if ready {
        tokio::select! {
            () = stop.cancelled() => {}
            () = pause(options.duration) => {}
            () = fleet.churn(options.churn, options.crashes) => {}
        }
    }
    board.end_measurement();
    let (time, last) = (begun.elapsed(), Usage::now());
    let started = u64::from(fleet.started());
    let settled = async {
        loop {
            if board.behind() == 0 && board.totals().settled() >= started {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(SETTLED_WITHIN, settled).await;
    Measurement {
        time,
        cpu: last.cpu.saturating_sub(first.cpu),
        resident: last.resident,
        resident_before: before.resident,
    }
}

/// Waits until all receivers are served or refused, or too long.
async fn served(board: &Board, receivers: u32) {
    let all = async {
        loop {
            if board.totals().settled() >= u64::from(receivers) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(SERVED_WITHIN, all).await;
}

async fn pause(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Whether the future ended before the signal.
async fn until(stop: &CancellationToken, done: impl Future<Output = ()>) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = done => true,
    }
}

/// Reports progress on standard error, for ever.
async fn report(board: Arc<Board>, receivers: u32) {
    let [terminal, log] = PROGRESS;
    let every = if stderr().is_terminal() {
        terminal
    } else {
        log
    };
    let begun = Instant::now();
    let (mut before, mut since) = (Usage::now().cpu, begun);
    loop {
        tokio::time::sleep(every).await;
        let (cpu, now) = (Usage::now().cpu, Instant::now());
        let cores = cpu.saturating_sub(before).as_secs_f64() / (now - since).as_secs_f64();
        (before, since) = (cpu, now);
        let line = line(&board, receivers, cores);
        let _ = writeln!(stderr(), "{:>5.0} s  {line}", begun.elapsed().as_secs_f64());
    }
}

fn line(board: &Board, receivers: u32, cores: f64) -> String {
    let totals = board.totals();
    let rungs = totals.rungs.iter().map(|((channel, rung), count)| {
        let several = board.channels().count() > 1;
        let of = if several {
            format!("{channel} ")
        } else {
            String::new()
        };
        format!(", {count} {of}{rung}")
    });
    let rungs: String = rungs.collect();
    let latency = board.latencies().percentiles();
    let wrong = match totals.violations.total() {
        0 => String::new(),
        count => format!(", {count} VIOLATIONS"),
    };
    format!(
        "{} of {receivers} served{rungs}; {} updates, p50 {} ms, p99 {} ms; {cores:.2} cores{wrong}",
        totals.served,
        totals.delivered(),
        latency.p50,
        latency.p99,
    )
}
