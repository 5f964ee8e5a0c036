//! Puts the migrations into the program. `sqlx::migrate!` does the same with a compile-time copy of
//! all of sqlx and of what it depends on, most of a minute of compiling.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const FOLDER: &str = "../../migrations";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={FOLDER}");
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for database in ["sqlite", "postgres"] {
        let code = list(&here.join(FOLDER).join(database))?;
        fs::write(out.join(format!("{database}.rs")), code)?;
    }
    Ok(())
}

/// Returns an expression for the migrations in a folder, whose files are named
/// `VERSION_DESCRIPTION.sql`.
fn list(folder: &Path) -> io::Result<String> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    let mut code = String::from("[\n");
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (version, description) = name
            .strip_suffix(".sql")
            .and_then(|stem| stem.split_once('_'))
            .and_then(|(version, rest)| {
                Some((version.parse::<i64>().ok()?, rest.replace('_', " ")))
            })
            .ok_or_else(|| io::Error::other(format!("{name}: not named as a migration")))?;
        writeln!(
            code,
            "    ({version}, {description:?}, include_str!({path:?})),"
        )
        .map_err(io::Error::other)?;
    }
    code.push_str("]\n");
    Ok(code)
}
