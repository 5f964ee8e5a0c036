//! Messages of live channels.

/// Receipt of a message that was queued for the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageReceipt {
    /// When the message expires, in Unix milliseconds.
    pub expires_ms: i64,
    /// Whether a message with its event id was queued in the last minutes: nothing was queued now.
    pub is_repeat: bool,
}

/// Message that a source has taken to send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its number, which grows from message to message.
    pub id: i64,
    /// Its channel.
    pub channel: String,
    /// Id that its publisher chose.
    pub event_id: String,
    /// Its encoded bytes.
    pub payload: Vec<u8>,
    /// When it was queued, in Unix milliseconds.
    pub created_ms: i64,
    /// When it expires, by the database's clock.
    pub expires_ms: i64,
    /// Time left until then when it was taken, in ms: right also where clocks differ.
    pub left_ms: u64,
}
