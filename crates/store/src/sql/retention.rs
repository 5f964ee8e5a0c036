//! Letting go of old updates.

use super::{SqlStore, to_i64};
use crate::StoreError;
use crate::database::{sql, values};
use crate::model::Retention;

/// Updates are deleted in transactions of at most this many.
pub(super) const PART: i64 = 1000;

impl SqlStore {
    pub(super) async fn delete_updates(
        &self,
        channel: &str,
        keep: &Retention,
        published: u64,
    ) -> Result<u64, StoreError> {
        loop {
            let mut session = self.database.write("delete old updates").await?;
            let row = session
                .row(
                    sql!(
                        "SELECT c.id, c.head,
                             (SELECT MIN(u.seq) FROM updates u WHERE u.channel_id = c.id)
                         FROM channels c WHERE c.name = $1"
                    ),
                    values![channel],
                )
                .await?
                .ok_or_else(|| session.unknown_channel(channel))?;
            let id: i64 = session.get(&row, 0)?;
            let head: i64 = session.get(&row, 1)?;
            let oldest: Option<i64> = session.get(&row, 2)?;
            let Some(oldest) = oldest else {
                session.rollback().await?;
                return Ok(u64::try_from(head).unwrap_or_default().saturating_add(1));
            };
            // Everything before `end` goes. What is not published yet counts for nothing.
            let published = to_i64(published).min(head);
            let mut end = keep.count.map_or(oldest, |count| {
                published.saturating_sub(to_i64(count)).saturating_add(1)
            });
            if let Some(age) = keep.age_ms {
                let row = session
                    .row(
                        sql!(
                            "SELECT MAX(seq), MIN(CASE WHEN created_at >= " NOW " - $3 THEN seq END)
                             FROM (SELECT seq, created_at FROM updates
                                 WHERE channel_id = $1 AND seq >= $2 ORDER BY seq LIMIT $4) AS part"
                        ),
                        values![id, oldest, age, PART],
                    )
                    .await?;
                if let Some(row) = row {
                    let last: Option<i64> = session.get(&row, 0)?;
                    let young: Option<i64> = session.get(&row, 1)?;
                    let aged = young.or(last.map(|last| last.saturating_add(1)));
                    end = end.max(aged.unwrap_or(oldest));
                }
            }
            let end = end.min(published.saturating_add(1));
            if end <= oldest {
                session.rollback().await?;
                return u64::try_from(oldest).map_err(|_| self.negative(oldest));
            }
            session
                .execute(
                    sql!("DELETE FROM updates WHERE channel_id = $1 AND seq < $2"),
                    values![id, end.min(oldest.saturating_add(PART))],
                )
                .await?;
            session.commit().await?;
        }
    }

    fn negative(&self, seq: i64) -> StoreError {
        StoreError::Damaged {
            url: self.database.url.to_string(),
            detail: format!("it holds the seq {seq}"),
        }
    }
}
