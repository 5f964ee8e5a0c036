//! A hook's offset in a channel's journal: `DATA/state/hooks/HOOK.CHANNEL.json`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flexicast::Cursor;
use serde::{Deserialize, Serialize};
use tracing::warn;
use uuid::Uuid;

use super::delivered::DeliveredSet;
use crate::durable::{FileError, make_folder, replace};
use crate::journal::JournalReader;

/// Format of the file.
const VERSION: u32 = 1;

/// Bound on the file, which has a few lines.
const MAX_FILE: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    hook: String,
    channel: String,
    /// Position of the journal before which all updates are delivered.
    position: u64,
    /// Updates delivered past the offset.
    #[serde(default)]
    done: Vec<Span>,
    /// Channel's cursor before the offset, which identifies the journal.
    incarnation: Option<Uuid>,
    seq: Option<u64>,
}

/// Delivered positions, as written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Span {
    /// Range, with its end.
    Range(u64, u64),
    /// Single position, as in files of earlier versions.
    One(u64),
}

/// Offset in a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct HookOffset {
    /// Position before which all updates are delivered.
    pub(super) position: u64,
    /// Updates delivered past the offset.
    pub(super) done: DeliveredSet,
}

/// File of a hook's offset.
#[derive(Debug, Clone)]
pub(super) struct OffsetFile {
    path: PathBuf,
    hook: String,
    channel: String,
}

impl OffsetFile {
    pub(super) fn new(data: &Path, hook: &str, channel: &str) -> Self {
        let folder = data.join("state").join("hooks");
        Self {
            path: folder.join(format!("{hook}.{channel}.json")),
            hook: hook.to_owned(),
            channel: channel.to_owned(),
        }
    }

    /// Returns the offset to continue from, and the number of updates lost in between. A new hook
    /// begins with future updates; with a damaged file, all updates of the journal are due again.
    pub(super) fn load(&self, reader: &JournalReader) -> Result<(HookOffset, u64), FileError> {
        let path = self.path.display();
        let mut text = Vec::new();
        let read = File::open(&self.path).and_then(|f| f.take(MAX_FILE).read_to_end(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let end = HookOffset {
                    position: reader.end(),
                    done: DeliveredSet::default(),
                };
                return Ok((end, 0));
            }
            other => other.map_err(FileError::of("read", &self.path))?,
        };
        let all = HookOffset {
            position: reader.start(),
            done: DeliveredSet::default(),
        };
        let content = match serde_json::from_slice::<Content>(&text) {
            Ok(content) if content.version == VERSION => content,
            _ => {
                warn!(hook = self.hook, channel = self.channel, %path, "hook offset damaged; \
                    delivering all updates of the journal again");
                return Ok((all, 0));
            }
        };
        let before = content.incarnation.zip(content.seq);
        let before = before.map(|(incarnation, seq)| Cursor { incarnation, seq });
        let fits = content.position <= reader.end()
            && reader
                .cursor_before(content.position)
                .is_none_or(|there| before == Some(there));
        if !fits {
            let position = before.map_or(all.position, |before| {
                reader.resume(before.incarnation, before.seq).position
            });
            warn!(hook = self.hook, channel = self.channel, %path, position,
                "hook offset is of another journal; continuing at the same cursor");
            return Ok((HookOffset { position, ..all }, 0));
        }
        let position = content.position.max(all.position);
        let mut done = DeliveredSet::default();
        for span in content.done {
            match span {
                Span::Range(start, end) => done.insert_range(start, end),
                Span::One(one) => done.insert(one),
            }
        }
        // Everything before the offset is delivered.
        done.forget_before(content.position);
        let done_before = done.forget_before(position);
        let forgotten = (position - content.position).saturating_sub(done_before);
        if forgotten > 0 {
            warn!(
                hook = self.hook,
                channel = self.channel,
                forgotten,
                "updates left the journal while the hook was away"
            );
        }
        let offset = HookOffset { position, done };
        Ok((offset, forgotten))
    }

    /// Persists an offset. Blocks for the disk.
    pub(super) fn store(
        &self,
        offset: &HookOffset,
        reader: &JournalReader,
    ) -> Result<(), FileError> {
        let before = reader.cursor_before(offset.position);
        let content = Content {
            version: VERSION,
            hook: self.hook.clone(),
            channel: self.channel.clone(),
            position: offset.position,
            done: offset
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

    /// One update waits, and very many after it are delivered.
    #[test]
    fn an_offset_is_short_however_many_updates_follow() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("journal");
        let (mut journal, _) = Journal::open(&folder, Limits::default()).unwrap();
        journal.take(incarnation(), 1, &encoded(1));
        journal.write().unwrap();
        journal.announce();
        let file = OffsetFile::new(data.path(), "h", "lore");
        let mut offset = HookOffset::default();
        (1..300_000).for_each(|position| offset.done.insert(position));
        file.store(&offset, &journal.reader()).unwrap();
        assert!(std::fs::metadata(&file.path).unwrap().len() < 1000);
        let (found, forgotten) = file.load(&journal.reader()).unwrap();
        assert_eq!((found, forgotten), (offset, 0));
        // The format before there were ranges.
        let text = std::fs::read_to_string(&file.path).unwrap();
        std::fs::write(&file.path, text.replace("[[1,300000]]", "[3,4,9]")).unwrap();
        let (found, _) = file.load(&journal.reader()).unwrap();
        assert_eq!(found.done.ranges().collect::<Vec<_>>(), [(3, 5), (9, 10)]);
    }
}
