//! `flexfeed-console`: the program around the library `console`.

mod cli;
mod commands;
mod config;
mod run;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::PROGRAM.main()
}
