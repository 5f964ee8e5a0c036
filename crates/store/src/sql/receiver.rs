//! Receivers that were admitted.

use uuid::Uuid;

use super::records::change::{next_change, note_forgotten};
use super::records::read::receiver_id;
use super::records::rows::{kept, kept_list};
use super::{grow_version, names_from_json, names_to_json};
use crate::database::{Row, Session, sql, values};
use crate::model::{ReceiverEdit, ReceiverRow};
use crate::{Receivers, StoreError};

/// Longest label (a hundred characters of any kind) and tag kept, in bytes, and the most tags of a
/// receiver.
const MAX_LABEL: usize = 400;
const MAX_TAG: usize = 64;
const MAX_TAGS: usize = 32;

/// Everything about receivers, in the order that [`read_receiver`] has; what follows is added to
/// it.
macro_rules! select_receivers {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT id, name, software, address, token_id, enrolled_at, seen_at, revoked_at, channels,
                 label, tags, held, change FROM receivers " $($then)+
        )
    };
}
pub(super) use select_receivers;

pub(super) fn read_receiver(session: &Session, row: &Row) -> Result<ReceiverRow, StoreError> {
    let channels: String = session.get(row, 8)?;
    let tags: String = session.get(row, 10)?;
    Ok(ReceiverRow {
        id: receiver_id(session, row, 0)?,
        name: session.get(row, 1)?,
        software: session.get(row, 2)?,
        address: session.get(row, 3)?,
        token_id: session.get(row, 4)?,
        enrolled_ms: session.get(row, 5)?,
        seen_ms: session.get(row, 6)?,
        revoked_ms: session.get(row, 7)?,
        channels: names_from_json(session, &channels)?,
        label: session.get(row, 9)?,
        tags: names_from_json(session, &tags)?,
        held: session.get(row, 11)?,
    })
}

impl Receivers<'_> {
    /// Returns all receivers that were ever admitted and not forgotten, in that order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<ReceiverRow>, StoreError> {
        let mut session = self.store.database.read("list receivers").await?;
        let rows = session
            .rows(select_receivers!("ORDER BY enrolled_at, id"), values![])
            .await?;
        rows.iter()
            .map(|row| read_receiver(&session, row))
            .collect()
    }

    /// Revokes a receiver: it is no longer admitted. Returns whether there is such a receiver.
    ///
    /// # Errors
    /// The database fails.
    pub async fn revoke(self, id: Uuid) -> Result<bool, StoreError> {
        let mut session = self.store.database.write("revoke a receiver").await?;
        let change = next_change(&mut session).await?;
        let found = session
            .execute(
                sql!(
                    "UPDATE receivers SET revoked_at = COALESCE(revoked_at, " NOW "), change = $2
                     WHERE id = $1"
                ),
                values![&id.to_string(), change],
            )
            .await?;
        grow_version(&mut session).await?;
        self.store.end_change(session, change).await?;
        Ok(found > 0)
    }

    /// Forgets a receiver: it may enrol again, with a token and a new credential. Returns whether
    /// there was such a receiver.
    ///
    /// # Errors
    /// The database fails.
    pub async fn forget(self, id: Uuid) -> Result<bool, StoreError> {
        let id = id.to_string();
        let mut session = self.store.database.write("forget a receiver").await?;
        let change = next_change(&mut session).await?;
        let found = session
            .execute(sql!("DELETE FROM receivers WHERE id = $1"), values![&id])
            .await?;
        if found == 0 {
            session.rollback().await?;
            return Ok(false);
        }
        for records in [
            sql!("DELETE FROM receiver_states WHERE receiver = $1"),
            sql!("DELETE FROM moves WHERE receiver = $1"),
            sql!("DELETE FROM sessions WHERE receiver = $1"),
        ] {
            session.execute(records, values![&id]).await?;
        }
        note_forgotten(&mut session, &id, change).await?;
        grow_version(&mut session).await?;
        self.store.end_change(session, change).await?;
        Ok(true)
    }

    /// Returns the receivers that were revoked.
    ///
    /// # Errors
    /// The database fails.
    pub async fn revoked(self) -> Result<Vec<Uuid>, StoreError> {
        let mut session = self.store.database.read("list revoked receivers").await?;
        let rows = session
            .rows(
                sql!("SELECT id FROM receivers WHERE revoked_at IS NOT NULL ORDER BY id"),
                values![],
            )
            .await?;
        rows.iter()
            .map(|row| receiver_id(&session, row, 0))
            .collect()
    }

    /// Returns the receivers that operators hold on their unicast path. ([`Store::version`] grows
    /// when that changes.)
    ///
    /// # Errors
    /// The database fails.
    pub async fn held(self) -> Result<Vec<Uuid>, StoreError> {
        let mut session = self.store.database.read("list receivers on hold").await?;
        let rows = session
            .rows(
                sql!("SELECT id FROM receivers WHERE held ORDER BY id"),
                values![],
            )
            .await?;
        rows.iter()
            .map(|row| receiver_id(&session, row, 0))
            .collect()
    }

    /// Sets label, tags and hold of a receiver. Returns it as it is then; `None` if there is no
    /// such receiver.
    ///
    /// # Errors
    /// The database fails.
    pub async fn edit(
        self,
        id: Uuid,
        edit: &ReceiverEdit,
    ) -> Result<Option<ReceiverRow>, StoreError> {
        let id = id.to_string();
        let mut session = self.store.database.write("change a receiver").await?;
        let change = next_change(&mut session).await?;
        let row = session
            .row(select_receivers!("WHERE id = $1" LOCK), values![&id])
            .await?;
        let Some(row) = row else {
            session.rollback().await?;
            return Ok(None);
        };
        let before = read_receiver(&session, &row)?;
        let mut after = before.clone();
        if let Some(label) = &edit.label {
            after.label = Some(kept(label.trim(), MAX_LABEL)).filter(|label| !label.is_empty());
        }
        if let Some(tags) = &edit.tags {
            after.tags = kept_list(tags, MAX_TAGS, MAX_TAG);
        }
        if let Some(held) = edit.held {
            after.held = held;
        }
        if after == before {
            session.rollback().await?;
            return Ok(Some(after));
        }
        session
            .execute(
                sql!(
                    "UPDATE receivers SET label = $2, tags = $3, held = $4, change = $5 WHERE id = $1"
                ),
                values![
                    &id,
                    &after.label,
                    &names_to_json(&after.tags),
                    after.held,
                    change
                ],
            )
            .await?;
        if after.held != before.held {
            grow_version(&mut session).await?;
        }
        self.store.end_change(session, change).await?;
        Ok(Some(after))
    }
}
