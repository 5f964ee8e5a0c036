//! `flexfeed-relay`: see the library of the same name.

use std::process::ExitCode;

use flexfeed_relay::cli::{Request, parse};
use flexfeed_relay::config::{TABLE, http_address, load};
use flexfeed_relay::{run, status};
use service::cli::Request as Common;
use service::health::{self, Target};
use service::program::{FAILURE, USAGE, check_settings, complain, misused, print};
use service::settings::{Environment, Layer};

/// Target of `health`.
const TARGET: Target = Target {
    program: "flexfeed-relay",
    flag: "--http",
};

/// Default log filter.
const LEVEL: &str = "info";

fn main() -> ExitCode {
    service::core_dumps::forbid();
    let request = match parse(std::env::args_os()) {
        Ok(request) => request,
        Err(error) => return misused(&error, &error.to_string()),
    };
    let environment = Environment::of_process();
    match request {
        Request::Common(Common::Run(line)) => service::program::run(
            load(line, &environment),
            |settings| &settings.log,
            LEVEL,
            |settings| run::run(settings).map_err(|error| format!("{error:#}")),
        ),
        Request::Common(Common::ConfigCheck { line, json }) => check_settings(
            load(line, &environment),
            json,
            |loaded| TABLE.check_text(loaded),
            |loaded| TABLE.check_json(loaded),
        ),
        Request::Common(Common::Health { line, question }) => {
            health::run(TARGET, http_address(line, &environment), question)
        }
        Request::Status { line, json, watch } => show_status(line, &environment, json, watch),
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
