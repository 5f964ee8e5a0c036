//! Changes since a number, and snapshots.

use std::collections::BTreeMap;

use super::read::{
    read_feed_event, read_forgery, read_info, read_move, read_progress, read_pulse, read_relay,
    read_state, receiver_id, select_feed_events, select_info, select_moves, select_progress,
    select_pulses, select_relays, select_states,
};
use crate::database::{Row, Session, Sql, sql, values};
use crate::model::{Changes, SourceInfo, StateRow};
use crate::sql::receivers::{read_receiver, select_receivers};
use crate::sql::to_i64;
use crate::{Records, StoreError};

/// The most rows of one kind that are asked for at once.
const MAX_ROWS: usize = 100_000;

/// Rows of one read of everything.
const PART: i64 = 10_000;

/// Number of moves and of updates' progress in a snapshot.
const LAST_MOVES: i64 = 200;
const LAST_PROGRESS: i64 = 1000;

/// Reports of forged packets in a snapshot are this much older than the last move at most.
const DAY_MS: i64 = 24 * 3_600_000;

/// Feeds whose last event is in everything.
const FEEDS: i64 = 10_000;

/// Reads a row, and its change.
type ReadRow<T> = fn(&Session, &Row) -> Result<(u64, T), StoreError>;

/// A read of the rows of one kind: those with a change above `$1`, at most `$2`, in that order; and
/// those of the change `$1`.
struct Kind<T> {
    since: Sql,
    of: Sql,
    read: ReadRow<T>,
}

macro_rules! kind {
    ($select:ident, $order:literal, $read:expr) => {
        Kind {
            since: $select!("WHERE change > $1 ORDER BY change" $order " LIMIT $2"),
            of: $select!("WHERE change = $1 ORDER BY change" $order),
            read: $read,
        }
    };
}

macro_rules! forgotten {
    ($($then:tt)+) => {
        sql!("SELECT receiver, change FROM forgotten_receivers " $($then)+)
    };
}

/// A read that goes on.
struct ChangesSince {
    session: Session,
    change: u64,
    limit: usize,
    /// Last change that is complete so far.
    upto: u64,
    more: bool,
}

impl ChangesSince {
    /// The rows of one kind, with their changes. A change that does not fit as a whole comes next
    /// time, unless it is the first one.
    async fn rows<T>(&mut self, kind: Kind<T>) -> Result<Vec<(u64, T)>, StoreError> {
        let limit = to_i64(self.limit as u64);
        let found = self
            .session
            .rows(
                kind.since,
                values![to_i64(self.change), limit.saturating_add(1)],
            )
            .await?;
        let mut rows = self.read(&kind, &found)?;
        if rows.len() <= self.limit {
            return Ok(rows);
        }
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(rows);
        };
        let (first, last) = (first.0, last.0);
        let end = if first == last {
            let whole = self.session.rows(kind.of, values![to_i64(first)]).await?;
            rows = self.read(&kind, &whole)?;
            first
        } else {
            rows.retain(|row| row.0 < last);
            last - 1
        };
        if end < self.upto {
            self.upto = end;
            self.more = true;
        }
        Ok(rows)
    }

    fn read<T>(&self, kind: &Kind<T>, rows: &[Row]) -> Result<Vec<(u64, T)>, StoreError> {
        rows.iter()
            .map(|row| (kind.read)(&self.session, row))
            .collect()
    }

    /// Keeps the rows that belong into this answer.
    fn within<T>(&self, rows: Vec<(u64, T)>) -> Vec<T> {
        rows.into_iter()
            .filter(|(change, _)| *change <= self.upto)
            .map(|(_, row)| row)
            .collect()
    }
}

