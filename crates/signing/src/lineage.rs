//! Which key signed which updates of a channel.

use thiserror::Error;
use uuid::Uuid;

use crate::header::{Header, HeaderError};
use crate::key::{KeyId, Subject, VerifyingKey};

/// Number of eras in a lineage at most.
pub const MAX_ERAS: usize = 256;

/// Updates of a channel that one key signed in one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Era {
    /// The first `seq`.
    pub first: u64,
    /// The last `seq`; `None` while updates are signed in this era.
    pub last: Option<u64>,
    /// Incarnation of the channel in which they were signed.
    pub incarnation: Uuid,
    /// The key.
    pub key: VerifyingKey,
}

/// Eras that are no lineage: too many, not ascending, or overlapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the eras of signatures are too many, not ascending, or overlap")]
pub struct LineageError;

/// Reason for which bytes are no update of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Forgery {
    /// No key signed updates with this number.
    #[error("no key of the source signs this update")]
    Unsigned,
    /// Key of its era that no pinned key vouches for.
    #[error(
        "the update is signed by key {0}, which is neither the pinned key nor one that it vouches for"
    )]
    UnknownKey(KeyId),
    /// No header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Header of another update.
    #[error("the header is that of another update, incarnation or key")]
    Misplaced,
    /// Header that the key did not sign.
    #[error("the header is not signed by the source's key")]
    Signature,
    /// Bytes that are not those of the header's hashes.
    #[error("the bytes are not those that the source signed")]
    Content,
}

/// Eras of a channel, ascending and disjoint: what lies outside of them is not signed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    eras: Vec<Era>,
    /// Numbers of their keys.
    key_ids: Vec<KeyId>,
    /// The only keys that count; `None` if those of all eras do.
    trusted: Option<Vec<VerifyingKey>>,
}

impl Lineage {
    /// The lineage of these eras.
    ///
    /// # Errors
    /// [`LineageError`] if they are more than [`MAX_ERAS`], not ascending, or overlap.
    pub fn new(eras: Vec<Era>) -> Result<Self, LineageError> {
        let is_forward = |era: &Era| era.first > 0 && era.last.is_none_or(|last| last >= era.first);
        let is_before = |pair: &[Era]| pair[0].last.is_some_and(|last| last < pair[1].first);
        let is_valid =
            eras.len() <= MAX_ERAS && eras.iter().all(is_forward) && eras.windows(2).all(is_before);
        if !is_valid {
            return Err(LineageError);
        }
        Ok(Lineage {
            key_ids: eras.iter().map(|era| era.key.id()).collect(),
            eras,
            trusted: None,
        })
    }

    /// The eras, ascending.
    #[must_use]
    pub fn eras(&self) -> &[Era] {
        &self.eras
    }

    /// Restricts it to these keys: updates of the eras of others are forged.
    pub fn trust_only(&mut self, keys: Vec<VerifyingKey>) {
        self.trusted = Some(keys);
    }

    /// Returns the era of an update.
    #[must_use]
    pub fn era_of(&self, seq: u64) -> Option<&Era> {
        self.find_era(seq).map(|(era, _)| era)
    }

    /// Returns the era of an update, and the number of its key.
    fn find_era(&self, seq: u64) -> Option<(&Era, KeyId)> {
        let after = self.eras.partition_point(|era| era.first <= seq);
        let index = after.checked_sub(1)?;
        let (era, key_id) = (self.eras.get(index)?, self.key_ids.get(index)?);
        let is_within = era.last.is_none_or(|last| seq <= last);
        is_within.then_some((era, *key_id))
    }

    /// Checks that these are the whole bytes of this update of this channel.
    ///
    /// # Errors
    /// [`Forgery`] if not.
    pub fn verify(&self, channel: &str, seq: u64, signed: &[u8]) -> Result<(), Forgery> {
        let (header, key) = self.checked_content(seq, signed)?;
        let verified = header.verify(key, channel);
        verified.map_err(|_| Forgery::Signature)
    }

