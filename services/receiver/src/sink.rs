//! Where the updates of one channel end up: the Atom file, the delivery log, the cursor.

use std::path::{Path, PathBuf};

use feed::atom::{AtomFile, FeedMeta, KEEP};
use feed::payload::Update;
use flexicast::Cursor;
use tracing::{info, warn};

use crate::cursor::{CursorFile, Found};
use crate::delivery_log::{DeliveryLog, Record};

/// The outputs of one channel. [`crate::deliver`] calls these in the order that makes a crash
/// harmless. All but the first block for the disk, and can be called again where they failed.
pub trait Sink: Send + 'static {
    /// Updates come with the numbers after `cursor` from here on. What has such a number already
    /// is known by it no longer: the source gives the numbers again. In memory.
    fn begin(&mut self, cursor: Cursor);
    /// Takes an update in, in memory. Taking it again changes nothing.
    fn take(&mut self, update: &Update);
    /// Makes what was taken in durable.
    ///
    /// # Errors
    /// What failed, in words for the operator. Nothing is lost then.
    fn write_output(&mut self) -> anyhow::Result<()>;
    /// Logs the updates, all or none.
    ///
    /// # Errors
    /// What failed, in words for the operator.
    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()>;
    /// Makes the cursor durable.
    ///
    /// # Errors
    /// What failed, in words for the operator. The older cursor is still there then.
    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()>;
}

/// The files of one channel.
#[derive(Debug)]
pub struct ChannelFiles {
    atom: AtomFile,
    log: Option<DeliveryLog>,
    cursor: CursorFile,
}

impl ChannelFiles {
    /// Opens the files of `channel` in the data folder `data`, and says from where on updates are
    /// needed. `source` is the source's `host:port`.
    ///
    /// Damaged files are reported and begun anew. Where the Atom file is gone or damaged, the
    /// cursor goes back by as much as the file holds, so that the source fills it again.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub fn open(
        data: &Path,
        state: &Path,
        source: &str,
        channel: &str,
        delivery_log: Option<&Path>,
    ) -> anyhow::Result<(Self, Option<Cursor>)> {
        let path: PathBuf = data.join(format!("{channel}.atom"));
        let there = path.exists();
        let atom = AtomFile::open(&path, FeedMeta::for_channel(source, channel), KEEP)?;
        if let Some(damaged) = atom.damaged() {
            warn!(
                "{} was damaged ({}); it is kept as {}, and a new one is begun",
                path.display(),
                damaged.reason,
                damaged.moved_to.display()
            );
        }
        let file = CursorFile::new(state, channel);
        let mut cursor = match file.load()? {
            Found::Nothing => None,
            Found::Cursor(cursor) => Some(cursor),
            Found::Damaged(reason) => {
                warn!(
                    "the cursor {} is damaged ({reason}); going on without it: the source sends its last updates again, \
                     and those that the Atom file holds already stay as they are",
                    file.path().display()
                );
                None
            }
        };
        let mut files = Self {
            atom,
            log: delivery_log.map(|path| DeliveryLog::new(path, channel)),
            cursor: file,
        };
        let mut ready = Ok(());
        if let Some(cursor) = &mut cursor
            && (!there || files.atom.damaged().is_some())
        {
            cursor.seq = cursor.seq.saturating_sub(KEEP as u64);
            info!(
                "{} is begun anew; asking for its entries again, from update {} on",
                path.display(),
                cursor.seq + 1
            );
            // Before there is a file again: a kill in between must not leave it empty for good.
            ready = files.write_cursor(*cursor);
        }
        // An empty feed, so that readers can be pointed to it at once. If it fails, the first
        // delivery fails too, is reported, and is tried again.
        if let Err(error) = ready.and_then(|()| files.write_output()) {
            warn!("{error}");
        }
        Ok((files, cursor))
    }

    /// Where the Atom file is.
    #[must_use]
    pub fn atom_path(&self) -> &Path {
        self.atom.path()
    }
}

impl Sink for ChannelFiles {
    fn begin(&mut self, cursor: Cursor) {
        self.atom.forget_numbers(cursor.incarnation, cursor.seq);
    }

    fn take(&mut self, update: &Update) {
        self.atom.upsert(update);
    }

    fn write_output(&mut self) -> anyhow::Result<()> {
        Ok(self.atom.write()?)
    }

    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()> {
        Ok(self
            .log
            .as_ref()
            .map_or(Ok(()), |log| log.append(records))?)
    }

    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()> {
        Ok(self.cursor.store(cursor)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use uuid::Uuid;

    fn open(folder: &Path) -> Option<Cursor> {
        let (_, cursor) = ChannelFiles::open(folder, folder, "h:1", "lore", None).unwrap();
        cursor
    }

    #[test]
    fn a_file_that_is_gone_is_asked_for_again_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(open(folder), None);
        let at = |seq| Cursor {
            incarnation: Uuid::from_u128(7),
            seq,
        };
        let file = CursorFile::new(folder, "lore");
        file.store(at(1200)).unwrap();
        assert_eq!(open(folder), Some(at(1200)));
        std::fs::remove_file(folder.join("lore.atom")).unwrap();
        assert_eq!(open(folder), Some(at(700)));
        // Killed before anything came: the file is there, and still to be filled.
        assert_eq!(open(folder), Some(at(700)));
        std::fs::write(folder.join("lore.atom"), "<feed").unwrap();
        assert_eq!(open(folder), Some(at(200)));
        std::fs::remove_file(folder.join("lore.atom")).unwrap();
        assert_eq!(open(folder), Some(at(0)));
    }
}
