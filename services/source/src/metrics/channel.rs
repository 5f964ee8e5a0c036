//! Metrics of the channels' ingests and publishers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::labels::{ChannelLabels, PollLabels, of};
use super::{Counters, registered};
use crate::status::FeedState;

/// Metrics of one channel's ingests and publisher. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChannelMetrics {
    channel: String,
    /// Updates stored and handed to the transport.
    pub updates: Counter,
    /// New or changed entries that were too large to be sent.
    pub oversized: Counter,
    /// Duration of fetches.
    pub poll_seconds: Histogram,
    /// Documents that shared no entry with the one before.
    pub suspected_gaps: Counter,
    /// Entries that were found in suspected gaps, or arrived with old dates.
    pub gap_entries: Counter,
    /// Suspected gaps that could not be filled wholly.
    pub open_gaps: Counter,
    /// Failed attempts to store something.
    pub store_failures: Counter,
    /// Messages that expired before the source took them.
    pub messages_expired: Counter,
    /// Internal errors that skipped an entry or restarted a feed's ingest.
    pub breakdowns: Counter,
    polls: Family<PollLabels, Counter>,
}

impl ChannelMetrics {
    /// Counts a poll by its result.
    pub fn polled(&self, result: FeedState) {
        self.polls.get_or_create(&self.poll_labels(result)).inc();
    }

    /// Returns the number of polls with this result.
    #[cfg(test)]
    pub fn polls(&self, result: FeedState) -> u64 {
        self.polls.get_or_create(&self.poll_labels(result)).get()
    }

    fn poll_labels(&self, result: FeedState) -> PollLabels {
        PollLabels {
            channel: self.channel.clone(),
            result: result.word(),
        }
    }
}

metrics! {
    /// Counters of all channels.
    struct ChannelCounters {
        updates: Counters = "updates", "Updates published since the start";
        oversized: Counters = "updates_oversized", "New or changed entries too large to be sent";
        polls: Family<PollLabels, Counter> = "polls", "Polls of the channel's feeds, by result";
        suspected_gaps: Counters = "suspected_gaps",
            "Documents without an entry in common with the one before: entries may be missing";
        gap_entries: Counters = "gap_entries",
            "Entries found in suspected gaps, or arrived with old dates";
        open_gaps: Counters = "open_gaps",
            "Suspected gaps that could not be filled completely: entries may be missing";
        store_failures: Counters = "store_failures", "Failed attempts to store updates";
        messages_expired: Counters = "messages_expired",
            "Messages that expired before the source took them";
        breakdowns: Counters = "breakdowns",
            "Internal errors that skipped an entry or restarted a feed's ingest";
    }
}

/// Metrics of all channels.
#[derive(Debug)]
pub(super) struct ChannelFamilies {
    counters: ChannelCounters,
    poll_seconds: Family<ChannelLabels, Histogram, fn() -> Histogram>,
}

/// Returns buckets from a server next door to one that just meets the timeout.
fn poll_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 13))
}

impl ChannelFamilies {
    pub(super) fn register(r: &mut Registry) -> Self {
        let poll_seconds = Family::new_with_constructor(poll_buckets as fn() -> Histogram);
        let (name, help) = ("poll_duration", "Time to fetch a feed");
        r.register_with_unit(name, help, Unit::Seconds, poll_seconds.clone());
        Self {
            counters: ChannelCounters::register(r),
            poll_seconds,
        }
    }

    /// Returns the metrics of one channel.
    pub(super) fn channel(&self, name: &str) -> ChannelMetrics {
        let (counters, labels) = (&self.counters, of(name));
        ChannelMetrics {
            channel: name.to_owned(),
            updates: counters.updates.get_or_create_owned(&labels),
            oversized: counters.oversized.get_or_create_owned(&labels),
            poll_seconds: self.poll_seconds.get_or_create_owned(&labels),
            suspected_gaps: counters.suspected_gaps.get_or_create_owned(&labels),
            gap_entries: counters.gap_entries.get_or_create_owned(&labels),
            open_gaps: counters.open_gaps.get_or_create_owned(&labels),
            store_failures: counters.store_failures.get_or_create_owned(&labels),
            messages_expired: counters.messages_expired.get_or_create_owned(&labels),
            breakdowns: counters.breakdowns.get_or_create_owned(&labels),
            polls: counters.polls.clone(),
        }
    }
}
