//! Ed25519 (RFC 8032), for every signature of flexfeed but those of TLS.
//!
//! Verification is stricter than RFC 8032 demands: keys of small order are refused, for which a
//! signature of any message can be made without a private key, and so is an `S` that is not reduced
//! (section 5.1.7), so that no other signature can be made out of a genuine one.
//!
//! [`verify`] computes `R` and compares its encoding; [`verify_all`] checks a random linear
//! combination of all equations. Without the private key, no signatures can be made that the two
//! judge differently, but with a probability of 2^-128. Its holder can make some that one of them
//! takes and the other may refuse (with an `R` off by a point of small order, or in an encoding
//! that no signer writes), and gains nothing that a proper signature would not give.

use ed25519_dalek::{Signature, Signer, SigningKey, Verifier, VerifyingKey, verify_batch};

/// Length of a public key in bytes.
pub const PUBLIC_KEY_LEN: usize = 32;
/// Length of a signature in bytes.
pub const SIGNATURE_LEN: usize = 64;

/// Private key, erased from memory when it is dropped.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// The private key of this seed (RFC 8032 section 5.1.5); `None` if verification would refuse
    /// its public key.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Option<Self> {
        let key = SigningKey::from_bytes(seed);
        (!key.verifying_key().is_weak()).then_some(SecretKey(key))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public_key(&self) -> [u8; PUBLIC_KEY_LEN] {
        self.0.verifying_key().to_bytes()
    }

    /// Signs a message.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(message).to_bytes()
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// Whether this key signed the message.
#[must_use]
pub fn verify(key: &[u8; PUBLIC_KEY_LEN], message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
    let signature = Signature::from_bytes(signature);
    parse(key).is_some_and(|key| key.verify(message, &signature).is_ok())
}

/// Whether this key signed all of these messages, in half of the time that [`verify`] takes for
/// dozens of them. If not, [`verify`] finds those that it did not sign.
#[must_use]
pub fn verify_all(
    key: &[u8; PUBLIC_KEY_LEN],
    messages: &[&[u8]],
    signatures: &[[u8; SIGNATURE_LEN]],
) -> bool {
    if let ([message], [signature]) = (messages, signatures) {
        return verify(key, message, signature);
    }
    let signatures: Vec<_> = signatures.iter().map(Signature::from_bytes).collect();
    parse(key).is_some_and(|key| {
        let keys = vec![key; messages.len()];
        verify_batch(messages, &signatures, &keys).is_ok()
    })
}

/// Reads a public key; `None` for one of small order, and for bytes that are none.
fn parse(key: &[u8; PUBLIC_KEY_LEN]) -> Option<VerifyingKey> {
    let key = VerifyingKey::from_bytes(key).ok()?;
    (!key.is_weak()).then_some(key)
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;
    use proptest::prelude::*;

    use super::*;

    /// RFC 8032 section 7.1, TEST 1 to 3: seed, public key, message and signature.
    const VECTORS: [[&str; 4]; 3] = [
        [
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
             5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ],
        [
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ],
        [
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
             18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ],
    ];
    /// Order of the group (RFC 8032 section 5.1), little-endian.
    const ORDER: &str = "edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010";

    fn bytes<const N: usize>(text: &str) -> [u8; N] {
        let bytes = HEXLOWER.decode(text.as_bytes()).unwrap();
        bytes.try_into().unwrap()
    }

    #[test]
    fn vectors_of_rfc_8032() {
        for [seed, key, message, signature] in VECTORS {
            let secret = SecretKey::from_seed(&bytes(seed)).unwrap();
            let (key, signature) = (bytes(key), bytes(signature));
            let message = HEXLOWER.decode(message.as_bytes()).unwrap();
            assert_eq!(secret.public_key(), key);
            assert_eq!(secret.sign(&message), signature);
            assert!(verify(&key, &message, &signature));
            assert!(verify_all(&key, &[&message[..]; 3], &[signature; 3]));
            let other = [&message[..], b"x"].concat();
            assert!(!verify(&key, &other, &signature));
            assert!(!verify_all(&key, &[&message, &other], &[signature; 2]));
        }
        assert!(!format!("{:?}", SecretKey::from_seed(&[1; 32])).contains('1'));
    }

    /// `S` plus the order of the group fulfils the equation as well.
    #[test]
    fn an_s_that_is_not_reduced_is_refused() {
        let secret = SecretKey::from_seed(&[1; 32]).unwrap();
        let (key, genuine) = (secret.public_key(), secret.sign(b"message"));
        let mut other = genuine;
        let mut carry = 0;
        for (byte, add) in other[32..].iter_mut().zip(bytes::<32>(ORDER)) {
            carry += u16::from(*byte) + u16::from(add);
            (*byte, carry) = (carry as u8, carry >> 8);
        }
        assert_eq!(carry, 0);
        assert!(verify_all(&key, &[&b"message"[..]; 2], &[genuine; 2]));
        assert!(!verify(&key, b"message", &other));
        assert!(!verify_all(&key, &[&b"message"[..]; 2], &[genuine, other]));
    }

    /// With the neutral element as key and as `R`, and `S` 0, the equation holds for any message.
    #[test]
    fn keys_of_small_order_are_refused() {
        let (mut key, mut signature) = ([0; 32], [0; 64]);
        (key[0], signature[0]) = (1, 1);
        let parsed = VerifyingKey::from_bytes(&key).unwrap();
        let is_taken = parsed.verify(b"message", &Signature::from_bytes(&signature));
        assert!(is_taken.is_ok(), "or else there is nothing to refuse");
        assert!(!verify(&key, b"message", &signature));
        assert!(!verify_all(&key, &[&b"message"[..]; 2], &[signature; 2]));
    }

    proptest! {
        /// A batch is taken only if each of its signatures is.
        #[test]
        fn a_batch_agrees_with_its_parts(
            count in 1_usize..40,
            changed in prop::option::of((any::<prop::sample::Index>(), 0_usize..64, 0_u32..8)),
        ) {
            let secret = SecretKey::from_seed(&[1; 32]).unwrap();
            let key = secret.public_key();
            let messages: Vec<[u8; 8]> = (0..count as u64).map(u64::to_be_bytes).collect();
            let messages: Vec<&[u8]> = messages.iter().map(|message| &message[..]).collect();
            let mut signatures: Vec<_> =
                messages.iter().map(|message| secret.sign(message)).collect();
            if let Some((at, byte, bit)) = changed {
                at.get_mut(&mut signatures)[byte] ^= 1 << bit;
            }
            let mut pairs = messages.iter().zip(&signatures);
            let each = pairs.all(|(message, signature)| verify(&key, message, signature));
            prop_assert_eq!(each, changed.is_none());
            prop_assert_eq!(verify_all(&key, &messages, &signatures), each);
        }
    }
}
