//! `flexfeed-gateway`: see the library of the same name.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use clap::Parser;
use flexfeed_gateway::cli::Options;
use flexfeed_gateway::run::run;
use tracing_subscriber::EnvFilter;

/// Something failed.
const FAILURE: u8 = 1;
/// The program was not called as it can be.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    let filter = match EnvFilter::try_new(&options.log_level) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!(
                "error: --log-level {:?} is no log level: {error}; use error, warn, info, debug or trace",
                options.log_level
            );
            return ExitCode::from(USAGE);
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .init();
    // Packets come in, and go out, on one thread: a handful of flows is what it is for.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(run(&options));
            // A look-up of a name that nobody answers would be waited for.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILURE)
        }
    }
}
