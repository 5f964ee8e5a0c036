//! The control stream: `type | length | body` frames on stream 0 of the unicast path (protocol.md section 4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use uuid::Uuid;

use crate::protect::FlowSecret;
use crate::wire::{Put, Reader, WireError};
use crate::{Cause, Cursor, FlowId, PathId};

/// The longest body of a control frame that an end accepts, in bytes.
pub const MAX_FRAME: usize = 64 << 10;
/// The most channels that one HELLO or WELCOME names.
pub const MAX_CHANNELS: usize = 256;
/// The longest name of a receiver or a channel, in bytes.
pub const MAX_NAME: usize = 255;

const HELLO: u64 = 0x01;
const WELCOME: u64 = 0x02;
const REFUSED: u64 = 0x03;
const CURSOR: u64 = 0x04;
const FC_ANNOUNCE: u64 = 0x10;
const FC_STATE: u64 = 0x11;
const FC_KEY: u64 = 0x12;
const FC_RUNG: u64 = 0x14;

const TLV_FLOW_INDEX: u64 = 0x01;
const TLV_CHANNEL: u64 = 0x02;
const TLV_ENDPOINTS: u64 = 0x03;
const TLV_HEARTBEAT: u64 = 0x05;

/// A capability that a HELLO may list: the receiver can join IPv4 multicast groups.
pub const CAPABILITY_MULTICAST_IPV4: u64 = 0x01;

/// What proves that a receiver may have the group key.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// None at all.
    None,
    /// The token of an enrolment link.
    Token(Vec<u8>),
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credential::None => "None",
            Credential::Token(_) => "Token(…)",
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
    /// What it can do, as numbers of protocol.md section 4.1; unknown ones mean nothing.
    pub capabilities: Vec<u64>,
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

/// Why a source turns a receiver away. The connection is closed behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The token or credential is not valid.
    BadCredential = 1,
    /// There is no such channel.
    UnknownChannel = 2,
    /// The HELLO makes no sense.
    BadHello = 3,
    /// The source cannot answer now; try again later.
    Unavailable = 4,
}

impl Refusal {
    /// The refusal with this number on the wire.
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Refusal::BadCredential,
            2 => Refusal::UnknownChannel,
            3 => Refusal::BadHello,
            4 => Refusal::Unavailable,
            _ => return None,
        })
    }
}

/// One way to reach a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The group and the UDP port.
    pub group: SocketAddr,
    /// The source to join for (SSM), or `None` for any source (ASM).
    pub source: Option<IpAddr>,
}

/// FC_ANNOUNCE: a flow exists, or has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// The flow.
    pub flow: FlowId,
    /// A higher one replaces what was announced, a lower one is ignored.
    pub sequence: u64,
    /// Where its packets can be had; empty withdraws the flow.
    pub endpoints: Vec<Endpoint>,
    /// How long an acknowledgement may be held back.
    pub ack_delay: Duration,
    /// The flow's part of its path ids.
    pub flow_index: u64,
    /// The channel that it carries, by its number in WELCOME.
    pub channel: u64,
    /// How often an idle flow shows that it is alive.
    pub heartbeat: Duration,
}

/// What an FC_STATE says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The receiver wants to be on the flow and asks for its key.
    Join = 1,
    /// The receiver is off the flow.
    Leave = 2,
    /// Packets arrived and decrypted on the path.
    Ready = 3,
}

/// FC_STATE: what a receiver does about a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The flow.
    pub flow: FlowId,
    /// Grows with each FC_STATE of the sender for this flow.
    pub sequence: u64,
    /// What it does.
    pub action: Action,
    /// By which path; 0 where there is none yet.
    pub path: PathId,
    /// The FC_KEY sequence that the receiver holds.
    pub key_sequence: u64,
    /// For LEAVE: why.
    pub cause: Option<Cause>,
}

