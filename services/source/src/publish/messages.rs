//! Messages of a live channel: from the database, where publishers queue them, to the transport.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use signing::{Signer, Statement};
use store::{Fence, Store, StoreError, StoredMessage, Topic};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};
use uuid::Uuid;

use super::LeaseGuard;
use crate::clock::{millis, now_ms};
use crate::metrics::ChannelMetrics;
use crate::transport::{Transport, Unsent};

/// Messages that are taken at once.
const AT_ONCE: usize = 16;

/// Interval at which the store is checked without a notification.
const LOOK: Duration = Duration::from_secs(2);

/// Wait before another attempt to send a message for which there was no room.
const AGAIN: Duration = Duration::from_millis(20);

/// Dependencies of a [`MessageRelay`].
pub struct MessageParts {
    /// Origin of messages.
    pub store: Store,
    /// Destination of messages.
    pub transport: Arc<dyn Transport>,
    /// Right to publish.
    pub lease: LeaseGuard,
    /// Key that signs them.
    pub signer: Arc<Signer>,
    /// Metrics of the channel.
    pub metrics: ChannelMetrics,
}

/// Sends the messages of one channel, as long as it is live.
pub struct MessageRelay {
    works: MessageParts,
    channel: String,
    incarnation: Uuid,
    /// Number of the last message.
    last: u64,
}

impl MessageRelay {
    /// A relay that has sent nothing yet.
    pub fn new(channel: &str, incarnation: Uuid, works: MessageParts) -> Self {
        Self {
            works,
            channel: channel.to_owned(),
            incarnation,
            last: 0,
        }
    }

    /// Sends messages until `is_live` is dropped, and while it is true.
    pub async fn run(self, is_live: watch::Receiver<bool>) {
        let mut sender = is_live.clone();
        let dropped = async { while sender.changed().await.is_ok() {} };
        tokio::select! {
            () = dropped => {}
            () = self.follow(is_live) => {}
        }
    }

    async fn follow(mut self, mut is_live: watch::Receiver<bool>) {
        while is_live.wait_for(|is_live| *is_live).await.is_ok() {
            let mut watch = self.works.store.watch(Topic::Messages);
            while *is_live.borrow_and_update() {
                self.send_all().await;
                tokio::select! {
                    () = watch.changed() => {}
                    () = sleep(LOOK) => {}
                    changed = is_live.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Sends everything that waits.
    async fn send_all(&mut self) {
        loop {
            self.works.lease.held().await;
            let Some(fence) = self.works.lease.shown_fence() else {
                return;
            };
            let held = [Fence {
                channel: self.channel.clone(),
                fence,
            }];
            let asked = Instant::now();
            match self.take(&held).await {
                Ok(messages) if messages.is_empty() => return,
                Ok(messages) => {
                    for message in messages {
                        let left = Duration::from_millis(message.left_ms);
                        self.send(message, asked + left).await;
                    }
                }
                Err(error) => {
                    debug!(channel = self.channel, %error, "messages not read; retrying");
                    return;
                }
            }
        }
    }

    async fn take(&self, held: &[Fence]) -> Result<Vec<StoredMessage>, StoreError> {
        let messages = self.works.store.messages();
        for (channel, count) in messages.take_expired(held).await? {
            self.works.metrics.messages_expired.inc_by(count);
            warn!(channel, count, "messages expired before they could be sent");
        }
        messages.take(held, AT_ONCE).await
    }

    /// Signs a message and sends it, as soon as there is room and until it expires. It was taken,
    /// so that one that is not sent is gone.
    async fn send(&mut self, message: StoredMessage, expires_at: Instant) {
        self.last = unix_us().max(self.last + 1);
        let left = expires_at.saturating_duration_since(Instant::now());
        let statement = Statement {
            channel: &self.channel,
            incarnation: self.incarnation,
            seq: self.last,
            deadline_ms: now_ms().saturating_add(millis(left)).unsigned_abs(),
        };
        let (channel, id) = (&self.channel, message.event_id);
        let (salt, signer) = (rand::random(), &self.works.signer);
        let signed = match signer.sign_message(&statement, &salt, &message.payload) {
            Ok(signed) => Bytes::from(signed),
            Err(error) => {
                warn!(channel, id, %error, "message not signed");
                return;
            }
        };
        loop {
            let transport = &self.works.transport;
            let sent = transport.send_message(channel, self.last, signed.clone());
            match sent.await {
                Ok(()) => return,
                Err(Unsent::Later) if Instant::now() + AGAIN < expires_at => sleep(AGAIN).await,
                Err(Unsent::Later) => {
                    self.works.metrics.messages_expired.inc();
                    warn!(channel, id, "message expired before there was room");
                    return;
                }
                Err(Unsent::Never(error)) => {
                    warn!(channel, id, error, "message not sent");
                    return;
                }
            }
        }
    }
}

/// Returns the Unix time in µs: the numbers of messages ascend over restarts of the source.
fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}