    /// Checks whole updates of this channel together, which takes less time than one by one.
    /// Returns the result of [`Lineage::verify`] for each.
    #[must_use]
    pub fn verify_all(&self, channel: &str, updates: &[(u64, &[u8])]) -> Vec<Result<(), Forgery>> {
        let mut results = Vec::with_capacity(updates.len());
        let mut unproved = Vec::with_capacity(updates.len());
        for (index, (seq, signed)) in updates.iter().enumerate() {
            let checked = self.checked_content(*seq, signed);
            results.push(checked.map(|(header, key)| unproved.push((index, header, key))));
        }
        for of_key in unproved.chunk_by(|(.., one), (.., next)| one == next) {
            let (.., key) = of_key[0];
            let headers = of_key.iter().map(|(_, header, _)| header);
            if Header::verify_all(headers, key, channel) {
                continue;
            }
            for (index, header, key) in of_key {
                let verified = header.verify(key, channel);
                results[*index] = verified.map_err(|_| Forgery::Signature);
            }
        }
        results
    }

    /// Returns the verified header of this update of this channel, which is at the beginning of
    /// these bytes.
    ///
    /// # Errors
    /// [`Forgery`] if it is not the source's.
    pub fn verify_header<'a>(
        &self,
        channel: &str,
        seq: u64,
        signed: &'a [u8],
    ) -> Result<Header<'a>, Forgery> {
        let (header, key) = self.placed_header(seq, signed)?;
        let verified = header.verify(key, channel);
        verified.map(|()| header).map_err(|_| Forgery::Signature)
    }

    /// Returns the verified header of a whole message of this channel with this number. The key of
    /// the last era, which has to be open, signs messages.
    ///
    /// # Errors
    /// [`Forgery`] if it is not the source's.
    pub fn verify_message<'a>(
        &self,
        channel: &str,
        number: u64,
        signed: &'a [u8],
    ) -> Result<Header<'a>, Forgery> {
        let open = self.eras.last().filter(|era| era.last.is_none());
        let (era, key_id) = self.trusted_era(open.ok_or(Forgery::Unsigned)?.first)?;
        let header = placed(signed, (number, era.incarnation, key_id))?;
        if !header.is_genuine_whole(signed) {
            return Err(Forgery::Content);
        }
        let verified = header.verify_subject(Subject::Message, &era.key, channel);
        verified.map(|()| header).map_err(|_| Forgery::Signature)
    }

    /// Returns the header of a whole update, of which nothing but the signature by this key is left
    /// to be checked.
    fn checked_content<'a>(
        &self,
        seq: u64,
        signed: &'a [u8],
    ) -> Result<(Header<'a>, &VerifyingKey), Forgery> {
        let (header, key) = self.placed_header(seq, signed)?;
        // Hashes are cheaper than a signature, and a forger's are mostly wrong.
        let is_genuine = header.is_genuine_whole(signed);
        is_genuine.then_some((header, key)).ok_or(Forgery::Content)
    }

    /// Returns the header of this update, not verified, and the key of its era.
    fn placed_header<'a>(
        &self,
        seq: u64,
        signed: &'a [u8],
    ) -> Result<(Header<'a>, &VerifyingKey), Forgery> {
        let (era, key_id) = self.trusted_era(seq)?;
        let header = placed(signed, (seq, era.incarnation, key_id))?;
        Ok((header, &era.key))
    }

    /// Returns the era of an update and the number of its key, if that counts.
    fn trusted_era(&self, seq: u64) -> Result<(&Era, KeyId), Forgery> {
        let (era, key_id) = self.find_era(seq).ok_or(Forgery::Unsigned)?;
        let is_other = |trusted: &Vec<VerifyingKey>| !trusted.contains(&era.key);
        match self.trusted.as_ref().is_some_and(is_other) {
            true => Err(Forgery::UnknownKey(key_id)),
            false => Ok((era, key_id)),
        }
    }
}

/// Returns the header at the beginning of these bytes, not verified, if it states this number,
/// incarnation and key.
fn placed(signed: &[u8], place: (u64, Uuid, KeyId)) -> Result<Header<'_>, Forgery> {
    let header = Header::parse(signed)?;
    let stated = (header.seq(), header.incarnation(), header.key_id());
    (stated == place)
        .then_some(header)
        .ok_or(Forgery::Misplaced)
}
