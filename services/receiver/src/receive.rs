//! The receiver's loop: from the transport's events to the outputs, and back to the source how far
//! they are.
//!
//! One batch at a time: what is there is taken, put out, confirmed. Meanwhile the transport's
//! bounded channel fills, and the transport stops reading: a slow or full disk holds the source
//! back and loses nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flexicast::Cursor;
use flexicast_tokio::receiver::Event;
use tokio::sync::{mpsc, watch};
use tracing::{debug, error};
use uuid::Uuid;

use crate::board::{Board, now_ms};
use crate::deliver::{Delivery, Item, Outcome, Received, Step, StorageReport, What};
use crate::narrate::Narrator;
use crate::peer_text::plain;
use crate::sink::Sink;

/// The most updates in a batch.
const BATCH_UPDATES: usize = 256;

/// A batch takes no more updates once it has so many bytes of them.
const BATCH_BYTES: usize = 4 << 20;

/// Pauses between attempts to write, growing from the first to the second.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never longer.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(250),
            max: Duration::from_secs(10),
        }
    }
}

/// One channel with its outputs.
#[derive(Debug)]
pub struct Outlet<S> {
    channel: String,
    /// Shared only with the thread that writes at the moment.
    sink: Arc<Mutex<S>>,
    /// How far the outputs are.
    cursor: Option<Cursor>,
    /// The numbering that the cursor has or is about to have.
    incarnation: Option<Uuid>,
    /// Updates after this one are live.
    live_after: Option<u64>,
}

impl<S: Sink> Outlet<S> {
    /// The outputs of `channel`, which are as far as `cursor`.
    pub fn new(channel: &str, sink: S, cursor: Option<Cursor>) -> Self {
        Self {
            channel: channel.to_owned(),
            sink: Arc::new(Mutex::new(sink)),
            cursor,
            incarnation: cursor.map(|cursor| cursor.incarnation),
            live_after: None,
        }
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was asked to stop.
    Stopped,
    /// The source will not let this receiver in; in words for the operator.
    Refused(String),
    /// Something that should not happen; in words for the operator.
    Failed(String),
}

/// The loop and what it works with.
pub struct Loop<'a, S> {
    /// The channels.
    pub outlets: Vec<Outlet<S>>,
    /// Tells the source how far a channel's outputs are.
    pub confirm: &'a (dyn Fn(&str, Cursor) + Sync),
    /// For the status.
    pub board: &'a Board,
    /// Between attempts to write.
    pub backoff: Backoff,
    /// [`crate::deliver::ORDER`], but for sabotage.
    pub order: &'static [Step],
    /// Nothing is said of updates that are gone at the source: only for sabotage.
    pub gaps_untold: bool,
    /// `host:port`, for the log.
    pub source: &'a str,
}

impl<S> std::fmt::Debug for Loop<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loop")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Updates by outlet, in order.
#[derive(Default)]
struct Batch {
    items: Vec<Vec<Item>>,
    updates: usize,
    bytes: usize,
    /// It says where a delivery begins: that is written down before anything more is taken.
    urgent: bool,
}

impl Batch {
    fn takes_more(&self) -> bool {
        self.updates < BATCH_UPDATES && self.bytes < BATCH_BYTES && !self.urgent
    }
}

