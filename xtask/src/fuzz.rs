//! `./dev fuzz`: fuzz targets under cargo-fuzz. `./dev api`: the console's API from its
//! description.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::context::{Context, judge, output, run, say, step};
use crate::failure::Failure;
use crate::tools;

/// Seconds for each target where none are given.
const SECONDS: &str = "60";

/// Requests for each call of the API within `./dev test`.
const API_EXAMPLES: &str = "4";

/// Missing tools without which the API cannot be fuzzed.
const API_NEEDS: &str = "curl, python3 with venv (Debian: curl python3-venv), and a package index";

/// Runs the targets that `arguments` name (all if none is), for as many seconds as they say.
///
/// The sanitizers are left out because hardly any code that the targets reach is unsafe (that of
/// `erasure` is for Miri); integer overflow and debug assertions are checked.
///
/// # Errors
///
/// There is no such target, or an input makes one panic.
pub fn run_targets(context: &mut Context, arguments: &[String]) -> Result<()> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = arguments.iter().find(|argument| is_number(argument));
    let seconds = seconds.map_or(SECONDS, String::as_str);
    let chosen = arguments.iter().find(|argument| !is_number(argument));
    let mut targets = targets(&context.root)?;
    if let Some(name) = chosen {
        if !targets.contains(name) {
            return Err(Failure::usage(format!(
                "there is no fuzz target '{name}'; there are: {}",
                targets.join(" ")
            )));
        }
        targets = vec![name.clone()];
    }
    choose_compiler(context);
    tools::find_fuzz(context)?;
    step("Building the fuzz targets");
    let host = output(Command::new("rustc").arg("-vV")).unwrap_or_default();
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let profile = format!("fuzz/{}/release", host.unwrap_or_default());
    context.announce_first_build(&profile, "20 to 25");
    let mut build = cargo_fuzz(context, "build");
    run(build.args(chosen))?;
    for name in &targets {
        step(format!("Fuzzing {name} for {seconds} s"));
        run_target(context, name, seconds)?;
    }
    Ok(())
}

/// Returns the names of all targets, sorted.
fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
        }
    }
    names.sort();
    Ok(names)
}

/// Instrumenting needs a nightly compiler; without one the installed compiler acts as one.
fn choose_compiler(context: &mut Context) {
    let nightly = ["run", "nightly", "cargo", "--version"];
    if output(context.command("rustup").args(nightly)).is_some() {
        context.set("RUSTUP_TOOLCHAIN", "nightly");
    } else {
        context.set("RUSTC_BOOTSTRAP", "1");
    }
}

/// Returns `cargo fuzz COMMAND` with the options that all of them take.
fn cargo_fuzz(context: &Context, command: &str) -> Command {
    let mut fuzz = context.cargo(&["fuzz", command, "--sanitizer", "none", "--target-dir"]);
    fuzz.arg(context.target.join("fuzz"));
    fuzz.current_dir(context.root.join("fuzz"));
    fuzz
}

/// Runs one target. New inputs are kept in the target folder; the repository's are the beginning.
/// Inputs that make it panic are kept where `./dev test` runs them.
fn run_target(context: &Context, name: &str, seconds: &str) -> Result<()> {
    let corpus = context.target.join("fuzz/corpus").join(name);
    let found = context.root.join("fuzz/found").join(name);
    for folder in [&corpus, &found] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut fuzz = cargo_fuzz(context, "run");
    fuzz.arg(name)
        .arg(&corpus)
        .arg(format!("corpus/{name}"))
        .arg("--");
    fuzz.arg(format!("-max_total_time={seconds}"));
    fuzz.args(["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"]);
    fuzz.arg(format!("-artifact_prefix={}/", found.display()));
    fuzz.args(dictionary(name));
    let result = run(&mut fuzz);
    // Empty folders are removed.
    let _ = fs::remove_dir(&found);
    let _ = fs::remove_dir(context.root.join("fuzz/found"));
    result.map_err(|_| {
        Failure::broken(format!(
            "{name}: the input that does it is in fuzz/found/{name}; ./dev test fails until it is \
             fixed"
        ))
    })
}

/// Returns the option that gives a target its dictionary, if it has one.
fn dictionary(name: &str) -> Option<&'static str> {
    match name {
        "feed" | "xml" | "payload" => Some("-dict=dictionaries/feed.dict"),
        "link" => Some("-dict=dictionaries/link.dict"),
        _ => None,
    }
}

/// Sends the built console's API what its description allows, and what it does not.
///
/// # Errors
///
/// The API broke a rule of its description, or nothing can fuzz it although everything has to be
/// tested here.
pub fn run_api(context: &Context, examples: Option<&str>) -> Result<()> {
    let schemathesis = match tools::find_schemathesis(context) {
        Ok(program) => program,
        Err(_) if context.is_complete() => {
            return Err(Failure::broken(format!(
                "schemathesis is missing: it needs {API_NEEDS}"
            )));
        }
        Err(_) => {
            say("\n!!! SKIPPED: the API was NOT fuzzed. That needs");
            say(format!("!!! {API_NEEDS} (see above)."));
            return Ok(());
        }
    };
    step("Fuzzing the console's API from its own description");
    let mut fuzz = context.command("sh");
    fuzz.arg(context.root.join("services/console/fuzz-api.sh"));
    fuzz.arg(context.target.join("debug/flexfeed-console"));
    fuzz.arg(schemathesis).arg(examples.unwrap_or(API_EXAMPLES));
    // The same requests each time, so that a failure is due to a change.
    fuzz.env(
        "FUZZ_SEED",
        context.variable("FUZZ_SEED").unwrap_or("1".into()),
    );
    judge(fuzz.status().context("sh")?)
}
