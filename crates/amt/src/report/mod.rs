//! Membership queries and reports: IGMP over IPv4 and MLD over IPv6 behind one interface.
//!
//! Writes IGMPv3 (RFC 3376) and MLDv2 (RFC 3810), with a Router Alert. Accepts these and, as far as
//! they have an equivalent, the earlier versions, with or without a Router Alert and from any
//! source address: many gateways use `0.0.0.0` and `::`.

mod igmp;
mod mld;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::ip::{self, Checksum, Header, ICMP_V6, IGMP, IpError};

/// Most sources of one record.
pub const MAX_SOURCES: usize = 512;

/// Most records of one report.
pub const MAX_RECORDS: usize = 512;

/// Kind of a group record (RFC 3376, section 4.2.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// MODE_IS_INCLUDE: the state is these sources only.
    IsIn,
    /// MODE_IS_EXCLUDE: the state is all sources but these.
    IsEx,
    /// CHANGE_TO_INCLUDE_MODE: the state becomes these sources only.
    ToIn,
    /// CHANGE_TO_EXCLUDE_MODE: the state becomes all sources but these.
    ToEx,
    /// ALLOW_NEW_SOURCES: these sources as well.
    Allow,
    /// BLOCK_OLD_SOURCES: these sources no longer.
    Block,
}

impl RecordKind {
    fn from_wire(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => RecordKind::IsIn,
            2 => RecordKind::IsEx,
            3 => RecordKind::ToIn,
            4 => RecordKind::ToEx,
            5 => RecordKind::Allow,
            6 => RecordKind::Block,
            _ => return None,
        })
    }

    fn to_wire(self) -> u8 {
        match self {
            RecordKind::IsIn => 1,
            RecordKind::IsEx => 2,
            RecordKind::ToIn => 3,
            RecordKind::ToEx => 4,
            RecordKind::Allow => 5,
            RecordKind::Block => 6,
        }
    }

    /// Whether several records with a part of the sources each mean the same as one with all of
    /// them.
    fn divisible(self) -> bool {
        !matches!(self, RecordKind::IsEx | RecordKind::ToEx)
    }
}

/// Group record of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Meaning of the sources.
    pub kind: RecordKind,
    /// The group.
    pub group: IpAddr,
    /// Sources, of the group's family; at most [`MAX_SOURCES`].
    pub sources: Vec<IpAddr>,
}

/// General query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneralQuery {
    /// Querier's robustness variable; written as 0 to 7.
    pub qrv: u8,
    /// Query interval. Written in whole seconds, rounded down to a value that the field can hold.
    pub qqic: Duration,
    /// Time over which answers are spread. Written in tenths of a second (IGMP) or in milliseconds
    /// (MLD), rounded down.
    pub max_response: Duration,
}

impl GeneralQuery {
    /// Values for queries that do not give them: of the versions before IGMPv3 and MLDv2, or with
    /// fields of zero (RFC 3376, sections 8.1 and 8.2).
    pub const DEFAULT: GeneralQuery = GeneralQuery {
        qrv: 2,
        qqic: Duration::from_secs(125),
        max_response: Duration::from_secs(10),
    };

    pub(crate) fn from_wire(qrv: u8, qqic: u8, max_response: Duration) -> Self {
        let (qrv, qqic) = (qrv & 7, u64::from(float8(qqic)));
        GeneralQuery {
            qrv: if qrv == 0 { Self::DEFAULT.qrv } else { qrv },
            qqic: if qqic == 0 {
                Self::DEFAULT.qqic
            } else {
                Duration::from_secs(qqic)
            },
            max_response,
        }
    }

    /// Returns the QRV field: zero for more than it can hold (RFC 3376, section 4.1.6).
    pub(crate) fn qrv_code(&self) -> u8 {
        if self.qrv > 7 { 0 } else { self.qrv }
    }

    pub(crate) fn qqic_code(&self) -> u8 {
        to_float8(u32::try_from(self.qqic.as_secs()).unwrap_or(u32::MAX))
    }
}

