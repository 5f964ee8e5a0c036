//! A network of gateways and relays, whose time passes only in [`Network::run`].

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::Message;
use amt::gateway::{
    Candidate, Event, Gateway, Input, Origin, Subscription, SubscriptionId, Timing,
};
use amt::ip::{Udp, write_udp};
use amt::relay::{Config, LocalEndpoint, Outcome, Relay};

/// Delay in one direction.
const DELAY: Duration = ms(15);
/// Port of all flows.
const PORT: u16 = 5000;

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn subscription(source: Option<&str>, group: &str) -> Subscription {
    Subscription {
        source: source.map(|s| s.parse().unwrap()),
        group: group.parse().unwrap(),
        port: PORT,
    }
}

struct Host {
    gateway: Gateway,
    /// Address at which relays see it.
    at: SocketAddr,
    got: Vec<Vec<u8>>,
    events: Vec<Event>,
    gone: bool,
}

struct InFlightPacket {
    at: Instant,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

pub struct Network {
    now: Instant,
    relays: BTreeMap<SocketAddr, Relay>,
    hosts: Vec<Host>,
    flying: Vec<InFlightPacket>,
    refused: Vec<&'static str>,
    /// Loss of all messages, in tenths.
    pub loss: u64,
    pub seed: u64,
}

impl Network {
    pub fn new(relays: impl IntoIterator<Item = (&'static str, Config)>) -> Self {
        let now = Instant::now();
        let relays = relays
            .into_iter()
            .map(|(at, config)| (address(at), Relay::new(config, [1; 32], now)));
        Self {
            now,
            relays: relays.collect(),
            hosts: Vec::new(),
            flying: Vec::new(),
            refused: Vec::new(),
            loss: 0,
            seed: 0,
        }
    }

    /// Adds a gateway on a host, with these relays; returns its number.
    pub fn gateway(&mut self, at: &str, relays: &[&str]) -> usize {
        let mut seed = [self.hosts.len() as u8; 32];
        seed[1] = self.seed as u8;
        let mut gateway = Gateway::new(Timing::default(), seed);
        let candidates = relays.iter().map(|relay| Candidate {
            addr: address(relay),
            discover: false,
            origin: Origin::Configured,
        });
        gateway.set_candidates(candidates, self.now);
        self.hosts.push(Host {
            gateway,
            at: address(at),
            got: Vec::new(),
            events: Vec::new(),
            gone: false,
        });
        self.hosts.len() - 1
    }

    pub fn relay(&mut self, at: &str) -> &mut Relay {
        self.relays.get_mut(&address(at)).unwrap()
    }

    /// Restarts the relay's program.
    pub fn restart(&mut self, at: &str, config: Config) {
        *self.relay(at) = Relay::new(config, [99; 32], self.now);
    }

    pub fn subscribe(&mut self, gateway: usize, wanted: Subscription) -> SubscriptionId {
        let now = self.now;
        self.hosts[gateway].gateway.subscribe(wanted, now).unwrap()
    }

    pub fn unsubscribe(&mut self, gateway: usize, id: SubscriptionId) {
        let now = self.now;
        self.hosts[gateway].gateway.unsubscribe(id, now);
    }

    pub fn suspect(&mut self, gateway: usize) {
        let now = self.now;
        self.hosts[gateway].gateway.suspect(now);
    }

    pub fn stop(&mut self, gateway: usize) {
        self.hosts[gateway].gateway.stop();
    }

    /// Switches the host off.
    pub fn vanish(&mut self, gateway: usize) {
        self.hosts[gateway].gone = true;
    }

    /// Makes the NAT forget the host's mapping, and create another one.
    pub fn rebind(&mut self, gateway: usize, at: &str) {
        self.hosts[gateway].at = address(at);
    }

    pub fn using(&self, gateway: usize) -> Option<SocketAddr> {
        self.hosts[gateway].gateway.status().relay.map(|r| r.addr)
    }

    pub fn got(&self, gateway: usize) -> &[Vec<u8>] {
        &self.hosts[gateway].got
    }

    pub fn forget(&mut self, gateway: usize) {
        self.hosts[gateway].got.clear();
    }

    pub fn events(&self, gateway: usize) -> &[Event] {
        &self.hosts[gateway].events
    }

    /// Returns the messages that relays dropped.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Delivers a packet to all relays by multicast.
    pub fn multicast(&mut self, source: &str, group: &str, payload: &[u8]) {
        let (source, group): (IpAddr, IpAddr) = (source.parse().unwrap(), group.parse().unwrap());
        let (mut packet, mut bytes) = (Vec::new(), Vec::new());
        if source.is_ipv4() != group.is_ipv4() {
            return;
        }
        let udp = Udp {
            from: SocketAddr::new(source, 4000),
            to: SocketAddr::new(group, PORT),
            ttl: 5,
            payload,
        };
        assert!(write_udp(&udp, 0, &mut packet));
        Message::Data { packet: &packet }.encode(&mut bytes);
        for (at, relay) in &mut self.relays {
            let Some(recipients) = relay.recipients(source, group) else {
                continue;
            };
            for recipient in recipients.all.iter() {
                self.flying.push(InFlightPacket {
                    at: self.now + DELAY,
                    from: *at,
                    to: recipient.gateway,
                    bytes: bytes.clone(),
                });
            }
        }
    }

    /// Whether a message is lost, by a chance that the seed determines.
    fn is_lost(&mut self) -> bool {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) % 10 < self.loss
    }

