//! The enrolment link: all that a receiver needs, in one line.

use std::fmt;

use anyhow::{Result, bail};
use data_encoding::BASE64URL_NOPAD;
use ring::digest::{SHA256, digest};
use url::Url;

use super::{DataFolder, PRIVATE, check_private, random};
use crate::config::show_pin;

const FILE: &str = "enrolment-link";

/// The first enrolment token. The folder holds it as part of the link; the store knows its hash.
pub struct Token(String);

// Tokens are secret; a derived one would show it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The token of the folder's link; `None` if it has no link.
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
            .and_then(|text| Url::parse(text.trim()).ok())
            .filter(|link| link.scheme() == "flexfeed")
            .map(|link| link.username().to_owned())
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

    /// A new one: 32 random bytes.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn make() -> Result<Self> {
        Ok(Self(BASE64URL_NOPAD.encode(&random()?)))
    }

    /// What the store keeps of it.
    pub fn hash(&self) -> [u8; 32] {
        token_hash(self.0.as_bytes())
    }

    /// The link with this token. `address` is HOST:PORT.
    /// A receiver takes a source with any of the pins.
    pub fn link(&self, address: &str, pins: &[[u8; 32]], channels: &[&str]) -> String {
        let mut link = format!("flexfeed://{}@{address}", self.0);
        let pins = pins.iter().map(|pin| format!("pin={}", show_pin(pin)));
        let channels = channels.iter().map(|channel| format!("ch={channel}"));
        for (at, part) in pins.chain(channels).enumerate() {
            link.push(if at == 0 { '?' } else { '&' });
            link.push_str(&part);
        }
        link
    }
}

/// What the store keeps of a token that a receiver presents: its SHA-256. Tokens are random and
/// long, so a faster hash than for passwords is no risk.
pub fn token_hash(presented: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    // SHA-256 has 32 bytes; zip stays in bounds whatever it has.
    for (to, from) in hash.iter_mut().zip(digest(&SHA256, presented).as_ref()) {
        *to = *from;
    }
    hash
}

/// How the link in the folder relates to the present settings.
#[derive(Debug, PartialEq, Eq)]
pub enum Saved {
    /// There was none.
    New,
    /// It said something else: another address, certificate or list of channels.
    Changed,
    /// It was the same.
    Same,
}

/// Keeps the link in the folder, readable by the owner only.
///
/// # Errors
/// The file cannot be read or written.
pub fn save(folder: &DataFolder, link: &str) -> Result<Saved> {
    let content = format!("{link}\n").into_bytes();
    let saved = match folder.read(FILE)? {
        None => Saved::New,
        Some(old) if old == content => return Ok(Saved::Same),
        Some(_) => Saved::Changed,
    };
    folder.write(FILE, &content, PRIVATE)?;
    Ok(saved)
}

/// Where the link is.
pub fn link_file(folder: &DataFolder) -> std::path::PathBuf {
    folder.file(FILE)
}