/// Decodes an 8-bit code of IGMPv3, with mantissa and exponent from 128 on (RFC 3376, section
/// 4.1.1).
pub(crate) fn float8(code: u8) -> u32 {
    if code < 0x80 {
        return u32::from(code);
    }
    (u32::from(code & 0x0f) | 0x10) << (u32::from(code >> 4 & 7) + 3)
}

/// Returns the code of the largest number that is not above `value`.
pub(crate) fn to_float8(value: u32) -> u8 {
    if value < 0x80 {
        return value as u8;
    }
    if value >= 0x1f << 10 {
        return 0xff;
    }
    let exponent = value.ilog2() - 7;
    0x80 | (exponent as u8) << 4 | (value >> (exponent + 3) & 0x0f) as u8
}

/// Decodes the same with 16 bits, of MLDv2 (RFC 3810, section 5.1.3).
pub(crate) fn float16(code: u16) -> u32 {
    if code < 0x8000 {
        return u32::from(code);
    }
    (u32::from(code & 0x0fff) | 0x1000) << (u32::from(code >> 12 & 7) + 3)
}

/// Returns the code of the largest number that is not above `value`.
pub(crate) fn to_float16(value: u32) -> u16 {
    if value < 0x8000 {
        return value as u16;
    }
    if value >= 0x1fff << 10 {
        return 0xffff;
    }
    let exponent = value.ilog2() - 15;
    0x8000 | (exponent as u16) << 12 | (value >> (exponent + 3) & 0x0fff) as u16
}

/// Returns the IGMP or ICMPv6 message in a packet, with a valid checksum, and whether it is MLD.
fn message(packet: &[u8]) -> Result<(&[u8], bool), IpError> {
    let header = Header::parse(packet)?;
    let mld = header.source.is_ipv6();
    let (what, sum) = match header.protocol {
        IGMP if !mld => ("IGMP", Checksum::default()),
        ICMP_V6 if mld => {
            let len = header.payload.len() as u32;
            let sum = ip::pseudo(header.source, header.destination, ICMP_V6, len);
            ("MLD", sum)
        }
        other => return Err(IpError::Protocol(other)),
    };
    if sum.with(header.payload).finish() != 0 {
        return Err(IpError::Checksum { what });
    }
    Ok((header.payload, mld))
}

/// Parses an IP packet with a general query: IGMPv1, v2 and v3, MLDv1 and v2.
///
/// # Errors
/// A length or checksum is wrong, or the packet is a query for one group, or no query.
pub fn parse_query(packet: &[u8]) -> Result<GeneralQuery, IpError> {
    match message(packet)? {
        (message, false) => igmp::parse_query(message),
        (message, true) => mld::parse_query(message),
    }
}

/// Parses an IP packet with a report: IGMPv3 and MLDv2, and those of earlier versions, whose joins
/// become [`RecordKind::IsEx`] and whose leaves [`RecordKind::ToIn`], both without sources. Records
/// of unknown kinds, or for addresses that are not groups, are ignored. ALLOW and BLOCK with only
/// the unspecified address, outside of source-specific groups, are a join and a leave as well.
///
/// # Errors
/// A length or checksum is wrong, the packet is no report, or it has too many records or sources.
pub fn parse_report(packet: &[u8]) -> Result<Vec<Record>, IpError> {
    match message(packet)? {
        (message, false) => igmp::parse_report(message),
        (message, true) => mld::parse_report(message),
    }
}

