//! Messages of live channels: queued by publishers, taken by the source that sends them.

use super::records::change::{current_fences, notify};
use super::{check_length, to_i64};
use crate::database::{Row, Session, sql, values};
use crate::model::{Fence, MessageReceipt, StoredMessage};
use crate::watch::Topic;
use crate::{Messages, StoreError};

/// Most messages of one channel that wait.
const MAX_WAITING: u64 = 1000;

/// Most messages that are taken at once.
const MAX_TAKEN: usize = 100;

/// Longest event id and payload, in bytes.
const MAX_EVENT_ID: usize = 128;
const MAX_PAYLOAD: usize = 70_000;

/// Most rows deleted at a time: more than one call adds, so that they do not pile up.
const DELETED: i64 = 200;

/// Payload of a message that is not to be sent any more.
const BLANK: &[u8] = &[];

/// Deletes messages that were taken, or expired, ten minutes ago.
async fn delete_old(session: &mut Session) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "DELETE FROM messages WHERE id IN (
                     SELECT id FROM messages
                     WHERE COALESCE(taken_at, expires_at) < (SELECT " NOW ") - 600000
                     ORDER BY COALESCE(taken_at, expires_at) LIMIT $1" LOCK SKIP ")"
            ),
            values![DELETED],
        )
        .await
        .map(|_| ())
}

/// Blanks what has expired in a channel. After a minute in which no source counted it, it is taken
/// as counted: so that no more rows wait than a minute brings.
async fn blank_expired(session: &mut Session, channel_id: i64) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "UPDATE messages SET payload = $2, taken_at = CASE
                     WHEN expires_at <= " NOW " - 60000 THEN expires_at END
                 WHERE id IN (
                     SELECT id FROM messages WHERE channel_id = $1 AND taken_at IS NULL
                         AND expires_at <= (SELECT " NOW ") - CASE
                             WHEN LENGTH(payload) > 0 THEN 0 ELSE 60000 END
                     ORDER BY id" LOCK SKIP ")"
            ),
            values![channel_id, BLANK],
        )
        .await
        .map(|_| ())
}

/// Deletes the message with this event id if it was taken, or expired, ten minutes ago: there may
/// be more of those than are deleted at a time.
async fn forget_id(
    session: &mut Session,
    channel_id: i64,
    event_id: &str,
) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "DELETE FROM messages WHERE channel_id = $1 AND event_id = $2
                     AND COALESCE(taken_at, expires_at) < (SELECT " NOW ") - 600000"
            ),
            values![channel_id, event_id],
        )
        .await
        .map(|_| ())
}

/// Returns the receipt for a message that has this event id, if there is one.
async fn find_receipt(
    session: &mut Session,
    channel_id: i64,
    event_id: &str,
) -> Result<Option<MessageReceipt>, StoreError> {
    let read = |session: &Session, row: &Row| {
        Ok(MessageReceipt {
            expires_ms: session.get(row, 0)?,
            is_repeat: true,
        })
    };
    let sql = sql!("SELECT expires_at FROM messages WHERE channel_id = $1 AND event_id = $2");
    session.find(sql, values![channel_id, event_id], read).await
}

/// Returns those channels whose fences in `held` are the current ones.
async fn held_channels<'a>(
    session: &mut Session,
    held: &'a [Fence],
) -> Result<Vec<&'a str>, StoreError> {
    let current = current_fences(session, held).await?;
    Ok(held
        .iter()
        .filter(|held| {
            let mut current = current.iter();
            current.any(|(channel, fence)| *channel == held.channel && *fence == held.fence)
        })
        .map(|held| held.channel.as_str())
        .collect())
}

