//! Content of `status.json`. Times are Unix times in ms, durations are in ms.

use std::net::SocketAddr;

use flexicast::receiver::{MessageCounters, ReceptionCounters};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Format of the file.
pub const VERSION: u32 = 1;

/// Status of a receiver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// Process id.
    pub pid: u32,
    /// Time of this status.
    pub updated_ms: u64,
    /// Start of the process.
    #[serde(default)]
    pub started_ms: u64,
    /// Display name.
    pub name: String,
    /// Id of the receiver, made once.
    pub receiver_id: Uuid,
    /// `host:port` of the source.
    pub source: String,
    /// Address of the source on the present connection.
    #[serde(default)]
    pub address: Option<String>,
    /// Whether the source has admitted the receiver on the present connection.
    pub connected: bool,
    /// Present failure, in words.
    pub error: Option<String>,
    /// Address of the HTTP server.
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// Channels, in the link's order.
    pub channels: Vec<Channel>,
    /// Webhooks and commands.
    #[serde(default)]
    pub hooks: Vec<Hook>,
}

/// Webhook or command. Counters count since this process started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Name.
    pub name: String,
    /// `webhook` or `exec`.
    pub kind: String,
    /// Channels; empty for all.
    pub channels: Vec<String>,
    /// Pending updates.
    pub pending: u64,
    /// Delivered updates.
    pub delivered: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Updates that became dead letters.
    pub dead: u64,
    /// Updates lost with a damaged journal.
    #[serde(default)]
    pub lost: u64,
    /// Messages given up, most because they had expired.
    #[serde(default)]
    pub expired: u64,
    /// Error of the last attempt, until one succeeds.
    pub error: Option<String>,
    /// Whether delivery is disabled until the next start.
    pub disabled: bool,
}

/// Channel. Counters count since this process started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Name.
    pub channel: String,
    /// Incarnation last announced by the source, or the cursor's.
    pub incarnation: Option<Uuid>,
    /// `multicast`, `amt`, `replicated` or `unicast`.
    pub rung: String,
    /// Time of the move to this rung.
    pub rung_since_ms: u64,
    /// AMT relay, whether or not the flow arrives by it. Of two, the first.
    #[serde(default)]
    pub relay: Option<SocketAddr>,
    /// Legs of a flow that comes by two at once, as far as they were tried.
    #[serde(default)]
    pub legs: Vec<LegView>,
    /// Last finding about relays, for people.
    #[serde(default)]
    pub relay_detail: Option<String>,
    /// Last `seq` up to which the outputs are complete; 0 for none.
    pub cursor: u64,
    /// Last `seq` announced by the source since this process started; 0 before the first.
    pub head: u64,
    /// Delivered updates.
    pub updates: u64,
    /// Delivered updates by path.
    pub via: Paths,
    /// Latency of the last 1,000 live updates, from storing at the source to the outputs.
    pub latency_ms: Latency,
    /// Counters of the reception, each a member of this object.
    #[serde(flatten)]
    pub reception: ReceptionCounters,
    /// Invalid updates, which were skipped.
    #[serde(default)]
    pub undecodable: u64,
    /// Counters of messages.
    #[serde(default)]
    pub messages: MessageCounters,
    /// Times that the source failed to prove an update by the pinned key.
    #[serde(default)]
    pub auth_failures: u64,
    /// Updates gone at the source before they could be received.
    #[serde(default)]
    pub missing: u64,
    /// Last 16 gaps, oldest first.
    #[serde(default)]
    pub gaps: Vec<Gap>,
    /// Last 64 moves, oldest first.
    pub moves: Vec<Move>,
}

/// One of the legs of a flow that comes by two at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegView {
    /// `multicast`, `amt`, or `amt-2` for a second relay.
    pub leg: String,
    /// `working` or `lost`.
    pub state: String,
    /// Since when.
    pub since_ms: u64,
    /// Its AMT relay, if it has one now.
    #[serde(default)]
    pub relay: Option<SocketAddr>,
}

impl LegView {
    /// Returns its name for people, with its relay.
    #[must_use]
    pub fn label(&self) -> String {
        match self.relay {
            Some(relay) => format!("{} by {relay}", self.leg),
            None => self.leg.clone(),
        }
    }
}

/// Updates by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Updates wholly received by the flow.
    pub flow: u64,
    /// Updates partly received by the flow.
    pub repaired: u64,
    /// Updates received by unicast alone.
    pub unicast: u64,
}

/// Latencies in ms, `null` before the first live update. They compare the source's clock with the
/// receiver's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Latency of the last update.
    pub last: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// Updates gone at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Time of the announcement.
    pub at_ms: u64,
    /// First `seq` that is gone.
    pub from: u64,
    /// Last one.
    pub to: u64,
}

/// Change of rung.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Time of the move.
    pub at_ms: u64,
    /// Previous rung.
    pub from: String,
    /// New rung.
    pub to: String,
    /// Cause, such as `joined` or `ack-timeout`.
    pub cause: String,
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns counters of packets, invalid packets, duplicates, mismatches, fetched updates and
    /// forgeries.
    pub(crate) fn reception(counts: [u64; 6]) -> ReceptionCounters {
        let mut counters = ReceptionCounters::default();
        [
            counters.flow_packets,
            counters.flow_invalid,
            counters.duplicates,
            counters.mismatches,
            counters.refetched,
            counters.forged,
        ] = counts;
        counters
    }

    #[test]
    fn the_counters_are_members_of_the_channel_in_their_order() {
        let channel = Channel {
            reception: reception([1, 2, 3, 4, 5, 6]),
            ..Channel::default()
        };
        let json = serde_json::to_string(&channel).unwrap();
        let counters = "\"flow_packets\":1,\"rebuilt\":0,\"flow_invalid\":2,\"duplicates\":3,\
                        \"mismatches\":4,\"refetched\":5,\"forged\":6,\"live\":0,\"expired\":0,\
                        \"late\":0,\"legs_lost\":0,\"redundant\":0,\"undecodable\":0,";
        assert!(json.contains(counters), "{json}");
        assert_eq!(serde_json::from_str::<Channel>(&json).unwrap(), channel);
        let older = json.replace("\"refetched\":5,\"forged\":6,", "");
        let read: Channel = serde_json::from_str(&older).unwrap();
        assert_eq!(read.reception, reception([1, 2, 3, 4, 0, 0]));
    }
}
