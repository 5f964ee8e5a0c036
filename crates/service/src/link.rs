//! Enrolment links: `flexfeed://TOKEN@host:port?pin=sha256:…&ch=lore`.
//!
//! A link has everything that a receiver needs: the token for the first admission, the source's
//! address, the SHA-256 of the public key that the source must show (its SubjectPublicKeyInfo, RFC
//! 7469 section 2.4), the key that must sign its updates, and the channels. A link without a token
//! is for receivers admitted before; without a pin the source must show a certificate of a public
//! authority. The token is a secret: neither `Debug` nor any error shows it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use signing::{KeyTextError, VerifyingKey};
use thiserror::Error;
use url::Url;

use crate::peer_text::plain;

/// Port of a link that names none.
pub const DEFAULT_PORT: u16 = 4433;

/// Longest link, in bytes.
const MAX_LINK: usize = 4096;

/// Longest token that a HELLO can carry, in bytes.
const MAX_TOKEN: usize = 255;

/// Longest name of a channel, in characters. Channels name files.
const MAX_CHANNEL: usize = 100;

/// Name that no channel can have, because the receiver's own file has it.
const RESERVED: &str = "status";

/// Largest number of signing keys in a link.
const MAX_KEYS: usize = 4;

/// Largest number of channels in a link.
pub const MAX_CHANNELS: usize = 64;

/// Words typed in place of a link by mistake.
const COMMANDS: [&str; 4] = ["status", "run", "doctor", "config"];

/// Example link, for messages.
const FORM: &str = "flexfeed://TOKEN@host:4433?pin=sha256:PIN&ch=lore";

/// Secret of a link: the text between `flexfeed://` and `@`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Returns the bytes for a HELLO; none if the link has no token.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Pin: the SHA-256 of the source's SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pin(pub [u8; 32]);

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", BASE64URL_NOPAD.encode(&self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Valid link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Token of the first admission; empty if the link has none.
    pub token: Token,
    /// Name or address; IPv6 without brackets.
    pub host: String,
    /// UDP port of the source.
    pub port: u16,
    /// Pins, at most two, one of which the source's key must match. Without any, its certificate is
    /// verified.
    pub pins: Vec<Pin>,
    /// Keys, at most four, one of which must answer for each update, by its own signature or that
    /// of a key that it vouches for. Without any, the source states its keys.
    pub keys: Vec<VerifyingKey>,
    /// Channels, at least one, each once, in the link's order.
    pub channels: Vec<String>,
}

/// Error in a link.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}. A link looks like {FORM}")]
pub struct LinkError(#[from] Problem);

/// Invalid part of a link.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// Nothing but white space.
    #[error("the link is empty")]
    Empty,
    /// More than 4,096 bytes.
    #[error("the link is longer than {MAX_LINK} bytes")]
    TooLong,
    /// Another scheme, or none.
    #[error("the link does not begin with flexfeed://")]
    Scheme,
    /// Command after an option, taken for the link.
    #[error(
        "{0:?} is no link; as a command it has to come first: flexfeed-receiver {0} --data DIR"
    )]
    Command(&'static str),
    /// Nothing before the `@`.
    #[error("the link has no token before the @ (a link without a token has no @, either)")]
    NoToken,
    /// `TOKEN:something@`.
    #[error("the link has a colon between flexfeed:// and the @, where only the token may stand")]
    Password,
    /// Invalid character in the token.
    #[error(
        "the link's token has a character that tokens do not have (they are letters, digits, - . _ \
         ~), or is longer than {MAX_TOKEN}"
    )]
    Token,
    /// No host, or an invalid one.
    #[error(
        "the link's host, between the @ and the port, is neither a name nor an address (an IPv6 \
         address has brackets)"
    )]
    Host,
    /// Not 1 to 65535.
    #[error("the link's port is not a number from 1 to 65535")]
    Port,
    /// `/something` or `#something`.
    #[error("the link has a {0} that does not belong there")]
    Extra(&'static str),
    /// Invalid `pin=`.
    #[error(
        "pin={0} is not sha256: and the 43 Base64url characters of a SHA-256 (A-Z a-z 0-9 - _)"
    )]
    Pin(String),
    /// Three or more pins.
    #[error("the link has more than two different pins")]
    Pins,
    /// Invalid `key=`.
    #[error("key={0}: {1}")]
    Key(String, KeyTextError),
    /// More than four keys.
    #[error("the link has more than {MAX_KEYS} different keys")]
    Keys,
    /// No `ch=`.
    #[error("the link names no channel: ch= is missing. {SHELL_HINT}")]
    NoChannel,
    /// Invalid `ch=`.
    #[error(
        "{0:?} is no channel name (1 to {MAX_CHANNEL} letters, digits, - _ . and no . in front)"
    )]
    Channel(String),
    /// `ch=status`.
    #[error(
        "no channel can be called {RESERVED}: its feed would be {RESERVED}.json, where a \
         receiver's own status is. The operator of the source has to give it another name"
    )]
    Reserved,
    /// More than 64 channels.
    #[error("the link names more than {MAX_CHANNELS} channels")]
    Channels,
}

const SHELL_HINT: &str = "In a shell, put the link in single quotes: an & ends a command there";

