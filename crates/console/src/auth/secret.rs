//! Random texts that admit their holder. Only their hashes are stored.

use data_encoding::BASE64URL_NOPAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use store::Hash;
use subtle::ConstantTimeEq;

use crate::api::problem::Problem;

/// Number of random bytes in a secret.
const BYTES: usize = 32;

/// Prefix of API tokens, which makes leaked ones recognisable.
const TOKEN_PREFIX: &str = "flexfeed_";

/// The longest text that is taken for a secret.
const MOST: usize = 128;

/// Random bytes.
///
/// # Errors
/// The system gives none.
pub fn random() -> Result<[u8; BYTES], Problem> {
    let mut bytes = [0; BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        tracing::error!("system random source failed");
        Problem::internal()
    })?;
    Ok(bytes)
}

/// A new secret for a cookie, a link or a request.
///
/// # Errors
/// As [`random`].
pub fn new_secret() -> Result<String, Problem> {
    Ok(encode(&random()?))
}

/// A new API token.
///
/// # Errors
/// As [`random`].
pub fn new_token() -> Result<String, Problem> {
    Ok(format!("{TOKEN_PREFIX}{}", new_secret()?))
}

/// Bytes as text for addresses, cookies and headers.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

/// Returns the stored form of a secret; `None` if it is too long to be one.
#[must_use]
pub fn hash(secret: &str) -> Option<Hash> {
    if secret.is_empty() || secret.len() > MOST {
        return None;
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    Some(hash)
}

/// Whether a text is the one for these bytes, in the same time wherever it differs.
#[must_use]
pub fn is(text: &str, bytes: &[u8]) -> bool {
    let own = encode(bytes);
    own.as_bytes().ct_eq(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn secrets_are_new_and_known_again() {
        let (one, two) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), 43);
        assert_eq!(hash(&one), hash(&one));
        assert_ne!(hash(&one), hash(&two));
        assert_eq!(hash(""), None);
        assert_eq!(hash(&"x".repeat(1_000)), None);
        assert!(new_token().unwrap().starts_with("flexfeed_"));
        let bytes = random().unwrap();
        assert!(is(&encode(&bytes), &bytes));
        assert!(!is(&encode(&bytes)[1..], &bytes));
        assert!(!is("", &bytes));
    }
}
