//! Order of attempts.

use std::net::{IpAddr, SocketAddr};

use crate::gateway::{Candidate, Origin};
use crate::{ANYCAST_V4, ANYCAST_V6, PORT};

/// A known relay with its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankedRelay {
    /// Address and port.
    pub addr: SocketAddr,
    /// Whether Relay Discovery goes first: an AMTRELAY record without D, or anycast.
    pub discover: bool,
    /// Source of knowledge of this relay. Relays that an operator configured are tried first, then
    /// those that the flow's source announced, those in the DNS, and anycast.
    pub origin: Origin,
    /// Rank within one origin; lower values are tried first.
    pub preference: u32,
}

/// Returns the two anycast addresses (RFC 7450, section 7.1).
pub fn anycast() -> [RankedRelay; 2] {
    [IpAddr::V6(ANYCAST_V6), IpAddr::V4(ANYCAST_V4)].map(|ip| RankedRelay {
        addr: SocketAddr::new(ip, PORT),
        discover: true,
        origin: Origin::Anycast,
        preference: 0,
    })
}

/// Returns the relays in the order of attempts: by origin, then by preference. Among equals, the
/// families alternate (RFC 8305, section 4), IPv6 first, and within a family the order is random,
/// which spreads gateways over relays (RFC 8777, section 2.3.2); it depends on `seed` alone.
///
/// An address that is known several times has its first place. Addresses that cannot be a relay's
/// are left out: unspecified, multicast, broadcast, without a port.
pub fn order(found: impl IntoIterator<Item = RankedRelay>, seed: u64) -> Vec<Candidate> {
    let mut found: Vec<_> = found.into_iter().filter_map(usable).collect();
    shuffle(&mut found, seed);
    // Stable: the random order remains among equals.
    found.sort_by_key(|f| (f.origin, f.preference));
    let mut candidates: Vec<Candidate> = Vec::with_capacity(found.len());
    let equal =
        |a: &RankedRelay, b: &RankedRelay| (a.origin, a.preference) == (b.origin, b.preference);
    for group in found.chunk_by(equal) {
        let mut v6 = group.iter().filter(|f| f.addr.is_ipv6());
        let mut v4 = group.iter().filter(|f| f.addr.is_ipv4());
        loop {
            let turn = [v6.next(), v4.next()];
            if turn == [None, None] {
                break;
            }
            for found in turn.into_iter().flatten() {
                if candidates.iter().all(|c| c.addr != found.addr) {
                    candidates.push(Candidate {
                        addr: found.addr,
                        discover: found.discover,
                        origin: found.origin,
                    });
                }
            }
        }
    }
    candidates
}

fn usable(mut found: RankedRelay) -> Option<RankedRelay> {
    let ip = found.addr.ip().to_canonical();
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if ip.is_unspecified() || ip.is_multicast() || broadcast || found.addr.port() == 0 {
        return None;
    }
    found.addr.set_ip(ip);
    Some(found)
}

/// Shuffles by Fisher and Yates, with the SplitMix generator.
fn shuffle(found: &mut [RankedRelay], seed: u64) {
    let mut state = seed;
    for last in (1..found.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        random ^= random >> 31;
        found.swap(last, (random % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn found(addr: &str, origin: Origin, preference: u32) -> RankedRelay {
        RankedRelay {
            addr: addr.parse().unwrap(),
            discover: false,
            origin,
            preference,
        }
    }

    fn addresses(found: &[RankedRelay], seed: u64) -> Vec<String> {
        let candidates = order(found.iter().copied(), seed);
        candidates.iter().map(|c| c.addr.to_string()).collect()
    }

    #[test]
    fn relays_are_ordered_by_origin_preference_and_alternating_family() {
        let mut all = vec![
            found("192.0.2.41:2268", Origin::Dns, 128),
            found("192.0.2.31:2268", Origin::Dns, 10),
            found("192.0.2.31:2268", Origin::Dns, 200),
            found("[2001:db8::31]:2268", Origin::Dns, 10),
            found("192.0.2.21:7000", Origin::Hint, 500),
            found("192.0.2.1:2268", Origin::Configured, 0),
            found("[2001:db8::2]:2268", Origin::Configured, 1),
        ];
        all.splice(0..0, anycast());
        for seed in 0..20 {
            assert_eq!(
                addresses(&all, seed),
                [
                    "192.0.2.1:2268",
                    "[2001:db8::2]:2268",
                    "192.0.2.21:7000",
                    "[2001:db8::31]:2268",
                    "192.0.2.31:2268",
                    "192.0.2.41:2268",
                    "[2001:3::1]:2268",
                    "192.52.193.1:2268",
                ]
            );
        }
        let last = *order(all, 1).last().unwrap();
        assert!(last.discover && last.origin == Origin::Anycast);
    }

    #[test]
    fn equal_relays_of_a_family_are_shuffled() {
        let all: Vec<_> = (1..=4)
            .map(|n| found(&format!("192.0.2.{n}:2268"), Origin::Dns, 10))
            .chain([found("[2001:db8::1]:2268", Origin::Dns, 10)])
            .collect();
        let mut orders = BTreeSet::new();
        for seed in 0..200 {
            let order = addresses(&all, seed);
            assert_eq!(order[0], "[2001:db8::1]:2268");
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 5);
            assert_eq!(order, addresses(&all, seed), "the same by the same seed");
            orders.insert(order);
        }
        assert!(orders.len() > 12, "only {} orders of 24", orders.len());
    }

    #[test]
    fn impossible_relay_addresses_are_left_out() {
        for addr in [
            "0.0.0.0:2268",
            "[::]:2268",
            "224.0.0.1:2268",
            "[ff02::1]:2268",
            "[::ffff:224.0.0.1]:2268",
            "255.255.255.255:2268",
            "192.0.2.1:0",
        ] {
            assert_eq!(order([found(addr, Origin::Hint, 0)], 0), [], "{addr}");
        }
        let mapped = [found("[::ffff:192.0.2.1]:2268", Origin::Hint, 0)];
        assert_eq!(addresses(&mapped, 0), ["192.0.2.1:2268"]);
    }
}
