//! What the console shows of this source: it writes down, while it publishes, where receivers stand,
//! what happened to them, how far updates got, how relays and feeds are, and what it is itself.
//!
//! **Invariant:** nothing of it is in the packets' way. [`Recorder`] follows the transport's history
//! and takes the samples that are there for the metrics anyway, and never waits for the store; the
//! [`writer`] does, with bounds on time and memory, and counts what finds no room.

mod about;
mod clock;
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

use store::{Fence, Records, SourceInfo};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::http::Sample;
use crate::ingest::PollReport;
use crate::metrics::RecordMetrics;
use crate::run::board::{Board, Role};
use crate::transport::Transport;
pub use about::address_warnings;
pub use commands::Orders;
pub use outbox::KINDS;
use outbox::Outbox;
use recorder::Recorder;
use writer::Writer;

/// At the end, what waits to be written may take this long.
pub const LAST_WORDS: Duration = Duration::from_secs(4);

/// What is needed to write down what happens.
pub struct Parts {
    /// Where to.
    pub records: Arc<dyn Records>,
    /// What is asked about what happened.
    pub transport: Arc<dyn Transport>,
    /// Where everybody stands, once a second.
    pub samples: watch::Receiver<Sample>,
    /// Changes when something has happened to a receiver.
    pub latest: watch::Receiver<u64>,
    /// What this process does.
    pub board: Arc<Board>,
    /// What counts it.
    pub metrics: RecordMetrics,
    /// Polls of feeds.
    pub polls: mpsc::Receiver<PollReport>,
    /// What the source says about itself.
    pub info: watch::Receiver<SourceInfo>,
    /// How long what waits to be written may take at the end, such as [`LAST_WORDS`].
    pub last_words: Duration,
}

/// Writes down what happens until `stop`, and then what waits still, but not for long.
pub async fn run(parts: Parts, stop: CancellationToken) {
    let outbox = Arc::new(Outbox::new(parts.metrics.clone()));
    let (lost, losses) = watch::channel(0);
    let writer = Writer::new(
        Arc::clone(&parts.records),
        Arc::clone(&outbox),
        parts.metrics.clone(),
        lost,
        parts.last_words,
    );
    // It ends behind the recorder, which has last words.
    let last = CancellationToken::new();
    let keeping = keeping::keep(
        Arc::clone(&parts.records),
        Arc::clone(&parts.board),
        stop.clone(),
    );
    let keeping = tokio::spawn(keeping);
    let writing = tokio::spawn(writer.run(last.clone()));
    Recorder::new(parts, outbox, losses).run(stop).await;
    last.cancel();
    // A panic of either is told by the panic hook. Both have a bound, so that a store that hangs does not
    // hold up the end; and neither is left behind, where it would keep the store from being closed.
    let _ = tokio::join!(writing, keeping);
}

/// The leases that this process has, or had last and nobody else took, as far as it knows: whether
/// that is so the database decides with each write.
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
