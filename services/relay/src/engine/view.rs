//! How the relay is, for status pages.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::relay::Relay;

/// Gateways that are shown one by one.
const MOST_GATEWAYS: usize = 1000;

/// Groups that are shown one by one.
const MOST_GROUPS: usize = 1000;

/// One look.
#[derive(Debug, Clone)]
pub struct View {
    /// When.
    pub at: Instant,
    /// Whether no new gateways are taken.
    pub draining: bool,
    /// How many gateways there are, and may be.
    pub gateways: (usize, usize),
    /// Gateways, by address; not all if there are very many.
    pub shown_gateways: Vec<Gateway>,
    /// Joins on the native side; not all if there are very many.
    pub shown_groups: Vec<Group>,
    /// How many joins there are.
    pub groups: usize,
}

/// A gateway.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Its address and port.
    pub gateway: SocketAddr,
    /// The address of the relay that it uses.
    pub local: IpAddr,
    /// How long its tunnel has been there.
    pub age: Duration,
    /// How long ago it last said what it wants.
    pub heard: Duration,
    /// Its groups with their sources; none for any source.
    pub groups: Vec<(IpAddr, Vec<IpAddr>)>,
    /// The largest outer packet in bytes.
    pub mtu: u16,
    /// Packets that were sent to it.
    pub packets: u64,
    /// Bytes of inner packets that were sent to it.
    pub bytes: u64,
}

/// A join on the native side.
#[derive(Debug, Clone)]
pub struct Group {
    /// The source; `None` for any.
    pub source: Option<IpAddr>,
    /// The group.
    pub group: IpAddr,
    /// How many gateways it is for.
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
