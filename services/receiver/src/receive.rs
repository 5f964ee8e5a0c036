//! The receiver's loop: from the transport's events to the outputs, and the confirmed cursors back
//! to the source.
//!
//! Each channel has one batch being written and confirmed. Meanwhile the next one fills, all of
//! them within shared bounds, so that a receiver with a large backlog writes seldom and much; at
//! the bound the transport's channel fills and the transport stops reading: a slow or full disk
//! holds the source back and loses nothing.
//!
//! A channel whose outputs fail does not hold up the others. When its pending updates take the
//! room, they are dropped, and so are those that follow; once its outputs work again, the transport
//! reconnects, and the source resends them from the cursor.

mod batch;
mod intake;
mod lane;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexicast::Cursor;
use flexicast_tokio::receiver::Event;
use service::backoff::Backoff;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::board::Board;
use crate::connection_log::ConnectionLog;
use crate::journal::Limits;
use crate::sink::Sink;
use batch::takes_more;
use intake::Intake;
use lane::Lane;

/// At the end, a write may take so long.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Delays between attempts to write.
pub const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// One channel with its outputs.
#[derive(Debug)]
pub struct Outlet<S> {
    channel: String,
    sink: S,
    cursor: Option<Cursor>,
}

impl<S: Sink> Outlet<S> {
    /// The outputs of `channel`, which are as far as `cursor`.
    pub fn new(channel: &str, sink: S, cursor: Option<Cursor>) -> Self {
        Self {
            channel: channel.to_owned(),
            sink,
            cursor,
        }
    }
}

/// Reason for the end of the loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoopExit {
    /// Stopped on request.
    Stopped,
    /// The source will not let this receiver in; in words for the operator.
    Refused(String),
    /// Something that should not happen; in words for the operator.
    Failed(String),
}

/// The channels with how far each is.
pub type Cursors = Vec<(String, Option<Cursor>)>;

/// A new connection's events.
pub type Reconnection<'a> = Pin<Box<dyn Future<Output = mpsc::Receiver<Event>> + Send + 'a>>;

/// The loop and what it works with.
pub struct Loop<'a, S> {
    /// The channels.
    pub outlets: Vec<Outlet<S>>,
    /// Confirms a channel's cursor to the source.
    pub confirm: &'a (dyn Fn(&str, Cursor) + Sync),
    /// Reconnects with these cursors.
    pub again: &'a (dyn Fn(Cursors) -> Reconnection<'a> + Sync),
    /// For the status.
    pub board: &'a Board,
    /// The most that a batch may be, in updates and bytes: what the journals can take at once
    /// ([`Limits::batch`]).
    pub batch: Limits,
    /// Between attempts to write.
    pub backoff: Backoff,
    /// `host:port`, for the log.
    pub source: &'a str,
    /// The data folder, if the source is not known to have let its receiver in before.
    pub newcomer: Option<&'a Path>,
}

impl<S> std::fmt::Debug for Loop<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loop")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<'a, S: Sink> Loop<'a, S> {
    /// Runs until `stop` is cancelled, the source refuses for good, or the transport ends. The batches in
    /// hand are finished first, unless they cannot be written; then the source has them still.
    pub async fn run(
        mut self,
        events: &mut mpsc::Receiver<Event>,
        stop: &CancellationToken,
    ) -> LoopExit {
        let most = batch::bounds(self.batch);
        let trouble = Arc::new(Notify::new());
        let outlets = std::mem::take(&mut self.outlets);
        let lanes = outlets.into_iter();
        let mut lanes: Vec<Lane<'a, S>> = lanes
            .map(|outlet| Lane::new(outlet, &self, &trouble, stop))
            .collect();
        let mut taking = Intake {
            board: self.board,
            log: ConnectionLog::new(self.source, self.newcomer),
        };
        let mut end = None;
        loop {
            while end.is_none() && has_room(&mut lanes, most) {
                match events.try_recv() {
                    Ok(event) => end = taking.take(event, &mut lanes),
                    Err(_) => break,
                }
            }
            let halts = stop.is_cancelled();
            if !halts {
                let has_room = end.is_none() && has_room(&mut lanes, most);
                lanes.iter_mut().for_each(|lane| lane.begin(has_room));
            }
            let ends = end.is_some() && lanes.iter().all(Lane::is_done);
            if ends || halts && !lanes.iter().any(Lane::is_writing) {
                lanes.iter_mut().for_each(Lane::close);
                if !lanes.iter().any(Lane::is_writing) {
                    return end.unwrap_or(LoopExit::Stopped);
                }
            }
            let writes = lanes.iter().any(Lane::is_writing);
            let files = lanes.iter().filter_map(Lane::files_due).min();
            let gathered = lanes.iter().filter_map(Lane::gathers).min();
            let takes = end.is_none() && !halts && has_room(&mut lanes, most);
            tokio::select! {
                biased;
                result = written(&mut lanes), if writes => {
                    if let Err(early) = result {
                        return early;
                    }
                    if !stop.is_cancelled() && end.is_none() {
                        self.catch_up(&mut lanes, events).await;
                    }
                }
                () = stop.cancelled(), if !writes => {}
                // A disk that hangs must not hold up the end.
                () = late(stop), if writes => {
                    error!("stopping without the disk; the source resends the last updates at the \
                        next start");
                    return LoopExit::Stopped;
                }
                () = until(gathered), if !halts => {}
                () = until(files), if !halts => {}
                // Whether there is room may be another question now.
                () = trouble.notified() => {}
                event = events.recv(), if takes => {
                    end = match event {
                        Some(event) => taking.take(event, &mut lanes),
                        None => Some(LoopExit::Failed(
                            "transport: ended unexpectedly".into(),
                        )),
                    };
                }
            }
        }
    }

    /// Reconnects for the updates dropped while a channel could not be written.
    async fn catch_up(&self, lanes: &mut [Lane<'a, S>], events: &mut mpsc::Receiver<Event>) {
        let Some(lane) = lanes.iter().find(|l| l.is_behind() && !l.is_writing()) else {
            return;
        };
        info!(
            channel = lane.channel,
            "outputs work again; reconnecting for missed updates"
        );
        // Pending events come again. The old transport ends when its channel has no reader.
        *events = mpsc::channel(1).1;
        *events = (self.again)(lanes.iter().map(Lane::next).collect()).await;
        lanes.iter_mut().for_each(Lane::resume);
    }
}

/// Whether more can be taken. A channel that cannot be written gives its room to those that can.
fn has_room<S: Sink>(lanes: &mut [Lane<'_, S>], most: Limits) -> bool {
    if takes_more(lanes.iter().map(|lane| &lane.waiting), most) {
        return true;
    }
    if lanes.iter().all(Lane::is_failing) {
        return false;
    }
    let waits = |lane: &&mut Lane<'_, S>| lane.is_failing() && !lane.waiting.items.is_empty();
    lanes.iter_mut().filter(waits).for_each(Lane::make_way);
    takes_more(lanes.iter().map(|lane| &lane.waiting), most)
}

/// Waits for the end of any write.
async fn written<S: Sink>(lanes: &mut [Lane<'_, S>]) -> Result<(), LoopExit> {
    std::future::poll_fn(|context| {
        let mut ended = lanes.iter_mut().map(|lane| lane.poll(context));
        let ended = ended.find(std::task::Poll::is_ready);
        ended.unwrap_or(std::task::Poll::Pending)
    })
    .await
}

/// Waits for a moment; for ever if there is none.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until `stop` is cancelled and a last write has had its time.
async fn late(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LAST_WRITE).await;
}

#[cfg(test)]
mod tests;
