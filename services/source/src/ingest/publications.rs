//! Intake of publications: entries that publishers have stored (API, `publish`) become updates.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use feed::detect::Draft;
use feed::publication::{FEED_URL, Publication, PublicationError};
use feed::{Entry, Kind, payload};
use jiff::Timestamp;
use signing::{Signer, Statement};
use store::{Store, StoreError, StoredPublication, Topic};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use super::Bounds;
use super::intake::{PART_BYTES, expiry_ms, rows, sign};
use super::store_retries::StoreRetries;
use crate::metrics::ChannelMetrics;

/// Most publications of one transaction.
const PART: usize = 256;

/// Interval at which the store is checked without a notification.
const LOOK: Duration = Duration::from_secs(2);

/// Settings of the intake of one channel's publications.
#[derive(Debug)]
pub struct PublicationSettings {
    /// Name of the channel.
    pub channel: String,
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Fence of the channel's lease.
    pub fence: Option<u64>,
    /// Key that signs the updates.
    pub signer: Option<Arc<Signer>>,
    /// Time in ms after which an update expires; 0 for a log.
    pub deadline_ms: Arc<AtomicU64>,
    /// Delay of the first retry after a failure of the store.
    pub store_retry: Duration,
    /// Bounds on retained data.
    pub bounds: Bounds,
}

/// Intake of the publications of one channel.
pub struct PublicationIntake {
    settings: PublicationSettings,
    store: Store,
    wake: Arc<Notify>,
    metrics: ChannelMetrics,
    storing: StoreRetries,
    /// Time of the last removal of known entries.
    tidied: Instant,
}

impl PublicationIntake {
    /// An intake that wakes the channel's publisher by `wake`.
    pub fn new(
        settings: PublicationSettings,
        store: Store,
        wake: Arc<Notify>,
        metrics: ChannelMetrics,
    ) -> Self {
        Self {
            storing: StoreRetries::new(settings.store_retry),
            settings,
            store,
            wake,
            metrics,
            tidied: Instant::now(),
        }
    }

    /// Stores publications as updates until `stop`, or until another source has the lease.
    /// Cancellation is safe anywhere: a publication is deleted after its update was stored, and an
    /// entry that is known is not stored again.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.work()).await;
    }

    async fn work(&mut self) {
        let mut watch = self.store.watch(Topic::Publications);
        loop {
            match self.store_all().await {
                Ok(()) => {
                    if self.storing.succeeded() > 0 {
                        let channel = &self.settings.channel;
                        info!(channel, "storing publications works again");
                    }
                    self.forget_old().await;
                    tokio::select! {
                        () = watch.changed() => {}
                        () = sleep(LOOK) => {}
                    }
                }
                // The lease's own end explains it.
                Err(error) if error.is_fenced() => return,
                Err(error) => {
                    self.metrics.store_failures.inc();
                    let is_new = !self.storing.is_failing();
                    let pause = self.storing.failed();
                    let channel = &self.settings.channel;
                    match is_new {
                        true => error!(
                            channel,
                            %error,
                            retry_in = ?pause,
                            "publications not stored as updates; they wait in the database"
                        ),
                        false => debug!(channel, %error, "publications still not stored"),
                    }
                    sleep(pause).await;
                }
            }
        }
    }

    /// Stores everything that waits.
    async fn store_all(&mut self) -> Result<(), StoreError> {
        let channel = &self.settings.channel;
        loop {
            let publications = self.store.publications();
            let part = publications.waiting(channel, PART, PART_BYTES).await?;
            let Some(last) = part.last().map(|last| last.id) else {
                return Ok(());
            };
            #[cfg(feature = "fault-injection")]
            if crate::faults::Fault::PublicationsDeletedFirst.is_injected() {
                self.store.publications().delete(channel, last).await?;
                sleep(LOOK).await;
            }
            self.store_part(&part).await?;
            self.store.publications().delete(channel, last).await?;
        }
    }

    async fn store_part(&self, part: &[StoredPublication]) -> Result<(), StoreError> {
        let settings = &self.settings;
        let mut drafts = Vec::new();
        for stored in part {
            match decode(stored) {
                Ok(draft) => drafts.push(draft),
                Err((id, error)) => {
                    self.metrics.breakdowns.inc();
                    warn!(channel = settings.channel, id, %error, "publication dropped");
                }
            }
        }
        let encode = |seq: u64, row: &store::Draft| match drafts.get(row.index) {
            Some(Draft { kind, entry, .. }) => {
                let now = Timestamp::now();
                let statement = Statement {
                    channel: &settings.channel,
                    incarnation: settings.incarnation,
                    seq,
                    deadline_ms: expiry_ms(&settings.deadline_ms),
                };
                let content =
                    payload::encode(entry, *kind, FEED_URL, settings.incarnation, seq, now);
                sign(settings.signer.as_deref(), &statement, content)
            }
            // The rows were numbered from the drafts.
            None => Vec::new(),
        };
        let rows = rows(&drafts);
        let updates = self.store.updates();
        let fence = settings.fence;
        let stored = updates.append(&settings.channel, FEED_URL, fence, &rows, None, &encode);
        let stored = stored.await?;
        if !stored.is_empty() {
            let (channel, created) = (&settings.channel, stored.len());
            info!(channel, created, "publications stored");
        }
        // Also if nothing was stored: an earlier attempt may have failed to report it.
        self.wake.notify_one();
        Ok(())
    }

    /// Forgets the ids of entries that were published long ago, periodically.
    async fn forget_old(&mut self) {
        let (channel, bounds) = (&self.settings.channel, &self.settings.bounds);
        if self.tidied.elapsed() < bounds.tidy {
            return;
        }
        self.tidied = Instant::now();
        let entries = self.store.entries();
        match entries.forget(channel, FEED_URL, bounds.known, &[]).await {
            Ok(0) => {}
            Ok(count) => debug!(channel, count, "ids of old publications removed"),
            // They are removed the next time.
            Err(error) => debug!(channel, %error, "ids of old publications not removed"),
        }
    }
}

fn decode(stored: &StoredPublication) -> Result<Draft, (String, PublicationError)> {
    let decoded = Publication::decode(&stored.payload);
    let entry: Entry = decoded.map_err(|error| (stored.entry_id.clone(), error))?;
    Ok(Draft {
        kind: Kind::Created,
        hash: entry.content_hash(),
        entry,
    })
}
