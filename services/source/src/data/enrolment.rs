//! The enrolment link: everything that a receiver needs, in one line.

use std::fmt;

use anyhow::{Result, bail};
use data_encoding::BASE64URL_NOPAD;
use ring::digest::{SHA256, digest};
use service::link::Pin;
use signing::VerifyingKey;
use url::Url;

use super::{DataFolder, PRIVATE, check_private, random};

/// File of the link in the data folder.
pub const FILE: &str = "enrolment-link";

/// Longest enrolment link that receivers read, in bytes.
pub const MAX_LINK: usize = 4096;

/// First enrolment token. The folder holds it as part of the link; the store knows its hash.
pub struct Token(String);

// Tokens are secret; a derived implementation would print them.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Returns the token of the folder's link; `None` if there is no link.
    ///
    /// # Errors
    /// The file cannot be read or holds something else.
    pub fn load(folder: &DataFolder) -> Result<Option<Self>> {
        let Some(content) = folder.read(FILE)? else {
            return Ok(None);
        };
        check_private(&folder.file(FILE));
        let token = std::str::from_utf8(&content)
            .ok()
            .and_then(|text| token_of(text.trim()))
            .filter(|token| !token.is_empty());
        match token {
            Some(token) => Ok(Some(Self(token))),
            None => bail!(
                "{} does not hold an enrolment link (flexfeed://…): restore it, or remove it to \
                 have a new one made",
                folder.file(FILE).display()
            ),
        }
    }

    /// Makes a new token of 32 random bytes.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn make() -> Result<Self> {
        Ok(Self(BASE64URL_NOPAD.encode(&random()?)))
    }

    /// Returns the hash that the store keeps.
    pub fn hash(&self) -> [u8; 32] {
        token_hash(self.0.as_bytes())
    }

    /// Returns the [`link`] with this token.
    pub fn link(
        &self,
        address: &str,
        pins: &[[u8; 32]],
        key: Option<VerifyingKey>,
        channels: &[&str],
    ) -> String {
        link(&self.0, address, pins, key, channels)
    }
}

/// Returns the link with a token. `address` is HOST:PORT. A receiver accepts a source with any of
/// the pins, and hands on nothing that the key does not answer for.
pub fn link(
    token: &str,
    address: &str,
    pins: &[[u8; 32]],
    key: Option<VerifyingKey>,
    channels: &[impl fmt::Display],
) -> String {
    let mut link = format!("flexfeed://{token}@{address}");
    let pins = pins.iter().map(|pin| format!("pin={}", Pin(*pin)));
    let channels = channels.iter().map(|channel| format!("ch={channel}"));
    let key = key.map(|key| format!("key={key}"));
    for (at, part) in pins.chain(key).chain(channels).enumerate() {
        link.push(if at == 0 { '?' } else { '&' });
        link.push_str(&part);
    }
    link
}

/// Returns the token in a link; `None` if the text is no enrolment link.
pub fn token_of(link: &str) -> Option<String> {
    let link = Url::parse(link).ok()?;
    (link.scheme() == "flexfeed").then(|| link.username().to_owned())
}

/// Returns the hash that the store keeps of a presented token: its SHA-256. Tokens are random and
/// long, so a faster hash than for passwords is no risk.
pub fn token_hash(presented: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    // SHA-256 has 32 bytes; zip stays in bounds at any length.
    for (to, from) in hash.iter_mut().zip(digest(&SHA256, presented).as_ref()) {
        *to = *from;
    }
    hash
}

/// Relation of the link in the folder to the current settings.
#[derive(Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// There was no link.
    New,
    /// The link had another address, certificate or list of channels.
    Changed,
    /// The link was the same.
    Same,
}

/// Writes the link to the folder, readable by the owner only.
///
/// # Errors
/// The file cannot be read or written.
pub fn save(folder: &DataFolder, link: &str) -> Result<SaveOutcome> {
    let content = format!("{link}\n").into_bytes();
    let saved = match folder.read(FILE)? {
        None => SaveOutcome::New,
        Some(old) if old == content => return Ok(SaveOutcome::Same),
        Some(_) => SaveOutcome::Changed,
    };
    folder.write(FILE, &content, PRIVATE)?;
    Ok(saved)
}
