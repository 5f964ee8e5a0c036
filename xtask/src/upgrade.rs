//! `./dev test-upgrade`: this version with the programs of an earlier one, and in their place.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::context::{Context, judge, output, retry, run, say, step};
use crate::failure::Failure;
use crate::tested::{self, Lane};

/// Programs of the earlier version that the scenarios run.
const OLDER: [&str; 2] = ["flexfeed-source", "flexfeed-receiver"];

/// Sources of the programs: a commit that differs in none of these has the same programs.
const INGREDIENTS: [&str; 4] = ["Cargo.lock", "crates", "services", "migrations"];

/// Number of commits among which the earlier version is looked for.
const MOST_COMMITS: &str = "--max-count=200";

/// Ending of the earlier version's number, which distinguishes its programs from this version's.
const SUFFIX: &str = "-previous";

/// Runs the upgrade scenarios against the commit that `arguments` name, or the newest one whose
/// programs differ. With `--build` that version's programs are built, and nothing is run.
///
/// # Errors
///
/// There is no such commit, a version could not be built, or a scenario failed.
pub fn run_tests(context: &mut Context, arguments: &[&str]) -> Result<()> {
    let (options, commits): (Vec<&str>, Vec<&str>) = arguments
        .iter()
        .partition(|argument| argument.starts_with('-'));
    if options.iter().any(|option| *option != "--build") || commits.len() > 1 {
        return Err(Failure::usage(format!(
            "test-upgrade takes a commit and --build, not '{}'",
            arguments.join(" ")
        )));
    }
    let named = commits.first().copied().map(str::to_owned);
    let Some(commit) = named.or_else(|| previous_commit(context)) else {
        if context.is_complete() {
            return Err(Failure::usage(
                "there is no earlier version here to try this one with: clone with history \
                 (git fetch --unshallow)",
            ));
        }
        say("!!! SKIPPED: there is no earlier version here (a clone without history?), so nothing");
        say("!!! was tried with one.");
        return Ok(());
    };
    let resolved = output(context.command("git").args([
        "rev-parse",
        "--verify",
        "--quiet",
        &format!("{commit}^{{commit}}"),
    ]));
    let Some(commit) = resolved else {
        return Err(Failure::usage(format!(
            "there is no commit '{commit}' here"
        )));
    };
    build_previous(context, &commit)?;
    if !options.is_empty() {
        return Ok(());
    }
    step("Building this version, and the scenarios");
    run(&mut context.cargo(&["build", "--locked", "--workspace", "--bins", "--tests"]))?;
    for program in OLDER {
        let path = context.target.join("debug").join(program);
        if is_previous(&path) {
            let reason = format!("{} is not this version's", path.display());
            return Err(Failure::broken(reason));
        }
    }
    step("Testing: the two with one another, and this one in the place of the other");
    let previous = context.target.join("previous");
    context.set("FLEXFEED_PREVIOUS", previous);
    let programs = context.target.join("debug");
    context.set("FLEXFEED_BIN_DIR", programs);
    let scenarios = Lane {
        name: "upgrade",
        selection: &["--test", "it"],
        filters: &["up1_", "up2_"],
    };
    let outcome = scenarios.run(context)?;
    tested::settle(context, scenarios.selection, &[outcome])
}

/// Returns the newest commit before this one (or before what is not committed yet) whose programs
/// are other ones.
fn previous_commit(context: &Context) -> Option<String> {
    let mut list = context.command("git");
    list.args(["rev-list", "--first-parent", MOST_COMMITS, "HEAD"]);
    let commits = output(&mut list)?;
    commits
        .lines()
        .find(|commit| {
            let mut diff = context.command("git");
            diff.args(["diff", "--quiet", commit, "--"])
                .args(INGREDIENTS);
            !diff.status().is_ok_and(|status| status.success())
        })
        .map(str::to_owned)
}

/// Builds the programs of `commit` into `target/previous`, unless they are there already.
fn build_previous(context: &Context, commit: &str) -> Result<()> {
    // Always the same folder: what has not changed between two earlier versions is not built twice.
    let previous = context.target.join("previous");
    let done = previous.join("commit");
    if fs::read_to_string(&done).is_ok_and(|text| text.trim() == commit) {
        return Ok(());
    }
    let mut show = context.command("git");
    show.args(["log", "-1", "--format=%h of %cs, \"%s\"", commit]);
    let name = output(&mut show).unwrap_or_else(|| commit.to_owned());
    step(format!("Building the programs of {name}"));
    context.announce_first_build("debug", "7 to 10");
    let source = previous.join("source");
    let _ = fs::remove_dir_all(&source);
    let _ = fs::remove_file(&done);
    fs::create_dir_all(&source).with_context(|| source.display().to_string())?;
    unpack(context, commit, &source)?;
    prepare(context, &source)?;
    // The whole workspace decides on features, as for this version: what both are made of is then
    // built once. The programs go where they do not replace this version's.
    let artifacts = previous.join("target");
    retry(|| {
        let mut build = context.cargo(&["build", "--workspace"]);
        build.args(OLDER.iter().flat_map(|program| ["--bin", program]));
        build.current_dir(&source);
        build.env("CARGO_TARGET_DIR", &artifacts);
        build.env("CARGO_BUILD_BUILD_DIR", &context.target);
        build
    })?;
    for program in OLDER {
        let path = previous.join(program);
        // A new file each time: one that still runs cannot be written to.
        let _ = fs::remove_file(&path);
        fs::copy(artifacts.join("debug").join(program), &path)
            .with_context(|| path.display().to_string())?;
        if !is_previous(&path) {
            return Err(Failure::broken(format!(
                "{} is not the earlier version's",
                path.display()
            )));
        }
    }
    fs::write(&done, commit).with_context(|| done.display().to_string())
}

