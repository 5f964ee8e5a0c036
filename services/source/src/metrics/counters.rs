//! The transport's own counters, each a metric.

use flexicast_tokio::source::Counters;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use service::metrics::raise;

use super::registered;

/// Accessor of a counter.
type Value = fn(&Counters) -> u64;

/// Counter: its name, its help text, and its accessor.
type Known = (&'static str, &'static str, Value);

/// Returns a table of counters: their names, fields and help texts.
macro_rules! table {
    ($($name:literal: $($field:ident).+, $help:literal;)*) => {
        &[$(($name, $help, |c: &Counters| c.$($field).+)),*]
    };
}

/// Counters of the transport, in the order in which they are shown. A name gets `_total` at its
/// end.
const KNOWN: &[Known] = table! {
    "connections": connections, "Connections on which a receiver was admitted";
    "refused": refused, "Receivers refused, for example for a wrong token";
    "handshakes": handshakes, "Handshakes started";
    "handshakes_abandoned": handshakes_abandoned, "Connections that ended before their HELLO";
    "retries": retries, "Retry packets sent because many receivers were connecting";
    "stray_datagrams": stray_datagrams, "Datagrams on the QUIC port that match no connection";
    "stateless_resets": resets, "Stateless resets sent";
    "stateless_resets_withheld": resets_withheld,
        "Stateless resets not sent because of the rate limit";
    "protocol_violations": violations,
        "Connections closed because the receiver violated the protocol";
    "over_limit": over_limit, "Connections refused because there were too many";
    "migrations": migrations, "Address changes of receivers, validated";
    "failed_paths": failed_paths, "Addresses of receivers that failed path validation";
    "unknown_paths": unknown_paths,
        "Packets of connections from unknown addresses, forged ones among them";
    "misdelivered": misdelivered,
        "Datagrams passed on to the shard of their connection, as after an address change";
    "misdelivered_dropped": misdelivered_dropped,
        "Datagrams dropped because too many waited to be passed on to a shard";
    "shard_failures": shard_failures, "Shards that failed and were restarted";
    "shard_hangs": shard_hangs,
        "Shards that were replaced because they did not answer for ten seconds; included in \
         shard_failures";
    "send_errors": send_errors, "Datagrams of connections that the kernel refused to send";
    "multicast_errors": multicast_errors, "Flow packets that the kernel refused to send to a group";
    "copies": copies, "Flow packets replicated to single receivers, unsent ones included";
    "copy_errors": copy_errors,
        "Receivers to whose address the kernel refused to send replicated packets";
    "copies_dropped": copies_dropped,
        "Replicated flow packets dropped because a sending queue or the socket's buffer was full";
    "datagrams_dropped": datagrams_dropped,
        "Datagrams of receivers that the kernel dropped because the receive queue was full";
    "message_fragments_dropped": fragments_dropped,
        "Fragments of messages dropped because more waited for a connection than may";
    "overloads": overloads, "Times that the source could not keep up";
    "acks": protocol.acks,
        "Acknowledgements of members, in feedback packets and in DATAGRAM frames";
    "invalid_acks": protocol.invalid_acks, "Acknowledgements of flow packets that were never sent";
    "forged_reports": protocol.forged_reports,
        "Reports of receivers that show that packets of a flow were forged";
    "needs": protocol.needs,
        "NEED requests of receivers, for bytes that were wrong on the flow or are not published";
    "needs_missing": protocol.needs_missing,
        "NEED requests of receivers, for bytes that did not arrive within three seconds";
    "cursors_ahead": protocol.cursors_ahead,
        "Connections closed because a cursor of the receiver was beyond the head";
    "hellos_ahead": protocol.hellos_ahead,
        "Receivers that connected with a cursor beyond the head of the same incarnation";
    "excess_acks": protocol.excess_acks,
        "Acknowledgements ignored because a receiver sent too many";
    "feedback_packets": protocol.feedback.packets,
        "Feedback packets of receivers: acknowledgements outside of their connections";
    "feedback_invalid": protocol.feedback.invalid,
        "Feedback packets dropped: of no receiver, too many, received before, forged or malformed";
    "feedback_elsewhere": protocol.feedback.elsewhere,
        "Feedback packets dropped: from another address than their receiver's connection";
    "excess_control": protocol.excess_control, "Receivers disconnected for too many control frames";
    "excess_needs": protocol.excess_needs,
        "NEED requests of receivers not answered because there were too many";
    "too_many": protocol.too_many, "Receivers refused because the limit was reached";
    "ids_in_use": protocol.ids_in_use, "Receivers refused because their id was connected already";
    "copies_refused": protocol.replication.refused,
        "Requests for replication refused because the limit was reached";
    "copies_unproved": protocol.replication.unproved,
        "Receivers whose replication ended because no arrival was proved";
    "copies_failed": protocol.replication.failed,
        "Receivers whose replication ended because packets could not be sent";
    "messages_sent": protocol.messages.sent, "Messages sent to all receivers of a channel";
    "messages_refused": protocol.messages.refused,
        "Messages not sent: their deadline had passed, or more waited than may";
    "message_copies": protocol.messages.copies,
        "Messages for connections of receivers that are not on the flow";
    "message_copies_dropped": protocol.messages.dropped,
        "Messages for connections dropped because more waited than may";
    "proofs_ignored": protocol.proofs_ignored,
        "Proofs of reception not accepted: of another flow, an old key or a rung not served";
    "repairs": protocol.repairs, "Ranges of updates repaired on receivers' own connections";
    "shared_repairs": protocol.shared_repairs,
        "Flow packets whose updates were sent again on the flow because many members missed them";
    "resent_updates": protocol.resent_updates,
        "Updates sent again because they were acknowledged but the cursor stayed before them";
    "expired_updates": protocol.deadlines.expired,
        "Updates not sent to a receiver because their deadline had passed";
    "expired_on_flow": protocol.deadlines.withdrawn,
        "Updates taken off a flow because their deadline had passed";
    "promotions": protocol.promotions, "Moves to a better rung";
    "fall_backs": protocol.fall_backs, "Fall-backs to a receiver's own connection";
    "legs_lost": protocol.legs_lost,
        "Legs of receivers with two that fell silent while the other went on";
    "mass_fall_backs": protocol.mass_fall_backs, "Times that many receivers fell back at once";
    "rekeys": protocol.rekeys, "Key epochs of flows after the first";
    "rekeys_missed": protocol.rekeys_missed,
        "Fall-backs of receivers that did not confirm a key in time";
    "evicted_too_slow": protocol.evicted_too_slow,
        "Fall-backs of receivers that held a flow up";
    "evicted_lossy": protocol.evicted_lossy,
        "Fall-backs of receivers that lost too many packets of a flow";
    "breaker_trips": protocol.breaker_trips, "Times that a flow's circuit breaker stopped it";
    "receiver_gaps": protocol.gaps, "Notifications of receivers that updates are gone for good";
    "unicast_held": protocol.unicast_held,
        "Waits of updates for the rate limit of all unicast paths together";
};

/// The same in bytes.
const KNOWN_BYTES: &[Known] = table! {
    "unicast": unicast_bytes,
        "Bytes of updates written to the receivers' own connections, repairs included";
};

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
            acks: 1,
            unicast_held: 2,
            ..SourceCounters::default()
        };
        let counters = Counters {
            unicast_bytes: 3,
            protocol,
            ..Counters::default()
        };
        let json = serde_json::to_string(&counters).unwrap();
        let both = "\"unicast_bytes\":3,\"acks\":1,";
        assert!(json.contains(both), "{json}");
        assert!(json.contains("\"unicast_held\":2"), "{json}");
    }
}
