//! The control stream, whole and broken.

use std::time::Duration;

use uuid::Uuid;

use crate::authentication::{AuthenticationParameters, FlowAuthentication, PublicKey};
use crate::fec::FecParameters;
use crate::protect::FlowSecret;
use crate::wire::BufMutExt;
use crate::{Cause, FlowId, PathId};
use proptest::prelude::*;

use super::*;

pub(crate) fn samples() -> Vec<Control> {
    let flow = FlowId([1, 2, 3, 4, 5, 6, 7, 8]);
    let incarnation = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    vec![
        Control::Hello(Hello {
            receiver: Uuid::from_u128(7),
            name: "r1".into(),
            software: "flexfeed-receiver/0.1.0".into(),
            credential: Credential::Token(b"secret".to_vec()),
            channels: vec![
                (
                    "lore".into(),
                    Some(Cursor {
                        incarnation,
                        seq: 300,
                    }),
                ),
                ("news".into(), None),
            ],
            capabilities: vec![CAPABILITY_MULTICAST_IPV4],
        }),
        Control::Welcome(Welcome {
            channels: vec![WelcomeChannel {
                channel: 1,
                name: "lore".into(),
                incarnation,
                head: 70_000,
                first: 301,
            }],
            capabilities: vec![SOURCE_ANSWERS_NEED, 0x4001],
        }),
        Control::Refused {
            code: Refusal::BadCredential as u64,
            reason: "no such token".into(),
        },
        Control::Addresses(vec![
            SourceAddress {
                at: "192.0.2.7:4433".parse().unwrap(),
                leaving: false,
            },
            SourceAddress {
                at: "[2001:db8::7]:4433".parse().unwrap(),
                leaving: true,
            },
        ]),
        Control::Cursors(vec![Cursor {
            incarnation,
            seq: 301,
        }]),
        Control::Announce(Announce {
            flow,
            sequence: 1,
            withdrawn: false,
            copies: true,
            endpoints: vec![
                Endpoint {
                    group: "232.70.70.1:4434".parse().unwrap(),
                    source: Some("10.0.0.1".parse().unwrap()),
                },
                Endpoint {
                    group: "[ff3e::8000:1]:4434".parse().unwrap(),
                    source: None,
                },
            ],
            relays: vec![
                RelayHint {
                    priority: 0,
                    address: RelayAddress::Ip([192, 0, 2, 7].into()),
                    port: 2268,
                },
                RelayHint {
                    priority: 10,
                    address: RelayAddress::Name("relay.example.org".into()),
                    port: 4000,
                },
            ],
            ack_delay: Duration::from_millis(25),
            flow_index: 3,
            channel: 1,
            heartbeat: Duration::from_secs(1),
            authentication: Some(FlowAuthentication::Packets(AuthenticationParameters {
                tag_flow: FlowId([9; 8]),
                key: PublicKey([8; 32]),
            })),
            fec: Some(FecParameters {
                scheme: 3,
                span: 64,
            }),
        }),
        Control::State(State {
            flow,
            sequence: 2,
            action: Action::Ready,
            path: PathId(13),
            key_sequence: 0,
            cause: None,
            largest: None,
        }),
        Control::State(State {
            flow,
            sequence: 3,
            action: Action::Leave,
            path: PathId(13),
            key_sequence: 0,
            cause: Some(Cause::HeartbeatLost),
            largest: None,
        }),
        Control::Key(Key {
            flow,
            sequence: 0,
            first_pn: 0,
            secret: FlowSecret::from([9; 32]),
            algorithm: 0x1301,
        }),
        Control::Rung(RungNotice {
            flow,
            sequence: 1,
            path: PathId(13),
            first_pn: 1234,
            cause: Cause::Joined,
            anchor: Some(Anchor {
                seq: 70_001,
                offset: 123_456_789,
            }),
        }),
        Control::Rung(RungNotice {
            flow,
            sequence: 2,
            path: PathId::UNICAST,
            first_pn: 2345,
            cause: Cause::TooSlow,
            anchor: None,
        }),
        Control::Window(Window {
            flow,
            sequence: 1,
            offset: 140_000_000,
        }),
        Control::Legs(Legs {
            flow,
            sequence: 4,
            legs: vec![
                LegReport {
                    path: PathId(13),
                    number: 0,
                    state: LegState::Working,
                    largest: Some(70_000),
                    missed: 300,
                    lag: Duration::from_millis(100),
                },
                LegReport {
                    path: PathId(14),
                    number: 1,
                    state: LegState::Trying,
                    largest: None,
                    missed: 0,
                    lag: Duration::ZERO,
                },
            ],
        }),
        Control::Expired(Expired {
            channel: 1,
            first: 9,
            last: 12,
            offset: Some(1 << 40),
        }),
        Control::Clock(Clock {
            question: 3,
            time_us: Some(1 << 50),
        }),
        Control::Gap {
            channel: 1,
            first: 5,
            last: 900,
        },
        Control::Need(Need {
            channel: 1,
            seq: 303,
            offset: 10,
            length: Some(90),
            reason: NeedReason::Invalid as u64,
        }),
        Control::Need(Need {
            channel: 1,
            seq: 304,
            offset: 0,
            length: None,
            reason: 99,
        }),
        Control::Feedback(FeedbackKey {
            flow,
            sequence: 1,
            id: FlowId([0x80; 8]),
            secret: FlowSecret::from([8; 32]),
            algorithm: 0x1301,
        }),
        Control::TagKey(TagKey {
            flow,
            receiver: 7,
            secret: FlowSecret::from([6; 32]),
        }),
        Control::Heard(flow),
    ]
}

