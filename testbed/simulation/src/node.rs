//! One receiver: its state machine, its network, the application behind it and what that has on
//! disk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Credential, Endpoint};
use flexicast::receiver::{Check, Output, Receiver, ReceiverConfig, Redundancy, Rungs};
use flexicast::source::SessionId;
use flexicast::{Cursor, FlowId, Rung};
use uuid::Uuid;

use crate::link::Link;
use crate::relays::Gateway;
use crate::script::ReceiverPlan;
use crate::store::Store;
use crate::violation::{BrokenPromise, Promise, broken};
use crate::wake::Wake;

/// Whether a receiver takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Not arrived yet.
    Expected,
    /// Present; has to get everything.
    Here,
    /// Its process is being restarted.
    Down,
    /// Gone for good, or revoked.
    Gone,
}

/// The application's view of one channel.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The history that it follows and the next `seq` that it may see.
    pub(crate) expects: Option<(Uuid, u64)>,
    /// The same of the history before, of which something may still be ready.
    pub(crate) before: Option<(Uuid, u64)>,
    /// Cursor of delivered updates, on disk or not.
    pub(crate) handed: Option<Cursor>,
    pub(crate) durable: Option<Cursor>,
    pub(crate) updates: u64,
    /// Rung as reported by the transport.
    pub(crate) rung: Option<Rung>,
}

pub(crate) struct Node {
    pub(crate) plan: ReceiverPlan,
    pub(crate) id: Uuid,
    pub(crate) core: Receiver,
    pub(crate) presence: Presence,
    /// Incremented by each restart; events of an earlier boot are ignored.
    pub(crate) boot: u64,
    pub(crate) path: Option<SessionId>,
    pub(crate) multicast: Link,
    pub(crate) relayed: Link,
    /// One for each relay that it may have at once.
    pub(crate) gateways: [Gateway; 2],
    pub(crate) copied: Link,
    pub(crate) unicast: Link,
    /// The groups that it asked for.
    pub(crate) wanted: BTreeMap<FlowId, Vec<Endpoint>>,
    /// The groups that the network knows it to have joined.
    pub(crate) joined: BTreeMap<FlowId, Vec<Endpoint>>,
    pub(crate) readings: BTreeMap<String, Reading>,
    pub(crate) stalled_until: Option<Instant>,
    pub(crate) next_read: Instant,
    pub(crate) reads_at: Option<Instant>,
    pub(crate) confirm_due: bool,
    pub(crate) suspended_until: Option<Instant>,
    /// Flow datagrams in the socket buffer while the host is suspended.
    pub(crate) held_packets: usize,
    pub(crate) copy_fails: bool,
    /// Messages to all that it got in this life.
    pub(crate) messages: BTreeSet<Bytes>,
    pub(crate) wake: Wake,
    doubts: Doubts,
}

/// A receiver's handling of duplicates and wrong updates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doubts {
    /// Test-only: duplicates are handed on.
    pub(crate) dedupe_off: bool,
    /// Test-only: packets are not authenticated.
    pub(crate) packet_check_off: bool,
    /// The validity check.
    pub(crate) check: Option<Check>,
}

impl Node {
    pub(crate) fn new(
        index: usize,
        plan: ReceiverPlan,
        names: &[String],
        seed: u64,
        doubts: Doubts,
        now: Instant,
    ) -> Self {
        let wanted = plan.channels.iter().filter_map(|c| names.get(*c));
        let readings = wanted.map(|name| (name.clone(), Reading::default()));
        let readings: BTreeMap<_, _> = readings.collect();
        let id = Uuid::from_u128(index as u128 + 1);
        Node {
            core: receiver(id, &plan, &readings, seed, doubts),
            multicast: Link::new(plan.multicast),
            relayed: Link::new(plan.relayed),
            gateways: Default::default(),
            copied: Link::new(plan.copied),
            unicast: Link::new(plan.unicast),
            plan,
            id,
            presence: Presence::Expected,
            boot: 0,
            path: None,
            wanted: BTreeMap::new(),
            joined: BTreeMap::new(),
            readings,
            stalled_until: None,
            next_read: now,
            reads_at: None,
            confirm_due: false,
            suspended_until: None,
            held_packets: 0,
            copy_fails: false,
            messages: BTreeSet::new(),
            wake: Wake::default(),
            doubts,
        }
    }

    /// Returns the gateway of the tunnels with this number.
    pub(crate) fn gateway(&mut self, number: u64) -> &mut Gateway {
        let [first, second] = &mut self.gateways;
        if number == 0 { first } else { second }
    }

    /// The process dies: only what is on disk remains.
    pub(crate) fn dies(&mut self) {
        self.boot += 1;
        self.messages.clear();
        self.path = None;
        self.joined.clear();
        self.wanted.clear();
        self.gateways = Default::default();
        self.confirm_due = false;
        self.reads_at = None;
        self.held_packets = 0;
        self.wake.armed = None;
        for reading in self.readings.values_mut() {
            let durable = reading.durable;
            reading.handed = durable;
            reading.before = None;
            reading.expects = durable.map(|c| (c.incarnation, c.seq + 1));
            reading.rung = None;
        }
    }

    /// The process starts again.
    pub(crate) fn starts(&mut self, seed: u64) {
        self.core = receiver(self.id, &self.plan, &self.readings, seed, self.doubts);
    }

    pub(crate) fn rtt(&self) -> Duration {
        self.unicast.quality.delay * 2
    }

    pub(crate) fn is_suspended(&self, now: Instant) -> Option<Instant> {
        self.suspended_until.filter(|until| now < *until)
    }

