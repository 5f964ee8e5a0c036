//! Settings of a fetcher.

use std::sync::Arc;
use std::time::Duration;

use super::limits::Limits;

/// Default limit of a document in bytes, after decompression: 8 MiB.
pub const MAX_BYTES: usize = 8 << 20;

/// Settings for fetching one feed.
#[derive(Debug, Clone)]
pub struct FetchConfig {
    /// Address of the feed, `http` or `https`.
    pub url: String,
    /// Whether the address may lead to private, loopback and similar networks.
    pub allow_private: bool,
    /// `User-Agent`, which should identify the caller.
    pub user_agent: String,
    /// URL or `mailto:` address in the `User-Agent` for the operators of the feed's server; see
    /// [`check_contact`](super::check_contact).
    pub contact: Option<String>,
    /// Largest document, in bytes after decompression.
    pub max_bytes: usize,
    /// Time for one poll as a whole, redirects and body included. Waiting for a permit does not
    /// count.
    pub timeout: Duration,
    /// Time for one connection attempt.
    pub connect_timeout: Duration,
    /// Largest number of redirects that are followed.
    pub max_redirects: usize,
    /// Limits of concurrent requests, one object for all fetchers of a process.
    pub limits: Arc<Limits>,
}

impl FetchConfig {
    /// Returns the defaults: private networks refused, 8 MiB, 30 s (10 s to connect), 5 redirects,
    /// and the usual limits, not shared.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            allow_private: false,
            user_agent: concat!("flexfeed/", env!("CARGO_PKG_VERSION")).into(),
            contact: None,
            max_bytes: MAX_BYTES,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_redirects: 5,
            limits: Arc::default(),
        }
    }
}
