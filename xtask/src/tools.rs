//! Tools of other projects, built or fetched into `target/tools` where a machine lacks them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::context::{Context, output, retry, run, say, step};
use crate::failure::Failure;

/// Release of cargo-deny that reads the settings of `deny.toml`.
const DENY: &str = "0.20.2";
/// Release of cargo-fuzz that is built where none is installed.
const FUZZ: &str = "0.13.2";
/// Release of the independent AMT relay and gateway that ours are tried against.
const PEER: &str = "0.2.0";

/// Finds a cargo-deny that understands `deny.toml`, or builds it.
///
/// # Errors
///
/// The build failed.
pub fn find_deny(context: &Context) -> Result<PathBuf> {
    let version = |program: &PathBuf| {
        let text = output(context.command(program).arg("--version"))?;
        text.strip_prefix("cargo-deny ").map(str::to_owned)
    };
    let installed = PathBuf::from("cargo-deny");
    if version(&installed).is_some_and(|version| at_least(&version, DENY)) {
        return Ok(installed);
    }
    let ours = context.target.join("tools/bin/cargo-deny");
    if version(&ours).as_deref() != Some(DENY) {
        announce(context, "cargo-deny", DENY);
        context.install_tool("cargo-deny", DENY)?;
    }
    Ok(ours)
}

/// Makes `cargo fuzz` available, building it if need be.
///
/// # Errors
///
/// The build failed.
pub fn find_fuzz(context: &mut Context) -> Result<()> {
    let works = |context: &Context| output(&mut context.cargo(&["fuzz", "--version"])).is_some();
    if works(context) {
        return Ok(());
    }
    let mut path = context.target.join("tools/bin").into_os_string();
    path.push(":");
    path.push(context.variable("PATH").unwrap_or_default());
    context.set("PATH", path);
    if works(context) {
        return Ok(());
    }
    announce(context, "cargo-fuzz", FUZZ);
    context.install_tool("cargo-fuzz", FUZZ)
}

/// Names the folder of an independent AMT relay and gateway to the commands that follow. Without
/// them the tests that compare with them are skipped, or fail with `FLEXFEED_REQUIRE_PEERS`.
pub fn name_peer(context: &mut Context) {
    let folder = peer_folder(context);
    context.set("FLEXFEED_PEERS", folder);
}

/// Builds the independent AMT relay and gateway if need be.
pub fn build_peer(context: &Context) {
    if peer_folder(context).join("amt").is_file() {
        return;
    }
    let name = "quicast-amt, an independent AMT implementation,";
    announce(context, name, PEER);
    if context.install_tool("quicast-amt", PEER).is_err() {
        say("!!! It could not be built: comparisons with it will be SKIPPED where they may be.");
    }
}

fn peer_folder(context: &Context) -> PathBuf {
    let named = context.variable("FLEXFEED_PEERS").map(PathBuf::from);
    named.unwrap_or_else(|| context.target.join("tools/bin"))
}

/// Finds the release of schemathesis in `dev.d/schemathesis.txt`, or fetches it.
///
/// # Errors
///
/// Python or curl is missing, or the package index did not answer.
pub fn find_schemathesis(context: &Context) -> Result<PathBuf> {
    let list = context.root.join("dev.d/schemathesis.txt");
    let wanted = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let place = context.target.join("tools/schemathesis");
    let program = place.join("bin/schemathesis");
    let installed = place.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(program);
    }
    for needed in ["python3", "curl"] {
        if context.find(needed).is_none() {
            return Err(Failure::broken(format!("{needed} is missing")));
        }
    }
    step(format!(
        "Getting schemathesis, which fuzzes the API, into {}",
        place.display()
    ));
    let _ = fs::remove_dir_all(&place);
    run(context.command("python3").args(["-m", "venv"]).arg(&place))?;
    retry(|| {
        let mut pip = context.command(place.join("bin/pip"));
        pip.args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "-r",
        ]);
        pip.arg(&list);
        pip
    })?;
    fs::write(&installed, wanted).with_context(|| installed.display().to_string())?;
    Ok(program)
}

fn announce(context: &Context, name: &str, version: &str) {
    step(format!(
        "Building {name} {version} into {} (once; about a minute)",
        context.target.join("tools").display()
    ));
}

/// Whether a version `a.b.c` is `needed` or newer; what follows a number is left out.
#[must_use]
pub fn at_least(version: &str, needed: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        let digits: String = text
            .chars()
            .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
            .collect();
        let parts = digits.split('.').map(str::parse).map_while(Result::ok);
        let mut numbers: Vec<u64> = parts.collect();
        numbers.resize(3, 0);
        numbers
    };
    version.starts_with(|letter: char| letter.is_ascii_digit())
        && numbers(version) >= numbers(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(at_least("0.20.2", "0.20.2"));
        assert!(at_least("9.0.0", "0.20.2"));
        assert!(at_least("0.100", "0.20.2"));
        assert!(at_least("1.94.0-nightly", "1.94"));
        assert!(!at_least("0.3.20", "0.20.2"));
        assert!(!at_least("0.20", "0.20.2"));
        assert!(!at_least("", "0.20.2"));
        assert!(!at_least("none", "0"));
    }
}
