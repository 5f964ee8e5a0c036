//! One socket that speaks AMT with one relay, and counts what comes.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use amt::{Mac, Message};
use anyhow::{Context, Result};

use super::JoinPlan;
use crate::waiting::pause;

/// Content of a relay's last Membership Query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) mac: Mac,
    pub(super) nonce: u32,
    pub(super) limited: bool,
    /// This socket's address as seen by the relay, if reported.
    pub(super) seen_as: Option<SocketAddr>,
}

/// Packets received over the tunnel.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// Data messages with what was asked for.
    pub(super) data: u64,
    /// The numbers in them.
    pub(super) numbers: BTreeSet<u32>,
    /// Data messages with fragments of IPv4 packets.
    pub(super) fragments: u64,
    /// Data messages with something else, or damaged.
    pub(super) wrong: u64,
    /// Membership Queries.
    pub(super) queries: u64,
    /// Those of them with the L flag.
    pub(super) limited: u64,
}

/// A socket that can say whatever it likes to a relay.
#[derive(Debug)]
pub(super) struct Outsider {
    socket: UdpSocket,
    wanted: JoinPlan,
    pub(super) answer: Option<Answer>,
    pub(super) arrived: Arrived,
}

impl Outsider {
    /// Opens a socket, at an address of this machine if one is given.
    pub(super) fn open(
        relay: SocketAddr,
        from: Option<IpAddr>,
        wanted: JoinPlan,
    ) -> Result<Outsider> {
        let any = match relay.ip() {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        let from = SocketAddr::new(from.unwrap_or(any), 0);
        let socket = UdpSocket::bind(from).with_context(|| format!("a socket at {from}"))?;
        // Fixes the local address, and accepts datagrams of the relay alone.
        socket.connect(relay).with_context(|| format!("{relay}"))?;
        socket.set_nonblocking(true)?;
        Ok(Outsider {
            socket,
            wanted,
            answer: None,
            arrived: Arrived::default(),
        })
    }

    pub(super) fn local(&self) -> Result<SocketAddr> {
        self.socket.local_addr().context("the socket's address")
    }

    pub(super) fn send(&self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        // A relay that is away answers with ICMP, which shows up here.
        let _ = self.socket.send(&bytes);
    }

    /// Asks for a query, with a nonce made from a number.
    pub(super) fn request(&self, number: u32) {
        let mld = self.wanted.group.is_ipv6();
        self.send(Message::Request {
            nonce: 0x5eed_0000 ^ number,
            mld,
        });
    }

    /// Sends a report under a MAC and a nonce.
    pub(super) fn update(&self, mac: Mac, nonce: u32, packet: &[u8]) {
        self.send(Message::Update { mac, nonce, packet });
    }

    /// Reads pending packets; returns whether there was a query among them.
    pub(super) fn read(&mut self) -> bool {
        let mut buffer = [0; 2048];
        let mut queried = false;
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => queried |= self.take(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return queried,
                // ICMP: the port is closed now.
                Err(_) => return queried,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        match Message::parse(bytes) {
            Ok(Message::Query {
                limited,
                mac,
                nonce,
                gateway,
                ..
            }) => {
                self.arrived.queries += 1;
                self.arrived.limited += u64::from(limited);
                self.answer = Some(Answer {
                    mac,
                    nonce,
                    limited,
                    seen_as: gateway,
                });
                true
            }
            Ok(Message::Data { packet }) => {
                match self.number(packet) {
                    Some(number) => {
                        self.arrived.data += 1;
                        self.arrived.numbers.insert(number);
                    }
                    None if is_fragment(packet) => self.arrived.fragments += 1,
                    None => self.arrived.wrong += 1,
                }
                false
            }
            _ => false,
        }
    }

    /// The number in a packet with what was asked for.
    fn number(&self, packet: &[u8]) -> Option<u32> {
        let udp = amt::ip::parse_udp(packet).ok()?;
        let fits = udp.to == self.wanted.group
            && self
                .wanted
                .source
                .is_none_or(|source| source == udp.from.ip());
        let number = udp.payload.first_chunk::<4>()?;
        fits.then(|| u32::from_be_bytes(*number))
    }

    /// Asks until there is an answer.
    pub(super) fn ask(&mut self, bound: Duration) -> Option<Answer> {
        let end = Instant::now() + bound;
        let mut number = 0;
        self.answer = None;
        while self.answer.is_none() && Instant::now() < end {
            number += 1;
            self.request(number);
            let again = Instant::now() + Duration::from_millis(200);
            while self.answer.is_none() && Instant::now() < again {
                pause(Duration::from_millis(2));
                self.read();
            }
        }
        self.answer
    }
}

/// Whether it is a fragment of an IPv4 packet: an offset, or more to come (RFC 791).
fn is_fragment(packet: &[u8]) -> bool {
    match packet {
        [first, _, _, _, _, _, high, low, ..] => {
            first >> 4 == 4 && u16::from_be_bytes([*high, *low]) & 0x3fff != 0
        }
        _ => false,
    }
}
