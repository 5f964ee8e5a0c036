//! Stored facts about receivers.

use std::sync::Arc;

use uuid::Uuid;

use super::Rung;

/// Facts about a receiver itself. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Identifier.
    pub id: Uuid,
    /// Its own name.
    pub name: String,
    /// The operator's label; empty for none.
    pub label: String,
    /// The operator's tags.
    pub tags: Vec<String>,
    /// Its program and version.
    pub software: String,
    /// Last remote address.
    pub address: String,
    /// The channels that it requested last; empty if unknown.
    pub channels: Vec<Arc<str>>,
    /// Time of the first admission.
    pub enrolled_ms: i64,
    /// Time of the last admission.
    pub seen_ms: i64,
    /// Since when it is not admitted any more.
    pub revoked_ms: Option<i64>,
    /// The operator keeps it on unicast.
    pub held: bool,
}

impl Facts {
    /// Returns the name for people.
    pub(super) fn shown(&self) -> &str {
        match self.label.is_empty() {
            true => &self.name,
            false => &self.label,
        }
    }

    pub(super) fn key(&self) -> String {
        self.shown().to_lowercase()
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}\n{}\n{}\n{}\n{}",
            self.name, self.label, self.id, self.address, self.software
        );
        for tag in &self.tags {
            text.push('\n');
            text.push_str(tag);
        }
        text.to_lowercase()
    }
}

/// State of a receiver in a channel. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The channel.
    pub channel: Arc<str>,
    /// Whether the receiver is connected.
    pub connected: bool,
    /// Current rung.
    pub rung: Rung,
    /// Since when.
    pub since_ms: i64,
    /// Cause of the move there.
    pub cause: Option<Arc<str>>,
    /// The last seq that it confirmed.
    pub cursor: Option<u64>,
    /// Updates that it lacked when this was written.
    pub backlog: u64,
    /// The key epoch that it has.
    pub key_sequence: Option<u64>,
    /// The round-trip time of its connection in microseconds.
    pub rtt_us: Option<u64>,
    /// Its legs with their states, if it takes the flow by two.
    pub legs: Option<Arc<str>>,
    /// When this was written.
    pub updated_ms: i64,
}
