//! When and where to connect next.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flexicast::control::{MAX_SOURCE_ADDRESSES, Refusal, SourceAddress};
use flexicast::source::close;
use rand::RngExt;

use super::connection::CloseReason;

/// The first pause after a failed attempt; it doubles up to the maximum.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// A source that ends, or gives a channel away, has its receivers back within this time.
const COME_BACK: Duration = Duration::from_millis(1500);
/// Receivers on an address that the source leaves move within this time, not all at once.
const MOVE_WITHIN: Duration = Duration::from_secs(2);
/// Pause after an attempt to move that failed.
const MOVE_AGAIN: Duration = Duration::from_secs(5);
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
    /// Addresses that the source announced over a connection to one of them.
    announced: Vec<SourceAddress>,
    /// Where the source was, by this run or the last: the address that served this receiver, and
    /// those that were announced there.
    known: Vec<SocketAddr>,
    /// When to leave the present one for another.
    move_at: Option<Instant>,
}

/// Addresses of an attempt besides those of the source's name.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidates {
    /// Addresses that the source announced, or had: tried after those of its name.
    pub(super) known: Vec<SocketAddr>,
    /// Tried after all others.
    pub(super) last: Vec<SocketAddr>,
}

impl Reconnection {
    /// `known` are addresses of the source from an earlier run.
    pub(super) fn new(known: Vec<SocketAddr>, now: Instant) -> Self {
        Reconnection {
            at: Some(now),
            pause: RETRY_FIRST,
            welcomed_at: None,
            refused: None,
            stopped: false,
            addresses: Vec::new(),
            shunned: Vec::new(),
            announced: Vec::new(),
            known,
            move_at: None,
        }
    }

