//! Bounds on clients.
//!
//! No client can keep health checks out: a connection costs little until its request is there, and
//! a new connection beyond the bound replaces the one that has sent no request for the longest
//! time. Feeds and events, which take long, have places of their own, few enough that the rest
//! stays free, and no address gets all of them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bounds on what clients can use up.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Concurrent connections.
    pub connections: usize,
    /// Connections on which a feed or a stream of events is being sent.
    pub answers: usize,
    /// Such connections of one address; behind a proxy all clients have the same.
    pub per_peer: usize,
    /// Time limit for a request's header.
    pub header_time: Duration,
    /// Time limit for a small answer; larger ones have more.
    pub answer_time: Duration,
    /// Slowest rate at which a client may read an answer, in bytes per second.
    pub slowest: u64,
    /// Time limit for answers in progress at the end of the program.
    pub drain: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 256,
            answers: 128,
            per_peer: 96,
            header_time: Duration::from_secs(5),
            answer_time: Duration::from_secs(60),
            slowest: 8 << 10,
            drain: Duration::from_secs(5),
        }
    }
}

impl Bounds {
    /// Returns the time limit of an answer of so many bytes.
    fn time_for(&self, bytes: u64) -> Duration {
        let more = Duration::from_secs(bytes / self.slowest.max(1));
        self.answer_time.saturating_add(more)
    }
}

/// Bound that a client met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Too many connections, of which this one had sent no request.
    Connections,
    /// Too many feeds and streams of events at once.
    Answers,
    /// Too many of them to one address.
    Peer,
    /// Request not received in time.
    Header,
    /// Answer read too slowly.
    Time,
}

impl Limit {
    /// All bounds.
    pub const ALL: [Limit; 5] = [
        Limit::Connections,
        Limit::Answers,
        Limit::Peer,
        Limit::Header,
        Limit::Time,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Connections => "connections",
            Limit::Answers => "answers",
            Limit::Peer => "peer",
            Limit::Header => "header",
            Limit::Time => "time",
        }
    }
}

/// Connections, and the answers in progress.
#[derive(Debug, Default)]
pub struct Places {
    /// Bounds.
    pub bounds: Bounds,
    state: Mutex<State>,
    met: [AtomicU64; Limit::ALL.len()],
}

#[derive(Debug, Default)]
struct State {
    /// Connections by age, with a token that ends those without a request.
    connections: BTreeMap<u64, Option<CancellationToken>>,
    next: u64,
    answers: usize,
    peers: HashMap<IpAddr, usize>,
}

/// Connection, which frees its place when dropped.
#[derive(Debug)]
pub struct Connection {
    places: Arc<Places>,
    number: u64,
    address: IpAddr,
    peer: IpAddr,
    /// Cancelled when the connection has to make room.
    pub unwanted: CancellationToken,
    /// Deadline of its answer.
    deadline: watch::Sender<Option<Instant>>,
    has_answer: Mutex<bool>,
}

