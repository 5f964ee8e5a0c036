//! API tokens.

use super::users::read_user;
use super::web_sessions::SEEN;
use crate::database::{Row, Session, sql, values};
use crate::model::{ApiTokenRow, Hash, NewApiToken};
use crate::sql::records::history::{MAX_LIST, rows};
use crate::sql::records::rows::{kept, kept_list};
use crate::sql::{names_from_json, names_to_json};
use crate::{ApiTokens, StoreError};

/// Of each user, so many are good.
const MAX_TOKENS: u64 = 100;

/// Longest texts kept, in bytes, and the most scopes. A name is a hundred characters of any kind.
const MAX_NAME: usize = 400;
const MAX_SCOPE: usize = 64;
const MAX_SCOPES: usize = 32;

/// Everything about programs, in the order that [`read_token`] has; what follows is added to it.
macro_rules! select_tokens {
    ($($then:tt)+) => {
        sql!(
            "SELECT u.id, u.name, u.role, u.created_at, u.disabled_at, u.issuer, u.subject, t.id,
                 t.name, t.scopes, t.created_at, t.expires_at, t.seen_at, t.revoked_at, " NOW " -
                 COALESCE(t.seen_at, 0)
             FROM api_tokens t JOIN users u ON u.id = t.user_id " $($then)+
        )
    };
}

fn read_token(session: &Session, row: &Row) -> Result<ApiTokenRow, StoreError> {
    let scopes: String = session.get(row, 9)?;
    Ok(ApiTokenRow {
        user: read_user(session, row, 0)?,
        id: session.get(row, 7)?,
        name: session.get(row, 8)?,
        scopes: names_from_json(session, &scopes)?,
        created_ms: session.get(row, 10)?,
        expires_ms: session.get(row, 11)?,
        seen_ms: session.get(row, 12)?,
        revoked_ms: session.get(row, 13)?,
    })
}

/// Makes sure that there is such a user, and keeps it until the end of the transaction.
async fn keep_user(session: &mut Session, id: i64) -> Result<(), StoreError> {
    let row = session
        .row(sql!("SELECT id FROM users WHERE id = $1" LOCK), values![id])
        .await?;
    match row {
        Some(_) => Ok(()),
        None => Err(StoreError::UnknownUser {
            url: session.url.to_string(),
            id,
        }),
    }
}

impl ApiTokens<'_> {
    /// Adds an API token.
    ///
    /// # Errors
    /// There is no such user, or 100 tokens of theirs are valid already; or the database fails.
    pub async fn add(self, token: &NewApiToken) -> Result<ApiTokenRow, StoreError> {
        let mut session = self.store.database.write("add an API token").await?;
        if let Err(error) = keep_user(&mut session, token.user_id).await {
            session.rollback().await?;
            return Err(error);
        }
        let good: i64 = session
            .scalar(
                sql!(
                    "SELECT COUNT(*) FROM api_tokens WHERE user_id = $1 AND revoked_at IS NULL
                         AND (expires_at IS NULL OR expires_at > " NOW ")"
                ),
                values![token.user_id],
            )
            .await?;
        if session.unsigned(good)? >= MAX_TOKENS {
            session.rollback().await?;
            return Err(StoreError::TooMany {
                what: "API tokens of one user",
                limit: MAX_TOKENS,
            });
        }
        let scopes = kept_list(&token.scopes, MAX_SCOPES, MAX_SCOPE);
        let id: i64 = session
            .scalar(
                sql!(
                    "INSERT INTO api_tokens (hash, name, user_id, scopes, created_at, expires_at)
                     VALUES ($1, $2, $3, $4, " NOW ", $5) RETURNING id"
                ),
                values![
                    &token.hash,
                    &kept(&token.name, MAX_NAME),
                    token.user_id,
                    &names_to_json(&scopes),
                    token.expires_ms,
                ],
            )
            .await?;
        let row = session
            .find(select_tokens!("WHERE t.id = $1"), values![id], read_token)
            .await?;
        let row = row.ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        session.commit().await?;
        Ok(row)
    }

    /// Returns the API token with this hash, if it is valid and its user is enabled. Notes this
    /// use, at most once a minute.
    ///
    /// # Errors
    /// The database fails.
    pub async fn touch(self, hash: &Hash) -> Result<Option<ApiTokenRow>, StoreError> {
        let mut session = self.store.database.read("look up an API token").await?;
        let row = session
            .row(
                select_tokens!(
                    "WHERE t.hash = $1 AND t.revoked_at IS NULL AND u.disabled_at IS NULL
                         AND (t.expires_at IS NULL OR t.expires_at > " NOW ")"
                ),
                values![hash],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let token = read_token(&session, &row)?;
        let age: i64 = session.get(&row, 14)?;
        drop(session);
        if !(0..SEEN).contains(&age) {
            let sql = sql!("UPDATE api_tokens SET seen_at = " NOW " WHERE id = $1");
            let operation = "note that an API token is used";
            self.store
                .execute(operation, sql, values![token.id])
                .await?;
        }
        Ok(Some(token))
    }

    /// Returns the API tokens of one user, or of all, in the order in which they were added: the
    /// last 10,000.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self, user_id: Option<i64>) -> Result<Vec<ApiTokenRow>, StoreError> {
        let operation = "list API tokens";
        // A statement for each: a condition that holds for all users would not use the index.
        let mut found = match user_id {
            Some(user_id) => {
                let sql = select_tokens!("WHERE t.user_id = $1 ORDER BY t.id DESC LIMIT $2");
                let values = values![user_id, rows(MAX_LIST)];
                self.store.list(operation, sql, values, read_token).await?
            }
            None => {
                let sql = select_tokens!("ORDER BY t.id DESC LIMIT $1");
                let values = values![rows(MAX_LIST)];
                self.store.list(operation, sql, values, read_token).await?
            }
        };
        found.reverse();
        Ok(found)
    }

    /// Revokes an API token. Returns whether there is such a token.
    ///
    /// # Errors
    /// The database fails.
    pub async fn revoke(self, id: i64) -> Result<bool, StoreError> {
        let sql =
            sql!("UPDATE api_tokens SET revoked_at = COALESCE(revoked_at, " NOW ") WHERE id = $1");
        let found = self
            .store
            .execute("revoke an API token", sql, values![id])
            .await?;
        Ok(found > 0)
    }
}
