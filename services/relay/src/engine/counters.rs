//! Counters of the engine, readable from any thread.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Gauge.
#[derive(Debug, Default)]
pub struct Level(AtomicI64);

impl Level {
    /// Sets the value.
    pub fn set(&self, to: usize) {
        let to = i64::try_from(to).unwrap_or(i64::MAX);
        self.0.store(to, Ordering::Relaxed);
    }

    /// Returns the value.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Messages received from gateways, by type.
#[derive(Debug, Default)]
pub struct Messages {
    /// Relay Discoveries.
    pub discovery: Count,
    /// Requests.
    pub request: Count,
    /// Membership Updates.
    pub update: Count,
    /// Teardowns.
    pub teardown: Count,
    /// Anything else.
    pub other: Count,
}

/// Packets from the native side that did not reach a gateway which wants them, by reason.
#[derive(Debug, Default)]
pub struct Lost {
    /// Packets that the kernel had no room for before the relay could read them. Counted once, not
    /// per gateway.
    pub overrun: Count,
    /// Packets larger than the path MTU to the gateway, which must not or cannot be fragmented.
    pub too_large: Count,
    /// Packets that the kernel refused to send.
    pub refused: Count,
    /// Packets that arrived by the network with a TTL or hop limit of 1 and must not leave it.
    /// Counted once, not per gateway.
    pub expired: Count,
    /// Messages of gateways, not packets, that the kernel had no room for. A train counts as one.
    pub messages: Count,
}

/// All counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages of gateways.
    pub messages: Messages,
    /// Messages that were dropped, in the order of [`amt::relay::DropReason::REASONS`].
    pub dropped: [Count; amt::relay::DropReason::REASONS.len()],
    /// Answers sent.
    pub answers: Count,
    /// Answers that the kernel refused to send.
    pub answers_refused: Count,
    /// Packets from the native side that a gateway wants.
    pub native_packets: Count,
    /// Their bytes, with IP header.
    pub native_bytes: Count,
    /// Packets from the native side that no gateway wants.
    pub unwanted: Count,
    /// Captured packets that are malformed.
    pub broken: Count,
    /// Packets sent to gateways.
    pub sent_packets: Count,
    /// Bytes of inner packets sent to gateways.
    pub sent_bytes: Count,
    /// Packets lost.
    pub lost: Lost,
    /// Inner packets that were fragmented.
    pub fragmented: Count,
    /// ICMP messages to sources of packets that are too large.
    pub icmp: Count,
    /// ICMP messages that were not sent: too many, or missing privilege.
    pub icmp_unsent: Count,
    /// Reports of the network about a smaller path MTU.
    pub narrowed: Count,
    /// Joins on the native side that failed.
    pub join_failures: Count,
    /// Current number of tunnels.
    pub gateways: Level,
    /// Current number of joins on the native side.
    pub joins: Level,
    /// Wanted joins that failed.
    pub joins_missing: Level,
    /// 1 while packets cannot be captured although they should be, because the interface is down or
    /// gone.
    pub not_capturing: Level,
}

impl Counters {
    /// Returns the count of a reason.
    #[must_use]
    pub fn dropped(&self, why: amt::relay::DropReason) -> Option<&Count> {
        let names = amt::relay::DropReason::REASONS.iter();
        let mut counts = names.zip(&self.dropped);
        let found = counts.find(|(name, _)| **name == why.reason());
        found.map(|(_, count)| count)
    }
}