impl Places {
    /// Returns no connections, with room for so many.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// Adds a connection. `None` if there is no room at all.
    pub fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Connection> {
        let unwanted = CancellationToken::new();
        let mut state = self.state();
        if state.connections.len() >= self.bounds.connections {
            self.count(Limit::Connections);
            let oldest = state.connections.iter().find(|(_, quiet)| quiet.is_some());
            let oldest = *oldest?.0;
            if let Some(Some(quiet)) = state.connections.remove(&oldest) {
                quiet.cancel();
            }
        }
        let number = state.next;
        state.next += 1;
        state.connections.insert(number, Some(unwanted.clone()));
        drop(state);
        Some(Connection {
            places: Arc::clone(self),
            number,
            address: peer,
            peer: group(peer),
            unwanted,
            deadline: watch::Sender::new(None),
            has_answer: Mutex::new(false),
        })
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> u64 {
        self.state().connections.len() as u64
    }

    /// Counts a client that met a bound.
    pub fn count(&self, limit: Limit) {
        if let Some(met) = self.met.get(limit as usize) {
            met.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of times a bound was met.
    pub fn met(&self, limit: Limit) -> u64 {
        let met = self.met.get(limit as usize);
        met.map_or(0, |met| met.load(Ordering::Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change under this lock can be left half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Address of the client.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Notes that the request has arrived; the answer takes bounded time.
    pub fn asked(&self) {
        if let Some(quiet) = self.places.state().connections.get_mut(&self.number) {
            *quiet = None;
        }
        self.has_to_end_within(Some(0));
    }

    /// Takes a place for a long answer, until the connection ends.
    pub fn admit(&self) -> Result<(), Limit> {
        let bounds = &self.places.bounds;
        let mut has_answer = self
            .has_answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *has_answer {
            return Ok(());
        }
        let mut state = self.places.state();
        let of_peer = state.peers.get(&self.peer).copied().unwrap_or(0);
        let limit = match () {
            () if state.answers >= bounds.answers => Some(Limit::Answers),
            () if of_peer >= bounds.per_peer => Some(Limit::Peer),
            () => None,
        };
        if let Some(limit) = limit {
            drop(state);
            self.places.count(limit);
            return Err(limit);
        }
        state.answers += 1;
        state.peers.insert(self.peer, of_peer + 1);
        *has_answer = true;
        Ok(())
    }

    /// Counts a bound that the client met.
    pub fn meets(&self, limit: Limit) {
        self.places.count(limit);
    }

    /// Sets the deadline of an answer of so many bytes; `None` for an endless one.
    pub fn has_to_end_within(&self, bytes: Option<u64>) {
        let time = bytes.map(|bytes| self.places.bounds.time_for(bytes));
        self.deadline
            .send_replace(time.map(|time| Instant::now() + time));
    }

    /// Waits until the deadline of the answer has passed.
    pub async fn is_late(&self) {
        let mut deadline = self.deadline.subscribe();
        loop {
            let at = *deadline.borrow_and_update();
            match at {
                Some(at) => {
                    let changed = tokio::time::timeout_at(at, deadline.changed());
                    if changed.await.is_err() {
                        return;
                    }
                }
                // The sender lives as long as the connection.
                None => {
                    let _ = deadline.changed().await;
                }
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let has_answer = self
            .has_answer
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut state = self.places.state();
        state.connections.remove(&self.number);
        if !*has_answer {
            return;
        }
        state.answers = state.answers.saturating_sub(1);
        if let Some(of_peer) = state.peers.get_mut(&self.peer) {
            *of_peer = of_peer.saturating_sub(1);
            if *of_peer == 0 {
                state.peers.remove(&self.peer);
            }
        }
    }
}

/// Returns what identifies a client: an IPv4 address, or an IPv6 /64, any address of which a client
/// may use.
fn group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn places() -> Arc<Places> {
        Arc::new(Places::new(Bounds {
            connections: 4,
            answers: 3,
            per_peer: 2,
            ..Bounds::default()
        }))
    }

    #[test]
    fn connections_without_a_request_make_room() {
        let places = places();
        let all: Vec<_> = (0..4).map(|_| places.enter(A).unwrap()).collect();
        all[0].asked();
        let late = places.enter(B).unwrap();
        let unwanted: Vec<_> = all.iter().map(|c| c.unwanted.is_cancelled()).collect();
        assert_eq!(unwanted, [false, true, false, false]);
        assert!(!late.unwanted.is_cancelled());
        assert_eq!(places.met(Limit::Connections), 1);
        // None can be dropped if all have sent requests.
        all[2].asked();
        all[3].asked();
        late.asked();
        assert!(places.enter(B).is_none());
        assert_eq!(places.connections(), 4);
        drop((all, late));
        assert_eq!(places.connections(), 0);
    }

    #[test]
    fn no_address_gets_all_places() {
        let places = places();
        let mut of_a: Vec<_> = (0..3).map(|_| places.enter(A).unwrap()).collect();
        assert_eq!(of_a[0].admit(), Ok(()));
        assert_eq!(of_a[0].admit(), Ok(()), "it has its place");
        assert_eq!(of_a[1].admit(), Ok(()));
        assert_eq!(of_a[2].admit(), Err(Limit::Peer));
        let of_b = places.enter(B).unwrap();
        assert_eq!(of_b.admit(), Ok(()));
        of_a.remove(2);
        let of_b_too = places.enter(B).unwrap();
        assert_eq!(of_b_too.admit(), Err(Limit::Answers));
        of_a.remove(0);
        assert_eq!(of_b_too.admit(), Ok(()));
        assert_eq!(places.met(Limit::Peer), 1);
        assert_eq!(places.met(Limit::Answers), 1);
        drop((of_a, of_b, of_b_too));
        assert!(places.state().peers.is_empty());
        assert_eq!(places.state().answers, 0);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let one = group("2001:db8:1:2:3::4".parse().unwrap());
        assert_eq!(one, group("2001:db8:1:2::".parse().unwrap()));
        assert_ne!(one, group("2001:db8:1:3::".parse().unwrap()));
        assert_eq!(group("::ffff:192.0.2.1".parse().unwrap()), A);
    }
}
