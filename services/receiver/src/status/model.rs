//! The content of `status.json`. Times are Unix times in ms, durations are in ms.

use std::net::SocketAddr;

use flexicast::receiver::ReceptionCounters;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The format of the file.
pub const VERSION: u32 = 1;

/// A receiver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The receiver's process.
    pub pid: u32,
    /// When this was written.
    pub updated_ms: u64,
    /// When the process began.
    #[serde(default)]
    pub started_ms: u64,
    /// Its name for people.
    pub name: String,
    /// Its id, made once.
    pub receiver_id: Uuid,
    /// `host:port` of the source.
    pub source: String,
    /// The source's address on the present connection.
    #[serde(default)]
    pub address: Option<String>,
    /// Whether the source has let the receiver in on the present connection.
    pub connected: bool,
    /// Present failure, in words for a person.
    pub error: Option<String>,
    /// Address of the HTTP server.
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// The channels, in the link's order.
    pub channels: Vec<Channel>,
    /// The webhooks and commands.
    #[serde(default)]
    pub hooks: Vec<Hook>,
}

/// A webhook or command. Counters count since this process started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// `webhook` or `exec`.
    pub kind: String,
    /// Only updates of these channels; of all if empty.
    pub channels: Vec<String>,
    /// Updates that wait for it.
    pub pending: u64,
    /// Updates that it has taken.
    pub delivered: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Updates that went to its dead-letter file.
    pub dead: u64,
    /// Updates that were lost for it with a damaged journal.
    #[serde(default)]
    pub lost: u64,
    /// Error of the last attempt, until one succeeds.
    pub error: Option<String>,
    /// Whether delivery is disabled until the next start.
    pub disabled: bool,
}

/// One channel. Counters count since this process started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Its name.
    pub channel: String,
    /// Incarnation last announced by the source, or the cursor's.
    pub incarnation: Option<Uuid>,
    /// `multicast`, `amt`, `replicated` or `unicast`.
    pub rung: String,
    /// Since when.
    pub rung_since_ms: u64,
    /// The AMT relay that it has, whether or not the flow comes by it.
    #[serde(default)]
    pub relay: Option<SocketAddr>,
    /// Last finding about relays, for people.
    #[serde(default)]
    pub relay_detail: Option<String>,
    /// The last `seq` up to which the outputs are complete; 0 for none.
    pub cursor: u64,
    /// Last `seq` announced by the source since this process started; 0 before the first.
    pub head: u64,
    /// Updates put out.
    pub updates: u64,
    /// The same by path.
    pub via: Paths,
    /// Of the last 1,000 live updates: from storing at the source until the output held them.
    pub latency_ms: Latency,
    /// Counters of what arrived, each a member of this object.
    #[serde(flatten)]
    pub reception: ReceptionCounters,
    /// Updates that made no sense and were passed over.
    #[serde(default)]
    pub undecodable: u64,
    /// Updates that were gone at the source before this receiver asked for them.
    #[serde(default)]
    pub missing: u64,
    /// The last 16 times that updates were gone, oldest first.
    #[serde(default)]
    pub gaps: Vec<Gap>,
    /// The last 64 moves, oldest first.
    pub moves: Vec<Move>,
}

/// Updates by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Every byte first came by the flow.
    pub flow: u64,
    /// Some did.
    pub repaired: u64,
    /// None did.
    pub unicast: u64,
}

/// Latencies in ms, `null` before the first live update. They compare the source's clock with the
/// receiver's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Of the last update.
    pub last: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// Updates that were gone at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// When the source said so.
    pub at_ms: u64,
    /// The first `seq` that is gone.
    pub from: u64,
    /// The last one.
    pub to: u64,
}

/// A change of rung.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// When.
    pub at_ms: u64,
    /// The rung left.
    pub from: String,
    /// The rung taken.
    pub to: String,
    /// Cause, such as `joined` or `ack-timeout`.
    pub cause: String,
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns counters of packets, invalid packets, duplicates, mismatches and fetched updates.
    pub(crate) fn reception(counts: [u64; 5]) -> ReceptionCounters {
        let mut counters = ReceptionCounters::default();
        [
            counters.flow_packets,
            counters.flow_invalid,
            counters.duplicates,
            counters.mismatches,
            counters.refetched,
        ] = counts;
        counters
    }

    #[test]
    fn the_counters_are_members_of_the_channel_in_their_order() {
        let channel = Channel {
            reception: reception([1, 2, 3, 4, 5]),
            ..Channel::default()
        };
        let json = serde_json::to_string(&channel).unwrap();
        let counters = "\"flow_packets\":1,\"flow_invalid\":2,\"duplicates\":3,\"mismatches\":4,\
                        \"refetched\":5,\"undecodable\":0,";
        assert!(json.contains(counters), "{json}");
        assert_eq!(serde_json::from_str::<Channel>(&json).unwrap(), channel);
        let older = json.replace("\"refetched\":5,", "");
        let read: Channel = serde_json::from_str(&older).unwrap();
        assert_eq!(read.reception, reception([1, 2, 3, 4, 0]));
    }
}