/// FC_KEY: the secret of a key epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The flow.
    pub flow: FlowId,
    /// The epoch; its low bit is the key phase bit of the packets.
    pub sequence: u64,
    /// The first packet number that is protected with it.
    pub first_pn: u64,
    /// The secret that the keys are derived from.
    pub secret: FlowSecret,
    /// The AEAD, as a TLS cipher-suite number.
    pub algorithm: u64,
}

/// FC_RUNG: the source's decision where the receiver stands (protocol.md section 4.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RungNotice {
    /// The flow.
    pub flow: FlowId,
    /// Grows with each FC_RUNG for this flow and receiver.
    pub sequence: u64,
    /// The path by which the receiver is a member, or the unicast path.
    pub path: PathId,
    /// As a member: the cut, the first packet that it owes an acknowledgement for. On unicast: the first packet that counts as a new proof.
    pub first_pn: u64,
    /// Why.
    pub cause: Cause,
}

/// A frame of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Receiver to source, first of all.
    Hello(Hello),
    /// Source to receiver: you are served.
    Welcome(Vec<WelcomeChannel>),
    /// Source to receiver: you are not.
    Refused {
        /// A [`Refusal`] number; unknown ones are as final as BadHello.
        code: u64,
        /// For people.
        reason: String,
    },
    /// Receiver to source: these outputs reach so far.
    Cursors(Vec<Cursor>),
    /// Source to receiver.
    Announce(Announce),
    /// Receiver to source.
    State(State),
    /// Source to receiver.
    Key(Key),
    /// Source to receiver.
    Rung(RungNotice),
}

fn put_flow(out: &mut Vec<u8>, flow: FlowId) {
    out.push(FlowId::LEN as u8);
    out.extend_from_slice(&flow.0);
}

fn flow(r: &mut Reader<'_>, what: &'static str) -> Result<FlowId, WireError> {
    if usize::from(r.u8()?) != FlowId::LEN {
        return Err(WireError::invalid(
            what,
            "a Flow ID that is not 8 bytes long",
        ));
    }
    Ok(FlowId(r.array()?))
}

fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
}

fn ip(r: &mut Reader<'_>, version: u8, what: &'static str) -> Result<IpAddr, WireError> {
    match version {
        4 => Ok(Ipv4Addr::from(r.array::<4>()?).into()),
        6 => Ok(Ipv6Addr::from(r.array::<16>()?).into()),
        _ => Err(WireError::invalid(what, "an IP version other than 4 and 6")),
    }
}

fn version_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 4 } else { 6 }
}

fn put_tlv(out: &mut Vec<u8>, kind: u64, value: &[u8]) {
    out.put_varint(kind);
    out.put_prefixed(value);
}

fn varint_bytes(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_varint(value);
    out
}

fn count(r: &mut Reader<'_>, max: usize, what: &'static str) -> Result<usize, WireError> {
    let count = r.varint()?;
    if count > max as u64 {
        Err(WireError::invalid(what, "too long a list"))
    } else {
        Ok(count as usize)
    }
}

