//! The feeds of one channel, for as long as it is published here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use store::{FeedRow, FeedSettings};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};
use uuid::Uuid;

use super::context::Context;
use crate::ingest::{Ended, Ingest, IngestSettings};
use crate::metrics::ChannelMetrics;
use crate::sabotage;

/// Before the first further attempt to store what could not be stored.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// What is under way when an ingest is stopped may take this long.
const LAST_WORK: Duration = Duration::from_secs(2);

/// The ingests of a channel's feeds.
pub(super) struct Feeds {
    context: Arc<Context>,
    channel: String,
    incarnation: Uuid,
    fence: Option<u64>,
    wake: Arc<Notify>,
    metrics: ChannelMetrics,
    known: BTreeMap<String, Known>,
    tasks: JoinSet<(String, u64, Ended)>,
    /// Of the last ingest that was started.
    number: u64,
}

/// A feed that is polled, or was until it ended by itself.
struct Known {
    settings: FeedSettings,
    stop: CancellationToken,
    number: u64,
    /// It ended because the feed is gone for good.
    gone: bool,
}

impl Feeds {
    pub(super) fn new(
        context: Arc<Context>,
        channel: &str,
        incarnation: Uuid,
        fence: Option<u64>,
        wake: Arc<Notify>,
        metrics: ChannelMetrics,
    ) -> Self {
        Self {
            context,
            channel: channel.to_owned(),
            incarnation,
            fence,
            wake,
            metrics,
            known: BTreeMap::new(),
            tasks: JoinSet::new(),
            number: 0,
        }
    }

    /// Polls these feeds and no others.
    pub(super) fn set(&mut self, rows: &[FeedRow]) {
        let wanted: BTreeMap<&str, &FeedRow> = rows
            .iter()
            .filter(|row| row.active)
            .map(|row| (row.settings.url.as_str(), row))
            .collect();
        let board = Arc::clone(&self.context.board);
        self.known.retain(|url, known| {
            let row = wanted.get(url.as_str());
            // One that was gone is polled again once it was put again. Should the row be from
            // before, the ingest finds out by itself.
            let again = row.is_some_and(|row| known.gone && row.gone_ms.is_none());
            let stays = row.is_some_and(|row| row.settings == known.settings) && !again;
            if !stays {
                known.stop.cancel();
                board.set_ingest(&self.channel, url, None);
            }
            stays
        });
        for (url, row) in wanted {
            if !self.known.contains_key(url) {
                self.start(row);
            }
        }
    }

    fn start(&mut self, row: &FeedRow) {
        let context = &self.context;
        let feed = FeedSettings {
            local: row.settings.local || context.config.allow_private_feed,
            ..row.settings.clone()
        };
        let url = feed.url.clone();
        let schedule = context.schedule(feed.min_interval_ms, feed.max_interval_ms);
        let settings = IngestSettings {
            channel: self.channel.clone(),
            incarnation: self.incarnation,
            fence: self.fence,
            feed,
            fetch: context.fetch(),
            schedule,
            first_poll: context.first_polls.wait().min(schedule.min),
            store_retry: STORE_RETRY,
            fill_gaps: !sabotage::gap_fill_off(),
        };
        let ingest = Ingest::new(
            settings,
            Arc::clone(&context.store),
            Arc::clone(&self.wake),
            self.metrics.clone(),
        );
        context
            .board
            .set_ingest(&self.channel, &url, Some(ingest.status()));
        self.number += 1;
        let number = self.number;
        let stop = CancellationToken::new();
        let known = Known {
            settings: row.settings.clone(),
            stop: stop.clone(),
            number,
            gone: false,
        };
        self.known.insert(url.clone(), known);
        self.tasks
            .spawn(async move { (url, number, ingest.run(stop).await) });
    }

    /// Waits for a feed that ends by itself, and for ever if none does.
    pub(super) async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(ended) => self.note(ended),
            None => std::future::pending().await,
        }
    }

    fn note(&mut self, ended: Result<(String, u64, Ended), JoinError>) {
        match ended {
            Ok((url, number, Ended::Gone)) => {
                let known = self.known.get_mut(&url);
                if let Some(known) = known.filter(|known| known.number == number) {
                    info!(
                        "the feed at {url} is gone for good and polled no more; to try again: \
                         flexfeed-source feed add {} {url}",
                        self.channel
                    );
                    known.gone = true;
                }
            }
            // The lease tells the rest.
            Ok((url, _, ended)) => debug!("the ingest of {url} ended: {ended:?}"),
            Err(failure) if failure.is_cancelled() => {}
            Err(failure) => error!(
                "the ingest of a feed of channel {:?} broke down and is not started again: {failure}",
                self.channel
            ),
        }
    }

    /// Has them all end, and waits for what is under way, but not for long.
    pub(super) async fn stop(&mut self) {
        for (url, known) in &self.known {
            known.stop.cancel();
            self.context.board.set_ingest(&self.channel, url, None);
        }
        self.known.clear();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WORK, all).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}
