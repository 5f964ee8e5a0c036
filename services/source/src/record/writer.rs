//! Writer of pending rows: one batch after the other, however long the store takes.

use std::sync::Arc;
use std::time::Duration;

use service::backoff::Backoff;
use store::{Batch, Stamp, Store};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::outbox::{Outbox, counts};
use crate::database::answer_within;
use crate::metrics::{KINDS, RecordMetrics};

/// Longest wait for one write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Window in which rows are written together.
const TOGETHER: Duration = Duration::from_millis(150);
/// First and longest delay before a failed write is repeated; it doubles each time.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_secs(5);
/// Number of refusals by an available store after which a batch is dropped.
const REFUSALS: u32 = 5;

/// Writes batches.
pub struct Writer {
    store: Store,
    outbox: Arc<Outbox>,
    metrics: RecordMetrics,
    /// Number of times that another source had the leases, so that what was written is void.
    lost: watch::Sender<u64>,
    /// Time limit for pending rows at the end.
    last_words: Duration,
    /// Identity of this process in the stamps of its batches.
    run: Uuid,
    /// Number of the last batch.
    number: u64,
    /// Rows of the batch that is being written.
    under_way: [usize; KINDS.len()],
}

impl Writer {
    /// Returns a writer of the rows in `outbox`.
    pub fn new(
        store: Store,
        outbox: Arc<Outbox>,
        metrics: RecordMetrics,
        lost: watch::Sender<u64>,
        last_words: Duration,
    ) -> Self {
        Self {
            store,
            outbox,
            metrics,
            lost,
            last_words,
            run: Uuid::new_v4(),
            number: 0,
            under_way: [0; KINDS.len()],
        }
    }

    /// Writes until `stop`, and then the pending rows. From `stop` on there is a time limit, also
    /// for a write in progress.
    pub async fn run(mut self, stop: CancellationToken) {
        let last_words = self.last_words;
        let too_late = async {
            stop.cancelled().await;
            sleep(last_words).await;
        };
        tokio::select! {
            () = self.write_all(&stop) => {}
            () = too_late => {
                warn!(limit = ?last_words, "console records not completed in time");
                self.outbox.lose(self.under_way);
                while let Some(batch) = self.outbox.take() {
                    self.outbox.lose(counts(&batch));
                }
            }
        }
    }

    /// Writes until `stop`, and then the pending rows.
    async fn write_all(&mut self, stop: &CancellationToken) {
        let outbox = Arc::clone(&self.outbox);
        let mut goes_on = true;
        while goes_on {
            goes_on = stop.run_until_cancelled(outbox.rung()).await.is_some();
            if goes_on {
                stop.run_until_cancelled(sleep(TOGETHER)).await;
            }
            while let Some(batch) = outbox.take() {
                self.write(batch, stop).await;
            }
        }
    }

    /// Writes a batch, however long that takes, once.
    async fn write(&mut self, mut batch: Batch, stop: &CancellationToken) {
        self.number += 1;
        // The stamp keeps a batch that was written without an answer from being written again.
        batch.stamp = Some(Stamp {
            run: self.run,
            number: self.number,
        });
        self.under_way = counts(&batch);
        self.try_to_write(&batch, stop).await;
        self.under_way = [0; KINDS.len()];
    }

    async fn try_to_write(&mut self, batch: &Batch, stop: &CancellationToken) {
        let mut backoff = Backoff::new(AGAIN, AGAIN_AT_MOST);
        let (mut refusals, mut since) = (0, None);
        loop {
            let began = Instant::now();
            let written = answer_within(PATIENCE, self.store.records().write(batch)).await;
            self.metrics.took(began.elapsed());
            let Err(failure) = written else { break };
            self.metrics.failed();
            if failure.is_fenced() {
                self.outbox.lose(counts(batch));
                self.lost.send_modify(|lost| *lost += 1);
                return;
            }
            if !failure.is_unavailable() && !failure.is_full() {
                refusals += 1;
            }
            if refusals >= REFUSALS {
                warn!(error = %failure, "console records refused by the database; dropped");
                self.outbox.lose(counts(batch));
                return;
            }
            if since.is_none() {
                since = Some(began);
                warn!(
                    error = %failure,
                    "console records not written; kept within bounds and retried, deliveries go on"
                );
            }
            if stop.is_cancelled() {
                self.outbox.lose(counts(batch));
                return;
            }
            stop.run_until_cancelled(sleep(backoff.delay())).await;
        }
        if let Some(since) = since {
            let seconds = since.elapsed().as_secs();
            info!(after_s = seconds, "console records are written again");
        }
        self.metrics.written(counts(batch));
    }
}
