//! Lists of past records.

use uuid::Uuid;

use super::read::{
    read_feed_event, read_move, read_progress, read_sample, receiver_id, select_feed_events,
    select_moves, select_progress, select_samples,
};
use crate::database::{Row, Session, sql, values};
use crate::model::{FeedEvent, FeedHour, MoveFilter, MoveRow, ProgressRow, SampleRow, SessionRow};
use crate::sql::to_i64;
use crate::{Records, StoreError};

/// The most rows of one list.
pub(in crate::sql) const MAX_LIST: usize = 10_000;

/// The same for samples: more than there are of the largest step.
const MAX_SAMPLES: i64 = 20_000;

/// Returns the limit of a list, bounded.
pub(in crate::sql) fn rows(limit: usize) -> i64 {
    to_i64(limit.min(MAX_LIST) as u64)
}

fn read_session(session: &Session, row: &Row) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        id: session.get(row, 0)?,
        receiver: receiver_id(session, row, 1)?,
        name: session.get(row, 2)?,
        software: session.get(row, 3)?,
        address: session.get(row, 4)?,
        began_ms: session.get(row, 5)?,
        ended_ms: session.get(row, 6)?,
        end_cause: session.get(row, 7)?,
    })
}

impl Records<'_> {
    /// Returns moves between rungs, the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn moves(self, filter: &MoveFilter) -> Result<Vec<MoveRow>, StoreError> {
        let before = filter.before.unwrap_or(i64::MAX);
        let (from, to) = (
            filter.from_ms.unwrap_or(i64::MIN),
            filter.to_ms.unwrap_or(i64::MAX),
        );
        let (cause, rung, limit) = (&filter.cause, &filter.rung, rows(filter.limit));
        let receiver = filter.receiver.map(|receiver| receiver.to_string());
        // One statement for each index that helps; the rest is looked at row by row.
        match (&receiver, &filter.channel) {
            (Some(receiver), channel) => {
                let sql = select_moves!(
                    "WHERE receiver = $1 AND id < $2 AND at >= $3 AND at < $4
                         AND cause = COALESCE($5, cause) AND to_rung = COALESCE($6, to_rung)
                         AND channel = COALESCE($7, channel)
                     ORDER BY id DESC LIMIT $8"
                );
                let values = values![receiver, before, from, to, cause, rung, channel, limit];
                self.store.list("list moves", sql, values, read_move).await
            }
            (None, Some(channel)) => {
                let sql = select_moves!(
                    "WHERE channel = $1 AND id < $2 AND at >= $3 AND at < $4
                         AND cause = COALESCE($5, cause) AND to_rung = COALESCE($6, to_rung)
                     ORDER BY id DESC LIMIT $7"
                );
                let values = values![channel, before, from, to, cause, rung, limit];
                self.store.list("list moves", sql, values, read_move).await
            }
            (None, None) => {
                let sql = select_moves!(
                    "WHERE id < $1 AND at >= $2 AND at < $3
                         AND cause = COALESCE($4, cause) AND to_rung = COALESCE($5, to_rung)
                     ORDER BY id DESC LIMIT $6"
                );
                let values = values![before, from, to, cause, rung, limit];
                self.store.list("list moves", sql, values, read_move).await
            }
        }
    }

    /// Returns connections of a receiver with an id below `before`, the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn sessions(
        self,
        receiver: Uuid,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let sql = sql!(
            "SELECT id, receiver, name, software, address, began_at, ended_at, end_cause
             FROM sessions WHERE receiver = $1 AND id < $2 ORDER BY id DESC LIMIT $3"
        );
        let (receiver, before) = (receiver.to_string(), before.unwrap_or(i64::MAX));
        let values = values![&receiver, before, rows(limit)];
        self.store
            .list("list connections", sql, values, read_session)
            .await
    }

    /// Returns the steps of a channel (of all together, if it is empty) that began at `from_ms` or
    /// later and before `to_ms`, the oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn samples(
        self,
        channel: &str,
        step_ms: i64,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SampleRow>, StoreError> {
        let sql = select_samples!(
            "WHERE channel = $1 AND step_ms = $2 AND at >= $3 AND at < $4 ORDER BY at LIMIT $5"
        );
        let values = values![channel, step_ms, from_ms, to_ms, MAX_SAMPLES];
        self.store
            .list("read samples", sql, values, read_sample)
            .await
    }

    /// Returns the delivery progress of a channel's updates with a seq below `before`, the newest
    /// first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn progress(
        self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<ProgressRow>, StoreError> {
        let sql = select_progress!("WHERE channel = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3");
        let values = values![channel, before.map_or(i64::MAX, to_i64), rows(limit)];
        self.store
            .list("read the progress of updates", sql, values, read_progress)
            .await
    }

    /// Returns the poll counts of a feed in the hours that began at `from_ms` or later and before
    /// `to_ms`, the oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn feed_history(
        self,
        channel: &str,
        url: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<FeedHour>, StoreError> {
        let mut session = self.store.database.read("read the polls of a feed").await?;
        let sql = sql!(
            "SELECT hour, polls, ok, not_modified, failed, challenged, entries FROM feed_hours
             WHERE channel = $1 AND url = $2 AND hour >= $3 AND hour < $4 ORDER BY hour LIMIT $5"
        );
        let values = values![channel, url, from_ms, to_ms, rows(MAX_LIST)];
        let read = |session: &Session, row: &Row| {
            Ok(FeedHour {
                channel: channel.to_owned(),
                url: url.to_owned(),
                hour_ms: session.get(row, 0)?,
                polls: session.count(row, 1)?,
                ok: session.count(row, 2)?,
                not_modified: session.count(row, 3)?,
                failed: session.count(row, 4)?,
                challenged: session.count(row, 5)?,
                entries: session.count(row, 6)?,
            })
        };
        session.list(sql, values, read).await
    }

    /// Returns the events of a feed, or of all, with an id below `before`; the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn feed_events(
        self,
        feed: Option<(&str, &str)>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        let operation = "read what happened to feeds";
        let before = before.unwrap_or(i64::MAX);
        match feed {
            Some((channel, url)) => {
                let sql = select_feed_events!(
                    "WHERE channel = $1 AND url = $2 AND id < $3 ORDER BY id DESC LIMIT $4"
                );
                let values = values![channel, url, before, rows(limit)];
                self.store
                    .list(operation, sql, values, read_feed_event)
                    .await
            }
            None => {
                let sql = select_feed_events!("WHERE id < $1 ORDER BY id DESC LIMIT $2");
                let values = values![before, rows(limit)];
                self.store
                    .list(operation, sql, values, read_feed_event)
                    .await
            }
        }
    }
}
