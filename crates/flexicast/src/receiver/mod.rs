//! The receiver's state machine: what it says on the control stream, which flow packets it takes, what it acknowledges, and the updates that come out.
//!
//! It lives as long as the receiver does, across connections: [`Receiver::connected`] and [`Receiver::disconnected`] mark their ends, and what is delivered or
//! half received stays.

mod flow;
mod types;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::control::{
    Action, CAPABILITY_MULTICAST_IPV4, Control, ControlReader, Hello, WelcomeChannel,
};
use crate::merge::{Delivered, Merge, Origin};
use crate::unicast::{Piece, StreamReader};
use crate::{Cause, Cursor, FlowId, PathId, Rung, WireError};
use flow::{Flow, send_state, silent_at};
pub use types::{ChannelStats, FlowInput, ReceiverConfig, ReceiverEvent};

/// Cursors are reported at most so often (design section 5).
const CURSOR_EVERY: Duration = Duration::from_secs(1);
const REJOIN_MAX: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Channel {
    name: String,
    incarnation: Option<Uuid>,
    merge: Merge,
    /// Its number on this connection.
    number: Option<u64>,
    stats: ChannelStats,
    cursor: Option<Cursor>,
    cursor_due: bool,
}

/// The state machine.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    channels: Vec<Channel>,
    flows: BTreeMap<FlowId, Flow>,
    connected: bool,
    welcomed: bool,
    control: ControlReader,
    control_out: Vec<u8>,
    streams: BTreeMap<u64, StreamReader>,
    events: VecDeque<ReceiverEvent>,
    next_cursor: Option<Instant>,
    last_cursor: Option<Instant>,
    rng: SmallRng,
}

impl Receiver {
    /// A receiver that is not connected yet.
    pub fn new(config: ReceiverConfig) -> Self {
        let channels = config.channels.iter().map(|(name, cursor)| Channel {
            name: name.clone(),
            incarnation: cursor.map(|c| c.incarnation),
            merge: Merge::new(
                cursor.map_or(1, |c| c.seq.saturating_add(1)),
                config.dedupe_off,
            ),
            number: None,
            stats: ChannelStats::default(),
            cursor: None,
            cursor_due: false,
        });
        Receiver {
            channels: channels.collect(),
            flows: BTreeMap::new(),
            connected: false,
            welcomed: false,
            control: ControlReader::new(),
            control_out: Vec::new(),
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            next_cursor: None,
            last_cursor: None,
            rng: SmallRng::seed_from_u64(config.seed),
            config,
        }
    }

    /// The handshake is complete and the source verified: says HELLO.
    pub fn connected(&mut self) {
        self.connected = true;
        let hello = Hello {
            receiver: self.config.receiver,
            name: self.config.name.clone(),
            software: self.config.software.clone(),
            credential: self.config.credential.clone(),
            channels: self
                .channels
                .iter()
                .map(|c| (c.name.clone(), Self::position(c)))
                .collect(),
            capabilities: if self.config.multicast {
                vec![CAPABILITY_MULTICAST_IPV4]
            } else {
                vec![]
            },
        };
        Control::Hello(hello).encode(&mut self.control_out);
    }

    /// What was handed over in order, as a cursor to go on from.
    fn position(channel: &Channel) -> Option<Cursor> {
        channel.incarnation.map(|incarnation| Cursor {
            incarnation,
            seq: channel.merge.next() - 1,
        })
    }

