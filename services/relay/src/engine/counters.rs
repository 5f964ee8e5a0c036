//! What the engine counts, for everybody who wants to look.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// One number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One number that goes up and down.
#[derive(Debug, Default)]
pub struct Level(AtomicI64);

impl Level {
    /// Sets.
    pub fn set(&self, to: usize) {
        let to = i64::try_from(to).unwrap_or(i64::MAX);
        self.0.store(to, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Messages of gateways that came in, by type.
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

/// Why packets from the native side did not get to a gateway that wants them.
#[derive(Debug, Default)]
pub struct Lost {
    /// The kernel had no room for them before the relay could read them. Counted once, not for each
    /// gateway.
    pub overrun: Count,
    /// They are larger than the way to the gateway takes, and must not or cannot be fragmented.
    pub too_large: Count,
    /// The kernel refused to send them.
    pub refused: Count,
    /// They came by the network and were not to leave it: with a TTL or hop limit of 1. Counted once,
    /// not for each gateway.
    pub expired: Count,
    /// Not packets, but messages of gateways that the kernel had no room for. A train counts as one.
    pub messages: Count,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages of gateways.
    pub messages: Messages,
    /// Messages that came to nothing, in the order of [`amt::relay::DropReason::REASONS`].
    pub dropped: [Count; amt::relay::DropReason::REASONS.len()],
    /// Answers that were sent.
    pub answers: Count,
    /// Answers that the kernel refused to send.
    pub answers_refused: Count,
    /// Packets that came from the native side and that a gateway wants.
    pub native_packets: Count,
    /// Their bytes, with IP header.
    pub native_bytes: Count,
    /// Packets that came from the native side and that nobody wants.
    pub unwanted: Count,
    /// Packets that were captured and are broken.
    pub broken: Count,
    /// Packets sent to gateways.
    pub sent_packets: Count,
    /// Bytes of inner packets sent to gateways.
    pub sent_bytes: Count,
    /// Packets that did not get through.
    pub lost: Lost,
    /// Inner packets that were cut into fragments.
    pub fragmented: Count,
    /// ICMP messages to sources of packets that are too large.
    pub icmp: Count,
    /// Those that were not sent: too many, or without the right to.
    pub icmp_unsent: Count,
    /// Times that the network told of a smaller MTU of a way.
    pub narrowed: Count,
    /// Joins on the native side that failed.
    pub join_failures: Count,
    /// Tunnels now.
    pub gateways: Level,
    /// Joins on the native side now.
    pub joins: Level,
    /// Joins that are wanted and failed.
    pub joins_missing: Level,
    /// 1 while packets are to be captured and cannot be, since the interface is down or gone.
    pub not_capturing: Level,
}

impl Counters {
    /// The count of a reason.
    #[must_use]
    pub fn dropped(&self, why: amt::relay::DropReason) -> Option<&Count> {
        let names = amt::relay::DropReason::REASONS.iter();
        let mut counts = names.zip(&self.dropped);
        let found = counts.find(|(name, _)| **name == why.reason());
        found.map(|(_, count)| count)
    }
}
