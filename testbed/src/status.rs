//! The status files and pages of the services, as far as the testbed looks at them.
//!
//! These are written down here a second time, on purpose: a change of a service that breaks its
//! readers breaks the scenarios.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// `DATA/status.json` of a receiver.
#[derive(Debug, Clone, Deserialize)]
pub struct ReceiverStatus {
    /// When the file was written, Unix time in ms.
    pub updated_ms: u64,
    /// Its configured name.
    pub name: String,
    /// Whether its connection to the source is up.
    pub connected: bool,
    /// The source's address, while it is connected or since it was.
    #[serde(default)]
    pub address: Option<SocketAddr>,
    /// Problem, in words for people.
    pub error: Option<String>,
    /// Its channels.
    pub channels: Vec<ReceiverChannel>,
}

/// One channel in a receiver's status.
#[derive(Debug, Clone, Deserialize)]
pub struct ReceiverChannel {
    /// The channel's name.
    pub channel: String,
    /// `multicast`, `unicast`, …
    pub rung: String,
    /// Legs of a receiver with two.
    #[serde(default)]
    pub legs: Vec<Leg>,
    /// The last contiguous update that the outputs hold.
    pub cursor: u64,
    /// The source's last update, as far as known.
    pub head: u64,
    /// Number of updates delivered by this process.
    pub updates: u64,
    /// By which path.
    pub via: ViaCounts,
    /// From storing at the source to delivery, in ms.
    #[serde(default)]
    pub latency_ms: Latency,
    /// Flow packets that arrived.
    pub flow_packets: u64,
    /// Datagrams to the flow that were not valid packets of it.
    pub flow_invalid: u64,
    /// Packets that did not arrive and were rebuilt; 0 at a receiver of an earlier version.
    #[serde(default)]
    pub rebuilt: u64,
    /// Bytes that arrived more than once, by count of occurrences.
    pub duplicates: u64,
    /// Times that the flow's bytes differed from the unicast path's.
    pub mismatches: u64,
    /// Updates whose bytes from the flow were dropped, and fetched again.
    #[serde(default)]
    pub refetched: u64,
    /// Packets and headers of the flow that the source did not sign.
    #[serde(default)]
    pub forged: u64,
    /// Messages that were handed on; 0 at a receiver of an earlier version.
    #[serde(default)]
    pub messages: MessageCounts,
    /// Updates that were gone for good at the source, oldest gap first.
    pub gaps: Vec<Gap>,
    /// The latest changes of rung, oldest first.
    pub moves: Vec<Move>,
}

/// One of the legs by which a receiver takes the flow at once.
#[derive(Debug, Clone, Deserialize)]
pub struct Leg {
    /// `multicast`, `amt` or `amt-2`.
    pub leg: String,
    /// `trying`, `working` or `lost`.
    pub state: String,
    /// Its relay, by the receiver's own account.
    #[serde(default)]
    pub relay: Option<SocketAddr>,
}

/// Messages of a channel at a receiver.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct MessageCounts {
    /// Those that were handed on.
    pub taken: u64,
    /// Those that the source did not send.
    pub forged: u64,
}

/// Updates that were gone for good.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Gap {
    /// The first of them.
    pub from: u64,
    /// The last of them.
    pub to: u64,
}

/// Updates by path.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct ViaCounts {
    /// Every byte first came by the flow.
    pub flow: u64,
    /// Some did.
    pub repaired: u64,
    /// None did.
    pub unicast: u64,
}

impl ViaCounts {
    /// Returns the part of all updates that the flow alone brought.
    pub fn by_flow(&self) -> f64 {
        let all = self.flow + self.repaired + self.unicast;
        self.flow as f64 / all.max(1) as f64
    }
}

/// Latency figures in ms; `None` while nothing was delivered.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Latency {
    /// Of the last update.
    pub last: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// A change of rung.
#[derive(Debug, Clone, Deserialize)]
pub struct Move {
    /// Unix time in ms.
    pub at_ms: f64,
    /// At the source: which receiver, by its configured name.
    #[serde(default)]
    pub name: String,
    /// The rung left.
    pub from: String,
    /// The rung taken.
    pub to: String,
    /// Cause, e.g. `joined`, `ack-timeout`.
    pub cause: String,
}

