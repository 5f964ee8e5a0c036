//! Packets on their way out, cut into trains.

/// Most segments of one train that every kernel with GSO takes (`UDP_MAX_SEGMENTS`).
const MOST_SEGMENTS: usize = 64;

/// Most payload bytes of one train: a UDP payload over IPv6, the smaller of the two families.
const MOST_BYTES: usize = 65_487;

/// Returns the number of datagrams of `segment` bytes in the longest train.
pub(crate) fn most_segments(segment: usize) -> usize {
    (MOST_BYTES / segment.max(1)).clamp(1, MOST_SEGMENTS)
}

/// Packets that lie one after the other, to be cut into trains of equal packets, the last of which
/// may be shorter.
#[derive(Debug, Clone, Default)]
pub struct Packets {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Packets {
    /// Adds a packet.
    pub fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.lengths.push(packet.len());
    }

    /// Adds the bytes that `make` appends as a packet, which are not copied. Returns what it
    /// returns: whether it made one.
    pub fn push_with(&mut self, make: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let start = self.bytes.len();
        let made = make(&mut self.bytes);
        if made {
            self.lengths.push(self.bytes.len().saturating_sub(start));
        } else {
            self.bytes.truncate(start);
        }
        made
    }

    /// Adds all packets of another buffer.
    pub fn append(&mut self, other: &Packets) {
        self.bytes.extend_from_slice(&other.bytes);
        self.lengths.extend_from_slice(&other.lengths);
    }

    /// Removes all packets and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.clear();
    }

    /// Returns the number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there is no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Returns the trains in order: their bytes, and the size of a packet where there is more than
    /// one. Each train fits one system call (64 packets, 64 KiB).
    pub fn trains(&self) -> impl Iterator<Item = (&[u8], Option<usize>)> {
        let (mut bytes, mut lengths) = (self.bytes.as_slice(), self.lengths.as_slice());
        std::iter::from_fn(move || {
            let size = *lengths.first()?;
            let most = most_segments(size);
            let run = lengths.iter().take(most).take_while(|len| **len == size);
            let equal = run.count();
            let shorter = equal < most && lengths.get(equal).is_some_and(|len| *len < size);
            let packets = equal + usize::from(shorter);
            let (taken, rest) = lengths.split_at(packets);
            let (train, after) = bytes.split_at(taken.iter().sum());
            (bytes, lengths) = (after, rest);
            Some((train, (packets > 1).then_some(size)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(lengths: impl IntoIterator<Item = usize>) -> Packets {
        let mut packets = Packets::default();
        for len in lengths {
            packets.push(&vec![len as u8; len]);
        }
        packets
    }

    fn cut(packets: &Packets) -> Vec<(usize, Option<usize>)> {
        let trains = packets.trains();
        trains.map(|(bytes, size)| (bytes.len(), size)).collect()
    }

    #[test]
    fn equal_packets_ride_together_and_a_shorter_one_ends_a_train() {
        let mut packets = packets([5, 5, 3, 5, 7, 7, 2]);
        assert_eq!(
            cut(&packets),
            [(13, Some(5)), (5, None), (16, Some(7))],
            "a longer packet begins a train of its own"
        );
        packets.clear();
        assert!(packets.is_empty() && cut(&packets).is_empty());
    }

    #[test]
    fn a_train_fits_one_system_call() {
        let small = packets([10; 65]);
        assert_eq!(cut(&small), [(640, Some(10)), (10, None)]);
        let full = packets(std::iter::repeat_n(1197, 60).chain([100]));
        assert_eq!(
            cut(&full),
            [(54 * 1197, Some(1197)), (6 * 1197 + 100, Some(1197))]
        );
        let exact = packets(std::iter::repeat_n(10, 64).chain([9]));
        assert_eq!(cut(&exact), [(640, Some(10)), (9, None)]);
    }

    #[test]
    fn a_packet_is_made_in_its_place() {
        let mut packets = packets([5, 5]);
        let append = |more: &[u8], made| {
            let more = more.to_vec();
            move |out: &mut Vec<u8>| {
                out.extend(more);
                made
            }
        };
        assert!(packets.push_with(append(&[7; 4], true)));
        assert!(!packets.push_with(append(&[9; 3], false)), "none was due");
        let train: Vec<u8> = [5; 10].into_iter().chain([7; 4]).collect();
        let trains: Vec<_> = packets.trains().collect();
        assert_eq!(trains, [(&train[..], Some(5))]);
    }

    #[test]
    fn buffers_are_joined_in_order() {
        let mut all = packets([5, 5]);
        all.append(&packets([5, 3]));
        assert_eq!((all.len(), cut(&all)), (4, vec![(18, Some(5))]));
    }
}
