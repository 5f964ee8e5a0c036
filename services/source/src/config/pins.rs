//! Pins: what receivers recognise the source's key by.

use data_encoding::BASE64URL_NOPAD;

const SHA256: &str = "sha256:";

/// As a link has it.
pub fn show(pin: &[u8; 32]) -> String {
    format!("{SHA256}{}", BASE64URL_NOPAD.encode(pin))
}

/// Reads one as a link has it.
pub(super) fn read(text: &str) -> Result<[u8; 32], String> {
    let wrong = || {
        "write a pin as enrolment links have it: sha256: and 43 characters, the SHA-256 of the \
         key's SubjectPublicKeyInfo in base64url"
            .to_owned()
    };
    let encoded = text.strip_prefix(SHA256).ok_or_else(wrong)?;
    let bytes = BASE64URL_NOPAD
        .decode(encoded.as_bytes())
        .map_err(|_| wrong())?;
    bytes.try_into().map_err(|_| wrong())
}
