//! State of all receivers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flexicast::{Cause, Rung, Via};
use uuid::Uuid;

use crate::latency::Latencies;
use crate::ledger::{Comparison, Ledger};
use crate::position::{Position, ViaCounts, Violations};

/// Different texts that are counted; peers choose them.
const MAX_REASONS: usize = 64;

/// Connection of a receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Connection {
    /// Not started, or on its way.
    #[default]
    None,
    /// Served by the source.
    Served,
    /// Left by intention, and on its way back.
    Away,
    /// Refused for good.
    Refused,
}

/// State of one receiver.
#[derive(Debug, Clone, Default)]
pub struct MemberState {
    /// Its connection.
    pub connection: Connection,
    /// Its progress, in the order of the channels.
    pub positions: Vec<Position>,
}

/// One channel.
#[derive(Debug)]
struct Channel {
    name: String,
    ledger: Mutex<Ledger>,
    /// The last update that any receiver knows of.
    head: AtomicU64,
    /// Updates after this one do not count any more.
    last: AtomicU64,
}

/// Events of all receivers, by number of times.
#[derive(Debug, Default, Clone)]
pub struct Events {
    /// Moves to a worse rung, by rungs and cause.
    pub fall_backs: BTreeMap<String, u64>,
    /// Connections that failed or were lost, by reason.
    pub disconnections: BTreeMap<String, u64>,
    /// Refusals, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Receivers that left by intention and are back.
    pub returns: u64,
}

/// The state of the swarm.
#[derive(Debug)]
pub struct Board {
    channels: Vec<Channel>,
    members: Vec<Mutex<MemberState>>,
    latencies: Mutex<Latencies>,
    events: Mutex<Events>,
    /// Updates stored at the source from then on are measured, Unix time in ms.
    measured_from: AtomicU64,
}

/// Sums over all receivers.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Receivers that are served.
    pub served: u64,
    /// Receivers that were refused for good.
    pub refused: u64,
    /// Receivers that are served, by channel and rung.
    pub rungs: BTreeMap<(String, Rung), u64>,
    /// Updates delivered, by path.
    pub via: ViaCounts,
    /// Everything that was wrong.
    pub violations: Violations,
}

impl Totals {
    /// Returns the number of receivers that are served, or will never be.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.served + self.refused
    }

    /// Returns the number of updates delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.via.flow + self.via.repaired + self.via.unicast
    }
}

