//! Gaps that an earlier ingest of the feed noticed and could not fill, because the source was
//! restarted or another one had the channel. They are searched again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use feed::gap::Backfill;
use jiff::Timestamp;
use store::{GapRecord, GapState, StoreError};
use tracing::{debug, info};

use super::bounds::Share;
use super::document::DocumentSummary;
use super::feed_gap::FeedGap;
use super::gap::{ATTEMPTS, LAST_GAPS, MUCH_SINCE, some};
use super::{History, Ingest};
use crate::clock::now_ms;

/// Largest age of a partly filled gap that is searched once more, in milliseconds.
const YOUNG: i64 = 7 * 24 * 3600 * 1000;

impl Ingest {
    /// Returns the feed's last gap, as it is to be shown, and takes it over if it still has to be
    /// filled.
    pub(super) async fn resume_gap(&mut self) -> Option<GapRecord> {
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let gaps = match self.store.gaps().list(channel, LAST_GAPS).await {
            Ok(gaps) => gaps,
            Err(error) => {
                debug!(feed = %url, %error, "gaps not read");
                return None;
            }
        };
        let mut ours = gaps.into_iter().filter(|gap| gap.url == *url);
        let mut last = ours.next();
        // Only one is searched at a time, and the last one began first.
        let older = ours.filter(|gap| gap.state == GapState::Suspected);
        for mut gap in older.collect::<Vec<_>>() {
            gap.state = some(gap.entries);
            gap.detail.push_str("; there was another gap after that");
            self.settle(gap).await;
        }
        let gap = last.as_mut()?;
        let is_young = now_ms().saturating_sub(gap.at_ms) < YOUNG;
        match (gap.state, gap.after) {
            (GapState::Suspected, None) => {
                gap.state = some(gap.entries);
                gap.detail
                    .push_str("; the source ended before it was filled");
                self.settle(gap.clone()).await;
            }
            (GapState::Suspected, Some(_)) => self.gaps.left = Some(gap.clone()),
            (GapState::Partly, Some(_)) if is_young => self.gaps.left = Some(gap.clone()),
            _ => {}
        }
        if self.gaps.left.is_some() {
            // Only a document names the source of older entries: "unchanged" is not enough.
            self.client.forget_document();
        }
        last
    }

    /// Resumes the search for the gap that an earlier ingest left, once there is a document.
    pub(super) async fn resume_left_gap(&mut self) -> Result<(), StoreError> {
        let (Some(gap), History::Seen(seen)) = (&self.gaps.left, &self.history) else {
            return Ok(());
        };
        if self.gaps.open.is_some() || !self.pending.is_empty() {
            return Ok(());
        }
        let mut gap = gap.clone();
        let seen = seen.clone();
        let (before, mut newer) = self.around(&gap).await?;
        newer.extend(seen.ids.iter().cloned());
        let backfill = self
            .gaps
            .backfill
            .clone()
            .filter(|_| self.settings.gaps.fill);
        let why = match &backfill {
            None => Some("the feed offers no archive of entries that have left it"),
            Some(_) if newer.len() > MUCH_SINCE => Some("too many entries have come since"),
            Some(_) => None,
        };
        self.gaps.left = None;
        match (backfill, why) {
            (Some(backfill), None) => {
                let url = &self.settings.feed.url;
                info!(feed = %url, detail = %gap.detail, "resuming search for a gap");
                let was_settled = gap.state != GapState::Suspected;
                gap.state = GapState::Suspected;
                let mut hole = self.new_gap(gap, backfill, before, newer, &seen);
                if was_settled {
                    // One more attempt, at each start.
                    hole.attempts = ATTEMPTS - 1;
                }
                self.gaps.open = Some(hole);
            }
            (_, why) => {
                gap.state = some(gap.entries);
                gap.detail.push_str("; ");
                gap.detail.push_str(why.unwrap_or("it is not looked into"));
                self.settle(gap).await;
            }
        }
        Ok(())
    }

    /// Returns the stored entries of the feed before a gap, and the ids of those after it.
    pub(super) async fn around(
        &self,
        gap: &GapRecord,
    ) -> Result<(DocumentSummary, HashSet<String>), StoreError> {
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let after = gap.after.unwrap_or_default();
        let at = Timestamp::from_millisecond(gap.at_ms).ok();
        let before = self.stored_up_to(after, at).await?;
        let newer = self
            .store
            .entries()
            .since(channel, url, after, MUCH_SINCE + 1);
        Ok((before, newer.await?.into_iter().collect()))
    }

    /// Returns a gap before its first search; `seen` is the feed's document after it.
    pub(super) fn new_gap(
        &self,
        record: GapRecord,
        backfill: Backfill,
        before: DocumentSummary,
        newer: HashSet<String>,
        seen: &DocumentSummary,
    ) -> FeedGap {
        FeedGap {
            record,
            backfill,
            before,
            newer,
            latest: seen.ids.clone(),
            edge: seen.oldest.clone(),
            unstored: None,
            share: Share::new(Arc::clone(&self.settings.bounds.memory)),
            attempts: 0,
            wait: 0,
            unproven: 0,
            not_before: Instant::now(),
        }
    }
}
