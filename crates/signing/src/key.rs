//! Keys of both ends.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::ed25519::{self, SecretKey};
use crate::endorsement::{self, Endorsement};
use crate::header::{Header, Statement, put_header};
use crate::{SALT_LEN, header};

/// Subject of a signature. What is signed for one means nothing for another, nor for any other
/// protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Update,
    Message,
}

impl Subject {
    /// Returns the first bytes of what is signed.
    const fn context(self) -> &'static [u8] {
        match self {
            Subject::Update => b"flexfeed update 1\0",
            Subject::Message => b"flexfeed message 1\0",
        }
    }
}

/// Beginning of a public key as text.
const TEXT_PREFIX: &str = "ed25519:";

/// Number by which a header names its key: the first 8 bytes of the public key's SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Public key of a source; as text `ed25519:` and 43 characters of Base64url.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VerifyingKey(pub [u8; 32]);

/// Text that is no public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not {TEXT_PREFIX} and the 43 Base64url characters of a public key (A-Z a-z 0-9 - _)")]
pub struct KeyTextError;

impl fmt::Display for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TEXT_PREFIX}{}", BASE64URL_NOPAD.encode(&self.0))
    }
}

impl FromStr for VerifyingKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let encoded = text.strip_prefix(TEXT_PREFIX).ok_or(KeyTextError)?;
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok();
        let key = bytes.and_then(|bytes| bytes.try_into().ok());
        key.map(VerifyingKey).ok_or(KeyTextError)
    }
}

impl VerifyingKey {
    /// Returns its number.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let hash = ring::digest::digest(&ring::digest::SHA256, &self.0);
        let mut id = [0; 8];
        id.copy_from_slice(&hash.as_ref()[..8]);
        KeyId(id)
    }
}

/// Header that its key did not sign for this channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the header of the update is not signed by the source's key")]
pub struct ForgedHeader;

/// Failure to sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SignError {
    /// Seed that is no key.
    #[error("the signing key is damaged")]
    Seed,
    /// Content or number too large for a header.
    #[error("an update of {0} bytes cannot be signed: the header has room for less")]
    TooLong(usize),
}

/// Private key of a source.
pub struct Signer {
    secret: SecretKey,
    key: VerifyingKey,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Signer {
    /// The private key of this seed (RFC 8032 section 5.1.5).
    ///
    /// # Errors
    /// [`SignError::Seed`] if the seed is no key.
    pub fn from_seed(seed: &[u8; 32]) -> Result<Self, SignError> {
        let secret = SecretKey::from_seed(seed).ok_or(SignError::Seed)?;
        let key = VerifyingKey(secret.public_key());
        Ok(Signer { secret, key })
    }

    /// Returns the public key.
    #[must_use]
    pub fn key(&self) -> VerifyingKey {
        self.key
    }

    /// Returns the signed update: the header, its signature, and the content. `salt` are random
    /// bytes that nobody could foresee who chose the content.
    ///
    /// # Errors
    /// [`SignError::TooLong`] if the statement or the content does not fit a header.
    pub fn sign(
        &self,
        statement: &Statement<'_>,
        salt: &[u8; SALT_LEN],
        content: &[u8],
    ) -> Result<Vec<u8>, SignError> {
        self.sign_subject(Subject::Update, statement, salt, content)
    }

    /// Returns a signed message: like a signed update, with the message's number in the place of
    /// `seq`, and of no use as an update.
    ///
    /// # Errors
    /// [`SignError::TooLong`] if the statement or the content does not fit a header.
    pub fn sign_message(
        &self,
        statement: &Statement<'_>,
        salt: &[u8; SALT_LEN],
        content: &[u8],
    ) -> Result<Vec<u8>, SignError> {
        self.sign_subject(Subject::Message, statement, salt, content)
    }

    fn sign_subject(
        &self,
        subject: Subject,
        statement: &Statement<'_>,
        salt: &[u8; SALT_LEN],
        content: &[u8],
    ) -> Result<Vec<u8>, SignError> {
        let too_long = || SignError::TooLong(content.len());
        let mut signed = Vec::with_capacity(header::length(content.len()) + content.len());
        put_header(&mut signed, statement, self.key.id(), salt, content).ok_or_else(too_long)?;
        let message = message(subject, statement.channel, &signed[header::PREFIX_LEN..]);
        signed.extend_from_slice(&self.secret.sign(&message));
        signed.extend_from_slice(content);
        Ok(signed)
    }

    /// Returns the endorsement of another key by this one.
    #[must_use]
    pub fn endorse(&self, subject: VerifyingKey) -> Endorsement {
        Endorsement {
            signer: self.key,
            subject,
            signature: self.secret.sign(&endorsement::message(&subject)),
        }
    }
}

/// Returns the bytes that a signature is about.
fn message(subject: Subject, channel: &str, header: &[u8]) -> Zeroizing<Vec<u8>> {
    let context = subject.context();
    let length = context.len() + 8 + channel.len() + header.len();
    let mut message = Zeroizing::new(Vec::with_capacity(length));
    message.extend_from_slice(context);
    message.extend_from_slice(&(channel.len() as u64).to_be_bytes());
    message.extend_from_slice(channel.as_bytes());
    message.extend_from_slice(header);
    message
}

impl Header<'_> {
    /// Checks that this key signed the header for an update of this channel.
    ///
    /// # Errors
    /// [`ForgedHeader`] if not.
    pub fn verify(&self, key: &VerifyingKey, channel: &str) -> Result<(), ForgedHeader> {
        self.verify_subject(Subject::Update, key, channel)
    }

    pub(crate) fn verify_subject(
        &self,
        subject: Subject,
        key: &VerifyingKey,
        channel: &str,
    ) -> Result<(), ForgedHeader> {
        let message = message(subject, channel, self.signed_bytes());
        let verifies = ed25519::verify(&key.0, &message, self.signature());
        verifies.then_some(()).ok_or(ForgedHeader)
    }

    /// Whether this key signed all of these headers for updates of this channel, by one check.
    pub(crate) fn verify_all<'a>(
        headers: impl Iterator<Item = &'a Header<'a>> + Clone,
        key: &VerifyingKey,
        channel: &str,
    ) -> bool {
        let signed = headers.clone().map(Header::signed_bytes);
        let messages: Vec<_> = signed
            .map(|signed| message(Subject::Update, channel, signed))
            .collect();
        let messages: Vec<&[u8]> = messages.iter().map(|message| &message[..]).collect();
        let signatures: Vec<_> = headers.map(|header| *header.signature()).collect();
        ed25519::verify_all(&key.0, &messages, &signatures)
    }
}