impl Link {
    /// Parses a link, with white space around it. Also returns the names of unknown parameters,
    /// which the caller should warn about.
    ///
    /// # Errors
    /// The invalid part, with an example of a link; never quotes the token.
    pub fn parse(text: &str) -> Result<(Link, Vec<String>), LinkError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Problem::Empty.into());
        }
        if text.len() > MAX_LINK {
            return Err(Problem::TooLong.into());
        }
        for command in COMMANDS {
            if text == command {
                return Err(Problem::Command(command).into());
            }
        }
        let scheme = text
            .get(..11)
            .is_some_and(|s| s.eq_ignore_ascii_case("flexfeed://"));
        if !scheme {
            return Err(Problem::Scheme.into());
        }
        let authority = text.get(11..).unwrap_or_default();
        let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
        match authority.rsplit_once('@') {
            Some(("", _)) => return Err(Problem::NoToken.into()),
            Some((token, _)) if token.contains(':') => return Err(Problem::Password.into()),
            // Without an @ there is no token.
            Some(_) | None => {}
        }
        let url = Url::parse(text).map_err(|error| match error {
            url::ParseError::InvalidPort => Problem::Port,
            _ => Problem::Host,
        })?;
        let token = url.username();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        if token.len() > MAX_TOKEN || !token.chars().all(fits) {
            return Err(Problem::Token.into());
        }
        if !matches!(url.path(), "" | "/") {
            return Err(Problem::Extra("path").into());
        }
        if url.fragment().is_some() {
            return Err(Problem::Extra("fragment (#…)").into());
        }
        let port = match url.port() {
            Some(0) => return Err(Problem::Port.into()),
            Some(port) => port,
            None => DEFAULT_PORT,
        };
        let parameters = parameters(&url)?;
        let link = Link {
            token: Token(token.to_owned()),
            host: host(url.host_str().unwrap_or_default()).ok_or(Problem::Host)?,
            port,
            pins: parameters.pins,
            keys: parameters.keys,
            channels: parameters.channels,
        };
        Ok((link, parameters.unknown))
    }

    /// Returns `host:port`, with brackets around an IPv6 address.
    #[must_use]
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns the link as text, **with its token**: never for a log.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        let at = if self.token.0.is_empty() { "" } else { "@" };
        let mut text = format!("flexfeed://{}{at}{}?", self.token.0, self.server());
        let pins = self.pins.iter().map(|pin| format!("pin={pin}"));
        let channels = self.channels.iter().map(|channel| format!("ch={channel}"));
        let keys = self.keys.iter().map(|key| format!("key={key}"));
        text.push_str(
            &pins
                .chain(keys)
                .chain(channels)
                .collect::<Vec<_>>()
                .join("&"),
        );
        text
    }
}

/// Replaces the token of every link in a text by `…`, for texts that quote the command line.
#[must_use]
pub fn redact(text: &str) -> String {
    const SCHEME: &str = "flexfeed://";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // The scheme in any case; ASCII lower-casing keeps all offsets.
    while let Some(at) = rest.to_ascii_lowercase().find(SCHEME) {
        let (before, link) = rest.split_at(at + SCHEME.len());
        out.push_str(before);
        out.push('…');
        // Up to the @, or, without one, the whole word, which may be the token.
        let word = link.find(char::is_whitespace).unwrap_or(link.len());
        let (word, after) = link.split_at(word);
        out.push_str(word.rfind('@').map_or("", |at| &word[at..]));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Query parameters of a link.
struct Parameters {
    pins: Vec<Pin>,
    keys: Vec<VerifyingKey>,
    channels: Vec<String>,
    /// Names of unknown parameters.
    unknown: Vec<String>,
}

fn parameters(url: &Url) -> Result<Parameters, Problem> {
    let (mut pins, mut keys) = (Vec::new(), Vec::new());
    let (mut channels, mut unknown) = (Vec::new(), Vec::new());
    for (name, value) in url.query_pairs() {
        match name.as_ref() {
            "pin" => {
                let pin = value.parse()?;
                if !pins.contains(&pin) {
                    pins.push(pin);
                }
            }
            "key" => {
                let key = value
                    .parse()
                    .map_err(|error| Problem::Key(plain(&value), error))?;
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            "ch" => {
                let channel = channel(&value)?;
                if !channels.contains(&channel) {
                    channels.push(channel);
                }
            }
            other => unknown.push(plain(other)),
        }
    }
    match (pins.len(), channels.len()) {
        _ if keys.len() > MAX_KEYS => Err(Problem::Keys),
        (3.., _) => Err(Problem::Pins),
        (_, 0) => Err(Problem::NoChannel),
        (_, n) if n > MAX_CHANNELS => Err(Problem::Channels),
        _ => Ok(Parameters {
            pins,
            keys,
            channels,
            unknown,
        }),
    }
}

impl FromStr for Pin {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let encoded = text.strip_prefix("sha256:").unwrap_or_default();
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok();
        let pin = bytes.and_then(|bytes| bytes.try_into().ok()).map(Pin);
        pin.ok_or_else(|| Problem::Pin(plain(text)))
    }
}

/// Parses the name of a channel, which names the channel's files, too.
///
/// # Errors
/// No channel can have the name.
pub fn channel(name: &str) -> Result<String, Problem> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let length = (1..=MAX_CHANNEL).contains(&name.len());
    match length && !name.starts_with('.') && name.chars().all(fits) {
        _ if name == RESERVED => Err(Problem::Reserved),
        true => Ok(name.to_owned()),
        false => Err(Problem::Channel(plain(name))),
    }
}

/// Parses the host of a URL, with brackets around IPv6.
fn host(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        return Some(address.to_string());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!text.is_empty() && text.len() <= 253 && text.chars().all(fits)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
