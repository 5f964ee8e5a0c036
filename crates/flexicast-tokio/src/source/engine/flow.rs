//! Flow packets on their way out: once to each group, and replicated to the receivers without
//! multicast.

use std::sync::Arc;
use std::time::Instant;

use flexicast::source::ChannelIndex;
use netio::direct::{ReplicationFailure, Target};
use tracing::debug;

use super::Engine;
use crate::train::source_ip;

/// Packets of one channel that are collected before they are sent.
const BATCH: usize = 64;

impl Engine {
    /// Sends queued flow packets within pacing. None of them waits for the next turn.
    pub(super) async fn send_flows(&mut self, now: Instant) {
        loop {
            let mut idle = true;
            for channel in 0..self.channels.end() {
                idle &= !self.fill_batch(channel, now);
                self.send_flow(channel).await;
            }
            if idle {
                return;
            }
        }
    }

    /// Makes a channel's next packets, and returns whether there were as many as one batch has.
    fn fill_batch(&mut self, channel: ChannelIndex, now: Instant) -> bool {
        let Some(opened) = self.channels.get_mut(channel) else {
            return false;
        };
        let (core, packets) = (&mut self.core, &mut opened.packets);
        while packets.len() < BATCH {
            if !packets.push_with(|out| core.append_packet(channel, now, out)) {
                return false;
            }
        }
        true
    }

    /// Sends the collected packets of a channel.
    async fn send_flow(&mut self, channel: ChannelIndex) {
        self.follow_replicas_of(channel);
        let Some(opened) = self.channels.get_mut(channel) else {
            return;
        };
        if opened.packets.is_empty() {
            return;
        }
        let packets = Arc::new(std::mem::take(&mut opened.packets));
        // First: an interface that is stuck does not hold them up.
        self.counters.copies += self.replication.send(&packets, &opened.replicas);
        self.counters.multicast_errors += opened.outlets.send(&packets).await;
        if let Ok(mut packets) = Arc::try_unwrap(packets) {
            packets.clear();
            opened.packets = packets;
        }
    }

    /// Brings the destinations of all channels' replicated packets up to date.
    pub(super) fn follow_replicas(&mut self) {
        for channel in 0..self.channels.end() {
            self.follow_replicas_of(channel);
        }
    }

    fn follow_replicas_of(&mut self, channel: ChannelIndex) {
        let version = (
            self.core.replicas_generation(channel),
            self.sessions.switches(),
        );
        let Some(opened) = self.channels.get_mut(channel) else {
            return;
        };
        if opened.replicas.is_at(version) {
            return;
        }
        let wanted = self.core.replicas(channel).iter().filter_map(|session| {
            // Only to validated addresses: no peer can make the source flood another.
            let path = self
                .sessions
                .get(*session)?
                .path
                .filter(|path| path.validated)?;
            let from = source_ip(self.local, path.local);
            let to = path.peer;
            Some((*session, Target { to, from }))
        });
        self.replication
            .assign(&mut opened.replicas, version, wanted);
    }

    /// Ends replication to a receiver that the kernel does not send to.
    pub(super) fn end_replication(&mut self, failure: ReplicationFailure, now: Instant) {
        let ReplicationFailure { id: session, errno } = failure;
        debug!(session, errno, "replicated packets cannot be sent");
        self.counters.copy_errors += 1;
        // The failure may be of an address that the receiver has left since.
        for channel in 0..self.core.channels() {
            let opened = self.channels.get(channel);
            let failed = opened.is_some_and(|opened| opened.replicas.has_failed(session));
            if failed && self.core.replicas(channel).contains(&session) {
                self.core.replica_failed(session, channel, now);
            }
        }
    }
}