impl Board {
    /// Returns the state of so many receivers before their start.
    #[must_use]
    pub fn new(channels: &[String], members: u32) -> Self {
        let state = || MemberState {
            connection: Connection::None,
            positions: vec![Position::default(); channels.len()],
        };
        let channels = channels.iter().map(|name| Channel {
            name: name.clone(),
            ledger: Mutex::default(),
            head: AtomicU64::new(0),
            last: AtomicU64::new(u64::MAX),
        });
        Board {
            channels: channels.collect(),
            members: (0..members).map(|_| Mutex::new(state())).collect(),
            latencies: Mutex::default(),
            events: Mutex::default(),
            measured_from: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns the names of the channels.
    pub fn channels(&self) -> impl Iterator<Item = &str> {
        self.channels.iter().map(|channel| channel.name.as_str())
    }

    fn position_of(&self, channel: &str) -> Option<usize> {
        self.channels.iter().position(|known| known.name == channel)
    }

    /// Locks the state of a receiver; the last one's for a number that is too large.
    pub fn member(&self, index: usize) -> Option<MutexGuard<'_, MemberState>> {
        self.members.get(index).map(lock)
    }

    /// Measures updates that are stored at the source from now on.
    pub fn begin_measurement(&self) {
        self.measured_from.store(now_ms(), Ordering::Relaxed);
    }

    /// Counts no updates that come after those which a receiver knows of by now.
    pub fn end_measurement(&self) {
        for channel in &self.channels {
            let head = channel.head.load(Ordering::Relaxed);
            channel.last.store(head, Ordering::Relaxed);
        }
    }

    /// The source serves a channel to a receiver.
    pub fn welcome(&self, index: usize, channel: &str, welcome: Welcome) {
        let Some(at) = self.position_of(channel) else {
            return;
        };
        self.channels[at]
            .head
            .fetch_max(welcome.head, Ordering::Relaxed);
        if let Some(mut member) = self.member(index) {
            member.connection = Connection::Served;
            let Welcome {
                incarnation,
                head,
                first,
                resync,
            } = welcome;
            member.positions[at].welcome(incarnation, head, first, resync);
        }
    }

    /// A receiver has learnt how far a channel is.
    pub fn note_head(&self, channel: &str, head: u64) {
        if let Some(at) = self.position_of(channel) {
            self.channels[at].head.fetch_max(head, Ordering::Relaxed);
        }
    }

    /// A receiver delivered an update.
    pub fn update(&self, index: usize, channel: &str, update: &Delivered) {
        let Some(at) = self.position_of(channel) else {
            return;
        };
        let Delivered {
            incarnation,
            seq,
            via,
            ref encoded,
        } = *update;
        let known = &self.channels[at];
        known.head.fetch_max(seq, Ordering::Relaxed);
        let comparison = lock(&known.ledger).compare(incarnation, seq, encoded);
        let Some(mut member) = self.member(index) else {
            return;
        };
        let position = &mut member.positions[at];
        let is_new = position.take(seq, via);
        let stored_ms = match comparison {
            Comparison::Same(stored_ms) => stored_ms,
            Comparison::Forgotten => None,
            Comparison::Wrong => {
                position.violations.wrong += 1;
                None
            }
        };
        let counts = seq <= known.last.load(Ordering::Relaxed);
        let from = self.measured_from.load(Ordering::Relaxed);
        let Some(stored) = stored_ms.filter(|stored| is_new && counts && *stored >= from) else {
            return;
        };
        position.measured += 1;
        // Updates that a receiver missed while it was away are late on purpose.
        if position.is_live(seq) {
            drop(member);
            // The source's clock may be ahead.
            lock(&self.latencies).push(now_ms().saturating_sub(stored));
        }
    }

    /// A receiver got the report that updates are gone.
    pub fn gap(&self, index: usize, channel: &str, from: u64, to: u64) {
        if let (Some(at), Some(mut member)) = (self.position_of(channel), self.member(index)) {
            member.positions[at].gap(from, to);
        }
    }

    /// A receiver moved to another rung.
    pub fn step(&self, index: usize, channel: &str, rung: Rung, cause: Cause) {
        let (Some(at), Some(mut member)) = (self.position_of(channel), self.member(index)) else {
            return;
        };
        if let Some(fall_back) = member.positions[at].step(rung, cause) {
            count(&mut lock(&self.events).fall_backs, &fall_back.to_string());
        }
    }

    /// A receiver's connection is over, with a reason unless it was intended.
    pub fn disconnected(&self, index: usize, connection: Connection, reason: Option<&str>) {
        if let Some(mut member) = self.member(index) {
            member.connection = connection;
            for position in &mut member.positions {
                position.rung = Rung::Unicast;
            }
        }
        if let Some(reason) = reason {
            count(&mut lock(&self.events).disconnections, reason);
        }
    }

    /// A receiver was refused.
    pub fn refused(&self, index: usize, reason: &str, fatal: bool) {
        count(&mut lock(&self.events).refusals, reason);
        if let Some(mut member) = self.member(index).filter(|_| fatal) {
            member.connection = Connection::Refused;
        }
    }

    /// A receiver that left is back.
    pub fn returned(&self) {
        lock(&self.events).returns += 1;
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn events(&self) -> Events {
        lock(&self.events).clone()
    }

    /// Returns the latencies of the measurement so far.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        lock(&self.latencies).clone()
    }

    /// Returns the sums over all receivers.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for member in &self.members {
            let member = lock(member);
            match member.connection {
                Connection::Served => totals.served += 1,
                Connection::Refused => totals.refused += 1,
                Connection::Away | Connection::None => {}
            }
            for (channel, position) in self.channels.iter().zip(&member.positions) {
                if member.connection == Connection::Served {
                    let rung = (channel.name.clone(), position.rung);
                    *totals.rungs.entry(rung).or_default() += 1;
                }
                totals.via.flow += position.via.flow;
                totals.via.repaired += position.via.repaired;
                totals.via.unicast += position.via.unicast;
                totals.violations.add(position.violations);
            }
        }
        totals
    }

    /// Returns, in ascending order, the number of measured updates of each of the first receivers.
    #[must_use]
    pub fn measured(&self, started: usize) -> Vec<u64> {
        let measured = self.members.iter().take(started).map(|member| {
            let member = lock(member);
            member.positions.iter().map(|p| p.measured).sum()
        });
        let mut measured: Vec<u64> = measured.collect();
        measured.sort_unstable();
        measured
    }

    /// Returns the number of updates until the end of the measurement that the receivers do not
    /// have yet.
    #[must_use]
    pub fn behind(&self) -> u64 {
        let members = self.members.iter().map(|member| {
            let member = lock(member);
            let channels = self.channels.iter().zip(&member.positions);
            let behind = channels.map(|(channel, position)| {
                let head = channel.head.load(Ordering::Relaxed);
                position.behind(head.min(channel.last.load(Ordering::Relaxed)))
            });
            behind.sum::<u64>()
        });
        members.sum()
    }
}

