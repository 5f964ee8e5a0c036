//! The payload of both sides, and the check that it arrived.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use ring::digest::{Context, Digest, SHA256, digest};

/// UDP payload of a full packet in bytes, on both sides.
pub const UDP_PAYLOAD: usize = 1200;

/// Packets that a sender makes in one go before it turns to something else, as for one train of
/// segmented datagrams. Both sides, and both get their acknowledgements at this pace.
pub const TRAIN: usize = 64;

/// The application hands its bytes over in pieces of this size, just before they are sent, so that
/// they are as warm in the cache on one side as on the other.
pub const PIECE: usize = 1 << 16;

/// The bytes that every receiver must get.
pub struct Parcel {
    bytes: Vec<u8>,
    digest: Digest,
}

impl Parcel {
    /// Bytes that no compression could shorten.
    pub fn new(len: usize) -> Self {
        let mut bytes = vec![0; len];
        SmallRng::seed_from_u64(7).fill_bytes(&mut bytes);
        Parcel {
            digest: digest(&SHA256, &bytes),
            bytes,
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The piece that begins at `offset`, freshly copied as if the application had just made it;
    /// `None` at the end.
    pub fn piece(&self, offset: usize) -> Option<Bytes> {
        self.piece_of(offset, PIECE)
    }

    /// The same in pieces of another size.
    pub fn piece_of(&self, offset: usize, size: usize) -> Option<Bytes> {
        let end = (offset + size).min(self.bytes.len());
        (offset < end).then(|| Bytes::copy_from_slice(&self.bytes[offset..end]))
    }

    /// Whether these are the bytes.
    pub fn arrived(&self, received: Context) -> bool {
        received.finish().as_ref() == self.digest.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_is_recognised_whole_and_only_then() {
        let parcel = Parcel::new(PIECE * 2 + 1);
        let pieces: Vec<Bytes> = [0, PIECE, PIECE * 2]
            .into_iter()
            .filter_map(|offset| parcel.piece(offset))
            .collect();
        assert_eq!(parcel.piece(parcel.len()), None);
        let mut all = Context::new(&SHA256);
        pieces.iter().for_each(|piece| all.update(piece));
        let mut first = Context::new(&SHA256);
        first.update(&pieces[0]);
        assert!(parcel.arrived(all) && !parcel.arrived(first));
    }
}
