//! The transport's own counters, each a metric.

use flexicast_tokio::source::Counters;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use super::raise;

/// Where a counter is found.
type Value = fn(&Counters) -> u64;

/// A counter: its name, what it counts, and where it is found.
type Known = (&'static str, &'static str, Value);

/// Those of the transport, in the order in which they are shown. A name gets `_total` at its end.
const KNOWN: &[Known] = &[
    (
        "connections",
        "Receivers that connected and were let in",
        |c| c.connections,
    ),
    (
        "refused",
        "Receivers turned away, for example with a wrong token",
        |c| c.refused,
    ),
    ("handshakes", "Handshakes that began", |c| c.handshakes),
    (
        "handshakes_abandoned",
        "Connections that ended before their receiver said who it is",
        |c| c.handshakes_abandoned,
    ),
    (
        "retries",
        "Receivers that had to prove their address first, because many were connecting",
        |c| c.retries,
    ),
    (
        "stray_datagrams",
        "Datagrams on the QUIC port that belong to nothing",
        |c| c.stray_datagrams,
    ),
    ("stateless_resets", "Stateless resets sent", |c| c.resets),
    (
        "stateless_resets_withheld",
        "Stateless resets not sent because there were too many",
        |c| c.resets_withheld,
    ),
    (
        "messages_dropped",
        "Messages to all listeners of a flow that found no room or nobody",
        |c| c.messages_dropped,
    ),
    (
        "protocol_violations",
        "Connections closed because the receiver violated the protocol",
        |c| c.violations,
    ),
    (
        "over_limit",
        "Connections turned away because there were too many",
        |c| c.over_limit,
    ),
    (
        "migrations",
        "Times that a receiver moved to another address and proved it",
        |c| c.migrations,
    ),
    (
        "failed_paths",
        "Addresses of receivers that did not prove themselves",
        |c| c.failed_paths,
    ),
    (
        "unknown_paths",
        "Packets of connections from addresses that were not followed, forged ones among them",
        |c| c.unknown_paths,
    ),
    (
        "send_errors",
        "Datagrams of connections that the kernel refused to send",
        |c| c.send_errors,
    ),
    (
        "multicast_errors",
        "Packets that the kernel refused to send to a group",
        |c| c.multicast_errors,
    ),
    (
        "copies",
        "Copies of flow packets for single receivers, those that could not be sent included",
        |c| c.copies,
    ),
    (
        "copy_errors",
        "Copies of flow packets that the kernel refused to send",
        |c| c.copy_errors,
    ),
    (
        "invalid_acks",
        "Acknowledgements of flow packets that were never sent",
        |c| c.invalid_acks,
    ),
    (
        "needs",
        "Requests of receivers for bytes that the flow brought wrong or that are not published",
        |c| c.needs,
    ),
    (
        "cursors_ahead",
        "Connections closed because a cursor of the receiver was beyond the head",
        |c| c.cursors_ahead,
    ),
    (
        "hellos_ahead",
        "Receivers that connected with a cursor beyond the head of the same history",
        |c| c.hellos_ahead,
    ),
    (
        "excess_acks",
        "Acknowledgements ignored because a receiver sent too many",
        |c| c.excess_acks,
    ),
    (
        "excess_control",
        "Receivers disconnected because they sent too many control frames",
        |c| c.excess_control,
    ),
    (
        "excess_needs",
        "Requests of receivers for bytes not answered because there were too many",
        |c| c.excess_needs,
    ),
    (
        "too_many",
        "Receivers turned away because as many as allowed were served",
        |c| c.too_many,
    ),
    (
        "ids_in_use",
        "Receivers turned away because one with their id was connected",
        |c| c.ids_in_use,
    ),
    (
        "copies_refused",
        "Requests for copies refused because as many as allowed got them",
        |c| c.copies_refused,
    ),
    (
        "copies_unproved",
        "Receivers whose copies ended because nothing proved that they arrive",
        |c| c.copies_unproved,
    ),
    (
        "copies_failed",
        "Receivers whose copies ended because they could not be sent",
        |c| c.copies_failed,
    ),
    (
        "proofs_ignored",
        "Proofs of reception not accepted: of another flow, an old key or a rung not served",
        |c| c.proofs_ignored,
    ),
    (
        "repairs",
        "Ranges of updates repaired on receivers' own connections",
        |c| c.repairs,
    ),
    (
        "resent_updates",
        "Updates sent again because a receiver acknowledged them and its cursor stayed before them",
        |c| c.resent_updates,
    ),
    ("promotions", "Moves to a better rung", |c| c.promotions),
    (
        "fall_backs",
        "Moves back to a receiver's own connection",
        |c| c.fall_backs,
    ),
    (
        "mass_fall_backs",
        "Times that many receivers fell back at once",
        |c| c.mass_fall_backs,
    ),
    ("rekeys", "Key epochs of flows after their first", |c| {
        c.rekeys
    }),
    (
        "rekeys_missed",
        "Receivers that fell back because they did not confirm a key in time",
        |c| c.rekeys_missed,
    ),
    (
        "receiver_gaps",
        "Times that a receiver was told that updates are gone for good",
        |c| c.gaps,
    ),
    (
        "unicast_held",
        "Times that updates waited for the rate of all receivers' own connections together",
        |c| c.unicast_held,
    ),
];

/// The same in bytes.
const KNOWN_BYTES: &[Known] = &[(
    "unicast",
    "Updates handed to the receivers' own connections, repairs included",
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
        for (name, help, value) in KNOWN {
            let counter = Counter::default();
            registry.register(*name, *help, counter.clone());
            counters.push((counter, *value));
        }
        for (name, help, value) in KNOWN_BYTES {
            let counter = Counter::default();
            registry.register_with_unit(*name, *help, Unit::Bytes, counter.clone());
            counters.push((counter, *value));
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
    use super::*;

    #[test]
    fn no_counter_of_the_transport_is_left_out() {
        let all = serde_json::to_value(Counters::default()).unwrap();
        let count = all.as_object().unwrap().len();
        assert_eq!(KNOWN.len() + KNOWN_BYTES.len(), count, "{all}");
    }
}
