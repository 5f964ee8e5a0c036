//! The store of one channel: what was published, what it still remembers, and how it answers.

use bytes::Bytes;
use flexicast::FlowId;
use flexicast::protect::FlowSecret;
use flexicast::receiver::Validity;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

/// The updates of one channel.
#[derive(Debug)]
pub(crate) struct Store {
    /// Of the channel.
    pub(crate) name: String,
    pub(crate) incarnation: Uuid,
    /// Update `seq` is at `seq - 1`. All of them are kept, to compare with; the store itself has
    /// forgotten those before `first`.
    updates: Vec<Bytes>,
    pub(crate) first: u64,
    /// Last update announced to the source.
    pub(crate) published: u64,
}

impl Store {
    /// Length from which updates carry a checksum.
    pub(crate) const LEAST_CHECKED: usize = 12;

    /// Whether these bytes are of an update that some store made with this number.
    pub(crate) fn is_update(seq: u64, bytes: &[u8]) -> Validity {
        let valid = bytes.len() >= Self::LEAST_CHECKED && {
            let (rest, sum) = bytes.split_at(bytes.len() - 8);
            sum == checksum(seq, rest)
        };
        valid.into()
    }

    pub(crate) fn new(name: String, rng: &mut SmallRng) -> Self {
        Store {
            name,
            incarnation: Uuid::from_u128(rng.random()),
            updates: Vec::new(),
            first: 1,
            published: 0,
        }
    }

    /// Stores a new update; its bytes follow from incarnation and `seq`.
    pub(crate) fn push(&mut self, len: usize) {
        let seq = self.head() + 1;
        let mut bytes = vec![0; len];
        let seed = self.incarnation.as_u128() as u64 ^ seq;
        SmallRng::seed_from_u64(seed).fill(&mut bytes[..]);
        if len >= Self::LEAST_CHECKED {
            let (rest, sum) = bytes.split_at_mut(len - 8);
            sum.copy_from_slice(&checksum(seq, rest));
        }
        self.updates.push(bytes.into());
    }

    pub(crate) fn head(&self) -> u64 {
        self.updates.len() as u64
    }

    /// Length of the longest update in bytes.
    pub(crate) fn longest(&self) -> u64 {
        self.updates
            .iter()
            .map(|u| u.len() as u64)
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&Bytes> {
        let index = usize::try_from(seq.checked_sub(1)?).ok()?;
        self.updates.get(index)
    }

    /// Forgets all but the last `keep`.
    pub(crate) fn retain(&mut self, keep: u64) {
        self.first = self.first.max((self.head() + 1).saturating_sub(keep));
    }

    /// Returns the updates from `from` on.
    pub(crate) fn query(&self, from: u64, limit: usize) -> Vec<(u64, Bytes)> {
        let from = from.max(self.first).max(1);
        let updates = self.updates.iter().skip(from as usize - 1).take(limit);
        updates
            .enumerate()
            .map(|(i, bytes)| (from + i as u64, bytes.clone()))
            .collect()
    }
}

/// FNV-1a.
fn checksum(seq: u64, bytes: &[u8]) -> [u8; 8] {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let start = 0xcbf2_9ce4_8422_2325 ^ seq;
    bytes.iter().fold(start, step).to_be_bytes()
}

/// A name and a secret that no flow had before.
pub(crate) fn fresh(rng: &mut SmallRng) -> (FlowId, FlowSecret) {
    (FlowId(rng.random()), secret(rng))
}

/// A secret that no epoch had before.
pub(crate) fn secret(rng: &mut SmallRng) -> FlowSecret {
    let mut secret = FlowSecret::default();
    rng.fill(&mut secret.as_mut_bytes()[..]);
    secret
}
