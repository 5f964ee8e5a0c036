//! The relay's state machine, driven by arbitrary, mostly sensible gateways, and by strangers that
//! impersonate one.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::relay::{Config, DropReason, Event, GatewayAddress, Join, LocalEndpoint, Outcome, Relay};
use amt::report::{self, Record, RecordKind};
use amt::{GATEWAY_FIELDS, Mac, Message};
use arbitrary::{Arbitrary, Unstructured};

const MAX_GATEWAYS: usize = 4;
const MAX_GROUPS: usize = 2;

/// Two behind one NAT, and some with nothing in common.
const GATEWAYS: [&str; 6] = [
    "203.0.113.5:40001",
    "203.0.113.5:40002",
    "[2001:db8::5]:40001",
    "[::ffff:203.0.113.6]:40001",
    "198.51.100.99:1",
    "[2001:db8:1::5]:40001",
];
const SOURCES: [&str; 4] = ["198.51.100.7", "198.51.100.8", "2001:db8::7", "2001:db8::8"];
const GROUPS: [&str; 4] = ["232.1.1.1", "239.1.1.1", "ff3e::1", "ff1e::2"];

#[derive(Debug, Arbitrary)]
enum Step<'a> {
    Discovery(u8, bool),
    Request(u8, bool, u32),
    /// With the last MAC that this gateway was sent, or that of another.
    Update {
        gateway: u8,
        mac_of: u8,
        forged: u8,
        records: [Option<Change>; 3],
    },
    Teardown {
        gateway: u8,
        mac_of: u8,
        forged: u8,
        of: u8,
    },
    Raw(u8, &'a [u8]),
    /// An Update with a valid MAC and anything inside.
    Inside(u8, &'a [u8]),
    Pass(u16),
    PassLong(u8),
    PathMtu(u8, u16),
    Drain,
}

#[derive(Debug, Arbitrary, Clone, Copy)]
struct Change {
    kind: u8,
    group: u8,
    sources: [Option<u8>; 2],
}

/// Coverage that the corpus has to reach.
#[derive(Debug, Default, Clone, Copy)]
pub struct Coverage {
    /// Tunnels there were at once.
    pub tunnels: u64,
    /// Joins on the native side.
    pub joins: u64,
    /// Leaves.
    pub leaves: u64,
    /// Teardowns that were taken.
    pub teardowns: u64,
    /// MACs that were refused.
    pub forged: u64,
    /// Queries with L.
    pub limited: u64,
    /// Refusals for too many groups.
    pub too_many: u64,
}

/// No state is kept without a valid MAC; each request has at most one answer, of bounded size;
/// exactly the joined channels are forwarded; everything expires.
pub fn amt_relay(data: &[u8]) {
    play_amt_relay(data);
}

/// The same; returns what was reached.
pub fn play_amt_relay(data: &[u8]) -> Coverage {
    let mut u = Unstructured::new(data);
    let mut model = Model::new(u.arbitrary().unwrap_or(0));
    while let Ok(step) = u.arbitrary::<Step<'_>>() {
        model.step(&step);
        model.settle();
        if u.is_empty() {
            break;
        }
    }
    // All memberships are gone without a refresh for this long.
    model.pass(Duration::from_secs(3600));
    model.settle();
    assert_eq!(model.relay.tunnels(), 0, "tunnels without a gateway");
    assert!(model.joined.is_empty(), "{:?} stay joined", model.joined);
    model.reached
}

fn pick<T: std::str::FromStr>(list: &[&str], index: u8) -> T {
    let text = list[usize::from(index) % list.len()];
    text.parse().ok().unwrap()
}

struct Model {
    relay: Relay,
    now: Instant,
    joined: BTreeSet<Join>,
    /// The last MAC of each gateway, with its nonce.
    macs: [Option<(Mac, u32, Instant)>; GATEWAYS.len()],
    /// Secrets that were handed in.
    secrets: u64,
    reached: Coverage,
}

