//! A receiver with its connection, both ends of it.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::Credential;
use flexicast::receiver::{FlowInput, Output, Receiver, ReceiverConfig, ReceiverEvent};
use flexicast::{Cursor, Rung};
use uuid::Uuid;

use super::quic::{Endpoint, Inbox, Item, Packet};
use super::{McquicFailure, failed};

pub(super) const CHANNEL: &str = "mcquic";
pub(super) const INCARNATION: Uuid = Uuid::from_u128(7);
/// The control stream.
pub(super) const CONTROL: u64 = 0;
/// The first stream that a server opens.
pub(super) const FIRST_STREAM: u64 = 3;

/// A receiver, and what belongs to its connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) core: Receiver,
    /// The receiver's end of its connection.
    pub(super) client: Endpoint,
    client_inbox: Inbox,
    /// The source's end.
    pub(super) server: Endpoint,
    pub(super) server_inbox: Inbox,
    pub(super) next_stream: u64,
    pub(super) catch_up: Option<u64>,
    /// When its timers, and those of the source's end, are looked at next.
    pub(super) armed: Option<Instant>,
    pub(super) server_armed: Option<Instant>,
    pub(super) is_member: bool,
    joined: bool,
    unread: VecDeque<(u64, Vec<u8>, bool)>,
    /// Updates that were handed out as soon as they were whole, and not in order yet.
    shown: BTreeSet<u64>,
    /// All updates that were handed out, and when for the first time.
    pub(super) live: Vec<(u64, Instant)>,
    /// Updates that were handed out in order.
    pub(super) got: u64,
    pub(super) expired: u64,
}

impl Peer {
    pub(super) fn new(number: usize, rtt: Duration) -> Peer {
        let mut config = ReceiverConfig::new(
            Uuid::from_u128(number as u128 + 1),
            Credential::None,
            vec![(CHANNEL.to_owned(), None)],
        );
        config.seed = number as u64;
        config.feedback = true;
        let mut core = Receiver::new(config);
        core.connected();
        Peer {
            core,
            client: Endpoint::new(rtt),
            client_inbox: Inbox::default(),
            server: Endpoint::new(rtt),
            server_inbox: Inbox::default(),
            next_stream: FIRST_STREAM,
            catch_up: None,
            armed: None,
            server_armed: None,
            is_member: false,
            joined: false,
            unread: VecDeque::new(),
            shown: BTreeSet::new(),
            live: Vec::new(),
            got: 0,
            expired: 0,
        }
    }

    /// Takes a packet of the flow.
    pub(super) fn on_flow(&mut self, packet: &[u8], now: Instant) -> Result<(), McquicFailure> {
        if !self.joined {
            return Ok(());
        }
        let mut packet = packet.to_vec();
        match self
            .core
            .on_flow_datagram(Rung::Multicast, &mut packet, now)
        {
            FlowInput::Unverified | FlowInput::Invalid | FlowInput::NoRoom => {
                Err(failed("a receiver does not take a packet of the flow"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a packet of the connection.
    pub(super) fn on_packet(&mut self, packet: Packet, now: Instant) -> Result<(), McquicFailure> {
        for item in self.client.on_packet(packet, now) {
            let Item::Stream {
                id,
                offset,
                data,
                fin,
            } = item
            else {
                continue;
            };
            let Some((bytes, ended)) = self.client_inbox.take(id, offset, data, fin) else {
                continue;
            };
            if id == CONTROL {
                self.core.on_control(&bytes, now).map_err(failed)?;
            } else {
                self.unread.push_back((id, bytes, ended));
            }
        }
        Ok(())
    }

    /// Moves everything that is ready; returns the feedback packets.
    pub(super) fn pump(&mut self, now: Instant) -> Result<Vec<Vec<u8>>, McquicFailure> {
        if self.client.poll_timeout().is_some_and(|at| at <= now) {
            self.client.handle_timeout(now);
        }
        while self.core.wants_unicast() {
            let Some((stream, bytes, fin)) = self.unread.pop_front() else {
                break;
            };
            self.core.on_unicast(stream, &bytes, fin).map_err(failed)?;
        }
        self.core.handle_timeout(now);
        while let Some(event) = self.core.poll_event() {
            match event {
                ReceiverEvent::Join { .. } => self.joined = true,
                ReceiverEvent::Leave { .. } => self.joined = false,
                ReceiverEvent::Moved { rung, .. } => self.is_member = rung == Rung::Multicast,
                ReceiverEvent::Refused { reason, .. } => return Err(failed(reason)),
                _ => {}
            }
        }
        while let Some((.., update)) = self.core.poll_live(now) {
            self.live.push((update.seq, now));
            self.shown.insert(update.seq);
        }
        while let Some((_, incarnation, output)) = self.core.poll_update() {
            let seq = output.last();
            match output {
                Output::Update(_) => {
                    self.got += 1;
                    if !self.shown.remove(&seq) {
                        self.live.push((seq, now));
                    }
                }
                Output::Expired { from, to, .. } => self.expired += to + 1 - from,
                Output::Gap { .. } => return Err(failed("an update is gone")),
            }
            self.core.confirm(CHANNEL, Cursor { incarnation, seq }, now);
        }
        let control = self.core.take_control();
        if !control.is_empty() {
            let control = Bytes::copy_from_slice(&control);
            self.client.send_stream(CONTROL, control, false);
        }
        while let Some((_, ack)) = self.core.poll_datagram(now) {
            self.client.send_datagram(ack.into());
        }
        Ok(std::iter::from_fn(|| self.core.poll_feedback()).collect())
    }

    /// Returns when [`Peer::pump`] is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [self.core.poll_timeout(), self.client.poll_timeout()];
        timers.into_iter().flatten().min()
    }
}
