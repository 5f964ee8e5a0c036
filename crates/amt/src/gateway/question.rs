//! A message that is repeated until it is answered.

use std::time::{Duration, Instant};

use super::entropy::Entropy;
use super::types::Timing;
use crate::PFlag;

/// Repetitions whose nonces are remembered: an answer may be slower than the wait for it.
const REMEMBERED: usize = 8;

/// One repetition.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    nonce: u32,
    at: Instant,
    p: PFlag,
}

/// A pending Relay Discovery or Request. Each repetition has a fresh nonce, and each wait for the
/// answer is about twice as long as the one before.
#[derive(Clone, Debug)]
pub(super) struct Question {
    nonces: [Option<SentRequest>; REMEMBERED],
    /// Number of times that it was sent.
    pub(super) sent: u32,
    wait: Duration,
    /// Time of the next repetition, or of giving up.
    pub(super) due: Instant,
    /// Last send time.
    last: Instant,
}

impl Question {
    /// Creates a question that is first sent at `now`.
    pub(super) fn new(wait: Duration, now: Instant) -> Self {
        Self {
            nonces: [None; REMEMBERED],
            sent: 0,
            wait,
            due: now,
            last: now,
        }
    }

    /// Draws a nonce for the next repetition.
    pub(super) fn nonce(&self, entropy: &mut Entropy) -> u32 {
        let mut nonce = entropy.number();
        while nonce == 0 || self.sent_at(nonce).is_some() {
            nonce = entropy.number();
        }
        nonce
    }

    /// Returns the P flag's position in the next repetition of a Request for MLD. Some relays read
    /// only one of the two positions, so they alternate. The position that the relay is `known` to
    /// read goes first, and once more, as the first Request may have been lost.
    pub(super) fn p(&self, known: Option<PFlag>) -> PFlag {
        let first = known.unwrap_or_default();
        match self.sent.checked_sub(u32::from(known.is_some())) {
            Some(turn) if turn % 2 == 1 => first.other(),
            _ => first,
        }
    }

    /// Notes that the message is sent now, with this nonce and the P flag of a Request at `p`.
    pub(super) fn send(
        &mut self,
        nonce: u32,
        p: PFlag,
        timing: &Timing,
        entropy: &mut Entropy,
        now: Instant,
    ) {
        if let Some(place) = self.nonces.get_mut(self.sent as usize % REMEMBERED) {
            *place = Some(SentRequest { nonce, at: now, p });
        }
        self.sent = self.sent.saturating_add(1);
        self.last = now;
        self.due = now + entropy.around(self.wait, 0.9, 1.25);
        self.wait = (self.wait * 2).min(timing.longest_wait);
    }

    /// Moves the next repetition to within `pause` after the last one.
    pub(super) fn hurry(&mut self, pause: Duration, now: Instant) {
        self.due = self.due.min((self.last + pause).max(now));
    }

    /// Returns the time at which the question was sent with this nonce.
    pub(super) fn sent_at(&self, nonce: u32) -> Option<Instant> {
        self.sent_with(nonce).map(|sent| sent.at)
    }

    /// Returns the P flag's position in the Request with this nonce.
    pub(super) fn p_of(&self, nonce: u32) -> Option<PFlag> {
        self.sent_with(nonce).map(|sent| sent.p)
    }

    fn sent_with(&self, nonce: u32) -> Option<&SentRequest> {
        let mut known = self.nonces.iter().flatten();
        known.find(|sent| sent.nonce == nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_nonces_are_fresh() {
        let timing = Timing::default();
        let mut entropy = Entropy::new([7; 32]);
        let mut now = Instant::now();
        let mut question = Question::new(timing.first_wait, now);
        let mut nonces = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..12 {
            let nonce = question.nonce(&mut entropy);
            question.send(nonce, PFlag::Rfc, &timing, &mut entropy, now);
            nonces.push(nonce);
            waits.push(question.due - now);
            now = question.due;
        }
        for (number, wait) in waits.iter().enumerate() {
            let middle = (timing.first_wait * 2_u32.pow(number as u32)).min(timing.longest_wait);
            assert!(*wait >= middle.mul_f64(0.9) && *wait <= middle.mul_f64(1.25));
        }
        assert!(question.sent_at(nonces[11]).is_some());
        assert!(question.sent_at(nonces[4]).is_some());
        assert!(question.sent_at(nonces[3]).is_none(), "long ago");
        nonces.sort_unstable();
        nonces.dedup();
        assert_eq!(nonces.len(), 12);
    }
}
