//! Content of a packet: its number, its send time, and bytes derived from the number.

use super::now_ns;

/// The smallest packet, in bytes: the number and the time.
pub const SMALLEST: usize = 16;

/// Makes packets and checks them.
#[derive(Debug, Clone)]
pub struct Cargo {
    pattern: Vec<u8>,
}

/// A packet that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedPacket {
    /// Its number, from 0.
    pub number: u64,
    /// Send time, in ns of the machine's clock.
    pub sent_ns: u64,
}

impl Cargo {
    /// For packets of so many bytes.
    pub fn new(size: usize) -> Cargo {
        // Any bytes that are not all the same would do.
        let rest = size.max(SMALLEST) - SMALLEST;
        let byte = |place: usize| u8::try_from((place * 7 + 3) % 251).unwrap_or(0);
        Cargo {
            pattern: (0..rest).map(byte).collect(),
        }
    }

    /// Returns the number of bytes a packet has.
    pub fn size(&self) -> usize {
        self.pattern.len() + SMALLEST
    }

    /// A train of so many packets, still without numbers.
    pub fn train(&self, packets: usize) -> Vec<u8> {
        let mut train = Vec::with_capacity(packets * self.size());
        for _ in 0..packets {
            train.extend_from_slice(&[0; SMALLEST]);
            train.extend_from_slice(&self.pattern);
        }
        train
    }

    /// Gives the packets of a train their numbers, from `first` on, and the time.
    pub fn number(&self, train: &mut [u8], first: u64) {
        let now = now_ns().to_be_bytes();
        for (packet, number) in train.chunks_mut(self.size()).zip(first..) {
            if let Some((head, _)) = packet.split_first_chunk_mut::<SMALLEST>() {
                let (a, b) = head.split_at_mut(8);
                a.copy_from_slice(&number.to_be_bytes());
                b.copy_from_slice(&now);
            }
        }
    }

    /// Reads a packet; `None` if it is not what was sent.
    pub fn check(&self, packet: &[u8]) -> Option<CheckedPacket> {
        let (number, rest) = packet.split_first_chunk::<8>()?;
        let (sent, rest) = rest.split_first_chunk::<8>()?;
        (rest == self.pattern).then(|| CheckedPacket {
            number: u64::from_be_bytes(*number),
            sent_ns: u64::from_be_bytes(*sent),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_known_again_and_a_changed_one_is_not() {
        let cargo = Cargo::new(100);
        let mut train = cargo.train(3);
        assert_eq!(train.len(), 300);
        cargo.number(&mut train, 7);
        let numbers: Vec<u64> = train
            .chunks(100)
            .map(|packet| cargo.check(packet).unwrap().number)
            .collect();
        assert_eq!(numbers, [7, 8, 9]);
        train[50] ^= 1;
        assert_eq!(cargo.check(&train[..100]), None);
        assert_eq!(cargo.check(&train[100..199]), None);
    }
}
