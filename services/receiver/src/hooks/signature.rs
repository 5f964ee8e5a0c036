//! Signatures of webhooks, in the Standard Webhooks form: `v1,` and the Base64 of the HMAC-SHA-256
//! of `ID.TIMESTAMP.BODY`.

use std::fmt;

use data_encoding::BASE64;
use ring::hmac;

/// Before a secret whose rest is the key in Base64.
const PREFIX: &[u8] = b"whsec_";

/// The key of a webhook.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Key {
    /// From a secret: `whsec_` and the key in Base64, or the key itself.
    ///
    /// # Errors
    /// In words, without the secret.
    pub fn from_secret(secret: &[u8]) -> Result<Self, &'static str> {
        let key = match secret.strip_prefix(PREFIX) {
            Some(text) => BASE64.decode(text).map_err(
                |_| "the webhook's secret begins with whsec_, but what follows is no Base64",
            )?,
            None => secret.to_vec(),
        };
        if key.is_empty() {
            return Err("the webhook's secret is empty");
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// The value of `webhook-signature`.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", BASE64.encode(context.sign().as_ref()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_published_example() {
        let key = Key::from_secret(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = key.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn other_secrets_are_the_key_itself() {
        let plain = Key::from_secret(b"hello").unwrap().sign("i", 1, b"x");
        let same = Key::from_secret(b"whsec_aGVsbG8=")
            .unwrap()
            .sign("i", 1, b"x");
        assert_eq!(plain, same);
        for (secret, word) in [
            (&b""[..], "empty"),
            (b"whsec_", "empty"),
            (b"whsec_*", "Base64"),
        ] {
            assert!(Key::from_secret(secret).unwrap_err().contains(word));
        }
        assert_eq!(
            format!("{:?}", Key::from_secret(b"hello").unwrap()),
            "(secret)"
        );
    }
}
