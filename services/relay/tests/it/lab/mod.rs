//! A relay in this process, gateways that speak AMT by hand, and a source of multicast; each test
//! in a network namespace of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use amt::ip::{Udp, parse_udp};
use amt::relay::Config;
use amt::report::{Record, RecordKind, write_report};
use amt::{Mac, Message};
use flexfeed_relay::engine::{Engine, Receive, Setup};
use netio::MulticastSender;
use netio::direct::UdpPort;

/// Port of flows.
pub const PORT: u16 = 4434;

/// Timeout of all waits.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Interface for multicast with both address families; packets sent on its other end arrive there
/// by the network. Gateways are on the loopback interface.
pub const NETWORK: &str = "\
ip link add native type veth peer name other
for i in native other; do ip link set $i addrgenmode none; ip link set $i up; done
ip addr add 10.1.0.1/24 dev native
ip addr add fd00:1::1/64 dev native nodad
ip addr add 10.2.0.1/24 dev other
ip addr add fd00:2::1/64 dev other nodad
";

/// Runs a command in the namespace.
pub fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Relay that is reached over both families.
pub struct Relay {
    pub engine: Engine,
    pub v4: SocketAddr,
    pub v6: SocketAddr,
}

impl Relay {
    pub fn start(receive: Receive, relay: Config) -> Self {
        Self::start_on(Some("native"), receive, relay)
    }

    /// Starts a relay. Without an interface the routing table decides.
    pub fn start_on(interface: Option<&str>, receive: Receive, relay: Config) -> Self {
        let v4 = UdpPort::bind(at("127.0.0.1:0")).unwrap();
        let v6 = UdpPort::bind(at("[::1]:0")).unwrap();
        let addresses = (v4.local_addr(), v6.local_addr());
        let engine = Engine::start(Setup {
            relay,
            ports: vec![v4, v6],
            receive,
            interface: interface.map(str::to_owned),
        });
        Self {
            engine: engine.unwrap(),
            v4: addresses.0,
            v6: addresses.1,
        }
    }

    /// Starts a relay with ports of the test's own.
    pub fn with_ports(ports: Vec<UdpPort>, v4: SocketAddr, v6: SocketAddr) -> Self {
        let engine = Engine::start(Setup {
            relay: Config::default(),
            ports,
            receive: Receive::Ports(vec![PORT]),
            interface: Some("native".to_owned()),
        });
        Self {
            engine: engine.unwrap(),
            v4,
            v6,
        }
    }

    /// Waits until a counter fulfils a condition.
    pub fn until(
        &self,
        what: &str,
        done: impl Fn(&flexfeed_relay::engine::counters::Counters) -> bool,
    ) {
        let begun = Instant::now();
        while !done(self.engine.counters()) {
            assert!(
                begun.elapsed() < PATIENCE,
                "{what}: {:#?}",
                self.engine.counters()
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

/// Gateway.
pub struct Gateway {
    pub socket: UdpSocket,
    pub relay: SocketAddr,
    pub mac: Mac,
    pub nonce: u32,
}

impl Gateway {
    pub fn new(relay: SocketAddr) -> Self {
        let any = if relay.is_ipv4() {
            "127.0.0.1:0"
        } else {
            "[::1]:0"
        };
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            relay,
            mac: Mac([0; 6]),
            nonce: 0x1234_5678,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    pub fn send(&self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.socket.send_to(&bytes, self.relay).unwrap();
    }

    /// Sends a Request, and keeps the MAC; returns whether the Query has the L flag.
    pub fn request(&mut self, mld: bool) -> bool {
        self.send(&Message::Request {
            nonce: self.nonce,
            mld,
        });
        let mut buffer = [0; 2048];
        loop {
            let (len, from) = self.socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from, self.relay, "it answers from where it was asked");
            if let Message::Query { mac, limited, .. } = Message::parse(&buffer[..len]).unwrap() {
                self.mac = mac;
                return limited;
            }
        }
    }

    pub fn update(&self, kind: RecordKind, group: &str, sources: &[&str]) {
        let record = Record {
            kind,
            group: ip(group),
            sources: sources.iter().map(|source| ip(source)).collect(),
        };
        write_report(record.group.is_ipv6(), &[record], 1400, |packet| {
            self.send(&Message::Update {
                mac: self.mac,
                nonce: self.nonce,
                packet,
            });
        });
    }

    /// Returns the next inner packet.
    pub fn packet(&self) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (len, from) = self.socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from, self.relay);
            if let Message::Data { packet } = Message::parse(&buffer[..len]).unwrap() {
                return packet.to_vec();
            }
        }
    }

    /// Returns the next payload, whose headers have to be these.
    pub fn payload(&self, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let packet = self.packet();
        let Udp {
            from: source,
            to: group,
            payload,
            ..
        } = parse_udp(&packet).unwrap();
        assert_eq!((source, group), (from, to));
        payload.to_vec()
    }

    /// Returns the payloads that arrive within a moment.
    pub fn payloads(&self) -> Vec<Vec<u8>> {
        let short = Duration::from_millis(300);
        self.socket.set_read_timeout(Some(short)).unwrap();
        let mut all = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            if let Message::Data { packet } = Message::parse(&buffer[..len]).unwrap() {
                all.push(parse_udp(packet).unwrap().payload.to_vec());
            }
        }
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        all
    }

    /// Asserts that nothing more arrives.
    pub fn assert_silent(&self) {
        let short = Duration::from_millis(300);
        self.socket.set_read_timeout(Some(short)).unwrap();
        let mut buffer = [0; 2048];
        let error = self.socket.recv_from(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
}

/// Returns a sender of multicast, and its source address.
pub fn source(of: &str) -> (MulticastSender, SocketAddr) {
    let sender = MulticastSender::bind(ip(of), 1, true).unwrap();
    let local = sender.socket().local_addr();
    let from = SocketAddr::new(ip(of), local.port());
    (sender, from)
}

/// Joins, and waits until the relay has joined.
pub async fn join(relay: &Relay, gateway: &mut Gateway, group: &str, from: &str) {
    let joins = relay.engine.counters().messages.update.get();
    gateway.request(ip(group).is_ipv6());
    gateway.update(RecordKind::IsIn, group, &[from]);
    relay.until("the join", |c| {
        c.messages.update.get() > joins && c.joins_missing.get() == 0 && c.joins.get() > 0
    });
    // The message is counted before it is processed. The thread updates the native side before its
    // next turn, in which it answers.
    relay.engine.view().await.unwrap();
}

pub async fn send(sender: &MulticastSender, group: &str, payload: &[u8], segment: Option<usize>) {
    let group = SocketAddr::new(ip(group), PORT);
    sender.send(group, payload, segment).await.unwrap();
}
