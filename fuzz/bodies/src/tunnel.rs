//! AMT: what relays and gateways read, and the two state machines.

mod gateway;
mod relay;

use amt::discovery::AmtRelay;
use amt::ip::{self, Udp};
use amt::report::{self, Record, RecordKind};
use amt::{Message, WireError};

pub use gateway::{amt_gateway, play_amt_gateway};
pub use relay::{Coverage, amt_relay, play_amt_relay};

use crate::choice;

/// Anything that parses can be written, and parses the same again: messages, inner packets,
/// queries, reports, and DNS records.
pub fn amt(data: &[u8]) {
    let (way, data) = choice(data);
    match way % 4 {
        0 => message(data),
        1 => packet(data, 28 + usize::from(way)),
        2 => {
            // Packets with valid lengths and checksums, which a fuzzer rarely finds.
            let (way, data) = choice(data);
            packet(
                &wrapped(data, way & 1 != 0, way & 2 != 0),
                28 + usize::from(way),
            );
        }
        _ => record(data),
    }
}

fn message(data: &[u8]) {
    let message = match Message::parse(data) {
        Ok(message) => message,
        Err(error) => {
            assert!(!error.to_string().is_empty() && !error.reason().is_empty());
            let truncated = matches!(error, WireError::Truncated { len, need, .. } if len >= need);
            assert!(!truncated, "enough, and still truncated");
            return;
        }
    };
    let mut written = Vec::new();
    message.encode(&mut written);
    assert_eq!(written.len(), message.len());
    assert!(written.len() <= data.len());
    assert_eq!(Message::parse(&written), Ok(message));
    if let Message::Query { packet, .. }
    | Message::Update { packet, .. }
    | Message::Data { packet } = message
    {
        self::packet(packet, 576);
    }
}

/// The whole packet, as a relay and a gateway see it.
fn packet(data: &[u8], mtu: usize) {
    let Ok((source, destination, total)) = ip::addresses(data) else {
        assert!(ip::parse_udp(data).is_err());
        assert!(report::parse_query(data).is_err() && report::parse_report(data).is_err());
        return;
    };
    assert!(total <= data.len() && source.is_ipv4() == destination.is_ipv4());
    if let Ok(udp) = ip::parse_udp(data) {
        assert_eq!((udp.from.ip(), udp.to.ip()), (source, destination));
        let mut written = Vec::new();
        assert!(ip::write_udp(&udp, 0, &mut written));
        assert_eq!(ip::parse_udp(&written), Ok(udp));
        let mut template = ip::UdpTemplate::new(udp.from, udp.to).unwrap();
        let mut again = vec![0; written.len()];
        let len = template.write(udp.payload, udp.ttl, 0, &mut again);
        assert_eq!(ip::parse_udp(&again[..len]), Ok(udp));
    }
    if let Ok(query) = report::parse_query(data) {
        let mut written = Vec::new();
        report::write_query(source.is_ipv6(), source, &query, &mut written);
        assert_eq!(report::parse_query(&written), Ok(query));
    }
    if let Ok(records) = report::parse_report(data) {
        assert!(records.len() <= report::MAX_RECORDS);
        let mut again = Vec::new();
        // Room for the longest record.
        report::write_report(source.is_ipv6(), &records, 9000, |packet| {
            assert!(packet.len() <= 9000);
            again.extend(report::parse_report(packet).unwrap());
        });
        assert_eq!(again, records);
        let mut pieces: Vec<Record> = Vec::new();
        report::write_report(source.is_ipv6(), &records, 200, |packet| {
            assert!(packet.len() <= 200);
            pieces.extend(report::parse_report(packet).unwrap());
        });
        let cut = |r: &&Record| matches!(r.kind, RecordKind::IsEx | RecordKind::ToEx);
        let count = |records: &[Record]| {
            let divisible = records.iter().filter(|r| !cut(r));
            divisible.map(|r| r.sources.len()).sum::<usize>()
        };
        assert_eq!(count(&pieces), count(&records));
    }
    let mut left = usize::from(u16::MAX);
    let cut = ip::fragment_v4(data, mtu, |piece| {
        assert!(piece.len() <= mtu);
        let (from, to, len) = ip::addresses(piece).unwrap();
        assert_eq!((from, to, len), (source, destination, piece.len()));
        left = left.checked_sub(piece.len() - 20).unwrap();
    });
    assert_eq!(
        cut.is_err_and(|error| error.reason() == "version"),
        source.is_ipv6()
    );
    let mut error = Vec::new();
    ip::icmp_too_big(data, destination, 1280, &mut error);
    if !error.is_empty() {
        let (_, to, len) = ip::addresses(&error).unwrap();
        assert_eq!((to, len), (source, error.len()));
    }
}

/// An IP packet around `data`: UDP, or IGMP and MLD.
fn wrapped(data: &[u8], v6: bool, udp: bool) -> Vec<u8> {
    let data = &data[..data.len().min(2000)];
    let mut out = Vec::new();
    let (from, to) = if v6 {
        ("[2001:db8::7]:1", "[ff3e::1]:2")
    } else {
        ("192.0.2.7:1", "232.1.1.1:2")
    };
    if udp {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let ttl = 1;
        let payload = data;
        ip::write_udp(
            &Udp {
                from,
                to,
                ttl,
                payload,
            },
            0,
            &mut out,
        );
        return out;
    }
    // A report without records, with `data` in the place of its message.
    let record = Record {
        kind: RecordKind::ToIn,
        group: if v6 { "ff3e::1" } else { "232.1.1.1" }.parse().unwrap(),
        sources: Vec::new(),
    };
    report::write_report(v6, &[record], 1500, |packet| out.extend_from_slice(packet));
    let headers = if v6 { 48 } else { 24 };
    out.truncate(headers);
    out.extend_from_slice(data);
    if data.len() < 4 {
        return out;
    }
    out[headers + 2..headers + 4].fill(0);
    let mut sum = ip::Checksum::default().with(&out[headers..]);
    if v6 {
        let len = (out.len() - 40) as u16;
        out[4..6].copy_from_slice(&len.to_be_bytes());
        sum = sum
            .with(&out[8..40])
            .with_u32(data.len() as u32)
            .with_u16(58);
    } else {
        let len = out.len() as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        out[10..12].fill(0);
        let header = ip::Checksum::default().with(&out[..headers]).finish();
        out[10..12].copy_from_slice(&header.to_be_bytes());
    }
    out[headers + 2..headers + 4].copy_from_slice(&sum.finish().to_be_bytes());
    let wrong = |found: Option<ip::IpError>| found.is_some_and(|e| e.reason() == "checksum");
    assert!(
        !wrong(report::parse_report(&out).err()),
        "made with a right checksum"
    );
    out
}

fn record(data: &[u8]) {
    match AmtRelay::parse(data) {
        Ok(record) => {
            let mut written = Vec::new();
            record.encode(&mut written);
            assert_eq!(written, data);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
