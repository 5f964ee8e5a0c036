//! Independent readers of Atom files: what a feed reader that is not ours finds in what a receiver
//! wrote.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;

use crate::lab::on_path;

/// One entry as the reader understood it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Entry {
    /// The entry's id.
    pub id: String,
    /// Its title as text.
    pub title: String,
}

/// A program that reads Atom and has nothing to do with flexfeed.
#[derive(Debug, Clone)]
pub enum Reader {
    /// Universal Feed Parser, under this Python.
    Feedparser(PathBuf),
    /// Newsboat, and a Python whose `sqlite3` reads Newsboat's cache.
    Newsboat(PathBuf, PathBuf),
}

/// Prints what feedparser finds; complaints about the document are an error, except that a declared
/// and a real encoding may differ harmlessly.
const FEEDPARSER_SCRIPT: &str = r#"
import json, sys, feedparser
with open(sys.argv[1], "rb") as file:
    found = feedparser.parse(file.read())
harmless = (feedparser.CharacterEncodingOverride,)
if found.bozo and not isinstance(found.get("bozo_exception"), harmless):
    sys.exit("feedparser: %r" % (found.get("bozo_exception"),))
if not found.version.startswith("atom"):
    sys.exit("feedparser takes it for %r, not for Atom" % (found.version,))
json.dump([{"id": e.get("id", ""), "title": e.get("title", "")} for e in found.entries], sys.stdout)
"#;

/// Prints the entries in Newsboat's cache. Newsboat repairs broken files, so the file is first
/// checked to be well-formed.
const CACHE_SCRIPT: &str = r#"
import json, sqlite3, sys, xml.etree.ElementTree
xml.etree.ElementTree.parse(sys.argv[2])
rows = sqlite3.connect(sys.argv[1]).execute("select guid, title from rss_item order by id")
json.dump([{"id": guid, "title": title} for guid, title in rows], sys.stdout)
"#;

impl Reader {
    /// Finds a reader on this machine, once per process: feedparser before Newsboat.
    ///
    /// # Errors
    /// When there is none; names the line that installs one.
    pub fn find() -> Result<&'static Reader> {
        static FOUND: OnceLock<Option<Reader>> = OnceLock::new();
        FOUND.get_or_init(Reader::search).as_ref().ok_or_else(|| {
            anyhow!(
                "no independent feed reader is installed; run: apt-get install \
                     python3-feedparser (or: apt-get install newsboat python3)"
            )
        })
    }

    fn search() -> Option<Reader> {
        // The python3 that comes first in PATH is often not the one that the system's packages are
        // for.
        let pythons: Vec<PathBuf> = [on_path("python3"), Some(PathBuf::from("/usr/bin/python3"))]
            .into_iter()
            .flatten()
            .collect();
        let can = |python: &Path, module: &str| {
            Command::new(python)
                .args(["-c", &format!("import {module}")])
                .output()
                .is_ok_and(|output| output.status.success())
        };
        if let Some(python) = pythons.iter().find(|python| can(python, "feedparser")) {
            return Some(Reader::Feedparser(python.clone()));
        }
        let python = pythons.iter().find(|python| can(python, "sqlite3"))?;
        Some(Reader::Newsboat(on_path("newsboat")?, python.clone()))
    }

    /// Reads an Atom file. Each entry is checked to be in the file only once, also where the reader
    /// itself would hide a repetition.
    ///
    /// # Errors
    /// When the reader finds the file faulty, or an entry is in it twice.
    pub fn read(&self, file: &Path) -> Result<Vec<Entry>> {
        let entries = match self {
            Reader::Feedparser(python) => run_script(python, FEEDPARSER_SCRIPT, &[file])?,
            Reader::Newsboat(newsboat, python) => read_by_newsboat(newsboat, python, file)?,
        };
        let mut seen = HashSet::new();
        for entry in &entries {
            ensure!(
                seen.insert(&entry.id),
                "{}: entry {} is in it twice",
                file.display(),
                entry.id
            );
        }
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let written = text.matches("</entry>").count();
        ensure!(
            written == entries.len(),
            "{}: it holds {written} entries, of which the reader shows {}",
            file.display(),
            entries.len()
        );
        Ok(entries)
    }

    /// The reader's name.
    pub fn name(&self) -> &'static str {
        match self {
            Reader::Feedparser(_) => "feedparser",
            Reader::Newsboat(..) => "newsboat",
        }
    }
}

