//! Signing eras: the lineage of a channel's updates.

use super::channels::parse_incarnation;
use super::signing_keys::begin_key;
use super::{channel_id, check_fence};
use crate::database::{Row, Session, sql, values};
use crate::model::SigningEra;
use crate::{SigningEras, StoreError};

/// Most eras of a channel: so many rotations and renewals can be traced back.
const MAX_ERAS: i64 = 256;

impl SigningEras<'_> {
    /// Returns the eras of a channel, ascending.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn list(self, channel: &str) -> Result<Vec<SigningEra>, StoreError> {
        let mut session = self.store.database.read("list signing eras").await?;
        let id = channel_id(&mut session, channel).await?;
        eras_of(&mut session, channel, id).await
    }

    /// Ensures that the open era has this key and the channel's current incarnation. If it has,
    /// nothing changes; otherwise it is closed at the channel's head, or deleted if it has no
    /// update, and a new one begins at head + 1. Returns all eras, ascending.
    ///
    /// The last 256 of each channel are kept: what older ones covered counts as unsigned.
    ///
    /// The key is the one that signs updates from now on, for all channels.
    ///
    /// With a `fence`, the call is refused unless that is the channel's current one.
    ///
    /// # Errors
    /// The channel does not exist, the fence is an old one, the key may not sign
    /// ([`StoreError::SigningKey`]), or the database fails.
    pub async fn begin(
        self,
        channel: &str,
        fence: Option<u64>,
        key: &[u8; 32],
    ) -> Result<Vec<SigningEra>, StoreError> {
        let mut session = self.store.database.write("begin a signing era").await?;
        let row = session
            .row(
                sql!("SELECT id, head, fence, incarnation FROM channels WHERE name = $1" LOCK),
                values![channel],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        check_fence(&session, channel, fence, session.count(&row, 2)?)?;
        begin_key(&mut session, key).await?;
        let id: i64 = session.get(&row, 0)?;
        let head: i64 = session.get(&row, 1)?;
        let incarnation: String = session.get(&row, 3)?;
        let incarnation = parse_incarnation(&session, channel, &incarnation)?;
        let eras = eras_of(&mut session, channel, id).await?;
        let is_current = |era: &SigningEra| {
            era.last.is_none() && era.key == *key && era.incarnation == incarnation
        };
        if eras.iter().any(is_current) {
            session.commit().await?;
            return Ok(eras);
        }
        close_era(&mut session, id).await?;
        let first = head
            .checked_add(1)
            .ok_or_else(|| session.damaged(format!("the head of channel {channel:?} is {head}")))?;
        session
            .execute(
                sql!(
                    "INSERT INTO signing_eras (channel_id, first_seq, incarnation, public_key)
                     VALUES ($1, $2, $3, $4)"
                ),
                values![id, first, &incarnation.to_string(), key],
            )
            .await?;
        trim_eras(&mut session, id).await?;
        let eras = eras_of(&mut session, channel, id).await?;
        session.commit().await?;
        Ok(eras)
    }
}

/// Closes a channel's open era at its head, or deletes it if it has no update. No era covers seqs
/// beyond the head afterwards. Needed wherever a channel gets a new incarnation, since nothing is
/// signed under the old one any more. The channel's row has to be locked.
pub(crate) async fn close_era(session: &mut Session, channel_id: i64) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "DELETE FROM signing_eras WHERE channel_id = $1
                     AND first_seq > (SELECT head FROM channels WHERE id = $1)"
            ),
            values![channel_id],
        )
        .await?;
    session
        .execute(
            sql!(
                "UPDATE signing_eras SET last_seq = (SELECT head FROM channels WHERE id = $1)
                 WHERE channel_id = $1 AND (last_seq IS NULL
                     OR last_seq > (SELECT head FROM channels WHERE id = $1))"
            ),
            values![channel_id],
        )
        .await
        .map(|_| ())
}

/// Deletes all but the last eras of a channel.
pub(crate) async fn trim_eras(session: &mut Session, channel_id: i64) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "DELETE FROM signing_eras WHERE channel_id = $1 AND first_seq <= (
                     SELECT first_seq FROM signing_eras WHERE channel_id = $1
                     ORDER BY first_seq DESC LIMIT 1 OFFSET $2)"
            ),
            values![channel_id, MAX_ERAS],
        )
        .await
        .map(|_| ())
}

/// Deletes the eras of a channel that end before the seq `first`.
pub(super) async fn delete_eras_before(
    session: &mut Session,
    channel_id: i64,
    first: i64,
) -> Result<(), StoreError> {
    session
        .execute(
            sql!("DELETE FROM signing_eras WHERE channel_id = $1 AND last_seq < $2"),
            values![channel_id, first],
        )
        .await
        .map(|_| ())
}

async fn eras_of(
    session: &mut Session,
    channel: &str,
    channel_id: i64,
) -> Result<Vec<SigningEra>, StoreError> {
    let sql = sql!(
        "SELECT first_seq, last_seq, incarnation, public_key FROM signing_eras
         WHERE channel_id = $1 ORDER BY first_seq"
    );
    let read = |session: &Session, row: &Row| read_era(session, channel, row);
    session.list(sql, values![channel_id], read).await
}

fn read_era(session: &Session, channel: &str, row: &Row) -> Result<SigningEra, StoreError> {
    let first = session.count(row, 0)?;
    let damaged = |detail: String| {
        session.damaged(format!(
            "signing era of channel {channel:?} from update {first} on: {detail}"
        ))
    };
    let incarnation: String = session.get(row, 2)?;
    let key: Vec<u8> = session.get(row, 3)?;
    Ok(SigningEra {
        first,
        last: session.maybe_count(row, 1)?,
        incarnation: incarnation
            .parse()
            .map_err(|error| damaged(format!("incarnation {incarnation:?}: {error}")))?,
        key: key
            .try_into()
            .map_err(|key: Vec<u8>| damaged(format!("key of {} bytes", key.len())))?,
    })
}
