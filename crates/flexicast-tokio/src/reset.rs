//! Connection IDs of the source and stateless resets (RFC 9000 section 10.3): receivers learn at
//! once that the source restarted.

use std::time::Instant;

use flexicast::pace::TokenBucket;
use ring::hmac;

use crate::Error;
use crate::config::{CID_LEN, random};

/// Resets per second, and Version Negotiations per second.
const ANSWERS_PER_SECOND: u64 = 200;
/// The smallest packet that RFC 9000 section 10.3 lets look like a reset: 5 unpredictable bytes and
/// the token.
const MIN_RESET: usize = 21;
const MAX_RESET: usize = 42;
const TOKEN_LEN: usize = 16;

/// Makes the connection IDs of a shard and the reset token that belongs to each: HMAC-SHA-256 of a
/// key that survives restarts.
#[derive(Clone)]
pub(crate) struct ConnectionIds {
    key: hmac::Key,
    shard: u8,
}

impl ConnectionIds {
    pub(crate) fn new(key: &[u8; 32], shard: u8) -> Self {
        ConnectionIds {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            shard,
        }
    }

    /// Returns the number of the shard.
    pub(crate) fn shard(&self) -> u8 {
        self.shard
    }

    /// Makes a fresh connection ID: the shard, then random bytes.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn make(&self) -> Result<[u8; CID_LEN], Error> {
        let mut id: [u8; CID_LEN] = random()?;
        id[0] = self.shard;
        Ok(id)
    }

    /// Returns the stateless reset token of a connection ID of any shard.
    pub(crate) fn token(&self, id: &[u8]) -> [u8; TOKEN_LEN] {
        let mut token = [0; TOKEN_LEN];
        token.copy_from_slice(&hmac::sign(&self.key, id).as_ref()[..TOKEN_LEN]);
        token
    }
}

/// Limits of the answers to packets of no connection.
pub(crate) struct Resets {
    bucket: TokenBucket,
    /// A limit of its own: anybody provokes Version Negotiations with made-up addresses,
    /// and receivers wait for resets after a restart.
    negotiations: TokenBucket,
}

/// Decision about a packet that belongs to no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResetDecision {
    /// Send this.
    Reset(Vec<u8>),
    /// Beyond the limit of answers.
    TooMany,
    /// Too small to be answered.
    NotAPacket,
}

impl Resets {
    pub(crate) fn new() -> Self {
        // One token per answer: eight "bits" each, so that the bucket counts packets.
        let bucket = || TokenBucket::new(ANSWERS_PER_SECOND * 8, ANSWERS_PER_SECOND as usize);
        Resets {
            bucket: bucket(),
            negotiations: bucket(),
        }
    }

    /// Takes the turn of a Version Negotiation; `false` if none is left.
    pub(crate) fn may_negotiate(&mut self, now: Instant) -> bool {
        take_turn(&mut self.negotiations, now)
    }

    /// The answer to a short-header packet for a connection that this source does not have: always
    /// smaller than what provoked it, and not too many per second.
    pub(crate) fn answer(
        &mut self,
        ids: &ConnectionIds,
        packet: &[u8],
        now: Instant,
    ) -> ResetDecision {
        let len = packet.len().saturating_sub(1).min(MAX_RESET);
        let id = packet.get(1..1 + CID_LEN);
        let Some(id) = id.filter(|_| len >= MIN_RESET) else {
            return ResetDecision::NotAPacket;
        };
        if !take_turn(&mut self.bucket, now) {
            return ResetDecision::TooMany;
        }
        let Ok(random) = random::<MAX_RESET>() else {
            return ResetDecision::TooMany;
        };
        let mut out = random[..len].to_vec();
        out[0] = 0x40 | (out[0] & 0x3f);
        out[len - TOKEN_LEN..].copy_from_slice(&ids.token(id));
        ResetDecision::Reset(out)
    }
}

/// Takes a token; `false` if none is left.
fn take_turn(bucket: &mut TokenBucket, now: Instant) -> bool {
    let is_free = bucket.ready_at(now) <= now;
    if is_free {
        bucket.take(1);
    }
    is_free
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn resets_are_smaller_rate_limited_and_survive_restarts() {
        let now = Instant::now();
        let (mut resets, ids) = (Resets::new(), ConnectionIds::new(&[7; 32], 3));
        let id = ids.make().unwrap();
        assert_eq!(id[0], 3);
        let mut packet = vec![0x41];
        packet.extend_from_slice(&id);
        packet.resize(60, 9);
        let ResetDecision::Reset(reset) = resets.answer(&ids, &packet, now) else {
            panic!("no answer");
        };
        assert!(reset.len() < packet.len() && reset[0] & 0xc0 == 0x40);
        let reborn = ConnectionIds::new(&[7; 32], 0);
        assert_eq!(reset[reset.len() - 16..], reborn.token(&id));
        assert_eq!(
            resets.answer(&ids, &packet[..20], now),
            ResetDecision::NotAPacket,
            "too small to be answered"
        );
        let answered = (0..10_000)
            .filter(|_| matches!(resets.answer(&ids, &packet, now), ResetDecision::Reset(_)))
            .count();
        assert!(answered <= ANSWERS_PER_SECOND as usize, "{answered}");
        assert_eq!(resets.answer(&ids, &packet, now), ResetDecision::TooMany);
    }

    #[test]
    fn negotiations_take_no_turn_of_a_reset() {
        let now = Instant::now();
        let (mut resets, ids) = (Resets::new(), ConnectionIds::new(&[7; 32], 0));
        let answered = (0..10_000).filter(|_| resets.may_negotiate(now)).count();
        assert!((1..=ANSWERS_PER_SECOND as usize).contains(&answered));
        let packet = [0x41; 60];
        assert!(matches!(
            resets.answer(&ids, &packet, now),
            ResetDecision::Reset(_)
        ));
    }
}
