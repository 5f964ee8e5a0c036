//! Opening flow packets under the two keys that a receiver holds during a change of keys.

use arbitrary::{Arbitrary, Unstructured};
use flexicast::FlowId;
use flexicast::protect::{
    Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey, TAG_LEN, peek_flow_id,
};

const FLOW: FlowId = FlowId([0xc3; FlowId::LEN]);

/// A datagram that arrives.
#[derive(Debug, Arbitrary)]
enum Datagram<'a> {
    /// Bytes from anywhere.
    Raw(&'a [u8]),
    /// Sealed with the key of one of two epochs, then perhaps damaged.
    Sealed {
        new: bool,
        /// Distance from the packet number that the receiver expects.
        distance: i32,
        wrong_phase: bool,
        frames: &'a [u8],
        damage: Option<(u16, u8)>,
        cut: Option<u16>,
    },
}

/// A packet opens under the key that sealed it, untouched, with its own number and phase; and under
/// no other, in no other state.
pub fn packet(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let chacha = u.arbitrary().unwrap_or(false);
    let algorithm = if chacha {
        Algorithm::ChaCha20Poly1305
    } else {
        Algorithm::Aes128Gcm
    };
    let epoch = |secret| PacketKey::new(algorithm, &FlowSecret::from([secret; 32])).expect("a key");
    let mut keys = [epoch(1), epoch(2)];
    let expected = u.arbitrary::<u64>().unwrap_or(0) >> 2;
    while let Ok(datagram) = Datagram::arbitrary(&mut u) {
        let (mut bytes, sealed) = match datagram {
            Datagram::Raw(bytes) => (bytes.to_vec(), None),
            Datagram::Sealed {
                new,
                distance,
                wrong_phase,
                frames,
                damage,
                cut,
            } => {
                // Half of the numbers that 32 bits can tell apart lie on either side.
                let distance = distance.max(i32::MIN + 1);
                let pn = expected
                    .saturating_add_signed(distance.into())
                    .min((1 << 62) - 1);
                let phase = new != wrong_phase;
                let mut packet = vec![0; frames.len() + OVERHEAD];
                let end = HEADER_LEN + frames.len();
                packet[HEADER_LEN..end].copy_from_slice(frames);
                let len = keys[usize::from(new)].seal(FLOW, pn, phase, &mut packet, end);
                // Without frames there is nothing to sample for header protection.
                assert_eq!(len, (!frames.is_empty()).then_some(end + TAG_LEN));
                let before = packet.clone();
                if let Some((at, xor)) = damage {
                    let at = usize::from(at) % packet.len();
                    packet[at] ^= xor;
                }
                if let Some(cut) = cut {
                    packet.truncate(usize::from(cut));
                }
                let intact = len.is_some() && packet == before;
                assert!(!intact || peek_flow_id(&packet) == Some(FLOW));
                (packet, intact.then_some((new, pn, phase, frames)))
            }
        };
        let _ = peek_flow_id(&bytes);
        for (new, key) in [false, true].into_iter().zip(&mut keys) {
            let mut copy = bytes.clone();
            let opened = key.open(expected, &mut copy);
            match (sealed.filter(|s| s.0 == new), opened) {
                (Some((_, pn, phase, frames)), Ok(opened)) => {
                    assert_eq!(
                        (opened.pn, opened.key_phase, opened.frames),
                        (pn, phase, frames)
                    );
                }
                (Some(_), Err(error)) => panic!("an intact packet does not open: {error}"),
                (None, Ok(opened)) => panic!("packet {} opens and was never sealed so", opened.pn),
                (None, Err(_)) => {}
            }
        }
        bytes.clear();
        if u.is_empty() {
            break;
        }
    }
}