#[test]
fn frames_round_trip_in_pieces_of_any_size_and_unknown_ones_are_skipped() {
    let mut bytes = Vec::new();
    for frame in samples() {
        frame.encode(&mut bytes);
        bytes.put_varint(0x1f_0000);
        bytes.put_prefixed(&[0xaa; 100]);
    }
    for piece in [1, 2, 7, 64, bytes.len()] {
        let (mut reader, mut got) = (ControlReader::new(), Vec::new());
        for chunk in bytes.chunks(piece) {
            reader.push(chunk);
            while let Some(frame) = reader.next_frame().unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, samples());
        assert_eq!(reader.at, reader.buffer.len());
    }
}

#[test]
fn an_announce_without_endpoints_withdraws() {
    let mut bytes = Vec::new();
    let withdrawn = Announce {
        withdrawn: true,
        copies: false,
        flow: FlowId([1; 8]),
        sequence: 9,
        endpoints: vec![],
        relays: vec![],
        ack_delay: Duration::ZERO,
        flow_index: 0,
        channel: 1,
        heartbeat: Duration::from_secs(1),
        authentication: None,
        fec: None,
    };
    Control::Announce(withdrawn.clone()).encode(&mut bytes);
    let mut reader = ControlReader::new();
    reader.push(&bytes);
    assert_eq!(
        reader.next_frame().unwrap(),
        Some(Control::Announce(withdrawn))
    );
}

/// An impossible relay address is a violation, not something to skip: the rest of the list would be
/// guesswork.
#[test]
fn relays_that_cannot_be_are_violations() {
    let good = RelayHint {
        priority: 1,
        address: RelayAddress::Name("relay.example.org".into()),
        port: 2268,
    };
    let name = |text: String| RelayAddress::Name(text);
    let with = |address| RelayHint {
        address,
        ..good.clone()
    };
    let bad = [
        with(RelayAddress::Ip([0, 0, 0, 0].into())),
        with(RelayAddress::Ip([239, 1, 1, 1].into())),
        with(name(String::new())),
        with(name("x".repeat(MAX_NAME + 1))),
        RelayHint {
            port: 0,
            ..good.clone()
        },
    ];
    let read = |relays: Vec<RelayHint>| {
        let mut bytes = Vec::new();
        let announce = samples().into_iter().find_map(|frame| match frame {
            Control::Announce(announce) => Some(announce),
            _ => None,
        });
        let announce = Announce {
            relays,
            ..announce.unwrap()
        };
        Control::Announce(announce.clone()).encode(&mut bytes);
        let mut reader = ControlReader::new();
        reader.push(&bytes);
        let read = reader.next_frame();
        read.map(|frame| assert_eq!(frame, Some(Control::Announce(announce))))
    };
    assert!(good.is_valid());
    assert_eq!(read(vec![good.clone(); MAX_RELAYS]), Ok(()));
    assert!(read(vec![good.clone(); MAX_RELAYS + 1]).is_err());
    for hint in bad {
        assert!(!hint.is_valid(), "{hint:?}");
        assert!(read(vec![good.clone(), hint.clone()]).is_err(), "{hint:?}");
    }
}

#[test]
fn a_huge_unknown_frame_takes_no_memory_and_a_huge_known_one_is_an_error() {
    let mut reader = ControlReader::new();
    let mut head = Vec::new();
    head.put_varint(0x777);
    head.put_varint(1 << 40);
    reader.push(&head);
    for _ in 0..1000 {
        assert_eq!(reader.next_frame(), Ok(None));
        reader.push(&[0; 1000]);
    }
    assert!(reader.buffer.len() <= 1000);
    let mut reader = ControlReader::new();
    reader.push(&[HELLO as u8, 0x80, 0x10, 0, 0]);
    assert!(matches!(
        reader.next_frame(),
        Err(WireError::TooLong { what: "HELLO", .. })
    ));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in prop::sample::select(FRAME_TYPES.map(|(kind, ..)| kind as u8).to_vec()),
    ) {
        let mut framed = vec![kind];
        framed.put_prefixed(&bytes);
        let mut reader = ControlReader::new();
        reader.push(&framed);
        while let Ok(Some(_)) = reader.next_frame() {}
    }

    /// A sample with some bytes changed: decodes or fails, and what decodes encodes and decodes to
    /// the same.
    #[test]
    fn mutations(
        at in any::<prop::sample::Index>(),
        which in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = Vec::new();
        which.get(&samples()).encode(&mut bytes);
        *at.get_mut(&mut bytes) = byte;
        let mut reader = ControlReader::new();
        reader.push(&bytes);
        if let Ok(Some(frame)) = reader.next_frame() {
            let mut again = Vec::new();
            frame.encode(&mut again);
            let mut reader = ControlReader::new();
            reader.push(&again);
            prop_assert_eq!(reader.next_frame(), Ok(Some(frame)));
        }
    }
}
