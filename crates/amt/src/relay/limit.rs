//! Rate limits per address, in tables of fixed size.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Sets of the table. With [`WAYS`] slots each it remembers 16,384 addresses in 384 KiB.
const SETS: usize = 4096;

/// Slots of a set.
const WAYS: usize = 4;

/// Units per token.
const TOKEN: u64 = 1_000;

/// Token buckets of the addresses that asked lately.
///
/// An address whose slot was taken by others starts with a full bucket: the bound on memory takes
/// precedence over the rate limit, which an attacker with that many addresses evades anyway.
pub(super) struct Limiter {
    key: u64,
    per_second: u64,
    start: Instant,
    sets: Vec<[Slot; WAYS]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Hash of the address; 0 for a free slot.
    tag: u64,
    /// Thousandths of requests that are left.
    left: u64,
    /// Milliseconds since the start.
    at: u64,
}

impl Limiter {
    pub(super) fn new(key: u64, per_second: u32, start: Instant) -> Self {
        Self {
            key,
            per_second: u64::from(per_second.max(1)),
            start,
            sets: vec![[Slot::default(); WAYS]; SETS],
        }
    }

    /// Whether a request of `ip` is within its limit; charges it.
    pub(super) fn admit(&mut self, ip: IpAddr, now: Instant) -> bool {
        let tag = tag(self.key, &block(ip));
        let now = u64::try_from(now.saturating_duration_since(self.start).as_millis())
            .unwrap_or(u64::MAX);
        let burst = self.per_second * 2 * TOKEN;
        let set = usize::try_from(tag % SETS as u64).unwrap_or_default();
        let Some(set) = self.sets.get_mut(set) else {
            return false;
        };
        let known = set.iter().position(|slot| slot.tag == tag);
        // The address that has been silent for longest makes room.
        let oldest = || {
            let by_age = set.iter().enumerate().min_by_key(|(_, slot)| slot.at);
            by_age.map_or(0, |(at, _)| at)
        };
        let at = known.unwrap_or_else(oldest);
        let Some(slot) = set.get_mut(at) else {
            return false;
        };
        if slot.tag != tag {
            *slot = Slot {
                tag,
                left: burst,
                at: now,
            };
        }
        let earned = now.saturating_sub(slot.at).saturating_mul(self.per_second);
        slot.left = slot.left.saturating_add(earned).min(burst);
        slot.at = now;
        match slot.left.checked_sub(TOKEN) {
            Some(left) => {
                slot.left = left;
                true
            }
            None => false,
        }
    }
}

/// Returns the block that counts as one address: an IPv6 host usually has all of its /64.
fn block(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
        v4 => v4,
    }
}

/// Returns a hash that is never 0; without `key`, colliding addresses cannot be chosen.
fn tag(key: u64, what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    what.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Recent Queries with the gateway's address that have not been answered.
pub(super) struct PendingQueries {
    key: u64,
    slots: Vec<Option<PendingQuery>>,
}

#[derive(Debug, Clone, Copy)]
struct PendingQuery {
    tag: u64,
    at: Instant,
    /// Whether the gateway asked again meanwhile.
    again: bool,
}

/// Number of Queries remembered.
const MAX_PENDING: usize = 4096;

/// Time after which an unanswered Query is forgotten: the gateway has gone, and its port may belong
/// to another one.
const ANSWER_TIME: Duration = Duration::from_secs(120);

impl PendingQueries {
    pub(super) fn new(key: u64) -> Self {
        Self {
            key,
            slots: vec![None; MAX_PENDING],
        }
    }

    /// Notes a Query to `gateway` (true: of MLD); returns whether an earlier one went unanswered.
    pub(super) fn ask(&mut self, gateway: (SocketAddr, bool), now: Instant) -> bool {
        let tag = tag(self.key, &gateway);
        let Some(slot) = self.slot(tag) else {
            return false;
        };
        match slot {
            Some(asked)
                if asked.tag == tag && now.saturating_duration_since(asked.at) < ANSWER_TIME =>
            {
                asked.again = true;
            }
            _ => {
                *slot = Some(PendingQuery {
                    tag,
                    at: now,
                    again: false,
                });
            }
        }
        slot.is_some_and(|asked| asked.again)
    }

    /// Notes an answer; returns whether only a Query without address brought it.
    pub(super) fn answered(&mut self, gateway: (SocketAddr, bool)) -> bool {
        let tag = tag(self.key, &gateway);
        let slot = self.slot(tag);
        let asked = slot.and_then(|slot| slot.take_if(|asked| asked.tag == tag));
        asked.is_some_and(|asked| asked.again)
    }

    fn slot(&mut self, tag: u64) -> Option<&mut Option<PendingQuery>> {
        let at = usize::try_from(tag % MAX_PENDING as u64).ok()?;
        self.slots.get_mut(at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_gets_its_rate_and_no_more() {
        let start = Instant::now();
        let mut limiter = Limiter::new(1, 10, start);
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        let admitted = (0..1000).filter(|_| limiter.admit(ip, start)).count();
        assert_eq!(admitted, 20);
        let later = start + Duration::from_secs(1);
        let admitted = (0..1000).filter(|_| limiter.admit(ip, later)).count();
        assert_eq!(admitted, 10);
        assert!(limiter.admit("192.0.2.2".parse().unwrap(), later));
    }

    #[test]
    fn a_64_block_of_ipv6_is_one_address() {
        let start = Instant::now();
        let mut limiter = Limiter::new(1, 1, start);
        let admitted = (0..1000_u128)
            .map(|host| IpAddr::from(Ipv6Addr::from((0x2001_0db8_u128 << 96) | host)))
            .filter(|ip| limiter.admit(*ip, start))
            .count();
        assert_eq!(admitted, 2);
        assert!(limiter.admit("2001:db8:1::1".parse().unwrap(), start));
    }

    #[test]
    fn the_table_never_grows() {
        let start = Instant::now();
        let mut limiter = Limiter::new(7, 1, start);
        for n in 0..200_000_u32 {
            limiter.admit(std::net::Ipv4Addr::from(n).into(), start);
        }
        assert_eq!(limiter.sets.len(), SETS);
        assert_eq!(limiter.sets.capacity(), SETS);
    }
}
