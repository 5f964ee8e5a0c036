//! The steps of `main` that all programs have.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value as Json;

use crate::logging::{self, LogSettings};
use crate::settings::check::problems_as_json;
use crate::settings::{Loaded, Problems};

/// Exit code of a failure.
pub const FAILURE: u8 = 1;
/// Exit code of an invalid command line or setting.
pub const USAGE: u8 = 2;

/// Prints an answer. A closed standard output is no failure: the exit code still counts.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints an error to standard error, and returns its exit code.
pub fn complain(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
    ExitCode::from(code)
}

/// Returns the exit code of a command line that clap rejects or answers itself, after printing
/// `text` or the answer.
#[must_use]
pub fn misused(error: &clap::Error, text: &str) -> ExitCode {
    if error.use_stderr() {
        return complain(USAGE, text);
    }
    // Help and version are no errors, and go to standard output.
    let _ = error.print();
    ExitCode::SUCCESS
}

/// Prints the answer of `config check`: the settings as `text` or `as_json` show them, or all
/// problems.
pub fn check_settings<S>(
    loaded: Result<Loaded<S>, Problems>,
    json: bool,
    text: impl FnOnce(&Loaded<S>) -> String,
    as_json: impl FnOnce(&Loaded<S>) -> Json,
) -> ExitCode {
    match (loaded, json) {
        (Ok(loaded), true) => print(&format!("{:#}\n", as_json(&loaded))),
        (Ok(loaded), false) => print(&text(&loaded)),
        (Err(Problems(problems)), true) => {
            print(&format!("{:#}\n", problems_as_json(&problems)));
            return ExitCode::from(USAGE);
        }
        (Err(problems), false) => return complain(USAGE, &problems.to_string()),
    }
    ExitCode::SUCCESS
}

/// Starts the log by the settings, or with the filter `level`, logs the warnings, and runs; an
/// error of `run` is in words for the operator.
pub fn run<S>(
    loaded: Result<Loaded<S>, Problems>,
    log: impl FnOnce(&S) -> &LogSettings,
    level: &str,
    run: impl FnOnce(&S) -> Result<(), String>,
) -> ExitCode {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    if let Err(error) = logging::begin(log(&loaded.settings), level) {
        return complain(USAGE, &error);
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let result = run(&loaded.settings);
    logging::sum_up();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(FAILURE)
        }
    }
}
