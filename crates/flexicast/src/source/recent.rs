//! The newest encoded updates, so that live delivery and repairs do not read the store.

use std::collections::VecDeque;

use bytes::Bytes;

const MAX_UPDATES: usize = 1024;
const MAX_BYTES: usize = 32 << 20;

/// A window of consecutive updates that ends at the head.
#[derive(Debug)]
pub(super) struct Recent {
    first: u64,
    updates: VecDeque<Bytes>,
    bytes: usize,
}

impl Recent {
    /// Empty; the next update is `next`.
    pub(super) fn new(next: u64) -> Self {
        Recent {
            first: next,
            updates: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn push(&mut self, seq: u64, encoded: Bytes) {
        if seq != self.first + self.updates.len() as u64 {
            *self = Recent::new(seq);
        }
        self.bytes += encoded.len();
        self.updates.push_back(encoded);
        while self.updates.len() > MAX_UPDATES || self.bytes > MAX_BYTES {
            let Some(old) = self.updates.pop_front() else {
                break;
            };
            self.bytes -= old.len();
            self.first += 1;
        }
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Bytes> {
        self.updates
            .get(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_within_both_bounds() {
        let mut recent = Recent::new(5);
        (5..5000).for_each(|seq| recent.push(seq, Bytes::from(seq.to_string())));
        assert_eq!(recent.get(4999), Some(&Bytes::from("4999")));
        assert_eq!(
            (recent.get(5000), recent.get(4999 - MAX_UPDATES as u64)),
            (None, None)
        );
        let big = Bytes::from(vec![0; MAX_BYTES / 3]);
        (5000..5010).for_each(|seq| recent.push(seq, big.clone()));
        assert!(recent.bytes <= MAX_BYTES && recent.get(5009).is_some());
    }
}
