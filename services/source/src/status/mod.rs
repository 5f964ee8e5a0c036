//! State of the source at one moment, as its pages, metrics, records and systemd show it.

mod feed;
mod readiness;

use serde::Serialize;
use uuid::Uuid;

pub use feed::{FeedState, GapStatus, IngestStatus};
pub use readiness::{Readiness, TransportState, readiness};

/// Everything at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Phase of the process.
    pub phase: Phase,
    /// Whether the database answers.
    pub database: DatabaseState,
    /// The channels that are to be published, by name.
    pub channels: Vec<ChannelView>,
    /// AMT relays announced to receivers while they answer.
    pub relays: Vec<RelayView>,
}

/// A channel at one moment.
#[derive(Debug, Clone)]
pub struct ChannelView {
    /// Its name.
    pub name: String,
    /// Its incarnation, once it is known.
    pub incarnation: Option<Uuid>,
    /// Whether new members cannot decrypt earlier packets.
    pub private: bool,
    /// Its groups, as they are written.
    pub groups: String,
    /// Role of this process.
    pub role: Role,
    /// The last stored seq.
    pub head: u64,
    /// The last one that was published, if it is published here.
    pub published: Option<u64>,
    /// The oldest one that is kept.
    pub first: u64,
    /// Why its updates cannot be read or stored at the moment.
    pub store_failure: Option<String>,
    /// Its feeds.
    pub feeds: Vec<FeedView>,
}

/// A feed at one moment.
#[derive(Debug, Clone)]
pub struct FeedView {
    /// Its address without credentials.
    pub url: String,
    /// Title for people.
    pub title: Option<String>,
    /// State of its ingest; `None` where it is not polled here.
    pub ingest: Option<IngestStatus>,
}

/// A relay as it is seen from here.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RelayView {
    /// Where receivers find it.
    pub address: String,
    /// Where it is asked.
    pub asked: String,
    /// Whether it answers and is announced to receivers.
    pub healthy: bool,
    /// Since when that is so, in Unix milliseconds; nothing before the first answer is known.
    pub since_ms: Option<u64>,
    /// Time of its last answer, in milliseconds.
    pub answer_ms: Option<f64>,
    /// Why it is not announced.
    pub error: Option<String>,
}

/// Phase of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Not serving yet.
    Starting,
    /// Serving, or standing by.
    Running,
    /// Shutting down.
    Stopping,
}

/// Whether the database answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatabaseState {
    /// Whether the database answers.
    pub up: bool,
    /// Since when that is so, in Unix milliseconds.
    pub since_ms: u64,
    /// Why it does not.
    pub error: Option<String>,
}

/// Role of this process for a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum Role {
    /// Not determined yet.
    Starting,
    /// Publishing.
    Active {
        /// The number of its lease.
        fence: u64,
    },
    /// Published last, and unable to renew the lease.
    Lapsed {
        /// The number of its lease.
        fence: u64,
        /// Why.
        reason: String,
    },
    /// Another source publishes it.
    Standby {
        /// Name of that source; `None` if no source publishes it at the moment.
        holder: Option<String>,
    },
    /// Publishing failed.
    Failed {
        /// Why.
        reason: String,
    },
}
