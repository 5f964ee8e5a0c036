//! The frames about flows: FC_ANNOUNCE, FC_STATE, FC_KEY, FC_RUNG, FC_WINDOW (protocol.md sections
//! 4.5 to 4.8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::relay::RelayHint;
use super::{MAX_FRAME, MAX_NAME};
use crate::authentication::{AuthenticationParameters, FlowAuthentication, PublicKey};
use crate::fec::FecParameters;
use crate::protect::{FlowSecret, SECRET_LEN};
use crate::wire::{BufMutExt, Reader, WireError, version_of};
use crate::{Cause, FlowId, PathId};

const TLV_FLOW_INDEX: u64 = 0x01;
const TLV_CHANNEL: u64 = 0x02;
const TLV_ENDPOINTS: u64 = 0x03;
const TLV_RELAYS: u64 = 0x04;
const TLV_HEARTBEAT: u64 = 0x05;
const TLV_AUTHENTICATION: u64 = 0x06;
const TLV_FEC: u64 = 0x07;
const TLV_COPIES: u64 = 0x09;
const TLV_STREAM_SIGNATURES: u64 = 0x0a;

/// The most endpoints that one FC_ANNOUNCE lists.
const MAX_ENDPOINTS: usize = 64;

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
    /// The flow is gone: receivers stop listening and forget it.
    pub withdrawn: bool,
    /// Where its packets can be had by multicast; empty for a flow that only exists as copies.
    pub endpoints: Vec<Endpoint>,
    /// AMT relays that forward those groups, as far as the source knows; it may know none.
    pub relays: Vec<RelayHint>,
    /// Whether the source copies the flow's packets to receivers that ask for it (rung 3).
    pub copies: bool,
    /// Maximum acknowledgement delay.
    pub ack_delay: Duration,
    /// The flow's part of its path ids.
    pub flow_index: u64,
    /// The channel that it carries, by its number in WELCOME.
    pub channel: u64,
    /// Interval of PINGs on an idle flow.
    pub heartbeat: Duration,
    /// Parts of the flow that are authenticated, if any.
    pub authentication: Option<FlowAuthentication>,
    /// Its repair symbols, if it may send any.
    pub fec: Option<FecParameters>,
}

