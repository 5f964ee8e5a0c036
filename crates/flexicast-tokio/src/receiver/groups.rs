//! The multicast groups that a receiver listens to.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::Poll;

use flexicast::FlowId;
use flexicast::control::Endpoint;
use netio::UdpSocket;
use tracing::{debug, info, warn};

struct JoinedGroup {
    endpoint: Endpoint,
    socket: UdpSocket,
}

struct Group {
    endpoints: Vec<Endpoint>,
    joined: Vec<JoinedGroup>,
}

/// The sockets of the flows that are listened to: at first one per address family, then the one
/// that packets come by.
#[derive(Default)]
pub(super) struct Groups {
    interface: Option<IpAddr>,
    groups: BTreeMap<FlowId, Group>,
}

impl Groups {
    pub(super) fn new(interface: Option<IpAddr>) -> Self {
        Groups {
            interface,
            groups: BTreeMap::new(),
        }
    }

    /// Listens to the first endpoint of each address family that works: which of them packets
    /// arrive by is not known yet, and what arrives twice is dropped.
    pub(super) fn join(&mut self, flow: FlowId, endpoints: Vec<Endpoint>) {
        let mut group = Group {
            endpoints,
            joined: Vec::new(),
        };
        let mut failures = Vec::new();
        for v4 in [false, true] {
            let of_family = group.endpoints.iter().filter(|e| e.group.is_ipv4() == v4);
            for endpoint in of_family {
                match netio::join(endpoint.group, endpoint.source, self.interface) {
                    Ok(socket) => {
                        info!(%flow, "listening to {}", name(endpoint));
                        let endpoint = *endpoint;
                        group.joined.push(JoinedGroup { endpoint, socket });
                        break;
                    }
                    Err(error) => failures.push(format!("{}: {error}", name(endpoint))),
                }
            }
        }
        let failures = failures.join("; ");
        if group.joined.is_empty() {
            warn!(
                %flow,
                failures,
                "cannot listen to the flow by multicast, so updates come in other ways"
            );
        } else if !failures.is_empty() {
            debug!(failures, "cannot listen to some of the flow's groups");
        }
        self.groups.insert(flow, group);
    }

    /// Leaves and joins again: some networks forget members.
    pub(super) fn rejoin(&mut self, flow: FlowId) {
        if let Some(group) = self.groups.remove(&flow) {
            drop(group.joined);
            self.join(flow, group.endpoints);
        }
    }

    pub(super) fn leave(&mut self, flow: FlowId) {
        self.groups.remove(&flow);
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }

    /// The sockets, each with the flow and its place there.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (FlowId, usize, &UdpSocket)> {
        self.groups.iter().flat_map(|(flow, group)| {
            let sockets = group.joined.iter().enumerate();
            sockets.map(|(place, joined)| (*flow, place, &joined.socket))
        })
    }

    /// The flow's packets come by this socket: the others are not needed. A rejoin opens them
    /// again.
    pub(super) fn works(&mut self, flow: FlowId, place: usize) {
        if let Some(group) = self.groups.get_mut(&flow)
            && group.joined.len() > 1
            && place < group.joined.len()
        {
            let joined = group.joined.swap_remove(place);
            info!(%flow, "the flow arrives by {}", name(&joined.endpoint));
            group.joined = vec![joined];
        }
    }

    /// Gives up a socket that failed; the next rejoin opens another.
    pub(super) fn failed(&mut self, flow: FlowId, place: usize, error: &io::Error) {
        if let Some(group) = self.groups.get_mut(&flow)
            && place < group.joined.len()
        {
            let joined = group.joined.remove(place);
            warn!(
                %flow,
                "the socket for {} failed, so updates come in other ways: {error}",
                name(&joined.endpoint)
            );
        }
    }

    /// Waits until one of the sockets has something; for ever if there is none.
    pub(super) async fn readable(&self) {
        let mut sockets = self.sockets().map(|(_, _, socket)| socket);
        // Most receivers have one flow: then nothing is put together for each wait.
        let (first, second) = match (sockets.next(), sockets.next()) {
            (None, _) => return std::future::pending().await,
            (Some(only), None) => {
                // An error here is one that the next attempt to read finds, too.
                let _ = only.readable().await;
                return;
            }
            (Some(first), Some(second)) => (first, second),
        };
        let mut waits: Vec<Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>> = Vec::new();
        for socket in [first, second].into_iter().chain(sockets) {
            waits.push(Box::pin(socket.readable()));
        }
        std::future::poll_fn(|cx| {
            let any = waits.iter_mut().any(|w| w.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// (S,G) or (*,G) with the port.
fn name(endpoint: &Endpoint) -> String {
    let source = endpoint.source.map_or("*".into(), |s| s.to_string());
    format!("({source}, {})", endpoint.group)
}
