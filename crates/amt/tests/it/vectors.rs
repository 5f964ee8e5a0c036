//! Test vectors in `docs/amt.md`: each is parsed and, if this crate sends such a message, also
//! written. A vector without a check fails, and so does a check without a vector.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use amt::discovery::{AmtRelay, RelayTarget};
use amt::ip::{self, Udp};
use amt::report::{self, GeneralQuery, Record, RecordKind};
use amt::{Mac, Message, PFlag};

use crate::document::vectors;

const MAC: Mac = Mac([0xa1, 0xb2, 0xc3, 0xd4, 0xe5, 0xf6]);
const NONCE: u32 = 0x0bad_cafe;

/// General query of all vectors.
const QUERY: GeneralQuery = GeneralQuery {
    qrv: 2,
    qqic: Duration::from_secs(125),
    max_response: Duration::from_secs(10),
};

/// Unchecked vectors.
struct Unchecked(BTreeMap<String, Vec<u8>>);

impl Unchecked {
    fn take(&mut self, name: &str) -> Vec<u8> {
        self.0
            .remove(name)
            .unwrap_or_else(|| panic!("no vector {name}, or checked twice"))
    }

    /// Checks that the vector parses as the message.
    fn taken(&mut self, name: &str, message: Message<'_>) {
        let bytes = self.take(name);
        assert_eq!(Message::parse(&bytes), Ok(message), "{name}");
    }

    /// Checks that the vector parses as the message, and is what this crate sends.
    fn sent(&mut self, name: &str, message: Message<'_>) {
        self.sent_with(name, message, PFlag::Rfc);
    }

    /// Checks the same with the P flag of a Request at `p`.
    fn sent_with(&mut self, name: &str, message: Message<'_>, p: PFlag) {
        let mut written = Vec::new();
        message.encode_with(p, &mut written);
        assert_eq!(written, self.0[name], "{name}");
        assert_eq!(message.len(), written.len(), "{name}");
        self.taken(name, message);
    }

    /// Returns a Query with [`QUERY`] inside.
    fn query(&mut self, name: &str, is_limited: bool, at: Option<&str>) -> Vec<u8> {
        let bytes = self.take(name);
        let Ok(Message::Query {
            limited,
            mac,
            nonce,
            packet,
            gateway,
        }) = Message::parse(&bytes)
        else {
            panic!("{name}: {:?}", Message::parse(&bytes));
        };
        assert_eq!((limited, mac, nonce), (is_limited, MAC, NONCE), "{name}");
        assert_eq!(gateway, at.map(address), "{name}");
        assert_eq!(report::parse_query(packet), Ok(QUERY), "{name}");
        bytes
    }

