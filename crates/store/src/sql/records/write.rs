//! Writing batches.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::change::{check_fences, next_change, notify, number_receivers};
use super::rows::{insert_rows, kept, kept_list, kept_object, replace_rows, write_rows};
use crate::database::{Session, Sql, sql, values};
use crate::model::{
    Batch, FeedEvent, FeedHour, MoveRow, ProgressRow, PulseRow, RelayRow, SampleRow, SessionRow,
    SourceInfo, Stamp, StateRow,
};
use crate::sql::{names_to_json, to_i64};
use crate::watch::Topic;
use crate::{Records, Store, StoreError};

/// Longest texts kept, in bytes.
pub(super) const MAX_NAME: usize = 255;
const MAX_WORD: usize = 32;
const MAX_STATE: usize = 64;
const MAX_URL: usize = 2048;
const MAX_DETAIL: usize = 1024;
const MAX_EXCERPT: usize = 4096;
const MAX_OBJECT: usize = 8192;

/// Longest list kept of what a source says about itself.
const MAX_LIST: usize = 64;

/// A statement, and the rows for it.
type Rows = (Sql, Vec<Json>);

impl Records<'_> {
    /// Stores a batch in one durable transaction, and returns the number of that change. Numbers
    /// grow in the order in which the changes become visible.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if one of its fences is an old one; a channel of them does not exist;
    /// the database fails. Nothing was stored then, unless the reply itself was lost: with a
    /// [`Batch::stamp`] the batch can be written again; without one, moves, feed hours and feed
    /// events would be stored twice.
    pub async fn write(self, batch: &Batch) -> Result<u64, StoreError> {
        let mut session = self.store.database.write("write records").await?;
        let change = next_change(&mut session).await?;
        if let Some(stamp) = &batch.stamp
            && let Some(before) = stamped(&mut session, stamp, change).await?
        {
            session.rollback().await?;
            return Ok(before);
        }
        if let Err(error) = check_fences(&mut session, &batch.fences).await {
            session.rollback().await?;
            return Err(error);
        }
        number_receivers(&mut session, change).await?;
        let all = [
            states(&batch.states, change),
            moves(&batch.moves, change),
            sessions(&batch.sessions),
            pulses(&batch.pulses, change),
            progress(&batch.progress, change),
            relays(&batch.relays, change),
            samples(&batch.samples),
            feed_hours(&batch.feed_hours),
            feed_events(&batch.feed_events, change),
            info(batch.info.as_ref(), change),
        ];
        for (sql, rows) in all {
            write_rows(&mut session, sql, &rows).await?;
        }
        self.store.end_change(session, change).await
    }
}

impl Store {
    /// Makes a change visible, and notifies of it.
    pub(in crate::sql) async fn end_change(
        &self,
        mut session: Session,
        change: i64,
    ) -> Result<u64, StoreError> {
        notify(&mut session, Topic::Changes).await?;
        let change = session.unsigned(change)?;
        session.commit().await?;
        self.news.notifier.ring(Topic::Changes);
        Ok(change)
    }
}

/// Notes that a batch is being written. If it was written before, gives the number of the last
/// change of its writer instead.
async fn stamped(
    session: &mut Session,
    stamp: &Stamp,
    change: i64,
) -> Result<Option<u64>, StoreError> {
    let (run, number) = (stamp.run.to_string(), to_i64(stamp.number));
    let last = session
        .row(
            sql!("SELECT change FROM recorders WHERE run = $1 AND number >= $2"),
            values![&run, number],
        )
        .await?;
    if let Some(last) = last {
        return session.count(&last, 0).map(Some);
    }
    session
        .execute(
            sql!(
                "INSERT INTO recorders (run, number, at, change) VALUES ($1, $2, " NOW ", $3)
                 ON CONFLICT (run) DO UPDATE SET number = excluded.number, at = excluded.at,
                     change = excluded.change"
            ),
            values![&run, number, change],
        )
        .await
        .map(|_| None)
}

/// The last row of each key, in the order of the keys: no statement may write one row twice, and
/// all writers take several rows in the same order.
fn last_of_each<T, K: Ord>(rows: &[T], key: impl Fn(&T) -> K) -> impl Iterator<Item = &T> {
    rows.iter()
        .map(|row| (key(row), row))
        .collect::<BTreeMap<K, &T>>()
        .into_values()
}

