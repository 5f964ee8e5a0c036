//! The experiments of the MCQUIC paper's section 5.2 in virtual time: a binary tree of 50 receivers
//! with losses, to which a source sends video or a file, by a flow or by a connection for each.
//!
//! Real are [`flexicast::source::Source`] and [`flexicast::receiver::Receiver`] with all their
//! parts, packets and keys: members, acknowledgements as feedback packets, repair symbols, repairs,
//! deadlines, signatures. Modelled are the links, and QUIC: connections with the detection of
//! losses of RFC 9002, over the same links. They carry what source and receivers send by unicast,
//! and are all there is where a run compares with unicast. What programs compute takes no time.

mod figures;
mod group;
mod peer;
mod quic;
mod report;
mod schedule;
mod tree;
mod unicast;
mod video;

use std::time::Duration;

use flexicast::fec::FecConfig;

pub use figures::{
    ACK_DELAY, FILE, File, Kind, RECEIVERS, VIDEO_LIFETIME, file_plan, file_transfer, video_call,
};
pub use group::play;
pub use report::{Lateness, Report};
pub use tree::LossyLinks;
pub use unicast::play_unicast;
pub use video::video;

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Receivers in the tree.
    pub receivers: usize,
    /// Links that lose packets.
    pub lossy: LossyLinks,
    /// Probability that one of those loses a packet.
    pub loss: f64,
    /// Times and sizes of the updates.
    pub traffic: Vec<(Duration, usize)>,
    /// Lifetime of an update, after which nothing more of it is sent or delivered.
    pub lifetime: Duration,
    /// Acknowledgement delay of members.
    pub ack_delay: Duration,
    /// Erasure coding of the flow.
    pub fec: Option<FecConfig>,
    /// Whether updates are signed: only then do they have deadlines, and come as soon as they are
    /// whole. Otherwise each one waits for those before it, and none expires.
    pub signed: bool,
    /// Seed of everything.
    pub seed: u64,
}

/// Failure of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McquicFailure(pub String);

impl std::fmt::Display for McquicFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for McquicFailure {}

fn failed(text: impl std::fmt::Display) -> McquicFailure {
    McquicFailure(text.to_string())
}
