//! How far a hook is in a channel's journal: `DATA/state/hooks/HOOK.CHANNEL.json`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flexicast::Cursor;
use serde::{Deserialize, Serialize};
use tracing::warn;
use uuid::Uuid;

use super::done::Done;
use crate::durable::{FileError, make_folder, replace};
use crate::journal::Tape;

/// The format of the file.
const VERSION: u32 = 1;

/// A place is some lines; anything much longer is none.
const MAX_FILE: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    hook: String,
    channel: String,
    /// Everything before this position of the journal is done.
    position: u64,
    /// What is done after it.
    #[serde(default)]
    done: Vec<Span>,
    /// How far the channel was before the position: tells whether this still is the same journal.
    incarnation: Option<Uuid>,
    seq: Option<u64>,
}

/// Positions that are done, as they are written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Span {
    /// From the first one up to before the second.
    Range(u64, u64),
    /// One alone, as files of earlier versions have them.
    One(u64),
}

/// A place in a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Everything before this position is done.
    pub(super) position: u64,
    /// What is done after it.
    pub(super) done: Done,
}

/// Where a place is kept.
#[derive(Debug, Clone)]
pub(super) struct PlaceFile {
    path: PathBuf,
    hook: String,
    channel: String,
}

impl PlaceFile {
    pub(super) fn new(data: &Path, hook: &str, channel: &str) -> Self {
        let folder = data.join("state").join("hooks");
        Self {
            path: folder.join(format!("{hook}.{channel}.json")),
            hook: hook.to_owned(),
            channel: channel.to_owned(),
        }
    }

    /// The place to go on from. A hook that is new begins with what comes from now on; one whose
    /// place is damaged begins with all that is kept. Also, how many updates are lost in between.
    pub(super) fn load(&self, tape: &Tape) -> Result<(Place, u64), FileError> {
        let path = self.path.display();
        let mut text = Vec::new();
        let read = File::open(&self.path).and_then(|f| f.take(MAX_FILE).read_to_end(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let end = Place {
                    position: tape.end(),
                    done: Done::default(),
                };
                return Ok((end, 0));
            }
            other => other.map_err(FileError::of("read", &self.path))?,
        };
        let all = Place {
            position: tape.start(),
            done: Done::default(),
        };
        let content = match serde_json::from_slice::<Content>(&text) {
            Ok(content) if content.version == VERSION => content,
            _ => {
                warn!(
                    "{path}, how far the hook {} is, is damaged: it is told of all that the journal of {} holds once more",
                    self.hook, self.channel
                );
                return Ok((all, 0));
            }
        };
        let before = content.incarnation.zip(content.seq);
        let before = before.map(|(incarnation, seq)| Cursor { incarnation, seq });
        let fits = content.position <= tape.end()
            && tape
                .cursor_before(content.position)
                .is_none_or(|there| before == Some(there));
        if !fits {
            let position = before.map_or(all.position, |before| {
                tape.resume(before.incarnation, before.seq).position
            });
            warn!(
                "the journal of {} is not the one that {path} was written for; the hook {} goes on at position {position} of it",
                self.channel, self.hook
            );
            return Ok((Place { position, ..all }, 0));
        }
        let position = content.position.max(all.position);
        let mut done = Done::default();
        for span in content.done {
            match span {
                Span::Range(start, end) => done.insert_range(start, end),
                Span::One(one) => done.insert(one),
            }
        }
        // What is before the place is done in any case.
        done.forget_before(content.position);
        let done_before = done.forget_before(position);
        let forgotten = (position - content.position).saturating_sub(done_before);
        if forgotten > 0 {
            warn!(
                "the hook {} was away for so long that the journal of {} has forgotten up to {forgotten} of its updates",
                self.hook, self.channel
            );
        }
        let place = Place { position, done };
        Ok((place, forgotten))
    }

    /// Writes a place down, durably. Blocks for the disk.
    pub(super) fn store(&self, place: &Place, tape: &Tape) -> Result<(), FileError> {
        let before = tape.cursor_before(place.position);
        let content = Content {
            version: VERSION,
            hook: self.hook.clone(),
            channel: self.channel.clone(),
            position: place.position,
            done: place
                .done
                .ranges()
                .map(|(a, b)| Span::Range(a, b))
                .collect(),
            incarnation: before.map(|cursor| cursor.incarnation),
            seq: before.map(|cursor| cursor.seq),
        };
        if let Some(folder) = self.path.parent() {
            make_folder(folder).map_err(FileError::of("make", folder))?;
        }
        let mut text = serde_json::to_vec(&content)
            .map_err(io::Error::other)
            .map_err(FileError::of("write", &self.path))?;
        text.push(b'\n');
        replace(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::deliver::tests::{encoded, incarnation};
    use crate::journal::{Journal, Limits};

    /// One update waits, and very many after it are done.
    #[test]
    fn a_place_is_short_however_much_is_done_after_it() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("journal");
        let (mut journal, _) = Journal::open(&folder, Limits::default()).unwrap();
        journal.take(incarnation(), 1, &encoded(1));
        journal.write().unwrap();
        journal.announce();
        let file = PlaceFile::new(data.path(), "h", "lore");
        let mut place = Place::default();
        (1..300_000).for_each(|position| place.done.insert(position));
        file.store(&place, &journal.tape()).unwrap();
        assert!(std::fs::metadata(&file.path).unwrap().len() < 1000);
        let (found, forgotten) = file.load(&journal.tape()).unwrap();
        assert_eq!((found, forgotten), (place, 0));
        // As it was written before there were ranges.
        let text = std::fs::read_to_string(&file.path).unwrap();
        std::fs::write(&file.path, text.replace("[[1,300000]]", "[3,4,9]")).unwrap();
        let (found, _) = file.load(&journal.tape()).unwrap();
        assert_eq!(found.done.ranges().collect::<Vec<_>>(), [(3, 5), (9, 10)]);
    }
}
