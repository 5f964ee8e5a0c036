//! Tokens that admit receivers.

use super::{cut, grow_version, names_from_json, names_to_json};
use crate::database::{Row, Session, sql, values};
use crate::model::{Hash, NewToken, TokenRow, Verdict};
use crate::{StoreError, Tokens};

/// Longest label kept, in bytes: a hundred characters of any kind.
const MAX_LABEL: usize = 400;

/// Everything about tokens, in the order that [`read_token`] has; a WHERE follows.
macro_rules! select_tokens {
    ($($where:tt)+) => {
        $crate::database::sql!(
            "SELECT id, label, uses, use_limit, expires_at, public, channels, created_at,
                 revoked_at, " NOW " FROM tokens " $($where)+
        )
    };
}

pub(super) use select_tokens;

fn read_token(session: &Session, row: &Row) -> Result<TokenRow, StoreError> {
    let limit: Option<i64> = session.get(row, 3)?;
    let channels: String = session.get(row, 6)?;
    Ok(TokenRow {
        id: session.get(row, 0)?,
        label: session.get(row, 1)?,
        uses: u32::try_from(session.count(row, 2)?).unwrap_or(u32::MAX),
        limit: limit.map(|limit| u32::try_from(limit).unwrap_or_default()),
        expires_ms: session.get(row, 4)?,
        public: session.get(row, 5)?,
        channels: names_from_json(session, &channels)?,
        created_ms: session.get(row, 7)?,
        revoked_ms: session.get(row, 8)?,
    })
}

impl Tokens<'_> {
    /// Adds a token that admits receivers. Adding one with the same hash again changes nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn add(self, token: &NewToken) -> Result<TokenRow, StoreError> {
        let mut session = self.store.database.write("add a token").await?;
        let limit = token.limit.filter(|_| !token.public).map(i64::from);
        session
            .execute(
                sql!(
                    "INSERT INTO tokens (hash, label, use_limit, expires_at, public, channels,
                         created_at)
                     VALUES ($1, $2, $3, $4, $5, $6, " NOW ") ON CONFLICT (hash) DO NOTHING"
                ),
                values![
                    &token.hash,
                    cut(&token.label, MAX_LABEL),
                    limit,
                    token.expires_ms,
                    token.public,
                    &names_to_json(&token.channels),
                ],
            )
            .await?;
        let sql = select_tokens!("WHERE hash = $1");
        let row = session.find(sql, values![&token.hash], read_token).await?;
        let row = row.ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        session.commit().await?;
        Ok(row)
    }

    /// Returns the token with this SHA-256 hash, unless it is revoked or expired.
    ///
    /// # Errors
    /// The database fails.
    pub async fn valid(self, hash: &Hash) -> Result<Option<TokenRow>, StoreError> {
        let sql = select_tokens!(
            "WHERE hash = $1 AND revoked_at IS NULL
                 AND (expires_at IS NULL OR expires_at > " NOW ")"
        );
        self.store
            .find("look up a token", sql, values![hash], read_token)
            .await
    }

    /// Returns all tokens, in the order in which they were added.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<TokenRow>, StoreError> {
        let sql = select_tokens!("ORDER BY id");
        self.store
            .list("list tokens", sql, values![], read_token)
            .await
    }

    /// Revokes a token; receivers that it has admitted stay. Returns whether there is such a token.
    ///
    /// # Errors
    /// The database fails.
    pub async fn revoke(self, id: i64) -> Result<bool, StoreError> {
        let mut session = self.store.database.write("revoke a token").await?;
        let found = session
            .execute(
                sql!("UPDATE tokens SET revoked_at = COALESCE(revoked_at, " NOW ") WHERE id = $1"),
                values![id],
            )
            .await?;
        grow_version(&mut session).await?;
        session.commit().await?;
        Ok(found > 0)
    }
}

/// The first of the channels that is not among those allowed.
pub(super) fn refused_channel(allowed: &[String], asked: &[String]) -> Option<String> {
    asked
        .iter()
        .find(|channel| !allowed.is_empty() && !allowed.contains(channel))
        .cloned()
}

/// Whether a token, as it was read, admits to the channels; its id, or why it does not.
pub(super) fn judge_token(
    session: &Session,
    row: Option<Row>,
    channels: &[String],
) -> Result<Result<i64, Verdict>, StoreError> {
    let Some(row) = row else {
        return Ok(Err(Verdict::UnknownToken));
    };
    let token = read_token(session, &row)?;
    let now: i64 = session.get(&row, 9)?;
    if token.revoked_ms.is_some() {
        return Ok(Err(Verdict::TokenRevoked));
    }
    if token.expires_ms.is_some_and(|end| end <= now) {
        return Ok(Err(Verdict::Expired));
    }
    if !token.public && token.limit.is_some_and(|limit| token.uses >= limit) {
        return Ok(Err(Verdict::Spent));
    }
    if let Some(channel) = refused_channel(&token.channels, channels) {
        return Ok(Err(Verdict::Channel(channel)));
    }
    Ok(Ok(token.id))
}

/// Counts a use of a token, if it admits to the channels.
pub(super) async fn spend(
    session: &mut Session,
    hash: &Hash,
    channels: &[String],
) -> Result<Result<i64, Verdict>, StoreError> {
    let row = session
        .row(select_tokens!("WHERE hash = $1" LOCK), values![hash])
        .await?;
    let id = match judge_token(session, row, channels)? {
        Ok(id) => id,
        Err(verdict) => return Ok(Err(verdict)),
    };
    session
        .execute(
            sql!("UPDATE tokens SET uses = uses + 1 WHERE id = $1"),
            values![id],
        )
        .await?;
    Ok(Ok(id))
}
