//! Connecting: all addresses of the source's name are tried, a little apart, and the first that
//! answers and is authentic is taken (in the manner of RFC 8305).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tracing::debug;

use super::ReceiverConfig;
use super::connection::{CloseReason, Connection};
use super::reconnection::Candidates;
use crate::qlog::Qlog;

/// The next address is tried when the one before has not answered for so long.
const STAGGER: Duration = Duration::from_millis(250);
/// The name has to be found by then.
const LOOKUP_WITHIN: Duration = Duration::from_secs(10);
/// Addresses that are tried at once.
const MAX_ADDRESSES: usize = 8;
/// Of these, known otherwise than by the name, at least, where there are so many.
const KNOWN_ADDRESSES: usize = 2;

/// Attempts that run side by side.
pub(super) struct Race {
    lookup: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    waiting: VecDeque<SocketAddr>,
    addresses: Vec<SocketAddr>,
    candidates: Candidates,
    next_at: Instant,
    running: Vec<Connection>,
    ended: Vec<CloseReason>,
    /// Attempts that failed after the source had answered, to be closed.
    over: Vec<(Connection, CloseReason)>,
}

/// State of a race.
pub(super) enum RaceState {
    /// Undecided.
    Going,
    /// This one is verified. What is left of the others is to be closed.
    Won(Box<Connection>, Vec<Connection>),
    /// All have failed.
    Lost(CloseReason),
}

impl Race {
    /// Begins to look up the source's name, `host:port`.
    pub(super) fn begin(server: &str, candidates: Candidates, now: Instant) -> Self {
        let name = server.to_owned();
        let lookup = tokio::spawn(async move {
            let found = tokio::net::lookup_host(&name);
            match tokio::time::timeout(LOOKUP_WITHIN, found).await {
                Ok(found) => found.map(Iterator::collect),
                Err(_) => Err(io::Error::other("the name service does not answer")),
            }
        });
        let mut race = Self::among(Vec::new(), now);
        (race.lookup, race.candidates) = (Some(lookup), candidates);
        race
    }

    /// Begins to try these addresses.
    pub(super) fn among(addresses: Vec<SocketAddr>, now: Instant) -> Self {
        Race {
            lookup: None,
            waiting: addresses.iter().copied().collect(),
            addresses,
            candidates: Candidates::default(),
            next_at: now,
            running: Vec::new(),
            ended: Vec::new(),
            over: Vec::new(),
        }
    }

    /// Returns the resolved addresses.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Waits until there is something to do, apart from what is due by time.
    pub(super) async fn woken(&mut self) {
        if let Some(lookup) = &mut self.lookup {
            let found = lookup.await;
            self.lookup = None;
            let found = match found {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => self.not_found(&error),
                Err(error) => self.not_found(&error),
            };
            self.waiting = in_order(found, &self.candidates);
            self.addresses = self.waiting.iter().copied().collect();
            return;
        }
        let mut waits: Vec<Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>> = Vec::new();
        for connection in &self.running {
            waits.push(Box::pin(connection.socket.readable()));
        }
        std::future::poll_fn(|cx| {
            let any = waits.iter_mut().any(|w| w.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The name is not found: only known addresses are tried.
    fn not_found(&mut self, error: &dyn std::fmt::Display) -> Vec<SocketAddr> {
        let reason = format!("name lookup: {error}");
        self.ended.push(CloseReason::new(reason));
        Vec::new()
    }

    /// When to go on even if nothing arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.lookup.is_some() {
            return None;
        }
        let next = (!self.waiting.is_empty()).then_some(self.next_at);
        // With nothing to wait for, the race is over and has to be reported.
        let over = self.running.is_empty().then_some(self.next_at);
        let running = self.running.iter().map(Connection::handshake_deadline);
        running.chain(next).chain(over).min()
    }

    /// Does what can be done now.
    pub(super) async fn drive(
        &mut self,
        config: &ReceiverConfig,
        qlog: Option<&Qlog>,
        now: Instant,
    ) -> RaceState {
        if self.lookup.is_some() {
            return RaceState::Going;
        }
        let mut at = 0;
        while let Some(connection) = self.running.get_mut(at) {
            match connection.handshake(config, now).await {
                Ok(true) => {
                    let winner = self.running.swap_remove(at);
                    let losers = std::mem::take(&mut self.running);
                    return RaceState::Won(Box::new(winner), losers);
                }
                Ok(false) => at += 1,
                Err(end) => {
                    debug!(peer = %connection.peer, reason = end.reason, "an attempt failed");
                    let connection = self.running.swap_remove(at);
                    self.over.push((connection, end.clone()));
                    self.failed(end, now);
                }
            }
        }
        while !self.waiting.is_empty() && self.next_at <= now {
            self.next_at = now + STAGGER;
            let Some(peer) = self.waiting.pop_front() else {
                break;
            };
            let begun = match Connection::open(config, peer, qlog, now) {
                Ok(mut connection) => match connection.handshake(config, now).await {
                    Ok(_) => Ok(connection),
                    Err(end) => Err(end),
                },
                Err(error) => Err(CloseReason::new(format!("{peer}: {error}"))),
            };
            match begun {
                Ok(connection) => self.running.push(connection),
                Err(end) => self.failed(end, now),
            }
        }
        if self.running.is_empty() && self.waiting.is_empty() {
            return RaceState::Lost(self.lost(config));
        }
        RaceState::Going
    }

    /// Another address is tried at once.
    fn failed(&mut self, end: CloseReason, now: Instant) {
        self.ended.push(end);
        self.next_at = now;
    }

    fn lost(&mut self, config: &ReceiverConfig) -> CloseReason {
        let ended = std::mem::take(&mut self.ended);
        let mut reasons: Vec<_> = ended.iter().map(|end| end.reason.clone()).collect();
        reasons.dedup();
        let code = ended.iter().find_map(|end| end.code);
        let mut end = CloseReason::new(match reasons.is_empty() {
            true => format!("{} has no address", config.server),
            false => format!(
                "cannot connect to {}: {}",
                config.server,
                reasons.join("; ")
            ),
        });
        end.code = code;
        end
    }

    /// Returns the attempts that failed since the last call, to be closed with the reason.
    pub(super) fn take_over(&mut self) -> Vec<(Connection, CloseReason)> {
        std::mem::take(&mut self.over)
    }

    /// Gives up; attempts that got anywhere are to be closed.
    pub(super) fn stop(&mut self) -> Vec<Connection> {
        if let Some(lookup) = self.lookup.take() {
            lookup.abort();
        }
        std::mem::take(&mut self.running)
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        if let Some(lookup) = &self.lookup {
            lookup.abort();
        }
    }
}

/// IPv6 first, then in turns, and behind them those that are known otherwise; each address once,
/// and those that are tried last after all others.
fn in_order(found: Vec<SocketAddr>, candidates: &Candidates) -> VecDeque<SocketAddr> {
    let mut order = VecDeque::new();
    let (six, four): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv6);
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    loop {
        let pair = [six.next(), four.next()];
        if pair == [None, None] {
            break;
        }
        for address in pair.into_iter().flatten() {
            if !order.contains(&address) {
                order.push_back(address);
            }
        }
    }
    // Stable sorts: among themselves they stay in their order.
    let is_last = |address: &SocketAddr| candidates.last.contains(address);
    order.make_contiguous().sort_by_key(is_last);
    // A name with many addresses leaves some room for those that are known.
    order.truncate(MAX_ADDRESSES - candidates.known.len().min(KNOWN_ADDRESSES));
    for address in &candidates.known {
        if !order.contains(address) {
            order.push_back(*address);
        }
    }
    order.make_contiguous().sort_by_key(is_last);
    order.truncate(MAX_ADDRESSES);
    order
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn parse(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|a| a.parse().unwrap()).collect()
    }

