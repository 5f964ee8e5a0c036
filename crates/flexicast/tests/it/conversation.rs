//! Plays the test vectors in `docs/protocol.md` as a conversation, once with the crate's receiver
//! and once with its source: what either says is the next vector.

use std::time::{Duration, Instant};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use flexicast::control::{Control, ControlReader, Credential, Endpoint, Hello, Refusal};
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::receiver::{FlowInput, Output, Receiver, ReceiverConfig, ReceiverEvent, Rungs};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, SourceEvent, Unicast};
use flexicast::unicast::{Piece, StreamReader};
use flexicast::{Cursor, FlowId, PathId, Rung, Via};
use uuid::Uuid;

use crate::document::{named, vectors};

const INCARNATION: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const MS: Duration = Duration::from_millis(1);

fn read_control(name: &str) -> Control {
    read(&named(name))
}

/// The first frame.
fn read(bytes: &[u8]) -> Control {
    let mut reader = ControlReader::new();
    reader.push(bytes);
    reader.next_frame().unwrap().unwrap()
}

fn hello() -> Hello {
    match read_control("hello") {
        Control::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

fn flow_and_endpoints() -> (FlowId, Vec<Endpoint>) {
    match read_control("fc-announce") {
        Control::Announce(announce) => (announce.flow, announce.endpoints),
        other => panic!("{other:?}"),
    }
}

fn secret(name: &str) -> FlowSecret {
    match read_control(name) {
        Control::Key(key) => key.secret,
        other => panic!("{other:?}"),
    }
}

fn flow_config() -> FlowConfig {
    FlowConfig::new(flow_and_endpoints().0, secret("fc-key"))
}

/// Played one after the other, the vectors are a conversation: a receiver answers them with
/// vectors, and the updates come out.
#[test]
fn the_vectors_make_a_receiver_join_follow_a_change_of_keys_and_deliver() {
    let mut now = Instant::now();
    let mut config = ReceiverConfig::new(
        hello().receiver,
        Credential::Token(b"secret-token".to_vec()),
        hello().channels,
    );
    config.name = "r1".into();
    config.software = "flexfeed-receiver/0.1.0".into();
    config.signatures = false;
    config.deadlines = false;
    config.packet_authentication = false;
    (config.fec, config.messages) = (false, false);
    config.seed = 1;
    let mut receiver = Receiver::new(config);
    let said = |r: &mut Receiver, name: &str| {
        let said = HEXLOWER.encode(&r.take_control());
        assert_eq!(said, HEXLOWER.encode(&named(name)), "{name}");
    };
    let packet = |r: &mut Receiver, name: &str, now| {
        let mut packet = vectors()[name].bytes("packet");
        let input = r.on_flow_datagram(Rung::Multicast, &mut packet, now);
        assert_eq!(input, FlowInput::Accepted, "{name}");
    };
    let acknowledged = |r: &mut Receiver, name: &str, now| {
        let (path, ack) = r.poll_datagram(now).unwrap();
        assert_eq!(path, PathId::new(1, Rung::Multicast));
        assert_eq!(HEXLOWER.encode(&ack), HEXLOWER.encode(&named(name)));
    };
    receiver.connected();
    said(&mut receiver, "hello");
    for name in ["welcome", "fc-announce"] {
        receiver.on_control(&named(name), now).unwrap();
    }
    said(&mut receiver, "fc-state-join");
    receiver.on_control(&named("fc-key"), now).unwrap();
    said(&mut receiver, "fc-state-join-confirm");
    packet(&mut receiver, "packet-ping", now);
    said(&mut receiver, "fc-state-ready");
    receiver.on_control(&named("fc-rung-member"), now).unwrap();
    said(&mut receiver, "fc-window");

    packet(&mut receiver, "packet-aes-128-gcm", now);
    let (channel, incarnation, output) = receiver.poll_update().unwrap();
    assert_eq!((channel, incarnation), ("lore", INCARNATION));
    let Output::Update(update) = output else {
        panic!("an update");
    };
    assert_eq!((update.seq, update.via), (301, Via::Flow));
    assert_eq!(update.encoded, named("encoded-update"));
    now += 30 * MS;
    acknowledged(&mut receiver, "path-ack", now);

    receiver.on_control(&named("fc-key-next"), now).unwrap();
    said(&mut receiver, "fc-state-confirm");
    packet(&mut receiver, "packet-next-epoch", now);
    let (.., output) = receiver.poll_update().unwrap();
    assert!(matches!(output, Output::Update(update) if update.seq == 302));
    now += 30 * MS;
    acknowledged(&mut receiver, "path-ack-next-epoch", now);

    receiver.on_control(&named("gap"), now).unwrap();
    let (.., output) = receiver.poll_update().unwrap();
    assert_eq!(output, Output::Gap { from: 303, to: 400 });

    now += 4 * 1000 * MS;
    receiver.handle_timeout(now);
    said(&mut receiver, "fc-state-leave");
    receiver.on_control(&named("fc-rung-unicast"), now).unwrap();
    now += 4 * 1000 * MS;
    receiver.handle_timeout(now);
    said(&mut receiver, "fc-state-join-copies");
    let later = named("fc-announce-withdraw");
    receiver.on_control(&later, now).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| receiver.poll_event()).collect();
    let flow = flow_and_endpoints().0;
    assert!(events.contains(&ReceiverEvent::Leave { flow }));
}

fn source(head: u64, flow: Option<FlowConfig>) -> Source {
    kept(1, head, flow)
}

/// The same with a store that begins with `first`.
fn kept(first: u64, head: u64, flow: Option<FlowConfig>) -> Source {
    let channel = ChannelConfig {
        name: "lore".into(),
        incarnation: INCARNATION,
        head,
        first,
        private: false,
        endpoints: flow_and_endpoints().1,
        replicate: true,
        flow,
    };
    Source::new(SourceConfig {
        channels: vec![channel],
        unicast_rate: None,
        limits: Limits::default(),
        seed: 1,
    })
    .unwrap()
}

/// The source's side of it: it answers the receiver's vectors with vectors.
#[test]
fn the_vectors_make_a_source_serve_a_receiver() {
    let now = Instant::now();
    let mut source = source(70_000, Some(flow_config()));
    source.accept(1, now);
    source.on_control(1, &named("hello"), now).unwrap();
    let asked = SourceEvent::Authorise {
        session: 1,
        hello: hello(),
    };
    assert_eq!(source.poll_event(), Some(asked));
    source.authorised(1, Ok(()), now);
    let expected = [named("welcome-capabilities"), named("fc-announce")].concat();
    assert_eq!(source.take_control(1)[..], expected);
    source.on_control(1, &named("fc-state-join"), now).unwrap();
    assert_eq!(source.take_control(1)[..], named("fc-key"));
    assert_eq!(
        source.poll_unicast(1, now),
        Unicast::Fetch {
            channel: 0,
            from: 301,
            limit: 1024
        }
    );

    source.accept(2, now);
    source.on_control(2, &named("hello"), now).unwrap();
    let refused = (Refusal::BadCredential, "no such token".to_owned());
    source.authorised(2, Err(refused), now);
    assert_eq!(source.take_control(2)[..], named("refused"));
}

/// Without a cursor a receiver says how much of what was before it wants; the source gives what it
/// has of that, and from then on there is a cursor.
#[test]
fn a_receiver_without_a_cursor_begins_where_it_wants_to() {
    let now = Instant::now();
    let first = |stored: u64, head: u64, given: Option<Cursor>| {
        let mut source = kept(stored, head, None);
        source.accept(1, now);
        let hello = Hello {
            channels: vec![("lore".into(), given)],
            ..hello()
        };
        let mut said = Vec::new();
        Control::Hello(hello).encode(&mut said);
        source.on_control(1, &said, now).unwrap();
        source.authorised(1, Ok(()), now);
        let Control::Welcome(welcome) = read(&source.take_control(1)) else {
            panic!("no WELCOME");
        };
        let served: Vec<_> = source.sessions().collect();
        assert_eq!(served[0].channels[0].cursor, None, "a wish is no cursor");
        welcome.channels[0].first
    };
    let all = Some(Cursor::of_last(u64::MAX));
    assert_eq!(first(1, 70_000, all), 1);
    assert_eq!(
        first(60_000, 70_000, all),
        60_000,
        "what the store still has"
    );
    assert_eq!(first(1, 70_000, Some(Cursor::of_last(300))), 69_701);
    assert_eq!(first(69_900, 70_000, Some(Cursor::of_last(300))), 69_900);
    assert_eq!(first(1, 70_000, Some(Cursor::of_last(0))), 70_001);
    assert_eq!(first(1, 0, all), 1, "an empty channel");
    assert_eq!(first(1, 70_000, None), 69_901);

    let mut config = ReceiverConfig::new(
        hello().receiver,
        Credential::None,
        vec![("lore".into(), all)],
    );
    config.rungs = Rungs {
        multicast_v4: false,
        multicast_v6: false,
        replicated: false,
        ..Rungs::default()
    };
    config.signatures = false;
    config.deadlines = false;
    config.packet_authentication = false;
    (config.fec, config.messages) = (false, false);
    config.seed = 1;
    let mut receiver = Receiver::new(config);
    let asked = named("hello-from-the-oldest");
    for _ in 0..2 {
        // Until the source has answered, it is the same.
        receiver.connected();
        assert_eq!(
            HEXLOWER.encode(&receiver.take_control()),
            HEXLOWER.encode(&asked)
        );
        receiver.disconnected();
    }
    receiver.connected();
    drop(receiver.take_control());
    receiver.on_control(&named("welcome"), now).unwrap();
    receiver.disconnected();
    receiver.connected();
    let Control::Hello(again) = read(&receiver.take_control()) else {
        panic!("no HELLO");
    };
    let cursor = Cursor {
        incarnation: INCARNATION,
        seq: 300,
    };
    assert_eq!(again.channels, [("lore".to_owned(), Some(cursor))]);
}

/// A membership from the proof over a change of keys to the fall-back and to copies: the source
/// makes the packets of the vectors, byte for byte.
#[test]
fn the_vectors_make_a_source_promote_a_receiver_and_change_keys() {
    let mut now = Instant::now();
    let mut source = source(300, Some(flow_config()));
    let answer = |s: &mut Source, said: &str, answer: &str, now| {
        s.on_control(1, &named(said), now).unwrap();
        let found = HEXLOWER.encode(&s.take_control(1));
        let expected = if answer.is_empty() {
            String::new()
        } else {
            HEXLOWER.encode(&named(answer))
        };
        assert_eq!(found, expected, "the answer to {said}");
    };
    let sends = |s: &mut Source, name: &str, now| {
        let mut out = Vec::new();
        assert_eq!(s.poll_transmit(now, &mut out), Some(0));
        let expected = vectors()[name].bytes("packet");
        assert_eq!(HEXLOWER.encode(&out), HEXLOWER.encode(&expected), "{name}");
    };
    source.accept(1, now);
    source.on_control(1, &named("hello"), now).unwrap();
    source.authorised(1, Ok(()), now);
    drop(source.take_control(1));
    answer(&mut source, "fc-state-join", "fc-key", now);
    answer(&mut source, "fc-state-join-confirm", "", now);
    // For the newcomer's proof the flow sends a PING each 100 ms.
    for _ in 0..6 {
        assert_eq!(source.poll_transmit(now, &mut Vec::new()), Some(0));
        now += 100 * MS;
    }
    sends(&mut source, "packet-ping", now);
    answer(&mut source, "fc-state-ready", "fc-rung-member", now);
    answer(&mut source, "fc-window", "", now);
    source.publish(0, 301, Bytes::from(named("encoded-update")));
    sends(&mut source, "packet-aes-128-gcm", now);

    while source.poll_event().is_some() {}
    source.request_rekey(0, now);
    let wanted = SourceEvent::SecretWanted { channel: 0 };
    assert_eq!(source.poll_event(), Some(wanted));
    source.rekey(0, secret("fc-key-next"), now);
    assert_eq!(source.take_control(1)[..], named("fc-key-next"));
    answer(&mut source, "fc-state-confirm", "", now);
    source.publish(0, 302, Bytes::from_static(b"\0{}"));
    sends(&mut source, "packet-next-epoch", now);
    now += 30 * MS;
    let ack = named("path-ack-next-epoch");
    source.on_datagram(1, &ack, now).unwrap();
    let outstanding = source.flow(0).map(|f| f.outstanding());
    assert_eq!(outstanding, Some(0), "packets that never were are owed");
    assert_eq!(source.counters().repairs, 0);

    answer(&mut source, "fc-state-leave", "fc-rung-unicast", now);
    answer(&mut source, "fc-state-join-copies", "", now);
    source.poll_timeout(now);
    assert_eq!(source.replicas(0), [1]);
    answer(&mut source, "fc-state-leave-copies", "", now);
    source.poll_timeout(now);
    assert_eq!(source.replicas(0), [0; 0]);
}

/// The transport's view of an encoded update: its first byte, which a range's head repeats, and its
/// length.
#[test]
fn the_encoding_is_the_first_byte_of_the_update() {
    let now = Instant::now();
    let mut source = source(300, None);
    source.accept(1, now);
    source.on_control(1, &named("hello"), now).unwrap();
    source.authorised(1, Ok(()), now);
    source.publish(0, 301, Bytes::from(named("encoded-update")));
    let Unicast::Stream { head, body, .. } = source.poll_unicast(1, now) else {
        panic!("a stream with the update");
    };
    assert_eq!([&head[..], &body].concat(), named("stream-range"));
    let mut zstd = named("encoded-update");
    zstd[0] = 1;
    source.publish(0, 302, Bytes::from(zstd));
    let Unicast::Stream { head, body, .. } = source.poll_unicast(1, now) else {
        panic!("a stream with the update");
    };
    let mut reader = StreamReader::new();
    reader.push(&[&head[..], &body].concat());
    let Ok(Some(Piece::Range { header, .. })) = reader.next_piece() else {
        panic!("a range");
    };
    assert_eq!((header.seq, header.encoding), (302, 1));
}