impl Model {
    fn new(seed: u8) -> Self {
        let now = Instant::now();
        let gateway_address = match seed % 3 {
            0 => GatewayAddress::Off,
            1 => GatewayAddress::UntilUnanswered,
            _ => GatewayAddress::Always,
        };
        let config = Config {
            max_gateways: MAX_GATEWAYS,
            max_groups_per_gateway: MAX_GROUPS,
            requests_per_second: 2,
            gateway_address,
            ..Config::default()
        };
        let mut model = Model {
            relay: Relay::new(config, [seed; 32], now),
            now,
            joined: BTreeSet::new(),
            macs: [None; GATEWAYS.len()],
            secrets: 0,
            reached: Coverage::default(),
        };
        // Most inputs are about what comes after.
        if seed & 1 == 0 {
            for gateway in 0..GATEWAYS.len() as u8 {
                model.request(gateway, false, u32::from(gateway));
            }
        }
        model
    }

    fn step(&mut self, step: &Step<'_>) {
        match *step {
            Step::Discovery(gateway, anycast) => {
                let message = Message::Discovery { nonce: 7 };
                let (handled, answer) = self.handle(gateway, &message, anycast);
                if handled == Outcome::Answer {
                    let found = Message::parse(&answer).unwrap();
                    assert!(matches!(found, Message::Advertisement { nonce: 7, .. }));
                }
            }
            Step::Request(gateway, mld, nonce) => self.request(gateway, mld, nonce),
            Step::Update {
                gateway,
                mac_of,
                forged,
                records,
            } => self.update(gateway, mac_of, forged, &records),
            Step::Teardown {
                gateway,
                mac_of,
                forged,
                of,
            } => self.teardown(gateway, mac_of, forged, of),
            Step::Raw(gateway, bytes) => {
                self.handle_bytes(gateway, bytes, false);
            }
            Step::Inside(gateway, packet) => {
                if let Some((mac, nonce, _)) = self.macs[usize::from(gateway) % GATEWAYS.len()] {
                    self.handle(gateway, &Message::Update { mac, nonce, packet }, false);
                }
            }
            Step::Pass(millis) => self.pass(Duration::from_millis(u64::from(millis))),
            Step::PassLong(seconds) => self.pass(Duration::from_secs(2 * u64::from(seconds))),
            Step::PathMtu(gateway, mtu) => {
                let gateway: SocketAddr = pick(&GATEWAYS, gateway);
                self.relay.path_mtu(gateway.ip(), mtu, self.now);
            }
            Step::Drain => self.relay.drain(),
        }
    }

    fn handle(&mut self, from: u8, message: &Message<'_>, anycast: bool) -> (Outcome, Vec<u8>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.handle_bytes(from, &bytes, anycast)
    }

    fn handle_bytes(&mut self, from: u8, bytes: &[u8], anycast: bool) -> (Outcome, Vec<u8>) {
        let from: SocketAddr = pick(&GATEWAYS, from);
        let ip: IpAddr = if anycast {
            amt::ANYCAST_V4.into()
        } else {
            "192.0.2.1".parse().unwrap()
        };
        let (local, before) = (LocalEndpoint { ip, socket: 0 }, self.relay.tunnels());
        let mut answer = vec![0x99; 3];
        let handled = self.relay.handle(from, local, bytes, self.now, &mut answer);
        assert_eq!(handled == Outcome::Answer, !answer.is_empty());
        if handled == Outcome::Answer {
            // The RFC's own sizes: an Advertisement, or a Query with MLD and the gateway's address.
            assert!(answer.len() <= 12 + 76 + GATEWAY_FIELDS);
            let kind = bytes[0] & 0x0f;
            assert!(
                [1, 3].contains(&kind),
                "an answer to a message of type {kind}"
            );
        }
        match handled {
            Outcome::Dropped(DropReason::Mac) => self.reached.forged += 1,
            Outcome::Dropped(DropReason::TooManyGroups) => self.reached.too_many += 1,
            _ => {}
        }
        let refused = matches!(
            handled,
            Outcome::Answer | Outcome::Dropped(DropReason::Mac | DropReason::Malformed(_))
        );
        assert!(
            !refused || self.relay.tunnels() == before,
            "state for no gateway"
        );
        (handled, answer)
    }

