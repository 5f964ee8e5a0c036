//! State of the source at one moment, as its pages, metrics, records and systemd show it.

mod feed;
mod readiness;

use serde::Serialize;
use uuid::Uuid;

pub use feed::{FeedState, GapStatus, IngestStatus};
pub use readiness::{Readiness, TransportState, readiness};

/// State of the source at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Phase of the process.
    pub phase: Phase,
    /// Whether the database answers.
    pub database: DatabaseState,
    /// Channels to publish, in the order of their positions.
    pub channels: Vec<ChannelView>,
    /// AMT relays announced to receivers while they answer.
    pub relays: Vec<RelayView>,
}

/// A channel at one moment.
#[derive(Debug, Clone)]
pub struct ChannelView {
    /// Name.
    pub name: String,
    /// Incarnation, once known.
    pub incarnation: Option<Uuid>,
    /// Whether new members cannot decrypt earlier packets.
    pub private: bool,
    /// Multicast groups, as written in the settings.
    pub groups: String,
    /// Role of this process.
    pub role: Role,
    /// Last stored seq.
    pub head: u64,
    /// Last published seq; `None` where it is not published here.
    pub published: Option<u64>,
    /// Oldest kept seq.
    pub first: u64,
    /// Current failure to read or store updates.
    pub store_failure: Option<String>,
    /// Feeds.
    pub feeds: Vec<FeedView>,
}

/// A feed at one moment.
#[derive(Debug, Clone)]
pub struct FeedView {
    /// Address without credentials.
    pub url: String,
    /// Title for people.
    pub title: Option<String>,
    /// State of its ingest; `None` where it is not polled here.
    pub ingest: Option<IngestStatus>,
}

/// An AMT relay as this source sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RelayView {
    /// Address announced to receivers.
    pub address: String,
    /// Address of health checks.
    pub asked: String,
    /// Whether it answers and is announced to receivers.
    pub healthy: bool,
    /// Time of the last change of this, in Unix milliseconds; `None` before the first check.
    pub since_ms: Option<u64>,
    /// Response time of the last check that succeeded, in milliseconds.
    pub answer_ms: Option<f64>,
    /// Reason why it is not announced.
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
    /// Time of the last change of this, in Unix milliseconds.
    pub since_ms: u64,
    /// Failure, while it does not.
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
        /// Fence of the lease.
        fence: u64,
    },
    /// Published last, and unable to renew the lease.
    Lapsed {
        /// Fence of the lease.
        fence: u64,
        /// Failure of the renewal.
        reason: String,
    },
    /// Another source publishes it.
    Standby {
        /// Name of that source; `None` if no source publishes it at the moment.
        holder: Option<String>,
    },
    /// Publishing failed.
    Failed {
        /// Failure.
        reason: String,
    },
}
