//! The flows that come through AMT relays: a gateway for each source that is wanted by this way,
//! since relays are found by the source's address (RFC 8777). A flow may come through two relays at
//! once: its second tunnel has a gateway of its own, which leaves the relay of the first one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use amt::gateway::{Event as Happened, RelayFailure, Subscription, SubscriptionId};
use amt_tokio::{Config, Gateway, Hint, Lookup, MemoryFile, Packet};
use flexicast::control::{Endpoint, Leg, RelayAddress, RelayHint};
use flexicast::receiver::Receiver as Core;
use flexicast::{Ecn, FlowId, Rung};
use tracing::{debug, warn};

use super::Relays;
use super::batch::with_batch;

/// Bound on gateways: a source that announces ever new addresses gets no more.
const MAX_PLACES: usize = 32;

/// Which gateway: that of a source, or of any source, for the tunnels with one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GatewayKey {
    number: u64,
    source: Option<IpAddr>,
}

/// A flow that is wanted through a relay.
struct Tunnel {
    channel: String,
    endpoints: Vec<Endpoint>,
    relays: Vec<RelayHint>,
    /// Which of the endpoints is subscribed to.
    at: usize,
    /// Consecutive liveness checks without a packet in between.
    silent: u32,
    subscription: Option<(GatewayKey, SubscriptionId)>,
}

impl Tunnel {
    fn uses(&self, key: GatewayKey) -> bool {
        self.subscription.is_some_and(|(used, _)| used == key)
    }
}

/// One gateway, with the last event about it.
struct GatewaySlot {
    gateway: Gateway,
    relay: Option<SocketAddr>,
    /// Relays that bring its flows already, by other tunnels.
    taken: BTreeSet<IpAddr>,
    /// Last reported event: a continuing absence of relays is not repeated.
    reported: String,
    /// By which subscriptions packets have come since they were doubted last.
    heard: BTreeSet<SubscriptionId>,
    /// Whether it found no relay at its last discovery.
    without: bool,
    /// Whether the relay was lost for good, by an injected fault.
    abandoned: bool,
}

impl GatewaySlot {
    /// Keeps the gateway from these relays. One that it has is left.
    fn keep_from(&mut self, taken: BTreeSet<IpAddr>) {
        if self.taken == taken {
            return;
        }
        let relay = self
            .relay
            .filter(|relay| !taken.contains(&relay.ip().to_canonical()));
        self.relay = relay;
        self.gateway.exclude(taken.iter().copied());
        self.taken = taken;
    }
}

/// State of the relay of a channel's flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RelayStatus {
    pub(super) channel: String,
    /// Number of the tunnel.
    pub(super) number: u64,
    pub(super) relay: Option<SocketAddr>,
    /// Description for people.
    pub(super) text: String,
}

/// The gateways of a receiver.
pub(super) struct Tunnels {
    relays: Option<Relays>,
    memory: Option<Arc<MemoryFile>>,
    slots: BTreeMap<GatewayKey, GatewaySlot>,
    /// The tunnels of each flow, by their numbers.
    tunnels: BTreeMap<(FlowId, u64), Tunnel>,
    #[cfg(feature = "fault-injection")]
    faults: super::Faults,
}

