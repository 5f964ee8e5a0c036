//! The updates of one channel as they were first delivered, with which all receivers' are compared.

use std::collections::BTreeMap;

use bytes::Bytes;
use feed::payload::{PayloadError, decode};
use uuid::Uuid;

/// Updates that are remembered, the newest.
const KEPT: usize = 8192;
/// Bytes of such updates.
const KEPT_BYTES: usize = 64 << 20;

#[derive(Debug)]
struct Entry {
    encoded: Bytes,
    stored_ms: Option<u64>,
    valid: bool,
}

/// Comparison of an update with the first one of that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The same bytes. Holds the time when the source stored the update, Unix time in ms, unless it
    /// is of a later version, which this one cannot read.
    Same(Option<u64>),
    /// Other bytes, or bytes that are no update of this number.
    Wrong,
    /// Older than what is remembered.
    Forgotten,
}

/// First deliveries of a channel's updates.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<(Uuid, u64), Entry>,
    bytes: usize,
    /// Lowest number that can be compared, by incarnation.
    floor: BTreeMap<Uuid, u64>,
}

impl Ledger {
    /// Compares an update with the first one of its number, which is decoded, as every receiver that
    /// writes files does.
    pub fn compare(&mut self, incarnation: Uuid, seq: u64, encoded: &Bytes) -> Comparison {
        let floor = self.floor.get(&incarnation).copied().unwrap_or_default();
        if seq < floor {
            return Comparison::Forgotten;
        }
        let entry = self.entries.entry((incarnation, seq)).or_insert_with(|| {
            let (valid, stored_ms) = match decode(encoded) {
                Ok(update) => {
                    let ms = u64::try_from(update.time.as_millisecond()).ok();
                    let is_it = (update.incarnation, update.seq) == (incarnation, seq);
                    (is_it, ms)
                }
                Err(PayloadError::UnknownEncoding(_)) => (true, None),
                Err(_) => (false, None),
            };
            self.bytes += encoded.len();
            Entry {
                encoded: encoded.clone(),
                stored_ms,
                valid,
            }
        });
        let comparison = match entry.valid && entry.encoded == *encoded {
            true => Comparison::Same(entry.stored_ms),
            false => Comparison::Wrong,
        };
        while self.entries.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(((incarnation, seq), oldest)) = self.entries.pop_first() else {
                break;
            };
            self.bytes -= oldest.encoded.len();
            self.floor.insert(incarnation, seq + 1);
        }
        comparison
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use feed::payload::encode;
    use feed::{Entry, Kind};

    use super::*;

    const A: Uuid = Uuid::from_u128(1);

    fn update(seq: u64, title: &str) -> Vec<u8> {
        let entry = Entry {
            id: format!("urn:{seq}"),
            title: Some(title.to_owned()),
            ..Entry::default()
        };
        let time = jiff::Timestamp::from_millisecond(1_234_567).unwrap();
        encode(&entry, Kind::Created, "https://a.example/", A, seq, time)
    }

    fn compare(ledger: &mut Ledger, seq: u64, encoded: &[u8]) -> Comparison {
        ledger.compare(A, seq, &Bytes::copy_from_slice(encoded))
    }

    #[test]
    fn other_bytes_of_one_number_are_wrong() {
        let mut ledger = Ledger::default();
        let (one, other) = (update(1, "one"), update(1, "other"));
        for _ in 0..2 {
            assert_eq!(
                compare(&mut ledger, 1, &one),
                Comparison::Same(Some(1_234_567))
            );
        }
        assert_eq!(compare(&mut ledger, 1, &other), Comparison::Wrong);
    }

    #[test]
    fn what_is_no_update_of_its_number_is_wrong() {
        let mut ledger = Ledger::default();
        assert_eq!(compare(&mut ledger, 1, &update(2, "x")), Comparison::Wrong);
        assert_eq!(compare(&mut ledger, 2, b""), Comparison::Wrong);
        // A later version's encoding.
        assert_eq!(compare(&mut ledger, 3, &[250, 1]), Comparison::Same(None));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut ledger = Ledger::default();
        for seq in 1..=KEPT as u64 + 3 {
            compare(&mut ledger, seq, &[250, 1]);
        }
        assert_eq!(ledger.entries.len(), KEPT);
        assert_eq!(compare(&mut ledger, 3, &[250, 2]), Comparison::Forgotten);
        assert_eq!(compare(&mut ledger, 4, &[250, 2]), Comparison::Wrong);
        let large = vec![250; KEPT_BYTES];
        compare(&mut ledger, 1 << 40, &large);
        assert_eq!((ledger.entries.len(), ledger.bytes), (1, KEPT_BYTES));
    }
}
