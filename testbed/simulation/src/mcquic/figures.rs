//! Figures 10 to 12, 14 and 15 of the paper, with its parameters.

use std::time::Duration;

use flexicast::fec::FecConfig;

use super::report::Report;
use super::video::video;
use super::{LossyLinks, McquicFailure, Plan, play, play_unicast};

/// Receivers of all runs.
pub const RECEIVERS: usize = 50;
/// Acknowledgement delay of members: clients of the paper report what they miss at once.
pub const ACK_DELAY: Duration = Duration::from_millis(5);
/// Expiration timer of the video call.
pub const VIDEO_LIFETIME: Duration = Duration::from_millis(350);

/// A file in chunks that are updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its size in bytes.
    pub bytes: usize,
    /// Bytes of a chunk.
    pub chunk: usize,
    /// Bits per second.
    pub rate: u64,
}

/// The file of figure 12.
pub const FILE: File = File {
    bytes: 5_000_000,
    chunk: 1_100,
    rate: 2_000_000,
};

impl File {
    /// Returns the times and sizes of its chunks.
    #[must_use]
    pub fn chunks(&self) -> Vec<(Duration, usize)> {
        let every = Duration::from_secs_f64(self.chunk as f64 * 8.0 / self.rate as f64);
        let size = |n: usize| self.chunk.min(self.bytes - n * self.chunk);
        let chunks = 0..self.bytes.div_ceil(self.chunk);
        chunks.map(|n| (every * n as u32, size(n))).collect()
    }
}

/// Transport of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By a flow without authentication, and so without deadlines.
    Plain,
    /// By a flow whose updates are signed.
    Signed,
    /// By a connection for each receiver.
    Unicast,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Plain, Kind::Signed, Kind::Unicast];
}

/// Returns the transfer of a file with losses at the leaves of the tree (figure 12). Its updates
/// are signed, as in the paper.
#[must_use]
pub fn file_plan(
    file: File,
    loss: f64,
    lifetime: Duration,
    fec: Option<FecConfig>,
    seed: u64,
) -> Plan {
    Plan {
        receivers: RECEIVERS,
        lossy: LossyLinks::Leaves,
        loss,
        traffic: file.chunks(),
        lifetime,
        ack_delay: ACK_DELAY,
        fec,
        signed: true,
        seed,
    }
}

/// Plays it.
///
/// # Errors
/// The run fails.
pub fn file_transfer(
    file: File,
    loss: f64,
    lifetime: Duration,
    fec: Option<FecConfig>,
    seed: u64,
) -> Result<Report, McquicFailure> {
    play(&file_plan(file, loss, lifetime, fec, seed))
}

/// Plays a call with losses at the leaves of the tree (figures 10 and 11), or on the left branch
/// (figures 14 and 15).
///
/// # Errors
/// The run fails.
pub fn video_call(
    kind: Kind,
    lossy: LossyLinks,
    loss: f64,
    span: Duration,
    seed: u64,
) -> Result<Report, McquicFailure> {
    let plan = Plan {
        receivers: RECEIVERS,
        lossy,
        loss,
        traffic: video(span, seed),
        lifetime: VIDEO_LIFETIME,
        ack_delay: ACK_DELAY,
        fec: Some(FecConfig::default()),
        signed: kind == Kind::Signed,
        seed,
    };
    match kind {
        Kind::Unicast => play_unicast(&plan),
        Kind::Plain | Kind::Signed => play(&plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_whole() {
        let chunks = FILE.chunks();
        assert_eq!(chunks.len(), 4_546);
        assert_eq!(
            chunks.iter().map(|(_, size)| size).sum::<usize>(),
            5_000_000
        );
        assert_eq!(chunks[1].0, Duration::from_micros(4_400));
        assert_eq!(chunks[4_545].1, 500);
    }
}
