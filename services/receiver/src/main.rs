//! `flexfeed-receiver`: see the library of the same name.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use flexfeed_receiver::cli::{Arguments, Command, RunArguments, usage_error};
use flexfeed_receiver::link::Link;
use flexfeed_receiver::{logging, run, status};

/// Something failed.
const FAILURE: u8 = 1;
/// The program was not called as it can be.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version are no errors, and go to standard output.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return complain(USAGE, &usage_error(&error)),
    };
    match arguments.command {
        Some(Command::Status(arguments)) => show_status(&arguments.data, arguments.json),
        Some(Command::Run(arguments)) => receive(&arguments),
        None => receive(&arguments.run),
    }
}

fn receive(arguments: &RunArguments) -> ExitCode {
    let text = match arguments.link_text(|name| std::env::var(name).ok()) {
        Ok(text) => text,
        Err(error) => return complain(USAGE, &error.to_string()),
    };
    let (link, unknown) = match Link::parse(&text) {
        Ok(parsed) => parsed,
        Err(error) => return complain(USAGE, &error.to_string()),
    };
    if let Err(error) = logging::begin(arguments.log_format, arguments.log_level.as_deref()) {
        return complain(USAGE, &error);
    }
    match run::run(arguments, &link, &unknown) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(FAILURE)
        }
    }
}

fn show_status(data: &Path, json: bool) -> ExitCode {
    match status::command::status(data, json) {
        Ok(answer) => {
            // Nobody reads it any more: what it says about the receiver still counts.
            let _ = std::io::stdout().write_all(answer.text.as_bytes());
            ExitCode::from(if answer.well { 0 } else { FAILURE })
        }
        Err(error) => complain(FAILURE, &error.to_string()),
    }
}

fn complain(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
    ExitCode::from(code)
}
