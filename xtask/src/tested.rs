//! Runs of `cargo test`, with a second attempt for a few tests that fail.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::context::{Context, judge, run_logged, say, step};
use crate::failure::Failure;

/// Number of tests that may fail at their first attempt: more are not bad luck.
const MOST_UNSTABLE: usize = 5;

/// Time between looks into a log.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Tests that are run by one `cargo test`: those of all programs that `selection` selects (all if
/// empty), without those that `filters` leave out.
#[derive(Debug, Clone, Copy)]
pub struct Lane<'a> {
    /// Name of the log in the target folder, without its ending.
    pub name: &'a str,
    /// Options of Cargo that select test programs.
    pub selection: &'a [&'a str],
    /// Options of the test programs that select tests.
    pub filters: &'a [&'a str],
}

/// The end of a lane, and the tests that failed if its log names all of them.
#[derive(Debug)]
pub struct Outcome {
    status: ExitStatus,
    failed: Option<Vec<String>>,
}

impl Lane<'_> {
    fn command(&self, context: &Context) -> Command {
        let mut command = context.cargo(&["test", "--locked", "--workspace", "--no-fail-fast"]);
        command.args(self.selection).arg("--").args(self.filters);
        command
    }

    fn log(&self, context: &Context) -> PathBuf {
        context.target.join(format!("{}.log", self.name))
    }

    /// Runs the tests and shows what they print.
    ///
    /// # Errors
    ///
    /// Cargo could not be started, or the log not be written or read.
    pub fn run(&self, context: &Context) -> Result<Outcome> {
        let log = self.log(context);
        let status = run_logged(&mut self.command(context), &log)?;
        Outcome::read(status, &log)
    }

    /// Starts the tests, and waits until the first ones run: Cargo then needs its lock no longer,
    /// for which it would have to wait while something else is compiled.
    ///
    /// # Errors
    ///
    /// Cargo could not be started, or the log not be written or read.
    #[expect(clippy::disallowed_methods, reason = "a program without async tasks")]
    pub fn start(&self, context: &Context) -> Result<Started> {
        let log = self.log(context);
        fs::create_dir_all(&context.target).context("target")?;
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        // If something kills this program, the kernel ends Cargo.
        let mut command = context.command("setpriv");
        command.args(["--pdeathsig", "TERM", "cargo"]);
        command.args(self.command(context).get_args());
        command.stdout(file.try_clone()?).stderr(file);
        let mut started = Started {
            cargo: command.stdin(Stdio::null()).spawn().context("cargo")?,
            log,
        };
        while started.cargo.try_wait()?.is_none() {
            let text = fs::read(&started.log)?;
            if String::from_utf8_lossy(&text).contains("  Running ") {
                break;
            }
            thread::sleep(LOOK_PAUSE);
        }
        Ok(started)
    }
}

/// A lane that runs in the background.
#[derive(Debug)]
pub struct Started {
    cargo: Child,
    log: PathBuf,
}

impl Started {
    /// Waits for the end and shows what the tests printed.
    ///
    /// # Errors
    ///
    /// The log could not be read.
    pub fn finish(mut self) -> Result<Outcome> {
        let status = self.cargo.wait()?;
        let text = fs::read(&self.log).with_context(|| self.log.display().to_string())?;
        // The reader may be gone.
        let _ = io::stdout().write_all(&text);
        Outcome::read(status, &self.log)
    }
}

impl Outcome {
    fn read(status: ExitStatus, log: &Path) -> Result<Self> {
        let text = fs::read(log).with_context(|| log.display().to_string())?;
        let failed = match status.success() {
            true => Some(Vec::new()),
            false => failed_tests(&String::from_utf8_lossy(&text)),
        };
        Ok(Self { status, failed })
    }
}

/// Judges the tests of several lanes with one selection of test programs.
///
/// Tests work against the clock, on machines that others use, too: those that fail are run once
/// more, one after the other. What fails twice has failed; what failed once is listed in
/// `unstable.txt`, because that is a defect as well. `FLEXFEED_STRICT` switches the second attempt
/// off.
///
/// # Errors
///
/// A test failed.
pub fn settle(context: &Context, selection: &[&str], outcomes: &[Outcome]) -> Result<()> {
    let Some(first) = outcomes.iter().find(|outcome| !outcome.status.success()) else {
        return Ok(());
    };
    // A lane that failed without a name cannot be run again in parts.
    let nameless = |outcome: &Outcome| {
        let names = outcome.failed.as_ref();
        !outcome.status.success() && names.is_none_or(Vec::is_empty)
    };
    let failed: Vec<String> = outcomes
        .iter()
        .flat_map(|outcome| outcome.failed.iter().flatten().cloned())
        .collect();
    let is_strict = context.variable("FLEXFEED_STRICT").is_some();
    if is_strict || outcomes.iter().any(nameless) || failed.len() > MOST_UNSTABLE {
        return judge(first.status);
    }
    step(format!(
        "Trying once more what failed: {}",
        failed.join(" ")
    ));
    again(context, selection, &failed)?;
    let list = context.target.join("unstable.txt");
    let mut file = OpenOptions::new().create(true).append(true).open(&list);
    let written = file.as_mut().map(|file| {
        let lines = failed.iter().fold(String::new(), |mut lines, name| {
            let _ = writeln!(lines, "{name}");
            lines
        });
        file.write_all(lines.as_bytes())
    });
    if !matches!(written, Ok(Ok(()))) {
        return Err(Failure::broken(format!("{}: not writable", list.display())));
    }
    say(
        "\n!!! UNSTABLE: these failed at first and passed at the second attempt. That is a defect,",
    );
    say("!!! of the test or of what it tests:");
    for name in &failed {
        say(format!("!!!   {name}"));
    }
    Ok(())
}

