//! The interface to what a source records about its receivers, relays and feeds, and to what
//! operators ask of it.

use async_trait::async_trait;
use uuid::Uuid;

use crate::StoreError;
use crate::model::{
    Batch, Changes, Command, FeedEvent, FeedHour, Fence, MoveFilter, MoveRow, NewCommand,
    ProgressRow, ReceiverEdit, ReceiverRow, SampleRow, SessionRow, StateRow, UpdateItem,
};
use crate::watch::{Topic, Watch};

/// What the console shows: written by the source that publishes, in batches, and read by any number
/// of consoles.
///
/// Lists have at most 10,000 rows (samples 20,000), whatever is asked for. All times are Unix milliseconds; those of
/// records are the writer's, those of commands the database's.
#[async_trait]
pub trait Records: Send + Sync {
    /// Stores a batch in one durable transaction, and returns the number of that change. Numbers grow
    /// in the order in which the changes become visible.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if one of its fences is an old one; a channel of them does not exist; the
    /// database fails. Nothing was stored then, unless the answer itself was lost: with a
    /// [`Batch::stamp`] it can be written again, without one, moves, feed hours and feed events would
    /// be there twice.
    async fn write(&self, batch: &Batch) -> Result<u64, StoreError>;

    /// Says that nobody is connected in the channels of these fences, for whoever begins to publish them:
    /// what the one before could not say when it ended. Moves are not made of it. It is done in parts:
    /// for `limit` rows at most, those that follow the receiver and channel `after`. Returns where these
    /// stand then, in that order; fewer than `limit` at the end.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    async fn take_over(
        &self,
        fences: &[Fence],
        after: Option<&(Uuid, String)>,
        limit: usize,
        at_ms: i64,
        cause: &str,
    ) -> Result<Vec<StateRow>, StoreError>;

    /// The last event of each feed of these channels that is polled, if its id is above `after`; the
    /// oldest first.
    ///
    /// # Errors
    /// The database fails.
    async fn feed_states(
        &self,
        channels: &[&str],
        after: i64,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError>;

    /// Receivers that were ever admitted and not forgotten, by their ids, those above `after`.
    ///
    /// # Errors
    /// The database fails.
    async fn receivers_after(
        &self,
        after: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<ReceiverRow>, StoreError>;

    /// Everything that there is at present, with the last 200 moves and feed events, the last event of
    /// each feed that is polled (of the 10,000 with the newest ones), and the progress of the last 1,000
    /// updates.
    ///
    /// # Errors
    /// The database fails.
    async fn snapshot(&self) -> Result<Changes, StoreError>;

    /// What has changed since the number `change`: about `limit` rows of each kind at most, but at
    /// least one whole change. Every change is in exactly one answer, if each is asked for with
    /// the [`Changes::upto`] of the one before. [`Changes::forgotten`] comes before the rest.
    ///
    /// Who has not asked for a week, or finds another [`Changes::epoch`], takes a new
    /// [`snapshot`](Self::snapshot).
    ///
    /// # Errors
    /// The database fails.
    async fn changes_since(&self, change: u64, limit: usize) -> Result<Changes, StoreError>;

    /// Moves between rungs, the newest first.
    ///
    /// # Errors
    /// The database fails.
    async fn moves(&self, filter: &MoveFilter) -> Result<Vec<MoveRow>, StoreError>;

    /// Connections of a receiver with an id below `before`, the newest first.
    ///
    /// # Errors
    /// The database fails.
    async fn sessions(
        &self,
        receiver: Uuid,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError>;

    /// The steps of a channel (of all together, if it is empty) that began at `from_ms` or later and
    /// before `to_ms`, the oldest first.
    ///
    /// # Errors
    /// The database fails.
    async fn samples(
        &self,
        channel: &str,
        step_ms: i64,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SampleRow>, StoreError>;

    /// How far the updates of a channel with a seq below `before` got, the newest first.
    ///
    /// # Errors
    /// The database fails.
    async fn progress(
        &self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ProgressRow>, StoreError>;

    /// How the polls of a feed went in the hours that began at `from_ms` or later and before `to_ms`,
    /// the oldest first.
    ///
    /// # Errors
    /// The database fails.
    async fn feed_history(
        &self,
        channel: &str,
        url: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<FeedHour>, StoreError>;

    /// What happened to a feed, or to all, with an id below `before`; the newest first.
    ///
    /// # Errors
    /// The database fails.
    async fn feed_events(
        &self,
        feed: Option<(&str, &str)>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError>;

    /// Makes the larger steps of [`samples`](Self::samples) from the smaller ones, as far as they are
    /// over by `now_ms`. Doing it again changes nothing. Returns how many steps were made or made
    /// anew.
    ///
    /// # Errors
    /// The database fails.
    async fn roll_up(&self, now_ms: i64) -> Result<u64, StoreError>;

    /// Forgets what is old by `now_ms`: steps of 10 s after two days, of 5 min after 30, of an hour
    /// after two years; moves, sessions, and events of feeds after 90 days, commands after 30, hours
    /// of feeds after two years; of updates' progress the last 10,000 per channel are kept. Done in
    /// parts, between which others can write. What was not rolled up stays. Returns how many rows
    /// went.
    ///
    /// # Errors
    /// The database fails; some of it may be done.
    async fn trim(&self, now_ms: i64) -> Result<u64, StoreError>;

    /// Asks something of the source. Returns the command's number. If no source takes it within a
    /// minute, it expires.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] if 1,000 wait already, a text is too long, or the database fails.
    async fn ask(&self, command: &NewCommand) -> Result<i64, StoreError>;

    /// Takes commands to carry them out, the oldest first: those of the channels of the fences in
    /// `held` that are not old ones, and, if there is one, those of no channel. Each is given to one
    /// taker only.
    ///
    /// # Errors
    /// The database fails.
    async fn take_commands(&self, held: &[Fence], limit: usize)
    -> Result<Vec<Command>, StoreError>;

    /// Says what became of a command that was taken: what came out, or why it failed; cut to 1,024
    /// bytes. Returns whether it still waited for that.
    ///
    /// # Errors
    /// The database fails.
    async fn finish_command(
        &self,
        id: i64,
        outcome: Result<&str, &str>,
    ) -> Result<bool, StoreError>;

    /// Writes down, in the audit log, too, which commands have expired: for whoever is there while no
    /// source is. Returns how many.
    ///
    /// # Errors
    /// The database fails.
    async fn expire_commands(&self) -> Result<u64, StoreError>;

    /// A command, and what became of it.
    ///
    /// # Errors
    /// The database fails.
    async fn command(&self, id: i64) -> Result<Option<Command>, StoreError>;

    /// Commands with an id below `before`, the newest first.
    ///
    /// # Errors
    /// The database fails.
    async fn commands(&self, before: Option<i64>, limit: usize)
    -> Result<Vec<Command>, StoreError>;

    /// Sets what operators say about a receiver. Returns it as it is then, if there is such a one.
    ///
    /// # Errors
    /// The database fails.
    async fn set_receiver(
        &self,
        id: Uuid,
        edit: &ReceiverEdit,
    ) -> Result<Option<ReceiverRow>, StoreError>;

    /// The receivers that are to stay on their unicast path. ([`Store::version`](crate::Store::version)
    /// grows when that changes.)
    ///
    /// # Errors
    /// The database fails.
    async fn held(&self) -> Result<Vec<Uuid>, StoreError>;

    /// Says whether a feed is not to be polled for the time being. Returns whether there is such a feed,
    /// and it was not removed.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn set_feed_paused(
        &self,
        channel: &str,
        url: &str,
        paused: bool,
    ) -> Result<bool, StoreError>;

    /// The updates of a channel with a seq below `before`, the newest first, without their bytes.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn update_list(
        &self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<UpdateItem>, StoreError>;

    /// Wakes whoever waits for changes or for commands, of this process or another one. A hint: it
    /// may come without need, and may be lost with the connection, so look every two seconds all
    /// the same. Within a tokio runtime only.
    fn watch(&self, topic: Topic) -> Watch;
}
