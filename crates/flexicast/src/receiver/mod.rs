//! The receiver's state machine: control stream, flow packets, acknowledgements, and the resulting
//! updates.
//!
//! It lives as long as the receiver does, across connections: [`Receiver::connected`] and
//! [`Receiver::disconnected`] mark their ends. Delivered updates and bytes of the unicast path
//! stay; bytes of the flow end with their connection.

mod authenticity;
mod deadlines;
mod flow;
mod messages;
mod need;
mod timer;
mod trust;
mod types;
mod unicast;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use signing::VerifyingKey;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::control::{
    CAPABILITY_AMT, CAPABILITY_APART_SYMBOLS, CAPABILITY_COPIES, CAPABILITY_DEADLINES,
    CAPABILITY_FEC, CAPABILITY_FEEDBACK, CAPABILITY_HITLESS, CAPABILITY_MESSAGES,
    CAPABILITY_MULTICAST_IPV4, CAPABILITY_MULTICAST_IPV6, CAPABILITY_PACKET_AUTHENTICATION,
    CAPABILITY_SIGNATURES, CAPABILITY_STREAM_SIGNATURES, Control, ControlReader, Hello,
    SOURCE_ANSWERS_NEED, SOURCE_KEEPS_TIME, SOURCE_SENDS_KEYS, SOURCE_TAKES_LEGS, Welcome,
};
pub use crate::merge::{
    AuthenticationFailure, Check, Delivered, DistrustedUpdate, Output, Validity,
};
use crate::merge::{Merge, Signatures};
use crate::pace::TokenBucket;
pub use crate::trace::FlowInput;
use crate::trace::{PacketTrace, Tracer};
use crate::unicast::StreamReader;
use crate::{Cursor, FlowId, PathId, WireError};
use deadlines::{ExpiredEnds, SourceClock};
use flow::Flow;
use messages::Messages;
use need::BlockedUpdate;
use timer::{FlowTimer, Timer, TimerTable};
use trust::{CheckBudget, Trust};
pub use types::{
    ChannelStats, MessageCounters, ReceiverConfig, ReceiverEvent, ReceptionCounters, Redundancy,
    Rungs,
};

/// Minimum interval between reports of cursors.
const CURSOR_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Channel {
    name: String,
    incarnation: Option<Uuid>,
    /// History requested while there is no incarnation, and so no cursor.
    asks: Option<Cursor>,
    merge: Merge,
    /// Its number on this connection.
    number: Option<u64>,
    stats: ChannelStats,
    cursor: Option<Cursor>,
    cursor_due: bool,
    /// The update that later ones wait for.
    blocked: Option<BlockedUpdate>,
    messages: Messages,
    trust: Trust,
    /// Ends of expired updates, as the source said them.
    expired_ends: ExpiredEnds,
    /// Budget for failed checks of what the flow brings.
    failed_checks: CheckBudget,
    /// Number of cleared updates that the flows have been credited with.
    cleared: u64,
    /// Whether it is left out of connections.
    suspended: bool,
    /// Frames of packets that came by a second leg: no duplicates to speak of.
    redundant_frames: u64,
    /// Number of LINEAGEs on this connection: each is an event.
    lineages: u32,
    /// Whether packets are taken without a signature or tag.
    #[cfg(feature = "fault-injection")]
    packet_check_off: bool,
    /// Whether a rebuilt packet counts as one that arrived.
    #[cfg(feature = "fault-injection")]
    rebuilt_proves: bool,
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
    control_out: Zeroizing<Vec<u8>>,
    /// Feedback packets that wait to be sent, at most one of each flow.
    feedback_out: VecDeque<(FlowId, Vec<u8>)>,
    /// Which channel's updates are handed out next.
    turn: usize,
    tracer: Tracer,
    streams: BTreeMap<u64, StreamReader>,
    events: VecDeque<ReceiverEvent>,
    timers: TimerTable,
    clock: SourceClock,
    /// When cursors were last reported.
    last_cursor: Option<Instant>,
    need_limit: TokenBucket,
    rng: SmallRng,
    /// Keys that the source has proved on this connection to be those of a pinned key.
    trusted: Option<Vec<VerifyingKey>>,
    /// Number of KEYS on this connection: each may cost many checks of signatures.
    keys_frames: u32,
    /// Whether the legs of flows are merged on this connection.
    merges_legs: bool,
    /// Whether what the second leg brings counts for nothing.
    #[cfg(feature = "fault-injection")]
    legs_unmerged: bool,
}

