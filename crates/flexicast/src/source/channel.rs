//! One channel at the source: its head, its recent updates, its flow.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use signing::Lineage;
use uuid::Uuid;

use super::audience::Audience;
use super::delivery::ItemKind;
use super::expiry::Deadlines;
use super::mass::MassFallBack;
use super::outputs::CursorBounds;
use super::recent::Recent;
use super::rekeying::Rekeying;
use super::session::Session;
use super::types::{ChannelConfig, ChannelIndex, SessionId, Traffic, channel_number};
use crate::control::{self, Announce, Control, Endpoint, RelayHint};
use crate::flow::{FlowConfig, FlowSender};
use crate::protect::KeyError;

/// All members' acknowledgements together stay below this many a second.
const ACKS_PER_S: u64 = 20_000;
/// Maximum of the acknowledgement delay that a source asks for because it cannot keep up.
const MAX_ACK_DELAY: Duration = Duration::from_millis(400);

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) name: String,
    pub(super) incarnation: Uuid,
    pub(super) private: bool,
    pub(super) replicate: bool,
    pub(super) head: u64,
    pub(super) first: u64,
    /// Head when the cursors were looked at last.
    pub(super) head_at_look: u64,
    pub(super) endpoints: Vec<Endpoint>,
    /// AMT relays announced to receivers.
    pub(super) relays: Vec<RelayHint>,
    pub(super) announce_sequence: u64,
    /// Keys of its updates; without eras they are not signed.
    pub(super) lineage: Lineage,
    pub(super) recent: Recent,
    /// Deadlines of the updates that its flow got.
    pub(super) deadlines: Deadlines,
    /// Number of the last message.
    pub(super) last_message: u64,
    pub(super) flow: Option<FlowSender>,
    /// The flow's part of its path ids; each flow of a source has another one.
    pub(super) flow_index: u64,
    /// The acknowledgement delay that the operator asked for; the announced one grows with the
    /// members.
    base_ack_delay: Duration,
    /// Receivers of the flow.
    pub(super) audience: Audience,
    /// Sessions that may get the next update by unicast: members of the flow are not looked at for
    /// each update.
    pub(super) direct: BTreeSet<SessionId>,
    pub(super) rekeying: Rekeying,
    pub(super) mass: MassFallBack,
    /// Bytes so far, of the present flow excepted.
    traffic: Traffic,
}

impl Channel {
    pub(super) fn new(config: ChannelConfig, flow_index: u64) -> Result<Self, KeyError> {
        let base_ack_delay = config.flow.as_ref().map_or(Duration::ZERO, |f| f.ack_delay);
        Ok(Channel {
            flow: config.flow.map(FlowSender::new).transpose()?,
            name: config.name,
            incarnation: config.incarnation,
            private: config.private,
            replicate: config.replicate,
            head: config.head,
            first: config.first,
            head_at_look: 0,
            endpoints: config.endpoints,
            relays: Vec::new(),
            announce_sequence: 1,
            lineage: Lineage::default(),
            recent: Recent::new(config.head + 1),
            deadlines: Deadlines::default(),
            last_message: 0,
            flow_index,
            base_ack_delay,
            audience: Audience::default(),
            direct: BTreeSet::new(),
            rekeying: Rekeying::default(),
            mass: MassFallBack::default(),
            traffic: Traffic::default(),
        })
    }

    /// Starts a flow in a channel that has none.
    pub(super) fn begin_flow(
        &mut self,
        config: FlowConfig,
        flow_index: u64,
    ) -> Result<(), KeyError> {
        let base = config.ack_delay;
        self.flow = Some(FlowSender::new(config)?);
        self.base_ack_delay = base;
        self.flow_index = flow_index;
        Ok(())
    }

    /// Drops the flow with its audience and keys; what it has sent stays counted.
    pub(super) fn drop_flow(&mut self) {
        self.traffic = self.traffic();
        self.flow = None;
        self.deadlines = Deadlines::default();
        self.audience.clear();
        self.rekeying = Rekeying::default();
    }

    /// Returns the bytes sent so far.
    pub(super) fn traffic(&self) -> Traffic {
        let flow = self.flow.as_ref().map_or(0, |f| f.stats().bytes);
        Traffic {
            flow: self.traffic.flow + flow,
            ..self.traffic
        }
    }

    /// Takes the next update: keeps its bytes and queues it for the flow.
    pub(super) fn publish(&mut self, seq: u64, encoded: Bytes) {
        self.head = seq;
        self.recent.push(seq, encoded.clone());
        if let Some(flow) = &mut self.flow {
            self.traffic.by_unicast_alone += encoded.len() as u64 * flow.members() as u64;
            flow.push(seq, encoded.clone());
            self.deadlines.note(seq, &encoded, flow.anchor().offset);
        }
    }

    /// Returns the updates that a look at the cursors needs to know of.
    pub(super) fn sight(&self) -> CursorBounds {
        CursorBounds {
            head: self.head,
            last_head: self.head_at_look,
            first: self.first,
        }
    }

    /// Counts bytes that were handed to a unicast path.
    pub(super) fn count_unicast(&mut self, kind: ItemKind, bytes: usize) {
        match kind {
            ItemKind::Repair => self.traffic.repairs += bytes as u64,
            ItemKind::Update => {
                self.traffic.unicast += bytes as u64;
                self.traffic.by_unicast_alone += bytes as u64;
            }
        }
    }

