//! Keys of a channel's updates: `journal/CHANNEL/lineage.json`.
//!
//! A file of its own: a version that does not know it reads the segments as before, and cuts
//! nothing off.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flexicast::signing::{Era, KeyTextError, Lineage, MAX_ERAS};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{FileError, replace};

/// Format of the file.
const VERSION: u32 = 1;

/// Most incarnations of a channel whose lineages are kept.
const MAX_INCARNATIONS: usize = 16;

/// Bound on the file: so many incarnations of so many eras.
const MAX_FILE: u64 = (MAX_INCARNATIONS * MAX_ERAS * 256) as u64;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    incarnations: Vec<StoredLineage>,
}

/// Lineage of an incarnation of the channel.
#[derive(Serialize, Deserialize)]
struct StoredLineage {
    incarnation: Uuid,
    eras: Vec<StoredEra>,
}

#[derive(Serialize, Deserialize)]
struct StoredEra {
    first: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<u64>,
    incarnation: Uuid,
    key: String,
}

/// Lineages of a channel as its source announced them, by the channel's incarnation then.
///
/// A source forgets eras along with their updates, which the journal may keep for longer. So what
/// was announced before stays for updates before those of the new lineage.
#[derive(Debug)]
pub struct LineageFile {
    path: PathBuf,
    /// In the order of their announcement.
    known: Vec<(Uuid, Lineage)>,
    is_stored: bool,
}

impl LineageFile {
    /// Reads the file of the journal in `folder`, if there is one. Also returns what is wrong with
    /// a damaged one, which counts as none.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn open(folder: &Path) -> Result<(Self, Option<String>), FileError> {
        let path = folder.join("lineage.json");
        let mut text = Vec::new();
        let read = File::open(&path)
            .and_then(|file| file.take(MAX_FILE).read_to_end(&mut text).map(|_| ()));
        let (known, damaged) = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
            other => {
                other.map_err(FileError::of("read", &path))?;
                match parse(&text) {
                    Ok(known) => (known, None),
                    Err(reason) => (
                        Vec::new(),
                        Some(format!("{} is damaged: {reason}", path.display())),
                    ),
                }
            }
        };
        let file = Self {
            path,
            known,
            is_stored: true,
        };
        Ok((file, damaged))
    }

    /// Returns the lineage that the source announced for this incarnation of the channel.
    #[must_use]
    pub fn of(&self, incarnation: Uuid) -> Option<&Lineage> {
        let mut known = self.known.iter();
        known.find_map(|(of, lineage)| (*of == incarnation).then_some(lineage))
    }

    /// Adds a lineage that the source announced for this incarnation of the channel.
    pub fn add(&mut self, incarnation: Uuid, lineage: &Lineage) {
        let merged = match self.of(incarnation) {
            Some(before) => merge(before, lineage),
            None => lineage.clone(),
        };
        let is_last = self.known.last().is_some_and(|(of, _)| *of == incarnation);
        if is_last && self.of(incarnation) == Some(&merged) {
            return;
        }
        self.known.retain(|(of, _)| *of != incarnation);
        self.known.push((incarnation, merged));
        self.is_stored = false;
    }

    /// Writes the file if it has changed, without the incarnations that are not in the journal any
    /// more. Blocks for the disk.
    ///
    /// # Errors
    /// The failed operation; the older file is intact.
    pub fn store(&mut self, is_kept: impl Fn(Uuid) -> bool) -> Result<(), FileError> {
        if self.is_stored {
            return Ok(());
        }
        let last = self.known.pop();
        self.known.retain(|(incarnation, _)| is_kept(*incarnation));
        self.known.extend(last);
        let excess = self.known.len().saturating_sub(MAX_INCARNATIONS);
        self.known.drain(..excess);
        replace(&self.path, render(&self.known).as_bytes())?;
        self.is_stored = true;
        Ok(())
    }
}

/// Returns the eras of the new lineage, and of the old one what is before them.
fn merge(old: &Lineage, new: &Lineage) -> Lineage {
    let first = new.eras().first().map_or(0, |era| era.first);
    let before = old.eras().iter().take_while(|era| era.first < first);
    let before = before.map(|era| {
        // One that was open has ended since, unnoticed.
        let last = era.last.map_or(first - 1, |last| last.min(first - 1));
        Era {
            last: Some(last),
            ..*era
        }
    });
    let mut eras: Vec<Era> = before.collect();
    eras.extend_from_slice(new.eras());
    eras.drain(..eras.len().saturating_sub(MAX_ERAS));
    Lineage::new(eras).unwrap_or_else(|_| new.clone())
}

fn parse(text: &[u8]) -> Result<Vec<(Uuid, Lineage)>, String> {
    let content: Content = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if content.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", content.version));
    }
    let known = content.incarnations.into_iter().map(|stored| {
        let eras = stored.eras.iter().map(|era| {
            Ok(Era {
                first: era.first,
                last: era.last,
                incarnation: era.incarnation,
                key: era
                    .key
                    .parse()
                    .map_err(|error: KeyTextError| error.to_string())?,
            })
        });
        let eras = eras.collect::<Result<_, String>>()?;
        let lineage = Lineage::new(eras).map_err(|error| error.to_string())?;
        Ok((stored.incarnation, lineage))
    });
    known.collect()
}

fn render(known: &[(Uuid, Lineage)]) -> String {
    let stored = |era: &Era| StoredEra {
        first: era.first,
        last: era.last,
        incarnation: era.incarnation,
        key: era.key.to_string(),
    };
    let incarnations = known.iter().map(|(incarnation, lineage)| StoredLineage {
        incarnation: *incarnation,
        eras: lineage.eras().iter().map(stored).collect(),
    });
    let content = Content {
        version: VERSION,
        incarnations: incarnations.collect(),
    };
    // Numbers and texts can be written as JSON.
    serde_json::to_string(&content).unwrap_or_default() + "\n"
}