impl Hello {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.receiver.as_bytes());
        out.put_prefixed(self.name.as_bytes());
        out.put_prefixed(self.software.as_bytes());
        let (kind, secret): (u8, &[u8]) = match &self.credential {
            Credential::None => (0, &[]),
            Credential::Token(token) => (1, token),
        };
        out.push(kind);
        out.put_prefixed(secret);
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

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "HELLO";
        let receiver = Uuid::from_bytes(r.array()?);
        let name = r.text(MAX_NAME)?;
        let software = r.text(MAX_NAME)?;
        let credential = match (r.u8()?, r.prefixed(MAX_NAME)?) {
            (0, _) => Credential::None,
            (1, token) => Credential::Token(token.to_vec()),
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

fn put_cursor(out: &mut Vec<u8>, cursor: &Cursor) {
    out.extend_from_slice(cursor.incarnation.as_bytes());
    out.put_varint(cursor.seq);
}

fn cursor(r: &mut Reader<'_>) -> Result<Cursor, WireError> {
    Ok(Cursor {
        incarnation: Uuid::from_bytes(r.array()?),
        seq: r.varint()?,
    })
}

impl Announce {
    fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        // The draft's fixed fields name the first endpoint; null addresses stand for any source, or for no endpoint at all.
        let null = |version| {
            if version == 4 {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                IpAddr::from(Ipv6Addr::UNSPECIFIED)
            }
        };
        let first = self.endpoints.first();
        let version = first.map_or(4, |e| version_of(e.group.ip()));
        out.push(version);
        put_ip(out, first.and_then(|e| e.source).unwrap_or(null(version)));
        put_ip(out, first.map_or(null(version), |e| e.group.ip()));
        out.extend_from_slice(&first.map_or(0, |e| e.group.port()).to_be_bytes());
        out.extend_from_slice(&(self.ack_delay.as_millis() as u64).to_be_bytes());
        put_tlv(out, TLV_FLOW_INDEX, &varint_bytes(self.flow_index));
        put_tlv(out, TLV_CHANNEL, &varint_bytes(self.channel));
        if !self.endpoints.is_empty() {
            let mut list = Vec::new();
            for endpoint in &self.endpoints {
                list.push(version_of(endpoint.group.ip()));
                list.push(u8::from(endpoint.source.is_some()));
                if let Some(source) = endpoint.source {
                    put_ip(&mut list, source);
                }
                put_ip(&mut list, endpoint.group.ip());
                list.extend_from_slice(&endpoint.group.port().to_be_bytes());
            }
            put_tlv(out, TLV_ENDPOINTS, &list);
        }
        put_tlv(
            out,
            TLV_HEARTBEAT,
            &varint_bytes(self.heartbeat.as_millis() as u64),
        );
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_ANNOUNCE";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let version = r.u8()?;
        let source = ip(r, version, WHAT)?;
        let group = ip(r, version, WHAT)?;
        let port = r.u16()?;
        let ack_delay = Duration::from_millis(r.u64()?.min(10_000));
        let mut announce = Announce {
            flow,
            sequence,
            endpoints: Vec::new(),
            ack_delay,
            flow_index: 0,
            channel: 0,
            heartbeat: Duration::from_secs(1),
        };
        let mut listed = false;
        while r.remaining() > 0 {
            let kind = r.varint()?;
            let mut value = Reader::new(WHAT, r.prefixed(MAX_FRAME)?);
            match kind {
                TLV_FLOW_INDEX => announce.flow_index = value.varint()?,
                TLV_CHANNEL => announce.channel = value.varint()?,
                TLV_HEARTBEAT => {
                    announce.heartbeat = Duration::from_millis(value.varint()?.clamp(10, 3_600_000))
                }
                TLV_ENDPOINTS => {
                    listed = true;
                    while value.remaining() > 0 {
                        let version = value.u8()?;
                        let source = match value.u8()? {
                            0 => None,
                            1 => Some(ip(&mut value, version, WHAT)?),
                            _ => {
                                return Err(WireError::invalid(
                                    WHAT,
                                    "a source flag other than 0 and 1",
                                ));
                            }
                        };
                        let group = SocketAddr::new(ip(&mut value, version, WHAT)?, value.u16()?);
                        announce.endpoints.push(Endpoint { group, source });
                    }
                }
                _ => {}
            }
        }
        if !listed && !group.is_unspecified() {
            let source = (!source.is_unspecified()).then_some(source);
            announce.endpoints.push(Endpoint {
                group: SocketAddr::new(group, port),
                source,
            });
        }
        if announce
            .endpoints
            .iter()
            .any(|e| !e.group.ip().is_multicast() || e.group.port() == 0)
        {
            return Err(WireError::invalid(
                WHAT,
                "an endpoint that is no multicast group with a port",
            ));
        }
        if announce.flow_index > (1 << 32) {
            return Err(WireError::invalid(WHAT, "too large a flow-index"));
        }
        Ok(announce)
    }
}

