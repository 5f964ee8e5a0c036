//! Path of one channel from the transport to its outputs.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use flexicast::Cursor;
use service::backoff::Backoff;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use uuid::Uuid;

use super::batch::Batch;
use super::{Loop, LoopExit, Outlet};
use crate::board::{Board, now_ms};
use crate::deliver::{Delivery, Item, ItemKind, ORDER, StorageReport, after};
use crate::journal::Missing;
use crate::sink::Sink;

/// Result of a write: the writer, for the next batch, and the end of the loop, if any.
type Written<'a, S> = (BatchWriter<'a, S>, Result<(), LoopExit>);

/// Channel with its pending updates, the batch being written, and their cursors.
pub(super) struct Lane<'a, S> {
    pub(super) channel: String,
    /// Incarnation of the pending updates.
    pub(super) incarnation: Option<Uuid>,
    /// Number after which updates are live.
    pub(super) live_after: Option<u64>,
    pub(super) waiting: Batch,
    /// Cursor after the pending updates.
    taken: Option<Cursor>,
    /// Cursor of the outputs.
    confirmed: Option<Cursor>,
    idle: Option<BatchWriter<'a, S>>,
    /// Time at which the feed files are to be written.
    files_due: Option<Instant>,
    /// Whether the last write of the feed files has begun, so that nothing follows.
    is_closed: bool,
    writing: Option<Pin<Box<dyn Future<Output = Written<'a, S>> + Send + 'a>>>,
    /// Whether the last attempt to write failed.
    failing: Arc<AtomicBool>,
    /// Whether updates were dropped in favour of other channels.
    is_behind: bool,
}

impl<'a, S: Sink> Lane<'a, S> {
    pub(super) fn new(
        outlet: Outlet<S>,
        with: &Loop<'a, S>,
        trouble: &Arc<Notify>,
        stop: &CancellationToken,
    ) -> Self {
        let Outlet {
            channel,
            sink,
            cursor,
        } = outlet;
        let failing = Arc::new(AtomicBool::new(false));
        let putting = BatchWriter {
            channel: channel.clone(),
            sink: Arc::new(Mutex::new(sink)),
            cursor,
            confirm: with.confirm,
            board: with.board,
            backoff: with.backoff,
            report: StorageReport::default(),
            files_report: StorageReport::default(),
            files_due: None,
            files_backoff: with.backoff,
            stop: stop.clone(),
            failing: Arc::clone(&failing),
            trouble: Arc::clone(trouble),
        };
        Self {
            channel,
            incarnation: cursor.map(|cursor| cursor.incarnation),
            live_after: None,
            waiting: Batch::default(),
            taken: cursor,
            confirmed: cursor,
            idle: Some(putting),
            // Feed files that the start could not write are retried soon.
            files_due: Some(Instant::now()),
            is_closed: false,
            writing: None,
            failing,
            is_behind: false,
        }
    }

    /// Adds an item, unless the source has to resend it anyway.
    pub(super) fn push(&mut self, item: Item) {
        if !self.is_behind {
            self.taken = Some(after(self.taken, &item));
            self.waiting.push(item);
        }
    }

    /// Adds updates that will not come. There are none before a WELCOME.
    pub(super) fn miss(&mut self, from: u64, to: u64, why: Missing) {
        if let Some(incarnation) = self.incarnation {
            self.push(Item {
                incarnation,
                seq: to,
                kind: ItemKind::Gap { from, why },
            });
        }
    }

    /// Whether arriving updates are dropped until the source resends them.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Whether the last attempt to write the outputs failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Whether a write is in progress.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether nothing is pending and no write in progress.
    pub(super) fn is_done(&self) -> bool {
        self.writing.is_none() && self.waiting.items.is_empty()
    }

    /// Returns the time until which a lane that is far behind gathers more before it writes.
    pub(super) fn gathers(&self) -> Option<Instant> {
        if self.writing.is_some() || self.waiting.items.is_empty() {
            return None;
        }
        let taken = self.taken.map_or(0, |cursor| cursor.seq);
        let to_come = self.live_after?.saturating_sub(taken);
        self.waiting.gathers(to_come)
    }

    /// Returns when the feed files are to be written, if no write is in progress.
    pub(super) fn files_due(&self) -> Option<Instant> {
        self.files_due.filter(|_| self.writing.is_none())
    }

    /// Begins to write the pending updates, unless a write is in progress or, with room for more,
    /// it is worth waiting. Feed files that are due are written after them, or alone.
    pub(super) fn begin(&mut self, has_room: bool) {
        let now = Instant::now();
        let gathers = has_room && self.gathers().is_some_and(|until| until > now);
        let waits = !self.waiting.items.is_empty() && !gathers;
        let is_due = self.files_due.is_some_and(|due| due <= now);
        if (waits || is_due)
            && let Some(putting) = self.idle.take()
        {
            let batch = match waits {
                true => std::mem::take(&mut self.waiting),
                false => Batch::default(),
            };
            self.writing = Some(Box::pin(putting.put_out(batch.items)));
        }
    }

