//! Where a channel's flow leaves by multicast: a socket for each group.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netio::{MulticastSender, Packets};
use tracing::{info, warn};

use super::FlowEndpoint;
use crate::Error;
use crate::train::send_train;

/// An interface that takes nothing for so long is stuck: what it should send is lost, as on the
/// wire, and the other groups and the receivers' own connections go on.
const STUCK: Duration = Duration::from_millis(20);

/// Former groups get the flow's packets for so long beside the present ones: receivers join those
/// meanwhile.
const OVERLAP: Duration = Duration::from_secs(2);

struct Outlet {
    endpoint: FlowEndpoint,
    group: SocketAddr,
    sender: MulticastSender,
    /// The last train was refused.
    failing: bool,
    /// End of a former group.
    until: Option<Instant>,
}

/// The groups of one channel.
#[derive(Default)]
pub(super) struct Outlets {
    outlets: Vec<Outlet>,
}

impl Outlets {
    /// Opens a socket for each group.
    ///
    /// # Errors
    /// An interface does not exist; the text says which.
    pub(super) fn open(endpoints: &[FlowEndpoint]) -> Result<Self, Error> {
        let open = |endpoint: &FlowEndpoint| {
            let FlowEndpoint {
                group,
                interface,
                ttl,
                ..
            } = *endpoint;
            let what = format!("cannot send multicast from {interface} to {group}");
            if group.is_ipv4() != interface.to_canonical().is_ipv4() {
                let text = "one is IPv4 and the other IPv6: give the interface's address of the \
                    group's family";
                return Err(Error::io(what)(std::io::Error::other(text)));
            }
            let mut sender =
                MulticastSender::bind(interface, ttl, true).map_err(Error::io(what))?;
            sender.set_ecn_capable();
            if ttl == 0
                && let Err(error) = sender.stay_inside(group.ip())
            {
                warn!(%group, %error, "packets of this flow may leave this machine while no program \
                    here receives it, although their time-to-live is 0");
            }
            Ok(Outlet {
                endpoint: *endpoint,
                group,
                sender,
                failing: false,
                until: None,
            })
        };
        Ok(Outlets {
            outlets: endpoints.iter().map(open).collect::<Result<_, Error>>()?,
        })
    }

    /// Replaces the groups; those of before that are none any more get everything for two seconds
    /// more.
    pub(super) fn replace(&mut self, mut by: Outlets, now: Instant) {
        for mut former in std::mem::take(&mut self.outlets) {
            let same = by
                .outlets
                .iter()
                .any(|outlet| outlet.endpoint == former.endpoint);
            if !same {
                former.until.get_or_insert(now + OVERLAP);
                by.outlets.push(former);
            }
        }
        self.outlets = by.outlets;
    }

    /// Sends packets to all groups. Returns how many trains were refused: what is wrong with one
    /// group is no matter of the others.
    pub(super) async fn send(&mut self, packets: &Packets) -> u64 {
        let mut refused = 0;
        if self.outlets.iter().any(|outlet| outlet.until.is_some()) {
            let now = Instant::now();
            self.outlets
                .retain(|outlet| outlet.until.is_none_or(|until| now < until));
        }
        for outlet in &mut self.outlets {
            let mut failed = None;
            for (train, segment) in packets.trains() {
                let socket = outlet.sender.socket();
                let sent = send_train(socket, outlet.group, None, train, segment);
                let error = match tokio::time::timeout(STUCK, sent).await {
                    Ok(Ok(true)) => continue,
                    Ok(Ok(false)) => socket.counters().last_send_error(),
                    Ok(Err(error)) => Some(error),
                    Err(_) => Some(std::io::ErrorKind::TimedOut.into()),
                };
                refused += 1;
                failed = Some(error);
            }
            match (outlet.failing, &failed) {
                // The address of a former group may be gone.
                _ if outlet.until.is_some() => {}
                (false, Some(error)) => {
                    let error = error.as_ref().map(ToString::to_string).unwrap_or_default();
                    warn!(group = %outlet.group, error, "the flow cannot be sent to this group; \
                        its receivers are served in other ways until it can");
                }
                (true, None) => {
                    info!(group = %outlet.group, "the flow is sent to this group again")
                }
                _ => {}
            }
            outlet.failing = failed.is_some();
        }
        refused
    }
}