impl State {
    fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.extend_from_slice(&(self.action as u64).to_be_bytes());
        out.put_varint(self.path.0);
        out.put_varint(self.key_sequence);
        if let Some(cause) = self.cause {
            out.put_varint(cause as u64);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_STATE";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let action = match r.u64()? {
            1 => Action::Join,
            2 => Action::Leave,
            3 => Action::Ready,
            _ => {
                return Err(WireError::invalid(
                    WHAT,
                    "an action other than JOIN, LEAVE and READY",
                ));
            }
        };
        let path = PathId(r.varint()?);
        let key_sequence = r.varint()?;
        let cause = if r.remaining() > 0 {
            Cause::from_number(r.varint()?)
        } else {
            None
        };
        Ok(State {
            flow,
            sequence,
            action,
            path,
            key_sequence,
            cause,
        })
    }
}

impl Key {
    fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.put_varint(self.first_pn);
        out.put_prefixed(&self.secret.0);
        out.extend_from_slice(&self.algorithm.to_be_bytes());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_KEY";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let first_pn = r.varint()?;
        let secret = r
            .prefixed(MAX_NAME)?
            .try_into()
            .map_err(|_| WireError::invalid(WHAT, "a secret that is not 32 bytes long"))?;
        Ok(Key {
            flow,
            sequence,
            first_pn,
            secret: FlowSecret(secret),
            algorithm: r.u64()?,
        })
    }
}

impl RungNotice {
    fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.put_varint(self.path.0);
        out.put_varint(self.first_pn);
        out.put_varint(self.cause as u64);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_RUNG";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let path = PathId(r.varint()?);
        let first_pn = r.varint()?;
        let cause =
            Cause::from_number(r.varint()?).ok_or(WireError::invalid(WHAT, "an unknown cause"))?;
        Ok(RungNotice {
            flow,
            sequence,
            path,
            first_pn,
            cause,
        })
    }
}

impl Control {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let kind = match self {
            Control::Hello(hello) => {
                hello.put(&mut body);
                HELLO
            }
            Control::Welcome(channels) => {
                body.put_varint(channels.len() as u64);
                for c in channels {
                    body.put_varint(c.channel);
                    body.put_prefixed(c.name.as_bytes());
                    body.extend_from_slice(c.incarnation.as_bytes());
                    body.put_varint(c.head);
                    body.put_varint(c.first);
                }
                WELCOME
            }
            Control::Refused { code, reason } => {
                body.put_varint(*code);
                body.put_prefixed(reason.as_bytes());
                REFUSED
            }
            Control::Cursors(cursors) => {
                body.put_varint(cursors.len() as u64);
                cursors.iter().for_each(|c| put_cursor(&mut body, c));
                CURSOR
            }
            Control::Announce(announce) => {
                announce.put(&mut body);
                FC_ANNOUNCE
            }
            Control::State(state) => {
                state.put(&mut body);
                FC_STATE
            }
            Control::Key(key) => {
                key.put(&mut body);
                FC_KEY
            }
            Control::Rung(notice) => {
                notice.put(&mut body);
                FC_RUNG
            }
        };
        out.put_varint(kind);
        out.put_prefixed(&body);
    }

    /// Reads a body; `None` for a type that this version does not know. Bytes behind the known fields are left for later versions.
    fn decode(kind: u64, body: &[u8]) -> Result<Option<Self>, WireError> {
        let mut r = Reader::new(name_of(kind), body);
        let r = &mut r;
        Ok(Some(match kind {
            HELLO => Control::Hello(Hello::read(r)?),
            WELCOME => {
                let mut channels = Vec::new();
                for _ in 0..count(r, MAX_CHANNELS, "WELCOME")? {
                    channels.push(WelcomeChannel {
                        channel: r.varint()?,
                        name: r.text(MAX_NAME)?,
                        incarnation: Uuid::from_bytes(r.array()?),
                        head: r.varint()?,
                        first: r.varint()?,
                    });
                }
                Control::Welcome(channels)
            }
            REFUSED => Control::Refused {
                code: r.varint()?,
                reason: r.text(MAX_FRAME)?,
            },
            CURSOR => {
                let cursors = (0..count(r, MAX_CHANNELS, "CURSOR")?)
                    .map(|_| cursor(r))
                    .collect::<Result<_, _>>()?;
                Control::Cursors(cursors)
            }
            FC_ANNOUNCE => Control::Announce(Announce::read(r)?),
            FC_STATE => Control::State(State::read(r)?),
            FC_KEY => Control::Key(Key::read(r)?),
            FC_RUNG => Control::Rung(RungNotice::read(r)?),
            _ => return Ok(None),
        }))
    }
}

