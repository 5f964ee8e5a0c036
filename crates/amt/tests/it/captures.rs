//! The crate's messages read by tshark's dissectors: a second opinion on every field and checksum.
//! If tshark is not installed, the tests say so and pass; with the variable
//! `FLEXFEED_REQUIRE_PEERS` they fail.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use amt::ip::{self, Udp, UdpTemplate};
use amt::report::{self, GeneralQuery, Record, RecordKind};
use amt::{Mac, Message, PORT};

/// Variable that forbids skipping.
const REQUIRED: &str = "FLEXFEED_REQUIRE_PEERS";

/// Packets without a link layer (LINKTYPE_RAW).
const RAW: u32 = 101;

/// A capture file, in the classic format of libpcap.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend_from_slice(&0xa1b2_c3d4u32.to_be_bytes());
    for half in [2u16, 4] {
        file.extend_from_slice(&half.to_be_bytes());
    }
    for word in [0, 0, 65_535, RAW] {
        file.extend_from_slice(&word.to_be_bytes());
    }
    for (number, packet) in packets.iter().enumerate() {
        let (seconds, len) = (number as u32, packet.len() as u32);
        for word in [seconds, 0, len, len] {
            file.extend_from_slice(&word.to_be_bytes());
        }
        file.extend_from_slice(packet);
    }
    file
}

