//! The console's records: while it publishes, the source writes the state of receivers, their
//! moves, the progress of updates, the state of relays and feeds, and its self-description.
//!
//! **Invariant:** records never delay packets. [`Recorder`] follows the transport's history, uses
//! the samples taken for the metrics anyway, and never waits for the store; the [`writer`] does,
//! with bounds on time and memory, and counts rows that find no room.

mod about;
mod commands;
mod feeds;
mod fleet;
mod hour;
mod keeping;
mod outbox;
mod parts;
mod progress;
mod recorder;
mod tallies;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use store::{Fence, SourceInfo, Store};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::http::Sample;
use crate::ingest::PollReport;
use crate::metrics::RecordMetrics;
use crate::status::Role;
use crate::transport::Transport;
pub use about::address_warning;
pub use commands::CommandExecutor;
use outbox::Outbox;
use recorder::Recorder;
use writer::Writer;

/// Time limit for pending rows at the end.
pub const LAST_WORDS: Duration = Duration::from_secs(4);

/// Dependencies of recording.
pub struct RecordParts {
    /// Destination of records.
    pub store: Store,
    /// Source of the events.
    pub transport: Arc<dyn Transport>,
    /// State of all receivers, once a second.
    pub samples: watch::Receiver<Sample>,
    /// Changes after an event of a receiver.
    pub latest: watch::Receiver<u64>,
    /// State of this process.
    pub board: Arc<Board>,
    /// Metrics of recording.
    pub metrics: RecordMetrics,
    /// Polls of feeds.
    pub polls: mpsc::Receiver<PollReport>,
    /// The source's self-description.
    pub info: watch::Receiver<SourceInfo>,
    /// Time limit for pending rows at the end, such as [`LAST_WORDS`].
    pub last_words: Duration,
}

/// Records events until `stop`, and then the pending rows, within a time limit.
pub async fn run(parts: RecordParts, stop: CancellationToken) {
    let outbox = Arc::new(Outbox::new(parts.metrics.clone()));
    let (lost, losses) = watch::channel(0);
    let writer = Writer::new(
        parts.store.clone(),
        Arc::clone(&outbox),
        parts.metrics.clone(),
        lost,
        parts.last_words,
    );
    // The writer ends after the recorder, which has final rows.
    let last = CancellationToken::new();
    let keeping = keeping::keep(parts.store.clone(), Arc::clone(&parts.board), stop.clone());
    let keeping = tokio::spawn(keeping);
    let writing = tokio::spawn(writer.run(last.clone()));
    Recorder::new(parts, outbox, losses).run(stop).await;
    last.cancel();
    // A panic of either is logged by the panic hook. Both have a time limit, so that a store that
    // hangs does not hold up the end; and neither is left running, where it would keep the store
    // from being closed.
    let _ = tokio::join!(writing, keeping);
}

/// Returns the fences of the leases that this process has, or had last; the database checks them
/// with each write.
fn fences(board: &Board) -> Vec<Fence> {
    let channels = board.snapshot().channels.into_iter();
    let held = channels.filter_map(|channel| match channel.role {
        Role::Active { fence } | Role::Lapsed { fence, .. } => Some(Fence {
            channel: channel.name,
            fence,
        }),
        _ => None,
    });
    held.collect()
}