fn read_by_newsboat(newsboat: &Path, python: &Path, file: &Path) -> Result<Vec<Entry>> {
    let folder = tempfile::tempdir().context("making a folder for newsboat")?;
    let place = |name: &str| folder.path().join(name);
    let absolute = std::path::absolute(file)?;
    std::fs::write(place("urls"), format!("file://{}\n", absolute.display()))?;
    // No upper bound on kept items, and nothing of the user's own settings.
    std::fs::write(place("config"), "max-items 0\n")?;
    let mut command = Command::new(newsboat);
    command
        .env("HOME", folder.path())
        .arg("-u")
        .arg(place("urls"))
        .arg("-c")
        .arg(place("cache.db"))
        .arg("-C")
        .arg(place("config"))
        .args(["-x", "reload"]);
    let output = command.output().context("starting newsboat")?;
    succeeded(&output, "newsboat", file)?;
    run_script(python, CACHE_SCRIPT, &[&place("cache.db"), file])
}

fn run_script(python: &Path, script: &str, files: &[&Path]) -> Result<Vec<Entry>> {
    let output = Command::new(python)
        .args(["-c", script])
        .args(files)
        .output()
        .with_context(|| format!("starting {}", python.display()))?;
    let file = files.last().copied().unwrap_or(Path::new(""));
    succeeded(&output, "the reader", file)?;
    serde_json::from_slice(&output.stdout).context("reading the reader's answer")
}

fn succeeded(output: &Output, who: &str, file: &Path) -> Result<()> {
    if !output.status.success() {
        bail!(
            "{who} does not read {}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lore::{Book, Origin};

    fn available() -> Vec<Reader> {
        let mut readers: Vec<Reader> = Reader::find().into_iter().cloned().collect();
        if let (Some(newsboat), Some(python)) = (on_path("newsboat"), on_path("python3")) {
            readers.push(Reader::Newsboat(newsboat, python));
        }
        assert!(!readers.is_empty(), "{:?}", Reader::find());
        readers
    }

    #[test]
    fn readers_find_generated_entries() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = folder.path().join("ledger.jsonl");
        let file = folder.path().join("a.atom");
        let mut book = Book::open(Origin::Generated(2), 25, 0, Some(&ledger)).unwrap();
        std::fs::write(&file, book.give_out().unwrap()).unwrap();
        let lines = crate::lore::read_ledger(&ledger).unwrap();
        for reader in available() {
            let entries = reader.read(&file).unwrap();
            for line in &lines {
                let entry = entries.iter().find(|entry| entry.id == line.id).unwrap();
                if let Some(title) = &line.title {
                    assert_eq!(&entry.title, title, "{}", reader.name());
                }
            }
            assert_eq!(entries.len(), lines.len());
        }
    }

    #[test]
    fn repetitions_and_broken_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let mut book = Book::open(Origin::Generated(2), 3, 0, None).unwrap();
        let good = String::from_utf8(book.give_out().unwrap()).unwrap();
        let (start, end) = (good.find("<entry").unwrap(), good.rfind("</feed>").unwrap());
        let twice = format!("{}{}{}", &good[..end], &good[start..end], &good[end..]);
        for (name, text) in [("twice", twice.as_str()), ("cut", &good[..end])] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            for reader in available() {
                assert!(reader.read(&file).is_err(), "{name} by {}", reader.name());
            }
        }
    }
}
