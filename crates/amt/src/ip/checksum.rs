//! The Internet checksum (RFC 1071), whole and in steps (RFC 1624).

/// A sum under way. Pieces of even length may be added in any order; one of odd length comes last.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// Adds bytes.
    ///
    /// Words are added as the machine reads them: the sum of ones' complement is the same in
    /// either byte order, and four bytes at a time become vector instructions.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        sum += u64::from(u32::from_ne_bytes(last));
        Checksum(self.0 + sum)
    }

    /// Adds a field of 16 bits.
    #[must_use]
    pub fn with_u16(self, value: u16) -> Self {
        self.with(&value.to_be_bytes())
    }

    /// Adds a field of 32 bits.
    #[must_use]
    pub fn with_u32(self, value: u32) -> Self {
        self.with(&value.to_be_bytes())
    }

    /// What goes into the header; zero where everything, checksum included, was added and is
    /// right.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::from_be(sum as u16)
    }
}

/// The checksum after one 16-bit field changed from `old` to `new`.
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