    /// The connection is gone: forgets everything that belongs to it.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.welcomed = false;
        self.control = ControlReader::new();
        self.control_out.clear();
        self.streams.clear();
        for (id, flow) in std::mem::take(&mut self.flows) {
            if flow.joined {
                self.events.push_back(ReceiverEvent::Leave { flow: id });
            }
        }
        for channel in &mut self.channels {
            channel.number = None;
        }
    }

    /// Whether unicast streams may be read: the source said which channel is which, and there is room for what they carry.
    pub fn wants_unicast(&self) -> bool {
        self.welcomed && self.channels.iter().all(|c| !c.merge.is_full())
    }

    /// Whether the source has answered the HELLO of this connection.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// How often the source's flows show that they are alive; 1 s before any was announced.
    pub fn heartbeat(&self) -> Duration {
        self.flows
            .values()
            .map(|f| f.announce.heartbeat)
            .max()
            .unwrap_or(Duration::from_secs(1))
    }

    /// Bytes for the control stream.
    pub fn take_control(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.control_out)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// The next update in order, with its channel's name and incarnation.
    pub fn poll_update(&mut self) -> Option<(&str, Uuid, Delivered)> {
        let channel = self.channels.iter_mut().find_map(|c| {
            c.merge
                .pop()
                .map(|update| (c.name.as_str(), c.incarnation, update))
        });
        channel.and_then(|(name, incarnation, update)| Some((name, incarnation?, update)))
    }

    /// Counters of a channel.
    pub fn stats(&self, channel: &str) -> Option<ChannelStats> {
        let channel = self.channels.iter().find(|c| c.name == channel)?;
        let merge = channel.merge.stats();
        let mut stats = channel.stats;
        stats.duplicates += merge.duplicates;
        stats.mismatches += merge.mismatches;
        stats.head = stats.head.max(channel.merge.next() - 1);
        Some(stats)
    }

    /// The outputs hold everything up to `cursor`, durably: the source is told within a second.
    pub fn confirm(&mut self, channel: &str, cursor: Cursor, now: Instant) {
        let Some(channel) = self.channels.iter_mut().find(|c| c.name == channel) else {
            return;
        };
        channel.cursor = Some(cursor);
        channel.cursor_due = true;
        let at = self
            .last_cursor
            .map_or(now, |last| last + CURSOR_EVERY)
            .max(now);
        self.next_cursor.get_or_insert(at);
    }

    /// Bytes of the control stream. An error is a violation by the source: close the connection.
    pub fn on_control(&mut self, bytes: &[u8], now: Instant) -> Result<(), WireError> {
        self.control.push(bytes);
        while let Some(frame) = self.control.next_frame()? {
            match frame {
                Control::Welcome(channels) => self.on_welcome(channels)?,
                Control::Refused { code, reason } => self
                    .events
                    .push_back(ReceiverEvent::Refused { code, reason }),
                Control::Announce(announce) => self.on_announce(announce, now)?,
                Control::Key(key) => self.on_key(key),
                Control::Rung(notice) => self.on_rung(notice, now),
                Control::Hello(_) | Control::Cursors(_) | Control::State(_) => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame that only receivers send",
                    ));
                }
            }
        }
        Ok(())
    }

    fn on_welcome(&mut self, welcome: Vec<WelcomeChannel>) -> Result<(), WireError> {
        if self.welcomed {
            return Err(WireError::invalid("WELCOME", "a second one"));
        }
        self.welcomed = true;
        for w in welcome {
            let Some(channel) = self.channels.iter_mut().find(|c| c.name == w.name) else {
                continue;
            };
            if w.first == 0 || w.first > w.head + 1 {
                return Err(WireError::invalid(
                    "WELCOME",
                    "a delivery that begins at seq 0 or beyond the head",
                ));
            }
            channel.number = Some(w.channel);
            channel.stats.head = w.head;
            // A source that is behind us has lost updates that we have, as from an older backup: what it numbers from here on is not what we know by these
            // numbers.
            let behind = w.head + 1 < channel.merge.next();
            let resync = channel
                .incarnation
                .is_some_and(|known| known != w.incarnation || behind);
            if resync || channel.incarnation.is_none() {
                channel.incarnation = Some(w.incarnation);
                channel.merge = Merge::new(w.first, self.config.dedupe_off);
            }
            let next = channel.merge.next();
            if w.first > next {
                self.events.push_back(ReceiverEvent::Gap {
                    channel: w.name.clone(),
                    from: next,
                    to: w.first - 1,
                });
                channel.merge.skip_to(w.first);
            }
            self.events.push_back(ReceiverEvent::Welcome {
                channel: w.name,
                incarnation: w.incarnation,
                head: w.head,
                first: w.first,
                resync,
            });
        }
        Ok(())
    }

    /// Bytes of the server-initiated unicast stream `stream`; `fin` is its end. An error is a violation by the source: close the connection.
    pub fn on_unicast(&mut self, stream: u64, bytes: &[u8], fin: bool) -> Result<(), WireError> {
        let reader = self.streams.entry(stream).or_default();
        reader.push(bytes);
        while let Some(piece) = reader.next_piece()? {
            let (number, seq) = match &piece {
                Piece::Range { header, .. } => (header.channel, header.seq),
                Piece::Update { channel, seq, .. } => (*channel, *seq),
            };
            let Some(channel) = self.channels.iter_mut().find(|c| c.number == Some(number)) else {
                return Err(WireError::invalid(
                    "unicast stream",
                    "a channel that WELCOME did not name",
                ));
            };
            channel.stats.head = channel.stats.head.max(seq);
            match piece {
                Piece::Range { header, data } => {
                    channel.merge.add(
                        seq,
                        header.offset,
                        &data,
                        Some(header.total),
                        Origin::Unicast,
                    );
                }
                Piece::Update { data, .. } => {
                    channel
                        .merge
                        .add(seq, 0, &data, Some(data.len() as u64), Origin::Unicast)
                }
            }
        }
        let may_end = |reader: StreamReader| reader.may_end();
        if fin && !self.streams.remove(&stream).is_some_and(may_end) {
            return Err(WireError::invalid(
                "unicast stream",
                "an end inside an item",
            ));
        }
        Ok(())
    }

    /// The next PATH_ACK that is due, as a DATAGRAM payload with the path that it is for: an older one for the same path that is still unsent is obsolete.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<(PathId, Vec<u8>)> {
        if !self.connected {
            return None;
        }
        let due = self.flows.iter().find_map(|(id, f)| {
            let path = f.member?;
            f.trackers
                .get(&path)?
                .deadline()
                .filter(|at| *at <= now)
                .map(|_| (*id, path))
        });
        let (id, path) = due?;
        let hold = self.hold(id);
        let ack = self
            .flows
            .get_mut(&id)?
            .trackers
            .get_mut(&path)?
            .take_due(path, now, hold)?;
        Some((path, ack.encode()))
    }

    /// When to call [`Receiver::handle_timeout`] and [`Receiver::poll_datagram`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flows = self.flows.values().flat_map(|f| {
            let ack = f.member.and_then(|path| f.trackers.get(&path)?.deadline());
            let silent = f.member.map(|_| silent_at(f));
            [ack, silent, f.rejoin_at]
        });
        let cursor = self.next_cursor.filter(|_| self.welcomed);
        flows.chain([cursor]).flatten().min()
    }

    /// Does what is due: cursors, missed heartbeats, joins that brought nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.welcomed && self.next_cursor.is_some_and(|at| at <= now) {
            self.next_cursor = None;
            self.last_cursor = Some(now);
            let due = self.channels.iter_mut().filter_map(|c| {
                std::mem::take(&mut c.cursor_due)
                    .then_some(c.cursor)
                    .flatten()
            });
            let cursors: Vec<_> = due.collect();
            Control::Cursors(cursors).encode(&mut self.control_out);
        }
        for (id, flow) in &mut self.flows {
            if flow.member.is_some() && silent_at(flow) <= now {
                // The source's FC_RUNG answers this; until then nothing is owed, for nothing arrives.
                let path = flow.member.take().unwrap_or(PathId::UNICAST);
                send_state(
                    flow,
                    &mut self.control_out,
                    Action::Leave,
                    path,
                    Some(Cause::HeartbeatLost),
                );
                let channel = self.channels[flow.channel].name.clone();
                self.events.push_back(ReceiverEvent::Moved {
                    channel,
                    rung: Rung::Unicast,
                    cause: Cause::HeartbeatLost,
                });
            }
            if flow.rejoin_at.is_some_and(|at| at <= now) {
                flow.rejoin_after = (flow.rejoin_after * 2).min(REJOIN_MAX);
                flow.rejoin_at =
                    Some(now + flow.rejoin_after.mul_f64(self.rng.random_range(0.75..1.25)));
                self.events.push_back(ReceiverEvent::Rejoin { flow: *id });
            }
        }
    }
}
