//! The flows that come through AMT relays: a gateway for each source that is wanted by this way,
//! since relays are found by the source's address (RFC 8777).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use amt::gateway::{Event as Happened, RelayFailure, Subscription, SubscriptionId};
use amt_tokio::{Config, Gateway, Hint, Lookup, MemoryFile, Packet};
use flexicast::control::{Endpoint, RelayAddress, RelayHint};
use flexicast::receiver::Receiver as Core;
use flexicast::{Ecn, FlowId, Rung};
use tracing::{debug, warn};

use super::Relays;
use super::batch::with_batch;

/// Bound on gateways: a source that announces ever new addresses gets no more.
const MAX_PLACES: usize = 32;

/// A flow that is wanted through a relay.
struct Tunnel {
    channel: String,
    endpoints: Vec<Endpoint>,
    relays: Vec<RelayHint>,
    /// Which of the endpoints is subscribed to.
    at: usize,
    /// Consecutive liveness checks without a packet in between.
    silent: u32,
    subscription: Option<(Option<IpAddr>, SubscriptionId)>,
}

/// One gateway, with the last event about it.
struct GatewaySlot {
    gateway: Gateway,
    relay: Option<SocketAddr>,
    /// Last reported event: a continuing absence of relays is not repeated.
    reported: String,
    /// By which subscriptions packets have come since they were doubted last.
    heard: BTreeSet<SubscriptionId>,
    /// Whether it found no relay at its last discovery.
    without: bool,
    /// Whether the relay was lost for good, by an injected fault.
    abandoned: bool,
}

/// State of the relay of a channel's flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RelayStatus {
    pub(super) channel: String,
    pub(super) relay: Option<SocketAddr>,
    /// Description for people.
    pub(super) text: String,
}