    /// Whether it takes flows whose packets are authenticated: every fifth is of a version that
    /// does not.
    pub(crate) fn authenticates(&self) -> bool {
        authenticates(self.id)
    }

    /// Whether a flow packet to these endpoints comes by: some group that the host joined is among
    /// them.
    pub(crate) fn hears(&self, flow: FlowId, endpoints: &[Endpoint]) -> bool {
        let reachable = |e: &Endpoint| {
            if e.group.is_ipv4() {
                self.plan.v4
            } else {
                self.plan.v6
            }
        };
        self.joined
            .get(&flow)
            .is_some_and(|joined| joined.iter().any(|e| reachable(e) && endpoints.contains(e)))
    }

    /// The source welcomes the receiver to a channel.
    pub(crate) fn welcomed(
        &mut self,
        channel: &str,
        incarnation: Uuid,
        head: u64,
        first: u64,
        resync: bool,
        store: &Store,
    ) -> Result<(), BrokenPromise> {
        let Some(reading) = self.readings.get_mut(channel) else {
            return broken(Promise::Protocol, format!("welcome to {channel}"));
        };
        let same = reading
            .expects
            .is_some_and(|(known, _)| known == incarnation);
        if same && resync {
            return broken(
                Promise::Order,
                format!("starts over in {channel}, whose history is the same"),
            );
        }
        if !same {
            let oldest = head.saturating_sub(99).max(1);
            if incarnation == store.incarnation && first > oldest.max(store.first) {
                return broken(
                    Promise::Order,
                    format!("begins {channel} at {first} of {head}, but has no cursor"),
                );
            }
            reading.before = reading.expects.replace((incarnation, first));
        }
        Ok(())
    }

    /// The application takes an output.
    pub(crate) fn takes(
        &mut self,
        channel: &str,
        incarnation: Uuid,
        output: &Output,
        store: &Store,
    ) -> Result<(), BrokenPromise> {
        let Some(reading) = self.readings.get_mut(channel) else {
            return broken(Promise::Protocol, format!("output of {channel}"));
        };
        let late = reading
            .before
            .is_some_and(|(known, _)| known == incarnation);
        let expects = if late {
            reading.before
        } else {
            reading.expects
        };
        let (from, to) = match output {
            Output::Update(update) => (update.seq, update.seq),
            Output::Gap { from, to } | Output::Expired { from, to, .. } => (*from, *to),
        };
        if expects != Some((incarnation, from)) || to < from {
            let expects = expects.map(|(_, seq)| seq);
            return broken(
                Promise::Order,
                format!("gets {from} to {to} of {channel}, expects {expects:?}"),
            );
        }
        let known = incarnation == store.incarnation;
        match output {
            Output::Update(update) if known && store.get(from) != Some(&update.encoded) => {
                return broken(
                    Promise::Bytes,
                    format!("update {from} of {channel} is not what was published"),
                );
            }
            Output::Expired { .. } => {
                let expired =
                    format!("{from} to {to} of {channel}, which have no deadline, expire");
                return broken(Promise::Order, expired);
            }
            Output::Gap { .. } if known && to >= store.first => {
                let first = store.first;
                return broken(
                    Promise::Order,
                    format!(
                        "{from} to {to} of {channel} are said to be gone, but the store has them \
                         from {first} on"
                    ),
                );
            }
            _ => {}
        }
        let next = Some((incarnation, to + 1));
        if late {
            reading.before = next;
        } else {
            (reading.expects, reading.before) = (next, None);
        }
        reading.handed = Some(Cursor {
            incarnation,
            seq: to,
        });
        reading.updates += 1;
        Ok(())
    }

    /// Returns the updates missing at the end, if any.
    pub(crate) fn misses(&self, channel: &str, store: &Store) -> Option<String> {
        let reading = self.readings.get(channel)?;
        let head = store.head();
        match reading.expects {
            Some((incarnation, next)) if incarnation == store.incarnation && next == head + 1 => {
                None
            }
            Some((incarnation, next)) if incarnation == store.incarnation => {
                Some(format!("is at {next} of {head} in {channel}"))
            }
            Some(_) => Some(format!("follows an older history of {channel}")),
            None => Some(format!("got nothing of {channel}")),
        }
    }
}

fn authenticates(id: Uuid) -> bool {
    !id.as_u128().is_multiple_of(5)
}

fn receiver(
    id: Uuid,
    plan: &ReceiverPlan,
    readings: &BTreeMap<String, Reading>,
    seed: u64,
    doubts: Doubts,
) -> Receiver {
    let channels = readings.iter().map(|(name, r)| (name.clone(), r.durable));
    let mut config = ReceiverConfig::new(
        id,
        Credential::Token(b"simulation".to_vec()),
        channels.collect(),
    );
    config.name = format!("r{}", id.as_u128());
    config.software = "simulation".into();
    config.rungs = Rungs {
        multicast_v4: plan.v4,
        multicast_v6: plan.v6,
        amt_v4: plan.amt_v4,
        amt_v6: plan.amt_v6,
        replicated: plan.copies,
    };
    config.seed = seed;
    // Every third is of a version without.
    config.feedback = !id.as_u128().is_multiple_of(3);
    config.packet_authentication = authenticates(id);
    // Every fourth rebuilds nothing.
    config.fec = !id.as_u128().is_multiple_of(4);
    // Every second takes two legs, if there are.
    if id.as_u128().is_multiple_of(2) {
        config.redundancy = Redundancy::Two;
    }
    config.check = doubts.check;
    let mut receiver = Receiver::new(config);
    receiver.set_dedupe_off(doubts.dedupe_off);
    receiver.set_packet_check_off(doubts.packet_check_off);
    receiver
}
