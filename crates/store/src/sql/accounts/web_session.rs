//! Browsers that are signed in.

use std::time::Duration;

use super::user::read_user;
use crate::StoreError;
use crate::database::{Session, sql, values};
use crate::model::{Hash, NewWebSession, WebSession};
use crate::sql::SqlStore;
use crate::sql::records::rows::kept;

/// Of each user, so many stay signed in.
const MAX_SESSIONS: i64 = 50;

/// Longest text kept of what a browser says, and what its requests have to bring along, in bytes.
const MAX_TEXT: usize = 255;
const MAX_CSRF: usize = 64;

/// One that is busy again within this time is not written down again, in milliseconds.
pub(super) const SEEN: i64 = 60_000;

/// Whether this is still the password of a user who is let in. If so, it stays that until the end of the
/// transaction: whoever changes it waits, and then signs the browser out again.
async fn keep_password(
    session: &mut Session,
    user_id: i64,
    password: &str,
) -> Result<bool, StoreError> {
    let row = session
        .row(
            sql!(
                "SELECT id FROM users WHERE id = $1 AND disabled_at IS NULL AND password = $2" LOCK
            ),
            values![user_id, password],
        )
        .await?;
    Ok(row.is_some())
}

impl SqlStore {
    pub(super) async fn insert_web_session(&self, new: &NewWebSession) -> Result<bool, StoreError> {
        if new.csrf.len() > MAX_CSRF {
            return Err(StoreError::TooLong {
                what: "what a request has to bring along",
                bytes: new.csrf.len(),
                limit: MAX_CSRF,
            });
        }
        let mut session = self.database.write("sign a browser in").await?;
        if !keep_password(&mut session, new.user_id, &new.password).await? {
            session.rollback().await?;
            return Ok(false);
        }
        session
            .execute(
                sql!(
                    "INSERT INTO web_sessions (hash, user_id, csrf, created_at, seen_at, expires_at,
                         address, agent)
                     VALUES ($1, $2, $3, " NOW ", " NOW ", " NOW " + $4, $5, $6)"
                ),
                values![
                    &new.hash,
                    new.user_id,
                    new.csrf.as_slice(),
                    new.ttl_ms,
                    &kept(&new.address, MAX_TEXT),
                    &kept(&new.agent, MAX_TEXT),
                ],
            )
            .await?;
        session
            .execute(
                sql!(
                    "DELETE FROM web_sessions WHERE hash IN (
                         SELECT hash FROM web_sessions WHERE user_id = $1 AND hash <> $2
                         ORDER BY seen_at DESC, created_at DESC LIMIT 10000 OFFSET $3)"
                ),
                values![new.user_id, &new.hash, MAX_SESSIONS - 1],
            )
            .await?;
        session.commit().await?;
        Ok(true)
    }

    /// The browser, and for how many milliseconds it was not busy.
    pub(super) async fn find_web_session(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<(WebSession, i64)>, StoreError> {
        let idle = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX / 2);
        let mut session = self.database.read("look up a browser").await?;
        let row = session
            .row(
                sql!(
                    "SELECT u.id, u.name, u.role, u.created_at, u.disabled_at, u.issuer, u.subject, s.csrf,
                         s.created_at, s.seen_at, s.expires_at, s.address, s.agent,
                         " NOW " - s.seen_at
                     FROM web_sessions s JOIN users u ON u.id = s.user_id
                     WHERE s.hash = $1 AND s.expires_at > " NOW " AND s.seen_at > " NOW " - $2
                         AND u.disabled_at IS NULL"
                ),
                values![hash, idle],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let found = WebSession {
            hash: *hash,
            user: read_user(&session, &row, 0)?,
            csrf: session.get(&row, 7)?,
            created_ms: session.get(&row, 8)?,
            seen_ms: session.get(&row, 9)?,
            expires_ms: session.get(&row, 10)?,
            address: session.get(&row, 11)?,
            agent: session.get(&row, 12)?,
        };
        Ok(Some((found, session.get(&row, 13)?)))
    }

    /// The browser, which is busy now.
    pub(super) async fn find_busy_web_session(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<WebSession>, StoreError> {
        let Some((found, age)) = self.find_web_session(hash, idle).await? else {
            return Ok(None);
        };
        if !(0..SEEN).contains(&age) {
            let mut session = self.database.write("note that a browser is busy").await?;
            session
                .execute(
                    sql!("UPDATE web_sessions SET seen_at = " NOW " WHERE hash = $1"),
                    values![hash],
                )
                .await?;
            session.commit().await?;
        }
        Ok(Some(found))
    }

    pub(super) async fn delete_web_session(&self, hash: &Hash) -> Result<bool, StoreError> {
        let mut session = self.database.write("sign a browser out").await?;
        let found = session
            .execute(
                sql!("DELETE FROM web_sessions WHERE hash = $1"),
                values![hash],
            )
            .await?;
        session.commit().await?;
        Ok(found > 0)
    }

    pub(super) async fn delete_web_sessions(
        &self,
        user_id: i64,
        except: Option<&Hash>,
    ) -> Result<u64, StoreError> {
        // No hash is empty.
        let except: &[u8] = except.map_or(&[], |hash| hash.as_slice());
        let mut session = self.database.write("sign browsers out").await?;
        let found = session
            .execute(
                sql!("DELETE FROM web_sessions WHERE user_id = $1 AND hash <> $2"),
                values![user_id, except],
            )
            .await?;
        session.commit().await?;
        Ok(found)
    }
}
