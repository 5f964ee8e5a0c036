//! What a source records, and what operators ask of it.

pub(super) mod change;
mod changes;
mod command;
pub(super) mod history;
pub(super) mod read;
mod roll_up;
pub(super) mod rows;
mod taking_over;
pub(super) mod trim;
mod write;

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use crate::model::{
    Batch, Changes, Command, FeedEvent, FeedHour, Fence, MoveFilter, MoveRow, NewCommand,
    ProgressRow, ReceiverEdit, ReceiverRow, SampleRow, SessionRow, StateRow, UpdateItem,
};
use crate::watch::{Topic, Watch};
use crate::{Records, StoreError};

#[async_trait]
impl Records for SqlStore {
    async fn write(&self, batch: &Batch) -> Result<u64, StoreError> {
        self.write_batch(batch).await
    }

    async fn take_over(
        &self,
        fences: &[Fence],
        after: Option<&(Uuid, String)>,
        limit: usize,
        at_ms: i64,
        cause: &str,
    ) -> Result<Vec<StateRow>, StoreError> {
        self.end_presence(fences, after, limit, at_ms, cause).await
    }

    async fn feed_states(
        &self,
        channels: &[&str],
        after: i64,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        self.list_feed_states(channels, after, limit).await
    }

    async fn receivers_after(
        &self,
        after: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<ReceiverRow>, StoreError> {
        self.list_receivers_after(after, limit).await
    }

    async fn snapshot(&self) -> Result<Changes, StoreError> {
        self.read_everything().await
    }

    async fn changes_since(&self, change: u64, limit: usize) -> Result<Changes, StoreError> {
        self.read_changes(change, limit).await
    }

    async fn moves(&self, filter: &MoveFilter) -> Result<Vec<MoveRow>, StoreError> {
        self.list_moves(filter).await
    }

    async fn sessions(
        &self,
        receiver: Uuid,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.list_sessions(receiver, before, limit).await
    }

    async fn samples(
        &self,
        channel: &str,
        step_ms: i64,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SampleRow>, StoreError> {
        self.list_samples(channel, step_ms, from_ms, to_ms).await
    }

    async fn progress(
        &self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ProgressRow>, StoreError> {
        self.list_progress(channel, before, limit).await
    }

    async fn feed_history(
        &self,
        channel: &str,
        url: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<FeedHour>, StoreError> {
        self.list_feed_hours(channel, url, from_ms, to_ms).await
    }

    async fn feed_events(
        &self,
        feed: Option<(&str, &str)>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        self.list_feed_events(feed, before, limit).await
    }

    async fn roll_up(&self, now_ms: i64) -> Result<u64, StoreError> {
        self.make_larger_steps(now_ms).await
    }

    async fn trim(&self, now_ms: i64) -> Result<u64, StoreError> {
        self.delete_old_records(now_ms).await
    }

    async fn ask(&self, command: &NewCommand) -> Result<i64, StoreError> {
        self.add_command(command).await
    }

    async fn take_commands(
        &self,
        held: &[Fence],
        limit: usize,
    ) -> Result<Vec<Command>, StoreError> {
        self.claim_commands(held, limit).await
    }

    async fn finish_command(
        &self,
        id: i64,
        outcome: Result<&str, &str>,
    ) -> Result<bool, StoreError> {
        self.end_command(id, outcome).await
    }

    async fn expire_commands(&self) -> Result<u64, StoreError> {
        self.end_expired_commands().await
    }

    async fn command(&self, id: i64) -> Result<Option<Command>, StoreError> {
        self.find_command(id).await
    }

    async fn commands(
        &self,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Command>, StoreError> {
        self.list_commands(before, limit).await
    }

    async fn set_receiver(
        &self,
        id: Uuid,
        edit: &ReceiverEdit,
    ) -> Result<Option<ReceiverRow>, StoreError> {
        self.change_receiver(id, edit).await
    }

    async fn held(&self) -> Result<Vec<Uuid>, StoreError> {
        self.list_held().await
    }

    async fn set_feed_paused(
        &self,
        channel: &str,
        url: &str,
        paused: bool,
    ) -> Result<bool, StoreError> {
        self.pause_feed(channel, url, paused).await
    }

    async fn update_list(
        &self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<UpdateItem>, StoreError> {
        self.list_updates(channel, before, limit).await
    }

    fn watch(&self, topic: Topic) -> Watch {
        self.news.watch(topic, &self.database)
    }
}
