//! Signed updates in a merge: no byte is taken before a verified header.

use bytes::Bytes;
use signing::{Forgery, VerifyingKey};

use super::{
    Assembly, AuthenticationFailure, Delivered, DistrustedUpdate, Merge, NEED_AHEAD, NeedReason,
    Signatures, Validity,
};
use crate::Via;
use crate::deadline::deadline_of;

/// Result of checking an update's signature.
pub(crate) type Verdict = Result<(), Forgery>;

/// Bytes of an update that are kept before its header.
pub(super) const MAX_EARLY: usize = 256 << 10;
/// The same of all updates together.
const MAX_EARLY_ALL: usize = 2 << 20;
/// Updates with a forged header that are remembered.
const MAX_FORGED: usize = 256;

/// After so many updates on a connection that the source, too, has sent as they were refused, its
/// updates are not checked any more: it knows better.
pub(super) const MAX_CLEARED: u64 = 3;

/// Whether the bytes of a whole update are those of its header's hashes.
fn is_genuine(encoded: &[u8]) -> bool {
    signing::Header::parse(encoded).is_ok_and(|header| header.is_genuine_whole(encoded))
}

impl Merge {
    /// Says which keys of the channel sign which updates. From now on, nothing that the flow took
    /// part in leaves the merge unless its key signed it: what it brought while there were no keys
    /// is dropped, and asked for. `None` is for a source that signs nothing.
    pub fn set_signatures(&mut self, signatures: Option<Signatures>) {
        if self.signatures.is_none() && signatures.is_some() {
            self.request_flow_bytes();
        }
        self.signatures = signatures;
    }

