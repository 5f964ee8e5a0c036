//! Versions of entries, before and after they are stored.

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// Makes the bytes of an update from the seq that it gets and its draft; see
/// [`Updates::append`](crate::Updates::append).
pub type EncodeUpdate<'a> = dyn Fn(u64, &Draft) -> Vec<u8> + Send + Sync + 'a;

/// Whether an update brings an entry for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The entry was not known.
    Created,
    /// The entry was known with other content.
    Updated,
}

impl Kind {
    /// The word in the database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
        }
    }
}

/// A version of an entry that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The entry's id in its feed.
    pub entry_id: String,
    /// The hash of its content.
    pub hash: Hash,
    /// New or changed, according to [`Entries::hashes`](crate::Entries::hashes).
    pub kind: Kind,
    /// The caller's own number for it (its place in the parsed feed), for the encoder to find the
    /// content by; not stored.
    pub index: usize,
}

/// An update as it is stored and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredUpdate {
    /// Its number in the channel, from 1.
    pub seq: u64,
    /// The bytes that the encoder made.
    pub encoded: Vec<u8>,
}