impl Messages<'_> {
    /// Queues a message for the source that publishes `channel`. It expires after the channel's
    /// deadline. A message whose event id was queued in the last ten minutes is not queued again.
    ///
    /// # Errors
    /// [`StoreError::UnknownChannel`] also if the channel is not active,
    /// [`StoreError::NotLive`] if it has no deadline, [`StoreError::TooMany`] if 1,000 messages
    /// wait; the event id is empty, it or the payload is too long, or the database fails.
    pub async fn send(
        self,
        channel: &str,
        event_id: &str,
        payload: &[u8],
    ) -> Result<MessageReceipt, StoreError> {
        let what = "the id of a message";
        check_length(what, event_id, MAX_EVENT_ID)?;
        if event_id.is_empty() {
            return Err(StoreError::Empty { what });
        }
        if payload.len() > MAX_PAYLOAD {
            return Err(StoreError::TooLong {
                what: "a message",
                bytes: payload.len(),
                limit: MAX_PAYLOAD,
            });
        }
        let mut session = self.store.database.write("queue a message").await?;
        // The channel's row is kept until the commit: so messages become visible in the order of
        // their numbers, and no two callers count the same free place.
        let row = session
            .row(
                sql!("SELECT id, deadline_ms FROM channels WHERE name = $1 AND active" LOCK),
                values![channel],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        let channel_id: i64 = session.get(&row, 0)?;
        let deadline: Option<i64> = session.get(&row, 1)?;
        let deadline = deadline.ok_or_else(|| StoreError::NotLive {
            url: session.url.to_string(),
            channel: channel.to_owned(),
        })?;
        delete_old(&mut session).await?;
        forget_id(&mut session, channel_id, event_id).await?;
        if let Some(receipt) = find_receipt(&mut session, channel_id, event_id).await? {
            session.commit().await?;
            return Ok(receipt);
        }
        let waiting: i64 = session
            .scalar(
                sql!(
                    "SELECT COUNT(*) FROM messages
                     WHERE channel_id = $1 AND taken_at IS NULL AND expires_at > (SELECT " NOW ")"
                ),
                values![channel_id],
            )
            .await?;
        if session.unsigned(waiting)? >= MAX_WAITING {
            session.commit().await?;
            return Err(StoreError::TooMany {
                what: "messages that wait for the source",
                limit: MAX_WAITING,
            });
        }
        blank_expired(&mut session, channel_id).await?;
        let expires_ms = session
            .scalar(
                sql!(
                    "INSERT INTO messages (channel_id, event_id, payload, created_at, expires_at)
                     VALUES ($1, $2, $3, " NOW ", " NOW " + $4) RETURNING expires_at"
                ),
                values![channel_id, event_id, payload, deadline],
            )
            .await?;
        notify(&mut session, Topic::Messages).await?;
        session.commit().await?;
        self.store.news.notifier.ring(Topic::Messages);
        Ok(MessageReceipt {
            expires_ms,
            is_repeat: false,
        })
    }

    /// Takes messages to send them, the oldest first: those of the channels of the current fences
    /// in `held` that have not expired. Each is given to one caller only.
    ///
    /// # Errors
    /// The database fails.
    pub async fn take(
        self,
        held: &[Fence],
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        // A reader looks first, for most of the time there is nothing to take.
        let names: Vec<&str> = held.iter().map(|fence| fence.channel.as_str()).collect();
        let mut session = self.store.database.read("look for messages").await?;
        let work: i64 = session
            .scalar(
                sql!(
                    "SELECT COUNT(*) FROM messages
                     WHERE channel_id IN (SELECT id FROM channels WHERE name" AMONG_1 ")
                         AND (taken_at IS NULL AND expires_at > (SELECT " NOW ")
                             OR COALESCE(taken_at, expires_at) < (SELECT " NOW ") - 600000)"
                ),
                values![names.as_slice()],
            )
            .await?;
        drop(session);
        if work == 0 {
            return Ok(Vec::new());
        }
        let mut session = self.store.database.write("take messages").await?;
        session.expect((MAX_TAKEN * MAX_PAYLOAD) as u64);
        delete_old(&mut session).await?;
        let channels = held_channels(&mut session, held).await?;
        let rows = session
            .rows(
                sql!(
                    "SELECT id, (SELECT name FROM channels c WHERE c.id = channel_id), event_id,
                         payload, created_at, expires_at, expires_at - " NOW "
                     FROM messages
                     WHERE channel_id IN (SELECT id FROM channels WHERE name" AMONG_1 ")
                         AND taken_at IS NULL AND expires_at > (SELECT " NOW ")
                     ORDER BY id LIMIT $2" LOCK SKIP
                ),
                values![channels.as_slice(), to_i64(limit.min(MAX_TAKEN) as u64)],
            )
            .await?;
        let mut messages = Vec::new();
        for row in &rows {
            let left: i64 = session.get(row, 6)?;
            let message = StoredMessage {
                id: session.get(row, 0)?,
                channel: session.get(row, 1)?,
                event_id: session.get(row, 2)?,
                payload: session.get(row, 3)?,
                created_ms: session.get(row, 4)?,
                expires_ms: session.get(row, 5)?,
                left_ms: u64::try_from(left).unwrap_or(0),
            };
            session
                .execute(
                    sql!("UPDATE messages SET taken_at = " NOW ", payload = $2 WHERE id = $1"),
                    values![message.id, BLANK],
                )
                .await?;
            messages.push(message);
        }
        session.commit().await?;
        Ok(messages)
    }

    /// Returns, by channel, how many messages expired before a source took them: those of the
    /// channels of the current fences in `held`, each once. Those that expired more than a minute
    /// ago may be left out.
    ///
    /// # Errors
    /// The database fails.
    pub async fn take_expired(self, held: &[Fence]) -> Result<Vec<(String, u64)>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = held.iter().map(|fence| fence.channel.as_str()).collect();
        let mut session = self
            .store
            .database
            .read("look for expired messages")
            .await?;
        let expired: i64 = session
            .scalar(
                sql!(
                    "SELECT COUNT(*) FROM messages
                     WHERE channel_id IN (SELECT id FROM channels WHERE name" AMONG_1 ")
                         AND taken_at IS NULL AND expires_at <= (SELECT " NOW ")"
                ),
                values![names.as_slice()],
            )
            .await?;
        drop(session);
        if expired == 0 {
            return Ok(Vec::new());
        }
        let mut session = self.store.database.write("count expired messages").await?;
        let mut counts = Vec::new();
        for channel in held_channels(&mut session, held).await? {
            // The row is kept for as long as any other from when it expired on.
            let count = session
                .execute(
                    sql!(
                        "UPDATE messages SET taken_at = expires_at, payload = $2 WHERE id IN (
                             SELECT id FROM messages
                             WHERE channel_id = (SELECT id FROM channels WHERE name = $1)
                                 AND taken_at IS NULL AND expires_at <= (SELECT " NOW ")
                             ORDER BY id" LOCK SKIP ")"
                    ),
                    values![channel, BLANK],
                )
                .await?;
            if count > 0 {
                counts.push((channel.to_owned(), count));
            }
        }
        session.commit().await?;
        Ok(counts)
    }
}
