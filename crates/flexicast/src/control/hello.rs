//! HELLO and what answers it, and cursors (protocol.md sections 4.1 to 4.4).

use uuid::Uuid;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{MAX_CHANNELS, MAX_NAME};
use crate::Cursor;
use crate::wire::{BufMutExt, Reader, WireError};

/// A capability that a HELLO may list: the receiver can join IPv4 multicast groups.
pub const CAPABILITY_MULTICAST_IPV4: u64 = 0x01;
/// The receiver can join IPv6 multicast groups.
pub const CAPABILITY_MULTICAST_IPV6: u64 = 0x02;
/// The receiver takes copies of flow packets on its own connection's path (rung 3).
pub const CAPABILITY_COPIES: u64 = 0x03;
/// The receiver can get flows through an AMT relay (rung 2).
pub const CAPABILITY_AMT: u64 = 0x04;
/// The receiver can acknowledge by feedback packets.
pub const CAPABILITY_FEEDBACK: u64 = 0x05;
/// The receiver verifies signed updates.
pub const CAPABILITY_SIGNATURES: u64 = 0x06;
/// The receiver takes flows whose packets are authenticated.
pub const CAPABILITY_PACKET_AUTHENTICATION: u64 = 0x07;
/// The receiver takes flows whose streams are signed.
pub const CAPABILITY_STREAM_SIGNATURES: u64 = 0x08;
/// A capability that a HELLO may list: the receiver rebuilds packets from repair symbols.
pub const CAPABILITY_FEC: u64 = 0x09;
/// The receiver takes updates with a deadline: it knows EXPIRED and CLOCK.
pub const CAPABILITY_DEADLINES: u64 = 0x0a;
/// The receiver takes messages.
pub const CAPABILITY_MESSAGES: u64 = 0x0b;
/// The receiver merges the packets of two legs of a flow: it knows FC_LEGS.
pub const CAPABILITY_HITLESS: u64 = 0x0c;
/// The receiver rebuilds packets also from repair symbols that come on its connection.
pub const CAPABILITY_APART_SYMBOLS: u64 = 0x0d;

/// Bytes of an enrolment before its token: the receiver's credential and its instance.
const ENROL_HEAD: usize = 32 + 8;

/// Proof that a receiver may have the group key.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub enum Credential {
    /// None at all.
    None,
    /// The token of an enrolment link, and nothing that the receiver could be known by later.
    Token(Vec<u8>),
    /// A credential of the receiver's own making, and what lets it in the first time.
    Enrol {
        /// The token of an enrolment link; may be empty once the source knows the receiver.
        token: Vec<u8>,
        /// Random, made once and kept: by it the source knows the receiver again.
        secret: [u8; 32],
        /// Random, made at each start of the program: two of them with one receiver id are a copy
        /// and its original.
        instance: [u8; 8],
    },
}

impl Credential {
    /// Returns the instance of the receiver's program, if it states one.
    pub fn instance(&self) -> Option<[u8; 8]> {
        match self {
            Credential::Enrol { instance, .. } => Some(*instance),
            Credential::None | Credential::Token(_) => None,
        }
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credential::None => "None",
            Credential::Token(_) => "Token(…)",
            Credential::Enrol { .. } => "Enrol { … }",
        })
    }
}

/// The first frame of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Made once by the receiver and kept.
    pub receiver: Uuid,
    /// For people; need not be unique.
    pub name: String,
    /// Program and version, for people.
    pub software: String,
    /// Why it may receive.
    pub credential: Credential,
    /// The channels that it wants, each with how far it is.
    pub channels: Vec<(String, Option<Cursor>)>,
    /// Capabilities, as numbers of protocol.md section 4.1; unknown ones are ignored.
    pub capabilities: Vec<u64>,
}

impl Hello {
    /// At least as many bytes as the fields up to the credential take.
    pub(super) fn room(&self) -> usize {
        let token = match &self.credential {
            Credential::None => 0,
            Credential::Token(token) | Credential::Enrol { token, .. } => token.len(),
        };
        128 + self.name.len() + self.software.len() + token
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.receiver.as_bytes());
        out.put_prefixed(self.name.as_bytes());
        out.put_prefixed(self.software.as_bytes());
        match &self.credential {
            Credential::None => {
                out.push(0);
                out.put_prefixed(&[]);
            }
            Credential::Token(token) => {
                out.push(1);
                out.put_prefixed(token);
            }
            Credential::Enrol {
                token,
                secret,
                instance,
            } => {
                out.push(2);
                out.put_varint((secret.len() + instance.len() + token.len()) as u64);
                out.extend_from_slice(secret);
                out.extend_from_slice(instance);
                out.extend_from_slice(token);
            }
        }
        out.put_varint(self.channels.len() as u64);
        for (name, cursor) in &self.channels {
            out.put_prefixed(name.as_bytes());
            out.push(u8::from(cursor.is_some()));
            if let Some(cursor) = cursor {
                put_cursor(out, cursor);
            }
        }
        out.put_varint(self.capabilities.len() as u64);
        self.capabilities.iter().for_each(|c| out.put_varint(*c));
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "HELLO";
        let receiver = Uuid::from_bytes(r.array()?);
        let name = r.text(MAX_NAME)?;
        let software = r.text(MAX_NAME)?;
        let credential = match r.u8()? {
            0 => {
                r.prefixed(MAX_NAME)?;
                Credential::None
            }
            1 => Credential::Token(r.prefixed(MAX_NAME)?.to_vec()),
            2 => {
                let mut r = Reader::new(WHAT, r.prefixed(ENROL_HEAD + MAX_NAME)?);
                Credential::Enrol {
                    secret: r.array()?,
                    instance: r.array()?,
                    token: r.rest().to_vec(),
                }
            }
            _ => return Err(WireError::invalid(WHAT, "an unknown kind of credential")),
        };
        let mut channels = Vec::new();
        for _ in 0..count(r, MAX_CHANNELS, WHAT)? {
            let name = r.text(MAX_NAME)?;
            let cursor = match r.u8()? {
                0 => None,
                1 => Some(cursor(r)?),
                _ => return Err(WireError::invalid(WHAT, "a cursor flag other than 0 and 1")),
            };
            channels.push((name, cursor));
        }
        let capabilities = (0..count(r, MAX_CHANNELS, WHAT)?)
            .map(|_| r.varint())
            .collect::<Result<_, _>>()?;
        Ok(Hello {
            receiver,
            name,
            software,
            credential,
            channels,
            capabilities,
        })
    }
}

