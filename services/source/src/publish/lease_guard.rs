//! The lease to publish a channel, and the time for which this process may rely on it.
//!
//! The database assigns a channel's lease, by its own clock. A holder that was suspended
//! for a while, or that cannot reach the database, must not continue: so it also counts by its own
//! clocks from the moment *before* it asked, and allows itself less time than the database gave.
//! The database's answer may be late, the end of the time never is.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use store::{Holder, Lease, LeaseOutcome, Store, StoreError};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

#[cfg(feature = "fault-injection")]
use crate::faults::Fault;

/// Duration and renewal of leases.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTerms {
    /// Time for which the database grants a lease.
    pub ttl: Duration,
    /// Time between two renewals.
    pub renew: Duration,
    /// Longest wait for one answer of the database.
    pub patience: Duration,
    /// A lease that could not be renewed for this long after its end is dropped: another source may
    /// have it by now, without our database knowing. `None` if no source can reach a database that
    /// this one cannot reach.
    pub cut_off: Option<Duration>,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            renew: Duration::from_secs(1),
            patience: Duration::from_secs(2),
            cut_off: Some(Duration::from_secs(120)),
        }
    }
}

impl LeaseTerms {
    /// Returns the part of the granted time that a holder uses, so that clocks may differ a little.
    fn own(&self) -> Duration {
        self.ttl / 5 * 4
    }
}

/// A granted lease with its validity. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct LeaseGuard {
    shared: Arc<Shared>,
}

struct Shared {
    lease: Lease,
    holder: Holder,
    terms: LeaseTerms,
    state: watch::Sender<LeaseState>,
}

/// State of a lease.
#[derive(Debug, Clone)]
struct LeaseState {
    /// Time of the last request that the database granted.
    asked: ClockReading,
    /// Failure of the last renewal.
    trouble: Option<String>,
}

/// Point in time by both clocks. The monotonic one may stop while the whole machine sleeps, and the
/// other one may be set.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    steady: Instant,
    wall: SystemTime,
}

impl ClockReading {
    fn now() -> Self {
        Self {
            steady: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Returns the time since then, by the clock that shows more.
    fn elapsed(&self) -> Duration {
        let wall = self.wall.elapsed().unwrap_or_default();
        self.steady.elapsed().max(wall)
    }
}

/// Result of acquiring a channel.
#[derive(Debug)]
pub enum Acquisition {
    /// Acquired.
    Held(LeaseGuard),
    /// Another source publishes it.
    Other {
        /// Name of that source, for people.
        name: String,
    },
}

/// Reason for the loss of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LeaseLoss {
    /// Another source has taken the channel.
    #[error("another source has taken it over")]
    Taken,
    /// The database was out of reach for so long that another may have taken it.
    #[error("the database has been unreachable for so long that another source may have it")]
    CutOff,
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseGuard")
            .field("lease", &self.shared.lease)
            .finish_non_exhaustive()
    }
}

impl LeaseGuard {
    /// Requests the lease of a channel.
    ///
    /// # Errors
    /// The store fails or does not answer in time.
    pub async fn take(
        store: &Store,
        channel: &str,
        holder: &Holder,
        terms: LeaseTerms,
    ) -> Result<Acquisition, StoreError> {
        let asked = ClockReading::now();
        let lease = match store.leases().take(channel, holder, terms.ttl).await? {
            LeaseOutcome::Held(lease) => lease,
            LeaseOutcome::Other { name, .. } => return Ok(Acquisition::Other { name }),
        };
        Ok(Acquisition::Held(Self::since(asked, lease, holder, terms)))
    }

    fn since(asked: ClockReading, lease: Lease, holder: &Holder, terms: LeaseTerms) -> Self {
        let state = LeaseState {
            asked,
            trouble: None,
        };
        Self {
            shared: Arc::new(Shared {
                lease,
                holder: holder.clone(),
                terms,
                state: watch::Sender::new(state),
            }),
        }
    }

    /// Returns a lease that starts now, of no store.
    #[cfg(test)]
    pub(crate) fn made_up(channel: &str, fence: u64, ttl: Duration) -> Self {
        let lease = Lease {
            channel: channel.to_owned(),
            fence,
        };
        let holder = Holder {
            id: uuid::Uuid::nil(),
            name: "test".to_owned(),
        };
        let terms = LeaseTerms {
            ttl,
            ..LeaseTerms::default()
        };
        Self::since(ClockReading::now(), lease, &holder, terms)
    }

    /// Returns the number by which the store refuses older leases.
    pub fn fence(&self) -> u64 {
        self.shared.lease.fence
    }

    /// Returns the fence that appends show to the store; `None` only if an injected fault omits it.
    pub fn shown_fence(&self) -> Option<u64> {
        #[cfg(feature = "fault-injection")]
        if Fault::FenceOff.is_injected() {
            return None;
        }
        Some(self.fence())
    }

    /// Whether the lease is valid at this moment.
    pub fn holds(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        if Fault::FenceOff.is_injected() {
            return true;
        }
        self.shared.state.borrow().asked.elapsed() < self.shared.terms.own()
    }

    /// Returns the failure of the last renewal; `None` if it succeeded.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state.borrow().trouble.clone()
    }

    /// Waits until the lease is valid, which it is most of the time.
    pub async fn held(&self) {
        let mut state = self.shared.state.subscribe();
        while !self.holds() {
            // The sender lives in the lease itself.
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Renews the lease until it is lost. While the database is out of reach it lapses, and
    /// recovers unless another source has taken the channel meanwhile.
    pub async fn keep(&self, store: &Store) -> LeaseLoss {
        let terms = &self.shared.terms;
        loop {
            sleep(terms.renew).await;
            let asked = ClockReading::now();
            let renewal = store
                .leases()
                .renew(&self.shared.lease, &self.shared.holder, terms.ttl);
            let trouble = match timeout(terms.patience, renewal).await {
                Ok(Ok(true)) => {
                    self.renewed(asked);
                    continue;
                }
                #[cfg(feature = "fault-injection")]
                Ok(Ok(false)) if Fault::FenceOff.is_injected() => continue,
                Ok(Ok(false)) => return LeaseLoss::Taken,
                Ok(Err(failure)) => failure.to_string(),
                Err(_) => "the database does not answer".to_owned(),
            };
            debug!(
                channel = self.shared.lease.channel,
                error = trouble,
                "lease renewal failed; retrying"
            );
            self.shared.state.send_modify(|state| {
                state.trouble = Some(trouble);
            });
            let since = self.shared.state.borrow().asked.elapsed();
            if let Some(cut_off) = terms.cut_off
                && since.saturating_sub(terms.own()) >= cut_off
            {
                return LeaseLoss::CutOff;
            }
        }
    }

    fn renewed(&self, asked: ClockReading) {
        self.shared.state.send_modify(|state| {
            state.asked = asked;
            state.trouble = None;
        });
    }

    /// Releases the lease, so that another source need not wait until it ends.
    ///
    /// # Errors
    /// The store fails; the lease then ends by itself.
    pub async fn release(&self, store: &Store) -> Result<(), StoreError> {
        self.shared.state.send_modify(|state| {
            // The lease ends for all clones, whatever the store answers.
            if let Some(past) = Instant::now().checked_sub(self.shared.terms.ttl) {
                state.asked.steady = past;
            }
        });
        store.leases().release(&self.shared.lease).await
    }
}
