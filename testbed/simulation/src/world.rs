//! The world of one run: hosts, paths, virtual time, and the order in which things happen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::Leg;
use flexicast::source::SessionId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::fault::Fault;
use crate::node::{Doubts, Node};
use crate::origin::Origin;
use crate::path::Path;
use crate::relays::Relay;
use crate::script::{Act, Script};
use crate::store::Store;
use crate::trace::{Kind, Trace};
use crate::violation::{BrokenPromise, Promise, broken};
use crate::watch::Watch;

/// A run with more events than this does not end by itself.
const MOST_EVENTS: u64 = 20_000_000;

/// A host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Source,
    Receiver(usize),
}

/// Future events.
#[derive(Debug)]
pub(crate) enum Event {
    Act(Act),
    /// A host's timer.
    Wake(Host),
    /// The next message of a lane arrives at the receiver.
    Down {
        session: SessionId,
        lane: u64,
    },
    /// The next message of a control stream arrives at the source.
    Up {
        session: SessionId,
    },
    /// A DATAGRAM frame arrives at the source.
    Datagram {
        session: SessionId,
        bytes: Vec<u8>,
    },
    /// A DATAGRAM frame arrives at the receiver.
    Fragment {
        session: SessionId,
        bytes: Bytes,
    },
    /// The source learns that so many bytes of server streams were read.
    Credit {
        session: SessionId,
        bytes: usize,
    },
    /// An end gives a connection up.
    End {
        session: SessionId,
        host: Host,
    },
    /// A flow packet arrives.
    Packet {
        receiver: usize,
        boot: u64,
        flow: flexicast::FlowId,
        leg: Leg,
        packet: Bytes,
    },
    /// The store answers.
    Fetched {
        boot: u64,
        session: SessionId,
        channel: usize,
        from: u64,
        limit: usize,
    },
    /// A receiver tries to connect.
    Connect {
        receiver: usize,
        boot: u64,
    },
    /// The handshake is over at the receiver.
    Handshaken {
        receiver: usize,
        boot: u64,
        session: SessionId,
    },
    /// The source learns whether it may send copies to where the receiver is now.
    Validated {
        session: SessionId,
        yes: bool,
    },
    /// The network has taken note of a join.
    Joined {
        receiver: usize,
        boot: u64,
        flow: flexicast::FlowId,
        endpoints: Vec<flexicast::control::Endpoint>,
    },
    /// One of a receiver's gateways knows more of relays.
    Gateway {
        receiver: usize,
        number: u64,
        boot: u64,
    },
    /// An application's update is on disk.
    Confirm {
        receiver: usize,
        boot: u64,
    },
    /// An application looks for updates again.
    Read {
        receiver: usize,
        boot: u64,
    },
    /// A host goes on after standing still.
    Resume(Host),
    /// A process starts.
    Start(Host),
    /// A flow takes the place of one that was withdrawn.
    Reannounce {
        channel: usize,
        boot: u64,
    },
}

/// An event and when it happens; those of one instant happen in the order in which they were
/// scheduled.
struct Scheduled {
    at: Instant,
    serial: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// Summary of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Number of receivers.
    pub receivers: usize,
    /// Virtual time.
    pub time: Duration,
    /// Events that happened.
    pub events: u64,
    /// Updates and gaps that applications took.
    pub updates: u64,
    /// Flow packets that were sent.
    pub packets: u64,
    /// Keys that were handed out.
    pub keys: u64,
    /// Other event counts: moves by cause, gaps, messages, resyncs.
    pub seen: BTreeMap<String, u64>,
    /// The hash of everything that happened, in order.
    pub trace: u64,
}

pub(crate) struct World {
    pub(crate) script: Script,
    pub(crate) fault: Option<Fault>,
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) rng: SmallRng,
    queue: BinaryHeap<Reverse<Scheduled>>,
    serial: u64,
    pub(crate) origin: Origin,
    pub(crate) nodes: Vec<Node>,
    pub(crate) relays: Vec<Relay>,
    pub(crate) paths: BTreeMap<SessionId, Path>,
    pub(crate) next_session: SessionId,
    pub(crate) watch: Watch,
    pub(crate) trace: Trace,
    pub(crate) seen: BTreeMap<String, u64>,
    /// The disturbances are over.
    pub(crate) healing: bool,
    pub(crate) scratch: Vec<u8>,
    pub(crate) messages: BTreeSet<Bytes>,
}