impl Receiver {
    /// Returns a receiver that is not connected yet.
    pub fn new(config: ReceiverConfig) -> Self {
        let channels = config.channels.iter().map(|(name, given)| {
            let asks = given.filter(|c| c.asked().is_some());
            let cursor = given.filter(|c| c.asked().is_none());
            Channel {
                name: name.clone(),
                incarnation: cursor.map(|c| c.incarnation),
                asks,
                merge: Merge::new(cursor.map_or(1, |c| c.seq.saturating_add(1)), config.check),
                number: None,
                stats: ChannelStats::default(),
                cursor: None,
                cursor_due: false,
                blocked: None,
                messages: Messages::default(),
                trust: Trust::default(),
                expired_ends: ExpiredEnds::default(),
                failed_checks: CheckBudget::default(),
                cleared: 0,
                suspended: false,
                redundant_frames: 0,
                lineages: 0,
                #[cfg(feature = "fault-injection")]
                packet_check_off: false,
                #[cfg(feature = "fault-injection")]
                rebuilt_proves: false,
            }
        });
        Receiver {
            channels: channels.collect(),
            flows: BTreeMap::new(),
            connected: false,
            welcomed: false,
            control: ControlReader::new(),
            control_out: Zeroizing::new(Vec::new()),
            feedback_out: VecDeque::new(),
            turn: 0,
            tracer: Tracer::default(),
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            timers: TimerTable::default(),
            clock: SourceClock::default(),
            last_cursor: None,
            need_limit: need::limit(),
            rng: SmallRng::seed_from_u64(config.seed),
            trusted: None,
            keys_frames: 0,
            merges_legs: false,
            #[cfg(feature = "fault-injection")]
            legs_unmerged: false,
            config,
        }
    }

