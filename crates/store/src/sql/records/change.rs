//! The numbers of changes.

use crate::StoreError;
use crate::database::{Row, Session, sql, values};
use crate::model::Fence;
use crate::sql::check_fence;
use crate::watch::Topic;

/// Takes the number of this transaction's change. Everybody else who wants one waits until the
/// transaction is over: so they become visible in their order. It comes before anything else that
/// is written, so that no two wait for each other.
pub(in crate::sql) async fn next_change(session: &mut Session) -> Result<i64, StoreError> {
    session
        .scalar(
            sql!("UPDATE change_number SET number = number + 1 WHERE id = 1 RETURNING number"),
            values![],
        )
        .await
}

/// Gives this number to the receivers that changed without taking one, for then they would have had
/// to wait for each other when thousands are admitted. One that is being written right now comes
/// next time.
pub(in crate::sql) async fn number_receivers(
    session: &mut Session,
    change: i64,
) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "DELETE FROM forgotten_receivers WHERE receiver IN (
                     SELECT id FROM receivers WHERE change IS NULL)"
            ),
            values![],
        )
        .await?;
    session
        .execute(
            sql!(
                "UPDATE receivers SET change = $1 WHERE id IN (
                     SELECT id FROM receivers WHERE change IS NULL
                     ORDER BY id LIMIT 10000" LOCK SKIP ")"
            ),
            values![change],
        )
        .await
        .map(|_| ())
}

/// Fails if one of these leases is lost. After [`next_change`]: the current holder then
/// writes after this transaction, or has written already and is seen here.
pub(super) async fn check_fences(
    session: &mut Session,
    fences: &[Fence],
) -> Result<(), StoreError> {
    if fences.is_empty() {
        return Ok(());
    }
    let current = current_fences(session, fences).await?;
    for Fence { channel, fence } in fences {
        let current = current
            .iter()
            .find(|(name, _)| name == channel)
            .ok_or_else(|| session.unknown_channel(channel))?;
        check_fence(session, channel, Some(*fence), current.1)?;
    }
    Ok(())
}

/// The present fences of these channels.
pub(in crate::sql) async fn current_fences(
    session: &mut Session,
    fences: &[Fence],
) -> Result<Vec<(String, u64)>, StoreError> {
    let names: Vec<&str> = fences.iter().map(|fence| fence.channel.as_str()).collect();
    let sql = sql!("SELECT name, fence FROM channels WHERE name" AMONG_1);
    let read = |session: &Session, row: &Row| Ok((session.get(row, 0)?, session.count(row, 1)?));
    session.list(sql, values![names.as_slice()], read).await
}

/// Notifies listeners, once the transaction is over.
pub(in crate::sql) async fn notify(session: &mut Session, topic: Topic) -> Result<(), StoreError> {
    if session.is_postgres() {
        session
            .execute(sql!("SELECT pg_notify($1, '')"), values![topic.channel()])
            .await?;
    }
    Ok(())
}

/// Notes a forgotten receiver, for consoles that have it in memory.
pub(in crate::sql) async fn note_forgotten(
    session: &mut Session,
    receiver: &str,
    change: i64,
) -> Result<(), StoreError> {
    session
        .execute(
            sql!(
                "INSERT INTO forgotten_receivers (receiver, at, change) VALUES ($1, " NOW ", $2)
                 ON CONFLICT (receiver) DO UPDATE SET at = excluded.at, change = excluded.change"
            ),
            values![receiver, change],
        )
        .await
        .map(|_| ())
}
