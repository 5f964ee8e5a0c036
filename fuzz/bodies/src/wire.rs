//! The codecs of the transport: control stream, flow frames, acknowledgements, unicast streams.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use flexicast::ack::{AckTracker, MAX_RANGES, PathAck};
use flexicast::control::{Control, ControlReader};
use flexicast::frame::{Frame, Frames, put_stream, put_stream_signature};
use flexicast::unicast::{Piece, StreamReader};
use flexicast::{MAX_UPDATE, PathId};

use crate::choice;

/// The control stream: however the bytes are cut, the same frames come out, and each survives being
/// written and read again.
pub fn control(data: &[u8]) {
    let (piece, data) = choice(data);
    let whole = read_control(data, data.len().max(1));
    assert_eq!(read_control(data, usize::from(piece).max(1)), whole);
    for frame in whole.0 {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert_eq!(read_control(&bytes, bytes.len()), (vec![frame], false));
    }
}

/// The frames in `data`, and whether an error ended them.
fn read_control(data: &[u8], piece: usize) -> (Vec<Control>, bool) {
    let (mut reader, mut frames) = (ControlReader::new(), Vec::new());
    for bytes in data.chunks(piece) {
        reader.push(bytes);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return (frames, true);
                }
            }
        }
    }
    (frames, false)
}

/// The frames of an opened flow packet: nothing is read behind an error, and a STREAM frame can be
/// written as it was read.
pub fn frames(data: &[u8]) {
    let mut rest = data.len();
    let mut failed = false;
    for frame in Frames::new(data) {
        assert!(
            !failed && rest > 0,
            "a frame behind an error, or of nothing"
        );
        rest -= 1;
        let Ok(frame) = frame else {
            failed = true;
            continue;
        };
        if let Frame::Stream {
            seq,
            offset,
            data,
            fin,
        } = frame
        {
            assert!(
                seq > 0
                    && offset
                        .checked_add(data.len() as u64)
                        .is_some_and(|end| end < 1 << 62)
            );
            let mut out = Vec::new();
            let room = data.len() + 32;
            assert_eq!(
                put_stream(&mut out, room, seq, offset, data, fin),
                Some(data.len())
            );
            let again: Vec<_> = Frames::new(&out).collect();
            assert_eq!(
                again,
                [Ok(Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin
                })]
            );
        }
        if let Frame::StreamSignature { seq, signature } = frame {
            let mut out = Vec::new();
            assert!(put_stream_signature(&mut out, 80, seq, signature));
            let again: Vec<_> = Frames::new(&out).collect();
            assert_eq!(again, [Ok(frame)]);
        }
    }
}

/// PATH_ACK: ranges are in order, apart and bounded, and are written as they were read.
pub fn ack(data: &[u8]) {
    let Ok(ack) = PathAck::decode(data) else {
        return;
    };
    assert!((1..=MAX_RANGES).contains(&ack.ranges.len()));
    assert!(ack.ranges.iter().all(|range| !range.is_empty()));
    assert!(
        ack.ranges
            .windows(2)
            .all(|pair| pair[1].end < pair[0].start)
    );
    assert_eq!(ack.largest() + 1, ack.ranges[0].end);
    assert_eq!(PathAck::decode(&ack.encode()), Ok(ack));
}

#[derive(Debug, Arbitrary)]
enum Tracked {
    Packet {
        pn: u64,
        eliciting: bool,
        owes: bool,
    },
    Next {
        ahead: u8,
        eliciting: bool,
        owes: bool,
    },
    Take,
    Pass {
        millis: u16,
    },
}

