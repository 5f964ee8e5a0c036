//! Membership queries and reports: IGMP over IPv4 and MLD over IPv6 behind one face.
//!
//! Written are IGMPv3 (RFC 3376) and MLDv2 (RFC 3810), with a Router Alert. Taken are those, the
//! versions before as far as they have an equivalent, with or without a Router Alert, and from any
//! source address: `0.0.0.0` and `::` are what many gateways have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::ip::{Checksum, Header, ICMP_V6, IGMP, IpError};
use crate::{igmp, ip, mld};

/// How many sources one record may have.
pub const MAX_SOURCES: usize = 512;

/// How many records one report may have.
pub const MAX_RECORDS: usize = 512;

/// What a record says of a group (RFC 3376, section 4.2.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// The state is: these sources only.
    IsIn,
    /// The state is: all sources but these.
    IsEx,
    /// The state becomes: these sources only.
    ToIn,
    /// The state becomes: all sources but these.
    ToEx,
    /// These sources, too.
    Allow,
    /// These sources no longer.
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

    /// Whether a record with some of the sources, and another with the rest, say the same as one
    /// with all of them.
    fn divisible(self) -> bool {
        !matches!(self, RecordKind::IsEx | RecordKind::ToEx)
    }
}

/// What a report says of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What the sources mean.
    pub kind: RecordKind,
    /// The group.
    pub group: IpAddr,
    /// At most [`MAX_SOURCES`], of the family of the group.
    pub sources: Vec<IpAddr>,
}

/// A query for all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneralQuery {
    /// How many losses in a row the querier is prepared for; written as 0 to 7.
    pub qrv: u8,
    /// The time between queries. Written in whole seconds, rounded down to what the field can say.
    pub qqic: Duration,
    /// Within which answers are to be spread. Written in tenths of a second (IGMP) or in
    /// milliseconds (MLD), rounded down.
    pub max_response: Duration,
}

impl GeneralQuery {
    /// What holds where a query does not say: of the versions before IGMPv3 and MLDv2, or with
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

    /// QRV; more than the field can say is written as zero (RFC 3376, section 4.1.6).
    pub(crate) fn qrv_code(&self) -> u8 {
        if self.qrv > 7 { 0 } else { self.qrv }
    }

    pub(crate) fn qqic_code(&self) -> u8 {
        to_float8(u32::try_from(self.qqic.as_secs()).unwrap_or(u32::MAX))
    }
}

/// A code of IGMPv3: from 128 on it is a number with mantissa and exponent (RFC 3376, section
/// 4.1.1).
pub(crate) fn float8(code: u8) -> u32 {
    if code < 0x80 {
        return u32::from(code);
    }
    (u32::from(code & 0x0f) | 0x10) << (u32::from(code >> 4 & 7) + 3)
}

/// The code of the largest number that is not above `value`.
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

/// Of MLDv2, the same with 16 bits (RFC 3810, section 5.1.3).
pub(crate) fn float16(code: u16) -> u32 {
    if code < 0x8000 {
        return u32::from(code);
    }
    (u32::from(code & 0x0fff) | 0x1000) << (u32::from(code >> 12 & 7) + 3)
}

/// The code of the largest number that is not above `value`.
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

/// The IGMP or ICMPv6 message in a packet, its checksum checked.
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

/// Reads an IP packet with a query for all groups: IGMPv1, v2 and v3, MLDv1 and v2.
///
/// # Errors
/// A length or checksum is wrong, it is a query for one group, or no query.
pub fn parse_query(packet: &[u8]) -> Result<GeneralQuery, IpError> {
    match message(packet)? {
        (message, false) => igmp::parse_query(message),
        (message, true) => mld::parse_query(message),
    }
}

/// Reads an IP packet with a report: IGMPv3 and MLDv2, and those of the versions before, whose
/// joins are [`RecordKind::IsEx`] and whose leaves are [`RecordKind::ToIn`], both without sources.
/// Records of unknown kinds, and for addresses that are no groups, are left out. ALLOW and BLOCK of the
/// unspecified address alone, outside of source-specific groups, are a join and a leave as well.
///
/// # Errors
/// A length or checksum is wrong, it is no report, or there are too many records or sources.
pub fn parse_report(packet: &[u8]) -> Result<Vec<Record>, IpError> {
    match message(packet)? {
        (message, false) => igmp::parse_report(message),
        (message, true) => mld::parse_report(message),
    }
}

/// Appends an IP packet with an IGMPv3 or MLDv2 query for all groups, from `from`; where that is
/// of the other family, from the unspecified address.
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

/// Hands IP packets with IGMPv3 or MLDv2 reports of `records` to `each`, from the unspecified
/// address, each at most `max_len` bytes long. Records of the other family are left out.
///
/// A record with more sources than fit is divided, and where that would change its meaning
/// ([`RecordKind::IsEx`], [`RecordKind::ToEx`]) cut short (RFC 3376, section 4.2.16). Nothing is
/// handed out for records of which not even one source fits.
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
        // What an empty message has room for.
        let most = limits.sources(Message::new(mld).bytes.len());
        let mut rest = &sources[..];
        if !record.kind.divisible() {
            rest = &rest[..rest.len().min(most.unwrap_or(0))];
        }
        loop {
            let room = limits.sources(message.bytes.len());
            // A record is divided only where it is too long for any packet.
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

/// How much a report may take.
struct Limits {
    /// The IGMP or MLD message, in bytes.
    message: usize,
    /// A record without sources, in bytes.
    record: usize,
    /// A source, in bytes.
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

    /// How many sources a further record may have behind `used` bytes; `None` where not even it
    /// fits.
    fn sources(&self, used: usize) -> Option<usize> {
        let room = self.message.checked_sub(used + self.record)?;
        Some((room / self.source).min(MAX_SOURCES))
    }
}

/// A report that is being written.
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

/// The records of an IGMPv3 or MLDv2 report, which are laid out alike: `address` reads an address
/// of `size` bytes.
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
        // Auxiliary data is skipped, and counts words of 32 bits.
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

/// What "this source, too" and "this source no longer" mean with the unspecified address alone, which
/// is no source: VLC says so over IPv6 where it wants any.
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

/// 232.0.0.0/8 and ff3x::/32 (RFC 4607, section 1).
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

/// The report of a version that knows no sources.
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
