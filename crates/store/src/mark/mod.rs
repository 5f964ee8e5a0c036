//! Head marks: the last seq ever published of a channel, kept outside of the database. They show
//! that the database was set back.
//!
//! A receiver remembers (incarnation, seq). When a database is restored from a backup, it gives the
//! seqs after the backup once more, to other updates. As long as a receiver's cursor is ahead of
//! the database, that shows; once the database has overtaken the cursor, it does not,
//! and the receiver would never ask for the updates that it does not have. So such a database gets
//! a new incarnation before it serves anybody, and receivers start over.
//!
//! **Invariant:** nothing is published beyond the mark. The database is durable before the mark is
//! raised, and the mark is durable before the updates are published. A crash at any point leaves
//! head ≥ mark ≥ published, so a head below the mark was set back, and no other is.
//!
//! | what happened | how it shows | then |
//! |---|---|---|
//! | the database is older than what was published | head < mark | renewed |
//! | … and was renewed in between | the incarnations differ | renewed |
//! | the database came without the mark, or the mark is damaged | no mark, channel not new | renewed |
//! | both came from a backup of the folder | the mark's file is younger than it says | renewed |
//! | the database was made again | the incarnations differ | renewed |
//!
//! A whole disk that is set back cannot be noticed from here, as by a virtual machine's
//! snapshot: then receivers that are ahead still notice it by themselves.

mod file;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::{Channel, Store, StoreError};
use file::{MarkFile, MarkState, Record};

/// The mark of one channel, in a small file of its own. One process at a time may have it.
#[derive(Clone, Debug)]
pub struct HeadMark {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Seq in the file, for readers.
    seq: AtomicU64,
    file: Mutex<MarkFile>,
}

/// Why a channel got a new incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The database is behind what was published from it: a backup was restored.
    Behind {
        /// The last seq that the database knows.
        head: u64,
        /// The last seq that was published.
        published: u64,
    },
    /// The database has an incarnation that is not the last one published: a backup was restored.
    Other {
        /// The last incarnation published.
        published: Uuid,
    },
    /// There is no mark: the database may be a copy of any age.
    Missing,
    /// The mark cannot be read.
    Damaged {
        /// Reason.
        reason: String,
    },
    /// The mark is a copy: the folder that it is in was restored or moved.
    Copied,
}

impl fmt::Display for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind { head, published } => write!(
                f,
                "the database ends with update {head} although updates up to {published} were \
                 published: an older backup was restored"
            ),
            Self::Other { published } => write!(
                f,
                "the database is not the one that was published last (incarnation {published}): an \
                 older backup was restored"
            ),
            Self::Missing => write!(
                f,
                "the data folder does not say how far the database was published: it was restored \
                 or moved without its head mark"
            ),
            Self::Damaged { reason } => write!(
                f,
                "the head mark, which says how far the database was published, is damaged \
                 ({reason})"
            ),
            Self::Copied => write!(
                f,
                "the data folder was restored or copied, and may be older than what was published"
            ),
        }
    }
}

/// A channel that may be published, and how that came.
#[derive(Debug)]
pub struct Adoption {
    /// As it is from now on.
    pub channel: Channel,
    /// To be raised before anything more is published.
    pub mark: HeadMark,
    /// Why its incarnation is a new one; `None` if it is the old one, or the channel has never
    /// had an update.
    pub renewal: Option<Renewal>,
}

impl HeadMark {
    /// Opens the channel `name` for publishing: gives it a new incarnation if `store` has been set
    /// back since the mark in the file `path` was raised last, and marks what it has as published.
    /// The `fence` is that of the channel's lease, if one is held: see
    /// [`Channels::renew`](crate::Channels::renew).
    ///
    /// # Errors
    /// There is no such channel, another holder has its lease, the store fails, or the file cannot
    /// be read or written.
    pub async fn adopt(
        path: &Path,
        store: &Store,
        name: &str,
        fence: Option<u64>,
    ) -> Result<Adoption, StoreError> {
        Self::open(path, store, name, fence, judge).await
    }

    /// Has the mark say what the channel `name` has now, without judging it: for a source that
    /// stands by while another one holds the channel's lease, and so has judged it. To be called,
    /// or the mark to be raised, whenever the channel has grown; when this source takes over, it
    /// calls [`HeadMark::adopt`], which finds a database that was set back in between.
    ///
    /// A mark is never lowered by this, and never moved to another incarnation: a copy of the
    /// database that was behind may have taken its place, with the lease still in it. What is true,
    /// `adopt` finds out; at worst it renews a channel once more than was needed.
    ///
    /// # Errors
    /// As [`HeadMark::adopt`].
    pub async fn follow(path: &Path, store: &Store, name: &str) -> Result<Adoption, StoreError> {
        Self::open(path, store, name, None, |_, found| match found {
            MarkState::Mark(mark) => MarkVerdict::Follow(mark),
            _ => MarkVerdict::Sound,
        })
        .await
    }

