//! The pages for operators and their machines: `/healthz`, `/readyz`, `/metrics`, `/status.json`.

mod pages;
mod server;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flexicast_tokio::source::SourceStatus;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::run::board::Board;
use crate::transport::Transport;
pub use pages::router;
pub use server::serve;

/// The transport answers between two packets; when it is busy, a page shows what it saw last.
const PATIENCE: Duration = Duration::from_secs(1);

/// The transport is asked this often by itself, so that no move between rungs goes uncounted.
const SAMPLE: Duration = Duration::from_secs(1);

/// What the pages show.
pub struct Pages {
    /// What everybody does.
    pub board: Arc<Board>,
    /// Everything that is counted.
    pub metrics: Arc<Metrics>,
    /// What the transport sees.
    pub view: View,
}

/// What the transport sees, now or a little earlier.
pub struct View {
    transport: Arc<dyn Transport>,
    last: Mutex<Last>,
}

/// The last answer of the transport.
#[derive(Clone)]
struct Last {
    at: Instant,
    status: Option<SourceStatus>,
}

impl View {
    /// Of this transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let last = Last {
            at: Instant::now(),
            status: None,
        };
        Self {
            transport,
            last: Mutex::new(last),
        }
    }

    /// Has what happened since the last time counted. What is not told in time is told the next time.
    async fn count(&self, metrics: &Metrics) {
        let counting = async {
            while let Some(history) = self.transport.history(metrics.counted()).await {
                metrics.count(&history);
                if history.happenings.is_empty() || metrics.counted() >= history.last {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, counting).await;
    }

    /// Asks the transport, but not for long. Also returns how old the answer is.
    async fn look(&self, metrics: &Metrics) -> (Option<SourceStatus>, Duration) {
        self.count(metrics).await;
        if let Ok(status) = tokio::time::timeout(PATIENCE, self.transport.status()).await {
            if let Some(status) = &status {
                metrics.observe(status);
            }
            let fresh = Last {
                at: Instant::now(),
                status: status.clone(),
            };
            if let Ok(mut last) = self.last.lock() {
                *last = fresh;
            }
            return (status, Duration::ZERO);
        }
        match self.last.lock() {
            Ok(last) => (last.status.clone(), last.at.elapsed()),
            Err(_) => (None, Duration::MAX),
        }
    }
}

/// Keeps the counters that are taken from the transport's status complete, until `stop`.
pub async fn sample(pages: Arc<Pages>, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        loop {
            pages.view.look(&pages.metrics).await;
            tokio::time::sleep(SAMPLE).await;
        }
    })
    .await;
}
