//! The steps of `./dev` that are written in Rust.
//!
//! `./dev` is a shell script, because it has to find or install Rust before anything can be
//! compiled. It checks what a command needs, builds this program into a folder of its own, and
//! calls it with the name of the command. What runs on machines without Rust stays in the shell,
//! too: the dashboard, images, and the chart.

mod context;
mod dependencies;
mod failure;
mod figures;
mod fuzz;
mod lint;
mod programs;
mod sabotage;
mod tarball;
mod test;
mod tested;
mod tools;
mod upgrade;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use context::{Context, say};
use failure::Failure;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Err(error) = run(&arguments) else {
        return ExitCode::SUCCESS;
    };
    let code = match error.downcast_ref::<Failure>() {
        Some(Failure { code, reason }) if reason.is_empty() => return ExitCode::from(*code),
        Some(failure) => failure.code,
        None => 1,
    };
    say(format!("dev: {error:#}"));
    ExitCode::from(code)
}

/// Runs the step that the first argument names.
fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, words) = words.split_first().unwrap_or((&"", &[]));
    let first = words.first().copied();
    let mut context = Context::new()?;
    match (*name, words.len()) {
        ("api", 0..=1) => fuzz::run_api(&context, first),
        ("dependencies", 0) => dependencies::check(&context.root),
        ("figures", 0) => figures::run(&context.root, &context.target.join("ci.txt")),
        ("fuzz", _) => fuzz::run_targets(&mut context, &arguments[1..]),
        ("lint", 0) => lint::run_all(&context),
        ("refuse-faults", 1) => {
            programs::FaultNames::read(&context.root)?.refuse(Path::new(words[0]))
        }
        ("sabotage", 0) => sabotage::run_all(&mut context),
        ("tarball", 0..=1) => tarball::pack(&context, first.map(Path::new)),
        ("test", 2) => test::run_all(&mut context, words[0], words[1]),
        ("test-tarball", 0..=1) => tarball::test(&context, first.map(Path::new)),
        ("test-upgrade", _) => upgrade::run_tests(&mut context, words),
        _ => Err(Failure::usage(format!(
            "xtask: {arguments:?} is no step; ./dev help lists the commands"
        ))),
    }
}