    /// Checks an Update with these records; returns the packet.
    fn update(&mut self, name: &str, records: &[Record]) -> Vec<u8> {
        let bytes = self.take(name);
        let Ok(Message::Update { mac, nonce, packet }) = Message::parse(&bytes) else {
            panic!("{name}: {:?}", Message::parse(&bytes));
        };
        assert_eq!((mac, nonce), (MAC, NONCE), "{name}");
        assert_eq!(
            report::parse_report(packet).as_deref(),
            Ok(records),
            "{name}"
        );
        packet.to_vec()
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn record(kind: RecordKind, group: &str, sources: &[&str]) -> Record {
    Record {
        kind,
        group: ip(group),
        sources: sources.iter().map(|s| ip(s)).collect(),
    }
}

/// Returns a Query as this crate sends it.
fn our_query(mld: bool, from: &str, limited: bool, gateway: Option<&str>) -> Vec<u8> {
    let (mut packet, mut message) = (Vec::new(), Vec::new());
    report::write_query(mld, ip(from), &QUERY, &mut packet);
    Message::Query {
        limited,
        mac: MAC,
        nonce: NONCE,
        packet: &packet,
        gateway: gateway.map(address),
    }
    .encode(&mut message);
    message
}

fn our_report(mld: bool, record: Record) -> Vec<u8> {
    let mut packets = Vec::new();
    report::write_report(mld, &[record], 1280, |packet| packets.push(packet.to_vec()));
    assert_eq!(packets.len(), 1);
    packets.remove(0)
}

#[test]
fn the_vectors_of_the_document() {
    let mut v = Unchecked(vectors());
    v.sent("discovery", Message::Discovery { nonce: NONCE });
    for (name, relay) in [
        ("advertisement-v4", "192.0.2.1"),
        ("advertisement-v6", "2001:db8::1"),
    ] {
        let (nonce, relay) = (NONCE, ip(relay));
        v.sent(name, Message::Advertisement { nonce, relay });
    }
    let request = |mld| Message::Request { nonce: NONCE, mld };
    v.sent("request-igmp", request(false));
    v.sent("request-mld", request(true));
    v.sent_with("request-mld-linux", request(true), PFlag::Linux);
    v.taken("request-vlc", request(false));

    let gateway = Some("203.0.113.5:40001");
    let mapped = Some("[::ffff:203.0.113.5]:40001");
    let query = v.query("query-igmp", false, None);
    assert_eq!(query, our_query(false, "192.0.2.1", false, None));
    // VLC accepts no other length.
    assert_eq!(query.len(), 48);
    let query = v.query("query-igmp-gateway", false, gateway);
    assert_eq!(query, our_query(false, "192.0.2.1", false, gateway));
    assert_eq!(query.len(), 66);
    // A relay's own form is returned to it unchanged.
    let query = v.query("query-igmp-gateway-mapped", false, mapped);
    assert_eq!(query, our_query(false, "192.0.2.1", false, mapped));
    let query = v.query("query-mld", false, None);
    assert_eq!(query, our_query(true, "fe80::1", false, None));
    let gateway_v6 = Some("[2001:db8::5]:40001");
    let query = v.query("query-mld-limited-gateway", true, gateway_v6);
    assert_eq!(query, our_query(true, "fe80::1", true, gateway_v6));
    assert_eq!(v.query("query-igmp-bare", false, None).len(), 44);

    let join = record(RecordKind::Allow, "232.1.2.3", &["198.51.100.7"]);
    let packet = v.update("update-igmp", std::slice::from_ref(&join));
    assert_eq!(packet, our_report(false, join));
    let join = record(RecordKind::ToEx, "ff3e::4321", &[]);
    let packet = v.update("update-mld", std::slice::from_ref(&join));
    assert_eq!(packet, our_report(true, join));
    let join = record(RecordKind::ToEx, "ff1e::4321", &[]);
    let packet = v.update("update-mld-asm", &[join.clone(), join.clone()]);
    let mut twice = Vec::new();
    report::write_report(true, &[join.clone(), join], 1280, |p| twice = p.to_vec());
    assert_eq!(packet, twice);
    let state = record(RecordKind::IsIn, "232.1.2.3", &["198.51.100.7"]);
    v.update("update-vlc", &[state]);
    v.update(
        "update-vlc-asm",
        &[record(RecordKind::ToEx, "239.1.2.3", &[])],
    );
    v.update(
        "update-vlc-asm-v6",
        &[record(RecordKind::IsEx, "ff1e::4321", &[])],
    );
    v.update(
        "update-igmpv2",
        &[record(RecordKind::IsEx, "239.1.2.3", &[])],
    );
    v.update(
        "update-igmpv2-leave",
        &[record(RecordKind::ToIn, "239.1.2.3", &[])],
    );
    v.update(
        "update-mldv1-done",
        &[record(RecordKind::ToIn, "ff1e::4321", &[])],
    );

    for (name, from, to) in [
        ("data-v4", "198.51.100.7:40000", "232.1.2.3:5001"),
        ("data-v6", "[2001:db8::7]:40000", "[ff3e::4321]:5001"),
    ] {
        let bytes = v.take(name);
        let (from, to, payload) = (address(from), address(to), &b"hello"[..]);
        let inner = Udp {
            from,
            to,
            ttl: 63,
            payload,
        };
        let Ok(Message::Data { packet }) = Message::parse(&bytes) else {
            panic!("{name}: {:?}", Message::parse(&bytes));
        };
        assert_eq!(ip::parse_udp(packet), Ok(inner), "{name}");
        let mut written = Vec::new();
        assert!(ip::write_udp(&inner, 0, &mut written));
        let mut message = Vec::new();
        Message::Data { packet: &written }.encode(&mut message);
        assert_eq!(message, bytes, "{name}");
    }

    let teardown = |gateway: &str| Message::Teardown {
        mac: MAC,
        nonce: NONCE,
        gateway: address(gateway),
    };
    v.sent("teardown-v4", teardown("203.0.113.5:40001"));
    v.taken("teardown-v4-mapped", teardown("203.0.113.5:40001"));
    v.sent("teardown-v6", teardown("[2001:db8::5]:40001"));

    let name = RelayTarget::Name("relay.example.com.".to_owned());
    for (name, precedence, discovery_optional, relay) in [
        ("amtrelay-none", 0, false, RelayTarget::None),
        (
            "amtrelay-v4",
            10,
            true,
            RelayTarget::Address(ip("203.0.113.15")),
        ),
        (
            "amtrelay-v6",
            10,
            false,
            RelayTarget::Address(ip("2001:db8::15")),
        ),
        ("amtrelay-name", 128, false, name),
    ] {
        let record = AmtRelay {
            precedence,
            discovery_optional,
            relay,
        };
        let (bytes, mut written) = (v.take(name), Vec::new());
        record.encode(&mut written);
        assert_eq!(written, bytes, "{name}");
        assert_eq!(AmtRelay::parse(&bytes), Ok(record), "{name}");
    }

    let left: BTreeSet<_> = v.0.into_keys().collect();
    assert_eq!(left, BTreeSet::new(), "vectors without a check");
}
