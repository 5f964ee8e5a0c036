//! The packages of the workspace, as `cargo metadata` describes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A package of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Name in its manifest.
    pub name: String,
    /// Folder of its manifest.
    pub folder: PathBuf,
    /// Programs that `cargo test` links for the unit tests of its libraries and programs.
    pub unit_tests: usize,
    /// Programs that `cargo test` links for its integration tests.
    pub integration_tests: usize,
    /// Name of its library in code, if it has one.
    pub library: Option<String>,
    /// Dependencies that its manifest declares.
    pub dependencies: Vec<Dependency>,
    /// Names under `[package.metadata.xtask] implicit`: dependencies that no code names.
    pub implicit: Vec<String>,
}

/// A dependency that a manifest declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Key in the manifest.
    pub key: String,
    /// Name of the package.
    pub package: String,
    /// Folder of the package, if it is a path.
    pub path: Option<PathBuf>,
    /// Whether it is for tests, examples and benchmarks only.
    pub dev: bool,
    /// Whether it is for the build script.
    pub build: bool,
}

/// Returns the packages of the workspace at `root`.
///
/// # Errors
///
/// `cargo metadata` failed, or printed something else than it is documented to.
pub fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new("cargo")
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    parse(&output.stdout)
}

/// Reads the packages out of the JSON that `cargo metadata` prints.
fn parse(json: &[u8]) -> Result<Vec<Package>> {
    let value: Value = serde_json::from_slice(json).context("cargo metadata")?;
    let packages = value["packages"].as_array().context("no packages")?;
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let manifest = PathBuf::from(text(value, "manifest_path")?);
    let targets = array(value, "targets");
    let has = |target: &Value, wanted: &[&str]| {
        let mut kinds = array(target, "kind").iter().filter_map(Value::as_str);
        kinds.any(|kind| wanted.contains(&kind))
    };
    let library = targets
        .iter()
        .find(|target| has(target, &["lib", "proc-macro"]))
        .map(|target| text(target, "name"))
        .transpose()?;
    let tested = |kinds: &[&str]| {
        targets
            .iter()
            .filter(|target| target["test"].as_bool() == Some(true) && has(target, kinds))
            .count()
    };
    let implicit = &value["metadata"]["xtask"]["implicit"];
    Ok(Package {
        name: text(value, "name")?,
        folder: manifest.parent().context("manifest_path")?.to_owned(),
        unit_tests: tested(&["lib", "proc-macro", "bin"]),
        integration_tests: tested(&["test"]),
        library,
        dependencies: array(value, "dependencies")
            .iter()
            .map(dependency)
            .collect::<Result<_>>()?,
        implicit: implicit
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
    })
}

fn dependency(value: &Value) -> Result<Dependency> {
    let package = text(value, "name")?;
    Ok(Dependency {
        key: value["rename"].as_str().unwrap_or(&package).to_owned(),
        package,
        path: value["path"].as_str().map(PathBuf::from),
        dev: value["kind"] == "dev",
        build: value["kind"] == "build",
    })
}

fn text(value: &Value, key: &str) -> Result<String> {
    let found = value[key].as_str();
    Ok(found.with_context(|| format!("no {key}"))?.to_owned())
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read() {
        let json = br#"{"packages": [{
            "name": "flexfeed-a", "manifest_path": "/w/a/Cargo.toml",
            "metadata": {"xtask": {"implicit": ["zstd-sys"]}},
            "targets": [
                {"kind": ["lib"], "name": "a", "src_path": "/w/a/src/lib.rs", "test": true},
                {"kind": ["test"], "name": "it", "src_path": "/w/a/tests/it/main.rs", "test": true},
                {"kind": ["example"], "name": "e", "src_path": "/w/a/examples/e.rs", "test": false}
            ],
            "dependencies": [
                {"name": "flexfeed-b", "rename": "b", "kind": null, "path": "/w/b"},
                {"name": "tempfile", "rename": null, "kind": "dev"}
            ]
        }]}"#;
        let packages = parse(json).unwrap();
        let package = &packages[0];
        assert_eq!(package.library.as_deref(), Some("a"));
        assert_eq!((package.unit_tests, package.integration_tests), (1, 1));
        assert_eq!(package.implicit, ["zstd-sys"]);
        assert_eq!(package.dependencies[0].key, "b");
        assert_eq!(package.dependencies[0].package, "flexfeed-b");
        assert!(package.dependencies[1].dev);
    }

    #[test]
    fn other_output_is_an_error() {
        assert!(parse(b"warning").is_err());
        assert!(parse(b"{}").is_err());
    }
}