/// Contents of a WELCOME.
#[derive(Debug, Clone, Copy)]
pub struct Welcome {
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Last update of the source.
    pub head: u64,
    /// First update of this connection.
    pub first: u64,
    /// Whether delivery starts over.
    pub resync: bool,
}

/// A delivered update.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Its number.
    pub seq: u64,
    /// Path of its arrival.
    pub via: Via,
    /// Its bytes.
    pub encoded: Bytes,
}

fn count(counts: &mut BTreeMap<String, u64>, key: &str) {
    if let Some(known) = counts.get_mut(key) {
        *known += 1;
    } else {
        let key = if counts.len() < MAX_REASONS {
            service::peer_text::plain(key)
        } else {
            "others".to_owned()
        };
        *counts.entry(key).or_default() += 1;
    }
}

/// Unix time in ms.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use feed::payload::encode;
    use feed::{Entry, Kind};

    use super::*;

    const A: Uuid = Uuid::from_u128(1);

    fn update(seq: u64) -> Delivered {
        let entry = Entry {
            id: format!("urn:{seq}"),
            ..Entry::default()
        };
        let now = jiff::Timestamp::now();
        Delivered {
            incarnation: A,
            seq,
            via: Via::Flow,
            encoded: encode(&entry, Kind::Created, "https://a.example/", A, seq, now).into(),
        }
    }

    fn board(members: u32) -> Board {
        let board = Board::new(&["lore".to_owned()], members);
        for index in 0..members as usize {
            let welcome = Welcome {
                incarnation: A,
                head: 4,
                first: 5,
                resync: false,
            };
            board.welcome(index, "lore", welcome);
        }
        board
    }

    #[test]
    fn a_receiver_that_lacks_an_update_is_behind_until_it_comes() {
        let board = board(3);
        // What was stored before does not count.
        board.begin_measurement();
        let (one, two) = (update(5), update(6));
        for index in 0..3 {
            board.update(index, "lore", &one);
        }
        board.update(0, "lore", &two);
        board.end_measurement();
        assert_eq!(board.behind(), 2, "two of them lack the second");
        for index in 1..3 {
            board.update(index, "lore", &two);
        }
        board.update(0, "lore", &update(7));
        assert_eq!((board.behind(), board.measured(3)), (0, vec![2, 2, 2]));
        let totals = board.totals();
        assert_eq!((totals.served, totals.delivered()), (3, 7));
        assert_eq!(totals.violations, Violations::default());
        assert_eq!(board.latencies().percentiles().count, 6);
    }

    #[test]
    fn bytes_that_differ_between_receivers_are_a_violation() {
        let board = board(2);
        board.update(0, "lore", &update(5));
        let mut other = update(5);
        other.encoded = update(6).encoded;
        board.update(1, "lore", &other);
        assert_eq!(board.totals().violations.wrong, 1);
    }

    #[test]
    fn reasons_of_peers_are_counted_within_a_bound() {
        let board = board(1);
        for n in 0..1000 {
            board.disconnected(0, Connection::None, Some(&format!("reason {n}")));
        }
        board.step(0, "lore", Rung::Multicast, Cause::Joined);
        board.step(0, "lore", Rung::Unicast, Cause::AckTimeout);
        let events = board.events();
        assert_eq!(events.disconnections.len(), MAX_REASONS + 1);
        assert_eq!(events.disconnections.values().sum::<u64>(), 1000);
        assert_eq!(events.fall_backs["multicast to unicast: ack-timeout"], 1);
        assert_eq!(board.totals().served, 0);
    }
}