/// The gateways of a receiver.
pub(super) struct Tunnels {
    relays: Option<Relays>,
    memory: Option<Arc<MemoryFile>>,
    slots: BTreeMap<Option<IpAddr>, GatewaySlot>,
    flows: BTreeMap<FlowId, Tunnel>,
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
            flows: BTreeMap::new(),
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
        flow: FlowId,
        channel: String,
        endpoints: Vec<Endpoint>,
        relays: Vec<RelayHint>,
    ) -> Result<Option<RelayStatus>, RelayStatus> {
        let known = self.flows.get_mut(&flow);
        if let Some(known) = known.filter(|known| known.endpoints == endpoints) {
            known.relays = relays;
            self.hint();
            return Ok(None);
        }
        // Reported again below.
        let _ = self.end(flow);
        let tunnel = Tunnel {
            channel: channel.clone(),
            endpoints,
            relays,
            at: 0,
            silent: 0,
            subscription: None,
        };
        self.flows.insert(flow, tunnel);
        self.subscribe(flow).map_err(|error| RelayStatus {
            channel: channel.clone(),
            relay: None,
            text: format!("cannot begin to look for a relay: {error}"),
        })?;
        self.hint();
        let tunnel = self.flows.get(&flow);
        let slot = tunnel.and_then(|t| self.slots.get(&t.subscription.as_ref()?.0));
        Ok(slot.and_then(|slot| slot.relay).map(|relay| RelayStatus {
            channel,
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
    fn subscribe(&mut self, flow: FlowId) -> io::Result<()> {
        let Some(tunnel) = self.flows.get_mut(&flow) else {
            return Ok(());
        };
        let Some(endpoint) = tunnel.endpoints.get(tunnel.at) else {
            return Ok(());
        };
        if self.slots.len() >= MAX_PLACES && !self.slots.contains_key(&endpoint.source) {
            return Err(io::Error::other(format!(
                "flows of {MAX_PLACES} sources come through relays already"
            )));
        }
        let slot = match self.slots.entry(endpoint.source) {
            std::collections::btree_map::Entry::Occupied(slot) => slot.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let relays = self.relays.clone().unwrap_or_default();
                let gateway = Gateway::start(Config {
                    relays: relays.configured,
                    dns: relays.dns.then(amt_tokio::discovery::Config::default),
                    anycast: relays.anycast,
                    port: relays.port,
                    memory: self.memory.as_ref().map(|memory| {
                        memory.of(match endpoint.source {
                            Some(source) => source.to_string(),
                            None => "any source".to_owned(),
                        })
                    }),
                    ..Config::default()
                })?;
                free.insert(GatewaySlot {
                    gateway,
                    relay: None,
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
        let wanted = Subscription {
            source: endpoint.source,
            group: endpoint.group.ip(),
            port: endpoint.group.port(),
        };
        let subscription = slot.gateway.subscribe(wanted);
        let subscription = subscription.map_err(io::Error::other)?;
        tunnel.subscription = Some((endpoint.source, subscription));
        Ok(())
    }

    /// Gives each gateway the relays announced by the sources of its flows.
    fn hint(&mut self) {
        for (source, slot) in &mut self.slots {
            let its = self.flows.values().filter(|tunnel| {
                let at = tunnel.subscription.as_ref().map(|(source, _)| source);
                at == Some(source)
            });
            let mut relays: Vec<_> = its.flat_map(|tunnel| &tunnel.relays).collect();
            relays.sort();
            relays.dedup();
            let hints: Vec<_> = relays.into_iter().map(as_hint).collect();
            slot.gateway.set_hints(&hints);
        }
    }

    /// Nothing comes, or nothing any more: the relay is asked whether it lives, and the next
    /// endpoint, if there is one, has its turn.
    pub(super) fn doubt(&mut self, flow: FlowId) {
        let fails_over = self.fails_over();
        let Some(tunnel) = self.flows.get_mut(&flow) else {
            return;
        };
        let old = tunnel.subscription;
        let slot = old.and_then(|(source, _)| self.slots.get_mut(&source));
        let heard = slot.zip(old);
        let heard = heard.is_some_and(|(slot, (_, id))| slot.heard.remove(&id));
        // An endpoint that has worked until now has another chance; and every second time it may be
        // that its relay brings nothing, which the gateway finds out only as long as it is asked
        // for that endpoint.
        let turn = !heard && tunnel.silent.is_multiple_of(2);
        tunnel.silent = if heard { 0 } else { tunnel.silent + 1 };
        if tunnel.endpoints.len() > 1 && turn {
            tunnel.at = (tunnel.at + 1) % tunnel.endpoints.len();
            match self.subscribe(flow) {
                Ok(()) => self.release(old),
                Err(error) => {
                    warn!(%flow, %error, "the next endpoint cannot be tried through a relay")
                }
            }
            self.hint();
        }
        if let Some((source, _)) = old
            && let Some(slot) = self.slots.get_mut(&source)
            && fails_over
        {
            slot.gateway.suspect();
        }
    }

    fn release(&mut self, subscription: Option<(Option<IpAddr>, SubscriptionId)>) {
        if let Some((source, id)) = subscription
            && let Some(slot) = self.slots.get_mut(&source)
        {
            slot.heard.remove(&id);
            slot.gateway.unsubscribe(id);
        }
    }

    /// Ends the flow's tunnel. Returns the event for it.
    pub(super) fn end(&mut self, flow: FlowId) -> Option<RelayStatus> {
        let tunnel = self.flows.remove(&flow)?;
        self.release(tunnel.subscription);
        self.hint();
        if self.slots.len() > MAX_PLACES / 2 {
            let used = |source: &Option<IpAddr>| {
                let mut all = self.flows.values();
                all.any(|t| t.subscription.is_some_and(|(at, _)| at == *source))
            };
            self.slots.retain(|source, _| used(source));
        }
        Some(RelayStatus {
            channel: tunnel.channel,
            relay: None,
            text: "no AMT relay is needed now".to_owned(),
        })
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
        let now = Instant::now();
        let fails_over = self.fails_over();
        let mut statuses = Vec::new();
        for (source, slot) in &mut self.slots {
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
                core.on_marked_flow_datagram(Rung::Amt, mark, packet.data, now);
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
                    for failure in status.failures() {
                        text.push_str("; ");
                        text.push_str(&failure);
                    }
                }
                debug!("{text}");
                let its = self.flows.iter().filter(|(_, tunnel)| {
                    let at = tunnel.subscription.as_ref().map(|(source, _)| source);
                    at == Some(source)
                });
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
                for (flow, tunnel) in its {
                    match &event {
                        // Its packets go on until those of the next one come, and if none come,
                        // acknowledgements and heartbeats show that.
                        Happened::Lost {
                            why: RelayFailure::Limited,
                            ..
                        } => {}
                        Happened::Lost { .. } => core.relay_lost(*flow, now),
                        Happened::Connected { .. } if was_without => core.relay_found(*flow, now),
                        Happened::NoRelay { .. } if !looking => core.no_relay(*flow, now),
                        _ => {}
                    }
                    if !is_new {
                        continue;
                    }
                    statuses.push(RelayStatus {
                        channel: tunnel.channel.clone(),
                        relay: slot.relay,
                        text: text.clone(),
                    });
                }
            }
        }
        statuses
    }

    /// Leaves all relays, politely.
    pub(super) async fn stop(&mut self) {
        self.flows.clear();
        for slot in std::mem::take(&mut self.slots).into_values() {
            slot.gateway.stop().await;
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
