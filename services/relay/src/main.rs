//! `flexfeed-relay`: see the library of the same name.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use flexfeed_relay::cli::{Request, parse};
use flexfeed_relay::config::{Layer, Problems, check, http_address, load};
use flexfeed_relay::{logging, run, status};
use service::health::{self, Whom};

/// Whom `health` asks.
const WHOM: Whom = Whom {
    program: "flexfeed-relay",
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
        Err(error) => return complain(USAGE, &error.to_string()),
    };
    match request {
        Request::Run(line) => relay(line),
        Request::ConfigCheck { line, json } => check_settings(line, json),
        Request::Status { line, json, watch } => show_status(line, json, watch),
        Request::Hold => hold(),
        Request::Health { line, ready } => health::run(WHOM, http_address(line, variable), ready),
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn variables() -> impl Iterator<Item = String> {
    std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned())
}

fn relay(line: Layer) -> ExitCode {
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
            tracing::error!("{error:#}");
            ExitCode::from(FAILURE)
        }
    }
}

fn hold() -> ExitCode {
    match run::hold() {
        Ok(()) => ExitCode::SUCCESS,
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
    let address = match http_address(line, variable) {
        Ok(Some(address)) => address,
        Ok(None) => {
            return complain(
                USAGE,
                "the relay answers nowhere (http is off); name another address with --http",
            );
        }
        Err(problems) => return complain(USAGE, &problems.to_string()),
    };
    let shown = if watch {
        status::watch::watch(address).map(|()| true)
    } else {
        status::command::status(address, json).map(|answer| {
            print(&answer.text);
            answer.well
        })
    };
    match shown {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILURE),
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
