//! `flexfeed-relay`: see the library of the same name.

use std::process::ExitCode;

use flexfeed_relay::cli::{Request, parse};
use flexfeed_relay::config::{check, http_address, load};
use flexfeed_relay::{run, status};
use service::health::{self, Whom};
use service::program::{FAILURE, USAGE, check_settings, complain, misused, print};
use service::settings::{Environment, Layer};

/// Whom `health` asks.
const WHOM: Whom = Whom {
    program: "flexfeed-relay",
    flag: "--http",
};

/// What is logged if nobody says.
const LEVEL: &str = "info";

fn main() -> ExitCode {
    service::core_dumps::forbid();
    let request = match parse(std::env::args_os()) {
        Ok(request) => request,
        Err(error) => return misused(&error, &error.to_string()),
    };
    let environment = Environment::of_process();
    match request {
        Request::Run(line) => service::program::run(
            load(line, &environment),
            |settings| &settings.log,
            LEVEL,
            |settings| run::run(settings).map_err(|error| format!("{error:#}")),
        ),
        Request::ConfigCheck { line, json } => {
            check_settings(load(line, &environment), json, check::text, check::as_json)
        }
        Request::Status { line, json, watch } => show_status(line, &environment, json, watch),
        Request::Health { line, wish } => health::run(WHOM, http_address(line, &environment), wish),
    }
}

fn show_status(line: Layer, environment: &Environment, json: bool, watch: bool) -> ExitCode {
    let address = match http_address(line, environment) {
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
