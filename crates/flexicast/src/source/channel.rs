//! One channel at the source: its head, its recent updates, its flow.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::audience::Audience;
use super::delivery::ItemKind;
use super::overdue::Sight;
use super::recent::Recent;
use super::types::{ChannelConfig, ChannelIndex, SourceEvent, Traffic, channel_number};
use crate::Cause;
use crate::control::{Announce, Endpoint, RelayHint};
use crate::flow::{FlowConfig, FlowSender};
use crate::protect::KeyError;

/// Fall-backs within this time are one event if they are many.
const MASS_WITHIN: Duration = Duration::from_secs(1);
/// Many are at least so many, and at least a fifth of the members.
const MASS_AT_LEAST: usize = 5;
/// All members' acknowledgements together stay below this many a second (design section 5).
const ACKS_PER_S: u64 = 20_000;

/// Fall-backs that may turn out to be one event.
#[derive(Debug)]
struct MassFallBack {
    since: Instant,
    count: usize,
    members: usize,
    cause: Cause,
}

#[derive(Debug)]
pub(super) struct Channel {
    /// Whether the slot is free: the channel was removed.
    pub(super) vacant: bool,
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
    pub(super) recent: Recent,
    pub(super) flow: Option<FlowSender>,
    pub(super) announce_sequence: u64,
    /// The flow's part of its path ids; each flow of a source has another one.
    pub(super) flow_index: u64,
    /// The acknowledgement delay that the operator asked for; the announced one grows with the
    /// members.
    base_ack_delay: Duration,
    /// Receivers of the flow.
    pub(super) audience: Audience,
    /// Receivers that hold the key and are gone; `None` among them stands for more than are
    /// remembered.
    pub(super) leavers: BTreeSet<Option<Uuid>>,
    /// Time at which receivers that left are locked out.
    pub(super) leave_rekey_at: Option<Instant>,
    /// Time at which newcomers to a private channel get a key.
    pub(super) join_rekey_at: Option<Instant>,
    pub(super) last_rekey: Option<Instant>,
    /// [`SourceEvent::SecretWanted`] was said and not answered yet.
    pub(super) secret_wanted: bool,
    /// Another epoch is due as soon as the announced one has begun.
    pub(super) rekey_again: bool,
    mass: Option<MassFallBack>,
    /// UDP payload of the flows before the present one.
    former_flows: u64,
    /// Whole updates on unicast paths, in bytes.
    pub(super) unicast_bytes: u64,
    /// Repairs on unicast paths, in bytes.
    pub(super) repair_bytes: u64,
    /// Bytes that unicast alone would have sent.
    pub(super) by_unicast_alone: u64,
}

impl Channel {
    pub(super) fn new(config: ChannelConfig, flow_index: u64) -> Result<Self, KeyError> {
        let base_ack_delay = config.flow.as_ref().map_or(Duration::ZERO, |f| f.ack_delay);
        Ok(Channel {
            vacant: false,
            flow: config.flow.map(FlowSender::new).transpose()?,
            name: config.name,
            incarnation: config.incarnation,
            private: config.private,
            replicate: config.replicate,
            head: config.head,
            first: config.first,
            endpoints: config.endpoints,
            recent: Recent::new(config.head + 1),
            flow_index,
            base_ack_delay,
            ..Channel::vacant()
        })
    }

    /// Returns the placeholder of a removed channel.
    pub(super) fn vacant() -> Self {
        Channel {
            vacant: true,
            name: String::new(),
            incarnation: Uuid::nil(),
            private: false,
            replicate: false,
            head: 0,
            first: 1,
            head_at_look: 0,
            endpoints: Vec::new(),
            relays: Vec::new(),
            recent: Recent::new(1),
            flow: None,
            announce_sequence: 1,
            // No path has this one.
            flow_index: u64::MAX,
            base_ack_delay: Duration::ZERO,
            audience: Audience::default(),
            leavers: BTreeSet::new(),
            leave_rekey_at: None,
            join_rekey_at: None,
            last_rekey: None,
            secret_wanted: false,
            rekey_again: false,
            mass: None,
            former_flows: 0,
            unicast_bytes: 0,
            repair_bytes: 0,
            by_unicast_alone: 0,
        }
    }

