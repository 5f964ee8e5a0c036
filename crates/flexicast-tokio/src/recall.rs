//! Recovery of packets in flight to a peer whose address changed.
//!
//! quiche keeps account of packets by path, and declares one lost only when a later one of the same
//! path is acknowledged. After a NAT rebinding, the old path has no later packets, so all but the
//! two that each probe timeout repeats would be missing for ever. The remedy: one more packet is
//! made on the old path, and sent to the peer's new address. The peer acknowledges it like any
//! other, and with that the earlier ones count as lost and are sent again. It is a PING: a
//! PATH_CHALLENGE would let the answer from the new address validate the old one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The first packet may get lost, or the old path's congestion window may be full until its probe
/// timeout: the pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 6;

struct OldPath {
    local: SocketAddr,
    peer: SocketAddr,
    attempts: u32,
    at: Instant,
}

/// Paths that a peer has left.
#[derive(Default)]
pub(crate) struct Recall {
    left: Vec<OldPath>,
}

impl Recall {
    /// The peer has moved: all other paths are left.
    pub(crate) fn moved(&mut self, conn: &quiche::Connection, now: Instant) {
        let others = conn.path_stats().filter(|path| !path.active);
        self.left = others
            .map(|path| OldPath {
                local: path.local_addr,
                peer: path.peer_addr,
                attempts: 0,
                at: now,
            })
            .collect();
    }

    /// When to go on.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.left.iter().map(|left| left.at).min()
    }

    /// Not now: the peer's present address is not proved any more.
    pub(crate) fn postpone(&mut self, now: Instant) {
        for left in &mut self.left {
            left.at = left.at.max(now + FIRST_PAUSE);
        }
    }

    /// Makes the next packet that is due on a path that was left, for the peer's present address.
    /// Returns its length.
    pub(crate) fn packet(
        &mut self,
        conn: &mut quiche::Connection,
        out: &mut [u8],
        now: Instant,
    ) -> Option<usize> {
        while let Some(place) = self.left.iter().position(|left| left.at <= now) {
            let left = &mut self.left[place];
            let (local, peer) = (left.local, left.peer);
            left.at = now + FIRST_PAUSE * 2u32.pow(left.attempts);
            left.attempts += 1;
            let last = left.attempts >= ATTEMPTS;
            let made = conn
                .send_ack_eliciting_on_path(local, peer)
                .and_then(|()| conn.send_on_path(out, Some(local), Some(peer)));
            let gone = !matches!(made, Ok(_) | Err(quiche::Error::Done));
            if last || gone {
                self.left.swap_remove(place);
            }
            if let Ok((len, _)) = made {
                return Some(len);
            }
        }
        None
    }
}