    /// Whether a receiver may have the flow: it verifies updates, or they are not signed; and the
    /// same of its packets or streams.
    pub(super) fn is_for(&self, session: &Session) -> bool {
        let flow = self.flow.as_ref();
        let authentication = flow.and_then(FlowSender::authentication);
        (self.lineage.eras().is_empty() || session.verifies())
            && authentication.is_none_or(|flow| session.authenticates(&flow))
    }

    /// Returns the frame with the keys of its updates, if they are signed.
    pub(super) fn lineage_frame(&self, index: ChannelIndex) -> Option<Control> {
        (!self.lineage.eras().is_empty()).then(|| {
            Control::Lineage(control::Lineage {
                channel: channel_number(index),
                eras: self.lineage.clone(),
            })
        })
    }

    pub(super) fn announcement(&self, index: ChannelIndex) -> Option<Announce> {
        let flow = self.flow.as_ref()?;
        let config = flow.config();
        Some(Announce {
            flow: config.flow,
            sequence: self.announce_sequence,
            withdrawn: false,
            endpoints: self.endpoints.clone(),
            relays: self.relays.clone(),
            copies: self.replicate,
            ack_delay: config.ack_delay,
            flow_index: self.flow_index,
            channel: channel_number(index),
            heartbeat: config.heartbeat,
            authentication: flow.authentication(),
            fec: config.fec.map(|fec| fec.parameters()),
        })
    }

    /// Adjusts the acknowledgement delay to the number of members, which may send `acks_per_s`
    /// together; returns whether it has to be announced.
    pub(super) fn retune(&mut self, acks_per_s: u64, now: Instant) -> bool {
        let base = self.base_ack_delay;
        let Some(flow) = &mut self.flow else {
            return false;
        };
        let (known, members) = (flow.config().ack_delay, flow.members());
        let wanted = ack_delay_of(members, acks_per_s, base, known);
        let moved = wanted != known;
        if moved {
            flow.set_ack_delay(wanted, now);
            self.announce_sequence += 1;
        }
        moved
    }
}

/// Returns the acknowledgement delay of so many members, `known` so far: in steps, so that not
/// every change of membership is announced to all, and never so short that they exceed the budget.
fn ack_delay_of(members: usize, acks_per_s: u64, base: Duration, known: Duration) -> Duration {
    let delay = |per_s: u64| Duration::from_micros(members as u64 * 1_000_000 / per_s.max(1));
    let acks = delay(ACKS_PER_S).max(delay(acks_per_s).min(MAX_ACK_DELAY));
    match acks > known {
        true => step(base, acks),
        false => step(base, acks * 5 / 4).min(known),
    }
}

/// Returns the least of `base` times 1, 5/4, 6/4, 7/4, 2, 10/4 and so on that is not below `least`,
/// in whole milliseconds as it is announced.
fn step(base: Duration, least: Duration) -> Duration {
    if base.is_zero() {
        return least;
    }
    let mut octave = base;
    while octave * 2 < least {
        octave *= 2;
    }
    let mut steps = (4..8).map(|quarters| octave * quarters / 4);
    let step = steps.find(|step| *step >= least).unwrap_or(octave * 2);
    Duration::from_millis(step.as_micros().div_ceil(1000) as u64).max(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// As members come one by one and leave again, they never exceed the budget, and few changes
    /// are announced.
    #[test]
    fn the_acknowledgement_delay_keeps_the_budget_in_few_steps() {
        const MOST: usize = 20_000;
        for base in [25 * MS, 7 * MS] {
            let (mut delay, mut changes) = (base, 0);
            for members in (0..=MOST).chain((0..MOST).rev()) {
                let wanted = ack_delay_of(members, ACKS_PER_S, base, delay);
                changes += usize::from(wanted != delay);
                delay = wanted;
                let acks = members as f64 / delay.as_secs_f64();
                assert!(
                    acks <= ACKS_PER_S as f64,
                    "{members} members: {acks} acks/s"
                );
                let most = Duration::from_micros(members as u64 * 50).max(base) * 2;
                assert!(delay <= most, "{members} members: {delay:?}");
                match members {
                    500 => assert!(delay <= 35 * MS),
                    1000 => assert!((50 * MS..=70 * MS).contains(&delay)),
                    _ => {}
                }
            }
            assert_eq!(delay, base);
            assert!(changes < 70, "{changes} announcements");
        }
        assert_eq!(ack_delay_of(1000, ACKS_PER_S, 25 * MS, 25 * MS), 50 * MS);
        assert_eq!(
            ack_delay_of(1000, ACKS_PER_S, Duration::ZERO, 25 * MS),
            50 * MS
        );
    }

    /// A source that cannot keep up asks for fewer, within bounds.
    #[test]
    fn a_smaller_budget_makes_the_delay_longer() {
        let slow = |members, per_s| ack_delay_of(members, per_s, 25 * MS, 25 * MS);
        assert_eq!(slow(1000, ACKS_PER_S / 4), 200 * MS);
        assert_eq!(slow(1000, 1), MAX_ACK_DELAY);
        assert_eq!(slow(20_000, 1), Duration::from_secs(1), "as without");
    }

    /// A member that comes and goes is not announced to all each time.
    #[test]
    fn one_member_more_or_less_changes_the_delay_once() {
        let raised = ack_delay_of(1001, ACKS_PER_S, 25 * MS, 50 * MS);
        assert_eq!(raised, 63 * MS);
        assert_eq!(ack_delay_of(1000, ACKS_PER_S, 25 * MS, raised), raised);
    }
}
