//! Tokens of Retry packets (RFC 9000 section 8.1.2): a client that returns one receives at its
//! claimed address. The source keeps no state until then.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ring::hmac;

use crate::Error;
use crate::config::{CID_LEN, random};

/// A token is good for so long.
const LIFETIME: Duration = Duration::from_secs(15);
const TAG: usize = 32;
const TIME: usize = 8;
/// The longest connection ID of QUIC version 1.
const MAX_ID: usize = 20;

/// Makes and checks tokens: the time, the receiver's original destination connection ID, and an
/// HMAC-SHA-256 over both, its address, and the connection ID given by the Retry.
pub(crate) struct Retries {
    key: hmac::Key,
    start: Instant,
}

impl Retries {
    /// With a key of its own: tokens of an earlier life are not taken.
    pub(crate) fn new(now: Instant) -> Result<Self, Error> {
        Ok(Retries {
            key: hmac::Key::new(hmac::HMAC_SHA256, &random::<32>()?),
            start: now,
        })
    }

    fn signed(time: &[u8], original: &[u8], id: &[u8], from: SocketAddr) -> Vec<u8> {
        let mut text = Vec::with_capacity(96);
        text.extend_from_slice(time);
        for part in [original, id] {
            text.push(part.len() as u8);
            text.extend_from_slice(part);
        }
        match from.ip().to_canonical() {
            IpAddr::V4(ip) => text.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => text.extend_from_slice(&ip.octets()),
        }
        text.extend_from_slice(&from.port().to_be_bytes());
        text
    }

    /// Returns the token for a receiver at `from` with the original connection ID `original` and
    /// the new one `id`.
    pub(crate) fn mint(
        &self,
        original: &[u8],
        id: &[u8; CID_LEN],
        from: SocketAddr,
        now: Instant,
    ) -> Vec<u8> {
        let age = now.saturating_duration_since(self.start).as_millis() as u64;
        let time = age.to_be_bytes();
        let text = Self::signed(&time, original, id, from);
        let mut token = hmac::sign(&self.key, &text).as_ref().to_vec();
        token.extend_from_slice(&time);
        token.extend_from_slice(original);
        token
    }

    /// The connection ID that the receiver began with, if the token was made for this address and
    /// `id` and is not too old.
    pub(crate) fn check<'t>(
        &self,
        token: &'t [u8],
        id: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<&'t [u8]> {
        let (tag, rest) = token.split_at_checked(TAG)?;
        let (time, original) = rest.split_at_checked(TIME)?;
        if original.len() > MAX_ID || id.len() > MAX_ID {
            return None;
        }
        hmac::verify(&self.key, &Self::signed(time, original, id, from), tag).ok()?;
        let made = Duration::from_millis(u64::from_be_bytes(time.try_into().ok()?));
        let age = now.saturating_duration_since(self.start);
        (age.saturating_sub(made) <= LIFETIME).then_some(original)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_token_is_good_for_its_address_its_id_and_its_time() {
        let now = Instant::now();
        let retries = Retries::new(now).unwrap();
        let from: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:4000".parse().unwrap();
        let (original, id) = ([7; 8], [9; CID_LEN]);
        let token = retries.mint(&original, &id, from, now);
        let later = now + Duration::from_secs(14);
        assert_eq!(retries.check(&token, &id, from, later), Some(&original[..]));
        assert_eq!(
            retries.check(&token, &id, mapped, later),
            Some(&original[..]),
            "the same address in another spelling"
        );
        let other: SocketAddr = "192.0.2.7:4001".parse().unwrap();
        assert_eq!(retries.check(&token, &id, other, later), None);
        assert_eq!(retries.check(&token, &[8; CID_LEN], from, later), None);
        let late = now + Duration::from_secs(16);
        assert_eq!(retries.check(&token, &id, from, late), None);
        for i in 0..token.len() {
            let mut forged = token.clone();
            forged[i] ^= 1;
            assert_eq!(retries.check(&forged, &id, from, later), None, "byte {i}");
            assert_eq!(retries.check(&token[..i], &id, from, later), None);
        }
        let another = Retries::new(now).unwrap();
        assert_eq!(another.check(&token, &id, from, later), None);
    }
}
