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
    /// Sends what the flows have to send and pacing allows.
    pub(super) async fn flow(&mut self, now: Instant) -> Result<(), Error> {
        let (mut packet, mut of) = (Vec::with_capacity(2048), None);
        self.packets.clear();
        while let Some(channel) = self.core.poll_transmit(now, &mut packet) {
            if let Some(before) = of
                && (before != channel || self.packets.len() >= BATCH)
            {
                self.send_flow(before, now).await?;
            }
            of = Some(channel);
            self.packets.push(&packet);
        }
        match of {
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
            // Only where the receiver has shown that it receives: a source must not be made to
            // flood others.
            let path = self.peers.get(*session).and_then(|p| p.path);
            let Some(path) = path.filter(|path| path.validated) else {
                continue;
            };
            let from = source_ip(&self.socket, path.local);
            self.counters.copies += self.packets.len() as u64;
            for (train, segment) in self.packets.trains() {
                let taken = send_train(&self.socket, path.peer, from, train, segment)
                    .await
                    .map_err(Error::io("the QUIC socket failed"))?;
                if !taken {
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
