//! Holds the crate to the test vectors in `docs/protocol.md`: each is read from there, decoded and
//! encoded. A vector without a check fails, and so does a check without a vector. `conversation.rs`
//! plays them as the two ends would.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use erasure::Scheme;
use flexicast::ack::PathAck;
use flexicast::authentication::{AuthenticationParameters, FlowAuthentication, PublicKey};
use flexicast::control::{
    Action, Anchor, Announce, CAPABILITY_COPIES, CAPABILITY_MULTICAST_IPV4,
    CAPABILITY_MULTICAST_IPV6, Clock, Control, ControlReader, Credential, Endpoint, Expired,
    FeedbackKey, Hello, Key, LegReport, LegState, Legs, Lineage, Need, NeedReason, Refusal,
    RelayAddress, RelayHint, RungNotice, SOURCE_ANSWERS_NEED, SOURCE_SENDS_KEYS, SOURCE_TAKES_LEGS,
    SourceAddress, State, TagKey, Welcome, WelcomeChannel, Window,
};
use flexicast::fec::FecConfig;
use flexicast::frame::{self, Frame, Frames};
use flexicast::message::Fragment;
use flexicast::protect::{Algorithm, FlowSecret};
use flexicast::signing::{self, Era, Header, Signer, Statement};
use flexicast::unicast::{Piece, RangeHeader, StreamReader, put_catch_up, put_catch_up_item};
use flexicast::{ALPN, Cause, Cursor, EcnCounts, FlowId, PathId, Rung};
use ring::aead::quic;
use ring::signature::{ED25519, UnparsedPublicKey};
use uuid::Uuid;

use crate::document::{
    Vector, authentication, erasure::check_repair, frames::stream_frame, named, packet, vectors,
};

const INCARNATION: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const RECEIVER: Uuid = Uuid::from_u128(0x5f1e_0c1a_6b1d_4c8e_9a53_0d4b_7c2e_8f10);
const FLOW: FlowId = FlowId([0xc3, 0x5a, 0x91, 0x0e, 0x77, 0x2b, 0xd4, 0x68]);
const UPDATE: &[u8] = b"\0{\"specversion\":\"1.0\"}";
const MS: Duration = Duration::from_millis(1);
/// Number of a receiver in packets of tags.
const TAGGED: u32 = 7;
/// Of `news`, and of `lore` before it was restored in the vector `lineage`.
const OTHER_INCARNATION: Uuid = Uuid::from_u128(0x8d1f_2ce0_7a5b_4c0e_9d6f_3b2a_10c4_e5d7);

fn secret() -> FlowSecret {
    FlowSecret::from(std::array::from_fn(|i| i as u8))
}

/// Of the second key epoch.
fn next_secret() -> FlowSecret {
    FlowSecret::from(std::array::from_fn(|i| 0x40 + i as u8))
}

/// Of a member's feedback packets.
fn feedback_secret() -> FlowSecret {
    FlowSecret::from(std::array::from_fn(|i| 0x80 + i as u8))
}

/// Private key of a source, whose seed is 32 bytes that count from `first`.
fn signer(first: u8) -> Signer {
    Signer::from_seed(&std::array::from_fn(|i| first + i as u8)).unwrap()
}

/// Key that signs a flow's packets.
fn packet_key() -> PublicKey {
    PublicKey(signer(0xc0).key().0)
}

/// The eras of `lore`: restored behind update 300, with another key since.
fn lineage() -> signing::Lineage {
    let before = Era {
        first: 101,
        last: Some(300),
        incarnation: OTHER_INCARNATION,
        key: signer(0x40).key(),
    };
    let now = Era {
        first: 301,
        last: None,
        incarnation: INCARNATION,
        key: signer(0).key(),
    };
    signing::Lineage::new(vec![before, now]).unwrap()
}

/// Where the second key epoch begins: as far ahead as a source with the default rate begins one
/// that it announces behind packet 7.
const NEXT_EPOCH: u64 = 3150;

/// The frame encodes to exactly the vector, and the vector reads as the frame and nothing more.
fn control(vector: &Vector, frame: Control) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    assert_eq!(HEXLOWER.encode(&bytes), HEXLOWER.encode(&vector.hex()));
    assert_eq!(read_control(&vector.hex()), [frame]);
}