impl<S: Sink> Loop<'_, S> {
    /// Runs until `stop` is true, the source refuses for good, or the transport ends. The batch in
    /// hand is finished first, unless it cannot be written; then the source has it still.
    pub async fn run(
        mut self,
        events: &mut mpsc::Receiver<Event>,
        stop: &mut watch::Receiver<bool>,
    ) -> End {
        let mut narrator = Narrator::new(self.source);
        let mut report = StorageReport::default();
        loop {
            let first = tokio::select! {
                biased;
                () = stopped(stop) => return End::Stopped,
                event = events.recv() => event,
            };
            let Some(first) = first else {
                return End::Failed("the transport ended by itself, which it never should".into());
            };
            let mut batch = Batch::default();
            batch.items.resize_with(self.outlets.len(), Vec::new);
            let mut end = self.take(first, &mut batch, &mut narrator);
            while end.is_none() && batch.takes_more() {
                match events.try_recv() {
                    Ok(event) => end = self.take(event, &mut batch, &mut narrator),
                    Err(_) => break,
                }
            }
            for (index, items) in batch.items.into_iter().enumerate() {
                if items.is_empty() {
                    continue;
                }
                if let Err(early) = self.put_out(index, items, &mut report, stop).await {
                    return early;
                }
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Takes an event in. Returns an end if it is one.
    fn take(&mut self, event: Event, batch: &mut Batch, narrator: &mut Narrator) -> Option<End> {
        if !(self.gaps_untold && matches!(event, Event::Gap { .. })) {
            narrator.tell(&event, self.board);
            self.board.apply(&event);
        }
        match event {
            Event::Update {
                channel,
                incarnation,
                seq,
                encoded,
                via,
            } => {
                let index = self.index(&channel)?;
                let live_after = self.outlets.get(index)?.live_after;
                batch.updates += 1;
                batch.bytes += encoded.len();
                batch.items.get_mut(index)?.push(Item {
                    incarnation,
                    seq,
                    what: What::Update(Received {
                        encoded,
                        via,
                        live: live_after.is_some_and(|head| seq > head),
                    }),
                });
            }
            Event::Welcome {
                channel,
                incarnation,
                head,
                first,
                resync,
            } => {
                let index = self.index(&channel)?;
                let outlet = self.outlets.get_mut(index)?;
                outlet.live_after = Some(head);
                let renumbered = outlet.incarnation.replace(incarnation) != Some(incarnation);
                // The incarnation stays where an older backup was restored.
                if renumbered || resync {
                    batch.urgent = true;
                    batch.items.get_mut(index)?.push(Item {
                        incarnation,
                        seq: first.saturating_sub(1),
                        what: What::Begins,
                    });
                }
            }
            Event::Refused {
                code,
                reason,
                fatal: true,
            } => return Some(End::Refused(narrator.refusal(code, &reason))),
            // It comes in order, so everything before it is in this batch or was in an earlier one.
            Event::Gap { channel, to, .. } => {
                let index = self.index(&channel)?;
                // Without a welcome there is nothing that could have a gap.
                let incarnation = self.outlets.get(index)?.incarnation?;
                batch.updates += 1;
                batch.items.get_mut(index)?.push(Item {
                    incarnation,
                    seq: to,
                    what: What::Gap,
                });
            }
            _ => {}
        }
        None
    }

    fn index(&self, channel: &str) -> Option<usize> {
        let index = self.outlets.iter().position(|o| o.channel == channel);
        if index.is_none() {
            debug!(
                "an event of the channel {}, which nobody asked for",
                plain(channel)
            );
        }
        index
    }

    /// Puts a channel's part of a batch out, however long it takes.
    async fn put_out(
        &mut self,
        index: usize,
        items: Vec<Item>,
        report: &mut StorageReport,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), End> {
        let Some(outlet) = self.outlets.get_mut(index) else {
            return Ok(());
        };
        let mut delivery = Delivery::new(items, outlet.cursor, self.order);
        let mut pause = self.backoff.first;
        loop {
            let sink = Arc::clone(&outlet.sink);
            let attempt = tokio::task::spawn_blocking(move || {
                // Whoever panicked in between left at worst less in memory than the source has.
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let result = delivery.attempt(&mut *sink, now_ms);
                (delivery, result)
            });
            let result;
            (delivery, result) = attempt.await.map_err(|error| {
                End::Failed(format!("writing {}'s outputs: {error}", outlet.channel))
            })?;
            match result {
                Ok(()) => break,
                Err(error) => self.board.storage_failed(report.failed(&error)),
            }
            tokio::select! {
                biased;
                () = stopped(stop) => {
                    error!(
                        "stopping although {}'s last updates could not be written; the source sends them again at the next start",
                        outlet.channel
                    );
                    return Err(End::Stopped);
                }
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(self.backoff.max);
        }
        report.succeeded();
        let outcome: Outcome = delivery.into_outcome();
        if let Some(cursor) = outcome.cursor {
            outlet.cursor = Some(cursor);
            (self.confirm)(&outlet.channel, cursor);
        }
        self.board.delivered(&outlet.channel, &outcome);
        Ok(())
    }
}

/// Waits until `stop` is true; for ever if nobody can make it so any more.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
