//! Flows that sign whole updates: nothing that they took part in leaves the merge before the
//! signature of its update verified (protocol.md section 5.5).

use std::ops::Range;

use super::{Assembly, Merge, WINDOW};
use crate::authentication::{PublicKey, SIGNATURE_LEN};
use crate::control::NeedReason;

/// Updates ahead of the next one whose signature is kept before any of their bytes: a forger spoils
/// no more in advance.
const AHEAD: u64 = 16;

/// Signature of a whole update, as a flow brought it.
#[derive(Debug)]
pub(super) struct StreamSignature {
    /// Key of that flow.
    key: PublicKey,
    signature: [u8; SIGNATURE_LEN],
}

impl Merge {
    /// Says whether the flow signs whole updates. What it brought before that changed is dropped,
    /// and asked for.
    pub fn set_signed_streams(&mut self, signed: bool) {
        if std::mem::replace(&mut self.signed_streams, signed) != signed {
            self.request_flow_bytes();
        }
    }

    /// Takes the signature of a whole update by the key of the flow that brought it. The last one
    /// counts, so that one that was forged in advance makes room for the true one.
    pub fn add_signature(&mut self, seq: u64, key: PublicKey, signature: &[u8; SIGNATURE_LEN]) {
        let is_here = seq < self.next || self.whole.contains_key(&seq);
        if is_here || seq - self.next >= WINDOW || self.failure.is_some() {
            return;
        }
        if self.shunned.contains(&seq) || self.is_distrusted(seq) {
            return;
        }
        // The true one comes behind the update's bytes, or overtakes them by little.
        if seq - self.next >= AHEAD && self.parts.get(&seq).is_none_or(Assembly::is_empty) {
            return;
        }
        let whole = self.change(seq, |part, _| {
            let signature = *signature;
            part.stream_signature = Some(Box::new(StreamSignature { key, signature }));
            part.is_whole()
        });
        if whole {
            self.finish(seq);
        }
    }

    /// Whether a part may not be handed on yet for lack of a signature, even if it is whole.
    pub(super) fn lacks_signature(&self, part: &Assembly) -> bool {
        self.signed_streams && part.stream_signature.is_none() && !part.is_certain()
    }

    /// Whether the flow's signature of a whole update verifies, if one is necessary.
    pub(super) fn is_signed_stream(&self, seq: u64, encoded: &[u8], part: &Assembly) -> bool {
        let signature = part.stream_signature.as_deref();
        let verifies = |by: &StreamSignature| by.key.signed_stream(seq, encoded, &by.signature);
        !self.signed_streams || signature.is_some_and(verifies)
    }

    /// Returns the last of these updates that is whole but for its signature.
    pub(super) fn last_unsigned(&self, near: Range<u64>) -> Option<u64> {
        let mut parts = self.parts.range(near).rev();
        let last = parts.find(|(_, part)| self.lacks_signature(part) && part.is_whole());
        last.map(|(seq, _)| *seq)
    }