fn number(count: Option<u64>) -> Json {
    count.map(to_i64).into()
}

fn states(states: &[StateRow], change: i64) -> Rows {
    let sql = replace_rows!("receiver_states" (receiver TEXT, channel TEXT) (
        connected BOOLEAN, rung TEXT, since BIGINT, cause TEXT, cursor BIGINT, backlog BIGINT,
        key_sequence BIGINT, rtt_us BIGINT, address TEXT, session BIGINT, updated_at BIGINT,
        legs TEXT, change BIGINT
    ));
    let rows = last_of_each(states, |row| (row.receiver, kept(&row.channel, MAX_NAME)));
    let rows = rows.map(|row| {
        json!({
            "receiver": row.receiver.to_string(),
            "channel": kept(&row.channel, MAX_NAME),
            "connected": row.connected,
            "rung": kept(&row.rung, MAX_WORD),
            "since": row.since_ms,
            "cause": kept(&row.cause, MAX_NAME),
            "cursor": number(row.cursor),
            "backlog": to_i64(row.backlog),
            "key_sequence": number(row.key_sequence),
            "rtt_us": number(row.rtt_us),
            "address": kept(&row.address, MAX_NAME),
            "session": row.session,
            "updated_at": row.updated_ms,
            "legs": kept(&row.legs, MAX_NAME),
            "change": change,
        })
    });
    (sql, rows.collect())
}

fn moves(moves: &[MoveRow], change: i64) -> Rows {
    let sql = insert_rows!("moves" (
        at BIGINT, receiver TEXT, name TEXT, channel TEXT, from_rung TEXT, to_rung TEXT, cause TEXT,
        change BIGINT
    ) "");
    let rows = moves.iter().map(|row| {
        json!({
            "at": row.at_ms,
            "receiver": row.receiver.to_string(),
            "name": kept(&row.name, MAX_NAME),
            "channel": kept(&row.channel, MAX_NAME),
            "from_rung": kept(&row.from, MAX_WORD),
            "to_rung": kept(&row.to, MAX_WORD),
            "cause": kept(&row.cause, MAX_NAME),
            "change": change,
        })
    });
    (sql, rows.collect())
}

fn sessions(sessions: &[SessionRow]) -> Rows {
    let sql = replace_rows!("sessions" (id BIGINT) (
        receiver TEXT, name TEXT, software TEXT, address TEXT, began_at BIGINT, ended_at BIGINT,
        end_cause TEXT
    ));
    let rows = last_of_each(sessions, |row| row.id).map(|row| {
        json!({
            "id": row.id,
            "receiver": row.receiver.to_string(),
            "name": kept(&row.name, MAX_NAME),
            "software": kept(&row.software, MAX_NAME),
            "address": kept(&row.address, MAX_NAME),
            "began_at": row.began_ms,
            "ended_at": row.ended_ms,
            "end_cause": row.end_cause.as_ref().map(|cause| kept(cause, MAX_NAME)),
        })
    });
    (sql, rows.collect())
}

fn pulses(pulses: &[PulseRow], change: i64) -> Rows {
    let sql = replace_rows!("pulses" (channel TEXT) (
        at BIGINT, head BIGINT, receivers BIGINT, connected BIGINT, multicast BIGINT, amt BIGINT,
        replicated BIGINT, unicast BIGINT, delivered BIGINT, behind BIGINT, lag_updates BIGINT,
        lag_ms BIGINT, updates_per_hour BIGINT, flow_bytes BIGINT, copy_bytes BIGINT,
        unicast_bytes BIGINT, repair_bytes BIGINT, equivalent_bytes BIGINT, flow TEXT, change BIGINT
    ));
    let rows = last_of_each(pulses, |row| kept(&row.channel, MAX_NAME)).map(|row| {
        json!({
            "channel": kept(&row.channel, MAX_NAME),
            "at": row.at_ms,
            "head": to_i64(row.head),
            "receivers": to_i64(row.counts.receivers),
            "connected": to_i64(row.counts.connected),
            "multicast": to_i64(row.counts.multicast),
            "amt": to_i64(row.counts.amt),
            "replicated": to_i64(row.counts.replicated),
            "unicast": to_i64(row.counts.unicast),
            "delivered": to_i64(row.delivered),
            "behind": to_i64(row.counts.behind),
            "lag_updates": to_i64(row.lag_updates),
            "lag_ms": to_i64(row.lag_ms),
            "updates_per_hour": to_i64(row.updates_per_hour),
            "flow_bytes": to_i64(row.bytes.flow),
            "copy_bytes": to_i64(row.bytes.copies),
            "unicast_bytes": to_i64(row.bytes.unicast),
            "repair_bytes": to_i64(row.bytes.repairs),
            "equivalent_bytes": to_i64(row.bytes.equivalent),
            "flow": kept_object(&row.flow, MAX_OBJECT),
            "change": change,
        })
    });
    (sql, rows.collect())
}