    /// Puts another flow in the place of the present one.
    pub(super) fn begin_flow(
        &mut self,
        config: FlowConfig,
        flow_index: u64,
    ) -> Result<(), KeyError> {
        let base = config.ack_delay;
        self.flow = Some(FlowSender::new(config)?);
        self.base_ack_delay = base;
        self.flow_index = flow_index;
        self.leavers.clear();
        (self.leave_rekey_at, self.join_rekey_at, self.last_rekey) = (None, None, None);
        (self.secret_wanted, self.rekey_again) = (false, false);
        Ok(())
    }

    /// The flow ends: what it has sent stays counted.
    pub(super) fn drop_flow(&mut self) {
        self.former_flows = self.traffic().flow;
        self.flow = None;
    }

    pub(super) fn traffic(&self) -> Traffic {
        let flow = self.flow.as_ref().map_or(0, |f| f.stats().bytes);
        Traffic {
            flow: self.former_flows + flow,
            unicast: self.unicast_bytes,
            repairs: self.repair_bytes,
            by_unicast_alone: self.by_unicast_alone,
        }
    }

    /// Returns the updates that a look at the cursors needs to know of.
    pub(super) fn sight(&self) -> Sight {
        Sight {
            head: self.head,
            last_head: self.head_at_look,
            first: self.first,
        }
    }

    /// Counts bytes that were handed to a unicast path.
    pub(super) fn count_unicast(&mut self, kind: ItemKind, bytes: usize) {
        match kind {
            ItemKind::Repair => self.repair_bytes += bytes as u64,
            ItemKind::Update => {
                self.unicast_bytes += bytes as u64;
                self.by_unicast_alone += bytes as u64;
            }
        }
    }

    pub(super) fn announcement(&self, index: ChannelIndex) -> Option<Announce> {
        let config = self.flow.as_ref()?.config();
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
        })
    }

    /// Adjusts the acknowledgement delay to the number of members; returns whether it has to be
    /// announced.
    pub(super) fn retune(&mut self, now: Instant) -> bool {
        let base = self.base_ack_delay;
        let Some(flow) = &mut self.flow else {
            return false;
        };
        let acks = Duration::from_micros(flow.members() as u64 * 1_000_000 / ACKS_PER_S);
        let (wanted, known) = (base.max(acks), flow.config().ack_delay);
        // In steps, so that not every change of membership is announced to all.
        let back = wanted == base && known != base && acks < base * 4 / 5;
        let moved = wanted > known * 5 / 4 || wanted * 5 / 4 < known || back;
        if moved {
            flow.set_ack_delay(wanted, now);
            self.announce_sequence += 1;
        }
        moved
    }

    /// Notes a member that fell back by the flow's own timers.
    pub(super) fn count_fall_back(&mut self, cause: Cause, now: Instant) {
        let members = self.flow.as_ref().map_or(0, FlowSender::members);
        let mass = self.mass.get_or_insert(MassFallBack {
            since: now,
            count: 0,
            members: members + 1,
            cause,
        });
        mass.count += 1;
    }

    pub(super) fn mass_due(&self) -> Option<Instant> {
        self.mass.as_ref().map(|m| m.since + MASS_WITHIN)
    }

    /// The event, if enough members fell back within a second that is over now.
    pub(super) fn mass_event(&mut self, index: ChannelIndex, now: Instant) -> Option<SourceEvent> {
        if self.mass_due().is_none_or(|at| at > now) {
            return None;
        }
        let mass = self.mass.take()?;
        let many = mass.count >= MASS_AT_LEAST && mass.count * 5 >= mass.members;
        many.then_some(SourceEvent::MassFallBack {
            channel: index,
            members: mass.count,
            cause: mass.cause,
        })
    }
}
