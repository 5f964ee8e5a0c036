//! Nonces and jitter from one seed.

use std::time::Duration;

use ring::hmac;

/// A stream of numbers that is unpredictable without the seed: with a guessed nonce, an attacker
/// could answer in place of a relay.
pub(super) struct Entropy {
    key: hmac::Key,
    blocks: u64,
    /// Rest of the last block.
    left: Vec<u8>,
}

impl Entropy {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &seed),
            blocks: 0,
            left: Vec::new(),
        }
    }

    fn byte(&mut self) -> u8 {
        if let Some(byte) = self.left.pop() {
            return byte;
        }
        let block = hmac::sign(&self.key, &self.blocks.to_be_bytes());
        self.blocks += 1;
        self.left.extend_from_slice(block.as_ref());
        self.left.pop().unwrap_or_default()
    }

    /// Draws a number of 32 bits.
    pub(super) fn number(&mut self) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Draws a duration between `low` and `high` times `of`.
    pub(super) fn around(&mut self, of: Duration, low: f64, high: f64) -> Duration {
        let place = f64::from(self.number()) / f64::from(u32::MAX);
        of.mul_f64(low + (high - low) * place)
    }
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entropy").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_stream() {
        let stream = |seed: u8| {
            let mut entropy = Entropy::new([seed; 32]);
            (0..100).map(|_| entropy.number()).collect::<Vec<_>>()
        };
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
        let mut numbers = stream(1);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100, "no nonce comes twice in a while");
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        let mut entropy = Entropy::new([0; 32]);
        let second = Duration::from_secs(1);
        let all: Vec<_> = (0..200).map(|_| entropy.around(second, 0.5, 1.0)).collect();
        assert!(all.iter().all(|d| (second / 2..=second).contains(d)));
        assert!(all.iter().any(|d| *d < second * 6 / 10));
        assert!(all.iter().any(|d| *d > second * 9 / 10));
    }
}
