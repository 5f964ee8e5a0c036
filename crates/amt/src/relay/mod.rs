//! The relay: from messages of gateways to tunnels, and from tunnels to recipients of packets.
//!
//! A [`Relay`] handles messages of gateways ([`Relay::handle`], with at most one answer), reports
//! the joins on the native side ([`Relay::poll_event`]), and returns the gateways that get the
//! packets of an (S,G) ([`Relay::recipients`]). It keeps no state of a gateway before the response
//! MAC of a Query proves that the gateway is at its source address (RFC 7450, section 5.3.3): a
//! Discovery or a Request allocates nothing, and its answer is one message of the RFC's size.
//!
//! A tunnel is a gateway's address **and port**: gateways behind one NAT have one each.

mod config;
mod limit;
mod membership;
mod outcome;
mod table;
mod tunnel;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

#[cfg(any(test, feature = "fault-injection"))]
pub use config::Faults;
pub use config::{Config, GatewayAddress, LocalEndpoint, Prefix};
pub use outcome::{DropReason, Outcome};
pub use table::{Event, Join, Recipient, Recipients, TunnelId};
pub use tunnel::GatewayView;

use self::config::canonical;
use self::limit::{Limiter, PendingQueries};
use self::membership::Refusal;
use self::table::Table;
use self::tunnel::Tunnels;
use crate::report::{self, GeneralQuery};
use crate::{Mac, Message, Secrets};

