//! From the store to the transport: one publisher per channel, in one process at a time.
//!
//! **Invariant:** nothing is published before it is stored and the head mark is raised to it;
//! everything stored is published once, in the order of its seqs, by the holder of the channel's
//! lease. What a crash leaves stored and unpublished, receivers fetch as backlog.

mod lease_guard;
mod messages;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{Adoption, Channel, HeadMark, Retention, Store, StoreError, StoredUpdate};
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::metrics::ChannelMetrics;
use crate::transport::Transport;
pub use lease_guard::{Acquisition, LeaseGuard, LeaseLoss, LeaseTerms};
pub use messages::{MessageParts, MessageRelay};

/// Updates and bytes of one read of the store.
const READ_UPDATES: usize = 256;
const READ_BYTES: usize = 4 << 20;

/// Interval at which the store is checked without a notification.
const LOOK: Duration = Duration::from_secs(5);

/// Wait before retries of a failing read of the store.
const RETRY: Duration = Duration::from_secs(1);

/// Interval of deletions by age; those by number take place at once.
const TIDY: Duration = Duration::from_secs(60);

/// Dependencies of a publisher.
pub struct PublisherParts {
    /// Origin of updates.
    pub store: Store,
    /// Destination of updates.
    pub transport: Arc<dyn Transport>,
    /// Right to publish.
    pub lease: LeaseGuard,
    /// Notified when an update was stored.
    pub wake: Arc<Notify>,
    /// Retention of the channel.
    pub keep: watch::Receiver<Retention>,
    /// Metrics of the channel.
    pub metrics: ChannelMetrics,
}

/// Publisher of one channel.
pub struct Publisher {
    works: PublisherParts,
    channel: Channel,
    mark: HeadMark,
    /// Last seq that was handed to the transport, or was stored at the start.
    published: u64,
    /// Bytes stored at that seq.
    last: Option<Bytes>,
    status: watch::Sender<PublishStatus>,
    tidied: Option<Instant>,
    /// Whether a deletion of old updates began with unknown result.
    is_tidying: bool,
}

/// Snapshot of a publisher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishStatus {
    /// Last seq that is known to be stored.
    pub head: u64,
    /// Last seq that was published.
    pub published: u64,
    /// Oldest seq that is kept.
    pub first: u64,
    /// Current failure of the store.
    pub store_failure: Option<String>,
}

/// Reason for the end of a publisher.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PublisherEnd {
    /// Stopped on request, with everything stored published.
    #[error("stopped")]
    Stopped,
    /// Another source has the channel.
    #[error("{0}")]
    Lost(LeaseLoss),
    /// The database is not the one that was published from: it was set back at run time. The
    /// channel needs a new incarnation.
    #[error(
        "the database is older than the updates published from it: it was restored, or it is a \
         replica that lagged"
    )]
    SetBack,
    /// The next update in the store does not follow the last: the channel has to restart at the
    /// store's state.
    #[error("updates are missing in the database")]
    Hole,
}

/// Reason why the publisher cannot continue.
enum Interruption {
    Store(StoreError),
    PublisherEnd(PublisherEnd),
}

impl From<StoreError> for Interruption {
    fn from(error: StoreError) -> Self {
        Interruption::Store(error)
    }
}

impl Publisher {
    /// Returns a publisher that continues after the last stored update of an adopted channel.
    pub fn new(adopted: Adoption, works: PublisherParts) -> Self {
        let Adoption { channel, mark, .. } = adopted;
        let status = PublishStatus {
            head: channel.head,
            published: channel.head,
            first: channel.first,
            store_failure: None,
        };
        Self {
            works,
            mark,
            published: channel.head,
            last: None,
            status: watch::Sender::new(status),
            tidied: None,
            is_tidying: false,
            channel,
        }
    }

    /// Returns a receiver of the publisher's status.
    pub fn status(&self) -> watch::Receiver<PublishStatus> {
        self.status.subscribe()
    }

    /// Returns the channel for an announcement to the transport, before the publisher runs or while
    /// it is interrupted.
    pub fn channel(&self) -> Channel {
        Channel {
            head: self.published,
            first: self.status.borrow().first,
            ..self.channel.clone()
        }
    }

    /// Publishes until the lease is lost, or `stop` and everything that is stored is published. May
    /// be dropped at any point, and run again.
    pub async fn run(&mut self, stop: &CancellationToken) -> PublisherEnd {
        let lease = self.works.lease.clone();
        let store = self.works.store.clone();
        tokio::select! {
            lost = lease.keep(&store) => PublisherEnd::Lost(lost),
            ended = self.publish_all(stop) => ended,
        }
    }