impl Announce {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        // The draft's fixed fields name the first endpoint; null addresses stand for any source, or
        // for no endpoint at all.
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
        out.put_ip(first.and_then(|e| e.source).unwrap_or(null(version)));
        out.put_ip(first.map_or(null(version), |e| e.group.ip()));
        out.extend_from_slice(&first.map_or(0, |e| e.group.port()).to_be_bytes());
        out.extend_from_slice(&(self.ack_delay.as_millis() as u64).to_be_bytes());
        put_tlv(out, TLV_FLOW_INDEX, &varint_bytes(self.flow_index));
        put_tlv(out, TLV_CHANNEL, &varint_bytes(self.channel));
        if !self.withdrawn {
            let mut list = Vec::new();
            for endpoint in &self.endpoints {
                list.push(version_of(endpoint.group.ip()));
                list.push(u8::from(endpoint.source.is_some()));
                if let Some(source) = endpoint.source {
                    list.put_ip(source);
                }
                list.put_ip(endpoint.group.ip());
                list.extend_from_slice(&endpoint.group.port().to_be_bytes());
            }
            put_tlv(out, TLV_ENDPOINTS, &list);
            if !self.relays.is_empty() {
                let mut list = Vec::new();
                self.relays.iter().for_each(|relay| relay.put(&mut list));
                put_tlv(out, TLV_RELAYS, &list);
            }
        }
        put_tlv(
            out,
            TLV_HEARTBEAT,
            &varint_bytes(self.heartbeat.as_millis() as u64),
        );
        match &self.authentication {
            Some(FlowAuthentication::Packets(AuthenticationParameters { tag_flow, key })) => {
                put_tlv(out, TLV_AUTHENTICATION, &[&tag_flow.0[..], &key.0].concat());
            }
            Some(FlowAuthentication::Streams(key)) => {
                put_tlv(out, TLV_STREAM_SIGNATURES, &key.0);
            }
            None => {}
        }
        if let Some(fec) = self.fec {
            put_tlv(out, TLV_FEC, &[fec.scheme, fec.span]);
        }
        if self.copies {
            put_tlv(out, TLV_COPIES, &[]);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_ANNOUNCE";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let version = r.u8()?;
        let source = r.ip(version)?;
        let group = r.ip(version)?;
        let port = r.u16()?;
        let ack_delay = Duration::from_millis(r.u64()?.min(10_000));
        let mut announce = Announce {
            flow,
            sequence,
            withdrawn: false,
            endpoints: Vec::new(),
            relays: Vec::new(),
            copies: false,
            ack_delay,
            flow_index: 0,
            channel: 0,
            heartbeat: Duration::from_secs(1),
            authentication: None,
            fec: None,
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
                TLV_AUTHENTICATION => {
                    let parameters = AuthenticationParameters {
                        tag_flow: FlowId(value.array()?),
                        key: PublicKey(value.array()?),
                    };
                    announce.authentication = Some(FlowAuthentication::Packets(parameters));
                }
                TLV_STREAM_SIGNATURES => {
                    let key = PublicKey(value.array()?);
                    announce.authentication = Some(FlowAuthentication::Streams(key));
                }
                TLV_FEC => {
                    announce.fec = Some(FecParameters {
                        scheme: value.u8()?,
                        span: value.u8()?,
                    });
                }
                TLV_COPIES => announce.copies = true,
                TLV_RELAYS => RelayHint::read_list(&mut value, &mut announce.relays)?,
                TLV_ENDPOINTS => {
                    listed = true;
                    while value.remaining() > 0 {
                        if announce.endpoints.len() >= MAX_ENDPOINTS {
                            return Err(WireError::invalid(WHAT, "more than 64 endpoints"));
                        }
                        let version = value.u8()?;
                        let source = match value.u8()? {
                            0 => None,
                            1 => Some(value.ip(version)?),
                            _ => {
                                return Err(WireError::invalid(
                                    WHAT,
                                    "a source flag other than 0 and 1",
                                ));
                            }
                        };
                        let group = SocketAddr::new(value.ip(version)?, value.u16()?);
                        announce.endpoints.push(Endpoint { group, source });
                    }
                }
                _ => {}
            }
        }
        match (listed, group.is_unspecified()) {
            (true, _) => {}
            (false, true) => {
                announce.withdrawn = true;
                announce.relays.clear();
            }
            (false, false) => announce.endpoints.push(Endpoint {
                group: SocketAddr::new(group, port),
                source: (!source.is_unspecified()).then_some(source),
            }),
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

/// Content of an FC_STATE.
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
    /// The action.
    pub action: Action,
    /// By which path; 0 where there is none yet.
    pub path: PathId,
    /// The FC_KEY sequence that the receiver holds.
    pub key_sequence: u64,
    /// For LEAVE: why.
    pub cause: Option<Cause>,
    /// For READY: the largest packet number that has arrived on the path since the last FC_RUNG.
    pub largest: Option<u64>,
}

impl State {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.extend_from_slice(&(self.action as u64).to_be_bytes());
        out.put_varint(self.path.0);
        out.put_varint(self.key_sequence);
        match self.action {
            Action::Leave => {
                if let Some(cause) = self.cause {
                    out.put_varint(cause as u64);
                }
            }
            Action::Ready => {
                if let Some(largest) = self.largest {
                    out.put_varint(largest);
                }
            }
            Action::Join => {}
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
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
        let more = match r.remaining() {
            0 => None,
            _ => Some(r.varint()?),
        };
        let (cause, largest) = match action {
            Action::Leave => (more.and_then(Cause::from_number), None),
            Action::Ready => (None, more),
            Action::Join => (None, None),
        };
        Ok(State {
            flow,
            sequence,
            action,
            path,
            key_sequence,
            cause,
            largest,
        })
    }
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

impl Key {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.put_varint(self.first_pn);
        put_secret(out, &self.secret);
        out.extend_from_slice(&self.algorithm.to_be_bytes());
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_KEY";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let first_pn = r.varint()?;
        Ok(Key {
            flow,
            sequence,
            first_pn,
            secret: secret(r, WHAT)?,
            algorithm: r.u64()?,
        })
    }
}

/// FC_RUNG: the source's decision on the receiver's rung (protocol.md section 4.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RungNotice {
    /// The flow.
    pub flow: FlowId,
    /// Grows with each FC_RUNG for this flow and receiver.
    pub sequence: u64,
    /// The path by which the receiver is a member, or the unicast path.
    pub path: PathId,
    /// As a member: the cut, the first packet that it owes an acknowledgement for. On unicast: the
    /// first packet that counts as a new proof.
    pub first_pn: u64,
    /// Why.
    pub cause: Cause,
    /// As a member: where the channel's bytes are counted from for FC_WINDOW.
    pub anchor: Option<Anchor>,
}

