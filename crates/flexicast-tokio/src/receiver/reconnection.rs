//! When and where to connect next.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flexicast::control::Refusal;
use flexicast::source::close;
use rand::RngExt;

use super::connection::CloseReason;

/// The first pause after a failed attempt; it doubles up to the maximum.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// A source that ends, or gives a channel away, has its receivers back within this time.
const COME_BACK: Duration = Duration::from_millis(1500);
/// A connection that was served for so long was a good one: the next pause is short again.
const SETTLED: Duration = Duration::from_secs(10);

/// The next attempt to connect.
pub(super) struct Reconnection {
    at: Option<Instant>,
    pause: Duration,
    /// When the source began to serve this connection.
    welcomed_at: Option<Instant>,
    /// REFUSED came with this code, so the close that follows says nothing new.
    refused: Option<Refusal>,
    /// Whether no further attempt is made.
    stopped: bool,
    /// Last resolved addresses of the source's name.
    addresses: Vec<SocketAddr>,
    /// Those of them that refused to serve, or sent this receiver away, since it was served last.
    shunned: Vec<SocketAddr>,
}

impl Reconnection {
    pub(super) fn new(now: Instant) -> Self {
        Reconnection {
            at: Some(now),
            pause: RETRY_FIRST,
            welcomed_at: None,
            refused: None,
            stopped: false,
            addresses: Vec::new(),
            shunned: Vec::new(),
        }
    }

    /// Returns when the next attempt is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.at
    }

    /// Begins the attempt, and returns the addresses that are tried last.
    pub(super) fn begin(&mut self) -> Vec<SocketAddr> {
        (self.at, self.refused) = (None, None);
        self.shunned.clone()
    }

    /// Postpones the attempt.
    pub(super) fn postpone(&mut self, at: Instant) {
        self.at = Some(at);
    }

    pub(super) fn set_addresses(&mut self, addresses: &[SocketAddr]) {
        self.addresses = addresses.to_vec();
    }

    /// Handles a WELCOME.
    pub(super) fn welcomed(&mut self, now: Instant) {
        self.welcomed_at = Some(now);
        self.shunned.clear();
    }

    /// Handles a REFUSED; returns whether it is fatal: the same words would be refused again.
    pub(super) fn refused(&mut self, code: u64) -> bool {
        let later = [Refusal::Unavailable, Refusal::TooMany, Refusal::IdInUse];
        let refusal = Refusal::from_number(code);
        self.refused = Some(refusal.unwrap_or(Refusal::BadHello));
        let fatal = !refusal.is_some_and(|refusal| later.contains(&refusal));
        if fatal {
            self.stopped = true;
            self.at = None;
        }
        fatal
    }

    /// Brings the attempt forward: an earlier failure may not repeat in another network.
    pub(super) fn network_changed(&mut self, is_connected: bool, now: Instant) {
        self.pause = RETRY_FIRST;
        if !is_connected && let Some(at) = &mut self.at {
            *at = now;
        }
    }

    /// Handles the loss of a connection, before the state machine's last events of it.
    pub(super) fn disconnected(&mut self) {
        let welcomed_at = self.welcomed_at.take();
        if welcomed_at.is_some_and(|at| at.elapsed() >= SETTLED) {
            self.pause = RETRY_FIRST;
        }
    }

    /// Plans the attempt that follows the end of a connection. Returns the time until then, and why
    /// the connection ended, for people; `None` if no further attempt is made.
    pub(super) fn plan(&mut self, end: CloseReason) -> Option<(Duration, String)> {
        if self.stopped {
            return None;
        }
        let mut reason = end.reason;
        let mut retry_in = None;
        if end.code == Some(close::REFUSED) && self.refused == Some(Refusal::IdInUse) {
            // The holder of the id has shown to be alive.
            retry_in = Some(RETRY_MAX.mul_f64(rand::rng().random_range(1.0..1.5)));
        } else if end.code == Some(close::REFUSED) && self.refused.is_some() {
            // REFUSED said why, and that another attempt may help: not at once, but for the
            // source's other addresses.
            self.pause = self.pause.max(RETRY_FIRST * 8);
            retry_in = self.shun(end.peer);
        } else if matches!(end.code, Some(close::GOING_AWAY | close::CHANNEL_GONE)) {
            // The source dismisses all its receivers at once: they do not return all at once.
            let after = rand::rng().random_range(0.2..1.0);
            self.shun(end.peer);
            retry_in = Some(COME_BACK.mul_f64(after));
        } else if end.code == Some(close::RECONNECT) {
            // An operator wants it to come back.
            self.pause = RETRY_FIRST;
        } else if end.code == Some(close::EJECTED) {
            // An operator decided so: this receiver comes back no sooner than it must.
            self.pause = RETRY_MAX;
        } else if end.code == Some(close::SUPERSEDED) {
            // Two receivers with one id would throw each other out for ever.
            self.pause = RETRY_MAX;
            reason.push_str(
                ". Another receiver uses this receiver's id: if the data folder is a \
                copy, remove the receiver's id in one of them",
            );
        }
        let retry_in = retry_in.unwrap_or_else(|| {
            let pause = self.pause;
            self.pause = (pause * 2).min(RETRY_MAX);
            pause.mul_f64(rand::rng().random_range(0.5..1.0))
        });
        self.at = Some(Instant::now() + retry_in);
        Some((retry_in, reason))
    }

    /// This address of the source's serves nothing now: the others go first in the next attempt,
    /// which comes soon if there are any that have not done the same.
    fn shun(&mut self, peer: Option<SocketAddr>) -> Option<Duration> {
        // One that was tried last, and came first all the same: the others do not answer.
        let again = peer.is_none_or(|peer| self.shunned.contains(&peer));
        self.shunned.extend(peer);
        let untried = self.addresses.iter().any(|a| !self.shunned.contains(a));
        if untried && !again {
            return Some(RETRY_FIRST.mul_f64(rand::rng().random_range(0.2..1.0)));
        }
        // All of them: the next round begins.
        self.shunned.clear();
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    /// A standby source that refuses is left for the other one at once; where both refuse, or the
    /// other does not answer, the pauses grow as ever.
    #[test]
    fn a_source_that_refuses_is_left_for_another_one_at_once() {
        let mut next = Reconnection::new(Instant::now());
        let here: SocketAddr = "192.0.2.1:4433".parse().unwrap();
        let there: SocketAddr = "[2001:db8::1]:4433".parse().unwrap();
        next.addresses = vec![here];
        for _ in 0..3 {
            assert_eq!(next.shun(Some(here)), None, "there is no other");
        }
        next.shunned.clear();
        next.addresses = vec![here, there];
        assert!(next.shun(Some(here)).unwrap() <= RETRY_FIRST);
        assert_eq!(next.shunned, [here]);
        assert_eq!(next.shun(Some(there)), None, "both refuse");
        assert!(next.shun(Some(here)).unwrap() <= RETRY_FIRST, "a new round");
        next.shunned = vec![here];
        assert_eq!(next.shun(Some(here)), None, "the other does not answer");
        assert_eq!(next.shun(None), None);
    }
}