impl World {
    pub(crate) fn new(
        script: Script,
        fault: Option<Fault>,
        verbose: bool,
    ) -> Result<Self, BrokenPromise> {
        let start = Instant::now();
        let mut rng = SmallRng::seed_from_u64(script.seed ^ 0x5eed);
        if fault == Some(Fault::Dice) {
            rng = SmallRng::seed_from_u64(dice());
        }
        let mut watch = Watch::new(script.channels.iter().map(|c| c.private));
        let names: Vec<_> = (0..script.channels.len()).map(channel_name).collect();
        let checked = script.is_forgery_believed() && fault != Some(Fault::FlowBelieved);
        let doubts = Doubts {
            dedupe_off: fault == Some(Fault::DedupeOff),
            check: checked.then_some(Store::is_update),
            packet_check_off: fault == Some(Fault::PacketsBelieved),
        };
        let nodes = script
            .receivers
            .iter()
            .enumerate()
            .map(|(i, plan)| Node::new(i, plan.clone(), &names, rng.random(), doubts, start));
        let nodes = nodes.collect();
        let mut origin = Origin::new(&script, &mut rng);
        origin.start(&script, fault, &mut rng, &mut watch)?;
        let mut world = World {
            fault,
            start,
            now: start,
            rng,
            queue: BinaryHeap::new(),
            serial: 0,
            origin,
            nodes,
            relays: (0..script.relays).map(|_| Relay::default()).collect(),
            paths: BTreeMap::new(),
            next_session: 1,
            watch,
            trace: Trace::new(verbose),
            seen: BTreeMap::new(),
            healing: false,
            scratch: Vec::new(),
            messages: BTreeSet::new(),
            script,
        };
        for (at, act) in std::mem::take(&mut world.script.acts) {
            world.schedule(start + at, Event::Act(act));
        }
        for receiver in 0..world.nodes.len() {
            let at = start + world.nodes[receiver].plan.joins_at;
            world.schedule(at, Event::Start(Host::Receiver(receiver)));
        }
        world.schedule(start, Event::Resume(Host::Source));
        Ok(world)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    pub(crate) fn schedule(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        let serial = self.serial;
        self.queue.push(Reverse(Scheduled { at, serial, event }));
    }

    /// The whole run.
    pub(crate) fn run(&mut self) -> Result<Report, BrokenPromise> {
        self.advance(self.script.duration)?;
        self.heal()?;
        self.settle()?;
        let (mut resets, mut rebuilt) = (0, 0);
        for node in &self.nodes {
            let stats = node.readings.keys().filter_map(|c| node.core.stats(c));
            for stats in stats {
                resets += stats.resets;
                rebuilt += stats.reception.rebuilt;
            }
        }
        let proofs = self.watch.proofs;
        for (what, count) in [
            ("packets signed", proofs.signed),
            ("repair symbols", self.watch.symbols),
            ("resets", resets),
            ("packets rebuilt", rebuilt),
            ("packets of tags", proofs.tag_packets),
            ("from tags to signatures", proofs.to_signatures),
            ("from signatures to tags", proofs.to_tags),
        ] {
            self.seen.insert(what.to_owned(), count);
        }
        Ok(Report {
            seed: self.script.seed,
            receivers: self.nodes.len(),
            time: self.elapsed(),
            events: self.trace.events(),
            updates: self
                .nodes
                .iter()
                .flat_map(|n| n.readings.values())
                .map(|r| r.updates)
                .sum(),
            packets: self.watch.packets,
            keys: self.watch.keys,
            seen: std::mem::take(&mut self.seen),
            trace: self.trace.finish(),
        })
    }

    /// Lets virtual time pass.
    pub(crate) fn advance(&mut self, span: Duration) -> Result<(), BrokenPromise> {
        let end = self.now + span;
        while self.queue.peek().is_some_and(|Reverse(s)| s.at <= end) {
            let Some(Reverse(Scheduled { at, event, .. })) = self.queue.pop() else {
                break;
            };
            self.now = self.now.max(at);
            self.happen(event)?;
            if self.trace.events() > MOST_EVENTS {
                return broken(Promise::Timers, "the run does not come to an end");
            }
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), BrokenPromise> {
        // Events for a suspended host wait.
        if let Some(host) = self.host_of(&event)
            && let Some(until) = self.suspended(host)
        {
            return self.hold(until, event);
        }
        match event {
            Event::Act(act) => self.perform(act),
            Event::Wake(Host::Source) => self.wake_source(),
            Event::Wake(Host::Receiver(i)) => self.wake_receiver(i),
            Event::Down { session, lane } => self.arrive_down(session, lane),
            Event::Up { session } => self.arrive_up(session),
            Event::Datagram { session, bytes } => self.arrive_datagram(session, &bytes),
            Event::Fragment { session, bytes } => self.arrive_fragment(session, &bytes),
            Event::Credit { session, bytes } => self.arrive_credit(session, bytes),
            Event::End { session, host } => self.end(session, host),
            Event::Packet {
                receiver,
                boot,
                flow,
                leg,
                packet,
            } => self.arrive_packet((receiver, boot), flow, leg, &packet),
            Event::Fetched {
                boot,
                session,
                channel,
                from,
                limit,
            } => self.fetched(boot, session, channel, from, limit),
            Event::Connect { receiver, boot } => self.connect(receiver, boot),
            Event::Handshaken {
                receiver,
                boot,
                session,
            } => self.handshaken(receiver, boot, session),
            Event::Validated { session, yes } => self.validated(session, yes),
            Event::Joined {
                receiver,
                boot,
                flow,
                endpoints,
            } => {
                let node = &mut self.nodes[receiver];
                if node.boot == boot && node.joined.contains_key(&flow) {
                    node.joined.insert(flow, endpoints);
                }
                Ok(())
            }
            Event::Gateway {
                receiver,
                number,
                boot,
            } => self.gateway(receiver, number, boot),
            Event::Confirm { receiver, boot } => self.confirm(receiver, boot),
            Event::Read { receiver, boot } => {
                if self.nodes[receiver].boot == boot {
                    self.nodes[receiver].reads_at = None;
                    self.pump_receiver(receiver)?;
                }
                Ok(())
            }
            Event::Resume(host) => self.resume(host),
            Event::Start(Host::Source) => self.start_source(),
            Event::Start(Host::Receiver(i)) => self.start_receiver(i),
            Event::Reannounce { channel, boot } => self.reannounce(channel, boot),
        }
    }

    /// The host that an event needs to be awake.
    fn host_of(&self, event: &Event) -> Option<Host> {
        let receiver_of = |session: &SessionId| {
            let path = self.paths.get(session)?;
            Some(Host::Receiver(path.receiver))
        };
        match event {
            Event::Wake(host) => Some(*host),
            Event::End { host, .. } => Some(*host),
            Event::Down { session, .. } | Event::Fragment { session, .. } => receiver_of(session),
            Event::Up { .. }
            | Event::Datagram { .. }
            | Event::Credit { .. }
            | Event::Fetched { .. }
            | Event::Validated { .. }
            | Event::Reannounce { .. } => Some(Host::Source),
            Event::Packet { receiver, .. }
            | Event::Connect { receiver, .. }
            | Event::Handshaken { receiver, .. }
            | Event::Gateway { receiver, .. }
            | Event::Confirm { receiver, .. }
            | Event::Read { receiver, .. } => Some(Host::Receiver(*receiver)),
            Event::Act(_) | Event::Joined { .. } | Event::Resume(_) | Event::Start(_) => None,
        }
    }

    pub(crate) fn suspended(&self, host: Host) -> Option<Instant> {
        match host {
            Host::Source => self
                .origin
                .suspended_until
                .filter(|until| self.now < *until),
            Host::Receiver(i) => self.nodes[i].is_suspended(self.now),
        }
    }

    fn hold(&mut self, until: Instant, event: Event) -> Result<(), BrokenPromise> {
        /// Capacity of a socket buffer, in packets.
        const BUFFER: usize = 128;
        if let Event::Packet { receiver, .. } = &event {
            let node = &mut self.nodes[*receiver];
            node.held_packets += 1;
            if node.held_packets > BUFFER {
                return Ok(());
            }
        }
        self.schedule(until, event);
        Ok(())
    }

    pub(crate) fn note(&mut self, kind: Kind, about: u64, bytes: &[u8]) {
        let at = self.elapsed();
        self.trace.note(at, kind, about, bytes);
    }

    /// Counts something that is worth knowing to have happened.
    pub(crate) fn count(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        self.trace.say(self.elapsed(), line);
    }

    /// Makes a host's timer ring at its deadline.
    pub(crate) fn arm(&mut self, host: Host, deadline: Option<Instant>) {
        let (now, slack) = (self.now, self.script.timer_slack);
        let Some(deadline) = deadline else { return };
        let at = deadline.max(now) + slack;
        let wake = match host {
            Host::Source => &mut self.origin.wake,
            Host::Receiver(i) => &mut self.nodes[i].wake,
        };
        if wake.armed.is_some_and(|armed| armed <= at && armed >= now) {
            return;
        }
        wake.armed = Some(at);
        self.schedule(at, Event::Wake(host));
    }
}

/// The name of a channel by its index.
pub(crate) fn channel_name(channel: usize) -> String {
    format!("channel-{channel}")
}

/// A number that no seed determines. Only to show that such a thing is noticed.
fn dice() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static ROLLS: AtomicU64 = AtomicU64::new(0);
    ROLLS.fetch_add(1, Ordering::Relaxed)
}
