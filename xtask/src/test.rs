//! `./dev test`: all tests, and the builds that they need.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result};

use crate::context::{Context, judge, run, step};
use crate::failure::Failure;
use crate::tested::{self, Lane};
use crate::{fuzz, tarball, tools};

/// A build in the background, which ends with this program.
struct Build(Child);

impl Build {
    /// Starts building all programs and tests, together, so that they share what both are made of.
    fn start(context: &Context) -> Result<Self> {
        let log = context.target.join("build.log");
        step(format!(
            "Building programs and tests in the background; its output is kept in {}",
            log.display()
        ));
        context.announce_first_build("debug", "7 to 10");
        fs::create_dir_all(&context.target).context("target")?;
        let file = fs::File::create(&log).with_context(|| log.display().to_string())?;
        // If something kills this program, the kernel ends the build.
        let mut build = context.command("setpriv");
        build.args(["--pdeathsig", "TERM", "nice", "-n", "19", "cargo", "build"]);
        build.args(["--locked", "--workspace", "--bins", "--tests", "--examples"]);
        build.stdout(file.try_clone()?).stderr(file);
        Ok(Self(build.spawn().context("setpriv")?))
    }

    /// Waits for the end, and shows the output meanwhile.
    fn finish(mut self, context: &Context) -> Result<()> {
        step("Building programs and tests");
        let mut tail = Command::new("tail");
        tail.args(["-n", "+1", "-f", &format!("--pid={}", self.0.id())]);
        tail.arg(context.target.join("build.log"));
        let shown = tail.stdout(std::io::stderr()).stdin(Stdio::null()).spawn();
        let ended = self.0.wait()?;
        if let Ok(mut shown) = shown {
            let _ = shown.wait();
        }
        judge(ended)
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // Cargo ends its compilers when it gets the signal by which terminals end programs.
            let _ = Command::new("kill")
                .args(["-TERM", &self.0.id().to_string()])
                .status();
            let _ = self.0.wait();
        }
    }
}

/// Runs all tests. `decoder` is a Python with the package cryptography, `browser` a Chromium.
///
/// # Errors
///
/// The first step that failed.
pub fn run_all(context: &mut Context, decoder: &str, browser: &str) -> Result<()> {
    let _ = fs::remove_file(context.target.join("unstable.txt"));
    // Screenshots are kept for inspection.
    let shots = context.target.join("screenshots");
    context.set("FLEXFEED_SHOTS", shots);
    context.set("CHROMIUM", browser);
    // First: the console has it inside.
    run(context.command("./dev").arg("web"))?;
    let build = Build::start(context)?;
    tools::name_peer(context);
    let shared = &*context;
    let tested = thread::scope(|scope| {
        // A minute of compiling, which scenarios need.
        scope.spawn(|| tools::build_peer(shared));
        test_while_building(shared, decoder)
    });
    tested?;
    build.finish(context)?;
    let programs = context.target.join("debug");
    context.set("FLEXFEED_BIN_DIR", programs);
    step("Testing: units, documentation examples, and the scenarios in virtual networks");
    let shared = &*context;
    let scenarios = SCENARIOS.start(shared)?;
    let (others, programs) = thread::scope(|scope| {
        let programs = scope.spawn(|| test_programs(shared));
        let others = OTHERS.run(shared);
        (others, join(programs))
    });
    step("Testing: the scenarios, which ran alongside");
    let scenarios = scenarios.finish()?;
    programs?;
    tested::settle(shared, &[], &[others?, scenarios])
}

/// The scenarios, which mostly wait for clocks.
const SCENARIOS: Lane = Lane {
    name: "scenarios",
    selection: &["--test", "it"],
    filters: &["scenarios::"],
};

/// All other tests; `.ci/run` starts what runs alongside when its log shows that they run.
const OTHERS: Lane = Lane {
    name: "tests",
    selection: &[],
    filters: &["--skip", "scenarios::"],
};

/// Tests what needs none of the programs.
fn test_while_building(context: &Context, decoder: &str) -> Result<()> {
    step("Decoding the recorded flow by docs/protocol.md alone");
    for script in ["docs/decode_flow.py", "docs/decode_flow_test.py"] {
        run(context.command(decoder).arg(script))?;
    }
    test_web(context)
}

/// Tests the built programs by what is not written in Rust.
fn test_programs(context: &Context) -> Result<()> {
    tarball::test_units(context)?;
    fuzz::run_api(context, None)
}

/// Waits for a thread.
fn join(thread: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    let panicked = |_| Err(Failure::broken("a step panicked"));
    thread.join().unwrap_or_else(panicked)
}

/// Runs the dashboard's own checks and tests, in a real browser.
fn test_web(context: &Context) -> Result<()> {
    let npm = |script: &str| {
        let mut npm = context.command("npm");
        npm.args(["run", "--silent", script]);
        npm.current_dir(context.root.join("web"));
        // As it was built: the programs that are made meanwhile have it inside.
        npm.env("SKIP_BUILD", "1");
        npm.env("FLEXFEED_UNSTABLE", context.target.join("unstable.txt"));
        run(&mut npm)
    };
    step("Testing the dashboard: types as in docs/openapi.json, lint, units");
    for script in ["api:check", "check", "lint", "test"] {
        npm(script)?;
    }
    step("Testing the dashboard in a browser");
    npm("e2e")?;
    npm("size")
}
