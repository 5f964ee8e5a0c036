//! The transport driven without services: one program that publishes numbered messages at a steady
//! rate, and one that writes down when each arrived.
//!
//! A feed changes a few times a minute; what an update's way takes while the network fails is seen
//! at hundreds of messages a second. Both ends run on one machine, so that they share a clock.

mod message;
mod receiver;
mod record;
mod source;
mod transfer;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use message::Messages;
pub use receiver::{ReceiverSettings, receive};
pub use record::{Arrival, Records, Route, read_arrivals};
pub use source::{SourceSettings, publish};
pub use transfer::{received_between, send, sink};

/// The channel of a stream.
pub const STREAM: &str = "stream";
/// The token that receivers show; the networks are the testbed's own.
const TOKEN: &[u8] = b"stream";

/// Nanoseconds of the machine's monotonic clock, which runs alike in all its network namespaces.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Report of a source, written when all receivers are members, and again when all is delivered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StreamReport {
    /// When the first message is published, by [`now_ns`].
    pub start_ns: u64,
    /// Whether every receiver has confirmed the last message.
    pub complete: bool,
    /// Every move between rungs.
    pub moves: Vec<StreamMove>,
    /// By how much the latest message was published too late, in microseconds.
    pub latest_us: u64,
    /// Bytes of updates that went to single receivers.
    pub unicast_bytes: u64,
    /// Flow packets sent.
    pub flow_packets: u64,
}

/// A receiver changed its rung.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamMove {
    /// When, by [`now_ns`]; to the millisecond.
    pub at_ns: u64,
    /// The receiver's name.
    pub name: String,
    /// The rung it came to.
    pub to: String,
    /// Reason.
    pub cause: String,
}

/// The time between two messages of a stream.
pub fn interval(size: usize, rate_bps: u64) -> Duration {
    let bits = u64::try_from(size)
        .unwrap_or(u64::MAX)
        .saturating_mul(8_000_000_000);
    Duration::from_nanos(bits / rate_bps.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_megabits_of_1100_bytes() {
        assert_eq!(interval(1_100, 5_000_000), Duration::from_micros(1_760));
    }
}