/// Returns the values of `fields` in each packet, joined by commas. `None` without tshark.
fn dissect(packets: &[Vec<u8>], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("amt.pcap");
    std::fs::write(&path, capture(packets)).unwrap();
    let mut command = Command::new("tshark");
    // By default, tshark does not check checksums.
    for option in ["ip.check_checksum", "udp.check_checksum"] {
        command.args(["-o", &format!("{option}:TRUE")]);
    }
    command
        .args(["-n", "-T", "fields", "-E", "separator=|", "-r"])
        .arg(&path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            let why =
                format!("no tshark ({error}): no other program has read what the crate writes");
            assert!(std::env::var_os(REQUIRED).is_none(), "{why}");
            // Not by a macro: what those print is not shown when a test passes.
            let line = format!("\n*** SKIPPED: {why} ***\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    let rows: Vec<Vec<_>> = text
        .lines()
        .map(|line| line.split('|').map(str::to_owned).collect())
        .collect();
    assert_eq!(rows.len(), packets.len(), "{text}\n{errors}");
    Some(rows)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const MAC: Mac = Mac([1, 2, 3, 4, 5, 6]);
const NONCE: u32 = 0xfeed_0001;

/// Returns the message in a UDP datagram, over IPv4 or IPv6; from the relay or to it.
fn outer(message: &Message<'_>, v6: bool, from_relay: bool) -> Vec<u8> {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    let (relay, gateway) = if v6 {
        ("2001:db8::1", "2001:db8::5")
    } else {
        ("192.0.2.1", "203.0.113.5")
    };
    let relay = SocketAddr::new(relay.parse().unwrap(), PORT);
    let gateway = SocketAddr::new(gateway.parse().unwrap(), 40_001);
    let (from, to) = if from_relay {
        (relay, gateway)
    } else {
        (gateway, relay)
    };
    let (mut packet, payload) = (Vec::new(), &payload[..]);
    let udp = Udp {
        from,
        to,
        ttl: 64,
        payload,
    };
    assert!(ip::write_udp(&udp, 0, &mut packet));
    packet
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn query(mld: bool) -> Vec<u8> {
    let query = GeneralQuery {
        qrv: 3,
        qqic: Duration::from_secs(1000),
        max_response: Duration::from_secs(50),
    };
    let from = if mld { "fe80::1" } else { "192.0.2.1" };
    let mut packet = Vec::new();
    report::write_query(mld, ip(from), &query, &mut packet);
    packet
}

fn reports(mld: bool) -> Vec<u8> {
    let (groups, sources) = if mld {
        (["ff3e::1", "ff1e::2"], ["2001:db8::7", "2001:db8::8"])
    } else {
        (["232.1.2.3", "239.1.2.3"], ["198.51.100.7", "198.51.100.8"])
    };
    let records = [
        Record {
            kind: RecordKind::Allow,
            group: ip(groups[0]),
            sources: sources.map(ip).to_vec(),
        },
        Record {
            kind: RecordKind::ToEx,
            group: ip(groups[1]),
            sources: Vec::new(),
        },
    ];
    let mut packet = Vec::new();
    report::write_report(mld, &records, 1280, |report| {
        packet.extend_from_slice(report)
    });
    packet
}

fn data(v6: bool) -> Vec<u8> {
    let (from, to) = if v6 {
        ("[2001:db8::7]:4000", "[ff3e::1]:5001")
    } else {
        ("198.51.100.7:4000", "232.1.2.3:5001")
    };
    let mut template = UdpTemplate::new(address(from), address(to)).unwrap();
    let mut packet = vec![0; 2000];
    let len = template.write(&[0x5a; 1200], 17, 0x28, &mut packet);
    packet.truncate(len);
    packet
}

/// Checks that no dissector finds an error, in checksums or elsewhere.
fn assert_sound(packets: &[Vec<u8>]) {
    const FIELDS: [&str; 6] = [
        "ip.checksum.status",
        "udp.checksum.status",
        "igmp.checksum.status",
        "icmpv6.checksum.status",
        "icmp.checksum.status",
        "_ws.expert.message",
    ];
    let Some(rows) = dissect(packets, &FIELDS) else {
        return;
    };
    for (row, packet) in rows.iter().zip(packets) {
        let [checksums @ .., expert] = &row[..] else {
            panic!("{row:?}");
        };
        // 1 is good.
        let good = checksums
            .iter()
            .flat_map(|c| c.split(','))
            .all(|c| ["", "1"].contains(&c));
        assert!(
            good && checksums.iter().any(|c| c.contains('1')),
            "{row:?}: {packet:02x?}"
        );
        // A small TTL is normal for multicast.
        let complaints = expert
            .split(',')
            .filter(|e| !e.is_empty() && !e.contains("Time To Live"));
        assert_eq!(complaints.collect::<Vec<_>>(), [""; 0], "{packet:02x?}");
    }
}

#[test]
fn tshark_reads_every_message() {
    let (v4, v6) = (address("203.0.113.5:40001"), address("[2001:db8::5]:40001"));
    let (igmp, mld) = (query(false), query(true));
    let (joins, joins_v6) = (reports(false), reports(true));
    let (inner, inner_v6) = (data(false), data(true));
    let (mac, nonce) = (MAC, NONCE);
    let query = |packet, limited, gateway| Message::Query {
        limited,
        mac,
        nonce,
        packet,
        gateway,
    };
    let teardown = |gateway| Message::Teardown {
        mac,
        nonce,
        gateway,
    };
    let advertisement = |relay: &str| Message::Advertisement {
        nonce,
        relay: ip(relay),
    };
    let packets = [
        outer(&Message::Discovery { nonce }, false, false),
        outer(&advertisement("192.0.2.1"), false, true),
        outer(&advertisement("2001:db8::1"), true, true),
        outer(&Message::Request { nonce, mld: false }, false, false),
        outer(&Message::Request { nonce, mld: true }, true, false),
        outer(&query(&igmp, false, None), false, true),
        outer(&query(&mld, true, Some(v6)), true, true),
        outer(&query(&igmp, false, Some(v4)), false, true),
        outer(
            &Message::Update {
                mac,
                nonce,
                packet: &joins,
            },
            false,
            false,
        ),
        outer(
            &Message::Update {
                mac,
                nonce,
                packet: &joins_v6,
            },
            true,
            false,
        ),
        outer(&Message::Data { packet: &inner }, false, true),
        outer(&Message::Data { packet: &inner_v6 }, true, true),
        outer(&teardown(v4), false, false),
        outer(&teardown(v6), true, false),
    ];
    assert_sound(&packets);
    const FIELDS: [&str; 10] = [
        "amt.type",
        "amt.discovery_nonce",
        "amt.request_nonce",
        "amt.response_mac",
        "amt.relay_address.ipv4",
        "amt.relay_address.ipv6",
        "amt.request.p",
        "amt.membership_query.l",
        "amt.membership_query.g",
        "amt.gateway.port_number",
    ];
    let Some(rows) = dissect(&packets, &FIELDS) else {
        return;
    };
    let rows: Vec<_> = rows.iter().map(|row| row.join("|")).collect();
    let expected = [
        "1|0xfeed0001||||||||",
        "2|0xfeed0001|||192.0.2.1|||||",
        "2|0xfeed0001||||2001:db8::1||||",
        "3||0xfeed0001||||0|||",
        "3||0xfeed0001||||1|||",
        "4||0xfeed0001|0x0000010203040506||||0|0|",
        "4||0xfeed0001|0x0000010203040506||||1|1|40001",
        "4||0xfeed0001|0x0000010203040506||||0|1|40001",
        "5||0xfeed0001|0x0000010203040506||||||",
        "5||0xfeed0001|0x0000010203040506||||||",
        "6|||||||||",
        "6|||||||||",
        "7||0xfeed0001|0x0000010203040506||||||40001",
        "7||0xfeed0001|0x0000010203040506||||||40001",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn tshark_reads_queries_and_reports() {
    let packets = [query(false), query(true), reports(false), reports(true)];
    assert_sound(&packets);
    const FIELDS: [&str; 14] = [
        "igmp.type",
        "igmp.max_resp",
        "igmp.qrv",
        "igmp.qqic",
        "igmp.record_type",
        "igmp.maddr",
        "igmp.saddr",
        "icmpv6.type",
        "icmpv6.mld.maximum_response_code",
        "icmpv6.mld.flag.qrv",
        "icmpv6.mld.qqi",
        "icmpv6.mldr.mar.record_type",
        "icmpv6.mldr.mar.multicast_address",
        "icmpv6.mldr.mar.source_address",
    ];
    let Some(rows) = dissect(&packets, &FIELDS) else {
        return;
    };
    let rows: Vec<_> = rows.iter().map(|row| row.join("|")).collect();
    let expected = [
        // QQIC is shown as its code: 31 << 5 s.
        "0x11|496|3|175||0.0.0.0||||||||",
        "|||||||130|50000|3|992|||",
        "0x22||||5,4|232.1.2.3,239.1.2.3|198.51.100.7,198.51.100.8|||||||",
        "|||||||143||||5,4|ff3e::1,ff1e::2|2001:db8::7,2001:db8::8",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn tshark_reads_data_and_errors() {
    let (inner, inner_v6) = (data(false), data(true));
    let mut packets = vec![inner.clone(), inner_v6.clone()];
    for (packet, router) in [(&inner, "192.0.2.9"), (&inner_v6, "2001:db8::9")] {
        let mut out = Vec::new();
        ip::icmp_too_big(packet, ip(router), 1234, &mut out);
        packets.push(out);
    }
    assert_sound(&packets[..2]);
    let mut fragments = Vec::new();
    ip::fragment_v4(&inner, 700, |piece| fragments.push(piece.to_vec())).unwrap();
    let at = packets.len();
    packets.extend(fragments);
    const FIELDS: [&str; 8] = [
        "ip.dsfield",
        "ipv6.tclass",
        "ip.ttl",
        "udp.dstport",
        "udp.length",
        "icmp.mtu",
        "icmpv6.mtu",
        "ip.reassembled.length",
    ];
    let Some(rows) = dissect(&packets, &FIELDS) else {
        return;
    };
    let rows: Vec<_> = rows.iter().map(|row| row.join("|")).collect();
    assert_eq!(
        rows[..2],
        ["0x28||17|5001|1208|||", "|0x00000028||5001|1208|||"]
    );
    assert!(
        rows[2].contains("|1234|") && rows[3].contains("|1234|"),
        "{rows:?}"
    );
    assert_eq!(packets.len() - at, 2);
    assert!(
        rows.last().unwrap().ends_with("|5001|1208|||1208"),
        "{rows:?}"
    );
}
