//! Load for measurements: a sender at a steady rate and a counting receiver, both as cheap as
//! possible, around the measured program.

mod cargo;
mod floor;
mod sender;
mod sink;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use cargo::{Cargo, SMALLEST};
pub use floor::{FloorPlan, floor};
pub use sender::{SendPlan, send};
pub use sink::{Ingress, SinkPlan, drain};

/// Packets sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct SendReport {
    /// Packets.
    pub packets: u64,
    /// Packets that the kernel refused.
    pub refused: u64,
    /// CPU time of the thread, in ns.
    pub cpu_ns: u64,
    /// Time taken, in ms.
    pub ms: u64,
}

/// Packets received.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DrainReport {
    /// Packets, socket by socket.
    pub packets: Vec<u64>,
    /// Packets with other content than was sent, or which came again or too late.
    pub wrong: u64,
    /// CPU time of the thread from the first packet on, in ns.
    pub cpu_ns: u64,
    /// From sending to arrival, in ns: the median, if it was asked for.
    pub p50_ns: Option<u64>,
    /// The 99th percentile.
    pub p99_ns: Option<u64>,
}

impl DrainReport {
    /// All sockets together.
    pub fn total(&self) -> u64 {
        self.packets.iter().sum()
    }
}

/// A group, or an address, and its permitted sender.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    /// Destination.
    pub to: SocketAddr,
    /// Permitted sender.
    pub from: IpAddr,
}

fn clock(which: ClockId) -> Duration {
    let time = clock_gettime(which);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// Time since the machine started, the same for all processes, in ns.
fn now_ns() -> u64 {
    nanoseconds(clock(ClockId::Monotonic))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