fn read_control(bytes: &[u8]) -> Vec<Control> {
    let mut reader = ControlReader::new();
    reader.push(bytes);
    std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
}

fn welcome_lore() -> WelcomeChannel {
    WelcomeChannel {
        channel: 1,
        name: "lore".into(),
        incarnation: INCARNATION,
        head: 70_000,
        first: 301,
    }
}

fn cursor(seq: u64) -> Cursor {
    Cursor {
        incarnation: INCARNATION,
        seq,
    }
}

fn hello() -> Hello {
    Hello {
        receiver: RECEIVER,
        name: "r1".into(),
        software: "flexfeed-receiver/0.1.0".into(),
        credential: Credential::Token(b"secret-token".to_vec()),
        channels: vec![("lore".into(), Some(cursor(300)))],
        capabilities: vec![
            CAPABILITY_MULTICAST_IPV4,
            CAPABILITY_MULTICAST_IPV6,
            CAPABILITY_COPIES,
        ],
    }
}

fn enrol(instance: u8, token: &[u8]) -> Control {
    Control::Hello(Hello {
        receiver: RECEIVER,
        name: "r1".into(),
        software: "flexfeed-receiver/0.2.0".into(),
        credential: Credential::Enrol {
            token: token.to_vec(),
            secret: std::array::from_fn(|i| 0x60 + i as u8),
            instance: std::array::from_fn(|i| instance + i as u8),
        },
        channels: vec![("lore".into(), None)],
        capabilities: vec![],
    })
}

fn announce() -> Announce {
    Announce {
        flow: FLOW,
        sequence: 1,
        withdrawn: false,
        endpoints: endpoints(),
        relays: vec![],
        copies: true,
        ack_delay: 25 * MS,
        flow_index: 1,
        channel: 1,
        heartbeat: 1000 * MS,
        authentication: None,
        fec: None,
    }
}

fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint {
            group: "232.70.70.1:4434".parse().unwrap(),
            source: Some("192.0.2.10".parse().unwrap()),
        },
        Endpoint {
            group: "[ff3e::8000:1]:4434".parse().unwrap(),
            source: None,
        },
    ]
}

fn state(
    vector: &Vector,
    sequence: u64,
    action: Action,
    path: u64,
    key_sequence: u64,
    cause: Option<Cause>,
) {
    let state = State {
        flow: FLOW,
        sequence,
        action,
        path: PathId(path),
        key_sequence,
        cause,
        largest: None,
    };
    control(vector, Control::State(state));
}

fn key(vector: &Vector, sequence: u64, first_pn: u64, secret: FlowSecret) {
    let key = Key {
        flow: FLOW,
        sequence,
        first_pn,
        secret,
        algorithm: Algorithm::Aes128Gcm as u64,
    };
    control(vector, Control::Key(key));
}

fn rung(sequence: u64, path: u64, first_pn: u64, cause: Cause, anchor: Option<Anchor>) -> Control {
    Control::Rung(RungNotice {
        flow: FLOW,
        sequence,
        path: PathId(path),
        first_pn,
        cause,
        anchor,
    })
}

fn window(vector: &Vector, sequence: u64, offset: u64) {
    let flow = FLOW;
    let window = Window {
        flow,
        sequence,
        offset,
    };
    control(vector, Control::Window(window));
}

fn path_ack(vector: &Vector, delay: Duration, ranges: &[Range<u64>], ecn: Option<EcnCounts>) {
    let ack = PathAck {
        path: PathId::new(1, Rung::Multicast),
        delay,
        ranges: ranges.to_vec(),
        ecn,
        rebuilt: Vec::new(),
    };
    assert_eq!(HEXLOWER.encode(&ack.encode()), vector.text("hex"));
    assert_eq!(PathAck::decode(&vector.hex()).unwrap(), ack);
}

