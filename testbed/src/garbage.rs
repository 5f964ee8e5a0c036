//! Datagrams that a service must survive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flexicast_tokio::source::POISON;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::waiting::pause;

/// The largest UDP payload made, in bytes; it fits one Ethernet frame.
const LARGEST: usize = 1400;

fn socket_to(to: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    UdpSocket::bind((any, 0)).context("opening a UDP socket")
}

/// Makes the shard of a source fail that gets a datagram from here.
///
/// # Errors
/// The datagram cannot be sent.
pub fn send_poison(to: SocketAddr) -> Result<()> {
    socket_to(to)?.send_to(POISON, to)?;
    Ok(())
}

/// Sends `count` datagrams of random length and content, about `per_second` of them.
///
/// Three kinds alternate: noise (with empty datagrams); the start of a QUIC long header; and the
/// start of a flow packet, a short header with the flow's ID, if one is given. None is a valid
/// packet, except with probability 2⁻¹²⁸.
///
/// # Errors
/// The socket cannot be made; single refused datagrams (a closed port answers with ICMP) are not an
/// error.
pub fn send_garbage(
    to: SocketAddr,
    count: u32,
    per_second: u32,
    flow: Option<[u8; 8]>,
    seed: u64,
) -> Result<()> {
    let socket = socket_to(to)?;
    let mut rng = StdRng::seed_from_u64(seed);
    let interval = Duration::from_secs(1) / per_second.max(1);
    for number in 0..count {
        let _ = socket.send_to(&piece(&mut rng, number, flow), to);
        pause(interval);
    }
    Ok(())
}

fn piece(rng: &mut StdRng, number: u32, flow: Option<[u8; 8]>) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..=LARGEST)];
    rng.fill_bytes(&mut bytes);
    let head: Vec<u8> = match (number % 3, flow) {
        (1, _) => {
            // Long header, fixed bit, some packet type; version 1; a destination ID of 8 bytes.
            let mut head = vec![
                0xc0 | (bytes.first().copied().unwrap_or(0) & 0x3f),
                0,
                0,
                0,
                1,
                8,
            ];
            head.extend_from_slice(&rng.random::<[u8; 8]>());
            head
        }
        (2, Some(flow)) => {
            let mut head = vec![0x40 | (bytes.first().copied().unwrap_or(0) & 0x3f)];
            head.extend_from_slice(&flow);
            head
        }
        _ => return bytes,
    };
    let room = bytes.len().max(head.len());
    bytes.resize(room, 0);
    for (place, byte) in bytes.iter_mut().zip(head) {
        *place = byte;
    }
    bytes
}

/// Reads a Flow ID of 16 hexadecimal digits.
///
/// # Errors
/// When it is something else.
pub fn flow_id(hex: &str) -> Result<[u8; 8]> {
    ensure!(
        hex.len() == 16,
        "a Flow ID has 16 hexadecimal digits, not {hex:?}"
    );
    let number = u64::from_str_radix(hex, 16).with_context(|| format!("Flow ID {hex:?}"))?;
    Ok(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_for_the_flow_carries_its_id_in_a_short_header() {
        let mut rng = StdRng::seed_from_u64(1);
        let flow = flow_id("0102030405060708").unwrap();
        for _ in 0..100 {
            let bytes = piece(&mut rng, 2, Some(flow));
            assert_eq!(bytes[0] & 0xc0, 0x40);
            assert_eq!(bytes[1..9], [1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }

    #[test]
    fn flow_ids_are_checked() {
        assert!(flow_id("0102").is_err());
        assert!(flow_id("zz02030405060708").is_err());
    }
}
