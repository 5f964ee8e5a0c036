//! One receiver's subscription to one channel, as the source sees it.

use std::time::Instant;

use super::audience::Reception;
use super::delivery::Delivery;
use super::ladder::Ladder;
use super::outputs::Outputs;
use super::types::{ChannelIndex, LIVE_WITHIN};

/// A receiver's subscription to a channel.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) channel: ChannelIndex,
    /// Rung, paths and key of the receiver.
    pub(super) ladder: Ladder,
    /// Updates for its unicast path.
    pub(super) delivery: Delivery,
    pub(super) outputs: Outputs,
    /// Reception as the channel's audience counts it.
    pub(super) counted: Reception,
}

impl Subscription {
    /// A subscription on unicast with nothing to send.
    pub(super) fn new(channel: ChannelIndex, outputs: Outputs, now: Instant) -> Self {
        Subscription {
            channel,
            ladder: Ladder::new(now),
            delivery: Delivery::new(channel),
            outputs,
            counted: Reception::default(),
        }
    }

    /// Whether the receiver's unicast path carries as much as is published: nothing waits for it,
    /// and the outputs are near the head.
    pub(super) fn keeps_up(&self, head: u64) -> bool {
        let at = self.outputs.cursor().map_or(0, |cursor| cursor.seq);
        self.delivery.backlog.is_empty() && at.saturating_add(LIVE_WITHIN) >= head
    }
}