    /// Opens the channel `name` as it is, even if `store` has been set back: only for tests, which
    /// have to notice what [`HeadMark::adopt`] prevents.
    ///
    /// # Errors
    /// As [`HeadMark::adopt`].
    #[cfg(feature = "fault-injection")]
    pub async fn trust(path: &Path, store: &Store, name: &str) -> Result<Adoption, StoreError> {
        Self::open(path, store, name, None, |_, _| MarkVerdict::Sound).await
    }

    async fn open(
        path: &Path,
        store: &Store,
        name: &str,
        fence: Option<u64>,
        judge: fn(&Channel, MarkState) -> MarkVerdict,
    ) -> Result<Adoption, StoreError> {
        let mut channel = store.channels().get(name).await?;
        let place = path.to_owned();
        let found = blocking(path, move || MarkFile::find(&place)).await?;
        let judged = judge(&channel, found);
        if let MarkVerdict::Renew(_) = &judged {
            // A crash after this and before the mark is written renews it once more: no receiver
            // has seen this incarnation by then.
            channel = store.channels().renew(name, fence).await?;
        }
        let present = Record {
            incarnation: channel.incarnation,
            seq: channel.head,
        };
        let (record, renewal) = match judged {
            MarkVerdict::Follow(mark) => (mark.followed_by(present), None),
            MarkVerdict::Renew(renewal) => (present, Some(renewal)),
            MarkVerdict::Sound => (present, None),
        };
        let place = path.to_owned();
        let file = blocking(path, move || MarkFile::begin(&place, record)).await?;
        let shared = Shared {
            path: path.to_owned(),
            seq: AtomicU64::new(record.seq),
            file: Mutex::new(file),
        };
        Ok(Adoption {
            // No receiver can have seen anything of a channel without updates: not worth a report.
            renewal: renewal.filter(|renewal| {
                let is_of_nothing = matches!(
                    renewal,
                    Renewal::Missing | Renewal::Damaged { .. } | Renewal::Other { .. }
                );
                channel.head > 0 || !is_of_nothing
            }),
            channel,
            mark: HeadMark {
                shared: Arc::new(shared),
            },
        })
    }

    /// The last seq that may be published.
    pub fn seq(&self) -> u64 {
        self.shared.seq.load(Ordering::Acquire)
    }

    /// Durably allows everything up to `seq` to be published. A smaller one than before changes
    /// nothing. One raise for many updates costs as much as one for one: a sync of a small file.
    ///
    /// # Errors
    /// The file cannot be written; nothing more may be published then. Try again.
    pub async fn raise(&self, seq: u64) -> Result<(), StoreError> {
        if seq <= self.seq() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        blocking(&self.shared.path, move || {
            // A panic in between left a file of which one record is whole.
            let mut file = shared.file.lock().unwrap_or_else(PoisonError::into_inner);
            if seq > shared.seq.load(Ordering::Acquire) {
                file.raise(seq)?;
                shared.seq.store(seq, Ordering::Release);
            }
            Ok(())
        })
        .await
    }
}

/// Consequence for a channel and its mark.
enum MarkVerdict {
    /// The mark says from now on what the channel has.
    Sound,
    /// The same, after a renewal.
    Renew(Renewal),
    /// The mark is this one, and only goes forward.
    Follow(Record),
}

/// Whether a channel has to be renewed, and why.
fn judge(channel: &Channel, found: MarkState) -> MarkVerdict {
    MarkVerdict::Renew(match found {
        MarkState::Nothing => Renewal::Missing,
        MarkState::Damaged(reason) => Renewal::Damaged { reason },
        MarkState::Copy => Renewal::Copied,
        MarkState::Mark(mark) if mark.incarnation != channel.incarnation => Renewal::Other {
            published: mark.incarnation,
        },
        MarkState::Mark(mark) if channel.head < mark.seq => Renewal::Behind {
            head: channel.head,
            published: mark.seq,
        },
        MarkState::Mark(_) => return MarkVerdict::Sound,
    })
}

/// Does something with the file on a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let failed = |reason: String| StoreError::Mark {
        path: path.to_owned(),
        reason,
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}
