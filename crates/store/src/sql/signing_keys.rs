//! Keys that sign updates.

use crate::database::{Row, Session, sql, values};
use crate::model::{Channel, ENDORSEMENT_LEN, KeyStanding, SigningEra, SigningKeyRow};
use crate::{SigningKeys, StoreError};

impl SigningKeys<'_> {
    /// Returns the keys in the order of their making.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(self) -> Result<Vec<SigningKeyRow>, StoreError> {
        let mut session = self.store.database.read("list signing keys").await?;
        keys(&mut session).await
    }

    /// Returns the key that a receiver of these channels can pin: the one that signs updates now.
    /// `None` before there is one, and while an update is kept that is not signed, or with a key
    /// that it does not vouch for: the receiver would refuse it. That endorsements are genuine is
    /// not checked.
    ///
    /// # Errors
    /// A channel does not exist, or the database fails.
    pub async fn pinnable(
        self,
        channels: &[impl AsRef<str>],
    ) -> Result<Option<[u8; 32]>, StoreError> {
        let rows = self.list().await?;
        let Some(current) = rows.iter().rfind(|row| row.begun_ms.is_some()) else {
            return Ok(None);
        };
        let key = current.key;
        let endorsements: Vec<_> = rows.iter().flat_map(|row| &row.endorsements).collect();
        let vouched = vouched_for(key, &endorsements);
        for name in channels {
            let channel = self.store.channels().get(name.as_ref()).await?;
            let eras = self.store.signing_eras().list(name.as_ref()).await?;
            let mut kept = eras
                .iter()
                .filter(|era| era.last.is_none_or(|last| last >= channel.first));
            if !is_signed(&channel, &eras) || kept.any(|era| !vouched.contains(&era.key)) {
                return Ok(None);
            }
        }
        Ok(Some(key))
    }

    /// Adds a key, with the endorsements by which it and an earlier one vouch for each other. It
    /// begins when a source signs with it ([`SigningEras::begin`](crate::SigningEras::begin)).
    ///
    /// # Errors
    /// There is such a key already, or the database fails.
    pub async fn add(
        self,
        key: &[u8; 32],
        endorsements: &[[u8; ENDORSEMENT_LEN]],
    ) -> Result<(), StoreError> {
        let mut session = self.store.database.write("add a signing key").await?;
        insert(&mut session, key, &endorsements.concat()).await?;
        session.commit().await
    }

    /// Adds endorsements to a key that is there.
    ///
    /// # Errors
    /// The database fails.
    pub async fn endorse(
        self,
        key: &[u8; 32],
        endorsements: &[[u8; ENDORSEMENT_LEN]],
    ) -> Result<(), StoreError> {
        let mut session = self.store.database.write("endorse signing keys").await?;
        let rows = keys(&mut session).await?;
        let before = rows.into_iter().find(|row| row.key == *key);
        let mut all = before.map_or_else(Vec::new, |row| row.endorsements.concat());
        all.extend_from_slice(&endorsements.concat());
        let sql = sql!("UPDATE signing_keys SET endorsements = $2 WHERE public_key = $1");
        session.execute(sql, values![key, &all[..]]).await?;
        session.commit().await
    }

    /// Returns all keys that signed updates or will, each once.
    ///
    /// # Errors
    /// The database fails.
    pub async fn known(self) -> Result<Vec<[u8; 32]>, StoreError> {
        let mut known: Vec<_> = self.list().await?.iter().map(|row| row.key).collect();
        for row in self.store.channels().list().await? {
            let eras = self.store.signing_eras().list(&row.channel.name).await?;
            known.extend(eras.iter().map(|era| era.key));
        }
        known.sort_unstable();
        known.dedup();
        Ok(known)
    }
}

/// Returns the key, and those that it vouches for, directly or by others.
fn vouched_for(key: [u8; 32], endorsements: &[&[u8; ENDORSEMENT_LEN]]) -> Vec<[u8; 32]> {
    let mut vouched = vec![key];
    let mut at = 0;
    while let Some(signer) = vouched.get(at).copied() {
        for endorsement in endorsements.iter().filter(|e| e[..32] == signer) {
            let subject = endorsement[32..].first_chunk().copied();
            vouched.extend(subject.filter(|subject| !vouched.contains(subject)));
        }
        at += 1;
    }
    vouched
}

/// Whether the eras of a channel, which are in order, have all updates that are kept.
fn is_signed(channel: &Channel, eras: &[SigningEra]) -> bool {
    let next = eras.iter().fold(channel.first, |next, era| {
        if era.first > next {
            return next;
        }
        next.max(era.last.map_or(u64::MAX, |last| last.saturating_add(1)))
    });
    next > channel.head
}

/// Marks a key as the one that signs updates from now on; the first of all is added.
///
/// # Errors
/// The key may not sign, or the database fails.
pub(super) async fn begin_key(session: &mut Session, key: &[u8; 32]) -> Result<(), StoreError> {
    let rows = keys(session).await?;
    let own = rows.iter().find(|row| row.key == *key);
    if own.is_some_and(|row| row.begun_ms.is_some()) && KeyStanding::of(key, &rows).may_sign() {
        return Ok(());
    }
    // Two sources may begin at once: the second waits here, and judges by what the first wrote.
    let lock = sql!("SELECT version FROM settings WHERE id = 1" LOCK);
    session.row(lock, values![]).await?;
    let rows = keys(session).await?;
    match KeyStanding::of(key, &rows) {
        KeyStanding::First => insert(session, key, &[]).await?,
        KeyStanding::Usable => {}
        standing @ (KeyStanding::Superseded { .. } | KeyStanding::Unknown { .. }) => {
            return Err(StoreError::SigningKey {
                url: session.url.to_string(),
                standing,
            });
        }
    }
    let sql = sql!("UPDATE signing_keys SET begun_at = " NOW " WHERE public_key = $1");
    session.execute(sql, values![key]).await.map(|_| ())
}

/// Adds a key that has not begun.
async fn insert(
    session: &mut Session,
    key: &[u8; 32],
    endorsements: &[u8],
) -> Result<(), StoreError> {
    let sql = sql!(
        "INSERT INTO signing_keys (public_key, endorsements, created_at) VALUES ($1, $2, " NOW ")"
    );
    session
        .execute(sql, values![key, endorsements])
        .await
        .map(|_| ())
}

async fn keys(session: &mut Session) -> Result<Vec<SigningKeyRow>, StoreError> {
    let sql =
        sql!("SELECT public_key, endorsements, created_at, begun_at FROM signing_keys ORDER BY id");
    session.list(sql, values![], read_key).await
}

fn read_key(session: &Session, row: &Row) -> Result<SigningKeyRow, StoreError> {
    let key: Vec<u8> = session.get(row, 0)?;
    let endorsements: Vec<u8> = session.get(row, 1)?;
    let (endorsements, rest) = endorsements.as_chunks();
    if !rest.is_empty() {
        return Err(session.damaged("signing key: an endorsement is cut off".to_owned()));
    }
    Ok(SigningKeyRow {
        key: key.try_into().map_err(|key: Vec<u8>| {
            session.damaged(format!("signing key of {} bytes", key.len()))
        })?,
        endorsements: endorsements.to_vec(),
        created_ms: session.get(row, 2)?,
        begun_ms: session.get(row, 3)?,
    })
}
