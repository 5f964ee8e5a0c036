//! Dependencies that are declared and not used.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::figures::rust_files;
use crate::figures::source::Source;
use crate::workspace::{self, Package};

/// Checks that every declared dependency of the workspace at `root` is named by code.
///
/// # Errors
///
/// Lists each dependency that is not used, or used by tests only and not declared so.
pub fn check(root: &Path) -> Result<()> {
    let packages = workspace::packages(root)?;
    let mut problems = Vec::new();
    for package in &packages {
        let manifest = package.folder.join("Cargo.toml");
        let manifest = manifest.strip_prefix(root).unwrap_or(&manifest).display();
        for problem in unused(package, &packages)? {
            problems.push(format!("{manifest}: {problem}"));
        }
    }
    let text = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    let declared: BTreeSet<&str> = packages
        .iter()
        .flat_map(|package| &package.dependencies)
        .flat_map(|dependency| [dependency.key.as_str(), dependency.package.as_str()])
        .collect();
    for key in workspace_dependencies(&text) {
        if !declared.contains(key) {
            problems.push(format!("Cargo.toml: no package depends on `{key}`"));
        }
    }
    if !problems.is_empty() {
        bail!("unused dependencies:\n  {}", problems.join("\n  "));
    }
    Ok(())
}

/// Returns the keys of `[workspace.dependencies]`.
fn workspace_dependencies(manifest: &str) -> Vec<&str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(key, _)| key.split('.').next().unwrap_or(key).trim())
        .collect()
}

/// Returns what is wrong with the dependencies of a package, a line each.
fn unused(package: &Package, packages: &[Package]) -> Result<Vec<String>> {
    let mut product = String::new();
    let mut tests = String::new();
    for path in rust_files(&package.folder)? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let source = Source::new(text);
        let inside = path.strip_prefix(&package.folder).unwrap_or(&path);
        if inside.starts_with("src") || inside == Path::new("build.rs") {
            product.push_str(&source.code);
        } else {
            tests.push_str(&source.code);
        }
    }
    let mut problems = Vec::new();
    for dependency in &package.dependencies {
        let key = &dependency.key;
        if package.implicit.contains(key) {
            continue;
        }
        let library = packages
            .iter()
            .find(|other| other.name == dependency.package)
            .and_then(|other| other.library.clone());
        let name = match library {
            Some(library) if *key == dependency.package => library,
            _ => key.replace('-', "_"),
        };
        let in_product = names(&product, &name);
        let in_tests = names(&tests, &name);
        // An integration test reaches its own package without a declaration.
        let itself = dependency.package == package.name;
        if itself || in_product || (dependency.dev && in_tests) {
            continue;
        }
        problems.push(if in_tests {
            format!("`{key}` is used by tests only: it belongs to dev-dependencies")
        } else {
            format!("nothing uses `{key}`")
        });
    }
    problems.sort();
    problems.dedup();
    Ok(problems)
}

/// Whether `code` has `name` as a word of its own.
fn names(code: &str, name: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(start, _)| {
        !code[..start].ends_with(letter) && !code[start + name.len()..].starts_with(letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn dependency(key: &str, package: &str, dev: bool) -> Dependency {
        Dependency {
            key: key.to_owned(),
            package: package.to_owned(),
            path: None,
            dev,
            build: false,
        }
    }

    #[test]
    fn dependencies_that_no_code_names_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("src")).unwrap();
        fs::create_dir_all(folder.path().join("tests")).unwrap();
        let lib = "// backon\nuse async_trait::async_trait;\nuse netio::Socket;\n";
        fs::write(folder.path().join("src/lib.rs"), lib).unwrap();
        fs::write(folder.path().join("tests/it.rs"), "use url::Url;\n").unwrap();
        let package = Package {
            name: "p".to_owned(),
            folder: folder.path().to_owned(),
            unit_tests: 1,
            integration_tests: 0,
            library: Some("p".to_owned()),
            dependencies: vec![
                dependency("async-trait", "async-trait", false),
                dependency("backon", "backon", false),
                dependency("netio", "flexfeed-netio", false),
                dependency("url", "url", false),
                dependency("url", "url", true),
                dependency("zstd-sys", "zstd-sys", false),
            ],
            implicit: vec!["zstd-sys".to_owned()],
        };
        assert_eq!(
            unused(&package, &[]).unwrap(),
            [
                "`url` is used by tests only: it belongs to dev-dependencies",
                "nothing uses `backon`",
            ]
        );
    }

    #[test]
    fn a_library_of_another_name_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/lib.rs"), "use postgres::Server;\n").unwrap();
        let package = |name: &str, library: &str, dependencies| Package {
            name: name.to_owned(),
            folder: folder.path().to_owned(),
            unit_tests: 1,
            integration_tests: 0,
            library: Some(library.to_owned()),
            dependencies,
            implicit: Vec::new(),
        };
        let user = dependency("flexfeed-postgres", "flexfeed-postgres", false);
        let packages = [
            package("flexfeed-postgres", "postgres", Vec::new()),
            package("p", "p", vec![user]),
        ];
        assert!(unused(&packages[1], &packages).unwrap().is_empty());
    }

    #[test]
    fn keys_of_the_workspace_are_found() {
        let manifest = "[workspace.dependencies]\n# Ours\na = \"1\"\nb-c = { path = \"x\" }\n\
                        d.version = \"2\"\n\n[profile.dev]\nopt-level = 1\n";
        assert_eq!(workspace_dependencies(manifest), ["a", "b-c", "d"]);
    }
}
