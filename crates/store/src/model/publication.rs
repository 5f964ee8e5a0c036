//! Publications.

/// Entry that a publisher sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPublication {
    /// Id of the entry.
    pub entry_id: String,
    /// Its encoded bytes.
    pub payload: Vec<u8>,
}

/// Publication that waits for the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPublication {
    /// Its number, which grows from publication to publication of a channel.
    pub id: i64,
    /// Id of the entry.
    pub entry_id: String,
    /// Its encoded bytes.
    pub payload: Vec<u8>,
}
