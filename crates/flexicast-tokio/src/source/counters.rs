//! Counters of a source since its start. Each limit has a counter.

use flexicast::source::SourceCounters;
use serde::Serialize;

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections whose receiver was welcomed.
    pub connections: u64,
    /// HELLOs that were refused.
    pub refused: u64,
    /// Handshakes that began.
    pub handshakes: u64,
    /// Connections that ended before their receiver's HELLO.
    pub handshakes_abandoned: u64,
    /// Retry packets: receivers that were asked to prove their address because many connections were not served yet.
    pub retries: u64,
    /// Datagrams on the QUIC port that belong to nothing.
    pub stray_datagrams: u64,
    /// Stateless resets that were sent.
    pub resets: u64,
    /// Stateless resets that were not sent because there are too many.
    pub resets_withheld: u64,
    /// Dropped messages to listeners of a flow: too long for a packet, too many at once, or without
    /// a listener.
    pub messages_dropped: u64,
    /// Connections that were closed because the receiver violated the protocol.
    pub violations: u64,
    /// Connections that were turned away because there are too many.
    pub over_limit: u64,
    /// Times that a receiver moved to another address and proved it.
    pub migrations: u64,
    /// Addresses that a receiver seemed to have moved to and that did not prove themselves.
    pub failed_paths: u64,
    /// Packets of connections from addresses that were not followed: forged, or of a receiver that changes its address more often than a connection bears.
    pub unknown_paths: u64,
    /// Datagrams of connections that the kernel refused to send.
    pub send_errors: u64,
    /// Packets of flows that the kernel refused to send to a group.
    pub multicast_errors: u64,
    /// Copies of flow packets that were to be sent to receivers (rung 3), those that the kernel refused included.
    pub copies: u64,
    /// Copies that the kernel refused to send.
    pub copy_errors: u64,
    /// Bytes of updates that were handed to unicast sessions, repairs included.
    pub unicast_bytes: u64,
    /// Acknowledgements of packets that were never sent.
    pub invalid_acks: u64,
    /// Requests for bytes of updates that the flow brought wrong.
    pub needs: u64,
    /// Cursors beyond the head, each of which ended its connection.
    pub cursors_ahead: u64,
    /// HELLOs whose cursor was beyond the head of the same incarnation.
    pub hellos_ahead: u64,
    /// Acknowledgements that were ignored because the receiver sends too many.
    pub excess_acks: u64,
    /// Receivers that were disconnected because they sent too many control frames.
    pub excess_control: u64,
    /// Requests for bytes that were not answered because the receiver sends too many.
    pub excess_needs: u64,
    /// HELLOs that were refused because as many receivers as allowed are served.
    pub too_many: u64,
    /// HELLOs that were refused because the receiver with this id lives elsewhere.
    pub ids_in_use: u64,
    /// Requests for copies that were refused because as many as allowed get them.
    pub copies_refused: u64,
    /// Copies that were given up because no proof came that they arrive.
    pub copies_unproved: u64,
    /// Copies that could not be sent to their receiver.
    pub copies_failed: u64,
    /// Proofs that were not accepted: of another flow, an old key, a rung that is not served, or too soon after flapping.
    pub proofs_ignored: u64,
    /// Ranges of updates that were repaired on unicast paths.
    pub repairs: u64,
    /// Updates that were sent again because the receiver's cursor stayed before them.
    pub resent_updates: u64,
    /// Moves to a better rung.
    pub promotions: u64,
    /// Moves to the unicast rung.
    pub fall_backs: u64,
    /// Times that many receivers fell back at once.
    pub mass_fall_backs: u64,
    /// Key epochs that were announced after a flow's first.
    pub rekeys: u64,
    /// Members that fell back because they did not confirm a key in time.
    pub rekeys_missed: u64,
    /// Receivers notified that updates are gone for good.
    pub gaps: u64,
    /// Times that updates on unicast paths had to wait for the rate of all of them together.
    pub unicast_held: u64,
}

impl Counters {
    /// With those of the state machine.
    pub(super) fn with(self, core: SourceCounters) -> Self {
        let SourceCounters {
            invalid_acks,
            needs,
            cursors_ahead,
            hellos_ahead,
            excess_acks,
            excess_control,
            excess_needs,
            too_many,
            ids_in_use,
            copies_refused,
            copies_unproved,
            copies_failed,
            proofs_ignored,
            repairs,
            resent_updates,
            promotions,
            fall_backs,
            mass_fall_backs,
            rekeys,
            rekeys_missed,
            gaps,
            unicast_held,
        } = core;
        Counters {
            invalid_acks,
            needs,
            cursors_ahead,
            hellos_ahead,
            excess_acks,
            excess_control,
            excess_needs,
            too_many,
            ids_in_use,
            copies_refused,
            copies_unproved,
            copies_failed,
            proofs_ignored,
            repairs,
            resent_updates,
            promotions,
            fall_backs,
            mass_fall_backs,
            rekeys,
            rekeys_missed,
            gaps,
            unicast_held,
            ..self
        }
    }
}
