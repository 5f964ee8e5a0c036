//! A network with model relays, whose time passes only in [`World::run`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::gateway::*;
use crate::ip::{Udp, write_udp};
use crate::report::{GeneralQuery, Record, RecordKind, parse_report, write_query};
use crate::{Mac, Message};

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn ssm(source: &str, group: &str, port: u16) -> Subscription {
    Subscription {
        source: Some(source.parse().unwrap()),
        group: group.parse().unwrap(),
        port,
    }
}

pub fn asm(group: &str, port: u16) -> Subscription {
    Subscription {
        source: None,
        group: group.parse().unwrap(),
        port,
    }
}

pub fn configured(text: &str) -> Candidate {
    Candidate {
        addr: addr(text),
        discover: false,
        origin: Origin::Configured,
    }
}

pub fn anycast(text: &str) -> Candidate {
    Candidate {
        addr: addr(text),
        discover: true,
        origin: Origin::Anycast,
    }
}

/// A group's state at the model relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    pub any: bool,
    pub sources: BTreeSet<IpAddr>,
}

pub type Groups = BTreeMap<IpAddr, GroupState>;

/// Flag bits of a Request that a relay reads as P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadsP {
    /// Both, like the relay of this crate.
    Either,
    /// The RFC's alone; others are reserved, and ignored.
    Rfc,
    /// Linux's alone; with others the Request is dropped.
    Linux,
}

impl ReadsP {
    /// Whether a query of MLD is requested; `None` if the Request is dropped.
    fn mld(self, flags: u8) -> Option<bool> {
        match self {
            ReadsP::Either => Some(flags & 0x81 != 0),
            ReadsP::Rfc => Some(flags & 0x01 != 0),
            ReadsP::Linux => (flags & 0x7f == 0).then_some(flags != 0),
        }
    }
}

/// A relay that follows the RFC, with variations for tests.
pub struct ModelRelay {
    pub answers: bool,
    pub limited: bool,
    pub tells_address: bool,
    pub igmp: bool,
    pub mld: bool,
    pub reads_p: ReadsP,
    pub query: GeneralQuery,
    pub advertises: Option<IpAddr>,
    /// Whether it answers but forwards nothing.
    pub deaf: bool,
    /// Whether it accepts Updates with the last Request's nonce alone, as Linux does.
    pub one_nonce: bool,
    pub last_nonce: BTreeMap<SocketAddr, u32>,
    /// Delay of the first packets of a new group.
    pub joins_within: Duration,
    /// Time of the first report of each group.
    pub joined: BTreeMap<IpAddr, Instant>,
    /// Each gateway's groups, by its address.
    pub tunnels: BTreeMap<SocketAddr, Groups>,
    /// Time of each gateway's last report of each group (and source).
    pub named: BTreeMap<(SocketAddr, IpAddr, Option<IpAddr>), Instant>,
    /// Accepted Updates and Teardowns.
    pub updates: Vec<(Instant, SocketAddr, Vec<Record>)>,
    /// Length of the shortest MLD message in an Update, in bytes.
    pub shortest_mld: Option<usize>,
    pub teardowns: Vec<(Instant, SocketAddr)>,
    /// Requests: time, nonce, MLD.
    pub requests: Vec<(Instant, u32, bool)>,
    /// Flags of the Requests for MLD.
    pub mld_flags: Vec<u8>,
    pub discoveries: Vec<Instant>,
    /// Messages with a wrong MAC.
    pub forged: usize,
}

impl Default for ModelRelay {
    fn default() -> Self {
        Self {
            answers: true,
            limited: false,
            tells_address: true,
            igmp: true,
            mld: true,
            reads_p: ReadsP::Either,
            query: GeneralQuery {
                qrv: 2,
                qqic: secs(20),
                max_response: secs(1),
            },
            advertises: None,
            deaf: false,
            one_nonce: false,
            last_nonce: BTreeMap::new(),
            joins_within: Duration::ZERO,
            joined: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            named: BTreeMap::new(),
            updates: Vec::new(),
            shortest_mld: None,
            teardowns: Vec::new(),
            requests: Vec::new(),
            mld_flags: Vec::new(),
            discoveries: Vec::new(),
            forged: 0,
        }
    }
}

/// Returns a MAC that depends on everything that it must.
fn mac(gateway: SocketAddr, nonce: u32) -> Mac {
    let text = format!("{}-{nonce}", SocketAddr::new(gateway.ip(), gateway.port()));
    let mut mac = [0_u8; 6];
    for (at, byte) in text.bytes().enumerate() {
        mac[at % 6] = mac[at % 6].wrapping_mul(31).wrapping_add(byte);
    }
    Mac(mac)
}