    fn last(list: &[SocketAddr]) -> Candidates {
        Candidates {
            last: list.to_vec(),
            ..Candidates::default()
        }
    }

    #[test]
    fn a_name_with_many_addresses_leaves_room_for_known_ones() {
        let found = (1..50).map(|n| SocketAddr::from(([10, 0, 0, n], 1)));
        let known: Vec<SocketAddr> = [[192, 0, 2, 1], [10, 0, 0, 40]]
            .map(|ip| (ip, 1).into())
            .into();
        let candidates = Candidates {
            known: known.clone(),
            last: vec![],
        };
        let order = in_order(found.collect(), &candidates);
        assert_eq!(order.len(), MAX_ADDRESSES);
        assert!(known.iter().all(|address| order.contains(address)));
    }

    #[test]
    fn addresses_alternate_families_with_ipv6_first() {
        let found = parse(&["1.1.1.1:1", "1.1.1.2:1", "1.1.1.1:1", "[::1]:1"]);
        let wanted = parse(&["[::1]:1", "1.1.1.1:1", "1.1.1.2:1"]);
        assert_eq!(in_order(found, &last(&[])), wanted);
        assert!(in_order(Vec::new(), &last(&[])).is_empty());
        let many = (1..50).map(|i| SocketAddr::from(([10, 0, 0, i], 1)));
        assert_eq!(in_order(many.collect(), &last(&[])).len(), MAX_ADDRESSES);
    }

    #[test]
    fn a_source_that_dismissed_the_receiver_is_tried_last() {
        let found = parse(&["[::1]:1", "1.1.1.1:1", "1.1.1.2:1"]);
        let order = in_order(found.clone(), &last(&parse(&["[::1]:1"])));
        assert_eq!(order, parse(&["1.1.1.1:1", "1.1.1.2:1", "[::1]:1"]));
        assert_eq!(in_order(found.clone(), &last(&found)).len(), 3);
        // Among many it is not left out in favour of one that is shunned.
        let many: Vec<_> = (1..50)
            .map(|i| SocketAddr::from(([10, 0, 0, i], 1)))
            .collect();
        assert_eq!(
            in_order(many.clone(), &last(&many[..49 - 1])).front(),
            Some(&many[48])
        );
    }

    #[test]
    fn known_addresses_follow_those_of_the_name() {
        let found = parse(&["1.1.1.1:1", "1.1.1.2:1"]);
        let candidates = Candidates {
            known: parse(&["1.1.1.2:1", "[::1]:1", "1.1.1.3:1"]),
            last: parse(&["1.1.1.1:1"]),
        };
        let wanted = parse(&["1.1.1.2:1", "[::1]:1", "1.1.1.3:1", "1.1.1.1:1"]);
        assert_eq!(in_order(found, &candidates), wanted);
        // A name that is not found leaves them.
        assert_eq!(
            in_order(Vec::new(), &candidates),
            parse(&["1.1.1.2:1", "[::1]:1", "1.1.1.3:1"])
        );
    }
}
