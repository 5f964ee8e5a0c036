//! The multicast groups that a receiver listens to.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;

use flexicast::control::Endpoint;
use flexicast::{Ecn, FlowId};
use netio::UdpSocket;
use tracing::{debug, info, warn};

use super::batch::with_batch;
use super::shared_groups::{SharedGroups, Subscription};

/// Where a group's packets come from.
pub(super) enum Intake {
    /// A socket of this receiver's own.
    Socket(UdpSocket),
    /// A socket that other receivers of this process have, too.
    Shared(Subscription),
}

impl Intake {
    /// Waits until there may be packets. An error is one that the next attempt to read finds, too.
    async fn readable(&self) {
        match self {
            Intake::Socket(socket) => drop(socket.readable().await),
            Intake::Shared(subscription) => subscription.readable().await,
        }
    }

    /// Calls `each` with the sender, the ECN mark and the bytes of packets that are there; not of
    /// all if they are many.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; any other error means that nothing comes by this any more.
    pub(super) fn receive(
        &mut self,
        mut each: impl FnMut(SocketAddr, Ecn, &mut [u8]),
    ) -> io::Result<()> {
        match self {
            Intake::Socket(socket) => {
                let take = |datagram: netio::Datagram<'_>| {
                    each(datagram.from, Ecn::from_tos(datagram.ecn), datagram.data);
                };
                with_batch(|batch| socket.try_recv(batch, take)).map(|_| ())
            }
            Intake::Shared(subscription) => subscription.receive(each),
        }
    }
}

struct JoinedGroup {
    endpoint: Endpoint,
    intake: Intake,
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
    shared: Option<SharedGroups>,
    groups: BTreeMap<FlowId, Group>,
}

impl Groups {
    /// `shared` has the sockets; without it, they are this receiver's own.
    pub(super) fn new(interface: Option<IpAddr>, shared: Option<SharedGroups>) -> Self {
        Groups {
            interface,
            shared,
            groups: BTreeMap::new(),
        }
    }

    /// Listens to the first endpoint of each address family that works: which of them packets
    /// arrive by is not known yet, and what arrives twice is dropped.
    pub(super) fn join(&mut self, flow: FlowId, endpoints: Vec<Endpoint>) {
        self.listen(flow, endpoints, false);
    }

    fn open(&self, endpoint: &Endpoint, again: bool) -> io::Result<Intake> {
        match &self.shared {
            Some(shared) => shared
                .join(*endpoint, self.interface, again)
                .map(Intake::Shared),
            None => {
                netio::join(endpoint.group, endpoint.source, self.interface).map(Intake::Socket)
            }
        }
    }

    fn listen(&mut self, flow: FlowId, endpoints: Vec<Endpoint>, again: bool) {
        let mut group = Group {
            endpoints,
            joined: Vec::new(),
        };
        let mut failures = Vec::new();
        for v4 in [false, true] {
            let of_family = group.endpoints.iter().filter(|e| e.group.is_ipv4() == v4);
            for endpoint in of_family {
                match self.open(endpoint, again) {
                    Ok(intake) => {
                        info!(%flow, "listening to {}", name(endpoint));
                        let endpoint = *endpoint;
                        group.joined.push(JoinedGroup { endpoint, intake });
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
            self.listen(flow, group.endpoints, true);
        }
    }

    pub(super) fn leave(&mut self, flow: FlowId) {
        self.groups.remove(&flow);
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }

    /// The intakes, each with the flow and its place there.
    pub(super) fn intakes(&mut self) -> impl Iterator<Item = (FlowId, usize, &mut Intake)> {
        self.groups.iter_mut().flat_map(|(flow, group)| {
            let intakes = group.joined.iter_mut().enumerate();
            intakes.map(|(place, joined)| (*flow, place, &mut joined.intake))
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

    fn all(&self) -> impl Iterator<Item = &Intake> {
        let joined = self.groups.values().flat_map(|group| &group.joined);
        joined.map(|joined| &joined.intake)
    }

    /// Waits until one of the groups has something; for ever if there is none.
    pub(super) async fn readable(&self) {
        let mut intakes = self.all();
        // Most receivers have one flow: then nothing is put together for each wait.
        let (first, second) = match (intakes.next(), intakes.next()) {
            (None, _) => return std::future::pending().await,
            (Some(only), None) => return only.readable().await,
            (Some(first), Some(second)) => (first, second),
        };
        let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        for intake in [first, second].into_iter().chain(intakes) {
            waits.push(Box::pin(intake.readable()));
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
