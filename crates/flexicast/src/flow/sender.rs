//! [`FlowSender`]: one flow's packets, and what its members' acknowledgements mean for them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::ledger::{Contents, Ledger, StreamRange};
use super::member::{Delays, Member};
use crate::ack::PathAck;
use crate::frame;
use crate::pace::TokenBucket;
use crate::protect::{
    Algorithm, BLOCK_LEN, FlowSecret, HEADER_LEN, KeyError, MAX_PACKETS, OVERHEAD, PacketKey,
    TAG_LEN,
};
use crate::{Cause, DEFAULT_UDP_PAYLOAD, FlowId, PathId};

/// The caller's number for a member: unique among the members of a flow.
pub type MemberId = u64;

/// How often a newcomer's proof is helped along by a PING, and for how long after it asked to join.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const PROBE_FOR: Duration = Duration::from_secs(1);
/// After data, probes for acknowledgements come no faster than this.
const MIN_TAIL_PROBE: Duration = Duration::from_millis(5);

/// What does not change during a flow's life.
#[derive(Debug, Clone)]
pub struct FlowConfig {
    /// Fresh random for every flow.
    pub flow: FlowId,
    /// Fresh random for every flow.
    pub secret: FlowSecret,
    /// The AEAD.
    pub algorithm: Algorithm,
    /// UDP payload of a full packet in bytes, at most: its frames end on a multiple of [`crate::protect::BLOCK_LEN`].
    pub udp_payload: usize,
    /// Pacing in bit/s of UDP payload; `None` sends as fast as it is polled.
    pub rate: Option<u64>,
    /// How long members may hold acknowledgements back.
    pub ack_delay: Duration,
    /// `D_fb`: data unacknowledged for so long moves a member to unicast.
    pub fall_back: Duration,
    /// How often an idle flow sends a PING.
    pub heartbeat: Duration,
    /// Test-only: members are never moved down for being silent.
    pub fall_back_off: bool,
}

impl FlowConfig {
    /// The design's defaults for a new flow.
    pub fn new(flow: FlowId, secret: FlowSecret) -> Self {
        FlowConfig {
            flow,
            secret,
            algorithm: Algorithm::default(),
            udp_payload: DEFAULT_UDP_PAYLOAD,
            rate: Some(10_000_000),
            ack_delay: Duration::from_millis(25),
            fall_back: Duration::from_millis(150),
            heartbeat: Duration::from_secs(1),
            fall_back_off: false,
        }
    }
}

/// What the flow asks its owner to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvent {
    /// These bytes did not reach the member: send them on its unicast path.
    Repair {
        /// Who misses them.
        member: MemberId,
        /// What it misses.
        range: StreamRange,
    },
    /// The member is off the flow.
    FellBack {
        /// Who.
        member: MemberId,
        /// Why.
        cause: Cause,
        /// What must now reach it on its unicast path.
        departure: Departure,
    },
}

/// The cut at the end of a membership: what the receiver did not get from the flow (design section 2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Departure {
    /// Ranges that it did not acknowledge, and the rest of an update that was only partly sent.
    pub owed: Vec<StreamRange>,
    /// The first `seq` of which nothing was sent on the flow; everything from here on is owed too.
    pub resume: u64,
}

/// Counters of a flow, since its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Packets made.
    pub packets: u64,
    /// Bytes of UDP payload made.
    pub bytes: u64,
    /// PINGs among the packets.
    pub pings: u64,
}

/// An acknowledgement that cannot be right: the member made it up, or somebody with the flow's key forged a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// It acknowledges a packet that was never sent.
    #[error("acknowledges packet {pn}, but the next one to be sent is {next}")]
    Unsent {
        /// The largest packet number that it acknowledges.
        pn: u64,
        /// The flow's next packet number.
        next: u64,
    },
}

#[derive(Debug)]
struct Outgoing {
    seq: u64,
    bytes: Bytes,
    offset: usize,
}