/// State machine of a relay; see the module.
pub struct Relay {
    config: Config,
    secrets: Secrets,
    limiter: Limiter,
    updates: Limiter,
    unanswered: PendingQueries,
    tunnels: Tunnels,
    table: Table,
    draining: bool,
    scratch: Vec<u8>,
    #[cfg(any(test, feature = "fault-injection"))]
    faults: Faults,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secrets.
        f.debug_struct("Relay")
            .field("tunnels", &self.tunnels.len())
            .field("draining", &self.draining)
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// Creates a relay without tunnels. `seed` must be random and secret: the response MACs are
    /// made with it.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 32], now: Instant) -> Self {
        // The tables' key is derived from the seed as well; it never leaves the relay.
        let key = seed.iter().fold(0_u64, |key, byte| {
            key.rotate_left(5)
                .wrapping_mul(0x100_0000_01b3)
                .wrapping_add(u64::from(*byte))
        });
        Self {
            limiter: Limiter::new(key, config.requests_per_second, now),
            updates: Limiter::new(key, config.requests_per_second.saturating_mul(4), now),
            unanswered: PendingQueries::new(key),
            // A gateway may answer with one MAC for a whole query interval before it has a tunnel.
            secrets: Secrets::with_lifetime(
                seed,
                Secrets::LIFETIME.max(config.membership_time() * 2),
                now,
            ),
            tunnels: Tunnels::default(),
            table: Table::default(),
            draining: false,
            scratch: Vec::new(),
            #[cfg(any(test, feature = "fault-injection"))]
            faults: Faults::default(),
            config,
        }
    }

    /// Leaves protections out from now on, for tests that must notice.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn inject_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Handles a datagram that `from` sent to `local`. `answer` is cleared, and holds the answer if
    /// [`Outcome::Answer`] is returned.
    pub fn handle(
        &mut self,
        from: SocketAddr,
        local: LocalEndpoint,
        payload: &[u8],
        now: Instant,
        answer: &mut Vec<u8>,
    ) -> Outcome {
        answer.clear();
        let from = canonical(from);
        let message = match Message::parse(payload) {
            Ok(message) => message,
            Err(error) => return Outcome::Dropped(DropReason::Malformed(error)),
        };
        if !self.config.serves(from.ip()) {
            return Outcome::Dropped(DropReason::Denied);
        }
        let taken = match message {
            Message::Discovery { nonce } => self.discovery(from, local, nonce, now, answer),
            Message::Request { nonce, mld } => self.request(from, nonce, mld, now, answer),
            Message::Update { mac, nonce, packet } => {
                if !self.is_right(from, (nonce, mac), now) {
                    return Outcome::Dropped(DropReason::Mac);
                }
                self.update(from, local, (nonce, mac), packet, now)
            }
            Message::Teardown {
                mac,
                nonce,
                gateway,
            } => {
                // The address may differ from the sender's: a Teardown is sent because the tunnel's
                // address is lost.
                let gateway = on_link_of(from, canonical(gateway));
                let right = self.is_right(gateway, (nonce, mac), now);
                #[cfg(any(test, feature = "fault-injection"))]
                let right = right || self.faults.teardown_unchecked;
                if !right {
                    return Outcome::Dropped(DropReason::Mac);
                }
                self.teardown(gateway)
            }
            Message::Advertisement { .. } | Message::Query { .. } | Message::Data { .. } => {
                Err(DropReason::Unexpected)
            }
        };
        match taken {
            Ok(()) if answer.is_empty() => Outcome::Accepted,
            Ok(()) => Outcome::Answer,
            Err(why) => Outcome::Dropped(why),
        }
    }

    /// Whether a MAC is that of a Query to `gateway`, made with a current secret or remembered by
    /// the gateway's tunnel: some gateways repeat their Update for as long as they play and never
    /// send a second Request.
    fn is_right(&self, gateway: SocketAddr, proof: Proof, now: Instant) -> bool {
        #[cfg(any(test, feature = "fault-injection"))]
        if self.faults.mac_check_off {
            return true;
        }
        let (nonce, mac) = proof;
        self.secrets.check(gateway, nonce, &mac, now)
            || self.tunnels.is_proven(self.key(gateway), gateway, proof)
    }

    fn discovery(
        &mut self,
        from: SocketAddr,
        local: LocalEndpoint,
        nonce: u32,
        now: Instant,
        answer: &mut Vec<u8>,
    ) -> Result<(), DropReason> {
        self.admit(from, now)?;
        let configured = if from.is_ipv4() {
            self.config.advertise_v4.map(IpAddr::from)
        } else {
            self.config.advertise_v6.map(IpAddr::from)
        };
        let own = local.ip.to_canonical();
        let anycast = own == IpAddr::from(crate::ANYCAST_V4)
            || own == IpAddr::from(crate::ANYCAST_V6)
            || own.is_unspecified();
        let relay = match configured {
            Some(configured) => configured,
            None if anycast => return Err(DropReason::NoAddress),
            None => own,
        };
        Message::Advertisement { nonce, relay }.encode(answer);
        Ok(())
    }

    fn request(
        &mut self,
        from: SocketAddr,
        nonce: u32,
        mld: bool,
        now: Instant,
        answer: &mut Vec<u8>,
    ) -> Result<(), DropReason> {
        // A gateway with a tunnel has a limit of its own, which others cannot use up in its name.
        let known = self.tunnels.id(self.key(from));
        if !known.is_some_and(|id| self.tunnels.may_ask(id, now)) {
            self.admit(from, now)?;
        }
        let known = known.is_some();
        let limited = self.draining || (!known && self.is_full());
        let query = GeneralQuery {
            qrv: self.config.robustness,
            qqic: self.config.query_interval,
            max_response: self.config.max_response,
        };
        self.scratch.clear();
        report::write_query(mld, querier(mld), &query, &mut self.scratch);
        let with_address = match self.config.gateway_address {
            GatewayAddress::Off => false,
            GatewayAddress::Always => true,
            GatewayAddress::UntilUnanswered => {
                !self.tunnels.is_plain(self.key(from)) && !self.unanswered.ask((from, mld), now)
            }
        };
        let mac = self.secrets.mac(from, nonce);
        #[cfg(any(test, feature = "fault-injection"))]
        let nonce = if self.faults.nonce_other {
            !nonce
        } else {
            nonce
        };
        Message::Query {
            limited,
            mac,
            nonce,
            packet: &self.scratch,
            gateway: with_address.then_some(from),
        }
        .encode(answer);
        Ok(())
    }

    fn update(
        &mut self,
        from: SocketAddr,
        local: LocalEndpoint,
        proof: Proof,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        // Only messages with a valid MAC count: no other host can use up a gateway's limit.
        if !self.updates.admit(from.ip(), now) {
            return Err(DropReason::TooOften);
        }
        let key = self.key(from);
        let known = self.tunnels.id(key);
        if known.is_none() && self.draining {
            return Err(DropReason::Draining);
        }
        if known.is_none() && self.is_full() {
            return Err(DropReason::Full);
        }
        let records = report::parse_report(packet).map_err(|_| DropReason::Report)?;
        let id = self
            .tunnels
            .id_or_new(key, from, local, self.config.mtu, now);
        if self.tunnels.meet(id, from, local, self.config.mtu, now) {
            self.table.forget_lists(self.tunnels.groups(id));
        }
        let (lasting, most) = (
            self.config.membership_time(),
            self.config.max_groups_per_gateway,
        );
        let mld = packet.first().is_some_and(|first| first >> 4 == 6);
        self.tunnels.prove(id, mld, proof);
        let mut refused = None;
        for record in &records {
            let table = &self.table;
            let mut room = table.room(id, record, self.config.max_joins);
            let mut admit = |source| {
                let wanted = table.wants(record.group, source);
                let left = room.checked_sub(usize::from(!wanted));
                room = left.unwrap_or(room);
                left.is_some()
            };
            let applied = self
                .tunnels
                .apply(id, record, lasting, most, now, &mut admit);
            let Some((old, applied, new)) = applied else {
                continue;
            };
            self.table.change((id, from), record.group, &old, &new);
            match applied {
                Ok(()) => {}
                Err(Refusal::Group) => {
                    refused.get_or_insert(DropReason::Report);
                }
                Err(Refusal::TooMany) => refused = Some(DropReason::TooManyGroups),
            }
        }
        if self.unanswered.answered((from, mld)) {
            self.tunnels.set_plain(id);
        }
        self.tunnels.remove_if_empty(id);
        refused.map_or(Ok(()), Err)
    }

    fn teardown(&mut self, gateway: SocketAddr) -> Result<(), DropReason> {
        let Some(id) = self.tunnels.id(self.key(gateway)) else {
            return Err(DropReason::NoTunnel);
        };
        for (group, old) in self.tunnels.remove(id) {
            self.table
                .change((id, gateway), group, &old, &membership::Interest::Nothing);
        }
        Ok(())
    }

    fn admit(&mut self, from: SocketAddr, now: Instant) -> Result<(), DropReason> {
        if self.limiter.admit(from.ip(), now) {
            Ok(())
        } else {
            Err(DropReason::TooOften)
        }
    }

    fn is_full(&self) -> bool {
        #[cfg(any(test, feature = "fault-injection"))]
        if self.faults.capacity_off {
            return false;
        }
        self.tunnels.len() >= self.config.max_gateways
    }

    fn key(&self, gateway: SocketAddr) -> SocketAddr {
        #[cfg(any(test, feature = "fault-injection"))]
        if self.faults.nat_by_address {
            return SocketAddr::new(gateway.ip(), 0);
        }
        gateway
    }

    /// Returns the next change on the native side; to be called after [`handle`](Self::handle) and
    /// [`handle_timeout`](Self::handle_timeout) until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.poll_change().map(|(event, _)| event)
    }

    /// Returns the same with the gateway that caused the change.
    pub fn poll_change(&mut self) -> Option<(Event, SocketAddr)> {
        self.table.next_event()
    }

    /// Whether [`poll_event`](Self::poll_event) returns a change. The queue never outgrows the
    /// memberships: a join that is undone while it waits is dropped.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.table.has_events()
    }

    /// Returns the latest time to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let expiry = self.tunnels.next_expiry();
        #[cfg(any(test, feature = "fault-injection"))]
        let expiry = expiry.filter(|_| !self.faults.expiry_off);
        let rotate = self.secrets.poll_timeout();
        Some(expiry.map_or(rotate, |expiry| expiry.min(rotate)))
    }

    /// Removes expired memberships, and rotates the secret if it is time. `fresh` must be random.
    pub fn handle_timeout(&mut self, now: Instant, fresh: [u8; 32]) {
        self.secrets.handle_timeout(now, fresh);
        #[cfg(any(test, feature = "fault-injection"))]
        if self.faults.expiry_off {
            return;
        }
        while let Some(id) = self.tunnels.next_expired(now) {
            let Some(gateway) = self.tunnels.gateway(id) else {
                break;
            };
            for (group, old, new) in self.tunnels.expire(id, now) {
                self.table.change((id, gateway), group, &old, &new);
            }
            self.tunnels.remove_if_empty(id);
        }
    }

    /// Returns the gateways that get the packets of `source` to `group`; `None` if there are none.
    pub fn recipients(&mut self, source: IpAddr, group: IpAddr) -> Option<&Recipients> {
        let tunnels = &self.tunnels;
        self.table
            .recipients(source, group, |id| tunnels.recipient(id))
    }

    /// Counts packets sent to a gateway, for [`gateways`](Self::gateways).
    pub fn sent(&mut self, tunnel: TunnelId, packets: u64, bytes: u64) {
        self.tunnels.sent(tunnel, packets, bytes);
    }

    /// Notes that the path to `gateway` has an MTU of `mtu` bytes, for ten minutes. The MTU never
    /// grows by this, nor falls below IP's minimum.
    pub fn path_mtu(&mut self, gateway: IpAddr, mtu: u16, now: Instant) {
        for id in self.tunnels.narrow(gateway.to_canonical(), mtu, now) {
            self.table.forget_lists(self.tunnels.groups(id));
        }
    }

    /// Stops making tunnels, and sets the L flag in every Query. Present tunnels stay until their
    /// gateways leave.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`drain`](Self::drain) was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Returns the number of tunnels.
    #[must_use]
    pub fn tunnels(&self) -> usize {
        self.tunnels.len()
    }

    /// Returns all gateways with a tunnel, by address.
    pub fn gateways(&self) -> impl Iterator<Item = GatewayView> + '_ {
        self.tunnels.views()
    }

    /// Returns the joins on the native side, each with its number of gateways.
    pub fn joins(&self) -> impl Iterator<Item = (Join, usize)> + '_ {
        self.table.joins()
    }

    /// Returns the number of cached lists of recipients.
    #[cfg(test)]
    fn lists(&self) -> usize {
        self.table.lists()
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// Nonce and response MAC of a Query, as its answer repeats them.
type Proof = (u32, Mac);

/// Completes the address in a Teardown, which has no scope: a link-local one is on the link that
/// the message came by.
fn on_link_of(from: SocketAddr, gateway: SocketAddr) -> SocketAddr {
    match (from, gateway) {
        (SocketAddr::V6(from), SocketAddr::V6(mut gateway))
            if gateway.ip().is_unicast_link_local() =>
        {
            gateway.set_scope_id(from.scope_id());
            gateway.into()
        }
        _ => gateway,
    }
}

/// Returns the inner source address of a Query. For IPv4 it is unspecified: a gateway in a kernel
/// would need a route back to any other (`rp_filter`). For MLD it must be link-local (RFC 3810,
/// section 5.1.14).
fn querier(mld: bool) -> IpAddr {
    if mld {
        // fe80::2268, after the port: no gateway has to reach it.
        std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x2268).into()
    } else {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    }
}

/// Returns the bytes that a tunnel adds to an inner packet: IP and UDP header and two bytes of AMT.
#[must_use]
pub fn overhead(gateway: IpAddr) -> u16 {
    let ip = if gateway.to_canonical().is_ipv4() {
        20
    } else {
        40
    };
    ip + 8 + 2
}

/// Lifetime of a learnt path MTU (RFC 8201, section 5.3, advises ten minutes).
const MTU_TIME: Duration = Duration::from_secs(600);