impl ModelRelay {
    fn take(&mut self, from: SocketAddr, bytes: &[u8], now: Instant) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match Message::parse(bytes).unwrap() {
            Message::Discovery { nonce } => {
                self.discoveries.push(now);
                let relay = self.advertises.filter(|_| self.answers)?;
                Message::Advertisement { nonce, relay }.encode(&mut out);
            }
            Message::Request { nonce, mld } => {
                self.requests.push((now, nonce, mld));
                let flags = bytes[1];
                if mld {
                    self.mld_flags.push(flags);
                }
                let mld = self.reads_p.mld(flags)?;
                self.last_nonce.insert(from, nonce);
                let knows = if mld { self.mld } else { self.igmp };
                if !self.answers || !knows {
                    return None;
                }
                let mut packet = Vec::new();
                let own = if mld { "fe80::1" } else { "192.0.2.1" };
                write_query(mld, own.parse().unwrap(), &self.query, &mut packet);
                Message::Query {
                    limited: self.limited,
                    mac: mac(from, nonce),
                    nonce,
                    packet: &packet,
                    gateway: self.tells_address.then_some(from),
                }
                .encode(&mut out);
            }
            Message::Update {
                mac: given,
                nonce,
                packet,
            } => {
                if given != mac(from, nonce) {
                    self.forged += 1;
                    return None;
                }
                if self.one_nonce && self.last_nonce.get(&from) != Some(&nonce) {
                    return None;
                }
                let records = parse_report(packet).unwrap();
                if packet.first() == Some(&0x60) {
                    // After the IPv6 header and the one with the Router Alert.
                    let len = packet.len() - 48;
                    self.shortest_mld = Some(self.shortest_mld.map_or(len, |s| s.min(len)));
                }
                let tunnel = self.tunnels.entry(from).or_default();
                for record in &records {
                    apply(tunnel, record);
                    self.joined.entry(record.group).or_insert(now);
                    let sources = record.sources.iter().copied().map(Some);
                    for source in sources.chain([None]) {
                        self.named.insert((from, record.group, source), now);
                    }
                }
                self.updates.push((now, from, records));
                return None;
            }
            Message::Teardown {
                mac: given,
                nonce,
                gateway,
            } => {
                if given != mac(gateway, nonce) {
                    self.forged += 1;
                    return None;
                }
                self.tunnels.remove(&gateway);
                self.teardowns.push((now, gateway));
                return None;
            }
            other => panic!("a relay got {other:?}"),
        }
        Some(out)
    }
}

impl ModelRelay {
    /// Expires memberships that no Update has renewed.
    fn expire(&mut self, now: Instant) {
        let patience = self.query.qqic * u32::from(self.query.qrv) + self.query.max_response;
        let named = &self.named;
        for (gateway, tunnel) in &mut self.tunnels {
            for (group, heard) in tunnel.iter_mut() {
                let old = |source| {
                    let at = named.get(&(*gateway, *group, source));
                    at.is_none_or(|at| now - *at > patience)
                };
                heard.any &= !old(None);
                heard.sources.retain(|source| !old(Some(*source)));
            }
            tunnel.retain(|_, heard| heard.any || !heard.sources.is_empty());
        }
    }
}

fn apply(tunnel: &mut Groups, record: &Record) {
    let heard = tunnel.entry(record.group).or_default();
    let sources = record.sources.iter().copied();
    match record.kind {
        RecordKind::IsIn | RecordKind::Allow => heard.sources.extend(sources),
        RecordKind::ToIn => {
            heard.any = false;
            heard.sources = sources.collect();
        }
        RecordKind::IsEx | RecordKind::ToEx => heard.any = true,
        RecordKind::Block => heard.sources.retain(|s| !record.sources.contains(s)),
    }
    tunnel.retain(|_, heard| heard.any || !heard.sources.is_empty());
}

