//! `./dev tarball`: what machines without containers take: programs, units for systemd, examples of
//! settings, documents.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::context::{Context, output, run, say, step};
use crate::failure::Failure;
use crate::programs::{FaultNames, PROGRAMS, select};

/// Documents of the repository's first folder that are packed.
const FIRST_PAGES: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
];

/// Documents that are packed in the same place, where links from others find them.
const DOCUMENTS: [&str; 6] = [
    "docs",
    "testbed/README.md",
    "helm/flexfeed",
    "deploy/prometheus",
    "deploy/grafana",
    "deploy/systemd",
];

/// Makes `target/tarball/flexfeed-VERSION-ARCH-linux-KIND.tar.gz` and its checksum: of static
/// programs, which it builds, or of those in `built`, as they are. KIND is `static`, or `gnu` for
/// programs that need the system's C library.
///
/// # Errors
///
/// Something could not be built or written, or a program has fault injection.
pub fn pack(context: &Context, built: Option<&Path>) -> Result<()> {
    let built = match built {
        Some(folder) => folder.to_owned(),
        None => build_static(context)?,
    };
    require_programs(&built)?;
    FaultNames::read(&context.root)?.refuse(&built)?;
    let is_static = are_static(&built);
    let kind = if is_static { "static" } else { "gnu" };
    let machine = output(Command::new("uname").arg("-m")).context("uname")?;
    let name = format!(
        "flexfeed-{}-{machine}-linux-{kind}",
        version(&context.root)?
    );
    step(format!("Packing {name}"));
    let folder = context.target.join("tarball");
    let tree = folder.join(&name);
    let _ = fs::remove_dir_all(&tree);
    fill(context, &built, &tree, is_static)?;
    let file = archive(&folder, &name)?;
    let size = fs::metadata(&file)?.len() as f64 / 1e6;
    say(format!("{}  {size:.1} MB", file.display()));
    Ok(())
}

/// Checks that all programs are in a folder.
///
/// # Errors
///
/// Names the first that is not.
pub fn require_programs(folder: &Path) -> Result<()> {
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    for program in PROGRAMS {
        if !is_program(&folder.join(program)) {
            let reason = format!("there is no {program} in {}", folder.display());
            return Err(Failure::usage(reason));
        }
    }
    Ok(())
}

/// Returns the version of the workspace.
///
/// # Errors
///
/// `Cargo.toml` could not be read, or has none.
pub fn version(root: &Path) -> Result<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    let version = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.package]")
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    Ok(version.context("Cargo.toml: no version")?.to_owned())
}

/// Removes symbols and debug information from a program on its way to `to`.
///
/// # Errors
///
/// The file is no program.
pub fn strip(from: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.args(["--strip-all", "-o"]).arg(to).arg(from);
    run(&mut strip).map_err(|_| Failure::broken(format!("{} is no program", from.display())))
}

/// Whether no program in a folder asks for a loader of libraries.
fn are_static(folder: &Path) -> bool {
    PROGRAMS.iter().all(|program| {
        let mut headers = Command::new("readelf");
        headers.arg("-lW").arg(folder.join(program));
        output(&mut headers).is_some_and(|text| !text.contains("INTERP"))
    })
}

/// Builds static programs in a target folder of their own, so that other builds stay warm. Static
/// means glibc's own parts for files and the DNS: `deploy/tarball/names.c` says why no others.
fn build_static(context: &Context) -> Result<PathBuf> {
    if !links_statically()? {
        return Err(Failure::usage(
            "this machine cannot link C++ statically: the parts of the libraries for it are \
             missing (Debian has them in libc6-dev and libstdc++-*-dev, Fedora in glibc-static and \
             libstdc++-static)",
        ));
    }
    run(context.command("./dev").arg("web"))?;
    step("Building the programs, optimised and static");
    let version = output(Command::new("rustc").arg("-vV")).unwrap_or_default();
    let triple = version.lines().find_map(|line| line.strip_prefix("host: "));
    let triple = triple.unwrap_or_default();
    if !triple.contains("-linux-gnu") {
        let reason = format!("static programs are built on Linux with glibc, not on {triple}");
        return Err(Failure::usage(reason));
    }
    context.announce_first_build(&format!("static/{triple}/release"), "20 to 25");
    let folder = context.target.join("static");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let names = compile_names(context, &folder)?;
    // Between these flags are no blanks, which a path may have. With --target they are for the
    // programs alone, not for what runs while they are built.
    let flags = format!(
        "-Ctarget-feature=+crt-static\u{1f}-Clink-arg={}",
        names.display()
    );
    let mut build = context.cargo(&["build", "--release", "--locked", "--target", triple]);
    build.arg("--target-dir").arg(&folder);
    build.env("CARGO_ENCODED_RUSTFLAGS", flags);
    run(select(&mut build))?;
    let built = folder.join(triple).join("release");
    if !are_static(&built) {
        let reason = format!(
            "the programs in {} should be static and are not",
            built.display()
        );
        return Err(Failure::broken(reason));
    }
    Ok(built)
}

