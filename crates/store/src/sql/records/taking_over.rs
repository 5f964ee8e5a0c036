//! Take-over of a previous source's records: in parts, for there may be very many receivers.

use uuid::Uuid;

use super::change::{check_fences, next_change, number_receivers};
use super::history::rows;
use super::read::{read_feed_event, read_state, select_feed_events, select_states};
use super::rows::kept;
use super::write::MAX_NAME;
use crate::database::{sql, values};
use crate::model::{FeedEvent, Fence, StateRow};
use crate::{Records, StoreError};

impl Records<'_> {
    /// Records that no receiver is connected in the channels of these fences, for a source that
    /// begins to publish them: the previous one could not when it ended. No moves are recorded.
    /// Works in parts: for `limit` rows at most, those that follow the receiver and channel
    /// `after`. Returns the resulting states in that order; fewer than `limit` at the end.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn take_over(
        self,
        fences: &[Fence],
        after: Option<&(Uuid, String)>,
        limit: usize,
        at_ms: i64,
        cause: &str,
    ) -> Result<Vec<StateRow>, StoreError> {
        let mut session = self.store.database.write("begin to record").await?;
        let change = next_change(&mut session).await?;
        if let Err(error) = check_fences(&mut session, fences).await {
            session.rollback().await?;
            return Err(error);
        }
        let channels: Vec<&str> = fences.iter().map(|fence| fence.channel.as_str()).collect();
        let channels = channels.as_slice();
        let (receiver, channel) = key(after);
        let found = session
            .rows(
                select_states!(
                    "WHERE channel" AMONG_1 " AND (receiver, channel) > ($2, $3)
                     ORDER BY receiver, channel LIMIT $4"
                ),
                values![channels, &receiver, channel, rows(limit.max(1))],
            )
            .await?;
        let mut states = Vec::with_capacity(found.len());
        for row in &found {
            states.push(read_state(&session, row)?);
        }
        let last = states
            .last()
            .map(|last| (last.receiver, last.channel.clone()));
        if !states.iter().any(|state| state.connected) {
            session.rollback().await?;
            return Ok(states);
        }
        let (last_receiver, last_channel) = key(last.as_ref());
        let cause = kept(cause, MAX_NAME);
        session
            .execute(
                sql!(
                    "UPDATE sessions SET ended_at = $6, end_cause = $7
                     WHERE ended_at IS NULL AND id IN (
                         SELECT session FROM receiver_states WHERE connected AND channel" AMONG_1 "
                             AND (receiver, channel) > ($2, $3)
                             AND (receiver, channel) <= ($4, $5))"
                ),
                values![
                    channels,
                    &receiver,
                    channel,
                    &last_receiver,
                    last_channel,
                    at_ms,
                    &cause
                ],
            )
            .await?;
        session
            .execute(
                sql!(
                    "UPDATE receiver_states SET connected = FALSE, rung = 'offline', since = $6,
                         cause = $7, session = NULL, updated_at = $6, change = $8
                     WHERE connected AND channel" AMONG_1 "
                         AND (receiver, channel) > ($2, $3) AND (receiver, channel) <= ($4, $5)"
                ),
                values![
                    channels,
                    &receiver,
                    channel,
                    &last_receiver,
                    last_channel,
                    at_ms,
                    &cause,
                    change
                ],
            )
            .await?;
        number_receivers(&mut session, change).await?;
        let change = self.store.end_change(session, change).await?;
        for state in states.iter_mut().filter(|state| state.connected) {
            *state = StateRow {
                connected: false,
                rung: "offline".to_owned(),
                since_ms: at_ms,
                cause: cause.clone(),
                session: None,
                updated_ms: at_ms,
                change,
                ..state.clone()
            };
        }
        Ok(states)
    }

    /// Returns the last event of each polled feed of these channels, if its id is above `after`;
    /// the oldest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn feed_states(
        self,
        channels: &[&str],
        after: i64,
        limit: usize,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        let sql = select_feed_events!(
            "WHERE id > $2 AND id IN (SELECT (SELECT MAX(e.id) FROM feed_events e
                     WHERE e.channel = c.name AND e.url = f.url)
                 FROM feeds f JOIN channels c ON c.id = f.channel_id
                 WHERE f.active AND c.active AND c.name" AMONG_1 ")
             ORDER BY id LIMIT $3"
        );
        let values = values![channels, after, rows(limit.max(1))];
        self.store
            .list("read how feeds were last", sql, values, read_feed_event)
            .await
    }
}

/// Returns the key at which a part ends; without one, the key before all others.
fn key(state: Option<&(Uuid, String)>) -> (String, &str) {
    state.map_or((String::new(), ""), |(receiver, channel)| {
        (receiver.to_string(), channel.as_str())
    })
}
