//! Delivery of one batch of a channel to the outputs.
//!
//! **Invariant:** at-least-once outputs are written before the journal, and the journal before the
//! batch is confirmed to the source. The journal's end is the durable cursor: after a crash before
//! it the source sends the batch again, and everything else is derived from the journal.

use std::collections::HashSet;

use bytes::Bytes;
use feed::payload::{self, UpdateSummary};
use flexicast::signing::Lineage;
use flexicast::{Cursor, Via};
use jiff::Timestamp;
use tracing::{debug, error, warn};
use uuid::Uuid;

use crate::delivery_log::Record;
use crate::journal::Missing;
use crate::sink::Sink;
use service::peer_text::plain;

/// Step of a channel's cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Number up to which the outputs are complete after the step.
    pub seq: u64,
    /// Content of the step.
    pub kind: ItemKind,
}

/// Content of one cursor step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    /// Start of delivery after this number: a receiver that is killed before its first update must
    /// not begin at another number at the next start.
    Begins {
        /// Whether the source has restarted its numbering.
        resync: bool,
    },
    /// Update of this number.
    Update(ReceivedUpdate),
    /// Gap up to this number, gone at the source or expired. Without it, a receiver would request
    /// these updates and report them again after every restart.
    Gap {
        /// First missing update.
        from: u64,
        /// Reason.
        why: Missing,
    },
    /// Keys of the source, which move no cursor.
    Lineage(Lineage),
}

/// Returns the cursor after `item`, starting from `cursor`.
pub(crate) fn after(cursor: Option<Cursor>, item: &Item) -> Cursor {
    let before = cursor
        .filter(|c| c.incarnation == item.incarnation)
        .map_or(0, |c| c.seq);
    Cursor {
        incarnation: item.incarnation,
        seq: match item.kind {
            // A repeated update does not move the cursor back.
            ItemKind::Update(_) | ItemKind::Gap { .. } => before.max(item.seq),
            ItemKind::Lineage(_) => before,
            // The position announced by the source counts, also when it is earlier: a store that
            // was restored from an older backup assigns its numbers again.
            ItemKind::Begins { .. } => item.seq,
        },
    }
}

/// Update as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedUpdate {
    /// Encoded form, as sent.
    pub encoded: Bytes,
    /// Path of the arrival.
    pub via: Via,
    /// Whether the update was published after the WELCOME of this connection, so that its latency
    /// is that of the path, and not of an absence.
    pub live: bool,
}

/// Step of the delivery of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Decode, and add to the outputs in memory.
    Take,
    /// Append to the delivery log.
    Log,
    /// Write the journal.
    Journal,
    /// Show the batch to readers of the journal and the feeds.
    Announce,
    /// Persist the cursor.
    Cursor,
    /// For an injected fault: write the feed files, which otherwise follow in their own time.
    #[cfg(feature = "fault-injection")]
    Output,
    /// For an injected fault: wait, so that a kill finds the cursor ahead of the output.
    #[cfg(feature = "fault-injection")]
    Pause,
}

/// Most threads that validate a long batch.
const MAX_THREADS: usize = 4;

/// Order of steps that loses nothing.
pub const ORDER: &[Step] = &[
    Step::Take,
    Step::Log,
    Step::Journal,
    Step::Announce,
    Step::Cursor,
];

/// Batch with its progress. The next attempt repeats the failed step, but not those before it.
#[derive(Debug)]
pub struct Delivery {
    items: Vec<Item>,
    order: &'static [Step],
    done: usize,
    cursor: Option<Cursor>,
    outcome: Outcome,
}

/// Outcome of a batch.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Outcome {
    /// Updates that are in the journal now, in order, each with whether it was live.
    pub delivered: Vec<(Record, bool)>,
    /// Updates that did not decode and were skipped.
    pub undecodable: u64,
    /// Cursor of the outputs after the batch.
    pub cursor: Option<Cursor>,
}

