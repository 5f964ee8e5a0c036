//! Ledger of all entries that the generator has shown, written before they are shown.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One new or changed entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its number, from 1 on; the source, which sees every one of them, counts the same.
    pub n: u64,
    /// The entry's id.
    pub id: String,
    /// Its title, where that is known as plain text.
    pub title: Option<String>,
    /// 1 for a new entry, more for changes of it.
    pub version: u32,
    /// When, Unix time in ms.
    pub at_ms: i64,
}

/// Writes the lines, to a file if one is wanted.
#[derive(Debug)]
pub struct Ledger {
    file: Option<File>,
    count: u64,
}

impl Ledger {
    /// Starts a ledger, in a new file if a path is given.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn new(path: Option<&Path>) -> Result<Ledger> {
        let file = path
            .map(|path| {
                File::create(path).with_context(|| format!("making the ledger {}", path.display()))
            })
            .transpose()?;
        Ok(Ledger { file, count: 0 })
    }

    /// Returns the number of lines there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When it cannot be written; the entry must not be shown then.
    pub fn add(&mut self, id: &str, title: Option<String>, version: u32) -> Result<()> {
        let line = Line {
            n: self.count + 1,
            id: id.to_owned(),
            title,
            version,
            at_ms: jiff::Timestamp::now().as_millisecond(),
        };
        if let Some(file) = &mut self.file {
            let mut text = serde_json::to_vec(&line)?;
            text.push(b'\n');
            file.write_all(&text).context("writing to the ledger")?;
        }
        self.count += 1;
        Ok(())
    }
}

/// Reads a ledger, without a last line that is still being written.
///
/// # Errors
/// When the file cannot be read or a line is not as agreed.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the ledger {}", path.display()))?;
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| {
            serde_json::from_str(line)
                .with_context(|| format!("ledger {}: {line:?}", path.display()))
        })
        .collect()
}