/// A capability that a WELCOME may list: the source answers NEED.
pub const SOURCE_ANSWERS_NEED: u64 = 0x01;
/// The source sends KEYS.
pub const SOURCE_SENDS_KEYS: u64 = 0x02;
/// The source keeps deadlines: it answers CLOCK and sends EXPIRED.
pub const SOURCE_KEEPS_TIME: u64 = 0x03;
/// The source takes FC_LEGS: a member may acknowledge what any of its legs brings.
pub const SOURCE_TAKES_LEGS: u64 = 0x0c;

/// The answer to a HELLO: the receiver is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Its channels.
    pub channels: Vec<WelcomeChannel>,
    /// Capabilities of the source, by their numbers in protocol.md section 4.2; unknown ones mean
    /// nothing.
    pub capabilities: Vec<u64>,
}

impl Welcome {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_varint(self.channels.len() as u64);
        for c in &self.channels {
            out.put_varint(c.channel);
            out.put_prefixed(c.name.as_bytes());
            out.extend_from_slice(c.incarnation.as_bytes());
            out.put_varint(c.head);
            out.put_varint(c.first);
        }
        if !self.capabilities.is_empty() {
            out.put_varint(self.capabilities.len() as u64);
            self.capabilities.iter().for_each(|c| out.put_varint(*c));
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "WELCOME";
        let mut channels = Vec::new();
        for _ in 0..count(r, MAX_CHANNELS, WHAT)? {
            channels.push(WelcomeChannel {
                channel: r.varint()?,
                name: r.text(MAX_NAME)?,
                incarnation: Uuid::from_bytes(r.array()?),
                head: r.varint()?,
                first: r.varint()?,
            });
        }
        // Sources before this list end here.
        let capabilities = if r.remaining() == 0 {
            Vec::new()
        } else {
            (0..count(r, MAX_CHANNELS, WHAT)?)
                .map(|_| r.varint())
                .collect::<Result<_, _>>()?
        };
        Ok(Welcome {
            channels,
            capabilities,
        })
    }
}

/// One channel of a WELCOME.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WelcomeChannel {
    /// Its number on this connection.
    pub channel: u64,
    /// Its name, as in HELLO.
    pub name: String,
    /// Its incarnation; where it differs from the cursor's, the receiver starts over at `first`.
    pub incarnation: Uuid,
    /// The last stored `seq`, 0 for none.
    pub head: u64,
    /// The first `seq` that will be delivered.
    pub first: u64,
}

/// Reason for which a source turns a receiver away. The connection is closed after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The token or credential is not valid.
    BadCredential = 1,
    /// There is no such channel.
    UnknownChannel = 2,
    /// The HELLO makes no sense.
    BadHello = 3,
    /// The source cannot answer now; try again later.
    Unavailable = 4,
    /// The source serves as many receivers as it can; try again later.
    TooMany = 5,
    /// Another receiver uses this receiver's id; try again later.
    IdInUse = 6,
}

impl Refusal {
    /// The refusal with this number on the wire.
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Refusal::BadCredential,
            2 => Refusal::UnknownChannel,
            3 => Refusal::BadHello,
            4 => Refusal::Unavailable,
            5 => Refusal::TooMany,
            6 => Refusal::IdInUse,
            _ => return None,
        })
    }
}

pub(super) fn put_cursor(out: &mut Vec<u8>, cursor: &Cursor) {
    out.extend_from_slice(cursor.incarnation.as_bytes());
    out.put_varint(cursor.seq);
}

pub(super) fn cursor(r: &mut Reader<'_>) -> Result<Cursor, WireError> {
    Ok(Cursor {
        incarnation: Uuid::from_bytes(r.array()?),
        seq: r.varint()?,
    })
}

pub(super) fn count(
    r: &mut Reader<'_>,
    max: usize,
    what: &'static str,
) -> Result<usize, WireError> {
    let count = r.varint()?;
    if count > max as u64 {
        Err(WireError::invalid(what, "too long a list"))
    } else {
        Ok(count as usize)
    }
}
