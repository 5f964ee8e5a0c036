//! `flexfeed-console`: the program around the library `console`.

mod cli;
mod commands;
mod config;
mod notify;
mod run;

use std::process::ExitCode;

use service::health::{self, Whom};
use service::program::{FAILURE, USAGE, check_settings, complain, misused, print};
use service::settings::Environment;

use cli::{Request, parse};
use commands::Failure;
use config::{check, load, load_listen};

/// The program that `health` asks.
const WHOM: Whom = Whom {
    program: "flexfeed-console",
    flag: "--listen",
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
        Request::Serve(line) => service::program::run(
            load(line, &environment),
            |settings| &settings.log,
            LEVEL,
            |settings| run::run(settings).map_err(|error| format!("{error:#}")),
        ),
        Request::ConfigCheck { line, json } => {
            check_settings(load(line, &environment), json, check::text, check::as_json)
        }
        Request::Health { line, wish } => {
            health::run(WHOM, load_listen(line, &environment).map(Some), wish)
        }
        Request::Command { line, command } => match commands::run(line, &environment, &command) {
            Ok(text) => {
                print(&text);
                ExitCode::SUCCESS
            }
            Err(Failure::Usage(text)) => complain(USAGE, &text),
            Err(Failure::Other(text)) => complain(FAILURE, &text),
        },
    }
}