fn progress(progress: &[ProgressRow], change: i64) -> Rows {
    let sql = replace_rows!("update_progress" (channel TEXT, seq BIGINT) (
        published_at BIGINT, expected BIGINT, delivered BIGINT, half_ms BIGINT, p99_ms BIGINT,
        all_ms BIGINT, change BIGINT
    ));
    let rows = last_of_each(progress, |row| (kept(&row.channel, MAX_NAME), row.seq));
    let rows = rows.map(|row| {
        json!({
            "channel": kept(&row.channel, MAX_NAME),
            "seq": to_i64(row.seq),
            "published_at": row.published_ms,
            "expected": to_i64(row.expected),
            "delivered": to_i64(row.delivered),
            "half_ms": number(row.half_ms),
            "p99_ms": number(row.p99_ms),
            "all_ms": number(row.all_ms),
            "change": change,
        })
    });
    (sql, rows.collect())
}

fn relays(relays: &[RelayRow], change: i64) -> Rows {
    let sql = replace_rows!("relay_states" (address TEXT) (
        asked TEXT, healthy BOOLEAN, since BIGINT, answer_us BIGINT, detail TEXT, gone BOOLEAN,
        at BIGINT, change BIGINT
    ));
    let rows = last_of_each(relays, |row| kept(&row.address, MAX_NAME)).map(|row| {
        json!({
            "address": kept(&row.address, MAX_NAME),
            "asked": kept(&row.asked, MAX_NAME),
            "healthy": row.healthy,
            "since": row.since_ms,
            "answer_us": number(row.answer_us),
            "detail": kept(&row.detail, MAX_DETAIL),
            "gone": row.gone,
            "at": row.at_ms,
            "change": change,
        })
    });
    (sql, rows.collect())
}

fn samples(samples: &[SampleRow]) -> Rows {
    let sql = replace_rows!("samples" (channel TEXT, step_ms BIGINT, at BIGINT) (
        weight BIGINT, receivers BIGINT, connected BIGINT, multicast BIGINT, amt BIGINT,
        replicated BIGINT, unicast BIGINT, behind BIGINT, lag_updates BIGINT, lag_ms BIGINT,
        updates BIGINT, moves BIGINT, flow_bytes BIGINT, copy_bytes BIGINT, unicast_bytes BIGINT,
        repair_bytes BIGINT, equivalent_bytes BIGINT
    ));
    let rows = last_of_each(samples, |row| {
        (kept(&row.channel, MAX_NAME), row.step_ms, row.at_ms)
    });
    let rows = rows.map(|row| {
        json!({
            "channel": kept(&row.channel, MAX_NAME),
            "step_ms": row.step_ms,
            "at": row.at_ms,
            "weight": to_i64(row.weight),
            "receivers": to_i64(row.counts.receivers),
            "connected": to_i64(row.counts.connected),
            "multicast": to_i64(row.counts.multicast),
            "amt": to_i64(row.counts.amt),
            "replicated": to_i64(row.counts.replicated),
            "unicast": to_i64(row.counts.unicast),
            "behind": to_i64(row.counts.behind),
            "lag_updates": to_i64(row.lag_updates),
            "lag_ms": to_i64(row.lag_ms),
            "updates": to_i64(row.updates),
            "moves": to_i64(row.moves),
            "flow_bytes": to_i64(row.bytes.flow),
            "copy_bytes": to_i64(row.bytes.copies),
            "unicast_bytes": to_i64(row.bytes.unicast),
            "repair_bytes": to_i64(row.bytes.repairs),
            "equivalent_bytes": to_i64(row.bytes.equivalent),
        })
    });
    (sql, rows.collect())
}

