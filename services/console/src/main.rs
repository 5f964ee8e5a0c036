//! `flexfeed-console`: the program around the library `console`.

mod cli;
mod commands;
mod config;
mod notify;
mod run;

use std::process::ExitCode;

use service::cli::Request as Common;
use service::health::{self, Target};
use service::program::{FAILURE, USAGE, check_settings, complain, misused, print};
use service::settings::Environment;

use crate::cli::{Request, parse};
use crate::commands::Failure;
use crate::config::{TABLE, load, load_listen};

/// Target of `health`.
const TARGET: Target = Target {
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
            health::run(TARGET, load_listen(line, &environment).map(Some), question)
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
