//! Receivers that were admitted: listed, revoked, forgotten.

use uuid::Uuid;

use super::{SqlStore, grow_version, names_from_json};
use crate::StoreError;
use crate::database::{Session, sql, values};
use crate::model::ReceiverRow;

fn id(session: &Session, text: &str) -> Result<Uuid, StoreError> {
    text.parse()
        .map_err(|error| session.damaged(format!("the id of a receiver is {text:?}: {error}")))
}

impl SqlStore {
    pub(super) async fn list_receivers(&self) -> Result<Vec<ReceiverRow>, StoreError> {
        let mut session = self.database.read("list receivers").await?;
        let rows = session
            .rows(
                sql!(
                    "SELECT id, name, software, address, token_id, enrolled_at, seen_at, revoked_at,
                         channels
                     FROM receivers ORDER BY enrolled_at, id"
                ),
                values![],
            )
            .await?;
        rows.iter()
            .map(|row| {
                let channels: String = session.get(row, 8)?;
                Ok(ReceiverRow {
                    id: id(&session, &session.get::<String>(row, 0)?)?,
                    name: session.get(row, 1)?,
                    software: session.get(row, 2)?,
                    address: session.get(row, 3)?,
                    token_id: session.get(row, 4)?,
                    enrolled_ms: session.get(row, 5)?,
                    seen_ms: session.get(row, 6)?,
                    revoked_ms: session.get(row, 7)?,
                    channels: names_from_json(&session, &channels)?,
                })
            })
            .collect()
    }

    pub(super) async fn end_receiver(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut session = self.database.write("revoke a receiver").await?;
        let found = session
            .execute(
                sql!("UPDATE receivers SET revoked_at = COALESCE(revoked_at, " NOW ") WHERE id = $1"),
                values![&id.to_string()],
            )
            .await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(found > 0)
    }

    pub(super) async fn delete_receiver(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut session = self.database.write("forget a receiver").await?;
        let found = session
            .execute(
                sql!("DELETE FROM receivers WHERE id = $1"),
                values![&id.to_string()],
            )
            .await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(found > 0)
    }

    pub(super) async fn list_revoked(&self) -> Result<Vec<Uuid>, StoreError> {
        let mut session = self.database.read("list revoked receivers").await?;
        let rows = session
            .rows(
                sql!("SELECT id FROM receivers WHERE revoked_at IS NOT NULL ORDER BY id"),
                values![],
            )
            .await?;
        rows.iter()
            .map(|row| id(&session, &session.get::<String>(row, 0)?))
            .collect()
    }
}
