//! Segmentation of this host's UDP packets that were captured before the network card finished
//! them: trains that it would have segmented, and datagrams whose checksum it would have computed.

use amt::ip::{Checksum, UDP_HEADER, V4_HEADER, V6_HEADER};

const UDP: u8 = 17;

/// Copies `packet` into `place`; returns its length, 0 if there is no room.
pub(super) fn copy(packet: &[u8], place: &mut [u8]) -> usize {
    match place.get_mut(..packet.len()) {
        Some(place) => {
            place.copy_from_slice(packet);
            packet.len()
        }
        None => 0,
    }
}

/// Returns the TTL or hop limit of a packet.
pub(super) fn hops(packet: &[u8]) -> u8 {
    packet.get(hops_at(packet)).copied().unwrap_or_default()
}

/// Decrements the TTL or hop limit, as each router does.
pub(super) fn lower_hops(packet: &mut [u8]) {
    let at = hops_at(packet);
    let Some(hops) = packet.get_mut(at) else {
        return;
    };
    *hops = hops.saturating_sub(1);
    if at == V4_HOPS {
        let len = packet
            .first()
            .map_or(0, |first| usize::from(first & 0x0f) * 4);
        put(packet, 10, 0);
        let sum = Checksum::default().with(packet.get(..len).unwrap_or_default());
        put(packet, 10, sum.finish());
    }
}

/// Position of the TTL in an IPv4 header.
const V4_HOPS: usize = 8;

fn hops_at(packet: &[u8]) -> usize {
    const V6_HOPS: usize = 7;
    match packet.first() {
        Some(first) if first >> 4 == 6 => V6_HOPS,
        _ => V4_HOPS,
    }
}

/// Calls `each` for the datagrams of `size` bytes of payload that `packet` consists of (one, if it
/// is shorter), with the length of the IP packet and its writer. False if UDP does not follow
/// directly after the IP header.
pub(super) fn datagrams(
    packet: &[u8],
    size: usize,
    mut each: impl FnMut(usize, &mut dyn FnMut(&mut [u8]) -> usize),
) -> bool {
    let Some(headers) = Headers::of(packet) else {
        return false;
    };
    let (header, payload) = packet.split_at(headers.len());
    // A datagram without payload is a datagram, too.
    let empty = payload.is_empty().then_some(payload);
    for (number, part) in (0_u16..).zip(payload.chunks(size.max(1)).chain(empty)) {
        each(header.len() + part.len(), &mut |place| {
            headers.write(header, part, number, place)
        });
    }
    true
}

/// Positions in the headers of a packet.
struct Headers {
    v4: bool,
    /// Length of the IP header.
    ip: usize,
}

impl Headers {
    fn of(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let headers = match first >> 4 {
            4 => Self {
                v4: true,
                ip: usize::from(first & 0x0f) * 4,
            },
            6 => Self {
                v4: false,
                ip: V6_HEADER,
            },
            _ => return None,
        };
        let protocol = *packet.get(if headers.v4 { 9 } else { 6 })?;
        let whole = packet.len() >= headers.len() && headers.ip >= V4_HEADER;
        (protocol == UDP && whole).then_some(headers)
    }

    fn len(&self) -> usize {
        self.ip + UDP_HEADER
    }

