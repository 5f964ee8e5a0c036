//! `flexfeed-receiver`: see the library of the same name.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use flexfeed_receiver::cli::{Request, parse, usage_error};
use flexfeed_receiver::config::{Layer, Problems, check, http_address, load, load_or};
use flexfeed_receiver::{dead_letters, doctor, logging, run, status};
use service::health::{self, Whom};

/// Whom `health` asks.
const WHOM: Whom = Whom {
    program: "flexfeed-receiver",
    flag: "--http",
};

/// Something failed.
const FAILURE: u8 = 1;
/// The program was not called as it can be, or not set up as it can be.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let request = match parse(std::env::args_os()) {
        Ok(request) => request,
        // Help and version are no errors, and go to standard output.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return complain(USAGE, &usage_error(&error)),
    };
    match request {
        Request::Run(line) => receive(line),
        Request::Doctor { line, json, join } => examine(line, json, join),
        Request::ListLetters { line, hook, json } => list_letters(line, hook.as_deref(), json),
        Request::RetryLetters { line, hook } => retry_letters(line, &hook),
        Request::ConfigCheck { line, json } => check_settings(line, json),
        Request::Status { line, json, watch } => show_status(line, json, watch),
        Request::Health { line, ready } => health::run(WHOM, http_address(line, variable), ready),
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn variables() -> impl Iterator<Item = String> {
    std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned())
}

fn receive(line: Layer) -> ExitCode {
    let loaded = match load(line, variable, variables()) {
        Ok(loaded) => loaded,
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    let settings = &loaded.settings;
    if let Err(error) = logging::begin(settings.log_format, settings.log_level.as_deref()) {
        return complain(USAGE, &error);
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    match run::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(FAILURE)
        }
    }
}

fn examine(line: Layer, json: bool, join: bool) -> ExitCode {
    let (loaded, no_link) = match load_or(line, variable, variables(), doctor::link_of) {
        Ok(loaded) => loaded,
        Err(Problems(problems)) if json => {
            print(&format!("{:#}\n", check::problems_as_json(&problems)));
            return ExitCode::from(USAGE);
        }
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    let wish = doctor::Wish {
        json,
        join,
        no_link,
    };
    match doctor::run(&loaded, wish) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILURE),
        Err(error) => complain(FAILURE, &format!("{error:#}")),
    }
}

fn check_settings(line: Layer, json: bool) -> ExitCode {
    match (load(line, variable, variables()), json) {
        (Ok(loaded), true) => print(&format!("{:#}\n", check::as_json(&loaded))),
        (Ok(loaded), false) => print(&check::text(&loaded)),
        (Err(Problems(problems)), true) => {
            print(&format!("{:#}\n", check::problems_as_json(&problems)));
            return ExitCode::from(USAGE);
        }
        (Err(problems), false) => return complain(USAGE, &problems.to_string()),
    }
    ExitCode::SUCCESS
}

fn show_status(line: Layer, json: bool, watch: bool) -> ExitCode {
    let data = match flexfeed_receiver::config::data_folder(line, variable) {
        Ok(data) => data,
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    if watch {
        return match status::watch::watch(&data) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(FAILURE, &format!("{error:#}")),
        };
    }
    match status::command::status(&data, json) {
        Ok(answer) => {
            print(&answer.text);
            ExitCode::from(if answer.well { 0 } else { FAILURE })
        }
        Err(error) => complain(FAILURE, &error.to_string()),
    }
}

fn list_letters(line: Layer, hook: Option<&str>, json: bool) -> ExitCode {
    let data = match flexfeed_receiver::config::data_folder(line, variable) {
        Ok(data) => data,
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    match dead_letters::list(&data, hook, json) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => complain(FAILURE, &error.to_string()),
    }
}

fn retry_letters(line: Layer, hook: &str) -> ExitCode {
    let loaded = match load(line, variable, variables()) {
        Ok(loaded) => loaded,
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    match dead_letters::retry(&loaded.settings, hook) {
        Ok(retried) => {
            print(&format!(
                "{} taken, {} stay.\n",
                retried.taken,
                retried.kept.len()
            ));
            for (seq, reason) in &retried.kept {
                print(&format!("  update {seq}: {reason}\n"));
            }
            ExitCode::from(if retried.kept.is_empty() { 0 } else { FAILURE })
        }
        Err(error) => complain(FAILURE, &format!("{error:#}")),
    }
}

fn print(text: &str) {
    // Nobody reads it any more: the exit code still counts.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn complain(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
    ExitCode::from(code)
}
