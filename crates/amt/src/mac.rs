//! The response MAC, by which a stateless relay recognises that a gateway received its Query (RFC
//! 7450, section 5.3.5).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ring::hmac;

/// A response MAC. It is opaque to the gateway, which repeats it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac(")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ")")
    }
}

/// A relay's secrets for MACs over address, port and nonce. A MAC is valid for at least one
/// lifetime and at most two.
///
/// A gateway may repeat its Update with one MAC for a whole query interval, so a lifetime must be
/// longer than that. For a gateway that never asks again (VLC), the relay remembers the MAC of its
/// tunnel.
pub struct Secrets {
    current: hmac::Key,
    /// Previous secret, and the end of its validity.
    previous: Option<(hmac::Key, Instant)>,
    lifetime: Duration,
    rotate: Instant,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("lifetime", &self.lifetime)
            .field("rotate", &self.rotate)
            .finish_non_exhaustive()
    }
}

fn key(seed: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, seed)
}

fn mac(key: &hmac::Key, address: SocketAddr, nonce: u32) -> Mac {
    // Of fixed length, so that no two inputs are alike; an IPv4 address is the same on any kind of
    // socket.
    let mut input = [0; 22];
    let octets = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    input[..16].copy_from_slice(&octets);
    input[16..18].copy_from_slice(&address.port().to_be_bytes());
    input[18..].copy_from_slice(&nonce.to_be_bytes());
    let tag = hmac::sign(key, &input);
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    Mac(mac)
}

/// Compares in constant time.
pub(crate) fn equal(a: &Mac, b: &Mac) -> bool {
    let different = a.0.iter().zip(b.0).fold(0, |bits, (a, b)| bits | (a ^ b));
    std::hint::black_box(different) == 0
}

impl Secrets {
    /// Default lifetime: two query intervals of 125 s and time for the answers.
    pub const LIFETIME: Duration = Duration::from_secs(270);

    /// Creates secrets from `seed`, which must be random.
    pub fn new(seed: [u8; 32], now: Instant) -> Self {
        Self::with_lifetime(seed, Self::LIFETIME, now)
    }

    /// Creates secrets like [`Secrets::new`], with another lifetime.
    pub fn with_lifetime(seed: [u8; 32], lifetime: Duration, now: Instant) -> Self {
        Secrets {
            current: key(&seed),
            previous: None,
            lifetime,
            rotate: now + lifetime,
        }
    }

    /// Returns the MAC for a Query to `address` (port included) that answers a Request with
    /// `nonce`.
    pub fn mac(&self, address: SocketAddr, nonce: u32) -> Mac {
        mac(&self.current, address, nonce)
    }

    /// Whether `found` is the MAC for this address, port and nonce, with the current or the
    /// previous secret. The time of the comparison with one secret does not depend on the result.
    pub fn check(&self, address: SocketAddr, nonce: u32, found: &Mac, now: Instant) -> bool {
        if equal(&mac(&self.current, address, nonce), found) {
            return true;
        }
        match &self.previous {
            Some((previous, until)) if now < *until => equal(&mac(previous, address, nonce), found),
            _ => false,
        }
    }

    /// Returns the time at which [`Secrets::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Instant {
        self.rotate
    }

    /// Rotates the secret if it is time, to one from `fresh`, which must be random.
    pub fn handle_timeout(&mut self, now: Instant, fresh: [u8; 32]) {
        if now < self.rotate {
            return;
        }
        let old = std::mem::replace(&mut self.current, key(&fresh));
        self.previous = Some((old, now + self.lifetime));
        self.rotate = now + self.lifetime;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: u32 = 0x1234_5678;

    fn gateway(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_mac_holds_for_its_address_port_and_nonce_only() {
        let now = Instant::now();
        let secrets = Secrets::new([7; 32], now);
        let at = gateway("192.0.2.1:4000");
        let mac = secrets.mac(at, NONCE);
        assert!(secrets.check(at, NONCE, &mac, now));
        assert!(secrets.check(gateway("[::ffff:192.0.2.1]:4000"), NONCE, &mac, now));
        assert!(!secrets.check(gateway("192.0.2.1:4001"), NONCE, &mac, now));
        assert!(!secrets.check(gateway("192.0.2.2:4000"), NONCE, &mac, now));
        assert!(!secrets.check(at, NONCE ^ 1, &mac, now));
        for bit in 0..48 {
            let mut forged = mac;
            forged.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!secrets.check(at, NONCE, &forged, now), "bit {bit}");
        }
        let other = Secrets::new([8; 32], now);
        assert!(!other.check(at, NONCE, &mac, now));
    }

    #[test]
    fn a_mac_outlives_one_rotation_and_not_two() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut secrets = Secrets::with_lifetime([1; 32], 10 * second, start);
        let at = gateway("[2001:db8::5]:2268");
        assert_eq!(secrets.poll_timeout(), start + 10 * second);
        secrets.handle_timeout(start + 9 * second, [9; 32]);
        let late = start + 9 * second;
        let mac = secrets.mac(at, NONCE);
        let rotated = start + 10 * second;
        secrets.handle_timeout(rotated, [2; 32]);
        assert_ne!(secrets.mac(at, NONCE), mac);
        assert!(secrets.check(at, NONCE, &mac, rotated));
        assert!(secrets.check(at, NONCE, &mac, late + 10 * second));
        // Even if handle_timeout was not called in time.
        assert!(!secrets.check(at, NONCE, &mac, rotated + 10 * second));
        secrets.handle_timeout(rotated + 10 * second, [3; 32]);
        assert!(!secrets.check(at, NONCE, &mac, rotated + 10 * second));
    }
}