impl Tunnels {
    /// `relays` says where relays are looked for; without it, no flow is ever wanted by this way.
    pub(super) fn new(relays: Option<Relays>) -> Self {
        let memory = relays.as_ref().and_then(|relays| relays.memory.clone());
        Tunnels {
            memory: memory.map(MemoryFile::open),
            relays,
            slots: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            #[cfg(feature = "fault-injection")]
            faults: super::Faults::default(),
        }
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn inject_faults(&mut self, faults: super::Faults) {
        self.faults = faults;
    }

    /// Joins a flow through a relay, or updates its endpoints. Returns the relay if there is one
    /// already.
    ///
    /// # Errors
    /// The join cannot even be tried; the event says why.
    pub(super) fn open(
        &mut self,
        (flow, number): (FlowId, u64),
        channel: String,
        endpoints: Vec<Endpoint>,
        relays: Vec<RelayHint>,
    ) -> Result<Option<RelayStatus>, RelayStatus> {
        let known = self.tunnels.get_mut(&(flow, number));
        if let Some(known) = known.filter(|known| known.endpoints == endpoints) {
            known.relays = relays;
            self.hint();
            return Ok(None);
        }
        // Reported again below.
        let _ = self.end(flow, number);
        let tunnel = Tunnel {
            channel: channel.clone(),
            endpoints,
            relays,
            at: 0,
            silent: 0,
            subscription: None,
        };
        self.tunnels.insert((flow, number), tunnel);
        self.subscribe(flow, number).map_err(|error| RelayStatus {
            channel: channel.clone(),
            number,
            relay: None,
            text: format!("cannot begin to look for a relay: {error}"),
        })?;
        self.hint();
        let tunnel = self.tunnels.get(&(flow, number));
        let slot = tunnel.and_then(|t| self.slots.get(&t.subscription.as_ref()?.0));
        Ok(slot.and_then(|slot| slot.relay).map(|relay| RelayStatus {
            channel,
            number,
            relay: Some(relay),
            text: format!("the AMT relay {relay} is there already"),
        }))
    }

    /// Whether a lost relay is replaced by another one, as it always is but for an injected fault.
    fn fails_over(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.faults.relay_failover_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// Subscribes to the endpoint whose turn it is.
    fn subscribe(&mut self, flow: FlowId, number: u64) -> io::Result<()> {
        let taken = self.taken_by_others(flow, number).collect();
        let Some(tunnel) = self.tunnels.get_mut(&(flow, number)) else {
            return Ok(());
        };
        let Some(endpoint) = tunnel.endpoints.get(tunnel.at) else {
            return Ok(());
        };
        let source = endpoint.source;
        let key = GatewayKey { number, source };
        if self.slots.len() >= MAX_PLACES && !self.slots.contains_key(&key) {
            return Err(io::Error::other(format!(
                "flows of {MAX_PLACES} sources come through relays already"
            )));
        }
        let slot = match self.slots.entry(key) {
            std::collections::btree_map::Entry::Occupied(slot) => slot.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let relays = self.relays.clone().unwrap_or_default();
                let gateway = Gateway::start(Config {
                    relays: relays.configured,
                    dns: relays.dns.then(amt_tokio::discovery::Config::default),
                    anycast: relays.anycast,
                    port: relays.port,
                    memory: self
                        .memory
                        .as_ref()
                        .map(|memory| memory.of(key.to_string())),
                    ..Config::default()
                })?;
                free.insert(GatewaySlot {
                    gateway,
                    relay: None,
                    taken: BTreeSet::new(),
                    reported: String::new(),
                    heard: BTreeSet::new(),
                    without: false,
                    abandoned: false,
                })
            }
        };
        #[cfg(feature = "fault-injection")]
        slot.gateway.inject_faults(self.faults.gateway);
        if slot.reported.is_empty() {
            // Hints come before any request: an absence of relays would be reported too soon.
            let hints: Vec<_> = tunnel.relays.iter().map(as_hint).collect();
            slot.gateway.set_hints(&hints);
            slot.keep_from(taken);
        }
        let wanted = Subscription {
            source: endpoint.source,
            group: endpoint.group.ip(),
            port: endpoint.group.port(),
        };
        let subscription = slot.gateway.subscribe(wanted);
        let subscription = subscription.map_err(io::Error::other)?;
        tunnel.subscription = Some((key, subscription));
        self.keep_apart();
        Ok(())
    }

    /// Gives each gateway the relays announced by the sources of its flows.
    fn hint(&mut self) {
        for (key, slot) in &mut self.slots {
            let its = self.tunnels.values().filter(|tunnel| tunnel.uses(*key));
            let mut relays: Vec<_> = its.flat_map(|tunnel| &tunnel.relays).collect();
            relays.sort();
            relays.dedup();
            let hints: Vec<_> = relays.into_iter().map(as_hint).collect();
            slot.gateway.set_hints(&hints);
        }
    }

    /// Nothing comes, or nothing any more: the relay is asked whether it lives, and the next
    /// endpoint, if there is one, has its turn.
    pub(super) fn doubt(&mut self, flow: FlowId, number: u64) {
        let fails_over = self.fails_over();
        let Some(tunnel) = self.tunnels.get_mut(&(flow, number)) else {
            return;
        };
        let old = tunnel.subscription;
        let slot = old.and_then(|(key, _)| self.slots.get_mut(&key));
        let heard = slot.zip(old);
        let heard = heard.is_some_and(|(slot, (_, id))| slot.heard.remove(&id));
        // An endpoint that has worked until now has another chance; and every second time it may be
        // that its relay brings nothing, which the gateway finds out only as long as it is asked
        // for that endpoint.
        let turn = !heard && tunnel.silent.is_multiple_of(2);
        tunnel.silent = if heard { 0 } else { tunnel.silent + 1 };
        if tunnel.endpoints.len() > 1 && turn {
            tunnel.at = (tunnel.at + 1) % tunnel.endpoints.len();
            match self.subscribe(flow, number) {
                Ok(()) => self.release(old),
                Err(error) => {
                    warn!(%flow, %error, "the next endpoint cannot be tried through a relay")
                }
            }
            self.hint();
        }
        if let Some((key, _)) = old
            && let Some(slot) = self.slots.get_mut(&key)
            && fails_over
        {
            slot.gateway.suspect();
        }
    }

    fn release(&mut self, subscription: Option<(GatewayKey, SubscriptionId)>) {
        if let Some((key, id)) = subscription
            && let Some(slot) = self.slots.get_mut(&key)
        {
            slot.heard.remove(&id);
            slot.gateway.unsubscribe(id);
        }
    }

    /// Ends a tunnel of a flow. Returns the event for it.
    pub(super) fn end(&mut self, flow: FlowId, number: u64) -> Option<RelayStatus> {
        let tunnel = self.tunnels.remove(&(flow, number))?;
        self.release(tunnel.subscription);
        self.hint();
        if self.slots.len() > MAX_PLACES / 2 {
            let used = |key: &GatewayKey| self.tunnels.values().any(|tunnel| tunnel.uses(*key));
            self.slots.retain(|key, _| used(key));
        }
        self.keep_apart();
        Some(RelayStatus {
            channel: tunnel.channel,
            number,
            relay: None,
            text: "no AMT relay is needed now".to_owned(),
        })
    }

    /// Keeps the gateways of a flow's tunnels from each other's relays.
    fn keep_apart(&mut self) {
        if self.slots.keys().all(|key| key.number == 0) {
            return;
        }
        // Of two that have the same relay, by an endpoint that is new to them, the further one
        // leaves.
        let keys: Vec<_> = self.slots.keys().rev().copied().collect();
        for key in keys {
            let its = self.tunnels.iter().filter(|(_, tunnel)| tunnel.uses(key));
            let taken = its.flat_map(|((flow, number), _)| self.taken_by_others(*flow, *number));
            let taken = taken.collect();
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.keep_from(taken);
            }
        }
    }