fn feed_hours(hours: &[FeedHour]) -> Rows {
    let sql = insert_rows!("feed_hours" (
        channel TEXT, url TEXT, hour BIGINT, polls BIGINT, ok BIGINT, not_modified BIGINT,
        failed BIGINT, challenged BIGINT, entries BIGINT
    ) "ON CONFLICT (channel, url, hour) DO UPDATE SET polls = feed_hours.polls + excluded.polls,
         ok = feed_hours.ok + excluded.ok,
         not_modified = feed_hours.not_modified + excluded.not_modified,
         failed = feed_hours.failed + excluded.failed,
         challenged = feed_hours.challenged + excluded.challenged,
         entries = feed_hours.entries + excluded.entries");
    // Hours of one feed that came apart are added here already.
    let mut sums: BTreeMap<(String, String, i64), [u64; 6]> = BTreeMap::new();
    for row in hours {
        let key = (
            kept(&row.channel, MAX_NAME),
            kept(&row.url, MAX_URL),
            row.hour_ms,
        );
        let counts = [
            row.polls,
            row.ok,
            row.not_modified,
            row.failed,
            row.challenged,
            row.entries,
        ];
        for (sum, count) in sums.entry(key).or_default().iter_mut().zip(counts) {
            *sum = sum.saturating_add(count);
        }
    }
    let rows = sums.into_iter().map(|((channel, url, hour), counts)| {
        let [polls, ok, not_modified, failed, challenged, entries] = counts.map(to_i64);
        json!({
            "channel": channel, "url": url, "hour": hour, "polls": polls, "ok": ok,
            "not_modified": not_modified, "failed": failed, "challenged": challenged,
            "entries": entries,
        })
    });
    (sql, rows.collect())
}

fn feed_events(events: &[FeedEvent], change: i64) -> Rows {
    let sql = insert_rows!("feed_events" (
        channel TEXT, url TEXT, at BIGINT, state TEXT, detail TEXT, excerpt TEXT, change BIGINT
    ) "");
    let rows = events.iter().map(|row| {
        json!({
            "channel": kept(&row.channel, MAX_NAME),
            "url": kept(&row.url, MAX_URL),
            "at": row.at_ms,
            "state": kept(&row.state, MAX_STATE),
            "detail": kept(&row.detail, MAX_DETAIL),
            "excerpt": row.excerpt.as_ref().map(|excerpt| kept(excerpt, MAX_EXCERPT)),
            "change": change,
        })
    });
    (sql, rows.collect())
}

fn info(info: Option<&SourceInfo>, change: i64) -> Rows {
    let sql = replace_rows!("source_info" (id BIGINT) (
        holder TEXT, software TEXT, started_at BIGINT, public_address TEXT, pins TEXT, listen TEXT,
        http TEXT, warnings TEXT, overloads TEXT, draining BOOLEAN, at BIGINT, change BIGINT
    ));
    let list = |texts: &[String], bytes| names_to_json(&kept_list(texts, MAX_LIST, bytes));
    let row = info.map(|info| {
        let skipped = info.overloads.len().saturating_sub(MAX_LIST);
        json!({
            "id": 1,
            "holder": kept(&info.holder, MAX_NAME),
            "software": kept(&info.software, MAX_NAME),
            "started_at": info.started_ms,
            "public_address": list(&info.public_address, MAX_NAME),
            "pins": list(&info.pins, MAX_NAME),
            "listen": kept(&info.listen, MAX_NAME),
            "http": kept(&info.http, MAX_NAME),
            "warnings": list(&info.warnings, MAX_DETAIL),
            "overloads": json!(info.overloads.get(skipped..)).to_string(),
            "draining": info.draining,
            "at": info.at_ms,
            "change": change,
        })
    });
    (sql, row.into_iter().collect())
}
