//! The pages for operators and their machines: `/healthz`, `/readyz`, `/metrics`, `/status.json`.

mod pages;
mod server;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flexicast_tokio::source::SourceStatus;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::metrics::Metrics;
use crate::transport::Transport;
pub use pages::router;
pub use server::serve;

/// Longest wait for the transport; while it is busy, pages show its last answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval of samples without requests, so that no move between rungs goes uncounted.
const SAMPLE: Duration = Duration::from_secs(1);

/// State shown by the pages.
pub struct Pages {
    /// State of all parts of the process.
    pub board: Arc<Board>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Latest sample of the transport.
    pub view: View,
}

/// A sample of the transport's status.
pub struct View {
    transport: Arc<dyn Transport>,
    last: Mutex<Last>,
    samples: watch::Sender<Sample>,
}

/// Samples of the transport, one a second, for all followers.
#[derive(Clone, Default)]
pub struct Sample {
    /// `None` where it did not answer in time.
    pub status: Option<Arc<SourceStatus>>,
    /// Number of the last history event included.
    pub upto: u64,
}

/// The last answer of the transport.
#[derive(Clone)]
struct Last {
    at: Instant,
    sample: Sample,
}

impl View {
    /// Returns a view of this transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let last = Last {
            at: Instant::now(),
            sample: Sample::default(),
        };
        Self {
            transport,
            last: Mutex::new(last),
            samples: watch::Sender::default(),
        }
    }

    /// Returns a receiver of the samples that [`sample`] takes.
    pub fn samples(&self) -> watch::Receiver<Sample> {
        self.samples.subscribe()
    }

    /// Counts new history events. Events that come too late are counted next time.
    async fn count(&self, metrics: &Metrics) {
        let counting = async {
            while let Some(history) = self.transport.history(metrics.transport.counted()).await {
                metrics.transport.count(&history);
                if history.events.is_empty() || metrics.transport.counted() >= history.last {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, counting).await;
    }

    /// Returns the transport's status with its age: the last one if it does not answer in time.
    async fn look(&self, metrics: &Metrics) -> (Sample, Duration) {
        self.count(metrics).await;
        let upto = metrics.transport.counted();
        if let Ok(status) = tokio::time::timeout(PATIENCE, self.transport.status()).await {
            let status = status.map(Arc::new);
            if let Some(status) = &status {
                metrics.observe(status);
            }
            let sample = Sample { status, upto };
            let fresh = Last {
                at: Instant::now(),
                sample: sample.clone(),
            };
            if let Ok(mut last) = self.last.lock() {
                *last = fresh;
            }
            return (sample, Duration::ZERO);
        }
        match self.last.lock() {
            Ok(last) => (last.sample.clone(), last.at.elapsed()),
            Err(_) => (Sample::default(), Duration::MAX),
        }
    }
}

/// Keeps the counters derived from the transport's status complete, and publishes the samples,
/// until `stop`.
pub async fn sample(pages: Arc<Pages>, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        loop {
            let (mut sample, age) = pages.view.look(&pages.metrics).await;
            if !age.is_zero() {
                sample.status = None;
            }
            pages.view.samples.send_replace(sample);
            tokio::time::sleep(SAMPLE).await;
        }
    })
    .await;
}
