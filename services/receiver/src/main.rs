//! `flexfeed-receiver`: see the library of the same name.

use std::process::ExitCode;

use flexfeed_receiver::cli::{Request, parse, usage_error};
use flexfeed_receiver::config::{check, data_folder, http_address, load, load_or};
use flexfeed_receiver::{dead_letters, doctor, run, status};
use service::cli::Request as Common;
use service::health::{self, Target};
use service::program::{FAILURE, USAGE, check_settings, complain, misused, print};
use service::settings::check::problems_as_json;
use service::settings::{Environment, Layer, Problems};

/// Target of `health`.
const TARGET: Target = Target {
    program: "flexfeed-receiver",
    flag: "--http",
};

/// Default log filter. The QUIC library logs ordinary events at `info` and above.
const LEVEL: &str = "info,quiche=warn";

fn main() -> ExitCode {
    service::core_dumps::forbid();
    let request = match parse(std::env::args_os()) {
        Ok(request) => request,
        Err(error) => return misused(&error, &usage_error(&error)),
    };
    let environment = Environment::of_process();
    match request {
        Request::Common(Common::Run(line)) => service::program::run(
            load(line, &environment),
            |settings| &settings.log,
            LEVEL,
            |settings| run::run(settings).map_err(|error| error.to_string()),
        ),
        Request::Doctor { line, json, join } => examine(line, &environment, json, join),
        Request::ListLetters { line, hook, json } => {
            list_letters(line, &environment, hook.as_deref(), json)
        }
        Request::RetryLetters { line, hook } => retry_letters(line, &environment, &hook),
        Request::Common(Common::ConfigCheck { line, json }) => {
            check_settings(load(line, &environment), json, check::text, check::as_json)
        }
        Request::Status { line, json, watch } => show_status(line, &environment, json, watch),
        Request::Common(Common::Health { line, question }) => {
            health::run(TARGET, http_address(line, &environment), question)
        }
    }
}

fn examine(line: Layer, environment: &Environment, json: bool, join: bool) -> ExitCode {
    let (loaded, no_link) = match load_or(line, environment, doctor::link_of) {
        Ok(loaded) => loaded,
        Err(Problems(problems)) if json => {
            print(&format!("{:#}\n", problems_as_json(&problems)));
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

fn show_status(line: Layer, environment: &Environment, json: bool, watch: bool) -> ExitCode {
    let data = match data_folder(line, environment) {
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

fn list_letters(
    line: Layer,
    environment: &Environment,
    hook: Option<&str>,
    json: bool,
) -> ExitCode {
    let data = match data_folder(line, environment) {
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

fn retry_letters(line: Layer, environment: &Environment, hook: &str) -> ExitCode {
    let loaded = match load(line, environment) {
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
