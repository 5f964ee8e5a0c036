//! The head marks of channels that another source publishes are kept up with them here, so that a
//! take-over is no restart from a backup.

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
    /// Brings the mark of a channel up to what its row says. Returns whether the next one can be
    /// gone on with: a database that does not answer would not answer for that one either.
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
