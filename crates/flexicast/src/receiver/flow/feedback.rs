//! A member's feedback packets: acknowledgements beside the QUIC connection, while the source says
//! that they arrive (protocol.md section 5.4).

use std::time::{Duration, Instant};

use crate::Cause;
use crate::control::FeedbackKey;
use crate::feedback::FeedbackSealer;
use crate::protect::Algorithm;

/// Acknowledgements that are sent both as feedback packets and as DATAGRAM frames until the source
/// says that the former arrive.
const TRIALS: u8 = 8;
/// A fall-back so soon after the source has said so is put down to feedback packets.
const SUSPECT_WITHIN: Duration = Duration::from_secs(60);
/// Suspect fall-backs in a row after which no feedback packets are sent.
const MAX_FAILURES: u8 = 3;

/// State of the path of feedback packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// So many more acknowledgements are sent both ways.
    Trial(u8),
    /// The source said at this time that they arrive.
    Working(Instant),
}

/// The feedback packets of one flow.
#[derive(Debug)]
pub(super) struct Feedback {
    /// The key and its sequence, once the source has given one.
    sealer: Option<(FeedbackSealer, u64)>,
    state: State,
    /// Suspect fall-backs in a row.
    failures: u8,
}

impl Default for Feedback {
    fn default() -> Self {
        Feedback {
            sealer: None,
            state: State::Trial(TRIALS),
            failures: 0,
        }
    }
}

/// An acknowledgement as feedback packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SealedAck {
    pub(super) packet: Vec<u8>,
    /// Whether it need not be sent as a DATAGRAM frame as well.
    pub(super) suffices: bool,
}

impl Feedback {
    /// Takes a key. What is known of the path stays.
    pub(super) fn take_key(&mut self, key: &FeedbackKey) {
        let known = self.sealer.as_ref().map(|(_, sequence)| *sequence);
        let Some(algorithm) = Algorithm::from_suite(key.algorithm) else {
            return;
        };
        if known.is_some_and(|known| key.sequence <= known) {
            return;
        }
        if let Ok(sealer) = FeedbackSealer::new(key.id, algorithm, &key.secret) {
            self.sealer = Some((sealer, key.sequence));
            if !matches!(self.state, State::Working(_)) {
                self.state = State::Trial(TRIALS);
            }
            self.failures = 0;
        }
    }

    /// Whether a datagram of the source says that packets come from another address than the
    /// connection has.
    pub(super) fn is_returned(&self, datagram: &[u8]) -> bool {
        let sealer = self.sealer.as_ref();
        sealer.is_some_and(|(sealer, _)| sealer.is_returned(datagram))
    }

    /// The source says that feedback packets arrive.
    pub(super) fn heard(&mut self, now: Instant) {
        if self.sealer.is_some() {
            self.state = State::Working(now);
        }
    }

    /// Doubts the path after a fall-back, until the source says again that packets arrive.
    pub(super) fn doubt(&mut self, cause: Cause, now: Instant) {
        if let State::Working(since) = self.state {
            let soon = now.saturating_duration_since(since) < SUSPECT_WITHIN;
            self.failures = match cause == Cause::AckTimeout && soon {
                true => self.failures.saturating_add(1),
                false => 0,
            };
        }
        self.state = State::Trial(TRIALS);
    }

    /// Returns an acknowledgement as feedback packet, if one is to be sent.
    pub(super) fn seal(&mut self, payload: &[u8]) -> Option<SealedAck> {
        let (sealer, _) = self.sealer.as_mut()?;
        if self.failures >= MAX_FAILURES {
            return None;
        }
        let suffices = match &mut self.state {
            State::Working(_) => true,
            State::Trial(0) => return None,
            State::Trial(left) => {
                *left -= 1;
                false
            }
        };
        let packet = sealer.seal(payload)?;
        Some(SealedAck { packet, suffices })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowId;
    use crate::protect::FlowSecret;

    fn key(sequence: u64) -> FeedbackKey {
        FeedbackKey {
            flow: FlowId([1; 8]),
            sequence,
            id: FlowId([0x80 + sequence as u8; 8]),
            secret: FlowSecret::from([sequence as u8; 32]),
            algorithm: Algorithm::Aes128Gcm as u64,
        }
    }

    fn suffices(feedback: &mut Feedback) -> Option<bool> {
        feedback.seal(b"ack").map(|sealed| sealed.suffices)
    }

    #[test]
    fn acknowledgements_go_both_ways_until_the_source_has_heard_one() {
        let (now, mut feedback) = (Instant::now(), Feedback::default());
        feedback.heard(now);
        assert_eq!(suffices(&mut feedback), None, "no key");
        feedback.take_key(&key(1));
        let trials: Vec<_> = (0..=TRIALS).map(|_| suffices(&mut feedback)).collect();
        assert_eq!(trials[..TRIALS.into()], [Some(false); TRIALS as usize]);
        assert_eq!(trials.last(), Some(&None), "not for ever");
        feedback.heard(now);
        assert_eq!(suffices(&mut feedback), Some(true));
        feedback.doubt(Cause::HeartbeatLost, now);
        assert_eq!(suffices(&mut feedback), Some(false));
    }

    #[test]
    fn another_key_is_used_at_once_and_an_older_one_never() {
        let (now, mut feedback) = (Instant::now(), Feedback::default());
        feedback.take_key(&key(2));
        feedback.heard(now);
        let id = |feedback: &mut Feedback| feedback.seal(b"ack").map(|sealed| sealed.packet[1]);
        feedback.take_key(&key(1));
        assert_eq!(id(&mut feedback), Some(0x82));
        feedback.take_key(&key(3));
        assert_eq!(id(&mut feedback), Some(0x83));
        assert_eq!(suffices(&mut feedback), Some(true), "the path is the same");
        let unknown = FeedbackKey {
            algorithm: 0x1302,
            ..key(4)
        };
        feedback.take_key(&unknown);
        assert_eq!(id(&mut feedback), Some(0x83));
    }

    /// A path that takes feedback packets only at first is given up after a few fall-backs.
    #[test]
    fn fall_backs_soon_after_the_source_heard_are_put_down_to_feedback() {
        let (mut now, mut feedback) = (Instant::now(), Feedback::default());
        feedback.take_key(&key(1));
        for _ in 0..MAX_FAILURES {
            assert_eq!(suffices(&mut feedback), Some(false));
            feedback.heard(now);
            feedback.doubt(Cause::AckTimeout, now);
        }
        feedback.heard(now);
        assert_eq!(suffices(&mut feedback), None);
        feedback.take_key(&key(2));
        assert_eq!(suffices(&mut feedback), Some(true), "another attempt");
        now += SUSPECT_WITHIN;
        for _ in 0..10 {
            feedback.doubt(Cause::AckTimeout, now);
            feedback.heard(now);
            now += SUSPECT_WITHIN;
        }
        assert_eq!(suffices(&mut feedback), Some(true), "not soon");
    }
}
