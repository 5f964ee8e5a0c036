//! The flexfeed source: reads feeds and pushes every new entry to all receivers at once.
//!
//! `ingest` brings new entries into the store, and `publish` takes them from there to the transport
//! (`flexicast-tokio`), which carries them to the receivers and reads missed updates from the
//! store. `run` decides what is polled and published here, among several sources on one database.
//! `record` writes the console's records. `data` is the data folder, `http` the status pages.

mod backlog;
mod board;
mod clock;
mod commands;
mod config;
mod data;
mod database;
#[cfg(feature = "fault-injection")]
mod faults;
mod http;
pub mod ingest;
mod logging;
pub mod metrics;
pub mod publish;
mod record;
mod run;
mod signals;
mod status;
pub mod transport;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use commands::Invocation;
use config::Config;
use run::Failure;
use service::health::{self, Target};
use tokio::runtime::Runtime;
use tracing::{error, warn};

/// Target of `health`.
const TARGET: Target = Target {
    program: "flexfeed-source",
    flag: "--http",
};

/// Wrong usage: the command line or the environment has to be changed.
const USAGE: u8 = 2;

/// Time limit for computations that are running at the end, such as a feed being parsed.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// The program: does what the command line says, to its end.
pub fn main() -> ExitCode {
    service::core_dumps::forbid();
    match Invocation::from_command_line() {
        Ok(Invocation::Run(config)) => run_source_process(*config),
        Ok(Invocation::Command(command)) => carry_out(*command),
        Ok(Invocation::Health { http, question }) => health::run(TARGET, http.map(Some), question),
        // Prints help and version to standard output, mistakes to standard error with code 2.
        Err(error) => error.exit(),
    }
}

/// Does one thing and ends. What goes wrong is said in one line, which is no log line.
fn carry_out(command: commands::Command) -> ExitCode {
    let (format, level) = command.logging();
    logging::start(format, Some(&level));
    let ended = match Runtime::new() {
        Ok(runtime) => runtime.block_on(command.run()),
        Err(failure) => Err(commands::Failure::Other(format!(
            "cannot start the threads of this program: {failure}"
        ))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut err = std::io::stderr().lock();
            // A closed standard error is harmless: the exit code tells the same.
            let _ = writeln!(err, "error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn run_source_process(config: Config) -> ExitCode {
    let warning = logging::start(config.log_format, config.log_level.as_deref());
    for warning in warning.iter().chain(&config.warnings) {
        warn!("{warning}");
    }
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(failure) => {
            error!("cannot start the threads of this program: {failure}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(run::run(config));
    runtime.shutdown_timeout(LAST_WAIT);
    service::logging::sum_up();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(failure)) => {
            error!("{failure:#}");
            ExitCode::from(USAGE)
        }
        Err(Failure::Other(failure)) => {
            error!("{failure:#}");
            ExitCode::FAILURE
        }
    }
}