    fn request(&mut self, gateway: u8, mld: bool, nonce: u32) {
        let (handled, answer) = self.handle(gateway, &Message::Request { nonce, mld }, false);
        if handled != Outcome::Answer {
            return;
        }
        let Ok(Message::Query {
            limited,
            mac,
            nonce: repeated,
            packet,
            ..
        }) = Message::parse(&answer)
        else {
            panic!("a Request is answered by a Query");
        };
        assert_eq!(repeated, nonce);
        assert_eq!(packet[0] >> 4 == 6, mld);
        report::parse_query(packet).expect("a query");
        self.reached.limited += u64::from(limited);
        self.macs[usize::from(gateway) % GATEWAYS.len()] = Some((mac, nonce, self.now));
    }

    /// A MAC, and whether it has to be taken from `gateway`: `None` where it may be either way.
    fn mac(&self, gateway: u8, mac_of: u8, forged: u8) -> Option<(Mac, u32, Option<bool>)> {
        let gateway = usize::from(gateway) % GATEWAYS.len();
        // Mostly one's own.
        let owner = if mac_of < 200 {
            gateway
        } else {
            usize::from(mac_of) % GATEWAYS.len()
        };
        let (mut mac, nonce, at) = self.macs[owner]?;
        if forged != 0 {
            mac.0[usize::from(forged) % 6] ^= forged;
        }
        let age = self.now - at;
        let valid = match (owner == gateway && forged == 0, age) {
            (false, _) => Some(false),
            (true, age) if age <= amt::Secrets::LIFETIME => Some(true),
            (true, age) if age > 2 * (2 * amt::Secrets::LIFETIME) => Some(false),
            _ => None,
        };
        Some((mac, nonce, valid))
    }

    fn update(&mut self, gateway: u8, mac_of: u8, forged: u8, changes: &[Option<Change>; 3]) {
        use RecordKind::{Allow, Block, IsEx, IsIn, ToEx, ToIn};
        let Some((mac, nonce, valid)) = self.mac(gateway, mac_of, forged) else {
            return;
        };
        let records: Vec<Record> = changes
            .iter()
            .flatten()
            .map(|change| Record {
                kind: [IsIn, IsEx, ToIn, ToEx, Allow, Block][usize::from(change.kind) % 6],
                group: pick(&GROUPS, change.group),
                sources: change
                    .sources
                    .iter()
                    .flatten()
                    .map(|s| pick(&SOURCES, *s))
                    .collect(),
            })
            .collect();
        let Some(mld) = records.first().map(|record| record.group.is_ipv6()) else {
            return;
        };
        let mut packets = Vec::new();
        report::write_report(mld, &records, 1280, |packet| packets.push(packet.to_vec()));
        for packet in packets {
            let message = Message::Update {
                mac,
                nonce,
                packet: &packet,
            };
            let (handled, _) = self.handle(gateway, &message, false);
            let of_mac = handled == Outcome::Dropped(DropReason::Mac);
            assert!(
                valid.is_none_or(|valid| valid != of_mac),
                "{handled:?}, valid: {valid:?}"
            );
            // The last report decides.
            if handled == Outcome::Accepted
                && let Some(last) = report::parse_report(&packet).unwrap().last()
            {
                self.check(pick(&GATEWAYS, gateway), last);
            }
        }
    }

