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

use amt::gateway::{Event as Happened, RelayFailure, Subscription, SubscriptionId, UsedRelay};
use amt_tokio::{Config, Gateway, Hint, Lookup, MemoryFile, Packet};
use flexicast::control::{Endpoint, Leg, RelayAddress, RelayHint};
use flexicast::receiver::Receiver as Core;
use flexicast::{Ecn, FlowId, Rung};
use tracing::{debug, warn};

use super::Relays;
use super::batch::with_batch;

#[cfg(test)]
mod tests;

/// Bound on the gateways for first tunnels, and on those for further ones: a source that announces
/// ever new addresses gets no more.
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
    taken: BTreeSet<UsedRelay>,
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
    /// Keeps the gateway for tunnels with this number from these relays. One that it has is left,
    /// but by the gateway for first tunnels.
    fn keep_from(&mut self, taken: BTreeSet<UsedRelay>, number: u64) {
        if self.taken == taken {
            return;
        }
        if number == 0 {
            self.gateway.avoid(taken.iter().copied());
        } else {
            self.gateway.exclude(taken.iter().copied());
        }
        let left = self.used().map(|used| used.relay);
        let is_left = |relay: &SocketAddr| left == Some(relay.ip().to_canonical());
        self.relay = self.relay.filter(is_left);
        self.taken = taken;
    }

    /// Returns the relay in use.
    fn used(&self) -> Option<UsedRelay> {
        self.gateway.relay().filter(|_| !self.abandoned)
    }

    /// Returns the relay in use with all addresses that it may have.
    fn used_with_aliases(&self) -> Vec<UsedRelay> {
        match self.abandoned {
            true => Vec::new(),
            false => self.gateway.relay_with_aliases(),
        }
    }

    /// Whether its relay is, or may be, one of these.
    fn conflicts(&self, taken: &BTreeSet<UsedRelay>) -> bool {
        let has = |other: &UsedRelay| self.gateway.may_share(*other);
        !self.abandoned && taken.iter().any(has)
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
    /// Tunnels that have left a gateway which others share, because its relay is their flow's other
    /// one; to be reported.
    yielded: Vec<(FlowId, u64)>,
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
            yielded: Vec::new(),
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
            channel,
            endpoints,
            relays,
            at: 0,
            silent: 0,
            subscription: None,
        };
        self.tunnels.insert((flow, number), tunnel);
        if let Err(error) = self.subscribe(flow, number) {
            let text = format!("cannot begin to look for a relay: {error}");
            return self.status(flow, number, None, text).map_or(Ok(None), Err);
        }
        self.hint();
        Ok(self.present(flow, number))
    }

    fn status(
        &self,
        flow: FlowId,
        number: u64,
        relay: Option<SocketAddr>,
        text: String,
    ) -> Option<RelayStatus> {
        let tunnel = self.tunnels.get(&(flow, number))?;
        Some(RelayStatus {
            channel: tunnel.channel.clone(),
            number,
            relay,
            text,
        })
    }

    /// Returns the relay that a tunnel has from its beginning.
    fn present(&self, flow: FlowId, number: u64) -> Option<RelayStatus> {
        let tunnel = self.tunnels.get(&(flow, number))?;
        let relay = self.slots.get(&tunnel.subscription?.0)?.relay?;
        let text = format!("the AMT relay {relay} is there already");
        self.status(flow, number, Some(relay), text)
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
        let own: BTreeSet<_> = self.taken_by_others(flow, number).collect();
        let Some(tunnel) = self.tunnels.get(&(flow, number)) else {
            return Ok(());
        };
        let Some(endpoint) = tunnel.endpoints.get(tunnel.at).copied() else {
            return Ok(());
        };
        let source = endpoint.source;
        let key = GatewayKey { number, source };
        let users = self.users_but(key, (flow, number));
        let taken: BTreeSet<_> = users
            .flat_map(|id| self.taken_by_others(id.0, id.1))
            .collect();
        let is_shared = self.users_but(key, (flow, number)).next().is_some();
        match self.slots.get(&key) {
            Some(slot) if number > 0 && is_shared && slot.conflicts(&own) => {
                // It stays where it is: flows come by it.
                return Err(io::Error::other("the flow's other leg comes by its relay"));
            }
            Some(_) => {}
            None if self.is_full(number) => {
                self.drop_unused();
                if self.is_full(number) {
                    return Err(io::Error::other(format!(
                        "flows of {MAX_PLACES} sources come through relays already"
                    )));
                }
            }
            None => {}
        }
        let Some(tunnel) = self.tunnels.get_mut(&(flow, number)) else {
            return Ok(());
        };
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
        }
        // As is the exclusion of the other tunnels' relays.
        slot.keep_from(taken.into_iter().chain(own).collect(), number);
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

    /// Returns the tunnels that use a gateway, but for one.
    fn users_but(
        &self,
        key: GatewayKey,
        but: (FlowId, u64),
    ) -> impl Iterator<Item = (FlowId, u64)> {
        let users = self.tunnels.iter();
        let users = users.filter(move |(id, tunnel)| tunnel.uses(key) && **id != but);
        users.map(|(id, _)| *id)
    }

    /// Whether there are as many gateways for tunnels with this number as there may be. Further
    /// tunnels keep no first one from being opened.
    fn is_full(&self, number: u64) -> bool {
        let is_first = |number: u64| number == 0;
        let keys = self.slots.keys();
        let alike = keys.filter(|key| is_first(key.number) == is_first(number));
        alike.count() >= MAX_PLACES
    }

    /// Drops the gateways without a flow.
    fn drop_unused(&mut self) {
        let used = |key: &GatewayKey| self.tunnels.values().any(|tunnel| tunnel.uses(*key));
        self.slots.retain(|key, _| used(key));
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
    /// endpoint, if there is one, has its turn. Returns the relay if there is another one at once.
    pub(super) fn doubt(&mut self, flow: FlowId, number: u64) -> Option<RelayStatus> {
        let fails_over = self.fails_over();
        let tunnel = self.tunnels.get_mut(&(flow, number))?;
        let old = tunnel.subscription;
        let slot = old.and_then(|(key, _)| self.slots.get_mut(&key));
        let heard = slot.zip(old);
        let heard = heard.is_some_and(|(slot, (_, id))| slot.heard.remove(&id));
        // An endpoint that has worked until now has another chance; and every second time it may be
        // that its relay brings nothing, which the gateway finds out only as long as it is asked
        // for that endpoint.
        let turn = !heard && tunnel.silent.is_multiple_of(2) && tunnel.endpoints.len() > 1;
        tunnel.silent = if heard { 0 } else { tunnel.silent + 1 };
        if turn || old.is_none() {
            let next = (tunnel.at + 1).checked_rem(tunnel.endpoints.len());
            tunnel.at = next.unwrap_or_default();
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
        let tunnel = self.tunnels.get(&(flow, number))?;
        let moved = tunnel.subscription.map(|(key, _)| key) != old.map(|(key, _)| key);
        moved.then(|| self.present(flow, number)).flatten()
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
            self.drop_unused();
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
        // One that kept others from its relay may be gone.
        let is_alone =
            |(key, slot): (&GatewayKey, &GatewaySlot)| key.number == 0 && slot.taken.is_empty();
        if self.slots.iter().all(is_alone) {
            return;
        }
        // Of two that have the same relay, by an endpoint that is new to them, the further one
        // leaves.
        let keys: Vec<_> = self.slots.keys().rev().copied().collect();
        for key in keys {
            if key.number > 0 {
                self.yield_relay(key);
            }
            let its = self.tunnels.iter().filter(|(_, tunnel)| tunnel.uses(key));
            let taken = its.flat_map(|((flow, number), _)| self.taken_by_others(*flow, *number));
            let taken = taken.collect();
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.keep_from(taken, key.number);
            }
        }
    }

    /// Ends the subscriptions of those tunnels whose flow has the gateway's relay by another one,
    /// unless no tunnel would stay: the others keep the relay.
    fn yield_relay(&mut self, key: GatewayKey) {
        let Some(slot) = self.slots.get(&key) else {
            return;
        };
        let users = self.tunnels.iter().filter(|(_, tunnel)| tunnel.uses(key));
        let (yielding, staying): (Vec<_>, Vec<_>) = users.map(|(id, _)| *id).partition(|id| {
            let taken = self.taken_by_others(id.0, id.1).collect();
            slot.conflicts(&taken)
        });
        if staying.is_empty() {
            return;
        }
        for id in yielding {
            let tunnel = self.tunnels.get_mut(&id);
            let subscription = tunnel.and_then(|tunnel| tunnel.subscription.take());
            self.release(subscription);
            self.yielded.push(id);
        }
    }

    /// Returns the relays of the other tunnels of a flow.
    fn taken_by_others(&self, flow: FlowId, number: u64) -> impl Iterator<Item = UsedRelay> {
        let all = self.tunnels.range((flow, 0)..=(flow, u64::MAX));
        let others = all.filter(move |((_, other), _)| *other != number);
        let slots = others.filter_map(|(_, tunnel)| self.slots.get(&tunnel.subscription?.0));
        slots.flat_map(GatewaySlot::used_with_aliases)
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
        for (flow, number) in std::mem::take(&mut self.yielded) {
            core.no_relay(flow, number, Instant::now());
            let text = "the flow's other leg comes by the AMT relay, too".to_owned();
            statuses.extend(self.status(flow, number, None, text));
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
                    let taken = taken.map(|taken| {
                        let relay = taken.relay;
                        format!("{relay}: it has the flow's other leg")
                    });
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
