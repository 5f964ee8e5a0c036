//! Delivery on unicast paths; start and end of connections.

use std::time::{Duration, Instant};

use flexicast::source::SessionId;
use rand::RngExt;

use crate::node::Presence;
use crate::path::{Down, Path, Up};
use crate::trace::Kind;
use crate::violation::BrokenPromise;
use crate::world::{Event, Host, World};

const MS: Duration = Duration::from_millis(1);

impl World {
    /// When a reliable message arrives that leaves at `leaves`: what the network loses is sent
    /// again.
    fn reliably(&mut self, receiver: usize, leaves: Instant) -> Instant {
        let (now, rng) = (self.now, &mut self.rng);
        let link = &mut self.nodes[receiver].unicast;
        let mut at = leaves + link.travel(rng);
        if link.arrivals(now, rng)[0].is_none() {
            at += link.quality.delay * 2 * rng.random_range(1..4);
        }
        if let Some(until) = link.cut_until.filter(|until| *until > now) {
            at = at.max(until + link.quality.delay);
        }
        at
    }

    /// Cuts bytes of a control stream as a network may: mostly not at all.
    pub(crate) fn pieces(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        if bytes.len() < 2 || !self.rng.random_bool(0.1) {
            return vec![bytes.to_vec()];
        }
        let at = self.rng.random_range(1..bytes.len());
        vec![bytes[..at].to_vec(), bytes[at..].to_vec()]
    }

    /// Sends `len` bytes' worth of a message to the receiver.
    pub(crate) fn send_down(&mut self, session: SessionId, lane: u64, len: usize, message: Down) {
        let now = self.now;
        let Some(path) = self.paths.get_mut(&session).filter(|p| p.at_source) else {
            return;
        };
        let receiver = path.receiver;
        let bandwidth = self.nodes[receiver].plan.bandwidth;
        let leaves = path.squeeze(len, bandwidth, now);
        let at = self.reliably(receiver, leaves);
        if let Some(path) = self.paths.get_mut(&session) {
            let at = path.down.entry(lane).or_default().push(at, message);
            self.schedule(at, Event::Down { session, lane });
        }
    }

    /// Sends a message to the source.
    pub(crate) fn send_up(&mut self, session: SessionId, message: Up) {
        let Some(path) = self.paths.get(&session) else {
            return;
        };
        let at = self.reliably(path.receiver, self.now);
        if let Some(path) = self.paths.get_mut(&session) {
            let at = path.up.push(at, message);
            self.schedule(at, Event::Up { session });
        }
    }

    /// Returns the time to which a message that arrives during a cut is postponed.
    pub(crate) fn is_cut(&mut self, receiver: usize) -> Option<Instant> {
        let link = &self.nodes[receiver].unicast;
        let until = link.cut_until.filter(|until| self.now < *until)?;
        Some(until + link.travel(&mut self.rng))
    }

    /// A receiver tries to connect.
    pub(crate) fn connect(&mut self, receiver: usize, boot: u64) -> Result<(), BrokenPromise> {
        let node = &self.nodes[receiver];
        if node.boot != boot || node.presence != Presence::Here || node.path.is_some() {
            return Ok(());
        }
        let reachable = self.origin.core.is_some()
            && self.suspended(Host::Source).is_none()
            && node.unicast.cut_until.is_none_or(|until| until <= self.now);
        if !reachable {
            self.connect_later(receiver);
            return Ok(());
        }
        let session = self.next_session;
        self.next_session += 1;
        let path = Path::new(receiver, self.origin.boot, self.now);
        self.paths.insert(session, path);
        let node = &mut self.nodes[receiver];
        node.path = Some(session);
        let at = self.now + node.rtt() + node.unicast.travel(&mut self.rng);
        self.schedule(
            at,
            Event::Handshaken {
                receiver,
                boot,
                session,
            },
        );
        Ok(())
    }

    fn connect_later(&mut self, receiver: usize) {
        let at = self.now + MS * self.rng.random_range(50..1000);
        let boot = self.nodes[receiver].boot;
        self.schedule(at, Event::Connect { receiver, boot });
    }

    /// The handshake is over at the receiver: it says HELLO.
    pub(crate) fn handshaken(
        &mut self,
        receiver: usize,
        boot: u64,
        session: SessionId,
    ) -> Result<(), BrokenPromise> {
        let alive = self.origin.core.is_some();
        let known = self
            .paths
            .get(&session)
            .is_some_and(|p| p.at_source && p.boot == self.origin.boot);
        let node = &mut self.nodes[receiver];
        if node.boot != boot || node.path != Some(session) {
            return Ok(());
        }
        if !alive || !known {
            node.path = None;
            self.paths.remove(&session);
            self.connect_later(receiver);
            return Ok(());
        }
        node.core.connected();
        self.note(Kind::Connected, receiver as u64, &session.to_be_bytes());
        self.say(|| format!("receiver {receiver} connects as session {session}"));
        self.pump_receiver(receiver).map(|_| ())
    }

    /// An end gives a connection up, or learns that it is over; the other end learns of it when it
    /// has waited long enough.
    pub(crate) fn end(&mut self, session: SessionId, host: Host) -> Result<(), BrokenPromise> {
        let Some(path) = self.paths.get_mut(&session) else {
            return Ok(());
        };
        let receiver = path.receiver;
        let (end, patience, other) = match host {
            Host::Source => (
                &mut path.at_source,
                self.script.receiver_patience,
                Host::Receiver(receiver),
            ),
            Host::Receiver(_) => (
                &mut path.at_receiver,
                self.script.source_patience,
                Host::Source,
            ),
        };
        if !std::mem::replace(end, false) {
            return Ok(());
        }
        let over = !path.at_source && !path.at_receiver;
        self.note(Kind::Ended, receiver as u64, &session.to_be_bytes());
        self.say(|| format!("session {session} of receiver {receiver} ends at {host:?}"));
        if over {
            self.paths.remove(&session);
        } else {
            self.schedule(
                self.now + patience,
                Event::End {
                    session,
                    host: other,
                },
            );
        }
        match host {
            Host::Source => self.closed_at_source(session, receiver, false),
            Host::Receiver(_) => self.disconnected(session, receiver),
        }
    }

    /// Closes the receiver's end of a connection; it reconnects.
    fn disconnected(&mut self, session: SessionId, receiver: usize) -> Result<(), BrokenPromise> {
        let node = &mut self.nodes[receiver];
        if node.path != Some(session) {
            return Ok(());
        }
        node.path = None;
        node.core.disconnected();
        node.readings.values_mut().for_each(|r| r.rung = None);
        if node.presence == Presence::Here {
            self.connect_later(receiver);
        }
        self.pump_receiver(receiver).map(|_| ())
    }
}