/// Runs the tests with these names, one after the other.
fn again(context: &Context, selection: &[&str], names: &[String]) -> Result<()> {
    let log = context.target.join("again.log");
    let mut command = context.cargo(&["test", "--locked", "--workspace"]);
    if selection.is_empty() {
        // Not the examples of the documentation: they know no exact names.
        command.args(["--lib", "--bins", "--tests"]);
    } else {
        command.args(selection);
    }
    command
        .args(["--", "--exact", "--test-threads=1"])
        .args(names);
    if !run_logged(&mut command, &log)?.success() {
        return Err(Failure::broken(format!(
            "failed twice: see above and, for the first time, the logs in {}",
            context.target.display()
        )));
    }
    let text = fs::read(&log).with_context(|| log.display().to_string())?;
    let passed = passed(&String::from_utf8_lossy(&text));
    if passed < names.len() {
        return Err(Failure::broken(format!(
            "of the {} that failed, {passed} were found again: see {}",
            names.len(),
            log.display()
        )));
    }
    Ok(())
}

/// Returns the names of the tests that failed, if the log names all of them: not where a test
/// program ended early, or where an example of the documentation failed.
fn failed_tests(log: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut listed = Vec::new();
    let (mut programs, mut failed, mut targets) = (0, 0, 0);
    for line in log.lines() {
        if line == "failures:" {
            listed.clear();
        } else if let Some(name) = line.strip_prefix("    ")
            && !name.is_empty()
            && !name.contains(' ')
        {
            listed.push(name.to_owned());
        } else if let Some(counts) = line.strip_prefix("test result: FAILED") {
            programs += 1;
            failed += count_before(counts, "failed");
            all.append(&mut listed);
        } else if let Some(rest) = line.strip_prefix("error: ")
            && (rest.ends_with(" target failed:") || rest.ends_with(" targets failed:"))
        {
            targets = rest.split(' ').next()?.parse().ok()?;
        }
    }
    (programs > 0 && programs == targets && failed == all.len()).then_some(all)
}

/// Returns the number of tests that passed, by the results of their programs: one after the other,
/// what tests print is in the middle of their own lines.
fn passed(log: &str) -> usize {
    log.lines()
        .filter_map(|line| line.strip_prefix("test result: ok."))
        .map(|counts| count_before(counts, "passed"))
        .sum()
}

/// Returns the number in front of a word, as in `3 failed;`.
fn count_before(text: &str, word: &str) -> usize {
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .windows(2)
        .find(|pair| pair[1].trim_end_matches(';') == word)
        .and_then(|pair| pair[0].parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line that `cargo test` prints where tests of one program fail.
    fn log(targets: usize, failed: usize, names: &[&str]) -> String {
        let names: String = names.iter().map(|name| format!("    {name}\n")).collect();
        format!(
            "running 9 tests\n\nfailures:\n\n---- a::b stdout ----\n    nonsense\n\n\n\
             failures:\n{names}\ntest result: FAILED. 5 passed; {failed} failed; 0 ignored\n\n\
             error: {targets} target failed:\n    `-p x --lib`\n"
        )
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(
            failed_tests(&log(1, 2, &["a::b", "c::d"])).unwrap(),
            ["a::b", "c::d"]
        );
        let two = format!("{}{}", log(9, 1, &["a"]), log(2, 1, &["b"]));
        assert_eq!(failed_tests(&two).unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_log_that_does_not_name_all_names_none() {
        assert!(failed_tests(&log(1, 2, &["a::b"])).is_none());
        assert!(failed_tests(&log(2, 1, &["a::b"])).is_none());
        assert!(failed_tests("error: could not compile").is_none());
        assert!(failed_tests("").is_none());
    }

    #[test]
    fn results_of_several_programs_are_added() {
        let log = "test a ... a warning\nok\ntest result: ok. 1 passed; 0 failed\n\
                   test result: ok. 12 passed; 0 failed; 3 ignored\n";
        assert_eq!(passed(log), 13);
        assert_eq!(passed(""), 0);
    }
}
