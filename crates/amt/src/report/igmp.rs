//! IGMP messages: version 3 (RFC 3376) and, leniently, 1 and 2 (RFC 1112, RFC 2236).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{GeneralQuery, Record, RecordKind, float8, records_v4, to_float8, without_sources};
use crate::ip::{Checksum, IGMP, IpError, V4Fields, get, put_v4};

const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE_V2: u8 = 0x17;
pub(crate) const REPORT_V3: u8 = 0x22;

/// Destination of general queries.
pub(crate) const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// Destination of reports of version 3.
pub(crate) const ROUTERS_V3: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// Length of the Router Alert option in the IPv4 header, in bytes.
pub(crate) const ROUTER_ALERT_LEN: usize = 4;

/// Length of a query of version 3 without sources, in bytes.
const QUERY_LEN: usize = 12;

/// Internetwork control (RFC 3376, section 4).
const TOS: u8 = 0xc0;

fn tenths(count: u32) -> Duration {
    Duration::from_millis(100 * u64::from(count))
}

/// Parses a message with a valid checksum.
pub(crate) fn parse_query(message: &[u8]) -> Result<GeneralQuery, IpError> {
    let [kind, code, _, _, a, b, c, d] = get("IGMP", message, 0)?;
    if kind != QUERY {
        return Err(IpError::Type(kind));
    }
    if [a, b, c, d] != [0; 4] {
        return Err(IpError::NotGeneral);
    }
    let Ok([flags, qqic]) = get("IGMP", message, 8) else {
        // Version 1 has a code of zero, version 2 tenths of a second without exponent.
        let mut query = GeneralQuery::DEFAULT;
        if code != 0 {
            query.max_response = tenths(u32::from(code));
        }
        return Ok(query);
    };
    let max_response = tenths(float8(code));
    Ok(GeneralQuery::from_wire(flags, qqic, max_response))
}

/// Parses a message with a valid checksum.
pub(crate) fn parse_report(message: &[u8]) -> Result<Vec<Record>, IpError> {
    let [kind] = get("IGMP", message, 0)?;
    let group = || get::<4>("IGMP", message, 4).map(|group| IpAddr::from(Ipv4Addr::from(group)));
    match kind {
        REPORT_V3 => records_v4(message),
        REPORT_V1 | REPORT_V2 => Ok(without_sources(RecordKind::IsEx, group()?)),
        LEAVE_V2 => Ok(without_sources(RecordKind::ToIn, group()?)),
        other => Err(IpError::Type(other)),
    }
}

/// Returns a general query, without checksum.
pub(crate) fn query(query: &GeneralQuery) -> [u8; QUERY_LEN] {
    let tenths = u32::try_from(query.max_response.as_millis() / 100).unwrap_or(u32::MAX);
    let mut message = [0; QUERY_LEN];
    message[0] = QUERY;
    message[1] = to_float8(tenths);
    message[8] = query.qrv_code();
    message[9] = query.qqic_code();
    message
}

/// Appends an IP packet with `message`, whose checksum field must be zero.
pub(crate) fn put_packet(from: Ipv4Addr, to: Ipv4Addr, message: &[u8], out: &mut Vec<u8>) {
    let fields = V4Fields {
        source: from,
        destination: to,
        protocol: IGMP,
        ttl: 1,
        tos: TOS,
    };
    put_v4(out, &fields, message.len(), true);
    let at = out.len() + 2;
    out.extend_from_slice(message);
    let sum = Checksum::default().with(message).finish();
    if let Some(field) = out.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}
