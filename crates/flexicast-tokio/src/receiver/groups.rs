//! The multicast groups that a receiver listens to.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;

use flexicast::FlowId;
use flexicast::control::Endpoint;
use netio::UdpSocket;
use tracing::{info, warn};

struct Group {
    endpoints: Vec<Endpoint>,
    socket: Option<UdpSocket>,
}

/// One socket per flow that is listened to.
#[derive(Default)]
pub(super) struct Groups {
    interface: Option<Ipv4Addr>,
    groups: BTreeMap<FlowId, Group>,
}

impl Groups {
    pub(super) fn new(interface: Option<Ipv4Addr>) -> Self {
        Groups {
            interface,
            groups: BTreeMap::new(),
        }
    }

    /// Listens to the first endpoint that works.
    pub(super) fn join(&mut self, flow: FlowId, endpoints: Vec<Endpoint>) {
        let socket = endpoints.iter().find_map(|endpoint| self.open(endpoint));
        self.groups.insert(flow, Group { endpoints, socket });
    }

    fn open(&self, endpoint: &Endpoint) -> Option<UdpSocket> {
        let SocketAddr::V4(group) = endpoint.group else {
            return None;
        };
        let source = match endpoint.source {
            Some(IpAddr::V4(source)) => Some(source),
            Some(IpAddr::V6(_)) => return None,
            None => None,
        };
        let from = source.map_or("*".into(), |s| s.to_string());
        match netio::join(
            group.into(),
            source.map(IpAddr::V4),
            self.interface.map(IpAddr::V4),
        ) {
            Ok(socket) => {
                info!("listening to ({from}, {group})");
                Some(socket)
            }
            Err(error) => {
                warn!("cannot listen to ({from}, {group}), so updates come by unicast: {error}");
                None
            }
        }
    }

    /// Leaves and joins again: some networks forget who listens.
    pub(super) fn rejoin(&mut self, flow: FlowId) {
        if let Some(group) = self.groups.remove(&flow) {
            drop(group.socket);
            self.join(flow, group.endpoints);
        }
    }

    pub(super) fn leave(&mut self, flow: FlowId) {
        self.groups.remove(&flow);
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }

    /// The sockets.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (FlowId, &UdpSocket)> {
        self.groups
            .iter()
            .filter_map(|(flow, group)| Some((*flow, group.socket.as_ref()?)))
    }

    /// Gives up a socket that failed; the next rejoin opens another.
    pub(super) fn failed(&mut self, flow: FlowId, error: &io::Error) {
        warn!("a multicast socket failed, so updates come by unicast: {error}");
        if let Some(group) = self.groups.get_mut(&flow) {
            group.socket = None;
        }
    }

    /// Waits until one of the sockets has something; for ever if there is none.
    pub(super) async fn readable(&self) {
        let mut waits: Vec<Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>> = Vec::new();
        for (_, socket) in self.sockets() {
            waits.push(Box::pin(socket.readable()));
        }
        std::future::poll_fn(|cx| {
            let any = waits.iter_mut().any(|w| w.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
