//! `./dev lint`: everything that is checked without running the product.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::context::{Context, output, run, say, step};
use crate::failure::Failure;
use crate::programs::select;
use crate::{dependencies, programs, tools};

/// The packages of the programs' libraries.
const LIBRARIES: [&str; 11] = [
    "flexicast",
    "flexicast-tokio",
    "flexfeed-amt",
    "flexfeed-amt-tokio",
    "flexfeed-netio",
    "flexfeed-feed",
    "flexfeed-signing",
    "flexfeed-erasure",
    "flexfeed-store",
    "flexfeed-service",
    "flexfeed-console-site",
];

/// Folders that hold nothing of ours.
const FOREIGN: [&str; 3] = ["target", ".git", "node_modules"];

/// Runs all checks, the quickest first.
///
/// # Errors
///
/// The first check that failed.
pub fn run_all(context: &Context) -> Result<()> {
    step("rustfmt");
    run(&mut context.cargo(&["fmt", "--all", "--check"]))?;
    step("unused dependencies");
    dependencies::check(&context.root)?;
    step("released programs are built without fault injection");
    programs::check_features(context)?;
    step("shellcheck");
    let scripts = shell_scripts(&context.root)?;
    run(context.command("shellcheck").arg("-x").args(scripts))?;
    clippy(context)?;
    step("rustdoc");
    let mut doc = context.cargo(&["doc", "--locked", "--workspace", "--no-deps", "--quiet"]);
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    deny(context)?;
    step("lint: all well");
    Ok(())
}

/// Runs clippy on everything with all features, and on the programs and their libraries as they are
/// released: without the features that the workspace's tests switch on.
fn clippy(context: &Context) -> Result<()> {
    let version = output(context.command("rustc").arg("--version")).unwrap_or_default();
    step(format!("clippy ({version})"));
    let mut released = context.cargo(&["clippy", "--locked", "--lib", "--bins"]);
    select(&mut released).args(LIBRARIES.iter().flat_map(|library| ["-p", library]));
    let mut all = context.cargo(&["clippy", "--locked", "--workspace"]);
    all.args(["--all-targets", "--all-features"]);
    for mut clippy in [released, all] {
        run(clippy.args(["--", "-D", "warnings"])).inspect_err(|_| {
            say("Other versions of Rust have other lints; CI uses that of rust-toolchain.toml.");
        })?;
    }
    Ok(())
}

/// Checks licences, origins and known vulnerabilities of dependencies.
fn deny(context: &Context) -> Result<()> {
    let deny = tools::find_deny(context)?;
    let check = ["--locked", "check"];
    step("cargo-deny: licences, banned crates, where crates come from");
    let topics = ["--hide-inclusion-graph", "licenses", "bans", "sources"];
    run(context.command(&deny).args(check).args(topics))?;
    step("cargo-deny: known vulnerabilities");
    if run(context.command(&deny).args(["fetch", "db"])).is_err() {
        say("\n!!! SKIPPED: known vulnerabilities were NOT checked, because the RustSec advisory");
        say("!!! database could not be fetched (see above). Everything else was. Run ./dev lint");
        say("!!! again where that database can be reached.");
        return Ok(());
    }
    run(context.command(&deny).args(check).arg("advisories"))
}

/// Returns all shell scripts of the repository, sorted.
fn shell_scripts(root: &Path) -> Result<Vec<PathBuf>> {
    let mut scripts = vec![
        root.join("dev"),
        root.join(".ci/run"),
        root.join(".ci/compile"),
    ];
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if !FOREIGN.iter().any(|name| path.ends_with(name)) {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "sh") {
                scripts.push(path);
            }
        }
    }
    scripts.sort();
    if scripts.len() < 3 {
        return Err(Failure::broken("no shell scripts were found"));
    }
    Ok(scripts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_others_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["deploy/docker", "node_modules/x", "target/y"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("a.sh"), "").unwrap();
        }
        let found = shell_scripts(folder.path()).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|path| {
                path.strip_prefix(folder.path())
                    .unwrap()
                    .display()
                    .to_string()
            })
            .collect();
        assert_eq!(
            names,
            [".ci/compile", ".ci/run", "deploy/docker/a.sh", "dev"]
        );
    }
}