/// The vector is the signed update 301, its parts are where the document says, and no other bytes
/// are this update.
fn signed_update(vector: &Vector, deadline_ms: u64) {
    let signer = signer(0);
    let seed: Vec<u8> = (0..32).collect();
    assert_eq!(vector.bytes("seed"), seed);
    assert_eq!(vector.bytes("public-key"), signer.key().0);
    assert_eq!(vector.bytes("key-id"), signer.key().id().0);
    let statement = Statement {
        channel: vector.text("channel"),
        incarnation: INCARNATION,
        seq: 301,
        deadline_ms,
    };
    let salt = vector.bytes("salt").try_into().unwrap();
    let signed = signer.sign(&statement, &salt, UPDATE).unwrap();
    assert_eq!(HEXLOWER.encode(&signed), HEXLOWER.encode(&vector.hex()));

    let header = Header::parse(&signed).unwrap();
    let (len, key_id) = (header.len(), signer.key().id());
    assert_eq!((header.key_id(), header.seq()), (key_id, 301));
    assert_eq!((header.incarnation(), header.chunks()), (INCARNATION, 1));
    let stated = (deadline_ms > 0).then_some(deadline_ms);
    assert_eq!(header.deadline_ms(), stated);
    assert_eq!(signing::header_len(&signed), Some(len));
    assert_eq!(signing::content(&signed), named("encoded-update"));
    assert_eq!(
        signed[..3],
        [&[2][..], &(len as u16 - 3).to_be_bytes()].concat()
    );
    assert_eq!(signed[len - 80..len - 64], vector.bytes("hash"));
    assert_eq!(signed[len - 64..len], vector.bytes("signature"));

    // The signature by itself, over what section 7.5 says.
    let message = [
        b"flexfeed update 1\0\0\0\0\0\0\0\0\x04lore",
        &signed[3..len - 64],
    ]
    .concat();
    assert_eq!(message, vector.bytes("message"));
    let key = UnparsedPublicKey::new(&ED25519, vector.bytes("public-key"));
    key.verify(&message, &vector.bytes("signature")).unwrap();

    let lineage = lineage();
    assert_eq!(lineage.verify("lore", 301, &vector.hex()), Ok(()));
    for at in 0..signed.len() {
        let mut changed = signed.clone();
        changed[at] ^= 1;
        let verified = lineage.verify("lore", 301, &changed);
        assert!(verified.is_err(), "byte {at}");
    }
    assert!(lineage.verify("lore", 302, &signed).is_err());
    assert!(lineage.verify("news", 301, &signed).is_err());
}

/// The vector is a stream's head and the bytes from `offset` of the update.
fn range(vector: &Vector, offset: usize) {
    let header = RangeHeader {
        channel: 1,
        seq: 301,
        encoding: 0,
        total: UPDATE.len() as u64,
        offset: offset as u64,
    };
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    bytes.extend_from_slice(&UPDATE[offset..]);
    assert_eq!(HEXLOWER.encode(&bytes), vector.text("hex"));
    let data = Bytes::copy_from_slice(&UPDATE[offset..]);
    assert_eq!(pieces(&vector.hex()), [Piece::Range { header, data }]);
}

fn pieces(bytes: &[u8]) -> Vec<Piece> {
    let mut reader = StreamReader::new();
    reader.push(bytes);
    std::iter::from_fn(|| reader.next_piece().unwrap()).collect()
}

type Check = fn(&Vector);

