//! The Internet checksum (RFC 1071), whole and in steps (RFC 1624).

/// A checksum in progress. Pieces of even length may be added in any order; one of odd length comes
/// last.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// Adds bytes.
    ///
    /// Words are added in native byte order, since a ones' complement sum is the same in either
    /// order. Half words in four lanes compile to vector instructions; no lane can overflow below
    /// 16 GiB of input.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<32>();
        let mut lanes = [0_u64; 4];
        for block in blocks {
            let (words, _) = block.as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                let word = u64::from_ne_bytes(*word);
                *lane += (word & 0xffff_ffff) + (word >> 32);
            }
        }
        let (words, rest) = rest.as_chunks::<4>();
        let words = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)));
        let sum: u64 = lanes.into_iter().chain(words).sum();
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        Checksum(self.0 + sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds a 16-bit field.
    #[must_use]
    pub fn with_u16(self, value: u16) -> Self {
        Checksum(self.0 + u64::from(u16::from_ne_bytes(value.to_be_bytes())))
    }

    /// Adds a 32-bit field.
    #[must_use]
    pub fn with_u32(self, value: u32) -> Self {
        Checksum(self.0 + u64::from(u32::from_ne_bytes(value.to_be_bytes())))
    }

    /// Returns the checksum for the header; zero if everything was added and the checksum included
    /// in it is right.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::from_be(sum as u16)
    }
}

/// Returns the checksum after one 16-bit field changed from `old` to `new`.
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
