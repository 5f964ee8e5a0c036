//! `flexfeed-swarm`: see the library of the same name.

use std::error::Error as _;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ContextKind;
use flexfeed_swarm::cli::Options;
use flexfeed_swarm::run::run;
use service::link::redact;
use service::logging::{LogFormat, LogSettings};
use service::program::{self, Failure, LAST_WAIT, block_on};
use tokio::runtime::Builder;

fn main() -> ExitCode {
    service::core_dumps::forbid();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if error.use_stderr() => {
            // The link has a token, however it is written: an error about it quotes nothing.
            let about = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            let cause = error
                .source()
                .filter(|_| about.as_deref() == Some("<LINK>"));
            let text = match cause {
                Some(cause) => format!("LINK: {cause}"),
                None => redact(&error.to_string()),
            };
            return program::end(Err(Failure::Usage(text)));
        }
        Err(error) => {
            // Help and version are no errors, and go to standard output.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    let log = LogSettings {
        format: LogFormat::Text,
        level: Some(options.log_level.clone()),
    };
    program::run(&log, "warn", &[], || {
        let mut builder = Builder::new_multi_thread();
        block_on(&mut builder, LAST_WAIT, run(&options)).map_err(Failure::other)
    })
}
