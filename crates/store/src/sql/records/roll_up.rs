//! Larger steps of samples from smaller ones.

use crate::database::{sql, values};
use crate::model::SampleRow;
use crate::{Records, StoreError};

/// Larger steps that are made again, because smaller ones may still arrive late for them.
const LATE: i64 = 2;

impl Records<'_> {
    /// Makes the larger steps of [`samples`](Self::samples) from the smaller ones, as far as they
    /// are over by `now_ms`. A second call changes nothing. Returns how many steps were made or
    /// made again.
    ///
    /// # Errors
    /// The database fails.
    pub async fn roll_up(self, now_ms: i64) -> Result<u64, StoreError> {
        let mut made = 0;
        let mut channel = self.next_channel(None).await?;
        while let Some(name) = channel {
            for steps in SampleRow::STEPS.windows(2) {
                if let [small, large] = steps {
                    made += self.make_steps(&name, *small, *large, now_ms).await?;
                }
            }
            channel = self.next_channel(Some(&name)).await?;
        }
        Ok(made)
    }

    /// The channel that comes after this one, among those that have samples: a step in the index
    /// each.
    async fn next_channel(&self, after: Option<&str>) -> Result<Option<String>, StoreError> {
        let mut session = self.store.database.read("look for samples").await?;
        match after {
            Some(after) => {
                session
                    .scalar(
                        sql!("SELECT MIN(channel) FROM samples WHERE channel > $1"),
                        values![after],
                    )
                    .await
            }
            None => {
                session
                    .scalar(sql!("SELECT MIN(channel) FROM samples"), values![])
                    .await
            }
        }
    }

    /// A step that is over is the sum of all smaller ones in it, for [`trim`](super::trim) keeps
    /// those that may be asked for here.
    async fn make_steps(
        &self,
        channel: &str,
        small: i64,
        large: i64,
        now_ms: i64,
    ) -> Result<u64, StoreError> {
        let mut session = self.store.database.write("roll samples up").await?;
        let made = session
            .execute(
                sql!(
                    "INSERT INTO samples (channel, step_ms, at, weight, receivers, connected,
                         multicast, amt, replicated, unicast, behind, lag_updates, lag_ms, updates,
                         moves,
                         flow_bytes, copy_bytes, unicast_bytes, repair_bytes, equivalent_bytes)
                     SELECT $1, $3, s.at - s.at % $3, CAST(SUM(s.weight) AS BIGINT),
                         CAST(SUM(s.receivers) AS BIGINT), CAST(SUM(s.connected) AS BIGINT),
                         CAST(SUM(s.multicast) AS BIGINT), CAST(SUM(s.amt) AS BIGINT),
                         CAST(SUM(s.replicated) AS BIGINT), CAST(SUM(s.unicast) AS BIGINT),
                         CAST(SUM(s.behind) AS BIGINT), MAX(s.lag_updates), MAX(s.lag_ms),
                         CAST(SUM(s.updates) AS BIGINT), CAST(SUM(s.moves) AS BIGINT),
                         CAST(SUM(s.flow_bytes) AS BIGINT), CAST(SUM(s.copy_bytes) AS BIGINT),
                         CAST(SUM(s.unicast_bytes) AS BIGINT), CAST(SUM(s.repair_bytes) AS BIGINT),
                         CAST(SUM(s.equivalent_bytes) AS BIGINT)
                     FROM samples s
                     WHERE s.channel = $1 AND s.step_ms = $2 AND s.at < $4 - $4 % $3
                         AND s.at >= COALESCE((SELECT MAX(b.at) FROM samples b
                             WHERE b.channel = $1 AND b.step_ms = $3), 0) - $5 * $3
                     GROUP BY s.at - s.at % $3 ORDER BY MIN(s.at)
                     ON CONFLICT (channel, step_ms, at) DO UPDATE SET weight = excluded.weight,
                         receivers = excluded.receivers, connected = excluded.connected,
                         multicast = excluded.multicast, amt = excluded.amt,
                         replicated = excluded.replicated, unicast = excluded.unicast,
                         behind = excluded.behind, lag_updates = excluded.lag_updates,
                         lag_ms = excluded.lag_ms, updates = excluded.updates,
                         moves = excluded.moves, flow_bytes = excluded.flow_bytes,
                         copy_bytes = excluded.copy_bytes, unicast_bytes = excluded.unicast_bytes,
                         repair_bytes = excluded.repair_bytes,
                         equivalent_bytes = excluded.equivalent_bytes"
                ),
                values![channel, small, large, now_ms.max(0), LATE],
            )
            .await?;
        session.commit().await?;
        Ok(made)
    }
}