    /// Takes what is not signed for what the source signed, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_signatures_off(&mut self, off: bool) {
        self.signatures_off = off;
    }

    /// Takes what is behind a genuine header unseen, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_hash_check_off(&mut self, off: bool) {
        self.hash_check_off = off;
    }

    /// Whether the hashes of chunks are compared, as they always are but for an injected fault.
    fn checks_hashes(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.hash_check_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// Whether the updates of the flow have to be signed.
    pub(crate) fn is_signed(&self) -> bool {
        self.signatures().is_some()
    }

    /// Restricts the keys that sign updates to these.
    pub(crate) fn trust_only(&mut self, keys: Vec<VerifyingKey>) {
        if let Some(signatures) = &mut self.signatures {
            signatures.trust_only(keys);
        }
    }

    /// The update by which the source failed to prove itself, if it did on this connection. Nothing
    /// is taken from it since.
    pub fn failure(&self) -> Option<AuthenticationFailure> {
        self.failure
    }

    /// Checks whole updates of the unicast path together, if they have to be signed. Returns for
    /// each what [`Merge::add_whole`] takes.
    pub(crate) fn verify_together(&self, updates: &[(u64, &[u8])]) -> Vec<Option<Verdict>> {
        let mut verdicts = vec![None; updates.len()];
        let Some(signatures) = self.signatures().filter(|signatures| signatures.required) else {
            return verdicts;
        };
        let is_new = |at: &usize| !self.is_past(updates[*at].0);
        let new: Vec<usize> = (0..updates.len()).filter(is_new).collect();
        let checked: Vec<_> = new.iter().map(|at| updates[*at]).collect();
        let checked = signatures.verify_all(&checked);
        for (at, verdict) in new.into_iter().zip(checked) {
            verdicts[at] = Some(verdict);
        }
        verdicts
    }

    /// Takes a whole update of the unicast path; `verdict` is what [`Merge::verify_together`] said
    /// about it since anything else was taken but updates of the same call.
    pub(crate) fn add_whole(&mut self, seq: u64, data: &[u8], verdict: Option<Verdict>) {
        let is_known = self.is_past(seq) || self.parts.contains_key(&seq);
        let is_plain = !is_known && self.failure.is_none();
        match verdict.filter(|_| is_plain) {
            None => self.add_unicast(seq, 0, data, data.len() as u64),
            Some(Err(forgery)) => {
                self.unproven.insert(seq, forgery);
                self.release();
            }
            Some(Ok(())) => {
                let deadline_ms = self.deadline_of_whole(data, true);
                self.take(Delivered {
                    deadline_ms,
                    seq,
                    encoded: Bytes::copy_from_slice(data),
                    via: Via::Unicast,
                    certain: true,
                });
            }
        }
    }

    /// Checks that the source sent these bytes as the message with this number. Those that came by
    /// the connection alone are proved by that, unless everything has to be signed. Returns the
    /// deadline in Unix ms that the message states.
    pub(crate) fn verify_message(
        &self,
        number: u64,
        encoded: &[u8],
        by_flow: bool,
    ) -> Result<Option<u64>, Forgery> {
        let needs = |known: &&Signatures| by_flow || known.required;
        let Some(known) = self.signatures().filter(needs) else {
            return Ok(deadline_of(encoded));
        };
        let header = known
            .lineage
            .verify_message(&known.channel, number, encoded)?;
        Ok(header.deadline_ms())
    }

    /// The keys that updates of the flow have to be signed by.
    pub(super) fn signatures(&self) -> Option<&Signatures> {
        #[cfg(feature = "fault-injection")]
        if self.signatures_off {
            return None;
        }
        self.signatures.as_ref()
    }

    /// Returns what is wrong with an update that any flow packet took part in. `header` is its
    /// header, if that is verified.
    pub(super) fn fault_of(
        &self,
        seq: u64,
        encoded: &[u8],
        header: Option<&[u8]>,
    ) -> Option<NeedReason> {
        let is_forged = |signatures: &Signatures| match header {
            Some(header) => {
                !encoded.starts_with(header) || self.checks_hashes() && !is_genuine(encoded)
            }
            None => signatures.verify(seq, encoded).is_err(),
        };
        if self.signatures().is_some_and(is_forged) {
            return Some(NeedReason::Forged);
        }
        let check = self.check.filter(|_| self.cleared < MAX_CLEARED)?;
        (check(seq, encoded) == Validity::Invalid).then_some(NeedReason::Invalid)
    }

    /// Takes what the bytes of a flow packet say about a signed update. Returns whether they may be
    /// merged: not before the header, and not beyond the length that it states.
    pub(super) fn take_signed(
        &mut self,
        seq: u64,
        offset: u64,
        data: &[u8],
        total: Option<u64>,
    ) -> bool {
        let is_headed = |merge: &Merge| merge.parts.get(&seq).is_some_and(Assembly::is_headed);
        if !is_headed(self) && offset == 0 {
            if !self.take_header(seq, data) {
                return false;
            }
        } else if !is_headed(self) {
            self.take_early(seq, offset, data);
            return false;
        }
        let end = offset + data.len() as u64;
        let part = self.parts.get(&seq).filter(|part| part.is_headed());
        let takes = part.is_some_and(|part| !part.is_beyond(end, total));
        self.stats.mismatches += u64::from(!takes);
        takes
    }

    /// Takes the beginning of a signed update. A forged one is dropped, and says nothing of the
    /// true one but that its packet may have been lost to the forger's. Returns whether it is
    /// genuine.
    fn take_header(&mut self, seq: u64, data: &[u8]) -> bool {
        let verified = self.signatures().map_or(Err(Forgery::Unsigned), |known| {
            let header = known.lineage.verify_header(&known.channel, seq, data)?;
            Ok((&data[..header.len()], header.total_len() as u64))
        });
        let forgery = match verified {
            Ok((header, total)) => {
                let agrees = self.change(seq, |part, _| part.take_header(header, total));
                if agrees {
                    self.note_deadline(seq, header);
                    self.request_forged(seq);
                }
                return true;
            }
            Err(forgery) => forgery,
        };
        self.stats.count_forgery(forgery == Forgery::Signature);
        self.forged.insert(seq);
        if self.forged.len() > MAX_FORGED {
            self.forged.pop_last();
        }
        false
    }

    /// Asks for all updates whose beginnings were forged and that are near: the flow, which might
    /// still bring them, is left.
    pub(crate) fn request_all_forged(&mut self) {
        self.request_forged(self.next + NEED_AHEAD);
    }

    /// Asks for updates before `seq`, which was sent, whose beginnings were forged.
    pub(super) fn request_forged(&mut self, seq: u64) {
        while let Some(forged) = self.forged.first().copied().filter(|forged| *forged < seq) {
            self.forged.remove(&forged);
            let is_here = forged < self.next || self.whole.contains_key(&forged);
            let is_headed = self.parts.get(&forged).is_some_and(Assembly::is_headed);
            if !is_here && !is_headed {
                self.request(forged);
            }
        }
    }

    /// Asks for an update of which something was forged, once, and goes on to take it from the
    /// flow. Returns whether it was asked for now.
    pub(super) fn request(&mut self, seq: u64) -> bool {
        self.requested = self.requested.split_off(&self.next);
        if !self.source_answers || !self.requested.insert(seq) {
            return false;
        }
        self.stats.refetched += 1;
        self.needs.entry(seq).or_insert(NeedReason::Forged);
        self.note(DistrustedUpdate {
            seq,
            reason: NeedReason::Forged,
            handed: false,
        });
        true
    }

    /// Keeps bytes that came before their update's header. Of all such bytes, those that lie
    /// farthest ahead make room.
    fn take_early(&mut self, seq: u64, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let part = self.parts.get(&seq);
        if part.is_some_and(|part| part.is_beyond(end, None)) {
            self.stats.mismatches += 1;
            return;
        }
        let whole = self.change(seq, |part, spare| {
            part.add_early(offset, data, spare);
            part.is_whole()
        });
        if whole {
            return self.finish(seq);
        }
        while self.sizes.early > MAX_EARLY_ALL {
            let mut parts = self.parts.iter().rev();
            let farthest = parts
                .find(|(_, part)| part.early() > 0)
                .map(|found| *found.0);
            let Some(farthest) = farthest else { break };
            let is_empty = self.change(farthest, |part, _| {
                part.drop_early();
                part.is_empty()
            });
            // What has nothing else would be passed over at each search.
            if is_empty {
                self.parts.remove(&farthest);
            }
        }
    }
}
