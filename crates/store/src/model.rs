//! The values that go into the store and come out of it.

use uuid::Uuid;

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// Makes the bytes of an update from the seq that it gets and its draft; see
/// [`Store::append`](crate::Store::append).
pub type EncodeUpdate<'a> = dyn Fn(u64, &Draft) -> Vec<u8> + Send + Sync + 'a;

/// A channel as it was when asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its unique name.
    pub name: String,
    /// Made at random with the channel, and again by
    /// [`Store::renew_channel`](crate::Store::renew_channel); the seqs of one incarnation say
    /// nothing about another's.
    pub incarnation: Uuid,
    /// The last seq given out, 0 if none was.
    pub head: u64,
    /// The oldest seq still stored; `head + 1` if none is.
    pub first: u64,
    /// Whether it was made just now, by being asked for.
    pub is_new: bool,
}

/// What a feed's server gave to ask "has it changed?" with (RFC 9110, section 8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// The `ETag` field as received.
    pub etag: Option<String>,
    /// The `Last-Modified` field as received.
    pub last_modified: Option<String>,
}

/// How a poll of a feed went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollRecord {
    /// When it ended.
    pub at_ms: i64,
    /// A word for the outcome, such as `ok` or `not-modified`; cut to 64 bytes.
    pub state: String,
    /// The outcome in a sentence; cut to 1,024 bytes.
    pub detail: String,
}

/// What is recorded about a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Stored together with the entries of the document that they came with.
    pub validators: Validators,
    /// The last poll, if one was recorded.
    pub last_poll: Option<PollRecord>,
}

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
    /// New or changed, as [`Store::known`](crate::Store::known) told.
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
