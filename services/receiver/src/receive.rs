//! The receiver's loop: from the transport's events to the outputs, and back to the source how far
//! they are.
//!
//! One batch at a time is put out and confirmed. Meanwhile the next one fills up to its bounds, so
//! that a receiver that has much to catch up with writes seldom and much; then the transport's
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
const BATCH_UPDATES: usize = 4096;

/// A batch takes no more updates once it has so many bytes of them.
const BATCH_BYTES: usize = 8 << 20;

/// At the end, a write may take so long.
const LAST_WRITE: Duration = Duration::from_secs(5);

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
    intake: Intake,
    writer: Writer<S>,
}

/// What is known of a channel's numbers as they come in.
#[derive(Debug)]
struct Intake {
    channel: String,
    /// The numbering that the cursor has or is about to have.
    incarnation: Option<Uuid>,
    /// Updates after this one are live.
    live_after: Option<u64>,
}

/// The outputs of a channel.
#[derive(Debug)]
struct Writer<S> {
    channel: String,
    /// Shared only with the thread that writes at the moment.
    sink: Arc<Mutex<S>>,
    /// How far the outputs are.
    cursor: Option<Cursor>,
}

impl<S: Sink> Outlet<S> {
    /// The outputs of `channel`, which are as far as `cursor`.
    pub fn new(channel: &str, sink: S, cursor: Option<Cursor>) -> Self {
        Self {
            intake: Intake {
                channel: channel.to_owned(),
                incarnation: cursor.map(|cursor| cursor.incarnation),
                live_after: None,
            },
            writer: Writer {
                channel: channel.to_owned(),
                sink: Arc::new(Mutex::new(sink)),
                cursor,
            },
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

/// Updates by channel, in order.
struct Batch {
    items: Vec<Vec<Item>>,
    updates: usize,
    bytes: usize,
    /// It says where a delivery begins: that is written down before anything more is taken.
    urgent: bool,
}

impl Batch {
    fn of(channels: usize) -> Self {
        let mut items = Vec::new();
        items.resize_with(channels, Vec::new);
        Self {
            items,
            updates: 0,
            bytes: 0,
            urgent: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.items.iter().all(Vec::is_empty)
    }

    fn takes_more(&self) -> bool {
        self.updates < BATCH_UPDATES && self.bytes < BATCH_BYTES && !self.urgent
    }
}

impl<'a, S: Sink> Loop<'a, S> {
    /// Runs until `stop` is true, the source refuses for good, or the transport ends. The batch in
    /// hand is finished first, unless it cannot be written; then the source has it still.
    pub async fn run(
        self,
        events: &mut mpsc::Receiver<Event>,
        stop: &mut watch::Receiver<bool>,
    ) -> End {
        let channels = self.outlets.len();
        let (intakes, writers) = self
            .outlets
            .into_iter()
            .map(|outlet| (outlet.intake, outlet.writer))
            .unzip();
        let mut intake = Taking {
            channels: intakes,
            board: self.board,
            narrator: Narrator::new(self.source),
            gaps_untold: self.gaps_untold,
        };
        let putting = Putting {
            writers,
            confirm: self.confirm,
            board: self.board,
            backoff: self.backoff,
            order: self.order,
            report: StorageReport::default(),
            stop: stop.clone(),
        };
        let mut halting = stop.clone();
        let mut idle = Some(putting);
        let mut writing = None;
        let mut batch = Batch::of(channels);
        let mut end = None;
        loop {
            while end.is_none() && batch.takes_more() {
                match events.try_recv() {
                    Ok(event) => end = intake.take(event, &mut batch),
                    Err(_) => break,
                }
            }
            let halts = *stop.borrow();
            if writing.is_none() {
                if halts {
                    return End::Stopped;
                }
                if batch.is_empty() {
                    if let Some(end) = end {
                        return end;
                    }
                } else if let Some(putting) = idle.take() {
                    let full = std::mem::replace(&mut batch, Batch::of(channels));
                    writing = Some(Box::pin(putting.put_out(full)));
                }
            }
            tokio::select! {
                biased;
                (putting, result) = join(&mut writing), if writing.is_some() => {
                    writing = None;
                    idle = Some(putting);
                    if let Err(early) = result {
                        return early;
                    }
                }
                () = stopped(stop), if writing.is_none() => return End::Stopped,
                // A disk that hangs must not hold up the end.
                () = late(&mut halting), if writing.is_some() => {
                    error!("stopping although the disk does not answer; the source sends the last updates again at the next start");
                    return End::Stopped;
                }
                event = events.recv(), if end.is_none() && batch.takes_more() && !halts => {
                    end = match event {
                        Some(event) => intake.take(event, &mut batch),
                        None => Some(End::Failed(
                            "the transport ended by itself, which it never should".into(),
                        )),
                    };
                }
            }
        }
    }
}

/// Waits until `stop` is true and a last write has had its time.
async fn late(stop: &mut watch::Receiver<bool>) {
    stopped(stop).await;
    tokio::time::sleep(LAST_WRITE).await;
}

/// Waits for what is being written; for ever if nothing is.
async fn join<F: Future + Unpin>(writing: &mut Option<F>) -> F::Output {
    match writing {
        Some(writing) => writing.await,
        None => std::future::pending().await,
    }
}

/// The half that takes events in.
struct Taking<'a> {
    channels: Vec<Intake>,
    board: &'a Board,
    narrator: Narrator,
    gaps_untold: bool,
}

impl Taking<'_> {
    /// Takes an event in. Returns an end if it is one.
    fn take(&mut self, event: Event, batch: &mut Batch) -> Option<End> {
        if !(self.gaps_untold && matches!(event, Event::Gap { .. })) {
            self.narrator.tell(&event, self.board);
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
                let live_after = self.channels.get(index)?.live_after;
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
                let intake = self.channels.get_mut(index)?;
                intake.live_after = Some(head);
                let renumbered = intake.incarnation.replace(incarnation) != Some(incarnation);
                // The incarnation stays where an older backup was restored.
                if renumbered || resync {
                    batch.urgent = true;
                    batch.items.get_mut(index)?.push(Item {
                        incarnation,
                        seq: first.saturating_sub(1),
                        what: What::Begins { resync },
                    });
                }
            }
            Event::Refused {
                code,
                reason,
                fatal: true,
            } => return Some(End::Refused(self.narrator.refusal(code, &reason))),
            // It comes in order, so everything before it is in this batch or was in an earlier one.
            Event::Gap { channel, from, to } => {
                let index = self.index(&channel)?;
                // Without a welcome there is nothing that could have a gap.
                let incarnation = self.channels.get(index)?.incarnation?;
                batch.updates += 1;
                batch.items.get_mut(index)?.push(Item {
                    incarnation,
                    seq: to,
                    what: What::Gap { from },
                });
            }
            _ => {}
        }
        None
    }

    fn index(&self, channel: &str) -> Option<usize> {
        let index = self.channels.iter().position(|c| c.channel == channel);
        if index.is_none() {
            debug!(
                "an event of the channel {}, which nobody asked for",
                plain(channel)
            );
        }
        index
    }
}

/// The half that puts batches out.
struct Putting<'a, S> {
    writers: Vec<Writer<S>>,
    confirm: &'a (dyn Fn(&str, Cursor) + Sync),
    board: &'a Board,
    backoff: Backoff,
    order: &'static [Step],
    report: StorageReport,
    stop: watch::Receiver<bool>,
}