    /// Writes the `number`th datagram of a train; returns its length, 0 if there is no room.
    fn write(&self, header: &[u8], payload: &[u8], number: u16, place: &mut [u8]) -> usize {
        let total = header.len() + payload.len();
        let Some(place) = place.get_mut(..total) else {
            return 0;
        };
        let (Ok(total_16), Ok(udp_16)) = (
            u16::try_from(total),
            u16::try_from(UDP_HEADER + payload.len()),
        ) else {
            return 0;
        };
        let Some((head, body)) = place.split_at_mut_checked(header.len()) else {
            return 0;
        };
        head.copy_from_slice(header);
        body.copy_from_slice(payload);
        let Some((ip, udp)) = head.split_at_mut_checked(self.ip) else {
            return 0;
        };
        let addresses = if self.v4 {
            put(ip, 2, total_16);
            let id = get(ip, 4).wrapping_add(number);
            put(ip, 4, id);
            put(ip, 10, 0);
            let sum = Checksum::default().with(ip).finish();
            put(ip, 10, sum);
            ip.get(12..20)
        } else {
            put(ip, 4, udp_16);
            ip.get(8..40)
        };
        put(udp, 4, udp_16);
        put(udp, 6, 0);
        let sum = Checksum::default()
            .with(addresses.unwrap_or_default())
            .with_u16(UDP.into())
            .with_u16(udp_16)
            .with(udp)
            .with(body)
            .finish();
        // 0 would mean no checksum.
        put(udp, 6, if sum == 0 { u16::MAX } else { sum });
        total
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

fn get(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(&[a, b]) => u16::from_be_bytes([a, b]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use amt::ip::{Udp, parse_udp, write_udp};

    fn cut(from: &str, to: &str) {
        let payload: Vec<u8> = (0..2500_u32).map(|n| (n * 7) as u8).collect();
        let udp = Udp {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            ttl: 9,
            payload: &payload,
        };
        let mut packet = Vec::new();
        assert!(write_udp(&udp, 0, &mut packet));
        // As in a train: no checksum yet.
        let udp_at = packet.len() - payload.len() - UDP_HEADER;
        put(&mut packet, udp_at + 6, 0x1234);
        let mut whole = Vec::new();
        let mut sizes = Vec::new();
        let done = datagrams(&packet, 1000, |len, write| {
            let mut place = vec![0; 3000];
            let written = write(&mut place);
            assert_eq!(written, len);
            let one = parse_udp(&place[..written]).unwrap();
            assert_eq!((one.from, one.to, one.ttl), (udp.from, udp.to, 9));
            sizes.push(one.payload.len());
            whole.extend_from_slice(one.payload);
        });
        assert!(done);
        assert_eq!(sizes, [1000, 1000, 500]);
        assert_eq!(whole, payload);
    }

    #[test]
    fn a_train_is_split_into_valid_packets() {
        cut("192.0.2.1:5000", "232.1.2.3:6000");
        cut("[2001:db8::1]:5000", "[ff3e::8000:1]:6000");
    }

    #[test]
    fn an_empty_datagram_is_one() {
        let udp = Udp {
            from: "192.0.2.1:5000".parse().unwrap(),
            to: "232.1.2.3:6000".parse().unwrap(),
            ttl: 9,
            payload: &[],
        };
        let mut packet = Vec::new();
        assert!(write_udp(&udp, 0, &mut packet));
        for size in [1000, usize::MAX] {
            let mut count = 0;
            assert!(datagrams(&packet, size, |len, write| {
                let mut place = [0; 100];
                assert_eq!(write(&mut place), len);
                assert_eq!(parse_udp(&place[..len]), Ok(udp));
                count += 1;
            }));
            assert_eq!(count, 1);
        }
    }

    #[test]
    fn decrementing_the_ttl_keeps_a_valid_packet() {
        for (from, to) in [
            ("192.0.2.1:5000", "232.1.2.3:6000"),
            ("[2001:db8::1]:5000", "[ff3e::8000:1]:6000"),
        ] {
            let udp = Udp {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                ttl: 2,
                payload: b"hello",
            };
            let mut packet = Vec::new();
            assert!(write_udp(&udp, 0, &mut packet));
            assert_eq!(hops(&packet), 2);
            lower_hops(&mut packet);
            assert_eq!(parse_udp(&packet), Ok(Udp { ttl: 1, ..udp }));
        }
    }

    #[test]
    fn packets_other_than_udp_are_not_split() {
        for packet in [
            &[][..],
            &[0x45; 20],
            &[0x60; 40],
            &[0x40; 100],
            &[0x00; 100],
        ] {
            assert!(!datagrams(packet, 100, |_, _| panic!()));
        }
    }
}
