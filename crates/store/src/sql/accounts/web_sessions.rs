//! Browsers that are signed in.

use std::time::Duration;

use super::users::read_user;
use crate::database::{Session, sql, values};
use crate::model::{Hash, NewWebSession, WebSession};
use crate::sql::records::rows::kept;
use crate::{StoreError, WebSessions};

/// Of each user, so many stay signed in.
const MAX_SESSIONS: i64 = 50;

/// Longest text kept of what a browser says, and what its requests have to bring along, in bytes.
const MAX_TEXT: usize = 255;
const MAX_CSRF: usize = 64;

/// One that is busy again within this time is not written down again, in milliseconds.
pub(super) const SEEN: i64 = 60_000;

/// Whether this is still the password of a user who is let in. If so, it stays that until the end
/// of the transaction: a change of it waits, and then signs the browser out again.
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

impl WebSessions<'_> {
    /// Signs a browser in, if its user is still enabled and has the given password. Returns whether
    /// that is so. The last 50 of each user stay.
    ///
    /// # Errors
    /// A text is too long, or the database fails.
    pub async fn add(self, new: &NewWebSession) -> Result<bool, StoreError> {
        if new.csrf.len() > MAX_CSRF {
            return Err(StoreError::TooLong {
                what: "what a request has to bring along",
                bytes: new.csrf.len(),
                limit: MAX_CSRF,
            });
        }
        let mut session = self.store.database.write("sign a browser in").await?;
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
    async fn find(
        &self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<(WebSession, i64)>, StoreError> {
        let idle = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX / 2);
        let mut session = self.store.database.read("look up a browser").await?;
        let row = session
            .row(
                sql!(
                    "SELECT u.id, u.name, u.role, u.created_at, u.disabled_at, u.issuer, u.subject,
                         s.csrf, s.created_at, s.seen_at, s.expires_at, s.address, s.agent,
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

    /// Returns the browser as [`touch`](Self::touch) does, and notes nothing: for requests that
    /// browsers make by themselves.
    ///
    /// # Errors
    /// The database fails.
    pub async fn get(self, hash: &Hash, idle: Duration) -> Result<Option<WebSession>, StoreError> {
        let found = self.find(hash, idle).await?;
        Ok(found.map(|(browser, _)| browser))
    }

    /// Returns the browser with this cookie, if it is signed in, was active within the time `idle`,
    /// and its user is enabled. Notes this activity, at most once a minute.
    ///
    /// # Errors
    /// The database fails.
    pub async fn touch(
        self,
        hash: &Hash,
        idle: Duration,
    ) -> Result<Option<WebSession>, StoreError> {
        // The browser, which is busy now.
        let Some((found, age)) = self.find(hash, idle).await? else {
            return Ok(None);
        };
        if !(0..SEEN).contains(&age) {
            let sql = sql!("UPDATE web_sessions SET seen_at = " NOW " WHERE hash = $1");
            let operation = "note that a browser is busy";
            self.store.execute(operation, sql, values![hash]).await?;
        }
        Ok(Some(found))
    }

    /// Signs a browser out. Returns whether it was signed in.
    ///
    /// # Errors
    /// The database fails.
    pub async fn end(self, hash: &Hash) -> Result<bool, StoreError> {
        let sql = sql!("DELETE FROM web_sessions WHERE hash = $1");
        let found = self
            .store
            .execute("sign a browser out", sql, values![hash])
            .await?;
        Ok(found > 0)
    }

    /// Signs out all browsers of a user, except for one. Returns how many.
    ///
    /// # Errors
    /// The database fails.
    pub async fn end_all(self, user_id: i64, except: Option<&Hash>) -> Result<u64, StoreError> {
        // No hash is empty.
        let except: &[u8] = except.map_or(&[], |hash| hash.as_slice());
        let sql = sql!("DELETE FROM web_sessions WHERE user_id = $1 AND hash <> $2");
        self.store
            .execute("sign browsers out", sql, values![user_id, except])
            .await
    }
}
