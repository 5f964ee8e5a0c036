//! The tunnels: one for each gateway, by address and port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::config::LocalEndpoint;
use super::membership::{Interest, Membership, Refusal};
use super::table::{Recipient, TunnelId};
use super::{MTU_TIME, Proof, overhead};
use crate::mac;
use crate::report::Record;

/// Smallest path MTU that is believed (RFC 791 lets hosts count on 576; Linux goes down to 552).
const LEAST_MTU_V4: u16 = 552;

/// Smallest path MTU of IPv6 (RFC 8200, section 5).
const LEAST_MTU_V6: u16 = 1280;

/// Average interval of a tunnel's own Requests: a gateway of Linux sends two every two seconds.
const REQUEST_TIME: Duration = Duration::from_millis(250);

/// Burst of a tunnel's own Requests, as the time that earns them.
const REQUEST_BURST: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Tunnel {
    key: SocketAddr,
    gateway: SocketAddr,
    local: LocalEndpoint,
    since: Instant,
    heard: Instant,
    membership: Membership,
    /// Expiry as in the set of expiries.
    expiry: Option<Instant>,
    mtu: u16,
    /// End of a learnt path MTU.
    mtu_until: Option<Instant>,
    packets: u64,
    bytes: u64,
    /// Whether it answers only Queries without its address.
    plain: bool,
    /// Proofs of its last Updates: of IGMP, of MLD.
    proofs: [Option<Proof>; 2],
    /// Own Requests that are left whatever others at its address send, as the time that earns them,
    /// and when that was computed.
    credit: (Duration, Instant),
}

/// Status of a gateway with a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatewayView {
    /// Address and port of the gateway.
    pub gateway: SocketAddr,
    /// Address at which it reaches the relay.
    pub local: IpAddr,
    /// Creation of its tunnel.
    pub since: Instant,
    /// Arrival of its last Update.
    pub heard: Instant,
    /// Groups with their sources; without sources for any source.
    pub groups: Vec<(IpAddr, Vec<IpAddr>)>,
    /// Largest outer packet on the path to it, in bytes.
    pub mtu: u16,
    /// Packets sent to it.
    pub packets: u64,
    /// Bytes of inner packets sent to it.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tunnels {
    slots: Vec<Option<Tunnel>>,
    free: Vec<u32>,
    by_key: BTreeMap<SocketAddr, TunnelId>,
    expiries: BTreeSet<(Instant, TunnelId)>,
}

impl Tunnels {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn id(&self, key: SocketAddr) -> Option<TunnelId> {
        self.by_key.get(&key).copied()
    }

    /// Returns address and port of a tunnel's gateway.
    pub(super) fn gateway(&self, id: TunnelId) -> Option<SocketAddr> {
        self.get(id).map(|tunnel| tunnel.gateway)
    }

