//! Rows that wait to be written: bounded, so that an unavailable store costs memory up to a limit
//! and delays nothing. Rows without room are dropped and counted, except for state rows: those are
//! replaced in place.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::{
    Batch, FeedEvent, FeedHour, Fence, MoveRow, ProgressRow, PulseRow, RelayRow, SampleRow,
    SessionRow, SourceInfo, StateRow,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::metrics::{KINDS, RecordMetrics};

/// Largest number of pending rows of each kind. A move is about 200 bytes.
const STATES: usize = 400_000;
const MOVES: usize = 100_000;
const SESSIONS: usize = 100_000;
const PROGRESS: usize = 20_000;
const SAMPLES: usize = 20_000;
const FEED_HOURS: usize = 20_000;
const FEED_EVENTS: usize = 2_000;

/// Rows of each kind in one batch.
const AT_ONCE: usize = 4_000;

/// Pending rows.
#[derive(Debug)]
pub struct Outbox {
    rows: Mutex<Rows>,
    filled: Notify,
    metrics: RecordMetrics,
}

#[derive(Debug, Default)]
struct Rows {
    fences: Vec<Fence>,
    states: BTreeMap<(Uuid, String), StateRow>,
    /// Moves with the transport's numbers.
    moves: VecDeque<(u64, MoveRow)>,
    sessions: BTreeMap<i64, SessionRow>,
    pulses: BTreeMap<String, PulseRow>,
    progress: BTreeMap<(String, u64), ProgressRow>,
    relays: BTreeMap<String, RelayRow>,
    samples: BTreeMap<(i64, String), SampleRow>,
    feed_hours: BTreeMap<(String, String, i64), FeedHour>,
    feed_events: VecDeque<FeedEvent>,
    info: Option<SourceInfo>,
}

impl Rows {
    fn counts(&self) -> [usize; KINDS.len()] {
        [
            self.states.len(),
            self.moves.len(),
            self.sessions.len(),
            self.progress.len(),
            self.samples.len(),
            self.feed_hours.len() + self.feed_events.len(),
        ]
    }

    fn is_empty(&self) -> bool {
        let others = self.pulses.len() + self.relays.len();
        self.counts().iter().sum::<usize>() + others == 0 && self.info.is_none()
    }
}

/// Returns a batch's number of rows by [`KINDS`].
pub fn counts(batch: &Batch) -> [usize; KINDS.len()] {
    [
        batch.states.len(),
        batch.moves.len(),
        batch.sessions.len(),
        batch.progress.len(),
        batch.samples.len(),
        batch.feed_hours.len() + batch.feed_events.len(),
    ]
}

