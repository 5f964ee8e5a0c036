//! The released programs, and fault injection, which the released ones must not have.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::context::{Context, output};
use crate::failure::Failure;

/// The released programs, which are packages of the same names.
pub const PROGRAMS: [&str; 6] = [
    "flexfeed-source",
    "flexfeed-receiver",
    "flexfeed-relay",
    "flexfeed-gateway",
    "flexfeed-console",
    "flexfeed-swarm",
];

/// The Cargo feature by which tests take protections off.
pub const FAULT_INJECTION: &str = "fault-injection";

/// Adds `-p NAME` for each program.
pub fn select(command: &mut Command) -> &mut Command {
    command.args(PROGRAMS.iter().flat_map(|program| ["-p", program]))
}

/// Strings by which a program with fault injection is recognised: the variable that injects faults
/// and the name of each.
#[derive(Debug)]
pub struct FaultNames(Vec<String>);

impl FaultNames {
    /// Reads the names from the source code of the `service` crate.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or lacks the names.
    pub fn read(root: &Path) -> Result<Self> {
        let path = root.join("crates/service/src/faults.rs");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let names = Self::parse(&text);
        let complete = names.0.iter().any(|name| name == "FLEXFEED_FAULTS")
            && names.0.iter().any(|name| name == "fence-off");
        if !complete {
            return Err(Failure::broken(
                "crates/service/src/faults.rs has no names of faults where they are looked for",
            ));
        }
        Ok(names)
    }

    fn parse(text: &str) -> Self {
        let quoted = |line: &str| {
            let (_, rest) = line.split_once('"')?;
            rest.split_once('"').map(|(name, _)| name.to_owned())
        };
        let names = text
            .lines()
            .filter(|line| {
                line.starts_with("pub const VARIABLE: &str = \"")
                    || line.trim_start().starts_with("(Fault::")
            })
            .filter_map(quoted);
        Self(names.collect())
    }

    /// Whether faults can be injected into the program at `path`.
    ///
    /// # Errors
    ///
    /// The file could not be read.
    pub fn are_in(&self, path: &Path) -> Result<bool> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        Ok(self.0.iter().any(|name| contains(&bytes, name.as_bytes())))
    }

    /// Checks that faults can be injected into none of the programs in `folder`.
    ///
    /// # Errors
    ///
    /// Names the first program that has fault injection.
    pub fn refuse(&self, folder: &Path) -> Result<()> {
        for program in PROGRAMS {
            let path = folder.join(program);
            if self.are_in(&path)? {
                return Err(Failure::broken(format!(
                    "{} injects faults: programs with the feature '{FAULT_INJECTION}' are for \
                     tests only",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// Whether `bytes` contains `wanted`.
fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    let Some((&first, rest)) = wanted.split_first() else {
        return true;
    };
    let mut left = bytes;
    while let Some(at) = left.iter().position(|&byte| byte == first) {
        left = &left[at + 1..];
        if left.starts_with(rest) {
            return true;
        }
    }
    false
}

/// Checks that no crate of the released programs is built with fault injection, whichever default
/// features and dependencies they have.
///
/// # Errors
///
/// Names the crates, or says that Cargo could not resolve the features.
pub fn check_features(context: &Context) -> Result<()> {
    let mut command = context.cargo(&["tree", "--locked", "-e", "normal,build"]);
    command.args(["--prefix", "none", "-f", "{p} [{f}]"]);
    let tree = output(select(&mut command)).context("cargo tree failed")?;
    ensure!(
        PROGRAMS.iter().all(|program| tree.contains(program)),
        "cargo tree does not list the programs"
    );
    let mut found: Vec<&str> = tree
        .lines()
        .filter(|line| {
            line.rsplit_once('[')
                .is_some_and(|(_, features)| features.contains(FAULT_INJECTION))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Ok(());
    }
    Err(Failure::broken(format!(
        "released programs would have fault injection:\n  {}",
        found.join("\n  ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULTS: &str = "pub const VARIABLE: &str = \"FLEXFEED_FAULTS\";\n\
                          const NAMES: &[(Fault, &str)] = &[\n    \
                          (Fault::FenceOff, \"fence-off\"),\n];\nlet other = \"other\";\n";

    #[test]
    fn names_are_read_and_found_in_programs() {
        let names = FaultNames::parse(FAULTS);
        assert_eq!(names.0, ["FLEXFEED_FAULTS", "fence-off"]);
        let folder = tempfile::tempdir().unwrap();
        for program in PROGRAMS {
            fs::write(folder.path().join(program), b"\0plain\xff other").unwrap();
        }
        names.refuse(folder.path()).unwrap();
        let relay = folder.path().join("flexfeed-relay");
        fs::write(relay, b"\0ffence-off\xff").unwrap();
        let error = names.refuse(folder.path()).unwrap_err().to_string();
        assert!(error.contains("flexfeed-relay injects faults"), "{error}");
    }

    #[test]
    fn names_of_the_present_code_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let names = FaultNames::read(&root).unwrap();
        assert!(names.0.len() > 5, "{names:?}");
    }

    #[test]
    fn other_code_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("crates/service/src")).unwrap();
        let path = folder.path().join("crates/service/src/faults.rs");
        fs::write(path, "pub const NAME: &str = \"x\";").unwrap();
        assert!(FaultNames::read(folder.path()).is_err());
    }
}
