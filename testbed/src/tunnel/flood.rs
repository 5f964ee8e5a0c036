//! Floods of a relay from many, possibly spoofed, addresses.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use amt::Message;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::JoinPlan;
use crate::waiting::pause;

/// Number of sockets that are open at a time: ordinary users may have 1,024 files.
const OPEN: usize = 400;

/// Messages of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Wave {
    /// Relay Discovery.
    Discovery,
    /// Request.
    Request,
    /// Request, and a valid Membership Update for each query: tunnels.
    Join,
}

/// A flood.
#[derive(Debug, Clone)]
pub struct Flood {
    /// Address of the relay.
    pub relay: SocketAddr,
    /// Payload to send.
    pub wave: Wave,
    /// The first address to send from; the others follow it. All have to be this machine's.
    pub first: IpAddr,
    /// Number of addresses.
    pub addresses: u32,
    /// Number of messages from each.
    pub each: u32,
    /// Join of valid reports.
    pub wanted: JoinPlan,
}

/// Result of a flood.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FloodReport {
    /// Messages sent, but for Updates.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Answers: advertisements and queries.
    pub answers: u64,
    /// Their bytes.
    pub answer_bytes: u64,
    /// The longest answer.
    pub longest: u64,
    /// Queries with the L flag among them.
    pub limited: u64,
    /// Updates sent.
    pub updates: u64,
    /// Data messages that came.
    pub data: u64,
    /// Time taken, in ms.
    pub ms: u64,
}

/// Sends a flood as fast as one thread can.
///
/// # Errors
/// When a socket cannot be opened.
pub fn flood(flood: &Flood) -> Result<FloodReport> {
    let begun = Instant::now();
    let mut seen = FloodReport::default();
    let mut open: VecDeque<UdpSocket> = VecDeque::new();
    let state = flood.wanted.state();
    for number in 0..flood.addresses {
        let from = SocketAddr::new(nth(flood.first, number), 0);
        let socket =
            UdpSocket::bind(from).with_context(|| format!("a socket at {from} for the flood"))?;
        socket.connect(flood.relay)?;
        socket.set_nonblocking(true)?;
        for one in 0..flood.each {
            let nonce = number.wrapping_mul(flood.each).wrapping_add(one);
            let message = match flood.wave {
                Wave::Discovery => Message::Discovery { nonce },
                Wave::Request | Wave::Join => Message::Request {
                    nonce,
                    mld: flood.wanted.group.is_ipv6(),
                },
            };
            send(&socket, message, &mut seen);
        }
        open.push_back(socket);
        if open.len() > OPEN {
            if let Some(oldest) = open.pop_front() {
                read(&oldest, flood.wave, &state, &mut seen);
            }
        } else if flood.wave == Wave::Join {
            for socket in &open {
                read(socket, flood.wave, &state, &mut seen);
            }
        }
    }
    // Packets in flight.
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        for socket in &open {
            read(socket, flood.wave, &state, &mut seen);
        }
        pause(Duration::from_millis(5));
    }
    seen.ms = u64::try_from(begun.elapsed().as_millis())?;
    if seen.sent == 0 {
        bail!("nothing was sent");
    }
    Ok(seen)
}

fn send(socket: &UdpSocket, message: Message<'_>, seen: &mut FloodReport) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    if socket.send(&bytes).is_ok() {
        seen.sent += 1;
        seen.sent_bytes += u64::try_from(bytes.len()).unwrap_or(0);
    }
}

fn read(socket: &UdpSocket, wave: Wave, state: &[u8], seen: &mut FloodReport) {
    let mut buffer = [0; 2048];
    while let Ok(length) = socket.recv(&mut buffer) {
        let bytes = buffer.get(..length).unwrap_or_default();
        let message = Message::parse(bytes);
        if matches!(message, Ok(Message::Data { .. })) {
            seen.data += 1;
            continue;
        }
        let length = u64::try_from(length).unwrap_or(0);
        seen.answers += 1;
        seen.answer_bytes += length;
        seen.longest = seen.longest.max(length);
        let Ok(Message::Query {
            limited,
            mac,
            nonce,
            ..
        }) = message
        else {
            continue;
        };
        seen.limited += u64::from(limited);
        if wave == Wave::Join {
            let packet = state;
            let mut update = Vec::new();
            Message::Update { mac, nonce, packet }.encode(&mut update);
            if socket.send(&update).is_ok() {
                seen.updates += 1;
            }
        }
    }
}

/// The address that is so many after the first.
fn nth(first: IpAddr, number: u32) -> IpAddr {
    match first {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().wrapping_add(number)).into(),
        // Spread over /64s: a relay that counts by these sees as many.
        IpAddr::V6(v6) => {
            Ipv6Addr::from_bits(v6.to_bits().wrapping_add(u128::from(number) << 64)).into()
        }
    }
}
