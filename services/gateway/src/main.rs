//! `flexfeed-gateway`: see the library of the same name.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use flexfeed_gateway::cli::Options;
use flexfeed_gateway::run::run;
use service::logging::{LogFormat, LogSettings};
use service::program::{self, Failure, block_on};
use tokio::runtime::Builder;

fn main() -> ExitCode {
    service::core_dumps::forbid();
    let options = Options::parse();
    let log = LogSettings {
        format: LogFormat::Text,
        level: Some(options.log_level.clone()),
    };
    // The failure is printed whatever the log filter.
    let mut failure = None;
    let code = program::run(&log, "info", &[], || {
        // Packets are received and sent on one thread, which is enough for a handful of flows. The
        // exit does not wait for a pending name resolution.
        let mut builder = Builder::new_current_thread();
        failure = block_on(&mut builder, Duration::ZERO, run(&options)).err();
        Ok(())
    });
    match failure {
        Some(error) => program::end(Err(Failure::Other(format!("error: {error:#}")))),
        None => code,
    }
}