/// Unpacks a commit. Its files get the present time: Cargo goes by times, and may have built an
/// even earlier version since the commit.
fn unpack(context: &Context, commit: &str, folder: &Path) -> Result<()> {
    let mut archive = context
        .command("git")
        .args(["archive", commit])
        .stdout(Stdio::piped())
        .spawn()
        .context("git")?;
    let mut unpacking = Command::new("tar");
    unpacking.args(["-xm", "-C"]).arg(folder);
    if let Some(output) = archive.stdout.take() {
        unpacking.stdin(output);
    }
    let unpacked = run(&mut unpacking);
    judge(archive.wait()?)?;
    unpacked
}

/// Makes the unpacked version one that Cargo tells from this one, with this version's compiler.
fn prepare(context: &Context, source: &Path) -> Result<()> {
    let toolchain = "rust-toolchain.toml";
    fs::copy(context.root.join(toolchain), source.join(toolchain)).context(toolchain)?;
    let manifest = source.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let ours = fs::read_to_string(context.root.join("Cargo.toml")).context("Cargo.toml")?;
    let text = with_profiles(&renumbered(&text), &ours);
    fs::write(&manifest, text).with_context(|| manifest.display().to_string())
}

/// Replaces the profiles of a workspace by those of another one: crates of others are shared only
/// where both build them alike.
fn with_profiles(manifest: &str, other: &str) -> String {
    let sections = |text: &str, of_profiles: bool| {
        let mut is_wanted = !of_profiles;
        let mut lines = String::new();
        for line in text.lines() {
            if line.starts_with('[') {
                is_wanted = line.starts_with("[profile.") == of_profiles;
            }
            if is_wanted {
                lines.push_str(line);
                lines.push('\n');
            }
        }
        lines
    };
    sections(manifest, false) + &sections(other, true)
}

/// Gives a workspace another version number. Cargo takes crates of the same name, version and place
/// within their workspace for the same ones, and would take one version's for the other's. No
/// requirement allows the new number, so that requirements on paths lose theirs.
fn renumbered(manifest: &str) -> String {
    let mut in_package = false;
    let mut lines = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_package = line == "[workspace.package]";
        }
        if in_package && line.starts_with("version") {
            let end = line.rfind('"').unwrap_or(line.len());
            lines.push_str(&format!("{}{SUFFIX}{}", &line[..end], &line[end..]));
        } else if line.contains("path = ")
            && let Some((before, rest)) = line.split_once(", version = \"")
            && let Some((_, after)) = rest.split_once('"')
        {
            lines.push_str(&format!("{before}{after}"));
        } else {
            lines.push_str(line);
        }
        lines.push('\n');
    }
    lines
}

/// Whether a program is the earlier version's.
fn is_previous(program: &Path) -> bool {
    output(Command::new(program).arg("--version")).is_some_and(|text| text.ends_with(SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_gets_another_number() {
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
                        [workspace.dependencies]\n\
                        netio = { path = \"crates/netio\", version = \"0.1.0\", package = \"n\" }\n\
                        version-sync = { version = \"1\" }\nboring = \"5.4\"\n";
        assert_eq!(
            renumbered(manifest),
            "[workspace.package]\nversion = \"0.1.0-previous\"\nedition = \"2024\"\n\n\
             [workspace.dependencies]\nnetio = { path = \"crates/netio\", package = \"n\" }\n\
             version-sync = { version = \"1\" }\nboring = \"5.4\"\n"
        );
    }

    #[test]
    fn profiles_are_those_of_this_version() {
        let older = "[workspace]\nmembers = []\n\n[profile.dev]\ndebug = 1\n\n\
                     [workspace.lints.rust]\nmissing_docs = \"warn\"\n";
        let ours = "[workspace]\nmembers = [\"x\"]\n\n[profile.dev.package.\"*\"]\nopt-level = 1\n";
        assert_eq!(
            with_profiles(older, ours),
            "[workspace]\nmembers = []\n\n[workspace.lints.rust]\nmissing_docs = \"warn\"\n\
             [profile.dev.package.\"*\"]\nopt-level = 1\n"
        );
    }
}
