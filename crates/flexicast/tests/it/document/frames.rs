//! Vectors of single frames on the flow.

use data_encoding::HEXLOWER;
use flexicast::frame::{self, Frame, Frames};

use crate::document::Vector;

/// The vector is the one STREAM frame, and `put_stream` makes it of `data` in a packet with room
/// for `room` bytes more than the vector has.
pub fn stream_frame(vector: &Vector, seq: u64, offset: u64, data: &[u8], ends: bool, room: usize) {
    let bytes = vector.hex();
    let mut out = Vec::new();
    let taken = frame::put_stream(&mut out, bytes.len() + room, seq, offset, data, ends).unwrap();
    assert_eq!(HEXLOWER.encode(&out), vector.text("hex"));
    let fin = ends && taken == data.len();
    let frames: Vec<_> = Frames::new(&bytes).map(Result::unwrap).collect();
    let data = &data[..taken];
    assert_eq!(
        frames,
        [Frame::Stream {
            seq,
            offset,
            data,
            fin
        }]
    );
}
