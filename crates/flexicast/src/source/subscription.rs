//! One receiver's subscription to one channel, as the source sees it.

use std::time::Instant;

use super::audience::Reception;
use super::delivery::Delivery;
use super::forgery::Forgery;
use super::ladder::Ladder;
use super::outputs::{CursorBounds, Outputs};
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
    /// Signs of forgery that the receiver has reported.
    pub(super) forgery: Forgery,
    /// Reception as the channel's audience counts it.
    pub(super) counted: Reception,
}

impl Subscription {
    /// A subscription on unicast with nothing to send.
    pub(super) fn new(
        channel: ChannelIndex,
        unsigned: bool,
        outputs: Outputs,
        now: Instant,
    ) -> Self {
        Subscription {
            channel,
            ladder: Ladder::new(now),
            delivery: Delivery::new(channel, unsigned),
            outputs,
            forgery: Forgery::default(),
            counted: Reception::default(),
        }
    }

    /// Whether the receiver's unicast path carries as much as is published: little waits for it,
    /// and the outputs are near where the head was some seconds ago. (Cursors come once a second.)
    pub(super) fn keeps_up(&self, sight: CursorBounds) -> bool {
        let is_near = self.outputs.at().saturating_add(LIVE_WITHIN) >= sight.last_head;
        is_near && self.delivery.backlog.len() <= LIVE_WITHIN
    }
}