    /// Returns when the next attempt is due, be it to connect or to move.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        [self.at, self.move_at].into_iter().flatten().min()
    }

    /// Whether an attempt to connect is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Begins the attempt to connect, and returns its addresses besides those of the name.
    pub(super) fn begin(&mut self) -> Candidates {
        (self.at, self.refused, self.move_at) = (None, None, None);
        let mut last = self.shunned.clone();
        last.extend(self.leaving());
        let announced = self.announced.iter().map(|address| address.at);
        Candidates {
            known: announced.chain(self.known.iter().copied()).collect(),
            last,
        }
    }

    /// Begins an attempt to move, if one is due, beside the connection that there is. Returns the
    /// addresses for it: those that the source announced alone, since others of its name may be
    /// another source's.
    pub(super) fn begin_move(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        self.move_at.take_if(|at| *at <= now)?;
        let staying = self.announced.iter().filter(|address| !address.leaving);
        Some(staying.map(|address| address.at).collect())
    }

    /// Postpones a move that failed: the connection that there is goes on.
    pub(super) fn move_failed(&mut self, now: Instant) {
        self.move_at = Some(now + MOVE_AGAIN.mul_f64(rand::rng().random_range(0.5..1.0)));
    }

    /// Handles the addresses that the source announced over a connection to `peer`. They mean
    /// nothing where a router translates its address.
    pub(super) fn announced(
        &mut self,
        addresses: Vec<SourceAddress>,
        peer: SocketAddr,
        now: Instant,
    ) {
        if addresses.is_empty() {
            // All of them stay.
            self.move_at = None;
            self.announced.clear();
            return;
        }
        let Some(own) = addresses.iter().find(|address| address.at == peer) else {
            return;
        };
        let elsewhere = addresses.iter().any(|address| !address.leaving);
        if !(own.leaving && elsewhere) {
            self.move_at = None;
        } else if self.move_at.is_none() {
            self.move_at = Some(now + MOVE_WITHIN.mul_f64(rand::rng().random_range(0.0..1.0)));
        }
        self.announced = addresses;
    }

    /// Remembers where the source is: at `peer`, and at the addresses that it announced there.
    /// Returns them if that has changed.
    pub(super) fn remember(&mut self, peer: SocketAddr) -> Option<Vec<SocketAddr>> {
        let staying = self.announced.iter().filter(|address| !address.leaving);
        let staying = staying.map(|address| address.at).filter(|at| *at != peer);
        let leaves = self.leaving().any(|at| at == peer);
        let mut known: Vec<SocketAddr> = [peer].into_iter().chain(staying).collect();
        // It is better than none.
        if leaves && known.len() > 1 {
            known.remove(0);
        }
        known.truncate(MAX_SOURCE_ADDRESSES);
        let is_news = known != self.known;
        self.known = known;
        is_news.then(|| self.known.clone())
    }

    fn leaving(&self) -> impl Iterator<Item = SocketAddr> {
        let leaving = self.announced.iter().filter(|address| address.leaving);
        leaving.map(|address| address.at)
    }

    /// Handles the success of an attempt.
    pub(super) fn connected(&mut self) {
        (self.at, self.move_at) = (None, None);
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
        self.move_at = None;
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
        let mut next = Reconnection::new(Vec::new(), Instant::now());
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

    #[test]
    fn a_receiver_moves_from_an_address_that_leaves() {
        let now = Instant::now();
        let mut next = Reconnection::new(Vec::new(), now);
        let [old, new]: [SocketAddr; 2] =
            ["192.0.2.1:4433", "192.0.2.2:4433"].map(|at| at.parse().unwrap());
        let list = |leaving| {
            let old = SourceAddress { at: old, leaving };
            let new = SourceAddress {
                at: new,
                leaving: false,
            };
            vec![old, new]
        };
        next.begin();
        let translated = "203.0.113.1:4433".parse().unwrap();
        next.announced(list(true), translated, now);
        assert!(next.announced.is_empty() && next.next_timeout().is_none());
        next.announced(list(false), old, now);
        assert!(next.next_timeout().is_none(), "remembered for later");
        assert_eq!(next.begin().known, [old, new]);

        next.announced(list(true), old, now);
        let at = next.next_timeout().unwrap();
        assert!(at <= now + MOVE_WITHIN);
        next.announced(list(true), old, now + MOVE_WITHIN);
        assert_eq!(next.next_timeout(), Some(at), "not put off");
        assert!(!next.is_due(at), "the connection that there is goes on");
        assert_eq!(next.begin_move(at), Some(vec![new]));
        assert!(next.begin_move(at + MOVE_WITHIN).is_none(), "once");
        next.move_failed(at);
        assert!(next.begin_move(at + MOVE_AGAIN).is_some(), "again");
        // Without a connection, the old address is better than none.
        assert_eq!(next.begin().last, [old]);

        for stays in [list(false), Vec::new()] {
            next.announced(list(true), old, now);
            next.announced(stays, old, now);
            assert!(next.next_timeout().is_none(), "it stays after all");
            assert!(next.begin().last.is_empty());
        }
        let alone = SourceAddress {
            at: old,
            leaving: true,
        };
        next.announced(vec![alone], old, now);
        assert!(next.next_timeout().is_none(), "there is no other");
    }

    /// The last address replaces all that were known before.
    #[test]
    fn the_source_is_found_where_it_was_last() {
        let now = Instant::now();
        let [old, new, gone]: [SocketAddr; 3] =
            ["192.0.2.1:4433", "192.0.2.2:4433", "192.0.2.3:4433"].map(|at| at.parse().unwrap());
        let mut next = Reconnection::new(vec![gone], now);
        assert_eq!(next.begin().known, [gone]);
        assert_eq!(next.remember(old), Some(vec![old]));
        assert_eq!(next.remember(old), None, "no change");
        let list = [(old, true), (new, false)];
        let list = list.map(|(at, leaving)| SourceAddress { at, leaving });
        next.announced(list.to_vec(), old, now);
        assert_eq!(next.remember(old), Some(vec![new]));
        assert_eq!(next.remember(new), None, "moved");
        next.announced(Vec::new(), new, now);
        assert_eq!(next.remember(new), None, "the old address is gone");
        assert_eq!(next.begin().known, [new]);

        let alone = SourceAddress {
            at: new,
            leaving: true,
        };
        next.announced(vec![alone], new, now);
        assert_eq!(next.remember(new), None, "better than none");
        let many = (1..=20).map(|port| SourceAddress {
            at: SocketAddr::new(new.ip(), port),
            leaving: false,
        });
        next.announced = many.collect();
        let known = next.remember(new).unwrap();
        assert_eq!((known.len(), known[0]), (MAX_SOURCE_ADDRESSES, new));
    }
}
