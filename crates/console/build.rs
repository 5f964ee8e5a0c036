//! Puts the pages of `web/dist` into the program, if they have been built.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let dist = here.join("../../web/dist");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    if dist.join("index.html").is_file() {
        walk(&dist, &mut files)?;
    }
    files.sort();
    let mut code = String::from("&[\n");
    for file in &files {
        // Those are other forms of a file, not files of their own.
        if matches!(
            file.extension().and_then(|end| end.to_str()),
            Some("br" | "gz")
        ) {
            continue;
        }
        let name = file.strip_prefix(&dist).map_err(io::Error::other)?;
        let name = name.to_string_lossy().replace('\\', "/");
        let mut hasher = DefaultHasher::new();
        hasher.write(&fs::read(file)?);
        let form = |end: &str| {
            let mut other = file.clone().into_os_string();
            other.push(end);
            match files.contains(&PathBuf::from(&other)) {
                true => format!("Some(include_bytes!({other:?}))"),
                false => "None".to_owned(),
            }
        };
        writeln!(
            code,
            "    Asset {{ name: {name:?}, tag: {:?}, plain: include_bytes!({file:?}), br: {}, gz: \
             {} }},",
            format!("\"{:016x}\"", hasher.finish()),
            form(".br"),
            form(".gz")
        )
        .map_err(io::Error::other)?;
    }
    code.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("assets.rs"), code)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
