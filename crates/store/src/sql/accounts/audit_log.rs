//! The audit log, and deletion of old accounts.

use crate::database::{Row, Session, sql, values};
use crate::model::{AuditFilter, AuditRow, NewAudit};
use crate::sql::records::history::rows;
use crate::sql::records::rows::{kept, kept_object};
use crate::sql::records::trim::PART;
use crate::{AuditLog, Store, StoreError};

/// Longest texts kept, in bytes.
const MAX_NAME: usize = 255;
const MAX_WORD: usize = 64;
const MAX_TARGET: usize = 2048;
const MAX_DETAIL: usize = 8192;

/// Adds a line. Returns its number.
pub(in crate::sql) async fn add_line(
    session: &mut Session,
    audit: &NewAudit,
) -> Result<i64, StoreError> {
    session
        .scalar(
            sql!(
                "INSERT INTO audit (at, actor, via, action, target, detail, outcome, address)
                 VALUES (" NOW ", $1, $2, $3, $4, $5, $6, $7) RETURNING id"
            ),
            values![
                &kept(&audit.actor, MAX_NAME),
                &kept(&audit.via, MAX_WORD),
                &kept(&audit.action, MAX_WORD),
                &kept(&audit.target, MAX_TARGET),
                kept_object(&audit.detail, MAX_DETAIL),
                &kept(&audit.outcome, MAX_NAME),
                &kept(&audit.address, MAX_NAME),
            ],
        )
        .await
}

macro_rules! select_audit {
    ($where:literal) => {
        sql!(
            "SELECT id, at, actor, via, action, target, detail, outcome, address FROM audit WHERE "
            $where
        )
    };
}

fn read_line(session: &Session, row: &Row) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        id: session.get(row, 0)?,
        at_ms: session.get(row, 1)?,
        done: NewAudit {
            actor: session.get(row, 2)?,
            via: session.get(row, 3)?,
            action: session.get(row, 4)?,
            target: session.get(row, 5)?,
            detail: session.get(row, 6)?,
            outcome: session.get(row, 7)?,
            address: session.get(row, 8)?,
        },
    })
}

impl AuditLog<'_> {
    /// Adds a line. Returns its number.
    ///
    /// # Errors
    /// The database fails.
    pub async fn record(self, audit: &NewAudit) -> Result<i64, StoreError> {
        let mut session = self.store.database.write("write the audit log").await?;
        let id = add_line(&mut session, audit).await?;
        session.commit().await?;
        Ok(id)
    }

    /// Returns lines, the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self, filter: &AuditFilter) -> Result<Vec<AuditRow>, StoreError> {
        let before = filter.before.unwrap_or(i64::MAX);
        let limit = rows(filter.limit);
        let operation = "read the audit log";
        match &filter.actor {
            Some(actor) => {
                let sql = select_audit!(
                    "actor = $1 AND id < $2 AND action = COALESCE($3, action)
                     ORDER BY id DESC LIMIT $4"
                );
                let values = values![actor, before, &filter.action, limit];
                self.store.list(operation, sql, values, read_line).await
            }
            None => {
                let sql = select_audit!(
                    "id < $1 AND action = COALESCE($2, action) ORDER BY id DESC LIMIT $3"
                );
                let values = values![before, &filter.action, limit];
                self.store.list(operation, sql, values, read_line).await
            }
        }
    }
}

impl Store {
    /// Deletes expired browser sessions, API tokens a year after their end, and lines after 400
    /// days. Works in parts, between which others can write. Returns how many rows were deleted.
    ///
    /// # Errors
    /// The database fails; some of it may be done.
    pub async fn trim_accounts(&self) -> Result<u64, StoreError> {
        let old = [
            sql!(
                "DELETE FROM web_sessions WHERE hash IN (
                     SELECT hash FROM web_sessions WHERE expires_at < " NOW " LIMIT $1)"
            ),
            // A year of 365 days after it was good for the last time.
            sql!(
                "DELETE FROM api_tokens WHERE id IN (
                     SELECT id FROM api_tokens
                     WHERE COALESCE(revoked_at, expires_at) < " NOW " - 31536000000 LIMIT $1)"
            ),
            // 400 days.
            sql!(
                "DELETE FROM audit WHERE id IN (
                     SELECT id FROM audit WHERE at < " NOW " - 34560000000 ORDER BY at LIMIT $1)"
            ),
        ];
        let mut all = 0;
        for sql in old {
            all += self
                .execute_in_parts("forget old accounts", sql, values![PART], PART)
                .await?;
        }
        Ok(all)
    }
}