    /// Drops what the flow brought, and asks for it.
    pub(super) fn request_flow_bytes(&mut self) {
        let mut dropped = Vec::new();
        self.drop_flow_bytes(|seq| dropped.push(seq));
        let needs = dropped.into_iter().map(|seq| (seq, NeedReason::Forged));
        self.needs.extend(needs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Via;
    use crate::authentication::PacketSigner;
    use crate::merge::{Delivered, Output};
    use crate::protect::FlowSecret;

    fn signer(seed: u8) -> PacketSigner {
        PacketSigner::new(&FlowSecret::from([seed; 32])).unwrap()
    }

    /// A merge of a flow with signed streams, whose source answers.
    fn merge() -> Merge {
        let mut merge = Merge::new(1, None);
        merge.set_source_answers(true);
        merge.set_signed_streams(true);
        merge
    }

    fn pop(merge: &mut Merge) -> Option<Delivered> {
        match merge.pop()? {
            Output::Update(update) => Some(update),
            other => panic!("{other:?}"),
        }
    }

    /// Adds the signature of an update by the key of this seed.
    fn sign(merge: &mut Merge, seed: u8, seq: u64, bytes: &[u8]) {
        let signer = signer(seed);
        let signature = signer.sign_stream(seq, bytes);
        // The flow's key verifies, not the signer's.
        merge.add_signature(seq, self::signer(1).key(), &signature);
    }

    fn needs(merge: &mut Merge) -> Vec<(u64, NeedReason)> {
        let needs = std::iter::from_fn(|| merge.pop_need());
        needs.map(|need| (need.seq, need.reason)).collect()
    }

    #[test]
    fn an_update_waits_for_its_signature_in_any_order() {
        let mut merge = merge();
        merge.add_flow(1, 0, b"one", Some(3));
        assert_eq!((pop(&mut merge), merge.stats().forged), (None, 0));
        merge.add_flow(1, 0, b"one", Some(3));
        sign(&mut merge, 1, 1, b"one");
        assert_eq!(pop(&mut merge).unwrap().encoded, "one");
        // The signature first, an empty update, and one that the unicast path repaired.
        sign(&mut merge, 1, 2, b"");
        assert_eq!(pop(&mut merge), None);
        merge.add_flow(2, 0, b"", Some(0));
        assert_eq!(pop(&mut merge).unwrap().encoded, "");
        merge.add_flow(3, 0, b"thr", None);
        sign(&mut merge, 1, 3, b"three");
        merge.add_unicast(3, 3, b"ee", 5);
        let third = pop(&mut merge).unwrap();
        assert_eq!(
            (&third.encoded[..], third.via),
            (&b"three"[..], Via::Repaired)
        );
        // What the unicast path brings alone needs none.
        merge.add_flow(4, 0, b"four", Some(4));
        merge.add_unicast(4, 0, b"four", 4);
        assert!(pop(&mut merge).unwrap().certain);
        assert_eq!((merge.buffered(), needs(&mut merge)), (0, vec![]));
    }

    #[test]
    fn a_forger_gets_nothing_out() {
        for seed in [2, 1] {
            let mut merge = merge();
            // Signed by another key, and the signature of other bytes.
            let signed: &[u8] = if seed == 1 { b"other" } else { b"forged" };
            merge.add_flow(1, 0, b"forged", Some(6));
            for failed in 1..=2 {
                assert_eq!(needs(&mut merge), []);
                sign(&mut merge, seed, 1, signed);
                assert_eq!(
                    (pop(&mut merge), merge.stats().failed_checks),
                    (None, failed)
                );
            }
            assert_eq!(needs(&mut merge), [(1, NeedReason::Forged)]);
            // Not again, whatever the flow brings.
            sign(&mut merge, 1, 1, b"true");
            merge.add_flow(1, 0, b"true", Some(4));
            assert_eq!((pop(&mut merge), needs(&mut merge)), (None, vec![]));
            merge.add_unicast(1, 0, b"true", 4);
            let first = pop(&mut merge).unwrap();
            assert_eq!((&first.encoded[..], first.certain), (&b"true"[..], true));
            assert_eq!(merge.buffered(), 0);
        }
        // The signature of another update is none of this one.
        let mut merge = merge();
        merge.add_flow(1, 0, b"one", Some(3));
        let signature = signer(1).sign_stream(2, b"one");
        merge.add_signature(1, signer(1).key(), &signature);
        assert_eq!((pop(&mut merge), merge.stats().forged), (None, 1));
    }

    /// One forged signature of an update is not in the place of the true one, whenever it comes.
    #[test]
    fn a_forged_signature_makes_room() {
        let mut merge = merge();
        for (seq, is_early) in [(1, true), (2, false), (3, true)] {
            let forge = |merge: &mut Merge| sign(merge, 2, seq, b"true");
            if is_early {
                forge(&mut merge);
            }
            merge.add_flow(seq, 0, b"tr", None);
            merge.add_flow(seq, 2, b"ue", Some(4));
            if !is_early {
                forge(&mut merge);
            }
            assert_eq!(pop(&mut merge), None);
            sign(&mut merge, 1, seq, b"true");
            let got = pop(&mut merge).unwrap();
            assert_eq!((&got.encoded[..], got.via), (&b"true"[..], Via::Flow));
        }
        assert_eq!((merge.stats().forged, needs(&mut merge)), (3, vec![]));
        // Far ahead, none is kept.
        sign(&mut merge, 2, 4 + AHEAD, b"true");
        assert_eq!((merge.partial_updates(), merge.buffered()), (0, 0));
    }

    /// True bytes with forged signatures do not count as an update that only seemed invalid.
    #[test]
    fn a_forged_signature_clears_nothing() {
        let mut merge = merge();
        for seq in 1..10 {
            merge.add_flow(seq, 0, b"true", Some(4));
            sign(&mut merge, 2, seq, b"true");
            sign(&mut merge, 2, seq, b"true");
            merge.add_unicast(seq, 0, b"true", 4);
            assert!(pop(&mut merge).is_some());
        }
        let stats = merge.stats();
        assert_eq!((stats.refetched, stats.forged, stats.cleared), (9, 18, 0));
    }

    #[test]
    fn what_waits_for_signatures_is_asked_for() {
        let mut merge = merge();
        for seq in [1, 2, 3, 5] {
            merge.add_flow(seq, 0, b"whole", Some(5));
        }
        assert_eq!(merge.waits_for(), Some((1, 0)));
        merge.seek();
        let missing = [1, 2, 3, 4].map(|seq| (seq, NeedReason::Missing));
        assert_eq!(needs(&mut merge), missing);
        // The signature may still come, and be the first.
        sign(&mut merge, 1, 1, b"whole");
        assert_eq!(pop(&mut merge).unwrap().seq, 1);
    }

    #[test]
    fn signatures_are_bounded_and_end_with_the_connection() {
        let mut merge = merge();
        for seq in 0..WINDOW + 100 {
            merge.add_signature(seq, signer(1).key(), &[1; SIGNATURE_LEN]);
        }
        assert_eq!(merge.partial_updates() as u64, AHEAD);
        assert!(merge.buffered() < 1 << 20 && merge.buffered() > 0);
        merge.add_flow(1, 0, b"one", None);
        merge.disconnected();
        assert_eq!((merge.partial_updates(), merge.buffered()), (0, 0));
        // A flow without signatures, on another connection.
        merge.add_flow(1, 0, b"one", Some(3));
        assert_eq!(merge.stats().forged, 0);
    }

    /// Updates that came before the flow was known to sign its streams are dropped.
    #[test]
    fn what_came_unsigned_is_dropped() {
        let mut merge = Merge::new(1, None);
        merge.set_source_answers(true);
        merge.add_flow(1, 0, b"forged", Some(6));
        merge.add_flow(2, 0, b"part", None);
        merge.set_signed_streams(true);
        merge.set_signed_streams(true);
        let forged = [1, 2].map(|seq| (seq, NeedReason::Forged));
        assert_eq!(
            (pop(&mut merge), needs(&mut merge)),
            (None, forged.to_vec())
        );
    }
}