/// Whether a C++ program can have all of its libraries inside.
fn links_statically() -> Result<bool> {
    let folder = std::env::temp_dir().join(format!("flexfeed-static-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let source = folder.join("program.cc");
    let text = "#include <string>\nint main(int n, char **v) { return std::string(v[0]).empty(); }";
    let written = fs::write(&source, text);
    let mut compiler = Command::new("c++");
    compiler
        .arg("-static")
        .arg("-o")
        .arg(folder.join("program"))
        .arg(&source);
    let linked = written.is_ok() && output(&mut compiler).is_some();
    let _ = fs::remove_dir_all(folder);
    Ok(linked)
}

/// Compiles `names.c`. A change of it gets another name, and so another flag: Cargo does not look
/// into what the linker is given.
fn compile_names(context: &Context, folder: &Path) -> Result<PathBuf> {
    let source = context.root.join("deploy/tarball/names.c");
    let sum = output(Command::new("cksum").arg(&source)).context("cksum")?;
    let sum = sum.split(' ').take(2).collect::<Vec<_>>().join("-");
    let object = folder.join(format!("names-{sum}.o"));
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-fPIC", "-c", "-o"])
        .arg(&object)
        .arg(&source);
    run(&mut compiler)?;
    Ok(object)
}

/// Puts everything into the tree that is packed.
fn fill(context: &Context, built: &Path, tree: &Path, is_static: bool) -> Result<()> {
    let root = &context.root;
    let systemd = root.join("deploy/systemd");
    let documents = tree.join("share/doc/flexfeed");
    fs::create_dir_all(tree.join("bin")).with_context(|| tree.display().to_string())?;
    for program in PROGRAMS {
        strip(&built.join(program), &tree.join("bin").join(program))?;
    }
    for entry in fs::read_dir(&systemd).context("deploy/systemd")? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "service")
        {
            copy(&path, &tree.join("lib/systemd/system"))?;
        }
    }
    for entry in fs::read_dir(systemd.join("config")).context("deploy/systemd/config")? {
        copy(&entry?.path(), &tree.join("etc/flexfeed"))?;
    }
    for folder in ["sysusers", "tmpfiles"] {
        let from = systemd.join(format!("flexfeed.{folder}.conf"));
        let to = tree.join(format!("lib/{folder}.d"));
        fs::create_dir_all(&to)?;
        fs::copy(&from, to.join("flexfeed.conf")).with_context(|| from.display().to_string())?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(licence), tree)?;
    }
    for page in FIRST_PAGES {
        copy(&root.join(page), &documents)?;
    }
    for path in DOCUMENTS {
        let to = documents.join(path);
        copy(&root.join(path), to.parent().unwrap_or(&documents))?;
    }
    write_first_page(context, tree, is_static)?;
    if is_static {
        copy_licences(&documents)?;
    }
    let sums = sums(tree)?;
    fs::write(tree.join("SHA256SUMS"), sums).context("SHA256SUMS")
}

/// Copies a file or folder into a folder, without compiled Python.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let Some(name) = from.file_name() else {
        return Ok(());
    };
    if name == "__pycache__" {
        return Ok(());
    }
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let target = to.join(name);
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
            copy(&entry?.path(), &target)?;
        }
        return Ok(());
    }
    fs::copy(from, target).with_context(|| from.display().to_string())?;
    Ok(())
}

/// Writes the page that says what the tarball is, and what its programs need.
fn write_first_page(context: &Context, tree: &Path, is_static: bool) -> Result<()> {
    let page = context.root.join("deploy/tarball/README.md");
    let mut text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    text.push_str(if is_static {
        "The programs are static: they need no library of the system, and look names up in \
         `/etc/hosts` and by the DNS alone.\n"
    } else {
        "The programs need the libraries `libc.so.6` (glibc, as old as that of the machine that \
         they were built on, or newer), `libstdc++.so.6` and `libgcc_s.so.1`.\n"
    });
    fs::write(tree.join("README.md"), text).context("README.md")
}

