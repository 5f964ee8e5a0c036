//! Tunnels: one gateway for all flows, or one per source if sources have relays of their own.

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

/// Scope of a gateway's relays: those of one source, or those of all flows.
pub type Scope = Option<IpAddr>;
/// Flow: a gateway, and the subscription there.
pub type FlowId = (Scope, SubscriptionId);

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
    tunnels: BTreeMap<Scope, Tunnel>,
}

impl Tunnels {
    /// Subscribes to all `flows`, and returns the group of each. With relays from the DNS, each
    /// source has a gateway of its own, because its relays need not serve others (RFC 8777).
    /// `memory` keeps the state for the next run.
    ///
    /// # Errors
    /// A flow is invalid; the text contains the cause.
    pub fn open(
        config: &Config,
        memory: Option<&Arc<MemoryFile>>,
        flows: &[Subscription],
    ) -> anyhow::Result<(Self, BTreeMap<FlowId, SocketAddr>)> {
        let mut tunnels = BTreeMap::new();
        let mut groups = BTreeMap::new();
        for flow in flows {
            let own = flow.source.filter(|_| config.dns.is_some());
            let scope = own.map(|source| source.to_canonical());
            let tunnel = match tunnels.entry(scope) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => {
                    let name = match scope {
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
            groups.insert((scope, id), SocketAddr::new(flow.group, flow.port));
            info!(%flow, "subscribing");
        }
        Ok((Self { tunnels }, groups))
    }

    /// Waits until [`receive`](Self::receive) has something to do. Cancel-safe.
    pub async fn ready(&mut self) {
        let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        for tunnel in self.tunnels.values_mut() {
            waits.push(Box::pin(tunnel.ready()));
        }
        std::future::poll_fn(|cx| {
            let any = waits.iter_mut().any(|w| w.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Passes received packets to `each`, and logs events.
    pub fn receive(&mut self, batch: &mut RecvBatch, mut each: impl FnMut(FlowId, &Packet<'_>)) {
        for (scope, tunnel) in &mut self.tunnels {
            let received = tunnel
                .gateway
                .receive(batch, |packet| each((*scope, packet.subscription), &packet));
            match received {
                Ok(0) => {}
                Ok(_) => tunnel.silence.broken(),
                Err(error) => {
                    warn!(%error, "relay socket failed; reopening");
                }
            }
            while let Some(event) = tunnel.gateway.poll_event() {
                if matches!(event, Event::Connected { .. }) {
                    tunnel.silence.begins();
                }
                log_event(&event, *scope, &tunnel.gateway);
            }
        }
    }

    /// Returns the status of each gateway.
    pub fn status(&self) -> impl Iterator<Item = Status> {
        self.tunnels.values().map(|tunnel| tunnel.gateway.status())
    }

    /// Leaves all groups and relays.
    pub async fn stop(self) {
        let mut stops = tokio::task::JoinSet::new();
        for tunnel in self.tunnels.into_values() {
            stops.spawn(tunnel.gateway.stop());
        }
        while stops.join_next().await.is_some() {}
    }
}

/// Logs an event, with a remedy if there is one.
fn log_event(event: &Event, scope: Scope, gateway: &Gateway) {
    let whose = match scope {
        Some(source) => format!(" (flows of {source})"),
        None => String::new(),
    };
    match event {
        Event::NoRelay { .. } => {
            let failures = gateway.status().failures().join("; ");
            warn!(
                "{event}{whose}: {failures}. Retrying; see that the relay runs, and that UDP to \
                 its port (2268 by default) is allowed"
            );
        }
        Event::Lost { .. } | Event::Unanswered { .. } => warn!("{event}{whose}"),
        _ => info!("{event}{whose}"),
    }
}