struct InFlightPacket {
    at: Instant,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

pub type Packet = (SubscriptionId, SocketAddr, Vec<u8>);

pub struct World {
    pub begin: Instant,
    pub now: Instant,
    pub gateway: Gateway,
    /// Address at which relays see the gateway.
    pub here: SocketAddr,
    pub relays: BTreeMap<SocketAddr, ModelRelay>,
    /// Delay in one direction.
    pub delay: Duration,
    /// Interval of lost messages of the gateway.
    pub lose_every: Option<usize>,
    flying: Vec<InFlightPacket>,
    sent: usize,
    pub data: Vec<Packet>,
    pub dropped: Vec<DropReason>,
    pub events: Vec<(Duration, Event)>,
}

impl World {
    pub fn new(relays: impl IntoIterator<Item = (&'static str, ModelRelay)>) -> Self {
        Self::seeded(1, relays)
    }

    pub fn seeded(seed: u8, relays: impl IntoIterator<Item = (&'static str, ModelRelay)>) -> Self {
        let now = Instant::now();
        let relays = relays.into_iter().map(|(at, relay)| (addr(at), relay));
        Self {
            begin: now,
            now,
            gateway: Gateway::new(Timing::default(), [seed; 32]),
            here: addr("203.0.113.9:40000"),
            relays: relays.collect(),
            delay: ms(20),
            lose_every: None,
            flying: Vec::new(),
            sent: 0,
            data: Vec::new(),
            dropped: Vec::new(),
            events: Vec::new(),
        }
    }

    pub fn candidates(&mut self, candidates: impl IntoIterator<Item = Candidate>) {
        self.gateway.set_candidates(candidates, self.now);
    }

    pub fn subscribe(&mut self, subscription: Subscription) -> SubscriptionId {
        self.gateway.subscribe(subscription, self.now).unwrap()
    }

    pub fn relay(&mut self, at: &str) -> &mut ModelRelay {
        self.relays.get_mut(&addr(at)).unwrap()
    }

    /// Returns the groups that the relay would forward to the gateway.
    pub fn tunnel(&mut self, at: &str) -> Groups {
        let (here, now) = (self.here, self.now);
        self.relay(at).expire(now);
        self.relay(at)
            .tunnels
            .get(&here)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now - self.begin
    }

    fn flush(&mut self) {
        let mut bytes = Vec::new();
        while let Some(to) = self.gateway.poll_transmit(&mut bytes) {
            self.sent += 1;
            if self.lose_every.is_some_and(|n| self.sent.is_multiple_of(n)) {
                continue;
            }
            self.flying.push(InFlightPacket {
                at: self.now + self.delay,
                from: self.here,
                to,
                bytes: bytes.clone(),
            });
        }
        let elapsed = self.elapsed();
        while let Some(event) = self.gateway.poll_event() {
            self.events.push((elapsed, event));
        }
    }

    /// Schedules the arrival of a datagram at the gateway.
    pub fn send(&mut self, from: &str, bytes: Vec<u8>) {
        self.flying.push(InFlightPacket {
            at: self.now + self.delay,
            from: addr(from),
            to: self.here,
            bytes,
        });
    }

    /// Sends a packet of a flow by one relay.
    pub fn send_data(&mut self, relay: &str, source: &str, group: &str, payload: &[u8]) {
        let bytes = data(source, group, payload);
        self.send(relay, bytes);
    }

    /// Sends a packet of a flow by every relay that forwards its group.
    pub fn multicast(&mut self, source: &str, group: &str, payload: &[u8]) {
        let (sender, to) = (addr(source).ip(), addr(group).ip());
        let all: Vec<SocketAddr> = self.relays.keys().copied().collect();
        for at in all {
            let tunnel = self.tunnel(&at.to_string());
            let heard = tunnel.get(&to);
            let wanted = heard.is_some_and(|h| h.any || h.sources.contains(&sender));
            let now = self.now;
            let relay = self.relay(&at.to_string());
            let joined = relay.joined.get(&to);
            let comes = joined.is_some_and(|at| *at + relay.joins_within <= now);
            if wanted && comes && !relay.deaf {
                self.send_data(&at.to_string(), source, group, payload);
            }
        }
    }

    /// Returns the lost relays and the reasons.
    pub fn lost(&self) -> Vec<(SocketAddr, RelayFailure)> {
        let lost = self.events.iter().filter_map(|(_, event)| match event {
            Event::Lost { relay, why } => Some((*relay, *why)),
            _ => None,
        });
        lost.collect()
    }

    /// Passes a datagram to the gateway now.
    pub fn handle(&mut self, from: &str, bytes: &[u8]) -> Input {
        let input = self.gateway.handle(addr(from), bytes, self.now);
        self.flush();
        input
    }

    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut rounds = 0;
        loop {
            self.flush();
            rounds += 1;
            assert!(
                rounds < 100_000,
                "it turns in circles at {:?}",
                self.elapsed()
            );
            let arrival = self.flying.iter().map(|f| f.at).min();
            let timeout = self.gateway.poll_timeout();
            let next = [arrival, timeout].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            while let Some(place) = self.flying.iter().position(|f| f.at <= self.now) {
                let flying = self.flying.remove(place);
                self.arrive(flying);
            }
            if timeout.is_some_and(|at| at <= self.now) {
                self.gateway.handle_timeout(self.now);
            }
        }
    }

    fn arrive(&mut self, flying: InFlightPacket) {
        let InFlightPacket {
            from, to, bytes, ..
        } = flying;
        if let Some(relay) = self.relays.get_mut(&to) {
            if let Some(answer) = relay.take(from, &bytes, self.now) {
                self.flying.push(InFlightPacket {
                    at: self.now + self.delay,
                    from: to,
                    to: from,
                    bytes: answer,
                });
            }
        } else if to == self.here {
            match self.gateway.handle(from, &bytes, self.now) {
                Input::Data {
                    subscription,
                    from,
                    payload,
                } => self
                    .data
                    .push((subscription, from, bytes[payload].to_vec())),
                Input::Assembled {
                    subscription,
                    from,
                    payload,
                } => self.data.push((subscription, from, payload)),
                Input::Control | Input::Fragment => {}
                Input::Dropped(why) => self.dropped.push(why),
            }
        }
    }

    /// Returns the relay in use.
    pub fn using(&self) -> Option<SocketAddr> {
        self.gateway.status().relay.map(|r| r.addr)
    }
}

/// Returns Multicast Data from `source`, an address with port, to `group`, a group with port.
pub fn data(source: &str, group: &str, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let udp = Udp {
        from: addr(source),
        to: addr(group),
        ttl: 7,
        payload,
    };
    assert!(write_udp(&udp, 0, &mut packet));
    let mut bytes = Vec::new();
    Message::Data { packet: &packet }.encode(&mut bytes);
    bytes
}
