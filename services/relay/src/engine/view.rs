//! View of the relay for status pages.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::relay::Relay;

/// Largest number of gateways that are listed.
const MOST_GATEWAYS: usize = 1000;

/// Largest number of groups that are listed.
const MOST_GROUPS: usize = 1000;

/// View of the relay at one moment.
#[derive(Debug, Clone)]
pub struct View {
    /// Time of the view.
    pub at: Instant,
    /// Whether new gateways are refused.
    pub draining: bool,
    /// Number of gateways, and its limit.
    pub gateways: (usize, usize),
    /// Gateways, by address; truncated if there are very many.
    pub shown_gateways: Vec<Gateway>,
    /// Joins on the native side; truncated if there are very many.
    pub shown_groups: Vec<Group>,
    /// Number of joins.
    pub groups: usize,
}

/// Gateway.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Address and port of the gateway.
    pub gateway: SocketAddr,
    /// Address of the relay that the gateway uses.
    pub local: IpAddr,
    /// Age of the tunnel.
    pub age: Duration,
    /// Time since its last Membership Update.
    pub heard: Duration,
    /// Groups of the gateway with their sources; none for any source.
    pub groups: Vec<(IpAddr, Vec<IpAddr>)>,
    /// Largest outer packet in bytes.
    pub mtu: u16,
    /// Packets sent to the gateway.
    pub packets: u64,
    /// Bytes of inner packets sent to the gateway.
    pub bytes: u64,
}

/// Join on the native side.
#[derive(Debug, Clone)]
pub struct Group {
    /// Source; `None` for any.
    pub source: Option<IpAddr>,
    /// Multicast group.
    pub group: IpAddr,
    /// Number of gateways that the join is for.
    pub gateways: usize,
}

pub(super) fn look(relay: &Relay, now: Instant) -> View {
    let ago = |then: Instant| now.saturating_duration_since(then);
    let gateways = relay.gateways().take(MOST_GATEWAYS).map(|view| Gateway {
        gateway: view.gateway,
        local: view.local,
        age: ago(view.since),
        heard: ago(view.heard),
        groups: view.groups,
        mtu: view.mtu,
        packets: view.packets,
        bytes: view.bytes,
    });
    let groups = relay.joins().take(MOST_GROUPS);
    let groups = groups.map(|(join, gateways)| Group {
        source: join.source,
        group: join.group,
        gateways,
    });
    View {
        at: now,
        draining: relay.is_draining(),
        gateways: (relay.tunnels(), relay.config().max_gateways),
        shown_gateways: gateways.collect(),
        shown_groups: groups.collect(),
        groups: relay.joins().count(),
    }
}
