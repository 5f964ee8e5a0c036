//! Properties for any input: round trips, no panic, and agreement with the etherparse crate, an
//! independent implementation of IP and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use amt::ip::{self, Checksum, IpError, Udp, UdpTemplate};
use amt::report::{self, GeneralQuery, Record, RecordKind};
use amt::{Mac, Message};
use etherparse::{IpHeaders, NetSlice, PacketBuilder, PacketHeaders, SlicedPacket, TransportSlice};
use proptest::collection::vec;
use proptest::prelude::*;

fn v4() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

fn v6() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![v4().prop_map(IpAddr::from), v6().prop_map(IpAddr::from)]
}

/// Two endpoints of one family.
fn endpoints() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let v4 = (v4(), v4()).prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let v6 = (v6(), v6()).prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    (prop_oneof![v4, v6], any::<(u16, u16)>())
        .prop_map(|((a, b), (p, q))| (SocketAddr::new(a, p), SocketAddr::new(b, q)))
}

/// An endpoint of a gateway: no IPv4 address that begins with zero, which the messages cannot tell
/// from an IPv6 one.
fn gateway() -> impl Strategy<Value = SocketAddr> {
    let v4 = (1u8.., any::<[u8; 3]>())
        .prop_map(|(a, [b, c, d])| IpAddr::from(Ipv4Addr::new(a, b, c, d)));
    let v6 = v6()
        .prop_map(IpAddr::from)
        .prop_filter("no IPv4 address in another form", |ip| {
            ip.to_canonical().is_ipv6()
                && !matches!(ip, IpAddr::V6(v6) if v6.octets()[..12] == [0; 12])
        });
    (prop_oneof![v4, v6], any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn udp_packet(from: SocketAddr, to: SocketAddr, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let udp = Udp {
        from,
        to,
        ttl,
        payload,
    };
    assert!(ip::write_udp(&udp, 0, &mut packet));
    packet
}

fn check(message: Message<'_>) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    assert_eq!(bytes.len(), message.len());
    assert_eq!(Message::parse(&bytes), Ok(message));
    // Bytes after a message are ignored unless it ends with a packet, whose own length then
    // ends it.
    bytes.push(0x55);
    let longer = Message::parse(&bytes).unwrap();
    match (message, longer) {
        (Message::Data { packet }, Message::Data { packet: longer })
        | (Message::Update { packet, .. }, Message::Update { packet: longer, .. })
        | (
            Message::Query {
                packet,
                gateway: None,
                ..
            },
            Message::Query { packet: longer, .. },
        ) => assert_eq!(longer[..packet.len()], *packet),
        _ => assert_eq!(longer, message),
    }
    // No message is complete without its last byte, except those that end with a packet.
    bytes.truncate(message.len() - 1);
    let has_packet = matches!(
        message,
        Message::Data { .. } | Message::Update { .. } | Message::Query { gateway: None, .. }
    );
    match Message::parse(&bytes) {
        // The rest of an IPv6 address begins with an IPv4 one.
        Ok(Message::Advertisement { relay, .. }) => assert!(relay.is_ipv4()),
        Ok(_) => assert!(has_packet),
        Err(error) => assert!(!has_packet && error.reason() == "truncated"),
    }
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        nonce in any::<u32>(),
        mac in any::<[u8; 6]>(),
        flag in any::<bool>(),
        relay in address(),
        gateway in gateway(),
        (from, to) in endpoints(),
        payload in vec(any::<u8>(), 0..64),
    ) {
        let (mac, packet) = (Mac(mac), udp_packet(from, to, 5, &payload));
        let packet = &packet[..];
        check(Message::Discovery { nonce });
        check(Message::Advertisement { nonce, relay });
        check(Message::Request { nonce, mld: flag });
        check(Message::Update { mac, nonce, packet });
        check(Message::Data { packet });
        check(Message::Teardown { mac, nonce, gateway });
        for gateway in [None, Some(gateway)] {
            check(Message::Query { limited: flag, mac, nonce, packet, gateway });
        }
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..200), first in 0u8..8, mtu in 0usize..200) {
        let mut out = Vec::new();
        for data in [&bytes[..], &[&[first][..], &bytes].concat()] {
            if let Ok(message) = Message::parse(data) {
                message.encode(&mut out);
            }
            let _ = ip::addresses(data);
            let _ = ip::parse_udp(data);
            let _ = report::parse_query(data);
            let _ = report::parse_report(data);
            let _ = ip::fragment_v4(data, mtu, |piece| assert!(piece.len() <= mtu));
            ip::icmp_too_big(data, Ipv4Addr::LOCALHOST.into(), 1280, &mut out);
            ip::icmp_too_big(data, Ipv6Addr::LOCALHOST.into(), 1280, &mut out);
        }
    }

    /// A valid packet with a few bytes changed gets further in than random bytes do.
    #[test]
    fn damage_is_noticed_or_harmless(
        (from, to) in endpoints(),
        payload in vec(any::<u8>(), 0..64),
        at in any::<prop::sample::Index>(),
        xor in 1u8..,
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = udp_packet(from, to, 9, &payload);
        let mut damaged = whole.clone();
        damaged[at.index(whole.len())] ^= xor;
        // One changed byte never passes the checksums, but for the fields of IPv6 that no checksum
        // covers, and for one that makes the checksum of IPv4 say that there is none (RFC 768).
        if let Ok(found) = ip::parse_udp(&damaged) {
            prop_assert!(from.is_ipv6() || damaged[26..28] == [0, 0]);
            prop_assert_eq!((found.from, found.to, found.payload), (from, to, &payload[..]));
        }
        let cut = cut.index(whole.len());
        prop_assert!(ip::parse_udp(&whole[..cut]).is_err());
    }

    #[test]
    fn etherparse_reads_our_packets(
        (from, to) in endpoints(),
        ttl in any::<u8>(),
        tos in any::<u8>(),
        payload in vec(any::<u8>(), 0..300),
    ) {
        let mut written = Vec::new();
        let udp = Udp { from, to, ttl, payload: &payload };
        prop_assert!(ip::write_udp(&udp, tos, &mut written));
        let mut template = UdpTemplate::new(from, to).unwrap();
        let mut out = vec![0xee; written.len() + 3];
        for round in 1u16..3 {
            let len = template.write(&payload, ttl, tos, &mut out);
            prop_assert_eq!(len, written.len());
            prop_assert_eq!(template.header_len() + payload.len(), len);
            let packet = PacketHeaders::from_ip_slice(&out[..len]).unwrap();
            prop_assert_eq!(packet.payload.slice(), &payload[..]);
            let udp_header = packet.transport.unwrap().udp().unwrap();
            let ports = (udp_header.source_port, udp_header.destination_port);
            prop_assert_eq!(ports, (from.port(), to.port()));
            let sum = match packet.net.unwrap() {
                etherparse::NetHeaders::Ipv4(header, _) => {
                    prop_assert_eq!(IpAddr::from(header.source), from.ip());
                    prop_assert_eq!(IpAddr::from(header.destination), to.ip());
                    prop_assert_eq!((header.time_to_live, header.identification), (ttl, round));
                    prop_assert_eq!(header.dscp.value() << 2 | header.ecn.value(), tos);
                    prop_assert_eq!(header.header_checksum, header.calc_header_checksum());
                    prop_assert!(!header.dont_fragment && !header.is_fragmenting_payload());
                    udp_header.calc_checksum_ipv4(&header, &payload).unwrap()
                }
                etherparse::NetHeaders::Ipv6(header, _) => {
                    prop_assert_eq!(IpAddr::from(header.source), from.ip());
                    prop_assert_eq!(IpAddr::from(header.destination), to.ip());
                    prop_assert_eq!((header.hop_limit, header.traffic_class), (ttl, tos));
                    udp_header.calc_checksum_ipv6(&header, &payload).unwrap()
                }
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(udp_header.checksum, sum);
            prop_assert_eq!(ip::parse_udp(&out), Ok(udp), "with bytes behind it");
            let (source, destination, total) = ip::addresses(&out).unwrap();
            prop_assert_eq!((source, destination, total), (from.ip(), to.ip(), len));
            if round == 1 && from.is_ipv6() {
                prop_assert_eq!(&out[..len], &written[..]);
            }
        }
        prop_assert_eq!(template.write(&payload, ttl, tos, &mut out[..written.len() - 1]), 0);
    }

    #[test]
    fn packets_of_etherparse_are_read(
        source in any::<[u8; 4]>(),
        group in any::<[u8; 4]>(),
        ports in any::<(u16, u16)>(),
        options in vec(any::<u8>(), 0..11),
        payload in vec(any::<u8>(), 0..300),
    ) {
        let mut header = etherparse::Ipv4Header::new(0, 7, etherparse::IpNumber::UDP, source, group)
            .unwrap();
        let words = options.len() / 4 * 4;
        header.options = etherparse::Ipv4Options::try_from(&options[..words]).unwrap();
        let builder = PacketBuilder::ip(IpHeaders::Ipv4(header, Default::default()))
            .udp(ports.0, ports.1);
        let mut packet = Vec::new();
        builder.write(&mut packet, &payload).unwrap();
        let udp = ip::parse_udp(&packet).unwrap();
        prop_assert_eq!(udp.from, SocketAddr::from((source, ports.0)));
        prop_assert_eq!(udp.to, SocketAddr::from((group, ports.1)));
        prop_assert_eq!((udp.ttl, udp.payload), (7, &payload[..]));
    }

    #[test]
    fn fragments_are_put_together_again(
        (source, group) in (v4(), v4()),
        ports in any::<(u16, u16)>(),
        option in prop_oneof![
            Just(vec![]),
            Just(vec![0x94, 4, 0, 0]),
            Just(vec![7, 7, 4, 0, 0, 0, 0, 0]),
        ],
        payload in vec(any::<u8>(), 0..3000),
        mtu in 36usize..1600,
    ) {
        let mut header = etherparse::Ipv4Header::new(
            0, 7, etherparse::IpNumber::UDP, source.octets(), group.octets()).unwrap();
        header.identification = 4711;
        header.dont_fragment = false;
        header.options = etherparse::Ipv4Options::try_from(&option[..]).unwrap();
        let mut packet = Vec::new();
        PacketBuilder::ip(IpHeaders::Ipv4(header, Default::default()))
            .udp(ports.0, ports.1)
            .write(&mut packet, &payload)
            .unwrap();
        let header_len = 20 + option.len();
        let mut pieces = Vec::new();
        ip::fragment_v4(&packet, mtu, |piece| pieces.push(piece.to_vec())).unwrap();
        let mut whole = vec![0; packet.len() - header_len];
        let mut filled = 0;
        for (number, piece) in pieces.iter().enumerate() {
            prop_assert!(piece.len() <= mtu);
            let sliced = SlicedPacket::from_ip(piece).unwrap();
            let Some(NetSlice::Ipv4(found)) = sliced.net else { panic!("{piece:?}") };
            let found = found.header();
            prop_assert_eq!(found.header_checksum(), found.to_header().calc_header_checksum());
            prop_assert_eq!(found.identification(), 4711);
            prop_assert_eq!(found.destination_addr(), group);
            // A Router Alert is copied, a Record Route is not.
            let copied = option.first().is_some_and(|kind| kind & 0x80 != 0);
            prop_assert_eq!(found.options(), if copied || number == 0 { &option[..] } else { &[] });
            prop_assert_eq!(found.more_fragments(), number + 1 < pieces.len());
            let at = usize::from(found.fragments_offset().value()) * 8;
            prop_assert_eq!(at, filled);
            let body = &piece[usize::from(found.ihl()) * 4..];
            whole[at..at + body.len()].copy_from_slice(body);
            filled += body.len();
            if pieces.len() > 1 {
                prop_assert_eq!(ip::parse_udp(piece), Err(IpError::Fragment));
            }
        }
        prop_assert_eq!(filled, whole.len());
        prop_assert_eq!(&whole[..], &packet[header_len..]);
        prop_assert_eq!(pieces.len() == 1, packet.len() <= mtu);

        let (from, to) = ((source, ports.0).into(), (group, ports.1).into());
        let mut forbidden = udp_packet(from, to, 7, &payload);
        forbidden[6] |= 0x40;
        let found = ip::fragment_v4(&forbidden, mtu, |_| {});
        let fits = forbidden.len() <= mtu;
        prop_assert_eq!(found, if fits { Ok(()) } else { Err(IpError::DontFragment) });
    }

    #[test]
    fn a_fragment_is_cut_into_fragments(
        payload in vec(any::<u8>(), 900..1400),
        mtu in 60usize..200,
    ) {
        let group = SocketAddr::from(([232, 1, 2, 3], 5000));
        let packet = udp_packet(SocketAddr::from(([192, 0, 2, 1], 4000)), group, 7, &payload);
        let cut = |packet: &[u8], mtu| {
            let mut pieces = Vec::new();
            ip::fragment_v4(packet, mtu, |piece| pieces.push(piece.to_vec())).unwrap();
            pieces
        };
        let twice: Vec<_> = cut(&packet, 700).iter().flat_map(|piece| cut(piece, mtu)).collect();
        let mut whole = Vec::new();
        for (number, piece) in twice.iter().enumerate() {
            let field = u16::from_be_bytes([piece[6], piece[7]]);
            prop_assert_eq!(usize::from(field & 0x1fff) * 8, whole.len());
            prop_assert_eq!(field & 0x2000 != 0, number + 1 < twice.len());
            whole.extend_from_slice(&piece[20..]);
        }
        prop_assert_eq!(&whole[..], &packet[20..]);
    }

    #[test]
    fn icmp_errors_equal_those_of_etherparse(
        (from, to) in endpoints(),
        payload in vec(any::<u8>(), 1200..1600),
        mtu in 1280u32..9000,
    ) {
        let packet = udp_packet(from, to, 3, &payload);
        let mut out = vec![0x77];
        let router: IpAddr = if from.is_ipv4() {
            Ipv4Addr::new(192, 0, 2, 9).into()
        } else {
            Ipv6Addr::from(0x2001_0db8 << 96 | 9).into()
        };
        ip::icmp_too_big(&packet, router, mtu, &mut out);
        let source = from.ip();
        let no_host = source.is_unspecified() || source.is_multicast()
            || source == IpAddr::from(Ipv4Addr::BROADCAST);
        if no_host {
            prop_assert_eq!(out, [0x77]);
            return Ok(());
        }
        let found = SlicedPacket::from_ip(&out[1..]).unwrap();
        let most = if from.is_ipv4() { 576 } else { 1280 };
        prop_assert!(out.len() <= 1 + most);
        let (sender, target, _) = ip::addresses(&out[1..]).unwrap();
        prop_assert_eq!((sender, target), (router, source));
        let quoted = match found.transport.unwrap() {
            TransportSlice::Icmpv4(icmp) => {
                prop_assert_eq!((icmp.type_u8(), icmp.code_u8()), (3, 4));
                let found = u16::from_be_bytes([icmp.slice()[6], icmp.slice()[7]]);
                prop_assert_eq!(u32::from(found), mtu);
                prop_assert_eq!(Checksum::default().with(icmp.slice()).finish(), 0);
                icmp.payload()
            }
            TransportSlice::Icmpv6(icmp) => {
                prop_assert_eq!((icmp.type_u8(), icmp.code_u8()), (2, 0));
                prop_assert_eq!(icmp.bytes5to8(), mtu.to_be_bytes());
                let (IpAddr::V6(a), IpAddr::V6(b)) = (router, source) else { panic!() };
                prop_assert!(icmp.is_checksum_valid(a.octets(), b.octets()));
                icmp.payload()
            }
            other => panic!("{other:?}"),
        };
        prop_assert!(quoted.len() >= 500 && packet.starts_with(quoted));
    }

    #[test]
    fn checksums_in_pieces_and_in_steps(
        bytes in vec(any::<u8>(), 12..200),
        at in 0usize..5,
        new in any::<u16>(),
    ) {
        // As RFC 1071 defines it.
        let mut sum: u32 = bytes.chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let expected = !(sum as u16);
        prop_assert_eq!(Checksum::default().with(&bytes).finish(), expected);
        let (head, tail) = bytes.split_at(2 * at);
        prop_assert_eq!(Checksum::default().with(tail).with(head).finish(), expected);
        let mut changed = bytes.clone();
        let old = u16::from_be_bytes([bytes[2 * at], bytes[2 * at + 1]]);
        changed[2 * at..2 * at + 2].copy_from_slice(&new.to_be_bytes());
        let stepped = ip::update_checksum(expected, old, new);
        let whole = Checksum::default().with(&changed).finish();
        // Zero has two forms.
        let both_zero = (stepped ^ whole) == 0xffff && [0, 0xffff].contains(&whole);
        prop_assert!(stepped == whole || both_zero);
    }

    #[test]
    fn queries_are_read_as_they_were_written(
        mld in any::<bool>(),
        from in address(),
        qrv in 0u8..12,
        qqic in 0u64..60_000,
        max in 0u64..10_000_000,
    ) {
        let (qqic, max_response) = (Duration::from_secs(qqic), Duration::from_millis(max));
        let query = GeneralQuery { qrv, qqic, max_response };
        let mut packet = Vec::new();
        report::write_query(mld, from, &query, &mut packet);
        let found = report::parse_query(&packet).unwrap();
        prop_assert_eq!(found.qrv, if (1..8).contains(&qrv) { qrv } else { 2 });
        // The mantissa has five bits, or thirteen.
        let close = |wanted: Duration, found: Duration, most: Duration, step: Duration, bits: u32| {
            let wanted = wanted.min(most);
            found <= wanted && wanted - found < step.max(wanted / (1 << bits))
        };
        let most = Duration::from_secs(31744);
        if qqic.is_zero() {
            prop_assert_eq!(found.qqic, GeneralQuery::DEFAULT.qqic);
        } else {
            prop_assert!(close(qqic, found.qqic, most, Duration::from_secs(1), 4), "{found:?}");
        }
        let (most, step, bits) = if mld {
            (Duration::from_millis(8_387_584), Duration::from_millis(1), 12)
        } else {
            (most / 10, Duration::from_millis(100), 4)
        };
        prop_assert!(close(max_response, found.max_response, most, step, bits), "{found:?}");
        // Written again, it is the same: every code means one number.
        let mut again = Vec::new();
        report::write_query(mld, from, &found, &mut again);
        prop_assert_eq!(report::parse_query(&again), Ok(found));
    }

    #[test]
    fn reports_are_read_as_they_were_written(
        mld in any::<bool>(),
        records in vec((0usize..6, any::<u32>(), vec(any::<u32>(), 0..120)), 0..12),
        max_len in 100usize..1500,
    ) {
        use RecordKind::{Allow, Block, IsEx, IsIn, ToEx, ToIn};
        let address = |first: [u8; 2], value: u32| {
            if mld {
                IpAddr::from(Ipv6Addr::from(u128::from(first[0]) << 120 | u128::from(value)))
            } else {
                IpAddr::from(Ipv4Addr::from(u32::from(first[1]) << 24 | value >> 8))
            }
        };
        let records: Vec<_> = records
            .iter()
            .map(|(kind, group, sources)| Record {
                kind: [IsIn, IsEx, ToIn, ToEx, Allow, Block][*kind],
                group: address([0xff, 232], *group),
                sources: sources.iter().map(|s| address([0x20, 192], *s)).collect(),
            })
            .collect();
        let mut found: Vec<Record> = Vec::new();
        report::write_report(mld, &records, max_len, |packet| {
            assert!(packet.len() <= max_len);
            found.extend(report::parse_report(packet).unwrap());
        });
        let mut found = found.into_iter();
        for record in &records {
            let mut sources = Vec::new();
            let mut pieces = 0;
            let cut = matches!(record.kind, IsEx | ToEx);
            while pieces == 0 || sources.len() < record.sources.len() && !cut {
                let piece = found.next().unwrap();
                prop_assert_eq!((piece.kind, piece.group), (record.kind, record.group));
                sources.extend(piece.sources);
                pieces += 1;
            }
            if cut {
                prop_assert!(record.sources.starts_with(&sources));
                let size = if mld { 16 } else { 4 };
                let is_full = (sources.len() + 1) * size + 80 > max_len;
                prop_assert!(sources.len() == record.sources.len() || is_full);
            } else {
                prop_assert_eq!(&sources, &record.sources);
            }
        }
        prop_assert_eq!(found.next(), None);
    }
}