/// Appends an IP packet with a general query of IGMPv3 or MLDv2 from `from`, or from the
/// unspecified address if `from` is of the other family.
pub fn write_query(mld: bool, from: IpAddr, query: &GeneralQuery, out: &mut Vec<u8>) {
    if mld {
        let from = match from {
            IpAddr::V6(from) => from,
            IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
        };
        let message = mld::query(query);
        mld::put_packet(from, mld::ALL_NODES, &message, out);
    } else {
        let from = match from {
            IpAddr::V4(from) => from,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        igmp::put_packet(from, igmp::ALL_SYSTEMS, &igmp::query(query), out);
    }
}

/// Passes IP packets with IGMPv3 or MLDv2 reports of `records` to `each`, from the unspecified
/// address and at most `max_len` bytes long. Records of the other family are ignored.
///
/// A record with too many sources is divided, or truncated where division would change its meaning
/// ([`RecordKind::IsEx`], [`RecordKind::ToEx`]; RFC 3376, section 4.2.16). A record of which not
/// even one source fits is left out.
pub fn write_report(mld: bool, records: &[Record], max_len: usize, mut each: impl FnMut(&[u8])) {
    let limits = Limits::new(mld, max_len);
    let mut message = Message::new(mld);
    let mut packet = Vec::new();
    let mut flush = |message: &mut Message| {
        if message.records > 0 {
            packet.clear();
            message.put_packet(&mut packet);
            each(&packet);
        }
        *message = Message::new(mld);
    };
    let of_family = |address: &IpAddr| address.is_ipv6() == mld;
    for record in records.iter().filter(|record| of_family(&record.group)) {
        let sources: Vec<_> = record.sources.iter().filter(|s| of_family(s)).collect();
        // Room of an empty message.
        let most = limits.sources(Message::new(mld).bytes.len());
        let mut rest = &sources[..];
        if !record.kind.divisible() {
            rest = &rest[..rest.len().min(most.unwrap_or(0))];
        }
        loop {
            let room = limits.sources(message.bytes.len());
            // A record is divided only if it is too long for any packet.
            let fits = room.is_some_and(|room| rest.len() <= room) && !message.is_full();
            if !fits && message.records > 0 {
                flush(&mut message);
                continue;
            }
            let Some(room) = room.filter(|room| *room > 0 || rest.is_empty()) else {
                break;
            };
            let (now, later) = rest.split_at(rest.len().min(room));
            message.put(record.kind, record.group, now);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    flush(&mut message);
}

/// Bounds of a report.
struct Limits {
    /// Length of the IGMP or MLD message, in bytes.
    message: usize,
    /// Length of a record without sources, in bytes.
    record: usize,
    /// Length of a source, in bytes.
    source: usize,
}

impl Limits {
    fn new(mld: bool, max_len: usize) -> Self {
        let headers = if mld {
            ip::V6_HEADER + mld::ROUTER_ALERT.len()
        } else {
            ip::V4_HEADER + igmp::ROUTER_ALERT_LEN
        };
        let source = if mld { 16 } else { 4 };
        Limits {
            message: max_len.min(usize::from(u16::MAX)).saturating_sub(headers),
            record: 4 + source,
            source,
        }
    }

    /// Returns the room for sources of one more record after `used` bytes; `None` if the record
    /// does not fit.
    fn sources(&self, used: usize) -> Option<usize> {
        let room = self.message.checked_sub(used + self.record)?;
        Some((room / self.source).min(MAX_SOURCES))
    }
}

/// A report in progress.
struct Message {
    mld: bool,
    bytes: Vec<u8>,
    records: usize,
}

impl Message {
    fn new(mld: bool) -> Self {
        let kind = if mld { mld::REPORT_V2 } else { igmp::REPORT_V3 };
        Message {
            mld,
            bytes: vec![kind, 0, 0, 0, 0, 0, 0, 0],
            records: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.records == MAX_RECORDS
    }

    fn put(&mut self, kind: RecordKind, group: IpAddr, sources: &[&IpAddr]) {
        self.records += 1;
        self.bytes.extend_from_slice(&[kind.to_wire(), 0]);
        let count = (sources.len() as u16).to_be_bytes();
        self.bytes.extend_from_slice(&count);
        for address in [&group].into_iter().chain(sources.iter().copied()) {
            match address {
                IpAddr::V4(v4) => self.bytes.extend_from_slice(&v4.octets()),
                IpAddr::V6(v6) => self.bytes.extend_from_slice(&v6.octets()),
            }
        }
    }

    fn put_packet(&mut self, out: &mut Vec<u8>) {
        let count = (self.records as u16).to_be_bytes();
        if let Some(field) = self.bytes.get_mut(6..8) {
            field.copy_from_slice(&count);
        }
        if self.mld {
            mld::put_packet(Ipv6Addr::UNSPECIFIED, mld::ROUTERS_V2, &self.bytes, out);
        } else {
            igmp::put_packet(Ipv4Addr::UNSPECIFIED, igmp::ROUTERS_V3, &self.bytes, out);
        }
    }
}

/// Parses the records of an IGMPv3 or MLDv2 report, which have the same layout; `address` parses an
/// address of `size` bytes.
fn records(
    what: &'static str,
    message: &[u8],
    size: usize,
    address: impl Fn(&[u8]) -> Option<IpAddr>,
) -> Result<Vec<Record>, IpError> {
    let truncated = |need| IpError::Truncated {
        what,
        len: message.len(),
        need,
    };
    let [.., high, low] = message.first_chunk::<8>().ok_or(truncated(8))?;
    let count = usize::from(u16::from_be_bytes([*high, *low]));
    let too_many = |what, max| Err(IpError::TooMany { what, max });
    if count > MAX_RECORDS {
        return too_many("records", MAX_RECORDS);
    }
    let mut records = Vec::new();
    let mut at = 8;
    for _ in 0..count {
        let head = message.get(at..at + 4).ok_or(truncated(at + 4))?;
        let &[kind, auxiliary, high, low] = head else {
            return Err(truncated(at + 4));
        };
        let sources = usize::from(u16::from_be_bytes([high, low]));
        if sources > MAX_SOURCES {
            return too_many("sources", MAX_SOURCES);
        }
        let addresses_at = at + 4;
        let end = addresses_at + (1 + sources) * size;
        let addresses = message.get(addresses_at..end).ok_or(truncated(end))?;
        // Auxiliary data is skipped; its length counts words of 32 bits.
        at = end + usize::from(auxiliary) * 4;
        let mut addresses = addresses.chunks_exact(size).filter_map(&address);
        let group = addresses.next().filter(IpAddr::is_multicast);
        if let (Some(kind), Some(group)) = (RecordKind::from_wire(kind), group) {
            let sources = addresses.collect();
            records.push(any_source(Record {
                kind,
                group,
                sources,
            }));
        }
    }
    Ok(records)
}

/// Returns the meaning of ALLOW and BLOCK with only the unspecified address, which is no source:
/// VLC sends them over IPv6 to join and leave any source.
fn any_source(record: Record) -> Record {
    let unspecified = matches!(record.sources.as_slice(), [one] if one.is_unspecified());
    let kind = match record.kind {
        RecordKind::Allow => RecordKind::IsEx,
        RecordKind::Block => RecordKind::ToIn,
        _ => return record,
    };
    if !unspecified || is_source_specific(record.group) {
        return record;
    }
    Record {
        kind,
        sources: Vec::new(),
        ..record
    }
}

/// Whether a group is source-specific: 232.0.0.0/8 and ff3x::/32 (RFC 4607, section 1).
pub(crate) fn is_source_specific(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => matches!(ip.octets(), [232, ..]),
        IpAddr::V6(ip) => matches!(ip.octets(), [0xff, flags, 0, 0, ..] if flags & 0xf0 == 0x30),
    }
}

pub(crate) fn records_v4(message: &[u8]) -> Result<Vec<Record>, IpError> {
    records("IGMP", message, 4, |bytes| {
        Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into())
    })
}

pub(crate) fn records_v6(message: &[u8]) -> Result<Vec<Record>, IpError> {
    records("MLD", message, 16, |bytes| {
        Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into())
    })
}

/// Returns the report of a version without sources.
pub(crate) fn without_sources(kind: RecordKind, group: IpAddr) -> Vec<Record> {
    let sources = Vec::new();
    let record = Record {
        kind,
        group,
        sources,
    };
    if group.is_multicast() {
        vec![record]
    } else {
        Vec::new()
    }
}
