//! Deletion of old records, in parts, between which others can write.

use super::change::next_change;
use crate::database::{Operation, Sql, Value, sql, values};
use crate::model::SampleRow;
use crate::{Records, StoreError};

/// Rows of one transaction.
pub(in crate::sql) const PART: i64 = 2000;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// Retention of the steps of samples, in the order of [`SampleRow::STEPS`].
const STEPS: [i64; 3] = [2 * DAY, 30 * DAY, 730 * DAY];

/// Retention of the other records.
const HISTORY: i64 = 90 * DAY;
const COMMANDS: i64 = 30 * DAY;
const HOURS: i64 = 730 * DAY;
const FORGOTTEN: i64 = 7 * DAY;
const GONE: i64 = DAY;

/// Of each channel, the progress of so many updates is kept.
const PROGRESS: i64 = 10_000;

impl Records<'_> {
    /// Deletes records that are old by `now_ms`: steps of 10 s after two days, of 5 min after 30,
    /// of an hour after two years; moves, sessions, and events of feeds after 90 days, commands
    /// after 30, hours of feeds after two years; of updates' progress the last 10,000 per channel
    /// are kept. Works in parts, between which others can write. Samples that were not rolled up
    /// stay. Returns how many rows were deleted.
    ///
    /// # Errors
    /// The database fails; some of it may be done.
    pub async fn trim(self, now_ms: i64) -> Result<u64, StoreError> {
        let mut all = 0;
        let last = now_ms - STEPS.into_iter().max().unwrap_or_default();
        for (step, (small, keep)) in SampleRow::STEPS.into_iter().zip(STEPS).enumerate() {
            // Steps of which the next larger ones are made, or may be made again.
            let large = SampleRow::STEPS.get(step + 1).copied().unwrap_or(small);
            all += self.delete_steps(small, large, now_ms - keep, last).await?;
        }
        let old = [
            (
                sql!(
                    "DELETE FROM moves WHERE id IN (
                         SELECT id FROM moves WHERE at < $1 ORDER BY at LIMIT $2)"
                ),
                HISTORY,
            ),
            (
                sql!(
                    "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions
                         WHERE began_at < $1 AND ended_at < $1 ORDER BY began_at LIMIT $2)"
                ),
                HISTORY,
            ),
            (
                sql!(
                    "DELETE FROM feed_events WHERE id IN (
                         SELECT id FROM feed_events WHERE at < $1 ORDER BY at LIMIT $2)"
                ),
                HISTORY,
            ),
            (
                sql!(
                    "DELETE FROM commands WHERE id IN (
                         SELECT id FROM commands WHERE asked_at < $1 ORDER BY asked_at LIMIT $2)"
                ),
                COMMANDS,
            ),
            (
                sql!(
                    "DELETE FROM feed_hours WHERE (channel, url, hour) IN (
                         SELECT channel, url, hour FROM feed_hours WHERE hour < $1
                         ORDER BY hour LIMIT $2)"
                ),
                HOURS,
            ),
            (
                sql!(
                    "DELETE FROM forgotten_receivers WHERE receiver IN (
                         SELECT receiver FROM forgotten_receivers WHERE at < $1 LIMIT $2)"
                ),
                FORGOTTEN,
            ),
            (
                sql!(
                    "DELETE FROM recorders WHERE run IN (
                         SELECT run FROM recorders WHERE at < $1 LIMIT $2)"
                ),
                FORGOTTEN,
            ),
            (
                sql!(
                    "DELETE FROM relay_states WHERE address IN (
                         SELECT address FROM relay_states WHERE gone AND at < $1 LIMIT $2)"
                ),
                GONE,
            ),
            // Of receivers that were forgotten, or never enrolled, and of channels that were
            // removed.
            (
                sql!(
                    "DELETE FROM receiver_states WHERE (receiver, channel) IN (
                         SELECT s.receiver, s.channel FROM receiver_states s
                         WHERE s.updated_at < $1 AND (
                             (NOT s.connected AND NOT EXISTS (
                                 SELECT 1 FROM receivers r WHERE r.id = s.receiver))
                             OR NOT EXISTS (SELECT 1 FROM channels c WHERE c.name = s.channel))
                         LIMIT $2)"
                ),
                GONE,
            ),
        ];
        for (sql, keep) in old {
            let values = values![now_ms - keep, PART];
            all += self.delete_parts("forget old records", sql, values).await?;
        }
        all += self.delete_progress().await?;
        self.end_lost_sessions(now_ms).await?;
        self.store.commands().expire().await?;
        Ok(all)
    }

    /// Deletes rows, at most `$2` at a time.
    async fn delete_parts(
        &self,
        operation: Operation,
        sql: Sql,
        values: &[Value<'_>],
    ) -> Result<u64, StoreError> {
        let mut all = 0;
        loop {
            let mut session = self.store.database.write(operation).await?;
            // Writers of records lock rows in another order: one transaction at a time.
            next_change(&mut session).await?;
            let deleted = session.execute(sql, values).await?;
            session.commit().await?;
            all += deleted;
            if deleted < PART.unsigned_abs() {
                return Ok(all);
            }
        }
    }

    /// Deletes the records of a removed channel; its events stay until they are old.
    pub(in crate::sql) async fn forget_channel(&self, channel: &str) -> Result<(), StoreError> {
        let records = [
            sql!(
                "DELETE FROM pulses WHERE channel IN (
                SELECT channel FROM pulses WHERE channel = $1 LIMIT $2)"
            ),
            sql!(
                "DELETE FROM receiver_states WHERE (receiver, channel) IN (
                SELECT receiver, channel FROM receiver_states WHERE channel = $1 LIMIT $2)"
            ),
            sql!(
                "DELETE FROM update_progress WHERE (channel, seq) IN (
                SELECT channel, seq FROM update_progress WHERE channel = $1 LIMIT $2)"
            ),
            sql!(
                "DELETE FROM samples WHERE (channel, step_ms, at) IN (
                SELECT channel, step_ms, at FROM samples WHERE channel = $1 LIMIT $2)"
            ),
            sql!(
                "DELETE FROM feed_hours WHERE (channel, url, hour) IN (
                SELECT channel, url, hour FROM feed_hours WHERE channel = $1 LIMIT $2)"
            ),
        ];
        for sql in records {
            let operation = "forget the records of a channel";
            self.delete_parts(operation, sql, values![channel, PART])
                .await?;
        }
        Ok(())
    }

    /// Steps that are old and have gone into larger ones that are final; and what
    /// is older than anything is kept.
    async fn delete_steps(
        &self,
        small: i64,
        large: i64,
        before_ms: i64,
        last_ms: i64,
    ) -> Result<u64, StoreError> {
        // The margin is more than what a roll-up looks back.
        let margin = if large == small { 0 } else { 3 * large };
        let sql = sql!(
            "DELETE FROM samples WHERE (channel, step_ms, at) IN (
                 SELECT s.channel, s.step_ms, s.at FROM samples s
                 WHERE s.step_ms = $1 AND s.at < $3
                     AND (s.at < $6 OR $4 = 0 OR s.at < (SELECT MAX(b.at) FROM samples b
                         WHERE b.channel = s.channel AND b.step_ms = $2) - $4)
                 ORDER BY s.at LIMIT $5)"
        );
        let values = values![small, large, before_ms, margin, PART, last_ms];
        self.store
            .execute_in_parts("forget old samples", sql, values, PART)
            .await
    }

    /// The progress of all but the last updates of each channel, and of channels that were removed.
    async fn delete_progress(&self) -> Result<u64, StoreError> {
        let mut session = self.store.database.read("look for old records").await?;
        let rows = session
            .rows(
                sql!(
                    "SELECT p.channel, (SELECT l.seq FROM update_progress l
                             WHERE l.channel = p.channel ORDER BY l.seq DESC LIMIT 1 OFFSET $1),
                         (SELECT c.id FROM channels c WHERE c.name = p.channel)
                     FROM (SELECT DISTINCT channel FROM update_progress) p"
                ),
                values![PROGRESS],
            )
            .await?;
        let mut ends: Vec<(String, i64)> = Vec::new();
        for row in &rows {
            let last: Option<i64> = session.get(row, 1)?;
            let channel: Option<i64> = session.get(row, 2)?;
            let end = match channel {
                Some(_) => last,
                None => Some(i64::MAX),
            };
            if let Some(end) = end {
                ends.push((session.get(row, 0)?, end));
            }
        }
        drop(session);
        let mut all = 0;
        for (channel, end) in ends {
            let sql = sql!(
                "DELETE FROM update_progress WHERE channel = $1 AND seq IN (
                     SELECT seq FROM update_progress WHERE channel = $1 AND seq <= $2
                     ORDER BY seq LIMIT $3)"
            );
            let values = values![&channel, end, PART];
            all += self
                .store
                .execute_in_parts("forget old records", sql, values, PART)
                .await?;
        }
        Ok(all)
    }

    /// Ends connections that no receiver is in, and whose end was never recorded.
    async fn end_lost_sessions(&self, now_ms: i64) -> Result<u64, StoreError> {
        let mut session = self.store.database.write("end lost connections").await?;
        next_change(&mut session).await?;
        let ended = session
            .execute(
                sql!(
                    "UPDATE sessions SET ended_at = $1, end_cause = 'unknown'
                     WHERE ended_at IS NULL AND began_at < $1 - 3600000 AND NOT EXISTS (
                         SELECT 1 FROM receiver_states s
                         WHERE s.receiver = sessions.receiver AND s.session = sessions.id)"
                ),
                values![now_ms],
            )
            .await?;
        session.commit().await?;
        Ok(ended)
    }
}