    fn get(&self, id: TunnelId) -> Option<&Tunnel> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: TunnelId) -> Option<&mut Tunnel> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    pub(super) fn id_or_new(
        &mut self,
        key: SocketAddr,
        gateway: SocketAddr,
        local: LocalEndpoint,
        mtu: u16,
        now: Instant,
    ) -> TunnelId {
        if let Some(id) = self.id(key) {
            return id;
        }
        let tunnel = Some(Tunnel {
            key,
            gateway,
            local,
            since: now,
            heard: now,
            membership: Membership::default(),
            expiry: None,
            mtu,
            mtu_until: None,
            packets: 0,
            bytes: 0,
            plain: false,
            proofs: [None; 2],
            credit: (REQUEST_BURST, now),
        });
        let id = match self.free.pop() {
            Some(free) => {
                if let Some(slot) = self.slots.get_mut(free as usize) {
                    *slot = tunnel;
                }
                TunnelId(free)
            }
            None => {
                self.slots.push(tunnel);
                // Memory ends long before 2^32 tunnels.
                TunnelId(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.by_key.insert(key, id);
        id
    }

    /// Notes an Update; returns whether the path to the gateway has changed.
    pub(super) fn meet(
        &mut self,
        id: TunnelId,
        gateway: SocketAddr,
        local: LocalEndpoint,
        mtu: u16,
        now: Instant,
    ) -> bool {
        let Some(tunnel) = self.get_mut(id) else {
            return false;
        };
        tunnel.heard = now;
        let forgotten = tunnel.mtu_until.is_some_and(|until| until <= now);
        if forgotten {
            tunnel.mtu = mtu;
            tunnel.mtu_until = None;
        }
        let moved = tunnel.gateway != gateway || tunnel.local != local;
        tunnel.gateway = gateway;
        tunnel.local = local;
        moved || forgotten
    }

    /// Remembers the proof of an accepted Update.
    pub(super) fn prove(&mut self, id: TunnelId, mld: bool, proof: Proof) {
        if let Some(tunnel) = self.get_mut(id)
            && let Some(place) = tunnel.proofs.get_mut(usize::from(mld))
        {
            *place = Some(proof);
        }
    }

    /// Whether the last Updates of exactly this gateway had this nonce and MAC.
    pub(super) fn is_proven(&self, key: SocketAddr, gateway: SocketAddr, proof: Proof) -> bool {
        let tunnel = self.id(key).and_then(|id| self.get(id));
        let Some(tunnel) = tunnel.filter(|tunnel| tunnel.gateway == gateway) else {
            return false;
        };
        let (nonce, mac) = proof;
        let known = tunnel.proofs.iter().flatten();
        known
            .map(|(of, known)| mac::equal(known, &mac) && *of == nonce)
            .fold(false, |any, one| any | one)
    }

    /// Whether a Request is within the tunnel's own limit; charges it.
    pub(super) fn may_ask(&mut self, id: TunnelId, now: Instant) -> bool {
        let Some(tunnel) = self.get_mut(id) else {
            return false;
        };
        let (left, since) = tunnel.credit;
        let earned = left + now.saturating_duration_since(since);
        let earned = earned.min(REQUEST_BURST);
        let left = earned.checked_sub(REQUEST_TIME);
        tunnel.credit = (left.unwrap_or(earned), now);
        left.is_some()
    }

    /// Applies a record, as far as `admit` has room for it; returns the tunnel's interest in the
    /// group before and after.
    #[allow(clippy::type_complexity)] // before, result, after
    pub(super) fn apply(
        &mut self,
        id: TunnelId,
        record: &Record,
        lasting: Duration,
        most: usize,
        now: Instant,
        admit: &mut dyn FnMut(Option<IpAddr>) -> bool,
    ) -> Option<(Interest, Result<(), Refusal>, Interest)> {
        let tunnel = self.get_mut(id)?;
        let old = tunnel.membership.interest(record.group);
        let result = tunnel.membership.apply(record, lasting, most, now, admit);
        let new = tunnel.membership.interest(record.group);
        self.schedule(id);
        Some((old, result, new))
    }

    /// Updates the set of expiries after a change of a tunnel's membership.
    fn schedule(&mut self, id: TunnelId) {
        let Some(tunnel) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let next = tunnel.membership.next_expiry();
        if tunnel.expiry != next {
            if let Some(old) = tunnel.expiry {
                self.expiries.remove(&(old, id));
            }
            if let Some(new) = next {
                self.expiries.insert((new, id));
            }
            tunnel.expiry = next;
        }
    }

    /// Whether the gateway is known to answer only Queries without its address.
    pub(super) fn is_plain(&self, key: SocketAddr) -> bool {
        let tunnel = self.id(key).and_then(|id| self.get(id));
        tunnel.is_some_and(|tunnel| tunnel.plain)
    }

    pub(super) fn set_plain(&mut self, id: TunnelId) {
        if let Some(tunnel) = self.get_mut(id) {
            tunnel.plain = true;
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    pub(super) fn next_expired(&self, now: Instant) -> Option<TunnelId> {
        let (at, id) = self.expiries.first()?;
        (*at <= now).then_some(*id)
    }

    /// Removes expired memberships; returns their groups with the interest before and after.
    pub(super) fn expire(
        &mut self,
        id: TunnelId,
        now: Instant,
    ) -> Vec<(IpAddr, Interest, Interest)> {
        let Some(tunnel) = self.get_mut(id) else {
            return Vec::new();
        };
        let before = tunnel.membership.clone();
        let touched = tunnel.membership.expire(now);
        let changes = touched.into_iter().map(|group| {
            let old = before.interest(group);
            (group, old, tunnel.membership.interest(group))
        });
        let changes = changes.collect();
        self.schedule(id);
        changes
    }

    pub(super) fn remove_if_empty(&mut self, id: TunnelId) -> bool {
        let empty = self
            .get(id)
            .is_some_and(|tunnel| tunnel.membership.is_empty());
        if empty {
            self.remove(id);
        }
        empty
    }

    /// Removes a tunnel and returns its interest.
    pub(super) fn remove(&mut self, id: TunnelId) -> Vec<(IpAddr, Interest)> {
        let Some(tunnel) = self.slots.get_mut(id.0 as usize).and_then(Option::take) else {
            return Vec::new();
        };
        if let Some(expiry) = tunnel.expiry {
            self.expiries.remove(&(expiry, id));
        }
        self.by_key.remove(&tunnel.key);
        self.free.push(id.0);
        let membership = tunnel.membership;
        let groups = membership.groups();
        groups
            .map(|group| (group, membership.interest(group)))
            .collect()
    }

    pub(super) fn groups(&self, id: TunnelId) -> impl Iterator<Item = IpAddr> + '_ {
        self.get(id)
            .into_iter()
            .flat_map(|tunnel| tunnel.membership.groups())
    }

    pub(super) fn recipient(&self, id: TunnelId) -> Option<Recipient> {
        self.get(id).map(|tunnel| Recipient {
            gateway: tunnel.gateway,
            local: tunnel.local,
            room: tunnel.mtu.saturating_sub(overhead(tunnel.gateway.ip())),
            tunnel: id,
        })
    }

    pub(super) fn sent(&mut self, id: TunnelId, packets: u64, bytes: u64) {
        if let Some(tunnel) = self.get_mut(id) {
            tunnel.packets += packets;
            tunnel.bytes += bytes;
        }
    }

    /// Notes a smaller path MTU of an address; returns the tunnels that it changed.
    pub(super) fn narrow(&mut self, ip: IpAddr, mtu: u16, now: Instant) -> Vec<TunnelId> {
        let least = if ip.is_ipv4() {
            LEAST_MTU_V4
        } else {
            LEAST_MTU_V6
        };
        let mtu = mtu.max(least);
        // All ports of the address: keys are ordered by address first.
        let ports = SocketAddr::new(ip, 0)..=SocketAddr::new(ip, u16::MAX);
        let ids: Vec<TunnelId> = self.by_key.range(ports).map(|(_, id)| *id).collect();
        let mut changed = Vec::new();
        for id in ids {
            let Some(tunnel) = self.get_mut(id) else {
                continue;
            };
            if mtu < tunnel.mtu {
                tunnel.mtu = mtu;
                tunnel.mtu_until = Some(now + MTU_TIME);
                changed.push(id);
            }
        }
        changed
    }

    pub(super) fn views(&self) -> impl Iterator<Item = GatewayView> + '_ {
        let tunnels = self.by_key.values().filter_map(|id| self.get(*id));
        tunnels.map(|tunnel| {
            let groups = tunnel.membership.groups();
            GatewayView {
                gateway: tunnel.gateway,
                local: tunnel.local.ip,
                since: tunnel.since,
                heard: tunnel.heard,
                groups: groups
                    .map(|group| match tunnel.membership.interest(group) {
                        Interest::Only(sources) => (group, sources.into_iter().collect()),
                        _ => (group, Vec::new()),
                    })
                    .collect(),
                mtu: tunnel.mtu,
                packets: tunnel.packets,
                bytes: tunnel.bytes,
            }
        })
    }
}
