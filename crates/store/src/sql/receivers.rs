//! Receivers that were admitted.

use uuid::Uuid;

use super::records::change::{next_change, note_forgotten};
use super::records::history::rows;
use super::records::read::receiver_id;
use super::records::rows::{kept, kept_list};
use super::tokens::{judge_token, refused_channel, select_tokens, spend};
use super::{cut, grow_version, names_from_json, names_to_json};
use crate::database::{Row, Session, sql, values};
use crate::model::{Applicant, ReceiverEdit, ReceiverRow, Verdict};
use crate::{Receivers, StoreError};

/// Longest label (a hundred characters of any kind) and tag kept, in bytes, and the most tags of a
/// receiver.
const MAX_LABEL: usize = 400;
const MAX_TAG: usize = 64;
const MAX_TAGS: usize = 32;

/// Longest text kept of a receiver's own description, in bytes.
const MAX_TEXT: usize = 255;

/// A receiver that is seen again within this time is not written down again, in milliseconds.
const SEEN: i64 = 60_000;

/// Everything about receivers, in the order that [`read_receiver`] has; what follows is added to
/// it.
macro_rules! select_receivers {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT id, name, software, address, token_id, enrolled_at, seen_at, revoked_at,
                 channels, label, tags, held, change FROM receivers " $($then)+
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

fn read_id(session: &Session, row: &Row) -> Result<Uuid, StoreError> {
    receiver_id(session, row, 0)
}

/// Stored row of the receiver that asks.
struct StoredReceiver {
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

impl Receivers<'_> {
    /// Returns all receivers that were ever admitted and not forgotten, in that order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<ReceiverRow>, StoreError> {
        let sql = select_receivers!("ORDER BY enrolled_at, id");
        self.store
            .list("list receivers", sql, values![], read_receiver)
            .await
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
        let sql = sql!("SELECT id FROM receivers WHERE revoked_at IS NOT NULL ORDER BY id");
        self.store
            .list("list revoked receivers", sql, values![], read_id)
            .await
    }

    /// Returns the receivers that operators hold on their unicast path.
    /// ([`Store::version`](crate::Store::version) grows when that changes.)
    ///
    /// # Errors
    /// The database fails.
    pub async fn held(self) -> Result<Vec<Uuid>, StoreError> {
        let sql = sql!("SELECT id FROM receivers WHERE held ORDER BY id");
        self.store
            .list("list receivers on hold", sql, values![], read_id)
            .await
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
                    "UPDATE receivers SET label = $2, tags = $3, held = $4, change = $5 WHERE id = \
                     $1"
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

    /// Returns receivers that were ever admitted and not forgotten, by id, those above `after`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list_after(
        self,
        after: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<ReceiverRow>, StoreError> {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        let sql = select_receivers!("WHERE id > $1 ORDER BY id LIMIT $2");
        let values = values![&after, rows(limit.max(1))];
        self.store
            .list("list some receivers", sql, values, read_receiver)
            .await
    }

    /// Decides whether a receiver is admitted. An unknown one needs a token, of which one use is
    /// counted; from then on its own credential admits it, to the channels of that token. Asking
    /// again with the same credential costs nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn admit(self, applicant: &Applicant<'_>) -> Result<Verdict, StoreError> {
        // Most applicants are known, and were seen just now: a read answers them. It also answers
        // invalid tokens: anybody can send those, and writers are few.
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

impl StoredReceiver {
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

async fn find(session: &mut Session, receiver: Uuid) -> Result<Option<StoredReceiver>, StoreError> {
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
    Ok(Some(StoredReceiver {
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