/// Acknowledgements for arbitrary packet numbers: only of packets that arrived, and finally
/// silence.
pub fn tracker(data: &[u8]) {
    const HOLD: Duration = Duration::from_millis(25);
    let mut u = Unstructured::new(data);
    let (mut tracker, mut now) = (AckTracker::new(), Instant::now());
    let mut arrived = BTreeSet::new();
    let take = |tracker: &mut AckTracker, now, arrived: &BTreeSet<u64>| {
        let ack = tracker.take_due(PathId(5), now, HOLD)?;
        assert!(ack.ranges.len() <= MAX_RANGES);
        for range in &ack.ranges {
            assert_eq!(
                arrived.range(range.clone()).count() as u64,
                range.end - range.start
            );
        }
        assert_eq!(
            PathAck::decode(&ack.encode()).map(|a| a.ranges),
            Ok(ack.ranges.clone())
        );
        Some(ack)
    };
    while let Ok(step) = Tracked::arbitrary(&mut u) {
        match step {
            Tracked::Packet {
                pn,
                eliciting,
                owes,
            } => {
                // Packet numbers stay below 2^62: RFC 9000 section 12.3.
                packet(&mut tracker, pn >> 2, eliciting, owes, now, &mut arrived);
            }
            Tracked::Next {
                ahead,
                eliciting,
                owes,
            } => {
                let pn = tracker.largest().unwrap_or(0) + u64::from(ahead);
                packet(
                    &mut tracker,
                    pn.min((1 << 62) - 1),
                    eliciting,
                    owes,
                    now,
                    &mut arrived,
                );
            }
            Tracked::Take => {
                take(&mut tracker, now, &arrived);
            }
            Tracked::Pass { millis } => now += Duration::from_millis(millis.into()),
        }
        if u.is_empty() {
            break;
        }
    }
    for round in 0.. {
        let Some(at) = tracker.deadline() else { break };
        assert!(round < 3, "acknowledgements without end");
        take(&mut tracker, now.max(at), &arrived);
    }

    fn packet(
        tracker: &mut AckTracker,
        pn: u64,
        eliciting: bool,
        owes: bool,
        now: Instant,
        arrived: &mut BTreeSet<u64>,
    ) {
        if tracker.is_duplicate(pn) {
            return;
        }
        assert!(arrived.insert(pn), "{pn} is taken a second time");
        tracker.on_packet(pn, now, HOLD, eliciting, owes);
        assert!(tracker.is_duplicate(pn));
        assert_eq!(tracker.largest(), arrived.last().copied());
    }
}

/// Unicast streams: pieces stay within what the header claims, and are the same however the bytes
/// are cut.
pub fn unicast(data: &[u8]) {
    let (piece, data) = choice(data);
    let whole = read_unicast(data, data.len().max(1));
    let cut = read_unicast(data, usize::from(piece).max(1));
    if let (Some(whole), Some(cut)) = (whole, cut) {
        assert_eq!(whole, cut);
    }
}

/// Channel, seq, first offset and bytes of an update.
type Read = (u64, u64, u64, Vec<u8>);

/// Returns the ranges read from the bytes, with pieces of one range joined; `None` after an error.
fn read_unicast(data: &[u8], piece: usize) -> Option<Vec<Read>> {
    let (mut reader, mut got) = (StreamReader::new(), Vec::new());
    let mut next = None;
    for bytes in data.chunks(piece) {
        reader.push(bytes);
        while let Some(piece) = reader.next_piece().ok()? {
            match piece {
                Piece::Range { header, data } => {
                    let end = header.offset + data.len() as u64;
                    assert!(end <= header.total && header.total <= MAX_UPDATE as u64);
                    match got.last_mut() {
                        None => {
                            got.push((header.channel, header.seq, header.offset, data.to_vec()))
                        }
                        Some((_, _, _, bytes)) => {
                            assert_eq!(next, Some(header.offset));
                            bytes.extend_from_slice(&data);
                        }
                    }
                    next = Some(end);
                }
                Piece::Update { channel, seq, data } => {
                    assert!(data.len() <= MAX_UPDATE);
                    got.push((channel, seq, 0, data.to_vec()));
                }
            }
        }
    }
    let _: bool = reader.may_end();
    Some(got)
}