/// `/status.json` of a source.
#[derive(Debug, Clone, Deserialize)]
pub struct SourceStatus {
    /// The channel's incarnation.
    pub incarnation: String,
    /// The last stored update.
    pub head: u64,
    /// The feed that it reads.
    pub feed: FeedStatus,
    /// The flow, unless the channel has none.
    pub flow: Option<FlowStatus>,
    /// Load of the source.
    #[serde(default)]
    pub load: LoadStatus,
    /// Everybody connected.
    pub receivers: Vec<SourceReceiver>,
    /// The latest changes of rung, oldest first.
    pub moves: Vec<Move>,
}

/// Load of a source, by its lateness.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LoadStatus {
    /// Whether it cannot keep up.
    pub overloaded: bool,
    /// The last overloads, oldest first.
    pub overloads: Vec<Overload>,
}

/// A time in which a source could not keep up.
#[derive(Debug, Clone, Deserialize)]
pub struct Overload {
    /// Its end, Unix time in ms.
    pub until_ms: Option<u64>,
    /// `engine`, `publishing`, `receive-queue`.
    pub late: Vec<String>,
}

/// The state of a source's feed.
#[derive(Debug, Clone, Deserialize)]
pub struct FeedStatus {
    /// `ok`, `not-modified`, `not-a-feed`, `challenged` or `error`.
    pub state: String,
    /// More about it, in words for a person.
    #[serde(default)]
    pub detail: Option<String>,
}

/// The state of a source's flow.
#[derive(Debug, Clone, Deserialize)]
pub struct FlowStatus {
    /// The Flow ID in hexadecimal.
    pub id: String,
    /// `address:port`.
    pub group: String,
    /// Number of members that owe acknowledgements.
    pub members: u64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// UDP payload of a full packet; 0 at a source of an earlier version.
    #[serde(default)]
    pub packet_size: usize,
    /// Members whose paths do not take larger packets.
    #[serde(default)]
    pub narrow_members: usize,
    /// Repair symbols sent; 0 at a source of an earlier version.
    #[serde(default)]
    pub repair_symbols: u64,
    /// Packets that members reported as rebuilt.
    #[serde(default)]
    pub rebuilt: u64,
}

/// A receiver as its source sees it.
#[derive(Debug, Clone, Deserialize)]
pub struct SourceReceiver {
    /// Its configured name.
    pub name: String,
    /// Remote address of its connection.
    pub addr: SocketAddr,
    /// `multicast`, `unicast`, …
    pub rung: String,
    /// Confirmed cursor.
    pub cursor: Option<u64>,
    /// The same for each of its channels.
    #[serde(default)]
    pub channels: Vec<SourceReceiverChannel>,
}

/// A connected receiver in one channel.
#[derive(Debug, Clone, Deserialize)]
pub struct SourceReceiverChannel {
    /// Its legs, where it has two.
    #[serde(default)]
    pub legs: Vec<Leg>,
}

impl ReceiverStatus {
    /// Reads `status.json` in a receiver's data folder; `None` while there is none.
    ///
    /// # Errors
    /// When the file is there but cannot be read as a status.
    pub fn read(data: &Path) -> Result<Option<ReceiverStatus>> {
        let path = data.join("status.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(format!("reading {}", path.display())),
        };
        let status = serde_json::from_slice(&bytes)
            .with_context(|| format!("reading {} as a receiver's status", path.display()))?;
        Ok(Some(status))
    }

    /// The channel of this name, if the receiver has been welcomed to it.
    pub fn channel(&self, name: &str) -> Option<&ReceiverChannel> {
        self.channels.iter().find(|channel| channel.channel == name)
    }
}

impl SourceStatus {
    /// The changes of rung of one receiver, oldest first.
    pub fn moves_of(&self, name: &str) -> Vec<&Move> {
        let its = |step: &&Move| step.name == name && step.cause != "probe-timeout";
        self.moves.iter().filter(its).collect()
    }
}