/// The sending end of one flow.
#[derive(Debug)]
pub struct FlowSender {
    config: FlowConfig,
    key: PacketKey,
    delays: Delays,
    queue: VecDeque<Outgoing>,
    /// The `seq` behind the last one that was pushed.
    next_seq: u64,
    queued_bytes: usize,
    ledger: Ledger,
    members: BTreeMap<MemberId, Member>,
    /// Receivers that listen, members or not: while there is none, nothing is sent.
    listeners: usize,
    bucket: TokenBucket,
    last_sent: Option<Instant>,
    /// When the acknowledgements of data are probed for.
    tail_ping_at: Option<Instant>,
    last_data: Option<u64>,
    /// Members past their probe timeout were seen at the last look.
    waiting: bool,
    tail_probe: Duration,
    probe_until: Option<Instant>,
    /// When the members' timers are looked at next. Never later than the earliest of them, so that nothing is done per packet and member.
    check_at: Option<Instant>,
    events: VecDeque<FlowEvent>,
    stats: FlowStats,
    /// The stream ranges of the packet in the making.
    scratch: Vec<StreamRange>,
}

impl FlowSender {
    /// A flow without members whose first packet number is 0.
    pub fn new(config: FlowConfig) -> Result<Self, KeyError> {
        let key = PacketKey::new(config.algorithm, &config.secret)?;
        let rate = config.rate.unwrap_or(u64::MAX);
        // A few packets of burst: enough for the timers' grain, little enough for the smallest router.
        let bucket = TokenBucket::new(
            rate,
            (config.udp_payload * 8).max((rate / 8 / 1000).min(1 << 20) as usize),
        );
        let delays = Delays {
            ack: config.ack_delay,
            fall_back: config.fall_back,
            heartbeat: config.heartbeat,
        };
        Ok(FlowSender {
            tail_probe: config.ack_delay * 2,
            key,
            delays,
            queue: VecDeque::new(),
            next_seq: 1,
            queued_bytes: 0,
            ledger: Ledger::new(0),
            members: BTreeMap::new(),
            listeners: 0,
            bucket,
            last_sent: None,
            tail_ping_at: None,
            last_data: None,
            waiting: false,
            probe_until: None,
            check_at: None,
            events: VecDeque::new(),
            stats: FlowStats::default(),
            scratch: Vec::new(),
            config,
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &FlowConfig {
        &self.config
    }

    /// The next packet number.
    pub fn next_pn(&self) -> u64 {
        self.ledger.next_pn()
    }

    /// Packets that some member still owes an acknowledgement for.
    pub fn outstanding(&self) -> usize {
        self.ledger.len()
    }

    /// Bytes that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Counters since the beginning.
    pub fn stats(&self) -> FlowStats {
        self.stats
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Whether the flow must be replaced, because its key has protected nearly as many packets as it may (RFC 9001 section 6.6).
    pub fn is_worn_out(&self) -> bool {
        self.next_pn() >= MAX_PACKETS - (1 << 16)
    }

    /// How many receivers listen. While nobody does, the flow is silent and what is published is not queued: all receivers get it on their unicast paths.
    pub fn set_listeners(&mut self, listeners: usize, now: Instant) {
        if listeners > self.listeners {
            self.probe_until = Some(now + PROBE_FOR);
        }
        self.listeners = listeners;
        if listeners == 0 {
            self.queue.clear();
            self.queued_bytes = 0;
            self.tail_ping_at = None;
            self.probe_until = None;
        }
    }

    /// Queues an encoded update, whose `seq` must be larger than all before it.
    pub fn push(&mut self, seq: u64, bytes: Bytes) {
        self.next_seq = seq + 1;
        if self.listeners > 0 {
            self.queued_bytes += bytes.len();
            self.queue.push_back(Outgoing {
                seq,
                bytes,
                offset: 0,
            });
        }
    }

    /// Makes a receiver a member from the next packet on (the cut), which is returned.
    pub fn admit(&mut self, member: MemberId, path: PathId, rtt: Duration) -> u64 {
        let cut = self.next_pn();
        if let Some(before) = self.members.insert(member, Member::new(path, cut, rtt)) {
            before.leave(&mut self.ledger);
            self.ledger.sweep();
        }
        cut
    }

    /// Takes a member off the flow. What it did not get is returned and must reach it on its unicast path, if it still has one.
    pub fn dismiss(&mut self, member: MemberId) -> Option<Departure> {
        let mut owed = self.members.remove(&member)?.leave(&mut self.ledger);
        self.ledger.sweep();
        let mut resume = self.next_seq;
        if let Some(front) = self.queue.front() {
            resume = front.seq;
            if front.offset > 0 {
                owed.push(StreamRange {
                    seq: front.seq,
                    range: front.offset as u64..front.bytes.len() as u64,
                });
                resume += 1;
            }
        }
        Some(Departure { owed, resume })
    }

    /// The member's smoothed round-trip time and the largest packet number that it acknowledged.
    pub fn member(&self, member: MemberId) -> Option<(Duration, Option<u64>)> {
        self.members
            .get(&member)
            .map(|m| (m.rtt.smoothed(), m.largest_acked()))
    }

    /// Takes an acknowledgement. One from a receiver that is no member, or for a path by which it is none, is ignored: it was under way at the cut.
    pub fn on_ack(&mut self, id: MemberId, ack: &PathAck, now: Instant) -> Result<(), AckError> {
        let next = self.next_pn();
        let Some(member) = self.members.get_mut(&id).filter(|m| m.path == ack.path) else {
            return Ok(());
        };
        if ack.largest() >= next {
            return Err(AckError::Unsent {
                pn: ack.largest(),
                next,
            });
        }
        let mut lost = Vec::new();
        member.on_ack(ack, &self.delays, &mut self.ledger, now, &mut lost);
        self.tail_probe = self.tail_probe.max(member.rtt.pto(self.delays.ack));
        let next = member
            .check(&self.delays, &mut self.ledger, now, &mut lost)
            .next;
        self.ledger.sweep();
        self.events.extend(
            lost.into_iter()
                .map(|range| FlowEvent::Repair { member: id, range }),
        );
        self.check_by(next);
        Ok(())
    }

    fn check_by(&mut self, at: Option<Instant>) {
        self.check_at = [self.check_at, at].into_iter().flatten().min();
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<FlowEvent> {
        self.events.pop_front()
    }

    /// Whether there is something to send apart from pacing.
    fn wants_to_send(&self, now: Instant) -> bool {
        self.listeners > 0 && (!self.queue.is_empty() || self.ping_at().is_some_and(|at| at <= now))
    }

    /// When a PING is due: a heartbeat, a newcomer's proof, or a probe behind data.
    fn ping_at(&self) -> Option<Instant> {
        if self.listeners == 0 {
            return None;
        }
        let probe = self.last_sent.and_then(|at| {
            self.probe_until
                .filter(|until| at < *until)
                .map(|_| at + PROBE_EVERY)
        });
        let heartbeat = self.last_sent.map(|at| at + self.config.heartbeat);
        [probe, heartbeat, self.tail_ping_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// When to call [`FlowSender::handle_timeout`] and then [`FlowSender::poll_transmit`] again.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        let send_at = if self.listeners == 0 || self.next_pn() >= MAX_PACKETS {
            None
        } else if !self.queue.is_empty() {
            Some(self.bucket.ready_at(now))
        } else {
            // The very first packet of a flow has no predecessor to be timed from.
            self.ping_at()
                .or(Some(now))
                .map(|at| at.max(self.bucket.ready_at(now)))
        };
        [send_at, self.check_at].into_iter().flatten().min()
    }

    /// Looks at the members' timers, if it is time: losses, tails, fall-backs.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.check_at.is_none_or(|at| at > now) {
            return;
        }
        self.check_at = None;
        self.waiting = false;
        let (mut next, mut pto) = (None, MIN_TAIL_PROBE);
        let mut gone = Vec::new();
        for (id, member) in &mut self.members {
            let mut lost = Vec::new();
            let mut checked = member.check(&self.delays, &mut self.ledger, now, &mut lost);
            if self.config.fall_back_off {
                checked.fall_back = None;
            }
            self.events.extend(
                lost.into_iter()
                    .map(|range| FlowEvent::Repair { member: *id, range }),
            );
            self.waiting |= checked.waiting;
            pto = pto.max(member.rtt.pto(self.delays.ack));
            match checked.fall_back {
                Some(cause) => gone.push((*id, cause)),
                None => next = [next, checked.next].into_iter().flatten().min(),
            }
        }
        self.tail_probe = pto;
        for (member, cause) in gone {
            if let Some(departure) = self.dismiss(member) {
                self.events.push_back(FlowEvent::FellBack {
                    member,
                    cause,
                    departure,
                });
            }
        }
        self.ledger.sweep();
        self.check_by(next);
    }

    /// Makes the next packet in `out`, if there is something to send and pacing allows it. Returns whether it did.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        out.clear();
        let first = self.listeners > 0 && self.last_sent.is_none();
        if !(first || self.wants_to_send(now))
            || self.bucket.ready_at(now) > now
            || self.next_pn() >= MAX_PACKETS
        {
            return false;
        }
        let frames = self.config.udp_payload.saturating_sub(OVERHEAD);
        let limit = HEADER_LEN + frames / BLOCK_LEN * BLOCK_LEN;
        out.resize(HEADER_LEN, 0);
        self.scratch.clear();
        while let Some(front) = self.queue.front_mut() {
            let data = &front.bytes[front.offset..];
            let Some(taken) =
                frame::put_stream(out, limit, front.seq, front.offset as u64, data, true)
            else {
                break;
            };
            let start = front.offset as u64;
            self.scratch.push(StreamRange {
                seq: front.seq,
                range: start..start + taken as u64,
            });
            front.offset += taken;
            self.queued_bytes -= taken;
            if front.offset < front.bytes.len() {
                break;
            }
            self.queue.pop_front();
        }
        let contents = match self.scratch.len() {
            0 => {
                frame::put_ping(out);
                Contents::Ping
            }
            1 => self.scratch.pop().map_or(Contents::Ping, Contents::One),
            _ => Contents::Many(self.scratch.drain(..).collect()),
        };
        let (pn, end) = (self.next_pn(), out.len());
        // The tag is room enough for the 16 bytes behind the packet number that header protection samples.
        out.resize(end + TAG_LEN, 0);
        if self
            .key
            .seal(self.config.flow, pn, false, out, end)
            .is_none()
        {
            out.clear();
            return false;
        }
        self.bucket.take(out.len());
        self.note_sent(pn, contents, now, out.len());
        true
    }

    fn note_sent(&mut self, pn: u64, contents: Contents, now: Instant, len: usize) {
        self.stats.packets += 1;
        self.stats.bytes += len as u64;
        self.last_sent = Some(now);
        if contents.is_data() {
            self.last_data = Some(pn);
            // Restarted by each data packet, so that one PING follows the last of them.
            self.tail_ping_at = (!self.members.is_empty()).then(|| now + self.tail_delay());
        } else {
            self.stats.pings += 1;
            let owed = self.waiting
                || self
                    .last_data
                    .is_some_and(|last| self.ledger.len() > 0 && self.ledger.base() <= last);
            self.tail_ping_at = owed.then(|| now + self.tail_delay());
        }
        self.ledger.push(now, contents, self.members.len());
        if self.ledger.len() > 0 {
            // Nobody can be late before the acknowledgement delay is over. A look that is due later, as behind a heartbeat, comes forward.
            self.check_by(Some(now + self.config.ack_delay.max(MIN_TAIL_PROBE)));
        }
    }

    fn tail_delay(&self) -> Duration {
        self.tail_probe.clamp(
            MIN_TAIL_PROBE,
            (self.config.fall_back / 3).max(MIN_TAIL_PROBE),
        )
    }
}