    fn fly(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        if !self.is_lost() {
            let at = self.now + DELAY;
            self.flying.push(InFlightPacket {
                at,
                from,
                to,
                bytes,
            });
        }
    }

    fn flush(&mut self) {
        let mut sent = Vec::new();
        for host in &mut self.hosts {
            let mut bytes = Vec::new();
            while let Some(to) = host.gateway.poll_transmit(&mut bytes) {
                if !host.gone {
                    sent.push((host.at, to, bytes.clone()));
                }
            }
            host.events
                .extend(std::iter::from_fn(|| host.gateway.poll_event()));
        }
        for (from, to, bytes) in sent {
            self.fly(from, to, bytes);
        }
        for relay in self.relays.values_mut() {
            while relay.poll_event().is_some() {}
        }
    }

    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        for round in 0.. {
            assert!(round < 100_000, "it turns in circles");
            self.flush();
            let arrivals = self.flying.iter().map(|f| f.at);
            let gateways = self.hosts.iter().filter_map(|h| h.gateway.poll_timeout());
            let relays = self.relays.values().filter_map(Relay::poll_timeout);
            let next = arrivals.chain(gateways).chain(relays).min();
            let Some(next) = next.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(next);
            while let Some(place) = self.flying.iter().position(|f| f.at <= self.now) {
                let flying = self.flying.remove(place);
                self.arrive(flying);
            }
            for host in &mut self.hosts {
                if host.gateway.poll_timeout().is_some_and(|at| at <= self.now) {
                    host.gateway.handle_timeout(self.now);
                }
            }
            for relay in self.relays.values_mut() {
                relay.handle_timeout(self.now, [round as u8; 32]);
            }
        }
        self.now = end;
    }

    fn arrive(&mut self, flying: InFlightPacket) {
        let InFlightPacket {
            from, to, bytes, ..
        } = flying;
        if let Some(relay) = self.relays.get_mut(&to) {
            let local = LocalEndpoint {
                ip: to.ip(),
                socket: 0,
            };
            let mut answer = Vec::new();
            match relay.handle(from, local, &bytes, self.now, &mut answer) {
                Outcome::Answer => self.fly(to, from, answer),
                Outcome::Accepted => {}
                Outcome::Dropped(why) => self.refused.push(why.reason()),
            }
        } else if let Some(host) = self.hosts.iter_mut().find(|h| h.at == to && !h.gone) {
            match host.gateway.handle(from, &bytes, self.now) {
                Input::Data { payload, .. } => host.got.push(bytes[payload].to_vec()),
                Input::Assembled { payload, .. } => host.got.push(payload),
                Input::Fragment | Input::Control | Input::Dropped(_) => {}
            }
        }
    }
}
