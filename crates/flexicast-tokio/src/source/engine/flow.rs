//! Flow packets on their way out: once to each group, and as copies to the receivers that multicast
//! does not reach.

use std::time::Instant;

use flexicast::source::ChannelIndex;

use super::Engine;
use crate::Error;
use crate::train::{send_train, source_ip};

/// Packets that are collected before they are sent.
const BATCH: usize = 40;

impl Engine {
    /// Sends queued flow packets within pacing.
    pub(super) async fn send_flows(&mut self, now: Instant) -> Result<(), Error> {
        let (mut packet, mut current) = (Vec::with_capacity(2048), None);
        self.packets.clear();
        while let Some(channel) = self.core.poll_transmit(now, &mut packet) {
            if let Some(previous) = current
                && (previous != channel || self.packets.len() >= BATCH)
            {
                self.send_flow(previous, now).await?;
            }
            current = Some(channel);
            self.packets.push(&packet);
        }
        match current {
            Some(channel) => self.send_flow(channel, now).await,
            None => Ok(()),
        }
    }

    async fn send_flow(&mut self, channel: ChannelIndex, now: Instant) -> Result<(), Error> {
        if let Some(opened) = self.channels.get_mut(channel) {
            self.counters.multicast_errors += opened.outlets.send(&self.packets).await;
        }
        let (mut failed, mut copied) = (Vec::new(), 0);
        for session in self.core.replicas(channel) {
            // Only to validated addresses: no peer can make the source flood another.
            let path = self.peers.get(*session).and_then(|p| p.path);
            let Some(path) = path.filter(|path| path.validated) else {
                continue;
            };
            let from = source_ip(&self.socket, path.local);
            self.counters.copies += self.packets.len() as u64;
            for (train, segment) in self.packets.trains() {
                let sent = send_train(&self.socket, path.peer, from, train, segment)
                    .await
                    .map_err(Error::io("the QUIC socket failed"))?;
                if !sent {
                    failed.push(*session);
                    break;
                }
                copied += train.len() as u64;
            }
        }
        if let Some(opened) = self.channels.get_mut(channel) {
            opened.copied += copied;
        }
        for session in failed {
            self.counters.copy_errors += 1;
            self.core.replica_failed(session, channel, now);
        }
        self.packets.clear();
        Ok(())
    }
}