    /// Begins the last write of the feed files, once, when no other write is in progress.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closed, true)
            && let Some(putting) = self.idle.take()
        {
            self.writing = Some(Box::pin(putting.finish()));
        }
    }

    /// Drops the pending updates in favour of other channels; the source resends them later.
    pub(super) fn make_way(&mut self) {
        warn!(
            channel = self.channel,
            "outputs fail; pending updates dropped until the source resends them"
        );
        self.is_behind = true;
        self.waiting = Batch::default();
    }

    /// Returns the cursor at which the source has to continue.
    pub(super) fn next(&self) -> (String, Option<Cursor>) {
        let cursor = if self.is_behind {
            self.confirmed
        } else {
            self.taken
        };
        (self.channel.clone(), cursor)
    }

    /// Resumes after a reconnection, with the source at [`Lane::next`].
    pub(super) fn resume(&mut self) {
        if self.is_behind && self.writing.is_none() {
            self.is_behind = false;
            self.taken = self.confirmed;
            self.incarnation = self.confirmed.map(|cursor| cursor.incarnation);
        }
    }

    /// Polls the write in progress.
    pub(super) fn poll(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), LoopExit>> {
        let Some(writing) = &mut self.writing else {
            return std::task::Poll::Pending;
        };
        writing.as_mut().poll(context).map(|(putting, result)| {
            self.confirmed = putting.cursor;
            self.files_due = putting.files_due;
            self.idle = Some(putting);
            self.writing = None;
            result
        })
    }
}

/// Writer of a channel's batches.
struct BatchWriter<'a, S> {
    channel: String,
    /// Shared only with the thread that is writing.
    sink: Arc<Mutex<S>>,
    /// Cursor of the outputs.
    cursor: Option<Cursor>,
    confirm: &'a (dyn Fn(&str, Cursor) + Sync),
    board: &'a Board,
    backoff: Backoff,
    report: StorageReport,
    /// Failures of the feed files, which delay nothing.
    files_report: StorageReport,
    /// Time at which the feed files are to be written.
    files_due: Option<Instant>,
    /// Delays between attempts to write them.
    files_backoff: Backoff,
    stop: CancellationToken,
    failing: Arc<AtomicBool>,
    /// Notified of failures.
    trouble: Arc<Notify>,
}

impl<S: Sink> BatchWriter<'_, S> {
    /// Writes a batch, however long it takes. Returns itself for the next one.
    async fn put_out(mut self, items: Vec<Item>) -> (Self, Result<(), LoopExit>) {
        let mut result = Ok(());
        if !items.is_empty() {
            result = self.attempt(items).await;
        }
        if result.is_ok() {
            result = self.write_files(false).await;
        }
        (self, result)
    }

    /// Writes the feed files for the last time, due or not.
    async fn finish(mut self) -> (Self, Result<(), LoopExit>) {
        let result = self.write_files(true).await;
        (self, result)
    }

    /// Writes the feed files if they are due, or, the last time, if they have changed. A failure is
    /// reported and retried later; the journal has everything.
    async fn write_files(&mut self, is_last: bool) -> Result<(), LoopExit> {
        let sink = Arc::clone(&self.sink);
        // Not immediately after a failure.
        let not_before = self.files_due.filter(|_| self.files_report.is_failing());
        let attempt = tokio::task::spawn_blocking(move || {
            let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let due = sink.files_due(now).max(not_before);
            if due.is_none_or(|due| due > now && !is_last) {
                return Ok((false, due));
            }
            sink.write_files()?;
            Ok((true, sink.files_due(Instant::now())))
        });
        let ended = attempt.await.map_err(|error| {
            LoopExit::Failed(format!("writing {}'s feed files: {error}", self.channel))
        })?;
        match ended {
            Ok((written, due)) => {
                self.files_due = due;
                if written && self.files_report.succeeded() {
                    self.board.files_failed(&self.channel, None);
                    self.files_backoff.reset();
                }
            }
            Err(error) => {
                let text = self.files_report.files_failed(&error);
                self.board.files_failed(&self.channel, Some(text));
                self.files_due = Some(Instant::now() + self.files_backoff.delay());
            }
        }
        Ok(())
    }

    async fn attempt(&mut self, items: Vec<Item>) -> Result<(), LoopExit> {
        let order = ORDER;
        #[cfg(feature = "fault-injection")]
        let order = crate::faults::order().unwrap_or(order);
        let mut delivery = Delivery::new(items, self.cursor, order);
        let mut backoff = self.backoff;
        loop {
            let sink = Arc::clone(&self.sink);
            let attempt = tokio::task::spawn_blocking(move || {
                // After a panic under the lock, memory lacks updates at worst, which the source
                // has.
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let result = delivery.attempt(&mut *sink, now_ms);
                (delivery, result)
            });
            let result;
            (delivery, result) = attempt.await.map_err(|error| {
                LoopExit::Failed(format!("writing {}'s outputs: {error}", self.channel))
            })?;
            match result {
                Ok(()) => break,
                Err(error) => {
                    let text = self.report.failed(&error);
                    self.board.storage_failed(&self.channel, text);
                    self.failing.store(true, Ordering::Relaxed);
                    self.trouble.notify_one();
                }
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    error!(
                        channel = self.channel,
                        "stopping with updates unwritten; the source resends them at the next start"
                    );
                    return Err(LoopExit::Stopped);
                }
                () = tokio::time::sleep(backoff.delay()) => {}
            }
        }
        self.report.succeeded();
        self.failing.store(false, Ordering::Relaxed);
        let outcome = delivery.into_outcome();
        if let Some(cursor) = outcome.cursor {
            self.cursor = Some(cursor);
            (self.confirm)(&self.channel, cursor);
        }
        self.board.delivered(&self.channel, &outcome);
        Ok(())
    }
}
