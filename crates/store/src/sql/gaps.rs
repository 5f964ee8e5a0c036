//! Gaps in feeds.

use super::feeds::MAX_TEXT;
use super::{MAX_KEY, channel_id, cut, to_i64};
use crate::database::{Row, Session, sql, values};
use crate::model::{GapRecord, GapState};
use crate::{Gaps, StoreError};

/// So many gaps of a channel are kept, the last ones.
const MAX_GAPS: i64 = 1000;

impl Gaps<'_> {
    /// Records a gap, or its new state if its `id` is known. Returns its id. The last thousand of
    /// each channel are kept.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn record(self, channel: &str, gap: &GapRecord) -> Result<i64, StoreError> {
        let mut session = self.store.database.write("record a gap").await?;
        let channel_id = channel_id(&mut session, channel).await?;
        let (state, detail) = (gap.state.as_str(), cut(&gap.detail, MAX_TEXT));
        let entries = to_i64(gap.entries);
        let changed = session
            .row(
                sql!(
                    "UPDATE gaps SET state = $3, detail = $4, entries = $5
                     WHERE id = $1 AND channel_id = $2 RETURNING id"
                ),
                values![gap.id, channel_id, state, detail, entries],
            )
            .await?;
        let row = match changed {
            Some(row) => Some(row),
            None => {
                session
                    .row(
                        sql!(
                            "INSERT INTO gaps (channel_id, url, noticed_at, state, detail, entries,
                                 after_seq)
                             VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id"
                        ),
                        values![
                            channel_id,
                            cut(&gap.url, MAX_KEY),
                            gap.at_ms,
                            state,
                            detail,
                            entries,
                            gap.after.map(to_i64),
                        ],
                    )
                    .await?
            }
        };
        session
            .execute(
                sql!(
                    "DELETE FROM gaps WHERE channel_id = $1 AND id <= (
                         SELECT id FROM gaps WHERE channel_id = $1
                         ORDER BY id DESC LIMIT 1 OFFSET $2)"
                ),
                values![channel_id, MAX_GAPS],
            )
            .await?;
        let row = row.ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        let id = session.get(&row, 0)?;
        session.commit().await?;
        Ok(id)
    }

    /// Returns the last gaps of a channel, the newest first.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn list(self, channel: &str, limit: usize) -> Result<Vec<GapRecord>, StoreError> {
        let mut session = self.store.database.read("list gaps").await?;
        let id = channel_id(&mut session, channel).await?;
        let sql = sql!(
            "SELECT id, url, noticed_at, state, detail, entries, after_seq FROM gaps
             WHERE channel_id = $1 ORDER BY id DESC LIMIT $2"
        );
        let values = values![id, to_i64(limit as u64)];
        session.list(sql, values, read_gap).await
    }
}

fn read_gap(session: &Session, row: &Row) -> Result<GapRecord, StoreError> {
    let state: String = session.get(row, 3)?;
    let state = GapState::from_word(&state)
        .ok_or_else(|| session.damaged(format!("the state of a gap is {state:?}")))?;
    Ok(GapRecord {
        id: session.get(row, 0)?,
        url: session.get(row, 1)?,
        at_ms: session.get(row, 2)?,
        state,
        detail: session.get(row, 4)?,
        entries: session.count(row, 5)?,
        after: session.maybe_count(row, 6)?,
    })
}