impl Records<'_> {
    /// Returns the changes since the number `change`: about `limit` rows of each kind at most, but
    /// at least one whole change. Every change is in exactly one answer, if each is requested with
    /// the [`Changes::upto`] of the previous one. Apply [`Changes::forgotten`] before the rest.
    ///
    /// A reader that has not asked for a week, or finds another [`Changes::epoch`], takes a new
    /// [`snapshot`](Self::snapshot).
    ///
    /// # Errors
    /// The database fails.
    pub async fn changes_since(self, change: u64, limit: usize) -> Result<Changes, StoreError> {
        let mut session = self.store.database.snapshot("read what changed").await?;
        let (number, epoch) = position(&mut session).await?;
        let mut changes = Changes {
            epoch,
            upto: number,
            ..Changes::default()
        };
        if number <= change {
            session.rollback().await?;
            return Ok(changes);
        }
        let mut since = ChangesSince {
            session,
            change,
            limit: limit.clamp(1, MAX_ROWS),
            upto: number,
            more: false,
        };
        let states = since
            .rows(kind!(select_states, "", |session, row| {
                read_state(session, row).map(|row| (row.change, row))
            }))
            .await?;
        let moves = since
            .rows(kind!(select_moves, ", id", |session, row| {
                read_move(session, row).map(|row| (row.change, row))
            }))
            .await?;
        let pulses = since
            .rows(kind!(select_pulses, "", |session, row| {
                read_pulse(session, row).map(|row| (row.change, row))
            }))
            .await?;
        let progress = since
            .rows(kind!(select_progress, "", |session, row| {
                read_progress(session, row).map(|row| (row.change, row))
            }))
            .await?;
        let relays = since
            .rows(kind!(select_relays, "", |session, row| {
                read_relay(session, row).map(|row| (row.change, row))
            }))
            .await?;
        let feed_events = since
            .rows(kind!(select_feed_events, ", id", |session, row| {
                read_feed_event(session, row).map(|row| (row.change, row))
            }))
            .await?;
        let receivers = since
            .rows(kind!(select_receivers, "", |session, row| {
                let receiver = read_receiver(session, row)?;
                Ok((session.count(row, 12)?, receiver))
            }))
            .await?;
        let gone = since
            .rows(kind!(forgotten, "", |session, row| {
                Ok((session.count(row, 1)?, receiver_id(session, row, 0)?))
            }))
            .await?;
        let info = info(&mut since.session).await?;
        changes.upto = since.upto;
        changes.more = since.more;
        changes.states = since.within(states);
        changes.moves = since.within(moves);
        changes.pulses = since.within(pulses);
        changes.progress = since.within(progress);
        changes.relays = since.within(relays);
        changes.feed_events = since.within(feed_events);
        changes.receivers = since.within(receivers);
        changes.forgotten = since.within(gone);
        // The present row, which may be ahead of the other changes.
        changes.info = info.filter(|info| info.change > change);
        since.session.rollback().await?;
        Ok(changes)
    }

    /// Returns all current records, with the last 200 moves and feed events, the reports of forged
    /// packets within the day before the last move, the last event of each
    /// polled feed (of the 10,000 with the newest ones), and the progress of the last 1,000
    /// updates.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot(self) -> Result<Changes, StoreError> {
        let mut session = self.store.database.snapshot("read all records").await?;
        session.extend_timeout().await?;
        let (upto, epoch) = position(&mut session).await?;
        let mut changes = Changes {
            epoch,
            upto,
            info: info(&mut session).await?,
            states: states(&mut session).await?,
            ..Changes::default()
        };
        changes.pulses = session
            .list(select_pulses!(""), values![], read_pulse)
            .await?;
        changes.relays = session
            .list(select_relays!(""), values![], read_relay)
            .await?;
        let sql = select_moves!("ORDER BY id DESC LIMIT $1");
        changes.moves = session.list(sql, values![LAST_MOVES], read_move).await?;
        changes.moves.reverse();
        let sql = sql!(
            "SELECT receiver, channel, MIN(at), MAX(at), COUNT(*) FROM moves
             WHERE cause = 'forged' AND at > (SELECT MAX(at) FROM moves) - $1
             GROUP BY receiver, channel"
        );
        changes.forgeries = session.list(sql, values![DAY_MS], read_forgery).await?;
        let newest = select_feed_events!("ORDER BY id DESC LIMIT $1");
        // A feed's last event may be much older than those of other feeds.
        let of_each_feed = select_feed_events!(
            "WHERE id IN (SELECT (SELECT MAX(e.id) FROM feed_events e
                     WHERE e.channel = c.name AND e.url = f.url)
                 FROM feeds f JOIN channels c ON c.id = f.channel_id WHERE f.active AND c.active)
             ORDER BY id DESC LIMIT $1"
        );
        let mut events = BTreeMap::new();
        for (sql, most) in [(newest, LAST_MOVES), (of_each_feed, FEEDS)] {
            let found = session.list(sql, values![most], read_feed_event).await?;
            events.extend(found.into_iter().map(|event| (event.id, event)));
        }
        changes.feed_events = events.into_values().collect();
        let sql = select_progress!("ORDER BY change DESC LIMIT $1");
        changes.progress = session
            .list(sql, values![LAST_PROGRESS], read_progress)
            .await?;
        changes.progress.reverse();
        let mut after = String::new();
        loop {
            let rows = session
                .rows(
                    select_receivers!("WHERE id > $1 ORDER BY id LIMIT $2"),
                    values![&after, PART],
                )
                .await?;
            let Some(last) = rows.last() else { break };
            after = session.get(last, 0)?;
            for row in &rows {
                changes.receivers.push(read_receiver(&session, row)?);
            }
        }
        session.rollback().await?;
        Ok(changes)
    }
}

async fn position(session: &mut Session) -> Result<(u64, i64), StoreError> {
    let row = session
        .row(
            sql!("SELECT number, epoch FROM change_number WHERE id = 1"),
            values![],
        )
        .await?
        .ok_or_else(|| session.failed(sqlx::Error::RowNotFound))?;
    Ok((session.count(&row, 0)?, session.get(&row, 1)?))
}

async fn info(session: &mut Session) -> Result<Option<SourceInfo>, StoreError> {
    let sql = select_info!("WHERE id = 1");
    session.find(sql, values![], read_info).await
}

async fn states(session: &mut Session) -> Result<Vec<StateRow>, StoreError> {
    let mut states: Vec<StateRow> = Vec::new();
    let (mut receiver, mut channel) = (String::new(), String::new());
    loop {
        let rows = session
            .rows(
                select_states!(
                    "WHERE (receiver, channel) > ($1, $2) ORDER BY receiver, channel LIMIT $3"
                ),
                values![&receiver, &channel, PART],
            )
            .await?;
        let Some(last) = rows.last() else {
            return Ok(states);
        };
        receiver = session.get(last, 0)?;
        channel = session.get(last, 1)?;
        for row in &rows {
            states.push(read_state(session, row)?);
        }
    }
}
