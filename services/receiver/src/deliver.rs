//! One batch of a channel on its way into the outputs.
//!
//! **Invariant:** what is delivered at least once comes before the journal, and the journal before
//! the word to the source. The journal's end is the durable cursor: a crash before it makes the
//! source send the batch again, and everything else is made from the journal.

use std::collections::HashSet;

use bytes::Bytes;
use feed::payload::{self, Glance};
use flexicast::{Cursor, Via};
use jiff::Timestamp;
use tracing::{debug, error, warn};
use uuid::Uuid;

use crate::delivery_log::Record;
use crate::journal::Missing;
use crate::sink::Sink;
use service::peer_text::plain;

/// One step of a channel's cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// The number up to which the outputs are complete with this.
    pub seq: u64,
    /// Content of the step.
    pub kind: ItemKind,
}

/// Content of one cursor step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    /// Delivery begins after it, or begins again: a receiver that is killed before its first update
    /// must not begin somewhere else at the next start.
    Begins {
        /// The source says that what was known of its numbers does not count any more.
        resync: bool,
    },
    /// The update of this number.
    Update(ReceivedUpdate),
    /// The updates up to it, from after the one before, are gone at the source. Without this, a
    /// receiver would ask for them and tell of them again after every restart.
    Gap {
        /// The first one that is gone.
        from: u64,
    },
}

/// Returns the cursor after `item`, starting from `cursor`.
pub(crate) fn after(cursor: Option<Cursor>, item: &Item) -> Cursor {
    let before = cursor
        .filter(|c| c.incarnation == item.incarnation)
        .map_or(0, |c| c.seq);
    Cursor {
        incarnation: item.incarnation,
        seq: match item.kind {
            // An update that came twice does not take it back.
            ItemKind::Update(_) | ItemKind::Gap { .. } => before.max(item.seq),
            // The position announced by the source counts, also when it is earlier: a store that
            // was restored from an older backup assigns its numbers again.
            ItemKind::Begins { .. } => item.seq,
        },
    }
}

/// An update as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedUpdate {
    /// As it was sent.
    pub encoded: Bytes,
    /// Path of the arrival.
    pub via: Via,
    /// Whether it was published after this receiver's connection was welcomed, so that its latency
    /// says something about the way here rather than about an absence.
    pub live: bool,
}

/// One thing to do with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Decode, and take in in memory.
    Take,
    /// Append the delivery log.
    Log,
    /// Write the journal.
    Journal,
    /// Show it to readers of the journal and the feeds.
    Announce,
    /// Note how far the channel is.
    Cursor,
    /// For an injected fault: write the feed files, which otherwise follow in their own time.
    #[cfg(feature = "fault-injection")]
    Output,
    /// For an injected fault: wait, so that a kill finds the cursor ahead of the output.
    #[cfg(feature = "fault-injection")]
    Pause,
}

/// A long batch is looked at by so many threads at most.
const MAX_THREADS: usize = 4;

/// The order that loses nothing.
pub const ORDER: &[Step] = &[
    Step::Take,
    Step::Log,
    Step::Journal,
    Step::Announce,
    Step::Cursor,
];

/// A batch and how far it is. A step that failed is tried again by the next attempt, those before
/// it are not repeated.
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
    /// The updates that are in the journal now, in order, each with whether it was live.
    pub delivered: Vec<(Record, bool)>,
    /// Updates that did not decode and were skipped.
    pub undecodable: u64,
    /// Cursor of the outputs after the batch.
    pub cursor: Option<Cursor>,
}

impl Delivery {
    /// A batch in order; `cursor` is how far the outputs are before it.
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

    /// Decodes one after the other, so that never more than one decoded update is held.
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
                ItemKind::Gap { from } => {
                    sink.miss(item.incarnation, *from, item.seq, Missing::Gone);
                    continue;
                }
            };
            let record = |id: &str, stored: Timestamp| Record {
                seq: item.seq,
                id: Record::id_of(id),
                via: received.via,
                at_ms: 0.0,
                // Until it is stamped; see `stamp`.
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
                Ok(update) => format!("it calls itself update {}", update.seq),
                Err(error) => error.to_string(),
            };
            self.outcome.undecodable += 1;
            sink.miss(item.incarnation, item.seq, item.seq, Missing::Senseless);
            error!(
                seq = item.seq,
                "update {} makes no sense and is passed over: {}",
                item.seq,
                plain(&reason)
            );
        }
    }

    /// Notes that the output has them all since now, instead of since an earlier moment.
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
fn passing(items: &[Item], keep: usize) -> Vec<Option<Glance>> {
    if items.len() <= keep {
        return Vec::new();
    }
    let mut seen = glances(items);
    let mut later = HashSet::new();
    let mut shown = false;
    for (item, place) in items.iter().zip(&mut seen).rev() {
        // A new incarnation changes the meaning of entry numbers.
        shown |= matches!(item.kind, ItemKind::Begins { .. });
        let full = later.len() >= keep;
        *place = match place.take() {
            Some(glance) if full && !shown => Some(glance),
            Some(glance) if !full => {
                later.insert(glance.entry_id);
                None
            }
            _ => None,
        };
    }
    seen
}

/// A look at each update that makes sense, on all processors: most of the time that a receiver
/// needs to catch up goes here.
fn glances(items: &[Item]) -> Vec<Option<Glance>> {
    let look = |item: &Item| match &item.kind {
        ItemKind::Update(received) => payload::glance(&received.encoded)
            .ok()
            .filter(|glance| glance.seq == item.seq),
        ItemKind::Begins { .. } | ItemKind::Gap { .. } => None,
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
            // An update without metadata is decoded in full, as if it were shown.
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

/// Whether a failure that stays the same is logged again at this attempt: each time after twice as
/// many as before, and not in the first seconds, where attempts are close together.
fn is_reported_again(tries: u64) -> bool {
    tries >= 8 && tries.is_power_of_two()
}

/// Log lines for a storage that keeps failing, at growing intervals, and for its recovery.
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

    /// A step failed. Logs it; the same as before only at growing intervals.
    pub fn failed(&mut self, error: &anyhow::Error) -> String {
        self.log(
            error,
            "nothing is lost: new updates wait at the source, and writing is tried again until it \
             works",
        )
    }

    /// The feed files could not be written. Logs it as [`StorageReport::failed`] does.
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

    /// Ends a failure. Returns whether there was one.
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
