//! Feedback packets on a path that loses, repeats, reorders and forges them.

use std::collections::BTreeSet;

use arbitrary::{Arbitrary, Unstructured};
use flexicast::FlowId;
use flexicast::feedback::{FeedbackOpener, FeedbackSealer, is_feedback};
use flexicast::protect::{Algorithm, FlowSecret};

const ID: FlowId = FlowId([0x80; FlowId::LEN]);
/// Packet numbers up to the largest of which it is known whether they arrived.
const WINDOW: u64 = 128;

/// One thing that happens.
#[derive(Debug, Arbitrary)]
enum Step<'a> {
    /// Bytes from anywhere.
    Raw(&'a [u8]),
    /// A payload of so many bytes.
    Seal(u8),
    /// One of the sealed packets arrives, perhaps damaged.
    Deliver {
        back: u8,
        damage: Option<(u16, u8)>,
        cut: Option<u16>,
    },
}

/// Every packet opens once, untouched, with its own payload, and nothing else does.
pub fn feedback(data: &[u8]) {
    play_feedback(data);
}

/// The same; returns how many packets were opened, and how many came again.
pub fn play_feedback(data: &[u8]) -> (u64, u64) {
    let mut u = Unstructured::new(data);
    let algorithm = match u.arbitrary().unwrap_or(false) {
        true => Algorithm::ChaCha20Poly1305,
        false => Algorithm::Aes128Gcm,
    };
    let secret = FlowSecret::from([3; 32]);
    let mut sealer = FeedbackSealer::new(ID, algorithm, &secret).expect("a key");
    let mut opener = FeedbackOpener::new(algorithm, &secret).expect("a key");
    let (mut sealed, mut seen) = (Vec::new(), BTreeSet::new());
    let mut counts = (0, 0);
    while !u.is_empty() {
        match Step::arbitrary(&mut u) {
            Err(_) => break,
            Ok(Step::Raw(bytes)) => {
                let _ = is_feedback(bytes);
                assert_eq!(opener.open(&mut bytes.to_vec()), None, "never sealed");
            }
            Ok(Step::Seal(len)) => {
                let payload = vec![sealed.len() as u8; len.into()];
                let packet = sealer.seal(&payload);
                assert_eq!(packet.is_some(), !payload.is_empty());
                sealed.extend(packet.map(|packet| (packet, payload)));
            }
            Ok(Step::Deliver { back, damage, cut }) => {
                let Some(at) = sealed.len().checked_sub(1 + usize::from(back)) else {
                    continue;
                };
                let (pn, (packet, payload)) = (at as u64, &sealed[at]);
                assert!(is_feedback(packet));
                let mut arrives = packet.clone();
                if let Some((at, xor)) = damage {
                    let at = usize::from(at) % arrives.len();
                    arrives[at] ^= xor;
                }
                arrives.truncate(cut.map_or(usize::MAX, usize::from));
                let largest = seen.last().copied().unwrap_or(0);
                let is_new = pn + WINDOW > largest && !seen.contains(&pn);
                let opens = arrives == *packet && is_new;
                counts.1 += u64::from(arrives == *packet && !is_new);
                let opened = opener.open(&mut arrives);
                assert_eq!(opened, opens.then_some((pn, &payload[..])));
                if opens {
                    seen.insert(pn);
                    counts.0 += 1;
                }
            }
        }
    }
    counts
}