impl<S: Sink> Putting<'_, S> {
    /// Puts a batch out, however long it takes. Hands itself back for the next one.
    async fn put_out(mut self, batch: Batch) -> (Self, Result<(), End>) {
        for (index, items) in batch.items.into_iter().enumerate() {
            if items.is_empty() {
                continue;
            }
            if let Err(early) = self.put_out_one(index, items).await {
                return (self, Err(early));
            }
        }
        (self, Ok(()))
    }

    /// Puts a channel's part of a batch out.
    async fn put_out_one(&mut self, index: usize, items: Vec<Item>) -> Result<(), End> {
        let Some(writer) = self.writers.get_mut(index) else {
            return Ok(());
        };
        let mut delivery = Delivery::new(items, writer.cursor, self.order);
        let mut pause = self.backoff.first;
        loop {
            let sink = Arc::clone(&writer.sink);
            let attempt = tokio::task::spawn_blocking(move || {
                // Whoever panicked in between left at worst less in memory than the source has.
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let result = delivery.attempt(&mut *sink, now_ms);
                (delivery, result)
            });
            let result;
            (delivery, result) = attempt.await.map_err(|error| {
                End::Failed(format!("writing {}'s outputs: {error}", writer.channel))
            })?;
            match result {
                Ok(()) => break,
                Err(error) => self.board.storage_failed(self.report.failed(&error)),
            }
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => {
                    error!(
                        "stopping although {}'s last updates could not be written; the source sends them again at the next start",
                        writer.channel
                    );
                    return Err(End::Stopped);
                }
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(self.backoff.max);
        }
        self.report.succeeded();
        let outcome: Outcome = delivery.into_outcome();
        if let Some(cursor) = outcome.cursor {
            writer.cursor = Some(cursor);
            (self.confirm)(&writer.channel, cursor);
        }
        self.board.delivered(&writer.channel, &outcome);
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