/// Copies the licences of the parts of the building system that static programs contain.
fn copy_licences(documents: &Path) -> Result<()> {
    let folder = Path::new("/usr/share/doc");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_inside = name == "libc6" || (name.starts_with("gcc-") && name.ends_with("-base"));
        let licence = entry.path().join("copyright");
        if is_inside && licence.exists() {
            fs::copy(licence, documents.join(format!("LICENSE-{name}"))).context(name)?;
        }
    }
    Ok(())
}

/// Returns the checksums of all files of a tree, as `sha256sum` prints them.
fn sums(tree: &Path) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    let mut open = vec![PathBuf::from(".")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(tree.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    let sums = Command::new("sha256sum")
        .current_dir(tree)
        .args(files)
        .output();
    let sums = sums.context("sha256sum")?;
    crate::context::judge(sums.status)?;
    Ok(sums.stdout)
}

/// Packs the tree `name` and removes it. The same content makes the same file: no times, no names
/// of the user that packed it.
fn archive(folder: &Path, name: &str) -> Result<PathBuf> {
    let file = folder.join(format!("{name}.tar.gz"));
    let time = std::env::var("SOURCE_DATE_EPOCH").unwrap_or("0".to_owned());
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(folder);
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{time}")).args(["-cf", "-", name]);
    let mut packing = tar.stdout(Stdio::piped()).spawn().context("tar")?;
    let mut gzip = Command::new("gzip");
    gzip.arg("-9n").stdout(fs::File::create(&file)?);
    if let Some(output) = packing.stdout.take() {
        gzip.stdin(output);
    }
    run(&mut gzip)?;
    crate::context::judge(packing.wait()?)?;
    fs::remove_dir_all(folder.join(name))?;
    let packed = format!("{name}.tar.gz");
    let mut sum = Command::new("sha256sum");
    let sum = output(sum.current_dir(folder).arg(&packed)).context("sha256sum")?;
    let mut sums = fs::File::create(folder.join(format!("{packed}.sha256")))?;
    writeln!(sums, "{sum}")?;
    let newest = folder.join("newest.tar.gz");
    let _ = fs::remove_file(&newest);
    symlink(&packed, &newest).context("newest.tar.gz")?;
    Ok(file)
}

/// Unpacks a tarball, the newest one if none is named, and tries it in a system that has nothing
/// but what the tarball needs.
///
/// # Errors
///
/// There is none, or a test failed.
pub fn test(context: &Context, file: Option<&Path>) -> Result<()> {
    let newest = context.target.join("tarball/newest.tar.gz");
    let file = file.unwrap_or(&newest);
    let Ok(path) = file.canonicalize() else {
        let reason = format!("there is no {}: ./dev tarball makes it", file.display());
        return Err(Failure::usage(reason));
    };
    step(format!("Testing {}", path.display()));
    let mut tests = packaging_tests(context);
    run(tests
        .args(["-v", "test_tarball"])
        .env("FLEXFEED_TARBALL", path))
}

/// Tests the units for systemd and the examples of settings with the programs that are built, that
/// all files name one version, and that the images can be built of their context.
///
/// # Errors
///
/// A test failed.
pub fn test_units(context: &Context) -> Result<()> {
    step("Testing units for systemd and examples of settings");
    let mut tests = packaging_tests(context);
    tests.args(["test_units", "test_versions", "test_context"]);
    run(tests.env("FLEXFEED_BIN_DIR", context.target.join("debug")))
}

/// Returns Python's runner of the tests in `testbed/packaging`.
fn packaging_tests(context: &Context) -> Command {
    let mut python = context.command("python3");
    python
        .args(["-m", "unittest"])
        .env("PYTHONDONTWRITEBYTECODE", "1");
    python.current_dir(context.root.join("testbed/packaging"));
    python
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_workspace_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(version(&root).unwrap(), env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn folders_are_copied_without_compiled_python() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("docs");
        fs::create_dir_all(from.join("vectors/__pycache__")).unwrap();
        fs::write(from.join("vectors/a.md"), "a").unwrap();
        fs::write(from.join("vectors/__pycache__/b.pyc"), "b").unwrap();
        let to = folder.path().join("to");
        copy(&from, &to).unwrap();
        assert!(to.join("docs/vectors/a.md").exists());
        assert!(!to.join("docs/vectors/__pycache__").exists());
    }

    #[test]
    fn checksums_are_sorted_and_relative() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b/c"), "").unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        let sums = String::from_utf8(sums(folder.path()).unwrap()).unwrap();
        let names: Vec<_> = sums.lines().map(|line| &line[66..]).collect();
        assert_eq!(names, ["./a", "./b/c"]);
    }
}
