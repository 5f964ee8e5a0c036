//! Runs of `cargo test`, with a second attempt for a few tests that fail.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;

use anyhow::{Context as _, Result};

use crate::context::{Context, judge, run_logged, say, step};
use crate::failure::Failure;

/// Number of tests that may fail at their first attempt: more are not bad luck.
const MOST_UNSTABLE: usize = 5;

/// Runs the tests of the programs that `selection` selects (all if empty), or those that match a
/// filter.
///
/// Tests work against the clock, on machines that others use, too: those that fail are run once
/// more, one after the other. What fails twice has failed; what failed once is listed in
/// `unstable.txt`, because that is a defect as well. `FLEXFEED_STRICT` switches the second attempt
/// off.
///
/// # Errors
///
/// A test failed.
pub fn run(context: &Context, selection: &[&str], filters: &[&str]) -> Result<()> {
    let log = context.target.join("tests.log");
    let mut command = context.cargo(&["test", "--locked", "--workspace", "--no-fail-fast"]);
    command.args(selection).arg("--").args(filters);
    let first = run_logged(&mut command, &log)?;
    if first.success() {
        return Ok(());
    }
    let text = fs::read(&log).with_context(|| log.display().to_string())?;
    let failed = failed_tests(&String::from_utf8_lossy(&text)).unwrap_or_default();
    let is_strict = context.variable("FLEXFEED_STRICT").is_some();
    if is_strict || failed.is_empty() || failed.len() > MOST_UNSTABLE {
        return judge(first);
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
            "failed twice: see above and, for the first time, {}",
            context.target.join("tests.log").display()
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