impl Outbox {
    /// Returns an empty outbox.
    pub fn new(metrics: RecordMetrics) -> Self {
        Self {
            rows: Mutex::default(),
            filled: Notify::new(),
            metrics,
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        // A panic under the lock left every map whole.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the leases for writing; without any, nothing is written.
    pub fn set_fences(&self, fences: Vec<Fence>) {
        let mut rows = self.rows();
        let is_held = |row: &PulseRow| fences.iter().any(|fence| fence.channel == row.channel);
        rows.pulses.retain(|_, row| is_held(row));
        rows.fences = fences;
    }

    /// Wakes the writer.
    pub fn ring(&self) {
        let waiting = self.rows().counts();
        self.metrics.waiting(waiting);
        self.filled.notify_one();
    }

    /// Waits for [`ring`](Self::ring).
    pub async fn rung(&self) {
        self.filled.notified().await;
    }

    /// Adds the state of a receiver. Returns `false` if there is no room: it has to be added again.
    pub fn state(&self, row: StateRow) -> bool {
        let mut rows = self.rows();
        let key = (row.receiver, row.channel.clone());
        if rows.states.len() >= STATES && !rows.states.contains_key(&key) {
            drop(rows);
            self.metrics.dropped("states", 1);
            return false;
        }
        rows.states.insert(key, row);
        true
    }

    /// Adds a move with the transport's number. A full queue drops the oldest.
    pub fn step(&self, number: u64, row: MoveRow) {
        let mut rows = self.rows();
        rows.moves.push_back((number, row));
        if rows.moves.len() > MOVES {
            rows.moves.pop_front();
            drop(rows);
            self.metrics.dropped("moves", 1);
        }
    }

    /// Changes the cause of a move. Returns whether the move is still pending, so that the change
    /// suffices.
    pub fn explain(&self, number: u64, cause: &str) -> bool {
        let mut rows = self.rows();
        let waiting = rows.moves.iter_mut().find(|(known, _)| *known == number);
        match waiting {
            Some((_, row)) => {
                row.cause = cause.to_owned();
                true
            }
            None => false,
        }
    }

    /// Adds a connection that began or ended. A full queue drops the oldest.
    pub fn session(&self, row: SessionRow) {
        let mut rows = self.rows();
        rows.sessions.insert(row.id, row);
        if rows.sessions.len() > SESSIONS {
            rows.sessions.pop_first();
            drop(rows);
            self.metrics.dropped("sessions", 1);
        }
    }

    /// Sets a channel's totals.
    pub fn pulse(&self, row: PulseRow) {
        self.rows().pulses.insert(row.channel.clone(), row);
    }

    /// Sets the progress of an update. A full queue drops the oldest.
    pub fn progress(&self, row: ProgressRow) {
        let mut rows = self.rows();
        rows.progress.insert((row.channel.clone(), row.seq), row);
        if rows.progress.len() > PROGRESS {
            rows.progress.pop_first();
            drop(rows);
            self.metrics.dropped("progress", 1);
        }
    }

    /// Sets the state of a relay.
    pub fn relay(&self, row: RelayRow) {
        self.rows().relays.insert(row.address.clone(), row);
    }

    /// Adds a step of time. A full queue drops the oldest.
    pub fn sample(&self, row: SampleRow) {
        let mut rows = self.rows();
        rows.samples.insert((row.at_ms, row.channel.clone()), row);
        if rows.samples.len() > SAMPLES {
            rows.samples.pop_first();
            drop(rows);
            self.metrics.dropped("samples", 1);
        }
    }

    /// Adds polls to the pending row of the same feed and hour.
    pub fn feed_hour(&self, row: FeedHour) {
        let mut rows = self.rows();
        let key = (row.channel.clone(), row.url.clone(), row.hour_ms);
        if rows.feed_hours.len() >= FEED_HOURS && !rows.feed_hours.contains_key(&key) {
            drop(rows);
            return self.metrics.dropped("feeds", 1);
        }
        let known = rows.feed_hours.entry(key).or_insert_with(|| FeedHour {
            channel: row.channel.clone(),
            url: row.url.clone(),
            hour_ms: row.hour_ms,
            ..FeedHour::default()
        });
        known.polls += row.polls;
        known.ok += row.ok;
        known.not_modified += row.not_modified;
        known.failed += row.failed;
        known.challenged += row.challenged;
        known.entries += row.entries;
    }

    /// Adds an event of a feed. A full queue drops the oldest.
    pub fn feed_event(&self, row: FeedEvent) {
        let mut rows = self.rows();
        rows.feed_events.push_back(row);
        if rows.feed_events.len() > FEED_EVENTS {
            rows.feed_events.pop_front();
            drop(rows);
            self.metrics.dropped("feeds", 1);
        }
    }

    /// Sets the source's self-description.
    pub fn info(&self, info: SourceInfo) {
        self.rows().info = Some(info);
    }

    /// Removes the next batch; `None` if nothing is pending, or no lease permits writing: only the
    /// self-description needs none.
    pub fn take(&self) -> Option<Batch> {
        let mut rows = self.rows();
        if rows.fences.is_empty() {
            return rows.info.take().map(|info| Batch {
                info: Some(info),
                ..Batch::default()
            });
        }
        if rows.is_empty() {
            return None;
        }
        let batch = Batch {
            fences: rows.fences.clone(),
            states: first(&mut rows.states),
            moves: oldest(&mut rows.moves)
                .into_iter()
                .map(|(_, row)| row)
                .collect(),
            sessions: first(&mut rows.sessions),
            pulses: std::mem::take(&mut rows.pulses).into_values().collect(),
            progress: first(&mut rows.progress),
            relays: std::mem::take(&mut rows.relays).into_values().collect(),
            samples: first(&mut rows.samples),
            feed_hours: first(&mut rows.feed_hours),
            feed_events: oldest(&mut rows.feed_events),
            info: rows.info.take(),
            stamp: None,
        };
        self.metrics.waiting(rows.counts());
        Some(batch)
    }

    /// Drops everything, because another source records now. Counted as dropped.
    pub fn clear(&self) {
        let mut rows = self.rows();
        let counts = rows.counts();
        *rows = Rows::default();
        drop(rows);
        self.lose(counts);
        self.metrics.waiting([0; KINDS.len()]);
    }

    /// Counts rows that will not be written any more.
    pub fn lose(&self, counts: [usize; KINDS.len()]) {
        for (kind, count) in KINDS.into_iter().zip(counts) {
            self.metrics.dropped(kind, count);
        }
    }
}

fn first<K: Ord, V>(rows: &mut BTreeMap<K, V>) -> Vec<V> {
    if rows.len() <= AT_ONCE {
        return std::mem::take(rows).into_values().collect();
    }
    let taken = (0..AT_ONCE).filter_map(|_| rows.pop_first());
    taken.map(|(_, row)| row).collect()
}

fn oldest<V>(rows: &mut VecDeque<V>) -> Vec<V> {
    let count = rows.len().min(AT_ONCE);
    rows.drain(..count).collect()
}
