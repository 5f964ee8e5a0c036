//! Tokens, and the admission of receivers.

use uuid::Uuid;

use super::{cut, grow_version, names_from_json, names_to_json};
use crate::database::{Row, Session, sql, values};
use crate::model::{Applicant, Hash, NewToken, TokenRow, Verdict};
use crate::{Receivers, StoreError, Tokens};

/// Longest text kept of a label, and of what a receiver says about itself, in bytes.
const MAX_TEXT: usize = 255;

/// Longest label kept, in bytes: a hundred characters of any kind.
const MAX_LABEL: usize = 400;

/// A receiver that is seen again within this time is not written down again, in milliseconds.
const SEEN: i64 = 60_000;

/// Everything about tokens, in the order that [`read_token`] has; a WHERE follows.
macro_rules! select_tokens {
    ($($where:tt)+) => {
        sql!(
            "SELECT id, label, uses, use_limit, expires_at, public, channels, created_at, revoked_at,
                 " NOW " FROM tokens " $($where)+
        )
    };
}

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

/// Stored row of the receiver that asks.
struct Known {
    credential: Vec<u8>,
    name: String,
    software: String,
    address: String,
    asked: String,
    revoked: bool,
    /// Milliseconds since it was written.
    age: i64,
    /// The channels that its token admits to.
    admitted_to: Vec<String>,
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
                    "INSERT INTO tokens (hash, label, use_limit, expires_at, public, channels, created_at)
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
        let row = session
            .row(select_tokens!("WHERE hash = $1"), values![&token.hash])
            .await?
            .ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
        let row = read_token(&session, &row)?;
        session.commit().await?;
        Ok(row)
    }

    /// Returns the token with this SHA-256 hash, unless it is revoked or expired.
    ///
    /// # Errors
    /// The database fails.
    pub async fn valid(self, hash: &Hash) -> Result<Option<TokenRow>, StoreError> {
        let mut session = self.store.database.read("look up a token").await?;
        let row = session
            .row(
                select_tokens!(
                    "WHERE hash = $1 AND revoked_at IS NULL
                         AND (expires_at IS NULL OR expires_at > " NOW ")"
                ),
                values![hash],
            )
            .await?;
        row.map(|row| read_token(&session, &row)).transpose()
    }

    /// Returns all tokens, in the order in which they were added.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<TokenRow>, StoreError> {
        let mut session = self.store.database.read("list tokens").await?;
        let rows = session
            .rows(select_tokens!("ORDER BY id"), values![])
            .await?;
        rows.iter().map(|row| read_token(&session, row)).collect()
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

impl Receivers<'_> {
    /// Decides whether a receiver is admitted. An unknown one needs a token, of which one use is
    /// counted; from then on its own credential admits it, to the channels of that token. Asking
    /// again with the same credential costs nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn admit(self, applicant: &Applicant<'_>) -> Result<Verdict, StoreError> {
        // Most who ask are known, and were seen just now: that is answered by reading. So is who
        // shows a token that admits nobody: anybody can send those, and writers are few.
        let applicant = &Applicant {
            name: cut(applicant.name, MAX_TEXT),
            software: cut(applicant.software, MAX_TEXT),
            address: cut(applicant.address, MAX_TEXT),
            ..applicant.clone()
        };
        let mut session = self.store.database.read("admit a receiver").await?;
        let known = find(&mut session, applicant.receiver).await?;
        match known.as_ref().and_then(|known| known.verdict(applicant)) {
            Some(Verdict::Admitted { .. })
                if known.as_ref().is_some_and(|k| !k.is_current(applicant)) => {}
            Some(verdict) => return Ok(verdict),
            None => {
                let Some(hash) = &applicant.token else {
                    return Ok(Verdict::UnknownToken);
                };
                let row = session
                    .row(select_tokens!("WHERE hash = $1"), values![hash])
                    .await?;
                if let Err(verdict) = judge_token(&session, row, applicant.channels)? {
                    return Ok(verdict);
                }
            }
        }
        drop(session);
        let mut session = self.store.database.write("admit a receiver").await?;
        let verdict = decide(&mut session, applicant).await?;
        match verdict {
            Verdict::Admitted { .. } => session.commit().await?,
            _ => session.rollback().await?,
        }
        Ok(verdict)
    }
}