    async fn publish_all(&mut self, stop: &CancellationToken) -> PublisherEnd {
        loop {
            let wait = match self.publish_stored().await {
                Ok(()) => {
                    self.recovered();
                    self.forget_old().await;
                    LOOK
                }
                Err(Interruption::PublisherEnd(ended)) => return ended,
                Err(Interruption::Store(failure)) => {
                    self.failed(&failure);
                    RETRY
                }
            };
            if stop.is_cancelled() {
                return PublisherEnd::Stopped;
            }
            tokio::select! {
                () = self.works.wake.notified() => {}
                () = stop.cancelled() => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// Publishes everything in the store that is not published yet.
    async fn publish_stored(&mut self) -> Result<(), Interruption> {
        loop {
            self.works.lease.held().await;
            // From the last published one: it has to be there still, as it was.
            let from = self.published.max(1);
            let name = &self.channel.name;
            let mut updates = self
                .works
                .store
                .updates()
                .read(name, from, READ_UPDATES, READ_BYTES)
                .await?;
            if !self.works.lease.holds() {
                // The read took so long that another source may have the channel and may have
                // changed it: the result says nothing about this publisher's work.
                continue;
            }
            self.compare(&mut updates)
                .map_err(Interruption::PublisherEnd)?;
            if updates.is_empty() {
                return Ok(());
            }
            self.publish(updates).await?;
        }
    }

    /// Checks that the read updates continue the published ones, and keeps only those.
    fn compare(&mut self, updates: &mut Vec<StoredUpdate>) -> Result<(), PublisherEnd> {
        let is_kept = self.status.borrow().first <= self.published && !self.is_tidying;
        match updates.first() {
            Some(first) if first.seq == self.published => {
                let first = Bytes::from(updates.remove(0).encoded);
                let last = self.last.get_or_insert_with(|| first.clone());
                if *last != first {
                    return Err(PublisherEnd::SetBack);
                }
            }
            // Updates removed by retention cannot be compared.
            _ if self.published > 0 && is_kept => return Err(PublisherEnd::SetBack),
            _ => {}
        }
        let follows = updates.first().map(|first| first.seq);
        match follows {
            Some(seq) if seq != self.published + 1 => Err(PublisherEnd::Hole),
            _ => Ok(()),
        }
    }

    /// Publishes updates that are stored and follow the last published one. First the head mark:
    /// should the database be set back after this, the next start notices.
    async fn publish(&mut self, updates: Vec<StoredUpdate>) -> Result<(), StoreError> {
        let Some(last) = updates.last().map(|update| update.seq) else {
            return Ok(());
        };
        // The store is ahead of the transport while that is full, and the status shows it.
        self.status.send_modify(|status| status.head = last);
        self.mark.raise(last).await?;
        for update in updates {
            // No update after the lease's time, whatever caused a delay.
            self.works.lease.held().await;
            let encoded = Bytes::from(update.encoded);
            self.works
                .transport
                .publish(&self.channel.name, update.seq, encoded.clone())
                .await;
            // Both at once: the future may be dropped at the await, and continues from there.
            self.published = update.seq;
            self.last = Some(encoded);
            self.status
                .send_modify(|status| status.published = update.seq);
            self.works.metrics.updates.inc();
        }
        Ok(())
    }

    /// Deletes updates beyond the retention.
    async fn forget_old(&mut self) {
        let keep = *self.works.keep.borrow_and_update();
        let oldest = self.status.borrow().first;
        let counted = match keep.count {
            Some(count) => self.published.saturating_sub(count) + 1,
            None => oldest,
        };
        let is_time = self.tidied.is_none_or(|at| at.elapsed() >= TIDY);
        let aged = keep.age_ms.is_some() && is_time;
        if !self.works.lease.holds() || (counted <= oldest && !aged) {
            return;
        }
        let (name, transport) = (&self.channel.name, &self.works.transport);
        if counted > oldest {
            // The transport reads nothing before it from now on, so the deleted updates are not
            // missed.
            transport.set_first(name, counted).await;
        }
        // Retention by age may delete the last one; only the answer shows whether.
        self.is_tidying |= aged;
        let retained = self
            .works
            .store
            .updates()
            .retain(name, &keep, self.published)
            .await;
        if aged {
            self.tidied = Some(Instant::now());
        }
        match retained {
            Ok(first) => {
                // Both at once: the future may be dropped at the await.
                self.status.send_modify(|status| status.first = first);
                self.is_tidying = false;
                transport.set_first(name, first).await;
            }
            // The updates stay and are deleted with the next ones.
            Err(error) => {
                self.works.metrics.store_failures.inc();
                warn!(channel = name, %error, "retention failed; retrying");
            }
        }
    }

    fn failed(&mut self, failure: &StoreError) {
        self.works.metrics.store_failures.inc();
        let text = failure.to_string();
        self.status.send_if_modified(|status| {
            let is_new = status.store_failure.as_ref() != Some(&text);
            if is_new {
                debug!(
                    channel = self.channel.name,
                    error = text,
                    "channel not readable"
                );
                status.store_failure = Some(text);
            }
            is_new
        });
    }

    fn recovered(&mut self) {
        self.status.send_if_modified(|status| {
            let was = status.store_failure.take();
            was.is_some()
        });
    }
}