/// A fixed point of a channel's byte count: the encoded update `seq` begins at `offset`, and each
/// later one where the one before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The update.
    pub seq: u64,
    /// Bytes of the channel before it.
    pub offset: u64,
}

/// FC_WINDOW: how many bytes of a flow's channel the receiver grants, counted as [`Anchor`] says
/// (protocol.md section 4.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The flow.
    pub flow: FlowId,
    /// Grows with each FC_WINDOW of the sender for this flow.
    pub sequence: u64,
    /// The channel offset up to which the flow may send.
    pub offset: u64,
}

impl Window {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.put_varint(self.offset);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_WINDOW";
        Ok(Window {
            flow: flow(r, WHAT)?,
            sequence: r.varint()?,
            offset: r.varint()?,
        })
    }
}

impl RungNotice {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.put_varint(self.path.0);
        out.put_varint(self.first_pn);
        out.put_varint(self.cause as u64);
        if let Some(anchor) = self.anchor {
            out.put_varint(anchor.seq);
            out.put_varint(anchor.offset);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_RUNG";
        let flow = flow(r, WHAT)?;
        let sequence = r.varint()?;
        let path = PathId(r.varint()?);
        let first_pn = r.varint()?;
        // A later version may know more causes; the move itself is what counts.
        let cause = Cause::from_number(r.varint()?).unwrap_or(Cause::Ejected);
        let anchor = if r.remaining() > 0 {
            Some(Anchor {
                seq: r.varint()?,
                offset: r.varint()?,
            })
        } else {
            None
        };
        Ok(RungNotice {
            flow,
            sequence,
            path,
            first_pn,
            cause,
            anchor,
        })
    }
}

pub(super) fn put_flow(out: &mut Vec<u8>, flow: FlowId) {
    out.push(FlowId::LEN as u8);
    out.extend_from_slice(&flow.0);
}

pub(super) fn flow(r: &mut Reader<'_>, what: &'static str) -> Result<FlowId, WireError> {
    if usize::from(r.u8()?) != FlowId::LEN {
        return Err(WireError::invalid(
            what,
            "a Flow ID that is not 8 bytes long",
        ));
    }
    Ok(FlowId(r.array()?))
}

pub(super) fn put_secret(out: &mut Vec<u8>, secret: &FlowSecret) {
    out.put_prefixed(secret.as_bytes());
}

pub(super) fn secret(r: &mut Reader<'_>, what: &'static str) -> Result<FlowSecret, WireError> {
    let bytes = r.prefixed(MAX_NAME)?;
    if bytes.len() != SECRET_LEN {
        return Err(WireError::invalid(
            what,
            "a secret that is not 32 bytes long",
        ));
    }
    let mut secret = FlowSecret::default();
    secret.as_mut_bytes().copy_from_slice(bytes);
    Ok(secret)
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
