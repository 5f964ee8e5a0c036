//! Head checkpoints of channels that another source publishes: they follow its progress, so that a
//! take-over is not mistaken for a restart from a backup.

use std::collections::BTreeMap;

use store::{ChannelRow, HeadMark};
use tracing::debug;
use uuid::Uuid;

use super::context::Context;
use crate::database::answer;

/// Progress of the head checkpoints.
#[derive(Debug, Default)]
pub(super) struct FollowedHeads(BTreeMap<String, (Uuid, u64)>);

impl FollowedHeads {
    /// Advances the checkpoint of a channel to the head in its row. Returns whether to continue
    /// with the next channel: a database that does not answer would not answer for that one either.
    pub(super) async fn follow(&mut self, context: &Context, row: &ChannelRow) -> bool {
        let channel = &row.channel;
        let seen = (channel.incarnation, channel.head);
        if self.0.get(&channel.name) == Some(&seen) {
            return true;
        }
        let mark = context.mark(&channel.name);
        let following = HeadMark::follow(&mark, &context.store, &channel.name);
        match answer(following).await {
            Ok(_) => {
                self.0.insert(channel.name.clone(), seen);
                true
            }
            Err(error) => {
                debug!(channel = channel.name, %error, "head checkpoint not advanced");
                !error.is_unavailable()
            }
        }
    }

    /// Drops a channel that is published here, or by no source.
    pub(super) fn forget(&mut self, channel: &str) {
        self.0.remove(channel);
    }
}
