//! What `main` does in the same way in all programs: say something, end with a code, begin.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value as Json;

use crate::logging::{self, LogSettings};
use crate::settings::check::problems_as_json;
use crate::settings::{Loaded, Problems};

/// The exit code where something failed.
pub const FAILURE: u8 = 1;
/// The exit code where the program was not called as it can be, or not set up as it can be.
pub const USAGE: u8 = 2;

/// Prints an answer. That nobody reads it any more is no failure: the exit code still counts.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Says on standard error what is wrong.
pub fn complain(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
    ExitCode::from(code)
}

/// Ends a program whose command line clap does not understand, or has answered; `text` is what is to
/// be said of it.
#[must_use]
pub fn misused(error: &clap::Error, text: &str) -> ExitCode {
    if error.use_stderr() {
        return complain(USAGE, text);
    }
    // Help and version are no errors, and go to standard output.
    let _ = error.print();
    ExitCode::SUCCESS
}

/// The answer of `config check`: the settings as `text` or `as_json` show them, or all that is wrong.
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

/// Begins logging as the settings say, or at `level`, warns of what may not be meant, and runs; an
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
