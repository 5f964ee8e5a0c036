//! Client of the feed's server: the address in use, and the validators of the last document.

use std::sync::Arc;

use feed::fetch::{FetchConfig, FetchError, Fetcher, Validators};
use tracing::{info, warn};

use super::IngestSettings;

/// Client of the feed's server.
#[derive(Default)]
pub(super) struct FeedClient {
    /// Made when needed, and again when the address changes.
    fetcher: Option<Arc<Fetcher>>,
    /// New address of the feed, if that is in use.
    pub(super) moved: Option<String>,
    /// New address that is still to be recorded.
    pub(super) moving: Option<String>,
    /// Validators of the last document that was fetched.
    pub(super) validators: Validators,
}

impl FeedClient {
    /// Returns the address that the feed is fetched from, for messages.
    pub(super) fn address<'a>(&'a self, settings: &'a IngestSettings) -> &'a str {
        self.moved.as_deref().unwrap_or(&settings.feed.url)
    }

    /// Returns the fetcher for the current address.
    pub(super) fn fetcher(
        &mut self,
        settings: &IngestSettings,
    ) -> Result<Arc<Fetcher>, FetchError> {
        if let Some(fetcher) = &self.fetcher {
            return Ok(Arc::clone(fetcher));
        }
        let feed = &settings.feed;
        let moved = self.moved.as_deref();
        let moved = moved.and_then(|to| feed::fetch::moved(&feed.address, to));
        let config = FetchConfig {
            url: moved.unwrap_or_else(|| feed.address.clone()),
            allow_private: feed.local,
            ..settings.fetch.clone()
        };
        let fetcher = Arc::new(Fetcher::new(config)?);
        self.fetcher = Some(Arc::clone(&fetcher));
        Ok(fetcher)
    }

    /// Makes the server send the whole document again.
    pub(super) fn forget_document(&mut self) {
        self.validators = Validators::default();
    }

    /// Has a permanent move of the feed recorded, unless it is `known`. The new address is used
    /// from the next start on: until then its own redirects there.
    pub(super) fn record_move(
        &mut self,
        settings: &IngestSettings,
        to: String,
        known: Option<&str>,
    ) {
        if to != self.address(settings) && known != Some(&to) {
            info!(feed = %settings.feed.url, %to, "feed moved permanently");
            self.moving = Some(to);
        }
    }

    /// Returns from a new address that fails to the feed's own one. Returns whether there was a
    /// new address.
    pub(super) fn revert_move(&mut self, settings: &IngestSettings) -> bool {
        let Some(moved) = self.moved.take() else {
            return false;
        };
        let feed = &settings.feed.url;
        warn!(%feed, %moved, "new address of the feed failed; returning to the original one");
        self.fetcher = None;
        self.moving = Some(feed.clone());
        true
    }
}
