//! The receiver's loop: from the transport's events to the outputs, and the confirmed cursors back
//! to the source.
//!
//! Each channel has one batch being written and confirmed. Meanwhile the next one fills, all of
//! them within shared bounds, so that a receiver with a large backlog writes large batches; at the
//! bound the transport's channel fills and the transport stops reading: a slow or full disk slows
//! down the source and loses nothing.
//!
//! A channel whose outputs fail does not delay the others. If its pending updates take too much
//! room, they are dropped, as are those that follow; once its outputs work again, the transport
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

/// Time limit for writes in progress at the end.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Delays between attempts to write.
pub const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// Channel with its outputs.
#[derive(Debug)]
pub struct Outlet<S> {
    channel: String,
    sink: S,
    cursor: Option<Cursor>,
}

impl<S: Sink> Outlet<S> {
    /// Returns the outputs of `channel`, which have everything up to `cursor`.
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
    /// Refused by the source; in words for the operator.
    Refused(String),
    /// Internal failure; in words for the operator.
    Failed(String),
}

/// Channels with their cursors.
pub type Cursors = Vec<(String, Option<Cursor>)>;

/// Events of a new connection.
pub type Reconnection<'a> = Pin<Box<dyn Future<Output = mpsc::Receiver<Event>> + Send + 'a>>;

/// Loop with its dependencies.
pub struct Loop<'a, S> {
    /// Channels.
    pub outlets: Vec<Outlet<S>>,
    /// Confirms a channel's cursor to the source.
    pub confirm: &'a (dyn Fn(&str, Cursor) + Sync),
    /// Reconnects with these cursors.
    pub again: &'a (dyn Fn(Cursors) -> Reconnection<'a> + Sync),
    /// Status.
    pub board: &'a Board,
    /// Largest batch, in updates and bytes, as bounded by the journals ([`Limits::batch`]).
    pub batch: Limits,
    /// Delays between attempts to write.
    pub backoff: Backoff,
    /// `host:port` of the source, for the log.
    pub source: &'a str,
    /// Data folder, if the source is not known to have admitted its receiver before.
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
    /// Runs until `stop` is cancelled, the source refuses for good, or the transport ends. Batches
    /// in progress are finished first, unless they cannot be written; then the source resends them.
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
                // A disk that hangs must not delay the end.
                () = late(stop), if writes => {
                    error!("stopping without the disk; the source resends the last updates at the \
                        next start");
                    return LoopExit::Stopped;
                }
                () = until(gathered), if !halts => {}
                () = until(files), if !halts => {}
                // There may be room now.
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

/// Whether there is room for more. A channel that cannot be written gives its room to others.
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

/// Waits until a time; forever if there is none.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until `stop` is cancelled and the time limit of a last write has passed.
async fn late(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LAST_WRITE).await;
}

#[cfg(test)]
mod tests;
