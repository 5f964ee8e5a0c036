//! `./dev sabotage`: the tests have to notice each broken promise.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::context::{Context, run, step};
use crate::failure::Failure;
use crate::programs::{FAULT_INJECTION, FaultNames, PROGRAMS, select};
use crate::tools;

/// Builds the programs with fault injection and runs the scenarios with one protection off each.
///
/// # Errors
///
/// A broken promise was not noticed, or something could not be built.
pub fn run_all(context: &mut Context) -> Result<()> {
    step("Building the services with fault injection, and the scenarios");
    context.announce_first_build("debug", "7 to 10");
    let features = PROGRAMS.map(|program| format!("{program}/{FAULT_INJECTION}"));
    let features = features.join(",");
    let mut build = context.cargo(&["build", "--locked"]);
    select(&mut build).args(["-p", "flexfeed-testbed", "--features", &features]);
    run(&mut build)?;
    // One after the other: they wait for what must not happen, and another one's work would be
    // taken for it.
    step("Sabotage of single services: their tests inject faults by themselves");
    let mut test = context.cargo(&["test", "--locked"]);
    select(&mut test).args(["--features", &features, "noticed", "--", "--test-threads=1"]);
    run(&mut test)?;
    let broken = context.target.join("sabotage");
    keep_programs(&context.target.join("debug"), &broken)?;
    // Puts the ordinary programs back in their place.
    let mut build = context.cargo(&["build", "--locked"]);
    run(select(&mut build).args(["-p", "flexfeed-testbed"]))?;
    let names = FaultNames::read(&context.root)?;
    for program in PROGRAMS {
        let path = broken.join(program);
        if !names.are_in(&path)? {
            return Err(Failure::broken(format!(
                "{} has no fault injection: is its feature still called '{FAULT_INJECTION}'?",
                path.display()
            )));
        }
    }
    names.refuse(&context.target.join("debug"))?;
    tools::name_peer(context);
    tools::build_peer(context);
    step("Sabotage: each scenario must fail when its promise is broken");
    let mut sabotage = context.command(context.target.join("debug/flexfeed-sabotage"));
    run(sabotage.env("FLEXFEED_BIN_DIR", &broken))
}

/// Copies the programs from one folder to another.
fn keep_programs(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for program in PROGRAMS {
        // A new file each time: one that still runs cannot be written to.
        let _ = fs::remove_file(to.join(program));
        fs::copy(from.join(program), to.join(program)).context(program)?;
    }
    Ok(())
}
