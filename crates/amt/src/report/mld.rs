//! MLD messages: version 2 (RFC 3810) and, leniently, 1 (RFC 2710).

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::{GeneralQuery, Record, RecordKind, float16, records_v6, to_float16, without_sources};
use crate::ip::{HOP_BY_HOP, ICMP_V6, IpError, get, pseudo, put_v6};

const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const DONE_V1: u8 = 132;
pub(crate) const REPORT_V2: u8 = 143;

/// Destination of general queries.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Destination of reports of version 2.
pub(crate) const ROUTERS_V2: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Hop-by-Hop header: ICMPv6 as next header, a Router Alert with the value of MLD (RFC 2711), and
/// two bytes of padding.
pub(crate) const ROUTER_ALERT: [u8; 8] = [ICMP_V6, 0, 5, 2, 0, 0, 1, 0];

/// Length of a query of version 2 without sources, in bytes.
const QUERY_LEN: usize = 28;

/// Parses a message with a valid checksum.
pub(crate) fn parse_query(message: &[u8]) -> Result<GeneralQuery, IpError> {
    let [kind, _, _, _, high, low] = get("MLD", message, 0)?;
    if kind != QUERY {
        return Err(IpError::Type(kind));
    }
    if get::<16>("MLD", message, 8)? != [0; 16] {
        return Err(IpError::NotGeneral);
    }
    let code = u16::from_be_bytes([high, low]);
    let Ok([flags, qqic]) = get("MLD", message, 24) else {
        // Version 1 has milliseconds without exponent.
        let mut query = GeneralQuery::DEFAULT;
        query.max_response = Duration::from_millis(u64::from(code));
        return Ok(query);
    };
    let max_response = Duration::from_millis(u64::from(float16(code)));
    Ok(GeneralQuery::from_wire(flags, qqic, max_response))
}

/// Parses a message with a valid checksum.
pub(crate) fn parse_report(message: &[u8]) -> Result<Vec<Record>, IpError> {
    let [kind] = get("MLD", message, 0)?;
    let group = || get::<16>("MLD", message, 8).map(|group| IpAddr::from(Ipv6Addr::from(group)));
    match kind {
        REPORT_V2 => records_v6(message),
        REPORT_V1 => Ok(without_sources(RecordKind::IsEx, group()?)),
        DONE_V1 => Ok(without_sources(RecordKind::ToIn, group()?)),
        other => Err(IpError::Type(other)),
    }
}

/// Returns a general query, without checksum.
pub(crate) fn query(query: &GeneralQuery) -> [u8; QUERY_LEN] {
    let millis = u32::try_from(query.max_response.as_millis()).unwrap_or(u32::MAX);
    let mut message = [0; QUERY_LEN];
    message[0] = QUERY;
    message[4..6].copy_from_slice(&to_float16(millis).to_be_bytes());
    message[24] = query.qrv_code();
    message[25] = query.qqic_code();
    message
}

/// Appends an IP packet with `message`, whose checksum field must be zero.
pub(crate) fn put_packet(from: Ipv6Addr, to: Ipv6Addr, message: &[u8], out: &mut Vec<u8>) {
    put_v6(
        out,
        from,
        to,
        HOP_BY_HOP,
        1,
        ROUTER_ALERT.len() + message.len(),
    );
    out.extend_from_slice(&ROUTER_ALERT);
    let at = out.len() + 2;
    out.extend_from_slice(message);
    let sum = pseudo(from.into(), to.into(), ICMP_V6, message.len() as u32);
    let sum = sum.with(message).finish();
    if let Some(field) = out.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}