    /// Returns the relays of the other tunnels of a flow.
    fn taken_by_others(&self, flow: FlowId, number: u64) -> impl Iterator<Item = IpAddr> {
        let all = self.tunnels.range((flow, 0)..=(flow, u64::MAX));
        let others = all.filter(move |((_, other), _)| *other != number);
        let slots = others.filter_map(|(_, tunnel)| self.slots.get(&tunnel.subscription?.0));
        let relays = slots.filter_map(|slot| slot.relay);
        relays.map(|relay| relay.ip().to_canonical())
    }

    /// This machine's network has changed.
    pub(super) fn network_changed(&mut self) {
        for slot in self.slots.values_mut() {
            slot.gateway.network_changed();
        }
    }

    /// Waits until a gateway has something to do; for ever if there is none.
    pub(super) async fn ready(&mut self) {
        let mut slots = self.slots.values_mut();
        // Most receivers have one source: then nothing is put together for each wait.
        let first = match (slots.next(), slots.len()) {
            (None, _) => return std::future::pending().await,
            (Some(only), 0) => return only.gateway.ready().await,
            (Some(first), _) => first,
        };
        let slots = std::iter::once(first).chain(slots);
        let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        for slot in slots {
            waits.push(Box::pin(slot.gateway.ready()));
        }
        std::future::poll_fn(|cx| {
            let any = waits.iter_mut().any(|w| w.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Takes packets from relays and the gateways' findings. Returns the findings to report.
    pub(super) fn receive(&mut self, core: &mut Core) -> Vec<RelayStatus> {
        let mut statuses = Vec::new();
        // A relay that one gateway has chosen must not be chosen by the next one.
        while self.receive_until_moved(core, &mut statuses) {
            self.keep_apart();
        }
        statuses
    }

    /// Takes packets and findings of the gateways, up to one whose relay is another than before.
    /// Returns whether there is one.
    fn receive_until_moved(&mut self, core: &mut Core, statuses: &mut Vec<RelayStatus>) -> bool {
        let now = Instant::now();
        let fails_over = self.fails_over();
        for (key, slot) in &mut self.slots {
            let leg = Leg {
                rung: Rung::Amt,
                number: key.number,
            };
            let relay = slot.relay;
            let (abandoned, heard) = (slot.abandoned, &mut slot.heard);
            let mut last = None;
            let mut take = |packet: Packet<'_>| {
                if abandoned {
                    return;
                }
                if last.replace(packet.subscription) != Some(packet.subscription) {
                    heard.insert(packet.subscription);
                }
                let mark = Ecn::from_tos(packet.ecn);
                core.on_leg_datagram(leg, mark, packet.data, now);
            };
            let read = with_batch(|batch| slot.gateway.receive(batch, &mut take));
            if let Err(error) = read {
                warn!(%error, "the socket towards AMT relays failed");
            }
            while let Some(event) = slot.gateway.poll_event() {
                if abandoned {
                    continue;
                }
                let mut text = event.to_string();
                // Names that are being looked up may bring one.
                let mut looking = false;
                if matches!(event, Happened::NoRelay { .. }) {
                    let status = slot.gateway.status();
                    looking = status.names.iter().any(|n| n.lookup == Lookup::UnderWay);
                    let taken = slot.taken.iter();
                    let taken = taken.map(|relay| format!("{relay}: it has the flow's other leg"));
                    for failure in status.failures().into_iter().chain(taken) {
                        text.push_str("; ");
                        text.push_str(&failure);
                    }
                }
                debug!("{text}");
                let its = self.tunnels.iter().filter(|(_, tunnel)| tunnel.uses(*key));
                match &event {
                    Happened::Connected { relay, .. } => slot.relay = Some(*relay),
                    Happened::Lost { .. } | Happened::NoRelay { .. } => {
                        slot.relay = None;
                        slot.abandoned = !fails_over && matches!(event, Happened::Lost { .. });
                    }
                    Happened::Idle { .. } => {
                        slot.relay = None;
                        slot.reported.clear();
                        continue;
                    }
                    _ => continue,
                }
                let none = matches!(event, Happened::NoRelay { .. });
                let was_without = std::mem::replace(&mut slot.without, none);
                let is_new = std::mem::replace(&mut slot.reported, text.clone()) != text;
                for ((flow, number), tunnel) in its {
                    match &event {
                        // Its packets go on until those of the next one come, and if none come,
                        // acknowledgements and heartbeats show that.
                        Happened::Lost {
                            why: RelayFailure::Limited,
                            ..
                        } => {}
                        Happened::Lost { .. } => core.relay_lost(*flow, *number, now),
                        Happened::Connected { .. } if was_without => {
                            core.relay_found(*flow, *number, now);
                        }
                        Happened::NoRelay { .. } if !looking => core.no_relay(*flow, *number, now),
                        _ => {}
                    }
                    if !is_new {
                        continue;
                    }
                    statuses.push(RelayStatus {
                        channel: tunnel.channel.clone(),
                        number: *number,
                        relay: slot.relay,
                        text: text.clone(),
                    });
                }
            }
            if slot.relay != relay {
                return true;
            }
        }
        false
    }

    /// Leaves all relays, politely.
    pub(super) async fn stop(&mut self) {
        self.tunnels.clear();
        for slot in std::mem::take(&mut self.slots).into_values() {
            slot.gateway.stop().await;
        }
    }
}

impl fmt::Display for GatewayKey {
    /// Writes the name under which a gateway's state is kept for the next run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(source) => source.fmt(f)?,
            None => f.write_str("any source")?,
        }
        match self.number {
            0 => Ok(()),
            number => write!(f, ", tunnel {}", number + 1),
        }
    }
}

/// Converts an announced relay to a gateway's hint.
fn as_hint(relay: &RelayHint) -> Hint {
    Hint {
        host: match &relay.address {
            RelayAddress::Ip(ip) => ip.to_string(),
            RelayAddress::Name(name) => name.clone(),
        },
        port: relay.port,
        priority: relay.priority,
    }
}
