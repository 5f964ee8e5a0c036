//! The transport's own counters, each a metric.

use flexicast_tokio::source::Counters;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use super::{raise, registered};

/// Accessor of a counter.
type Value = fn(&Counters) -> u64;

/// Counter: its name, its help text, and its accessor.
type Known = (&'static str, &'static str, Value);

/// Counters of the transport, in the order in which they are shown. A name gets `_total` at its
/// end.
const KNOWN: &[Known] = &[
    (
        "connections",
        "Connections on which a receiver was admitted",
        |c| c.connections,
    ),
    (
        "refused",
        "Receivers refused, for example for a wrong token",
        |c| c.refused,
    ),
    ("handshakes", "Handshakes started", |c| c.handshakes),
    (
        "handshakes_abandoned",
        "Connections that ended before their HELLO",
        |c| c.handshakes_abandoned,
    ),
    (
        "retries",
        "Retry packets sent because many receivers were connecting",
        |c| c.retries,
    ),
    (
        "stray_datagrams",
        "Datagrams on the QUIC port that match no connection",
        |c| c.stray_datagrams,
    ),
    ("stateless_resets", "Stateless resets sent", |c| c.resets),
    (
        "stateless_resets_withheld",
        "Stateless resets not sent because of the rate limit",
        |c| c.resets_withheld,
    ),
    (
        "messages_dropped",
        "Messages to all listeners of a flow dropped for lack of room or listeners",
        |c| c.messages_dropped,
    ),
    (
        "protocol_violations",
        "Connections closed because the receiver violated the protocol",
        |c| c.violations,
    ),
    (
        "over_limit",
        "Connections refused because there were too many",
        |c| c.over_limit,
    ),
    (
        "migrations",
        "Address changes of receivers, validated",
        |c| c.migrations,
    ),
    (
        "failed_paths",
        "Addresses of receivers that failed path validation",
        |c| c.failed_paths,
    ),
    (
        "unknown_paths",
        "Packets of connections from unknown addresses, forged ones among them",
        |c| c.unknown_paths,
    ),
    (
        "send_errors",
        "Datagrams of connections that the kernel refused to send",
        |c| c.send_errors,
    ),
    (
        "multicast_errors",
        "Flow packets that the kernel refused to send to a group",
        |c| c.multicast_errors,
    ),
    (
        "copies",
        "Flow packets replicated to single receivers, unsent ones included",
        |c| c.copies,
    ),
    (
        "copy_errors",
        "Replicated flow packets that the kernel refused to send",
        |c| c.copy_errors,
    ),
    (
        "invalid_acks",
        "Acknowledgements of flow packets that were never sent",
        |c| c.protocol.invalid_acks,
    ),
    (
        "needs",
        "NEED requests of receivers, for bytes that were wrong on the flow or are not published",
        |c| c.protocol.needs,
    ),
    (
        "cursors_ahead",
        "Connections closed because a cursor of the receiver was beyond the head",
        |c| c.protocol.cursors_ahead,
    ),
    (
        "hellos_ahead",
        "Receivers that connected with a cursor beyond the head of the same incarnation",
        |c| c.protocol.hellos_ahead,
    ),
    (
        "excess_acks",
        "Acknowledgements ignored because a receiver sent too many",
        |c| c.protocol.excess_acks,
    ),
    (
        "excess_control",
        "Receivers disconnected for too many control frames",
        |c| c.protocol.excess_control,
    ),
    (
        "excess_needs",
        "NEED requests of receivers not answered because there were too many",
        |c| c.protocol.excess_needs,
    ),
    (
        "too_many",
        "Receivers refused because the limit was reached",
        |c| c.protocol.too_many,
    ),
    (
        "ids_in_use",
        "Receivers refused because their id was connected already",
        |c| c.protocol.ids_in_use,
    ),
    (
        "copies_refused",
        "Requests for replication refused because the limit was reached",
        |c| c.protocol.copies_refused,
    ),
    (
        "copies_unproved",
        "Receivers whose replication ended because no arrival was proved",
        |c| c.protocol.copies_unproved,
    ),
    (
        "copies_failed",
        "Receivers whose replication ended because packets could not be sent",
        |c| c.protocol.copies_failed,
    ),
    (
        "proofs_ignored",
        "Proofs of reception not accepted: of another flow, an old key or a rung not served",
        |c| c.protocol.proofs_ignored,
    ),
    (
        "repairs",
        "Ranges of updates repaired on receivers' own connections",
        |c| c.protocol.repairs,
    ),
    (
        "resent_updates",
        "Updates sent again because they were acknowledged but the cursor stayed before them",
        |c| c.protocol.resent_updates,
    ),
    ("promotions", "Moves to a better rung", |c| {
        c.protocol.promotions
    }),
    (
        "fall_backs",
        "Fall-backs to a receiver's own connection",
        |c| c.protocol.fall_backs,
    ),
    (
        "mass_fall_backs",
        "Times that many receivers fell back at once",
        |c| c.protocol.mass_fall_backs,
    ),
    ("rekeys", "Key epochs of flows after the first", |c| {
        c.protocol.rekeys
    }),
    (
        "rekeys_missed",
        "Fall-backs of receivers that did not confirm a key in time",
        |c| c.protocol.rekeys_missed,
    ),
    (
        "receiver_gaps",
        "Notifications of receivers that updates are gone for good",
        |c| c.protocol.gaps,
    ),
    (
        "unicast_held",
        "Waits of updates for the rate limit of all unicast paths together",
        |c| c.protocol.unicast_held,
    ),
];

/// The same in bytes.
const KNOWN_BYTES: &[Known] = &[(
    "unicast",
    "Bytes of updates written to the receivers' own connections, repairs included",
    |c| c.unicast_bytes,
)];

/// The transport's counters as metrics.
#[derive(Debug)]
pub(super) struct TransportCounters {
    counters: Vec<(Counter, Value)>,
}

impl TransportCounters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut counters = Vec::new();
        for (known, unit) in [(KNOWN, None), (KNOWN_BYTES, Some(Unit::Bytes))] {
            for (name, help, value) in known {
                counters.push((registered(registry, name, unit.clone(), help), *value));
            }
        }
        Self { counters }
    }

    pub(super) fn observe(&self, seen: &Counters) {
        for (counter, value) in &self.counters {
            raise(counter, value(seen));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use flexicast::source::SourceCounters;

    use super::*;

    #[test]
    fn no_counter_of_the_transport_is_left_out() {
        let all = serde_json::to_value(Counters::default()).unwrap();
        let count = all.as_object().unwrap().len();
        assert_eq!(KNOWN.len() + KNOWN_BYTES.len(), count, "{all}");
    }

    #[test]
    fn the_counters_of_the_state_machine_are_members_of_the_object() {
        let protocol = SourceCounters {
            invalid_acks: 1,
            unicast_held: 2,
            ..SourceCounters::default()
        };
        let counters = Counters {
            unicast_bytes: 3,
            protocol,
            ..Counters::default()
        };
        let json = serde_json::to_string(&counters).unwrap();
        let both = "\"unicast_bytes\":3,\"invalid_acks\":1,";
        assert!(json.contains(both), "{json}");
        let end = "\"gaps\":0,\"unicast_held\":2}";
        assert!(json.ends_with(end), "{json}");
    }
}
