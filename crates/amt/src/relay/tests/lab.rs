//! Gateways that talk to a relay, without sockets.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::relay::{Config, DropReason, Event, LocalEndpoint, Outcome, Relay};
use crate::report::{Record, RecordKind, write_report};
use crate::{Mac, Message};

/// A relay with a clock.
pub struct Lab {
    pub relay: Relay,
    pub now: Instant,
    pub answer: Vec<u8>,
    pub events: Vec<Event>,
    seed: u8,
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn record(kind: RecordKind, group: &str, sources: &[&str]) -> Record {
    Record {
        kind,
        group: ip(group),
        sources: sources.iter().map(|source| ip(source)).collect(),
    }
}

pub fn v4_local() -> LocalEndpoint {
    LocalEndpoint {
        ip: ip("198.51.100.1"),
        socket: 0,
    }
}

pub fn v6_local() -> LocalEndpoint {
    LocalEndpoint {
        ip: ip("2001:db8::1"),
        socket: 1,
    }
}

/// Returns a report with these records as a packet.
pub fn report(records: &[Record]) -> Vec<u8> {
    let mld = records.iter().any(|record| record.group.is_ipv6());
    let mut packets = Vec::new();
    write_report(mld, records, 1400, |packet| packets.push(packet.to_vec()));
    assert_eq!(packets.len(), 1);
    packets.remove(0)
}

impl Lab {
    pub fn new(config: Config) -> Self {
        let now = Instant::now();
        Self {
            relay: Relay::new(config, [7; 32], now),
            now,
            answer: Vec::new(),
            events: Vec::new(),
            seed: 0,
        }
    }

    pub fn send(&mut self, from: SocketAddr, message: &Message<'_>) -> Outcome {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(from, &bytes)
    }

    pub fn send_bytes(&mut self, from: SocketAddr, bytes: &[u8]) -> Outcome {
        let local = match from.ip().to_canonical() {
            IpAddr::V4(_) => v4_local(),
            IpAddr::V6(_) => v6_local(),
        };
        let handled = self
            .relay
            .handle(from, local, bytes, self.now, &mut self.answer);
        self.collect();
        handled
    }

    fn collect(&mut self) {
        while let Some(event) = self.relay.poll_event() {
            self.events.push(event);
        }
    }

    /// Sends a Request, and returns the MAC of the Query and whether it has the L flag.
    pub fn request(&mut self, from: SocketAddr, nonce: u32, mld: bool) -> (Mac, bool) {
        let handled = self.send(from, &Message::Request { nonce, mld });
        assert_eq!(handled, Outcome::Answer);
        match Message::parse(&self.answer).unwrap() {
            Message::Query {
                mac,
                limited,
                nonce: echoed,
                ..
            } => {
                assert_eq!(echoed, nonce);
                (mac, limited)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn update(
        &mut self,
        from: SocketAddr,
        nonce: u32,
        mac: Mac,
        records: &[Record],
    ) -> Outcome {
        let packet = report(records);
        let packet = &packet;
        self.send(from, &Message::Update { mac, nonce, packet })
    }

    /// Runs the whole exchange.
    pub fn join(&mut self, from: SocketAddr, records: &[Record]) -> Outcome {
        let mld = records.iter().any(|record| record.group.is_ipv6());
        let nonce = u32::from(from.port()) ^ 0x5555_0000;
        let (mac, _) = self.request(from, nonce, mld);
        self.update(from, nonce, mac, records)
    }

    /// Lets time pass, with all timeouts.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.relay.poll_timeout().filter(|at| *at <= end) {
            assert!(
                at > self.now || self.seed == 0,
                "a timeout that does nothing"
            );
            self.now = self.now.max(at);
            self.seed = self.seed.wrapping_add(1);
            self.relay.handle_timeout(self.now, [self.seed; 32]);
            self.collect();
        }
        self.now = end;
    }

    /// Returns the gateways that get packets of `source` to `group`.
    pub fn receivers(&mut self, source: &str, group: &str) -> Vec<SocketAddr> {
        let list = self.relay.recipients(ip(source), ip(group));
        let list = list.map(|list| list.all.to_vec()).unwrap_or_default();
        let mut list: Vec<SocketAddr> = list.iter().map(|one| one.gateway).collect();
        list.sort();
        list
    }
}

pub fn dropped(why: DropReason) -> Outcome {
    Outcome::Dropped(why)
}