fn name_of(kind: u64) -> &'static str {
    match kind {
        HELLO => "HELLO",
        WELCOME => "WELCOME",
        REFUSED => "REFUSED",
        CURSOR => "CURSOR",
        FC_ANNOUNCE => "FC_ANNOUNCE",
        FC_STATE => "FC_STATE",
        FC_KEY => "FC_KEY",
        FC_RUNG => "FC_RUNG",
        _ => "control frame",
    }
}

/// Cuts the bytes of a control stream into frames; unknown types are skipped. Holds at most one frame of [`MAX_FRAME`] bytes.
#[derive(Debug, Default)]
pub struct ControlReader {
    buffer: Vec<u8>,
    /// What of an unknown frame is still to come and to be ignored.
    skip: u64,
}

impl ControlReader {
    /// A reader at the stream's beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the stream's next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let skip = self.skip.min(bytes.len() as u64);
        self.skip -= skip;
        bytes = &bytes[skip as usize..];
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame. An error is final: the stream cannot be read on.
    pub fn next_frame(&mut self) -> Result<Option<Control>, WireError> {
        loop {
            let mut r = Reader::new("control frame", &self.buffer);
            let (Ok(kind), Ok(len)) = (r.varint(), r.varint()) else {
                return Ok(None);
            };
            let head = r.offset();
            let known = name_of(kind) != "control frame";
            if !known {
                // Skipped without being held, however long it claims to be.
                let here = len.min(r.remaining() as u64);
                self.skip = len - here;
                self.buffer.drain(..head + here as usize);
                continue;
            }
            if len > MAX_FRAME as u64 {
                return Err(WireError::TooLong {
                    what: name_of(kind),
                    len,
                    max: MAX_FRAME as u64,
                });
            }
            let end = head + len as usize;
            let Some(body) = self.buffer.get(head..end) else {
                return Ok(None);
            };
            let frame = Control::decode(kind, body)?;
            self.buffer.drain(..end);
            if frame.is_some() {
                return Ok(frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn samples() -> Vec<Control> {
        let flow = FlowId([1, 2, 3, 4, 5, 6, 7, 8]);
        let incarnation = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        vec![
            Control::Hello(Hello {
                receiver: Uuid::from_u128(7),
                name: "r1".into(),
                software: "flexfeed-receiver/0.1.0".into(),
                credential: Credential::Token(b"secret".to_vec()),
                channels: vec![
                    (
                        "lore".into(),
                        Some(Cursor {
                            incarnation,
                            seq: 300,
                        }),
                    ),
                    ("news".into(), None),
                ],
                capabilities: vec![CAPABILITY_MULTICAST_IPV4],
            }),
            Control::Welcome(vec![WelcomeChannel {
                channel: 1,
                name: "lore".into(),
                incarnation,
                head: 70_000,
                first: 301,
            }]),
            Control::Refused {
                code: Refusal::BadCredential as u64,
                reason: "no such token".into(),
            },
            Control::Cursors(vec![Cursor {
                incarnation,
                seq: 301,
            }]),
            Control::Announce(Announce {
                flow,
                sequence: 1,
                endpoints: vec![
                    Endpoint {
                        group: "232.70.70.1:4434".parse().unwrap(),
                        source: Some("10.0.0.1".parse().unwrap()),
                    },
                    Endpoint {
                        group: "[ff3e::8000:1]:4434".parse().unwrap(),
                        source: None,
                    },
                ],
                ack_delay: Duration::from_millis(25),
                flow_index: 3,
                channel: 1,
                heartbeat: Duration::from_secs(1),
            }),
            Control::State(State {
                flow,
                sequence: 2,
                action: Action::Ready,
                path: PathId(13),
                key_sequence: 0,
                cause: None,
            }),
            Control::State(State {
                flow,
                sequence: 3,
                action: Action::Leave,
                path: PathId(13),
                key_sequence: 0,
                cause: Some(Cause::HeartbeatLost),
            }),
            Control::Key(Key {
                flow,
                sequence: 0,
                first_pn: 0,
                secret: FlowSecret([9; 32]),
                algorithm: 0x1301,
            }),
            Control::Rung(RungNotice {
                flow,
                sequence: 1,
                path: PathId(13),
                first_pn: 1234,
                cause: Cause::Joined,
            }),
        ]
    }

    #[test]
    fn frames_round_trip_in_pieces_of_any_size_and_unknown_ones_are_skipped() {
        let mut bytes = Vec::new();
        for frame in samples() {
            frame.encode(&mut bytes);
            bytes.put_varint(0x1f_0000);
            bytes.put_prefixed(&[0xaa; 100]);
        }
        for piece in [1, 2, 7, 64, bytes.len()] {
            let (mut reader, mut got) = (ControlReader::new(), Vec::new());
            for chunk in bytes.chunks(piece) {
                reader.push(chunk);
                while let Some(frame) = reader.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, samples());
            assert!(reader.buffer.is_empty());
        }
    }

    #[test]
    fn an_announce_without_endpoints_withdraws() {
        let mut bytes = Vec::new();
        let withdrawn = Announce {
            flow: FlowId([1; 8]),
            sequence: 9,
            endpoints: vec![],
            ack_delay: Duration::ZERO,
            flow_index: 0,
            channel: 1,
            heartbeat: Duration::from_secs(1),
        };
        Control::Announce(withdrawn.clone()).encode(&mut bytes);
        let mut reader = ControlReader::new();
        reader.push(&bytes);
        assert_eq!(
            reader.next_frame().unwrap(),
            Some(Control::Announce(withdrawn))
        );
    }

    #[test]
    fn a_huge_unknown_frame_takes_no_memory_and_a_huge_known_one_is_an_error() {
        let mut reader = ControlReader::new();
        let mut head = Vec::new();
        head.put_varint(0x777);
        head.put_varint(1 << 40);
        reader.push(&head);
        for _ in 0..1000 {
            assert_eq!(reader.next_frame(), Ok(None));
            reader.push(&[0; 1000]);
        }
        assert!(reader.buffer.len() <= 1000);
        let mut reader = ControlReader::new();
        reader.push(&[HELLO as u8, 0x80, 0x10, 0, 0]);
        assert!(matches!(
            reader.next_frame(),
            Err(WireError::TooLong { what: "HELLO", .. })
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in prop::sample::select(vec![1u8, 2, 3, 4, 0x10, 0x11, 0x12, 0x14])) {
            let mut framed = vec![kind];
            framed.put_prefixed(&bytes);
            let mut reader = ControlReader::new();
            reader.push(&framed);
            while let Ok(Some(_)) = reader.next_frame() {}
        }

        /// A sample with some bytes changed: decodes or fails, and what decodes encodes and decodes to the same.
        #[test]
        fn mutations(at in any::<prop::sample::Index>(), which in 0usize..9, byte in any::<u8>()) {
            let mut bytes = Vec::new();
            samples()[which].encode(&mut bytes);
            *at.get_mut(&mut bytes) = byte;
            let mut reader = ControlReader::new();
            reader.push(&bytes);
            if let Ok(Some(frame)) = reader.next_frame() {
                let mut again = Vec::new();
                frame.encode(&mut again);
                let mut reader = ControlReader::new();
                reader.push(&again);
                prop_assert_eq!(reader.next_frame(), Ok(Some(frame)));
            }
        }
    }
}
