//! Current state of channels and feeds: copied from the board for each request, so that a removed
//! channel disappears.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::labels::{RelayLabels, StateLabels, of};
use super::{Gauges, Moments, registered, whole};
use crate::status::{ChannelView, FeedState, FeedView, IngestStatus, Role, Snapshot};

metrics! {
    /// Gauges of the current state.
    struct StateGauges {
        database_up: Gauge = "database_up", "Whether the database answers";
        relay_up: Family<RelayLabels, Gauge> = "relay_up",
            "Whether the AMT relay answers and is announced to receivers";
        lease_held: Gauges = "lease_held",
            "Whether this source holds the channel's lease and publishes it";
        lease_fence: Gauges = "lease_fence",
            "Fence of the lease that this source holds; grows each time that a source acquires the \
             lease";
        head: Gauges = "head_seq", "Seq of the last stored update";
        published: Gauges = "published_seq", "Seq of the last update that this source published";
        first: Gauges = "first_seq", "Seq of the oldest update kept";
        failing: Gauges = "store_failing",
            "Whether reading or storing updates of the channel fails at the moment";
        held: Gauges = "held_entries", "Entries held in memory until they can be stored";
        feeds: Family<StateLabels, Gauge> = "feeds", "Feeds by result of their last poll";
        last_poll: Moments = "last_poll_timestamp" in Seconds,
            "Unix time of the end of the last poll of any feed of the channel";
        last_success: Moments = "feed_last_success_timestamp" in Seconds,
            "Unix time of the last successful poll of the feed with the oldest one";
    }
}

impl StateGauges {
    /// Copies the current state.
    pub(super) fn show(&self, seen: &Snapshot) {
        self.database_up.set(seen.database.up.into());
        self.relay_up.clear();
        for relay in &seen.relays {
            let labels = RelayLabels {
                relay: relay.address.clone(),
            };
            self.relay_up
                .get_or_create(&labels)
                .set(relay.healthy.into());
        }
        for gauges in [
            &self.lease_held,
            &self.lease_fence,
            &self.head,
            &self.published,
            &self.first,
            &self.failing,
            &self.held,
        ] {
            gauges.clear();
        }
        self.feeds.clear();
        self.last_poll.clear();
        self.last_success.clear();
        for channel in &seen.channels {
            self.show_channel(channel);
        }
    }

    fn show_channel(&self, channel: &ChannelView) {
        let labels = of(&channel.name);
        let set = |gauges: &Gauges, to: i64| {
            gauges.get_or_create(&labels).set(to);
        };
        let (held, fence) = match channel.role {
            Role::Active { fence } => (true, Some(fence)),
            Role::Lapsed { fence, .. } => (false, Some(fence)),
            Role::Starting | Role::Standby { .. } | Role::Failed { .. } => (false, None),
        };
        set(&self.lease_held, held.into());
        if let Some(fence) = fence {
            set(&self.lease_fence, whole(fence));
        }
        set(&self.head, whole(channel.head));
        if let Some(published) = channel.published {
            set(&self.published, whole(published));
        }
        set(&self.first, whole(channel.first));
        let ingests = channel.feeds.iter().filter_map(|feed| feed.ingest.as_ref());
        let ingests: Vec<&IngestStatus> = ingests.collect();
        let failing = channel.store_failure.is_some()
            || ingests.iter().any(|ingest| ingest.store_failure.is_some());
        set(&self.failing, failing.into());
        let held: usize = ingests.iter().map(|ingest| ingest.pending).sum();
        set(&self.held, whole(held as u64));
        let last_poll = ingests.iter().filter_map(|ingest| ingest.last_poll_ms);
        self.last_poll.get_or_create(&labels).set(last_poll.max());
        let success = ingests.iter().filter_map(|ingest| ingest.last_success_ms);
        self.last_success.get_or_create(&labels).set(success.min());
        let state = |feed: &FeedView| match &feed.ingest {
            Some(ingest) => ingest.feed().0,
            None => FeedState::Pending,
        };
        for one in FeedState::ALL {
            let count = channel.feeds.iter().filter(|feed| state(feed) == one);
            let labels = StateLabels {
                channel: channel.name.clone(),
                state: one.word(),
            };
            let count = whole(count.count() as u64);
            self.feeds.get_or_create(&labels).set(count);
        }
    }
}
