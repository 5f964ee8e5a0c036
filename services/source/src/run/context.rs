//! Dependencies shared by all parts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feed::fetch::{FetchConfig, Limits};
use feed::schedule;
use flexicast_tokio::source::SourceHandle;
use netio::HostAddress;
use signing::Signer;
use store::Store;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backlog::OpenChannels;
use crate::board::Board;
use crate::config::Config;
use crate::data::DataFolder;
use crate::ingest::{Bounds, Refreshes, Reports};
use crate::metrics::Metrics;
use crate::publish::LeaseTerms;

/// User-Agent of requests to feeds' servers.
const USER_AGENT: &str = concat!("flexfeed-source/", env!("CARGO_PKG_VERSION"));

/// Interval between the first polls of feeds, which may all be on one server.
const FIRST_POLLS: Duration = Duration::from_millis(250);

/// Dependencies shared by all parts. One per process.
pub(super) struct Context {
    pub(super) config: Config,
    pub(super) folder: DataFolder,
    pub(super) store: Store,
    pub(super) handle: SourceHandle,
    /// Key that signs the updates of all channels.
    pub(super) signer: Arc<Signer>,
    pub(super) open: OpenChannels,
    pub(super) board: Arc<Board>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) terms: LeaseTerms,
    /// Limits of all requests to feeds' servers.
    pub(super) limits: Arc<Limits>,
    pub(super) first_polls: PollSpacing,
    /// Memory bounds of all feeds together.
    pub(super) bounds: Bounds,
    /// Feeds that can be polled on request.
    pub(super) refreshes: Refreshes,
    /// Destination of poll reports.
    pub(super) reports: Reports,
    /// Addresses of this machine.
    pub(super) addresses: watch::Receiver<Vec<HostAddress>>,
}

impl Context {
    /// Returns the file of a channel's head checkpoint.
    pub(super) fn mark(&self, channel: &str) -> PathBuf {
        self.folder.file(&format!("{channel}.head"))
    }

    /// Returns the settings for fetching feeds, without their addresses.
    pub(super) fn fetch(&self) -> FetchConfig {
        FetchConfig {
            user_agent: USER_AGENT.to_owned(),
            limits: Arc::clone(&self.limits),
            ..FetchConfig::new(String::new())
        }
    }

    /// Returns the schedule of a feed with these limits of its own.
    pub(super) fn schedule(&self, min_ms: Option<i64>, max_ms: Option<i64>) -> schedule::Settings {
        let time = |ms: Option<i64>| {
            let ms = ms.and_then(|ms| u64::try_from(ms).ok());
            ms.map(Duration::from_millis)
        };
        let intervals = self.config.feeds.intervals(time(min_ms), time(max_ms));
        schedule::Settings {
            min: intervals.min,
            max: intervals.max,
            fixed: (intervals.min == intervals.max).then_some(intervals.min),
        }
    }
}

/// Spacing of first polls.
#[derive(Debug, Default)]
pub(super) struct PollSpacing {
    next: Mutex<Option<Instant>>,
}

impl PollSpacing {
    /// Returns the wait until the next free moment.
    pub(super) fn wait(&self) -> Duration {
        let now = Instant::now();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + FIRST_POLLS);
        at - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_polls_are_apart() {
        let spread = PollSpacing::default();
        assert_eq!(spread.wait(), Duration::ZERO);
        let (second, third) = (spread.wait(), spread.wait());
        assert!(second <= FIRST_POLLS && third <= 2 * FIRST_POLLS);
        assert!(third >= second + FIRST_POLLS / 2, "{second:?} {third:?}");
    }
}