impl Delivery {
    /// Returns the delivery of a batch in order; `cursor` is that of the outputs before it.
    #[must_use]
    pub fn new(items: Vec<Item>, cursor: Option<Cursor>, order: &'static [Step]) -> Self {
        let cursor = items
            .iter()
            .fold(cursor, |cursor, item| Some(after(cursor, item)));
        Self {
            items,
            order,
            done: 0,
            cursor,
            outcome: Outcome::default(),
        }
    }

    /// Runs the remaining steps. `now_ms` is the clock, in Unix time. Blocks for the disk.
    ///
    /// # Errors
    /// The failed step, in words for the operator; call again later.
    pub fn attempt(
        &mut self,
        sink: &mut impl Sink,
        now_ms: impl Fn() -> f64,
    ) -> anyhow::Result<()> {
        while let Some(step) = self.order.get(self.done) {
            match step {
                Step::Take => self.take(sink),
                Step::Log => {
                    self.stamp(now_ms());
                    sink.append_log(&self.records())?;
                }
                Step::Journal => {
                    sink.write_journal()?;
                    self.stamp(now_ms());
                }
                Step::Announce => sink.announce(),
                #[cfg(feature = "fault-injection")]
                Step::Output => {
                    // The journal has nothing to announce before it is written.
                    sink.announce();
                    sink.write_files()?;
                }
                Step::Cursor => {
                    if let Some(cursor) = self.cursor {
                        sink.write_cursor(cursor)?;
                        self.outcome.cursor = Some(cursor);
                    }
                }
                #[cfg(feature = "fault-injection")]
                Step::Pause => crate::faults::pause(),
            }
            self.done += 1;
        }
        Ok(())
    }

    /// Returns the outcome, once an attempt succeeded.
    #[must_use]
    pub fn into_outcome(self) -> Outcome {
        self.outcome
    }

    /// Decodes one by one, so that at most one decoded update is in memory.
    fn take(&mut self, sink: &mut impl Sink) {
        let mut passing = passing(&self.items, sink.keep());
        for (n, item) in self.items.iter().enumerate() {
            let received = match &item.kind {
                ItemKind::Update(received) => received,
                ItemKind::Begins { resync } => {
                    let cursor = Cursor {
                        incarnation: item.incarnation,
                        seq: item.seq,
                    };
                    sink.begin(cursor, *resync);
                    continue;
                }
                ItemKind::Gap { from, why } => {
                    sink.miss(item.incarnation, *from, item.seq, *why);
                    continue;
                }
                ItemKind::Lineage(lineage) => {
                    sink.name_keys(item.incarnation, lineage);
                    continue;
                }
            };
            let record = |id: &str, stored: Timestamp| Record {
                seq: item.seq,
                id: Record::id_of(id),
                via: received.via,
                at_ms: 0.0,
                // Set later, by `stamp`.
                latency_ms: -(stored.as_millisecond() as f64),
            };
            if let Some(seen) = passing.get_mut(n).and_then(Option::take) {
                sink.pass(item.incarnation, seen.seq, &received.encoded);
                let record = record(&seen.entry_id, seen.time);
                self.outcome.delivered.push((record, received.live));
                continue;
            }
            let reason = match payload::decode(&received.encoded) {
                Ok(update) if update.seq == item.seq => {
                    let record = record(&update.entry.id, update.time);
                    sink.take(item.incarnation, update, &received.encoded);
                    self.outcome.delivered.push((record, received.live));
                    continue;
                }
                Ok(update) => format!("its number is {}", update.seq),
                Err(error) => error.to_string(),
            };
            self.outcome.undecodable += 1;
            sink.miss(item.incarnation, item.seq, item.seq, Missing::Senseless);
            error!(
                seq = item.seq,
                "update {} is invalid and skipped: {}",
                item.seq,
                plain(&reason)
            );
        }
    }

    /// Sets the delivery time of all updates to the present.
    fn stamp(&mut self, now_ms: f64) {
        for (record, _) in &mut self.outcome.delivered {
            record.latency_ms += now_ms - record.at_ms;
            record.at_ms = now_ms;
        }
    }

    fn records(&self) -> Vec<Record> {
        let records = self.outcome.delivered.iter();
        records.map(|(record, _)| record.clone()).collect()
    }
}