const CHECKS: &[(&str, Check)] = &[
    ("alpn", |v| assert_eq!(v.hex(), ALPN)),
    ("unknown-frame-then-cursor", |v| {
        assert_eq!(read_control(&v.hex()), [Control::Cursors(vec![])]);
    }),
    ("hello", |v| control(v, Control::Hello(hello()))),
    ("hello-minimal", |v| {
        control(
            v,
            Control::Hello(Hello {
                receiver: RECEIVER,
                name: String::new(),
                software: String::new(),
                credential: Credential::None,
                channels: vec![("lore".into(), None), ("news".into(), None)],
                capabilities: vec![],
            }),
        );
    }),
    ("hello-from-the-oldest", |v| {
        control(
            v,
            Control::Hello(Hello {
                receiver: RECEIVER,
                name: String::new(),
                software: String::new(),
                credential: Credential::None,
                channels: vec![("lore".into(), Some(Cursor::of_last(u64::MAX)))],
                capabilities: vec![],
            }),
        );
    }),
    ("hello-enrol", |v| control(v, enrol(0xa0, b"secret-token"))),
    ("hello-enrolled", |v| control(v, enrol(0xb0, b""))),
    ("refused-id-in-use", |v| {
        let code = Refusal::IdInUse as u64;
        let reason = "r1 is connected from 192.0.2.7:4000 already".into();
        control(v, Control::Refused { code, reason });
    }),
    ("welcome", |v| {
        control(
            v,
            Control::Welcome(Welcome {
                channels: vec![welcome_lore()],
                capabilities: Vec::new(),
            }),
        );
    }),
    ("welcome-capabilities", |v| {
        control(
            v,
            Control::Welcome(Welcome {
                channels: vec![welcome_lore()],
                capabilities: vec![SOURCE_ANSWERS_NEED, SOURCE_SENDS_KEYS, SOURCE_TAKES_LEGS],
            }),
        );
    }),
    ("welcome-several", |v| {
        let news = WelcomeChannel {
            channel: 2,
            name: "news".into(),
            incarnation: OTHER_INCARNATION,
            head: 0,
            first: 1,
        };
        control(
            v,
            Control::Welcome(Welcome {
                channels: vec![welcome_lore(), news],
                capabilities: Vec::new(),
            }),
        );
    }),
    ("refused", |v| {
        let code = Refusal::BadCredential as u64;
        let reason = "no such token".into();
        control(v, Control::Refused { code, reason });
    }),
    ("refused-too-many", |v| {
        let code = Refusal::TooMany as u64;
        let reason = "20000 receivers are served already".into();
        control(v, Control::Refused { code, reason });
    }),
    ("cursor", |v| {
        control(v, Control::Cursors(vec![cursor(301)]));
    }),
    ("gap", |v| {
        let (channel, first, last) = (1, 303, 400);
        control(
            v,
            Control::Gap {
                channel,
                first,
                last,
            },
        );
    }),
    ("addresses", |v| {
        let address = |at: &str, leaving| SourceAddress {
            at: at.parse().unwrap(),
            leaving,
        };
        let addresses = vec![
            address("192.0.2.7:4433", false),
            address("[2001:db8::7]:4433", true),
        ];
        control(v, Control::Addresses(addresses));
    }),
    ("need", |v| {
        control(
            v,
            Control::Need(Need {
                channel: 1,
                seq: 303,
                offset: 0,
                length: None,
                reason: NeedReason::Contradicted as u64,
            }),
        );
    }),
    ("need-range", |v| {
        control(
            v,
            Control::Need(Need {
                channel: 1,
                seq: 304,
                offset: 1159,
                length: Some(2318),
                reason: NeedReason::Invalid as u64,
            }),
        );
    }),
    ("expired", |v| {
        let expired = Expired {
            channel: 1,
            first: 303,
            last: 305,
            offset: Some(70_000),
        };
        control(v, Control::Expired(expired));
    }),
    ("expired-without-offset", |v| {
        let expired = Expired {
            channel: 1,
            first: 306,
            last: 306,
            offset: None,
        };
        control(v, Control::Expired(expired));
    }),
    ("clock-question", |v| {
        let (question, time_us) = (1, None);
        control(v, Control::Clock(Clock { question, time_us }));
    }),
    ("clock-answer", |v| {
        let (question, time_us) = (1, Some(1_800_000_000_123_456));
        control(v, Control::Clock(Clock { question, time_us }));
    }),
    ("need-forged", |v| {
        control(
            v,
            Control::Need(Need {
                channel: 1,
                seq: 305,
                offset: 0,
                length: None,
                reason: NeedReason::Forged as u64,
            }),
        );
    }),
    ("lineage", |v| {
        let [before, now] = ["old-key", "key"].map(|key| v.bytes(key));
        assert_eq!(
            (&before[..], &now[..]),
            (&signer(0x40).key().0[..], &signer(0).key().0[..])
        );
        let (channel, eras) = (1, lineage());
        control(v, Control::Lineage(Lineage { channel, eras }));
    }),
    ("keys", |v| {
        let [old, new] = [signer(0x40), signer(0)];
        let keys = ["old-key", "key"].map(|key| v.bytes(key));
        assert_eq!(keys, [&old, &new].map(|signer| signer.key().0.to_vec()));
        let both = vec![old.endorse(new.key()), new.endorse(old.key())];
        assert!(both.iter().all(signing::Endorsement::is_genuine));
        control(v, Control::Keys(both));
    }),
    ("fc-announce", |v| control(v, Control::Announce(announce()))),
    ("fc-announce-fixed-fields", |v| {
        let endpoint = Endpoint {
            group: "239.1.2.3:4434".parse().unwrap(),
            source: None,
        };
        let expected = Announce {
            sequence: 2,
            endpoints: vec![endpoint],
            copies: false,
            ack_delay: 50 * MS,
            ..announce()
        };
        assert_eq!(read_control(&v.hex()), [Control::Announce(expected)]);
    }),
    ("fc-announce-copies-only", |v| {
        control(
            v,
            Control::Announce(Announce {
                sequence: 2,
                endpoints: vec![],
                ..announce()
            }),
        );
    }),
    ("fc-announce-ipv6", |v| {
        let endpoint = Endpoint {
            group: "[ff3e::46:4601]:4434".parse().unwrap(),
            source: Some("2001:db8::10".parse().unwrap()),
        };
        let expected = Announce {
            sequence: 4,
            endpoints: vec![endpoint],
            copies: false,
            ack_delay: 50 * MS,
            ..announce()
        };
        control(v, Control::Announce(expected));
    }),
    ("fc-announce-relays", |v| {
        let relay = |priority, address, port| RelayHint {
            priority,
            address,
            port,
        };
        let v4 = RelayAddress::Ip("192.0.2.20".parse().unwrap());
        let v6 = RelayAddress::Ip("2001:db8::20".parse().unwrap());
        let name = RelayAddress::Name("relay.example.org".into());
        let expected = Announce {
            sequence: 5,
            endpoints: endpoints()[..1].to_vec(),
            relays: vec![
                relay(0, v4, 2268),
                relay(0, v6, 2268),
                relay(10, name, 4000),
            ],
            copies: false,
            ..announce()
        };
        control(v, Control::Announce(expected));
    }),
    ("fc-announce-authenticated", |v| {
        let authentication = Some(FlowAuthentication::Packets(AuthenticationParameters {
            tag_flow: FlowId(v.bytes("tag-flow-id").try_into().unwrap()),
            key: packet_key(),
        }));
        assert_eq!(v.bytes("key"), packet_key().0);
        let announce = Announce {
            authentication,
            ..announce()
        };
        control(v, Control::Announce(announce));
    }),
    ("fc-announce-signed-streams", |v| {
        assert_eq!(v.bytes("key"), packet_key().0);
        let announce = Announce {
            authentication: Some(FlowAuthentication::Streams(packet_key())),
            ..announce()
        };
        control(v, Control::Announce(announce));
    }),
    ("fc-announce-fec", |v| {
        let announce = Announce {
            fec: Some(FecConfig::default().parameters()),
            ..announce()
        };
        control(v, Control::Announce(announce));
    }),
    ("fc-announce-withdraw", |v| {
        control(
            v,
            Control::Announce(Announce {
                sequence: 3,
                withdrawn: true,
                endpoints: vec![],
                copies: false,
                ..announce()
            }),
        );
    }),
    ("fc-state-join", |v| state(v, 1, Action::Join, 0, 0, None)),
    ("fc-state-join-confirm", |v| {
        state(v, 2, Action::Join, 0, 1, None);
    }),
    ("fc-state-ready", |v| {
        control(
            v,
            Control::State(State {
                flow: FLOW,
                sequence: 3,
                action: Action::Ready,
                path: PathId(5),
                key_sequence: 1,
                cause: None,
                largest: Some(6),
            }),
        );
    }),
    ("fc-state-confirm", |v| {
        state(v, 4, Action::Join, 0, 2, None);
    }),
    ("fc-state-leave", |v| {
        state(v, 5, Action::Leave, 5, 2, Some(Cause::HeartbeatLost));
    }),
    ("fc-state-join-copies", |v| {
        state(v, 6, Action::Join, 7, 2, None);
    }),
    ("fc-state-leave-copies", |v| {
        state(v, 7, Action::Leave, 7, 2, None);
    }),
    ("fc-state-join-amt", |v| {
        state(v, 8, Action::Join, 6, 2, None)
    }),
    ("fc-state-relay-lost", |v| {
        state(v, 9, Action::Leave, 6, 2, Some(Cause::RelayLost));
    }),
    ("fc-state-leave-amt", |v| {
        state(v, 10, Action::Leave, 6, 2, None);
    }),
    ("fc-state-probe-timeout", |v| {
        state(v, 11, Action::Leave, 6, 2, Some(Cause::ProbeTimeout));
    }),
    ("fc-state-forged", |v| {
        state(v, 12, Action::Leave, 5, 2, Some(Cause::Forged));
    }),
    ("fc-key", |v| key(v, 1, 0, secret())),
    ("fc-key-next", |v| key(v, 2, NEXT_EPOCH, next_secret())),
    ("fc-rung-member", |v| {
        let (seq, offset) = (301, 0);
        let anchor = Some(Anchor { seq, offset });
        control(v, rung(1, 5, 7, Cause::Joined, anchor));
    }),
    ("fc-rung-member-amt", |v| {
        let (seq, offset) = (301, 0);
        let anchor = Some(Anchor { seq, offset });
        control(v, rung(4, 6, 7, Cause::Joined, anchor));
    }),
    ("fc-rung-unicast", |v| {
        control(v, rung(2, 0, NEXT_EPOCH + 1, Cause::HeartbeatLost, None));
    }),
    ("fc-rung-forged", |v| {
        control(v, rung(5, 0, NEXT_EPOCH + 1, Cause::Forged, None));
    }),
    ("fc-rung-leg-lost", |v| {
        control(v, rung(6, 6, NEXT_EPOCH + 1, Cause::LegLost, None));
    }),
    ("fc-rung-unknown-cause", |v| {
        let expected = rung(3, 0, NEXT_EPOCH + 1, Cause::Ejected, None);
        assert_eq!(read_control(&v.hex()), [expected]);
    }),
    ("fc-feedback", |v| {
        let key = FeedbackKey {
            flow: FLOW,
            sequence: 1,
            id: FlowId(v.bytes("feedback-id").try_into().unwrap()),
            secret: feedback_secret(),
            algorithm: Algorithm::Aes128Gcm as u64,
        };
        control(v, Control::Feedback(key));
    }),
    ("fc-heard", |v| control(v, Control::Heard(FLOW))),
    ("fc-tag-key", |v| {
        let key = TagKey {
            flow: FLOW,
            receiver: TAGGED,
            secret: FlowSecret::from(std::array::from_fn(|i| 0xa0 + i as u8)),
        };
        control(v, Control::TagKey(key));
    }),
    ("fc-legs", |v| {
        let leg = |path, state, largest, missed, lag_ms| LegReport {
            path: PathId(path),
            number: 0,
            state,
            largest: Some(largest),
            missed,
            lag: Duration::from_millis(lag_ms),
        };
        let legs = Legs {
            flow: FLOW,
            sequence: 3,
            legs: vec![
                leg(5, LegState::Lost, 6, 12, 0),
                leg(6, LegState::Working, NEXT_EPOCH, 0, 100),
            ],
        };
        control(v, Control::Legs(legs));
    }),
    ("fc-window", |v| window(v, 1, 16 << 20)),
    ("fc-window-later", |v| window(v, 2, (16 << 20) + 4_194_309)),
    ("path-ack", |v| {
        path_ack(v, 30 * MS, std::slice::from_ref(&(6..8)), None)
    }),
    ("path-ack-ranges", |v| {
        let ranges = [1000..1101, 997..999, 64..65, 0..10];
        path_ack(v, Duration::from_micros(1250), &ranges, None);
    }),
    ("path-ack-next-epoch", |v| {
        path_ack(v, 30 * MS, &[NEXT_EPOCH..NEXT_EPOCH + 1, 6..8], None);
    }),
    ("path-ack-ecn", |v| {
        let (ect0, ect1, ce) = (1_200, 0, 3);
        let ecn = EcnCounts { ect0, ect1, ce };
        path_ack(v, 30 * MS, std::slice::from_ref(&(6..8)), Some(ecn));
    }),
    ("path-ack-rebuilt", |v| {
        let ack = PathAck {
            path: PathId::new(1, Rung::Multicast),
            delay: 30 * MS,
            ranges: vec![10..11, 7..8],
            ecn: None,
            rebuilt: vec![8..10, 4..5],
        };
        assert_eq!(HEXLOWER.encode(&ack.encode()), v.text("hex"));
        assert_eq!(PathAck::decode(&v.hex()).unwrap(), ack);
    }),
    ("packet-ping", |v| {
        assert_eq!(v.bytes("secret"), secret().as_bytes());
        assert_eq!(v.bytes("frames"), named("frame-ping"));
        packet::check(v, Algorithm::Aes128Gcm, &quic::AES_128);
    }),
    ("packet-aes-128-gcm", |v| {
        assert_eq!(v.bytes("secret"), secret().as_bytes());
        assert_eq!(v.bytes("frames"), named("frame-stream-whole"));
        packet::check(v, Algorithm::Aes128Gcm, &quic::AES_128);
    }),
    ("packet-feedback", |v| {
        assert_eq!(v.bytes("frames"), named("path-ack"));
        packet::check(v, Algorithm::Aes128Gcm, &quic::AES_128);
        packet::check_feedback(v, &feedback_secret());
    }),
    ("packet-signed", |v| {
        let packet = vectors()["packet-ping"].bytes("packet");
        authentication::check_signed(v, &packet, packet_key());
    }),
    ("packet-tags", |v| {
        let packet = vectors()["packet-aes-128-gcm"].bytes("packet");
        authentication::check_tags(v, &secret(), (7, &packet), TAGGED);
    }),
    ("packet-next-epoch", |v| {
        assert_eq!(v.bytes("secret"), next_secret().as_bytes());
        packet::check(v, Algorithm::Aes128Gcm, &quic::AES_128);
    }),
    ("packet-chacha20-poly1305", |v| {
        packet::check(v, Algorithm::ChaCha20Poly1305, &quic::CHACHA20);
    }),
    ("frame-stream-signature", |v| {
        authentication::check_stream(v, 301, &vectors()["encoded-update"].hex(), packet_key());
    }),
    ("frame-repair", |v| {
        let symbol = named("repair-rlc");
        let bytes = v.hex();
        let frame = Frames::new(&bytes).next().unwrap().unwrap();
        assert_eq!(frame, Frame::Repair { symbol: &symbol });
    }),
    ("datagram-repair", |v| {
        let symbol = named("repair-rlc");
        let written = frame::apart_symbol(FLOW, symbol.len(), |out| {
            out.extend_from_slice(&symbol);
            true
        });
        assert_eq!(written, Some(v.hex()));
        assert_eq!(
            frame::read_apart_symbol(&v.hex()),
            Some((FLOW, &symbol[..]))
        );
    }),
    ("frame-ping", |v| {
        let mut out = Vec::new();
        frame::put_ping(&mut out);
        assert_eq!(out, v.hex());
        assert_eq!(Frames::new(&v.hex()).next(), Some(Ok(Frame::Ping)));
    }),
    ("frame-stream-whole", |v| {
        assert_eq!(frame::stream_id(301), 1207);
        stream_frame(v, 301, 0, UPDATE, true, 100);
    }),
    ("frame-stream-middle", |v| {
        stream_frame(v, 1, 1159, b"middle and what does not fit", true, 0);
    }),
    ("frame-stream-end", |v| {
        stream_frame(v, 1, 20_000, b"end", true, 100);
    }),
    ("frame-reset-stream", |v| {
        let (seq, code, size) = (302, 1, 70_000);
        let mut out = Vec::new();
        frame::put_reset(&mut out, seq, code, size);
        assert_eq!(out, v.hex());
        let reset = Frame::Reset { seq, code, size };
        assert_eq!(Frames::new(&v.hex()).next(), Some(Ok(reset)));
    }),
    ("frame-datagram", |v| {
        let mut out = Vec::new();
        assert!(frame::put_datagram(&mut out, 100, b"hello"));
        assert_eq!(out, v.hex());
        let message = Frame::Datagram { data: b"hello" };
        assert_eq!(Frames::new(&v.hex()).next(), Some(Ok(message)));
    }),
    ("frame-datagram-rest", |v| {
        let bytes = v.hex();
        let frames: Vec<_> = Frames::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(frames, [Frame::Datagram { data: b"hello" }]);
    }),
    ("signed-message", |v| {
        let signer = signer(0);
        assert_eq!(v.bytes("public-key"), signer.key().0);
        let number: u64 = v.text("number").parse().unwrap();
        let statement = Statement {
            channel: v.text("channel"),
            incarnation: INCARNATION,
            seq: number,
            deadline_ms: v.text("deadline").parse().unwrap(),
        };
        let salt = v.bytes("salt").try_into().unwrap();
        let content = named("encoded-message");
        let signed = signer.sign_message(&statement, &salt, &content).unwrap();
        assert_eq!(HEXLOWER.encode(&signed), HEXLOWER.encode(&v.hex()));
        let era = Era {
            first: 1,
            last: None,
            incarnation: INCARNATION,
            key: signer.key(),
        };
        let lineage = signing::Lineage::new(vec![era]).unwrap();
        let header = lineage.verify_message("lore", number, &signed).unwrap();
        assert_eq!(header.deadline_ms(), Some(statement.deadline_ms));
        assert!(
            lineage.verify("lore", number, &signed).is_err(),
            "no update"
        );
    }),
    ("message-fragment", |v| {
        let fragment = Fragment {
            channel: 1,
            number: 7,
            length: 512,
            offset: 4,
            data: b"hello",
        };
        assert_eq!(fragment.encode(), v.hex());
        assert_eq!(Fragment::decode(&v.hex()), Ok(Some(fragment)));
    }),
    ("frames-several", |v| {
        let bytes = v.hex();
        let frames: Vec<_> = Frames::new(&bytes).map(Result::unwrap).collect();
        let unknown = Frame::Unknown { kind: 0x7001 };
        assert_eq!(frames, [Frame::Padding, unknown, Frame::Ping]);
        let eliciting: Vec<_> = frames.iter().map(Frame::is_ack_eliciting).collect();
        assert_eq!(eliciting, [false, true, true]);
    }),
    ("repair-xor", |v| check_repair(v, Scheme::Xor)),
    ("repair-reed-solomon", |v| {
        check_repair(v, Scheme::ReedSolomon);
    }),
    ("repair-rlc", |v| check_repair(v, Scheme::Rlc)),
    ("repair-rlc-sparse", |v| check_repair(v, Scheme::Rlc)),
    ("encoded-update", |v| {
        assert_eq!(v.hex(), [b"\0", v.text("event").as_bytes()].concat());
        assert_eq!(v.hex(), UPDATE);
    }),
    ("encoded-message", |v| {
        // Opaque to the transport; the crate `feed` reads its attributes.
        let bytes = v.hex();
        let attributes = usize::from(u16::from_be_bytes([bytes[1] & 0x3f, bytes[2]]));
        assert_eq!((bytes[0], bytes[1] >> 6), (1, 1));
        assert_eq!(&bytes[3 + attributes..], v.text("body").as_bytes());
    }),
    ("signed-update", |v| signed_update(v, 0)),
    ("signed-update-deadline", |v| {
        signed_update(v, 1_800_000_000_500)
    }),
    ("stream-range", |v| range(v, 0)),
    ("stream-range-repair", |v| range(v, 16)),
    ("stream-catch-up", |v| {
        let updates = [(300, &b"\0{}"[..]), (301, UPDATE)];
        let mut bytes = Vec::new();
        put_catch_up(&mut bytes, 1);
        for (seq, update) in updates {
            put_catch_up_item(&mut bytes, seq, update.len());
            bytes.extend_from_slice(update);
        }
        assert_eq!(HEXLOWER.encode(&bytes), v.text("hex"));
        let expected = updates.map(|(seq, update)| Piece::Update {
            channel: 1,
            seq,
            data: Bytes::copy_from_slice(update),
        });
        assert_eq!(pieces(&v.hex()), expected);
    }),
];

#[test]
fn every_vector_of_the_protocol_matches() {
    let vectors = vectors();
    let checked: BTreeSet<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
    let written: BTreeSet<&str> = vectors.keys().map(String::as_str).collect();
    assert_eq!(checked, written, "checks here, and vectors in protocol.md");
    for (name, check) in CHECKS {
        println!("{name}");
        check(&vectors[*name]);
    }
}
