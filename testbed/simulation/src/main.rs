//! `./dev simulate`: plays seeds and says which of them break a promise.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use simulation::runner::{Plan, Summary, run};
use simulation::{Script, play};

/// Plays random scenarios of a source and its receivers in virtual time and checks that nothing is
/// lost, repeated, readable by others, held for ever or slow to end.
///
/// Exit code 0: every promise was kept. 1: one was not; the line that replays the seed is printed.
/// 2: the arguments make no sense.
#[derive(Parser)]
#[command(name = "./dev simulate")]
struct Arguments {
    /// Plays this seed alone.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "count"])]
    seed: Option<u64>,
    /// Plays the seeds from A up to, but without, B.
    #[arg(long, value_name = "A..B", value_parser = range, conflicts_with = "count")]
    seeds: Option<Range<u64>>,
    /// Plays the first so many seeds.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100_000)]
    count: u64,
    /// Says what happens in the scenario (with --seed), or what all runs came to.
    #[arg(short, long)]
    verbose: bool,
    /// Runs in parallel; by default the number of processors.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stops after so many violations.
    #[arg(long, value_name = "N", default_value_t = 20)]
    most: usize,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..");
    let (a, b) = parts.ok_or("two numbers with '..' between them, as 0..1000")?;
    let number = |s: &str| s.parse::<u64>().map_err(|e| format!("'{s}': {e}"));
    let range = number(a)?..number(b)?;
    if range.is_empty() {
        return Err("no seed lies in it".into());
    }
    Ok(range)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return one(seed, arguments.verbose);
    }
    let seeds = arguments.seeds.unwrap_or(0..arguments.count);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let plan = Plan {
        threads: arguments.threads.unwrap_or(threads),
        twice: 50,
        fault: None,
        most_violations: arguments.most.max(1),
        seeds: seeds.clone(),
    };
    // A panic is a violation like others, and printed as one.
    std::panic::set_hook(Box::new(|_| {}));
    let summary = run(&plan, |summary, violation| match violation {
        Some(violation) => eprintln!("{violation}"),
        None => eprintln!("{}", progress(summary, &seeds)),
    });
    report(&summary, &seeds, arguments.verbose)
}

fn one(seed: u64, verbose: bool) -> ExitCode {
    let script = Script::random(seed);
    if verbose {
        println!("{:#?}", script.channels);
        println!("{:#?}", script.receivers);
    }
    match play(script, None, verbose) {
        Ok(report) => {
            println!("seed {seed}: every promise was kept. {report:?}");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn progress(summary: &Summary, seeds: &Range<u64>) -> String {
    let all = seeds.end - seeds.start;
    let per_second = summary.runs as f64 / summary.took.as_secs_f64().max(0.001);
    let left = Duration::from_secs_f64((all - summary.runs) as f64 / per_second.max(0.001));
    format!(
        "{} of {all} seeds in {} s, {} violations; about {} s to go (from here: --seeds {}..{})",
        summary.runs,
        summary.took.as_secs(),
        summary.violations.len(),
        left.as_secs(),
        summary.done_below,
        seeds.end
    )
}

fn report(summary: &Summary, seeds: &Range<u64>, verbose: bool) -> ExitCode {
    let found = summary.violations.len();
    println!(
        "{} seeds in {} s: {found} broke a promise",
        summary.runs,
        summary.took.as_secs()
    );
    if verbose {
        println!(
            "{} receivers, {} h of virtual time, {} events, {} updates delivered, {} flow packets, \
             {} keys; the slowest was seed {} with {} ms",
            summary.receivers,
            summary.time.as_secs() / 3600,
            summary.events,
            summary.updates,
            summary.packets,
            summary.keys,
            summary.slowest.0,
            summary.slowest.1.as_millis()
        );
    }
    if verbose {
        for (what, times) in &summary.seen {
            println!("{times:>10} × {what}");
        }
    }
    if summary.done_below < seeds.end {
        println!(
            "not all were run; from here: ./dev simulate --seeds {}..{}",
            summary.done_below, seeds.end
        );
    }
    if found == 0 {
        return ExitCode::SUCCESS;
    }
    for violation in &summary.violations {
        println!("{violation}");
    }
    ExitCode::FAILURE
}