/// Metadata of the updates of a long batch that later ones of the same batch push out of the feed
/// file's `keep` entries: decoding them in full would be wasted. `None` for all others.
fn passing(items: &[Item], keep: usize) -> Vec<Option<UpdateSummary>> {
    if items.len() <= keep {
        return Vec::new();
    }
    let mut seen = summaries(items);
    let mut later = HashSet::new();
    let mut shown = false;
    for (item, place) in items.iter().zip(&mut seen).rev() {
        // A new incarnation changes the meaning of entry numbers.
        shown |= matches!(item.kind, ItemKind::Begins { .. });
        let full = later.len() >= keep;
        *place = match place.take() {
            Some(summary) if full && !shown => Some(summary),
            Some(summary) if !full => {
                later.insert(summary.entry_id);
                None
            }
            _ => None,
        };
    }
    seen
}

/// Inspects all valid updates on all processors: a receiver that catches up spends most of its time
/// here.
fn summaries(items: &[Item]) -> Vec<Option<UpdateSummary>> {
    let look = |item: &Item| match &item.kind {
        ItemKind::Update(received) => payload::summary(&received.encoded)
            .ok()
            .filter(|summary| summary.seq == item.seq),
        ItemKind::Begins { .. } | ItemKind::Gap { .. } | ItemKind::Lineage(_) => None,
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = items.len().div_ceil(threads.min(MAX_THREADS)).max(1);
    let mut seen = vec![None; items.len()];
    std::thread::scope(|scope| {
        let look = &look;
        let mut shares = items.chunks(share).zip(seen.chunks_mut(share));
        let own = shares.next();
        for (items, places) in shares {
            let builder = std::thread::Builder::new().name("decode".to_owned());
            let beside = builder.spawn_scoped(scope, move || {
                for (item, place) in items.iter().zip(places) {
                    *place = look(item);
                }
            });
            // Without metadata, the update is decoded in full later.
            if let Err(error) = beside {
                debug!("cannot start a thread to decode with: {error}");
            }
        }
        for (item, place) in own
            .into_iter()
            .flat_map(|(items, places)| items.iter().zip(places))
        {
            *place = look(item);
        }
    });
    seen
}

/// Whether a persistent failure is logged again at this attempt: after twice as many attempts each
/// time, and not in the first seconds, when attempts are close together.
fn is_reported_again(tries: u64) -> bool {
    tries >= 8 && tries.is_power_of_two()
}

/// Log of storage failures, at growing intervals, and of the recovery.
#[derive(Debug, Default)]
pub struct StorageReport {
    failing: Option<(String, u64)>,
}

impl StorageReport {
    /// Whether the last attempt failed.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Logs a failed step; repetitions at growing intervals.
    pub fn failed(&mut self, error: &anyhow::Error) -> String {
        self.log(
            error,
            "nothing is lost: new updates wait at the source, and writing is tried again until it \
             works",
        )
    }

    /// Logs a failed write of the feed files, like [`StorageReport::failed`].
    pub fn files_failed(&mut self, error: &anyhow::Error) -> String {
        self.log(
            error,
            "nothing is lost: the journal has all updates, and writing is retried until it works",
        )
    }

    fn log(&mut self, error: &anyhow::Error, comfort: &str) -> String {
        let text = plain(&error.to_string());
        let tries = match &self.failing {
            Some((known, tries)) if *known == text => tries + 1,
            other => {
                let tries = other.as_ref().map_or(0, |(_, tries)| *tries) + 1;
                error!("{text}; {comfort}");
                self.failing = Some((text.clone(), tries));
                return text;
            }
        };
        if is_reported_again(tries) {
            error!(tries, "still failing: {text}; retrying until it works");
        }
        self.failing = Some((text.clone(), tries));
        text
    }

    /// Ends a failure, if there was one, which is returned.
    pub fn succeeded(&mut self) -> bool {
        match self.failing.take() {
            None => false,
            Some((_, tries)) => {
                warn!(tries, "writing works again; pending updates follow");
                true
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
