//! Current state of channels and feeds: copied from the board for each request, so that a removed
//! channel disappears.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::labels::{RelayLabels, StateLabels, of};
use super::{Gauges, Moments, whole};
use crate::status::{ChannelView, FeedState, FeedView, IngestStatus, Role, Snapshot};

/// Gauges of the current state.
#[derive(Debug, Default)]
pub(super) struct StateGauges {
    database_up: Gauge,
    relay_up: Family<RelayLabels, Gauge>,
    lease_held: Gauges,
    lease_fence: Gauges,
    head: Gauges,
    published: Gauges,
    first: Gauges,
    failing: Gauges,
    held: Gauges,
    feeds: Family<StateLabels, Gauge>,
    last_poll: Moments,
    last_success: Moments,
}

impl StateGauges {
    pub(super) fn register(&self, r: &mut Registry) {
        let help = "Whether the database answers";
        r.register("database_up", help, self.database_up.clone());
        let help = "Whether the AMT relay answers and is announced to receivers";
        r.register("relay_up", help, self.relay_up.clone());
        let help = "Whether this source holds the channel's lease and publishes it";
        r.register("lease_held", help, self.lease_held.clone());
        let help = "Fence of the lease that this source holds; grows each time that a source \
            acquires the lease";
        r.register("lease_fence", help, self.lease_fence.clone());
        let help = "Seq of the last stored update";
        r.register("head_seq", help, self.head.clone());
        let help = "Seq of the last update that this source published";
        r.register("published_seq", help, self.published.clone());
        let help = "Seq of the oldest update kept";
        r.register("first_seq", help, self.first.clone());
        let help = "Whether reading or storing updates of the channel fails at the moment";
        r.register("store_failing", help, self.failing.clone());
        let help = "Entries held in memory until they can be stored";
        r.register("held_entries", help, self.held.clone());
        let help = "Feeds by result of their last poll";
        r.register("feeds", help, self.feeds.clone());
        let help = "Unix time of the end of the last poll of any feed of the channel";
        let unit = Unit::Seconds;
        r.register_with_unit("last_poll_timestamp", help, unit, self.last_poll.clone());
        let help = "Unix time of the last successful poll of the feed with the oldest one";
        let (name, unit) = ("feed_last_success_timestamp", Unit::Seconds);
        r.register_with_unit(name, help, unit, self.last_success.clone());
    }

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
