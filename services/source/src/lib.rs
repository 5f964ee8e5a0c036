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
use service::health::{self, Target};
use service::logging;
use service::program::{self, Failure, block_on};
use service::settings::Problems;
use tokio::runtime::{Builder, Runtime};

/// Target of `health`.
const TARGET: Target = Target {
    program: "flexfeed-source",
    setting: "http",
};

/// Default log filter.
const LEVEL: &str = "info";

/// Time limit for computations that are running at the end, such as a feed being parsed.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// Carries out the command line of the process.
pub fn main() -> ExitCode {
    service::core_dumps::forbid();
    match Invocation::from_command_line() {
        Ok(Invocation::Run(config)) => run_source(*config),
        Ok(Invocation::Command(command)) => carry_out(*command),
        Ok(Invocation::Health { http, question }) => {
            let listen = || http.map(Some).map_err(|problem| Problems(vec![problem]));
            program::end(health::answer(TARGET, question, listen))
        }
        // Prints help and version to standard output, mistakes to standard error with code 2.
        Err(error) => error.exit(),
    }
}

/// Carries out a command. Its failure is one line, which is no log line.
fn carry_out(command: commands::Command) -> ExitCode {
    // A command works without a log, too.
    let _ = logging::begin(&command.logging(), LEVEL);
    let ended = match Runtime::new() {
        Ok(runtime) => runtime.block_on(command.run()),
        Err(failure) => Err(commands::Failure::Other(format!(
            "cannot start the threads of this program: {failure}"
        ))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A closed standard error is harmless: the exit code has the same meaning.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn run_source(config: Config) -> ExitCode {
    let log = config.log.clone();
    let warnings = config.warnings.clone();
    program::run(&log, LEVEL, &warnings, || {
        let main = async {
            run::run(config).await.map_err(|failure| match failure {
                run::Failure::Usage(failure) => Failure::Usage(format!("{failure:#}")),
                run::Failure::Other(failure) => Failure::other(failure),
            })
        };
        block_on(&mut Builder::new_multi_thread(), LAST_WAIT, main)
    })
}