    /// Delivers again what arrives again, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_dedupe_off(&mut self, off: bool) {
        for channel in &mut self.channels {
            channel.merge.set_dedupe_off(off);
        }
    }

    /// Takes what is not signed for what the source signed, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_signatures_off(&mut self, off: bool) {
        for channel in &mut self.channels {
            channel.merge.set_signatures_off(off);
        }
    }

    /// Takes what is behind a genuine header unseen, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_hash_check_off(&mut self, off: bool) {
        for channel in &mut self.channels {
            channel.merge.set_hash_check_off(off);
        }
    }

    /// Takes rebuilt packets for such that arrived, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_rebuilt_proves(&mut self, on: bool) {
        for channel in &mut self.channels {
            channel.rebuilt_proves = on;
        }
    }

    /// Takes the legs of a flow apart, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_legs_unmerged(&mut self, on: bool) {
        self.legs_unmerged = on;
    }

    /// Takes packets for the source's without their signature or tag, a fault for tests that must
    /// notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_packet_check_off(&mut self, off: bool) {
        for channel in &mut self.channels {
            channel.packet_check_off = off;
        }
    }

    /// Sends HELLO: the handshake is complete and the source verified.
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
                .filter(|c| !c.suspended)
                .map(|c| (c.name.clone(), Self::position(c)))
                .collect(),
            capabilities: self.capabilities(),
        };
        Control::Hello(hello).encode(&mut self.control_out);
    }

    fn capabilities(&self) -> Vec<u64> {
        let rungs = &self.config.rungs;
        let all = [
            (rungs.multicast_v4, CAPABILITY_MULTICAST_IPV4),
            (rungs.multicast_v6, CAPABILITY_MULTICAST_IPV6),
            (rungs.replicated, CAPABILITY_COPIES),
            (rungs.amt_v4 || rungs.amt_v6, CAPABILITY_AMT),
            (self.config.feedback, CAPABILITY_FEEDBACK),
            (self.config.deadlines, CAPABILITY_DEADLINES),
            (self.config.signatures, CAPABILITY_SIGNATURES),
            (
                self.config.packet_authentication,
                CAPABILITY_PACKET_AUTHENTICATION,
            ),
            (
                self.config.packet_authentication,
                CAPABILITY_STREAM_SIGNATURES,
            ),
            (self.config.fec, CAPABILITY_FEC),
            (self.config.fec, CAPABILITY_APART_SYMBOLS),
            (self.config.messages, CAPABILITY_MESSAGES),
            (
                self.config.redundancy == Redundancy::Two,
                CAPABILITY_HITLESS,
            ),
        ];
        let has = all.into_iter().filter(|(can, _)| *can);
        has.map(|(_, capability)| capability).collect()
    }

    /// Returns the cursor of delivered updates to resume from; before the first, the requested one.
    fn position(channel: &Channel) -> Option<Cursor> {
        let cursor = channel.incarnation.map(|incarnation| Cursor {
            incarnation,
            seq: channel.merge.next() - 1,
        });
        cursor.or(channel.asks)
    }

    /// Forgets everything that belongs to a connection that is gone.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.welcomed = false;
        (self.trusted, self.keys_frames) = (None, 0);
        self.control = ControlReader::new();
        self.control_out.clear();
        self.feedback_out.clear();
        self.streams.clear();
        self.drive_all(|flow| flow.disconnect());
        self.flows.clear();
        self.timers.retain(|timer| timer == Timer::Cursors);
        for channel in &mut self.channels {
            (channel.number, channel.blocked, channel.lineages) = (None, None, 0);
            channel.expired_ends = ExpiredEnds::default();
            channel.messages.disconnected();
            channel.merge.disconnected();
        }
    }

    /// Whether unicast streams may be read: the source has numbered the channels, and there is room
    /// for what the streams carry.
    pub fn wants_unicast(&self) -> bool {
        // Before a receiver that pins keys can verify what the streams carry, it leaves it there.
        let can_verify = self.config.pinned_keys.is_empty() || self.trusted.is_some();
        let takes = |c: &Channel| !c.merge.is_full() && c.merge.failure().is_none();
        self.welcomed && can_verify && self.channels.iter().all(takes)
    }

    /// Leaves a channel out of the next connections, or takes it in again: the source failed to
    /// authenticate its updates.
    pub fn suspend(&mut self, channel: &str, suspended: bool) {
        let named = self.channels.iter_mut().filter(|c| c.name == channel);
        named.for_each(|channel| channel.suspended = suspended);
    }

    /// Whether a channel is left out of connections.
    pub fn is_suspended(&self, channel: &str) -> bool {
        let mut named = self.channels.iter().filter(|c| c.name == channel);
        named.any(|channel| channel.suspended)
    }

    /// Whether any channel is not suspended: otherwise there is nothing to connect for.
    pub fn wants_channels(&self) -> bool {
        self.channels.iter().any(|channel| !channel.suspended)
    }

    /// Returns the bytes that are held for the application and for what is still missing: updates
    /// in order that were not polled yet, parts of others, and unicast streams that end in the
    /// middle of an item.
    pub fn buffered(&self) -> usize {
        let merges = self.channels.iter().map(|c| c.merge.held());
        let streams = self.streams.values().map(StreamReader::buffered);
        merges.chain(streams).sum()
    }

    /// Whether the source has answered the HELLO of this connection.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// Returns the heartbeat interval of the source's flows; 1 s before any was announced.
    pub fn heartbeat(&self) -> Duration {
        self.flows
            .values()
            .map(Flow::heartbeat)
            .max()
            .unwrap_or(Duration::from_secs(1))
    }

    /// Takes the bytes for the control stream.
    pub fn take_control(&mut self) -> Zeroizing<Vec<u8>> {
        std::mem::replace(&mut self.control_out, Zeroizing::new(Vec::new()))
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// Returns the next update in order, or the gap in its place, with its channel's name and
    /// incarnation. The channels take turns.
    pub fn poll_update(&mut self) -> Option<(&str, Uuid, Output)> {
        let count = self.channels.len();
        let turns = (0..count).map(|step| (self.turn + step) % count);
        let mut found = turns.filter_map(|at| {
            let channel = &mut self.channels[at];
            Some((at, channel.incarnation?, channel.merge.pop()?))
        });
        let (at, incarnation, output) = found.next()?;
        self.turn = at + 1;
        let stats = &mut self.channels[at].stats;
        let bytes = match &output {
            Output::Update(update) => update.encoded.len() as u64,
            Output::Gap { from, to } => {
                stats.gone += to - from + 1;
                0
            }
            Output::Expired { from, to, bytes } => {
                stats.reception.expired += to - from + 1;
                *bytes
            }
        };
        let end = self.channels[at].take_expired_end(output.last());
        for flow in self.flows.values_mut().filter(|f| f.channel() == at) {
            flow.consumed(output.last(), bytes, end, &mut self.control_out);
        }
        Some((&self.channels[at].name, incarnation, output))
    }

    /// Sets whether to trace flow packets.
    pub fn set_tracing(&mut self, on: bool) {
        self.tracer.set(on);
    }

    /// Returns the traces of flow packets since the last call, oldest first; the newest few
    /// thousand if there were more.
    pub fn take_trace(&mut self) -> Vec<PacketTrace> {
        self.tracer.take()
    }

    /// Returns state and counters of a channel.
    pub fn stats(&self, channel: &str) -> Option<ChannelStats> {
        let channel = self.channels.iter().find(|c| c.name == channel)?;
        let merge = channel.merge.stats();
        let mut stats = channel.stats;
        stats.reception.duplicates += merge.duplicates - channel.redundant_frames;
        stats.reception.mismatches += merge.mismatches;
        stats.reception.refetched += merge.refetched;
        stats.reception.forged += merge.forged;
        stats.reception.late = merge.late;
        stats.head = stats.head.max(channel.merge.next() - 1);
        Some(stats)
    }

    /// Confirms that the outputs hold everything up to `cursor`, durably; sent within a second.
    pub fn confirm(&mut self, channel: &str, cursor: Cursor, now: Instant) {
        let Some(channel) = self.channels.iter_mut().find(|c| c.name == channel) else {
            return;
        };
        // Of a history that a resync has ended meanwhile: the source would take it for a
        // violation.
        if channel.incarnation == Some(cursor.incarnation) && cursor.seq >= channel.merge.next() {
            return;
        }
        channel.cursor = Some(cursor);
        channel.cursor_due = true;
        let at = self
            .last_cursor
            .map_or(now, |last| last + CURSOR_EVERY)
            .max(now);
        if !self.timers.is_set(Timer::Cursors) {
            self.timers.set(Timer::Cursors, at);
        }
    }

    /// Takes bytes of the control stream.
    ///
    /// # Errors
    ///
    /// The source violates the protocol: close the connection.
    pub fn on_control(&mut self, bytes: &[u8], now: Instant) -> Result<(), WireError> {
        self.control.push(bytes);
        while let Some(frame) = self.control.next_frame()? {
            match frame {
                Control::Welcome(welcome) => self.on_welcome(welcome, now)?,
                Control::Refused { code, reason } => self
                    .events
                    .push_back(ReceiverEvent::Refused { code, reason }),
                Control::Announce(announce) => self.on_announce(announce, now)?,
                Control::Key(key) => self.on_key(key, now),
                Control::Rung(notice) => self.on_rung(notice, now),
                Control::Feedback(key) => self.on_feedback_key(&key),
                Control::Heard(flow) => self.on_heard(flow, now),
                Control::TagKey(key) => self.on_tag_key(&key),
                Control::Gap {
                    channel,
                    first,
                    last,
                } => self.on_gap(channel, first, last)?,
                Control::Expired(expired) => self.on_expired(expired)?,
                Control::Clock(answer) => self.on_clock(answer, now),
                Control::Lineage(lineage) => self.on_lineage(lineage)?,
                Control::Keys(endorsements) => self.on_keys(&endorsements)?,
                Control::Addresses(addresses) => {
                    self.events.push_back(ReceiverEvent::Addresses(addresses))
                }
                Control::Hello(_)
                | Control::Cursors(_)
                | Control::State(_)
                | Control::Window(_)
                | Control::Legs(_)
                | Control::Need(_) => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame that only receivers send",
                    ));
                }
            }
        }
        Ok(())
    }

    fn on_welcome(&mut self, welcome: Welcome, now: Instant) -> Result<(), WireError> {
        if self.welcomed {
            return Err(WireError::invalid("WELCOME", "a second one"));
        }
        self.welcomed = true;
        let can = |capability| welcome.capabilities.contains(&capability);
        let answers = can(SOURCE_ANSWERS_NEED);
        let keeps_time = self.config.deadlines && can(SOURCE_KEEPS_TIME);
        let sends_keys = can(SOURCE_SENDS_KEYS);
        let wants_two = self.config.redundancy == Redundancy::Two;
        self.merges_legs = wants_two && can(SOURCE_TAKES_LEGS);
        if wants_two && !self.merges_legs {
            self.events.push_back(ReceiverEvent::OneLeg);
        }
        self.begin_clock(keeps_time, now);
        for w in welcome.channels {
            let Some(at) = self.channels.iter().position(|c| c.name == w.name) else {
                continue;
            };
            let channel = &mut self.channels[at];
            if w.first == 0 || w.first > w.head + 1 {
                return Err(WireError::invalid(
                    "WELCOME",
                    "a delivery that begins at seq 0 or beyond the head",
                ));
            }
            channel.number = Some(w.channel);
            channel.stats.head = w.head;
            // A source whose head is below our cursor has lost updates that we have, as from an
            // older backup: it gives their numbers to other updates from here on.
            let behind = w.head + 1 < channel.merge.next();
            // Or the flow brought updates that the source never had.
            let forged = behind
                && channel.incarnation == Some(w.incarnation)
                && channel.merge.last_uncertain() > w.head;
            let resync = channel
                .incarnation
                .is_some_and(|known| known != w.incarnation || behind);
            if resync || channel.incarnation.is_none() {
                // Undelivered bytes of the other incarnation are dropped with it: delivery starts
                // over.
                channel.incarnation = Some(w.incarnation);
                channel.merge.restart(w.first);
                channel.messages.restart();
                channel.expired_ends = ExpiredEnds::default();
                channel.cursor_due = false;
            }
            channel.merge.set_source_answers(answers);
            channel.merge.set_deadlines(keeps_time);
            // A source that signs says so next, and before it announces a flow.
            let required = !self.config.pinned_keys.is_empty();
            let signatures = required.then(|| Signatures {
                channel: w.name.clone(),
                lineage: signing::Lineage::default(),
                required,
            });
            channel.merge.set_signatures(signatures);
            let next = channel.merge.next();
            if w.first > next {
                channel.merge.pass_over(next..w.first);
            }
            if forged {
                self.lose_trust(at, 0, now);
            }
            self.events.push_back(ReceiverEvent::Welcome {
                channel: w.name,
                incarnation: w.incarnation,
                head: w.head,
                first: w.first,
                resync,
            });
        }
        if !self.config.pinned_keys.is_empty() && !sends_keys {
            self.fail_unsigned();
        }
        Ok(())
    }

    fn on_gap(&mut self, channel: u64, first: u64, last: u64) -> Result<(), WireError> {
        let number = Some(channel);
        let Some(channel) = self.channels.iter_mut().find(|c| c.number == number) else {
            return Err(WireError::invalid(
                "GAP",
                "a channel that WELCOME did not name",
            ));
        };
        channel.stats.head = channel.stats.head.max(last);
        if !channel.merge.pass_over(first..last.saturating_add(1)) {
            return Err(WireError::invalid("GAP", "more gaps than a receiver takes"));
        }
        Ok(())
    }

    /// Returns the next PATH_ACK that is due, as a DATAGRAM payload with the path that it is for:
    /// an older one for the same path that is still unsent is obsolete. Those for which a feedback
    /// packet suffices are left out: [`Receiver::poll_feedback`] has them.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<(PathId, Vec<u8>)> {
        while self.connected {
            let (flow, ack) = self.take_due_ack(now)?;
            let payload = ack.encode();
            if !self.send_feedback(flow, &payload) {
                return Some((ack.path, payload));
            }
        }
        None
    }

    /// Returns the next feedback packet, for a UDP datagram of its own on the connection's path.
    /// Call it after [`Receiver::poll_datagram`].
    pub fn poll_feedback(&mut self) -> Option<Vec<u8>> {
        self.feedback_out.pop_front().map(|(_, packet)| packet)
    }

    /// Returns when to call [`Receiver::handle_timeout`], [`Receiver::poll_datagram`] and
    /// [`Receiver::poll_feedback`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_timeout(|timer| self.counts(timer))
    }

    /// Whether a timer counts on this connection: cursors are reported to a source that has
    /// answered.
    fn counts(&self, timer: Timer) -> bool {
        timer != Timer::Cursors || self.welcomed
    }

    /// Handles the timers that have expired, and requests bytes that the source has to send again.
    /// Call it after each input, too.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.pop_expired(now) {
            match timer {
                Timer::Cursors => self.report_cursors(now),
                Timer::Trust(flow) => {
                    self.drive(flow, |flow| flow.trust_again(now));
                }
                Timer::Flow(flow, timer) => self.on_flow_timer(flow, timer, now),
                Timer::Tunnel(flow, relay, timer) => self.on_tunnel_timer(flow, relay, timer, now),
                // `request_bytes` looks at these.
                Timer::Need | Timer::Blocked(_) => {}
                Timer::Deadline(_) | Timer::Clock => {}
            }
        }
        self.keep_deadlines(now);
        self.request_bytes(now);
    }

    /// Stops and returns an expired timer that `handle_timeout` dispatches.
    fn pop_expired(&mut self, now: Instant) -> Option<Timer> {
        let welcomed = self.welcomed;
        self.timers.pop_expired(now, |timer| match timer {
            Timer::Cursors => welcomed,
            Timer::Need | Timer::Blocked(_) | Timer::Flow(_, FlowTimer::Ack) => false,
            Timer::Deadline(_) | Timer::Clock => false,
            Timer::Trust(_) | Timer::Flow(..) | Timer::Tunnel(..) => true,
        })
    }

    fn report_cursors(&mut self, now: Instant) {
        self.last_cursor = Some(now);
        let due = self.channels.iter_mut().filter_map(|c| {
            std::mem::take(&mut c.cursor_due)
                .then_some(c.cursor)
                .flatten()
        });
        let cursors: Vec<_> = due.collect();
        Control::Cursors(cursors).encode(&mut self.control_out);
    }
}