    fn check(&mut self, gateway: SocketAddr, record: &Record) {
        let wanted = match record.kind {
            RecordKind::Allow | RecordKind::IsIn | RecordKind::ToIn => true,
            RecordKind::Block | RecordKind::ToEx | RecordKind::IsEx => false,
        };
        let gateway = SocketAddr::new(gateway.ip().to_canonical(), gateway.port());
        for source in &record.sources {
            let gets = self.gets(gateway, *source, record.group);
            assert_eq!(gets, wanted, "{gateway} and {source} after {record:?}");
        }
    }

    fn gets(&mut self, gateway: SocketAddr, source: IpAddr, group: IpAddr) -> bool {
        let Some(recipients) = self.relay.recipients(source, group) else {
            return false;
        };
        recipients
            .all
            .iter()
            .any(|r| SocketAddr::new(r.gateway.ip().to_canonical(), r.gateway.port()) == gateway)
    }

    fn teardown(&mut self, gateway: u8, mac_of: u8, forged: u8, of: u8) {
        let Some((mac, nonce, valid)) = self.mac(of, mac_of, forged) else {
            return;
        };
        let gone: SocketAddr = pick(&GATEWAYS, of);
        let message = Message::Teardown {
            mac,
            nonce,
            gateway: gone,
        };
        let (handled, _) = self.handle(gateway, &message, false);
        let of_mac = handled == Outcome::Dropped(DropReason::Mac);
        assert!(
            valid.is_none_or(|valid| valid != of_mac),
            "{handled:?}, valid: {valid:?}"
        );
        if handled == Outcome::Accepted {
            self.reached.teardowns += 1;
            let gone = SocketAddr::new(gone.ip().to_canonical(), gone.port());
            for source in SOURCES {
                for group in GROUPS {
                    let (source, group) = (source.parse().unwrap(), group.parse().unwrap());
                    assert!(!self.gets(gone, source, group), "{gone} is torn down");
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..10_000 {
            let Some(at) = self.relay.poll_timeout().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(at);
            // No secret comes again.
            self.secrets += 1;
            let mut fresh = [0x5a; 32];
            fresh[..8].copy_from_slice(&self.secrets.to_be_bytes());
            self.relay.handle_timeout(self.now, fresh);
            let next = self.relay.poll_timeout();
            assert!(
                next.is_none_or(|next| next > self.now),
                "the timer does not move on"
            );
            self.settle();
        }
        panic!("too many timeouts within {time:?}");
    }

    /// Checks the invariants between two calls.
    fn settle(&mut self) {
        while let Some(event) = self.relay.poll_event() {
            match event {
                Event::Join(join) => {
                    assert!(self.joined.insert(join), "{join:?} twice");
                    self.reached.joins += 1;
                }
                Event::Leave(join) => {
                    assert!(self.joined.remove(&join), "{join:?} was not joined");
                    self.reached.leaves += 1;
                }
            }
        }
        let joins: BTreeSet<_> = self.relay.joins().map(|(join, _)| join).collect();
        assert_eq!(joins, self.joined);
        let tunnels = self.relay.tunnels();
        assert!(tunnels <= MAX_GATEWAYS, "{tunnels} tunnels");
        self.reached.tunnels = self.reached.tunnels.max(tunnels as u64);
        for gateway in self.relay.gateways() {
            assert!(!gateway.groups.is_empty(), "a tunnel for nothing");
        }
        // Data goes to members only.
        for group in GROUPS {
            let group: IpAddr = group.parse().unwrap();
            for source in SOURCES {
                let source: IpAddr = source.parse().unwrap();
                if source.is_ipv4() != group.is_ipv4() {
                    continue;
                }
                let some = self
                    .relay
                    .recipients(source, group)
                    .is_some_and(|r| !r.all.is_empty());
                let covers = |join: &Join| {
                    join.group == group && join.source.is_none_or(|joined| joined == source)
                };
                assert!(
                    !some || self.joined.iter().any(covers),
                    "({source}, {group}) is not joined"
                );
            }
        }
    }
}
