//! Everything that requests are answered from.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use service::places::{Bounds, Places};
use store::Store;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::auth::limit::Limits;
use crate::auth::password::Passwords;
use crate::config::{SecureCookies, SiteSettings};
use crate::fleet::{BadCursor, Fleet, Page, PageStart, Selection};
use crate::http::metrics::Metrics;
use crate::live::Hub;
use crate::live::board::Board;

/// Bound on the wait for one's own change to be visible; unbounded in tests.
#[cfg(not(test))]
const PATIENCE: Duration = Duration::from_secs(1);
#[cfg(test)]
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of requests to publish entries whose bodies are read at the same time.
const PUBLISHING: usize = 8;

/// Number of names looked up at the same time.
const LOOKUPS: usize = 8;

/// Resolver; tests resolve nothing.
#[cfg(not(test))]
const LOOKUP: feed::fetch::Lookup = feed::fetch::system_lookup;
#[cfg(test)]
const LOOKUP: feed::fetch::Lookup = crate::tests::lookup;

/// Dependencies of a console.
#[derive(Clone)]
pub struct Parts {
    /// Database of the source and the console.
    pub store: Store,
    /// Settings of requests.
    pub settings: SiteSettings,
    /// Ends it.
    pub stop: CancellationToken,
}

/// Everything that requests are answered from.
pub struct Site {
    pub(crate) store: Store,
    pub(crate) settings: SiteSettings,
    pub(crate) stop: CancellationToken,
    pub(crate) hub: Arc<Hub>,
    pub(crate) health: Health,
    pub(crate) passwords: Passwords,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) places: Arc<Places>,
    pub(crate) fetching: Arc<feed::fetch::Limits>,
    pub(crate) lookups: Arc<Semaphore>,
    /// Turns to publish entries.
    pub(crate) publishing: Arc<Semaphore>,
    pub(crate) lookup: feed::fetch::Lookup,
    fleet: RwLock<Fleet>,
    board: RwLock<Board>,
    latest: watch::Sender<u64>,
    nudge: Notify,
    /// Number of changes made here, and of those visible in a read.
    changes: AtomicU64,
    seen: watch::Sender<u64>,
    /// Number of events that may have revoked rights.
    ended: watch::Sender<u64>,
}

/// Whether the database answers, as far as is known.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// Notes whether it fails. Returns whether that is another answer than before.
    pub fn set_failing(&self, failing: bool) -> bool {
        self.0.swap(failing, Ordering::Relaxed) != failing
    }

    /// Whether it fails.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Site {
    /// Returns a site that knows nothing yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            store: parts.store,
            settings: parts.settings,
            stop: parts.stop,
            hub: Arc::default(),
            health: Health::default(),
            passwords: Passwords::default(),
            limits: Limits::default(),
            metrics: Metrics::default(),
            places: Arc::new(Places::new(Bounds {
                connections: 1_024,
                answers: 512,
                // Behind a proxy all clients have the same address.
                per_peer: 448,
                ..Bounds::default()
            })),
            fetching: Arc::new(feed::fetch::Limits::new(8, 2)),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            publishing: Arc::new(Semaphore::new(PUBLISHING)),
            lookup: LOOKUP,
            fleet: RwLock::default(),
            board: RwLock::default(),
            latest: watch::Sender::new(0),
            nudge: Notify::new(),
            changes: AtomicU64::new(0),
            seen: watch::Sender::new(0),
            ended: watch::Sender::new(0),
        }
    }

    /// The receivers. Nothing is changed half under these locks.
    pub(crate) fn fleet(&self) -> RwLockReadGuard<'_, Fleet> {
        self.fleet.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fleet_mut(&self) -> RwLockWriteGuard<'_, Fleet> {
        self.fleet.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn board(&self) -> RwLockReadGuard<'_, Board> {
        self.board.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn board_mut(&self) -> RwLockWriteGuard<'_, Board> {
        self.board.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the status in a line, for systemd.
    #[must_use]
    pub fn status_line(&self) -> String {
        let trouble = match self.health.is_failing() {
            true => ", the database does not answer",
            false => "",
        };
        format!(
            "{} receivers, {} pages watch{trouble}",
            self.fleet().len(),
            self.hub.clients()
        )
    }

    /// Returns a receiver's name for people, if known.
    pub(crate) fn name_of(&self, id: Uuid) -> Option<String> {
        self.fleet().name_of(id).map(str::to_owned)
    }

    /// A part of the list of receivers.
    ///
    /// # Errors
    /// The place is none, or of another order.
    pub(crate) fn page(
        &self,
        selection: &Selection,
        place: &PageStart,
        limit: usize,
    ) -> Result<Page, BadCursor> {
        let page = self.fleet().page(selection, place, limit)?;
        let unknown_since_ms = self.board().unknown_since(!self.health.is_failing());
        Ok(Page {
            unknown_since_ms,
            ..page
        })
    }

    /// Marks a read: the hub looks for changes.
    pub(crate) fn changed(&self) {
        let failing = u64::from(self.health.is_failing());
        let version = 2 * (self.fleet().version() + self.board().version) + failing;
        self.latest.send_if_modified(|last| {
            let is_new = *last != version;
            *last = version;
            is_new
        });
    }

    pub(crate) fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Something was changed here: it is to be seen soon, channels and feeds included.
    /// Returns the number of this change.
    pub(crate) fn nudge(&self) -> u64 {
        let number = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        self.nudge.notify_one();
        number
    }

    /// Waits until a change made here is visible, so that its client finds it. Bounded: the change
    /// is done, even if the database is slow to show it.
    pub(crate) async fn catch_up(&self) {
        let number = self.nudge();
        let mut seen = self.seen.subscribe();
        let look = async { seen.wait_for(|seen| *seen >= number).await.is_ok() };
        let look = self.stop.run_until_cancelled(look);
        let _ = tokio::time::timeout(PATIENCE, look).await;
    }

    /// The number of the last change here.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Marks the changes up to this number as visible.
    pub(crate) fn saw(&self, number: u64) {
        self.seen.send_replace(number);
    }

    /// Makes streams check at once whether their callers are still admitted.
    pub(crate) fn rights_revoked(&self) {
        self.ended.send_modify(|times| *times += 1);
    }

    pub(crate) fn departures(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    pub(crate) async fn nudged(&self) {
        self.nudge.notified().await;
    }
}

impl Site {
    /// Whether cookies for this client are for https only.
    pub(crate) fn is_secure(&self, client: &crate::auth::client::Client) -> bool {
        let public = self.settings.public_url.as_ref();
        match self.settings.secure_cookies {
            SecureCookies::On => true,
            SecureCookies::Off => false,
            SecureCookies::Auto => {
                client.by_https || public.is_some_and(|url| url.scheme() == "https")
            }
        }
    }
}
