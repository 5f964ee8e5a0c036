//! The tunnels: one gateway for all flows, or one for each source where sources have relays of
//! their own.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use amt::gateway::{Event, Subscription, SubscriptionId};
use amt_tokio::{Config, Gateway, MemoryFile, Packet, Status};
use anyhow::Context;
use netio::RecvBatch;
#[cfg(feature = "fault-injection")]
use service::faults::Fault;
use tracing::{info, warn};

use crate::silence::Silence;

/// Whose relays a gateway uses: those of one source, or those of all flows.
pub type Place = Option<IpAddr>;
/// A flow: a gateway, and the subscription there.
pub type FlowId = (Place, SubscriptionId);

/// One gateway.
#[derive(Debug)]
struct Tunnel {
    gateway: Gateway,
    silence: Silence,
}

impl Tunnel {
    async fn ready(&mut self) {
        tokio::select! {
            () = self.gateway.ready() => {}
            () = self.silence.lasted() => self.gateway.suspect(),
        }
    }
}

/// All gateways of the program.
#[derive(Debug)]
pub struct Tunnels {
    places: BTreeMap<Place, Tunnel>,
}

impl Tunnels {
    /// Subscribes to all `flows`, and gives the group of each. With relays from the DNS, each source
    /// has a gateway of its own, for its relays need not serve others (RFC 8777). `memory` keeps what
    /// the next run needs.
    ///
    /// # Errors
    /// A flow cannot be one; the text says why.
    pub fn open(
        config: &Config,
        memory: Option<&Arc<MemoryFile>>,
        flows: &[Subscription],
    ) -> anyhow::Result<(Self, BTreeMap<FlowId, SocketAddr>)> {
        let mut places = BTreeMap::new();
        let mut groups = BTreeMap::new();
        for flow in flows {
            let own = flow.source.filter(|_| config.dns.is_some());
            let place = own.map(|source| source.to_canonical());
            let tunnel = match places.entry(place) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => {
                    let name = match place {
                        Some(source) => source.to_string(),
                        None => "all flows".to_owned(),
                    };
                    let config = Config {
                        memory: memory.map(|memory| memory.of(name)),
                        ..config.clone()
                    };
                    free.insert(Tunnel {
                        gateway: Gateway::start(config)?,
                        silence: Silence::default(),
                    })
                }
            };
            #[cfg(feature = "fault-injection")]
            tunnel.gateway.inject_faults(amt_tokio::Faults {
                source_check_off: Fault::RelayCheckOff.is_injected(),
                rebind_unnoticed: Fault::RebindUnnoticed.is_injected(),
            });
            let id = tunnel
                .gateway
                .subscribe(*flow)
                .with_context(|| format!("cannot receive {flow}"))?;
            groups.insert((place, id), SocketAddr::new(flow.group, flow.port));
            info!("asking for {flow}");
        }
        Ok((Self { places }, groups))
    }

    /// Waits until [`receive`](Self::receive) has something to do. Cancel safe.
    pub async fn ready(&mut self) {
        let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        for tunnel in self.places.values_mut() {
            waits.push(Box::pin(tunnel.ready()));
        }
        std::future::poll_fn(|cx| {
            let any = waits.iter_mut().any(|w| w.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Hands out what has come, and logs what happened.
    pub fn receive(&mut self, batch: &mut RecvBatch, mut each: impl FnMut(FlowId, &Packet<'_>)) {
        for (place, tunnel) in &mut self.places {
            let received = tunnel
                .gateway
                .receive(batch, |packet| each((*place, packet.subscription), &packet));
            match received {
                Ok(0) => {}
                Ok(_) => tunnel.silence.broken(),
                Err(error) => {
                    warn!("the socket towards the relay failed, and is opened again: {error}");
                }
            }
            while let Some(event) = tunnel.gateway.poll_event() {
                if matches!(event, Event::Connected { .. }) {
                    tunnel.silence.begins();
                }
                tell(&event, *place, &tunnel.gateway);
            }
        }
    }

    /// How each gateway stands.
    pub fn status(&self) -> impl Iterator<Item = Status> {
        self.places.values().map(|tunnel| tunnel.gateway.status())
    }

    /// Leaves all groups and relays.
    pub async fn stop(self) {
        let mut stops = tokio::task::JoinSet::new();
        for tunnel in self.places.into_values() {
            stops.spawn(tunnel.gateway.stop());
        }
        while stops.join_next().await.is_some() {}
    }
}

/// Logs an event, and what can be done where something can be.
fn tell(event: &Event, place: Place, gateway: &Gateway) {
    let whose = match place {
        Some(source) => format!(" (flows of {source})"),
        None => String::new(),
    };
    match event {
        Event::NoRelay { .. } => {
            let failures = gateway.status().failures().join("; ");
            warn!(
                "{event}{whose}: {failures}. Trying again; see that the relay runs, and that UDP to its port (2268 if none was given) is allowed"
            );
        }
        Event::Lost { .. } | Event::Unanswered { .. } => warn!("{event}{whose}"),
        _ => info!("{event}{whose}"),
    }
}