impl Known {
    /// Whether the receiver is admitted as it is known; `None` if a token may change that.
    fn verdict(&self, applicant: &Applicant<'_>) -> Option<Verdict> {
        if self.revoked {
            return Some(Verdict::Revoked);
        }
        if self.credential != applicant.credential {
            return Some(Verdict::InUse);
        }
        match refused_channel(&self.admitted_to, applicant.channels) {
            None => Some(Verdict::Admitted { enrolled: false }),
            Some(_) if applicant.token.is_some() => None,
            Some(channel) => Some(Verdict::Channel(channel)),
        }
    }

    /// Whether what is written down about it is still right.
    fn is_current(&self, applicant: &Applicant<'_>) -> bool {
        (0..SEEN).contains(&self.age)
            && self.name == applicant.name
            && self.software == applicant.software
            && self.address == applicant.address
            && self.asked == names_to_json(applicant.channels)
    }
}

async fn find(session: &mut Session, receiver: Uuid) -> Result<Option<Known>, StoreError> {
    let row = session
        .row(
            sql!(
                "SELECT r.credential, r.name, r.software, r.address, r.channels, r.revoked_at,
                     " NOW " - r.seen_at, t.channels
                 FROM receivers r LEFT JOIN tokens t ON t.id = r.token_id WHERE r.id = $1"
            ),
            values![&receiver.to_string()],
        )
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let revoked: Option<i64> = session.get(&row, 5)?;
    let admitted_to: Option<String> = session.get(&row, 7)?;
    Ok(Some(Known {
        credential: session.get(&row, 0)?,
        name: session.get(&row, 1)?,
        software: session.get(&row, 2)?,
        address: session.get(&row, 3)?,
        asked: session.get(&row, 4)?,
        revoked: revoked.is_some(),
        age: session.get(&row, 6)?,
        admitted_to: match admitted_to {
            Some(names) => names_from_json(session, &names)?,
            None => Vec::new(),
        },
    }))
}

/// The first of the channels that is not among those allowed.
fn refused_channel(allowed: &[String], asked: &[String]) -> Option<String> {
    asked
        .iter()
        .find(|channel| !allowed.is_empty() && !allowed.contains(channel))
        .cloned()
}

async fn decide(session: &mut Session, applicant: &Applicant<'_>) -> Result<Verdict, StoreError> {
    // Two of one id at the same time: the row that is made here makes the second one wait.
    let id = applicant.receiver.to_string();
    if session.is_postgres() {
        session
            .execute(
                sql!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"),
                values![&id],
            )
            .await?;
    }
    let known = find(session, applicant.receiver).await?;
    match known.as_ref().map(|known| known.verdict(applicant)) {
        Some(Some(Verdict::Admitted { enrolled })) => {
            write_receiver(session, applicant, None).await?;
            return Ok(Verdict::Admitted { enrolled });
        }
        Some(Some(verdict)) => return Ok(verdict),
        Some(None) | None => {}
    }
    let Some(hash) = &applicant.token else {
        return Ok(Verdict::UnknownToken);
    };
    match spend(session, hash, applicant.channels).await? {
        Ok(token_id) => {
            write_receiver(session, applicant, Some(token_id)).await?;
            Ok(Verdict::Admitted { enrolled: true })
        }
        Err(verdict) => Ok(verdict),
    }
}

/// Whether a token, as it was read, admits to the channels; its id, or why it does not.
fn judge_token(
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
async fn spend(
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

/// Writes down who was admitted; without a token, it keeps the one that it has.
async fn write_receiver(
    session: &mut Session,
    applicant: &Applicant<'_>,
    token_id: Option<i64>,
) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "INSERT INTO receivers (id, credential, name, software, address, channels, token_id,
                     enrolled_at, seen_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, " NOW ", " NOW ")
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name, software = excluded.software,
                     address = excluded.address, channels = excluded.channels,
                     token_id = COALESCE(excluded.token_id, receivers.token_id),
                     seen_at = excluded.seen_at, change = NULL"
            ),
            values![
                &applicant.receiver.to_string(),
                &applicant.credential,
                applicant.name,
                applicant.software,
                applicant.address,
                &names_to_json(applicant.channels),
                token_id,
            ],
        )
        .await
        .map(|_| ())
}
