//! A recorded flow: what one receiver saw of a source's control stream, of a flow with losses,
//! disorder and a change of keys, and of the repairs, written down in
//! `docs/vectors/recorded-flow.md`. The recording is made here, byte for byte the same each time;
//! the crate's receiver is held to it, and so is `docs/decode_flow.py`, which knows nothing but
//! `docs/protocol.md`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use flexicast::control::{
    Anchor, Announce, Control, Credential, Endpoint, Key, RungNotice, Welcome, WelcomeChannel,
};
use flexicast::frame::{put_datagram, put_ping, put_reset, put_stream};
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, PacketKey, TAG_LEN};
use flexicast::receiver::{FlowInput, Output, Receiver, ReceiverConfig, Rungs};
use flexicast::unicast::RangeHeader;
use flexicast::{Cause, Cursor, FlowId, PathId, Rung};
use uuid::Uuid;

use crate::document::{RECORDING, recorded};

const INCARNATION: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const FLOW: FlowId = FlowId([0x4f, 0x1d, 0x26, 0x90, 0xa7, 0x5c, 0xe3, 0x18]);
const OTHER_FLOW: FlowId = FlowId([0x4f, 0x1d, 0x26, 0x90, 0xa7, 0x5c, 0xe3, 0x19]);
const FIRST: u64 = 301;
/// The low 32 bits of the packet numbers wrap a few packets further on.
const FIRST_PN: u64 = (1 << 32) - 6;
/// The new epoch begins so far ahead of what was sent when it was announced.
const AHEAD: u64 = 64;
/// Frames of a packet end here at the latest: small packets make a recording with many of them.
const PAYLOAD: usize = HEADER_LEN + 224;
const LENGTHS: [usize; 3] = [2600, 2100, 700];

/// The recording while it is made.
struct Recorder {
    text: String,
    events: u32,
    epochs: [(u64, PacketKey); 2],
    /// Of the epoch that packets are sealed in.
    epoch: usize,
    next_pn: u64,
}

/// Fate of a packet on its path and at the receiver.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Taken,
    /// Not recorded at all.
    Lost,
    Damaged,
    /// Of an unknown flow.
    Foreign,
}

fn secret(first: u8) -> FlowSecret {
    let mut secret = [0; 32];
    (first..)
        .zip(&mut secret)
        .for_each(|(value, byte)| *byte = value);
    FlowSecret::from(secret)
}

/// An encoded update of exactly `len` bytes.
fn update(seq: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0];
    write_event(&mut out, seq, "");
    let filler: String = ('a'..='z').cycle().take(len - out.len()).collect();
    out.truncate(1);
    write_event(&mut out, seq, &filler);
    out
}

fn write_event(out: &mut Vec<u8>, seq: u64, filler: &str) {
    let event = format!(
        r#"{{"specversion":"1.0","id":"{INCARNATION}/{seq}","data":{{"content_text":"{filler}"}}}}"#
    );
    out.extend_from_slice(event.as_bytes());
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

fn key(sequence: u64, first_pn: u64) -> Key {
    let odd = sequence % 2 == 1;
    let algorithm = if odd {
        Algorithm::ChaCha20Poly1305
    } else {
        Algorithm::Aes128Gcm
    };
    Key {
        flow: FLOW,
        sequence,
        first_pn,
        secret: secret(if odd { 0xa0 } else { 0x40 }),
        algorithm: algorithm as u64,
    }
}

impl Recorder {
    fn new() -> Self {
        let epoch = |sequence| {
            let key = key(sequence, 0);
            let algorithm = Algorithm::from_suite(key.algorithm).unwrap();
            (sequence, PacketKey::new(algorithm, &key.secret).unwrap())
        };
        Recorder {
            text: String::new(),
            events: 0,
            epochs: [epoch(6), epoch(7)],
            epoch: 0,
            next_pn: FIRST_PN,
        }
    }

    fn vector(&mut self, name: &str, fields: &[(&str, String)], hex: &[u8]) {
        let out = &mut self.text;
        writeln!(out, "\n```vector\nname: {name}").unwrap();
        for (key, value) in fields {
            writeln!(out, "{key}: {value}").unwrap();
        }
        if !hex.is_empty() {
            writeln!(out, "hex:").unwrap();
            for line in HEXLOWER.encode(hex).as_bytes().chunks(96) {
                writeln!(out, "  {}", std::str::from_utf8(line).unwrap()).unwrap();
            }
        }
        writeln!(out, "```").unwrap();
    }

    fn event(&mut self, kind: &str, fields: &[(&str, String)], hex: &[u8]) {
        self.events += 1;
        let mut all = vec![("kind", kind.to_owned())];
        all.extend_from_slice(fields);
        self.vector(&format!("recorded-{:02}", self.events), &all, hex);
    }

    fn control(&mut self, frame: Control, fields: &[(&str, String)]) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.event("control", fields, &bytes);
    }

    /// Seals a packet of these frames under the next packet number.
    fn seal(&mut self, flow: FlowId, frames: &[u8]) -> Vec<u8> {
        let (sequence, key) = &mut self.epochs[self.epoch];
        let end = HEADER_LEN + frames.len();
        let mut packet = vec![0; end + TAG_LEN];
        packet[HEADER_LEN..end].copy_from_slice(frames);
        let pn = self.next_pn;
        self.next_pn += 1;
        let len = key.seal(flow, pn, *sequence % 2 == 1, &mut packet, end);
        assert_eq!(len, Some(packet.len()));
        packet
    }

    fn arrives(&mut self, packet: &[u8], pn: u64, epoch: usize, outcome: &str) {
        let fields = [
            ("outcome", outcome.to_owned()),
            ("pn", pn.to_string()),
            ("key-sequence", self.epochs[epoch].0.to_string()),
        ];
        self.event("flow", &fields, packet);
    }

    fn packet(&mut self, frames: &[u8], fate: Fate) {
        let (pn, epoch) = (self.next_pn, self.epoch);
        let flow = if fate == Fate::Foreign {
            OTHER_FLOW
        } else {
            FLOW
        };
        let mut packet = self.seal(flow, frames);
        match fate {
            Fate::Lost => return,
            Fate::Damaged => packet[HEADER_LEN + 40] ^= 0x10,
            Fate::Foreign | Fate::Taken => {}
        }
        match fate {
            Fate::Damaged | Fate::Foreign => {
                self.event("flow", &[("outcome", "dropped".into())], &packet)
            }
            _ => self.arrives(&packet, pn, epoch, "taken"),
        }
    }

    fn repair(&mut self, seq: u64, update: &[u8], range: std::ops::Range<usize>) {
        let header = RangeHeader {
            channel: 1,
            seq,
            encoding: update[0],
            total: update.len() as u64,
            offset: range.start as u64,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(&update[range.clone()]);
        let fields = [
            ("channel", "1".to_owned()),
            ("seq", seq.to_string()),
            ("total", update.len().to_string()),
            ("offset", range.start.to_string()),
            ("length", range.len().to_string()),
        ];
        self.event("stream", &fields, &bytes);
    }
}

/// Cuts an update into the frames of packets: each with its range of the update.
fn cut(seq: u64, update: &[u8]) -> Vec<(Vec<u8>, std::ops::Range<usize>)> {
    let (mut out, mut offset) = (Vec::new(), 0);
    while offset < update.len() {
        let mut frames = Vec::new();
        let room = PAYLOAD - HEADER_LEN;
        let taken = put_stream(
            &mut frames,
            room,
            seq,
            offset as u64,
            &update[offset..],
            true,
        );
        let end = offset + taken.unwrap();
        out.push((frames, offset..end));
        offset = end;
    }
    out
}

fn welcome() -> Control {
    Control::Welcome(Welcome {
        channels: vec![WelcomeChannel {
            channel: 1,
            name: "lore".into(),
            incarnation: INCARNATION,
            head: FIRST - 1,
            first: FIRST,
        }],
        capabilities: Vec::new(),
    })
}

fn announce() -> Control {
    Control::Announce(Announce {
        flow: FLOW,
        sequence: 1,
        withdrawn: false,
        endpoints: vec![
            Endpoint {
                group: "232.70.70.1:4434".parse().unwrap(),
                source: Some("192.0.2.10".parse().unwrap()),
            },
            Endpoint {
                group: "[ff3e::4646:1]:4434".parse().unwrap(),
                source: None,
            },
        ],
        relays: vec![],
        copies: false,
        ack_delay: Duration::from_millis(25),
        flow_index: 1,
        channel: 1,
        heartbeat: Duration::from_secs(1),
        authentication: None,
        fec: None,
    })
}

/// The whole document.
fn recording() -> String {
    let mut r = Recorder::new();
    r.text.push_str(INTRODUCTION);
    let updates: Vec<_> = (FIRST..)
        .zip(LENGTHS)
        .map(|(seq, len)| update(seq, len))
        .collect();
    let path = PathId::new(1, Rung::Multicast);

    let fields = [
        ("frame", "WELCOME".to_owned()),
        ("channel", "1".to_owned()),
        ("channel-name", "lore".to_owned()),
        ("incarnation", INCARNATION.to_string()),
        ("head", (FIRST - 1).to_string()),
        ("first", FIRST.to_string()),
    ];
    r.control(welcome(), &fields);
    let fields = [
        ("frame", "FC_ANNOUNCE".to_owned()),
        ("flow-id", HEXLOWER.encode(&FLOW.0)),
        ("sequence", "1".to_owned()),
        ("fixed-endpoint", "192.0.2.10 232.70.70.1 4434".to_owned()),
        ("ack-delay", "25".to_owned()),
        ("flow-index", "1".to_owned()),
        ("channel", "1".to_owned()),
        ("heartbeat", "1000".to_owned()),
        (
            "endpoints",
            "192.0.2.10 232.70.70.1 4434, any ff3e::4646:1 4434".to_owned(),
        ),
    ];
    r.control(announce(), &fields);
    record_key(&mut r, 6, FIRST_PN);
    // The proof that the flow arrives, and the promotion that answers it.
    let mut ping = Vec::new();
    put_ping(&mut ping);
    r.packet(&ping, Fate::Taken);
    let cut_at = r.next_pn;
    let notice = RungNotice {
        flow: FLOW,
        sequence: 1,
        path,
        first_pn: cut_at,
        cause: Cause::Joined,
        anchor: Some(Anchor {
            seq: FIRST,
            offset: 0,
        }),
    };
    let fields = [
        ("frame", "FC_RUNG".to_owned()),
        ("flow-id", HEXLOWER.encode(&FLOW.0)),
        ("sequence", "1".to_owned()),
        ("path", path.0.to_string()),
        ("first-pn", cut_at.to_string()),
        ("cause", "1".to_owned()),
        ("anchor-seq", FIRST.to_string()),
        ("anchor-offset", "0".to_owned()),
    ];
    r.control(Control::Rung(notice), &fields);

    // The first update: two packets are lost, one is damaged on the way, one overtakes another, one
    // comes twice.
    let pieces = cut(FIRST, &updates[0]);
    let (mut held, mut missing) = (None, Vec::new());
    for (n, (frames, range)) in pieces.iter().enumerate() {
        let fate = match n {
            2 | 9 => Fate::Lost,
            5 => Fate::Damaged,
            _ => Fate::Taken,
        };
        if fate != Fate::Taken {
            missing.push(range.clone());
        }
        if n == 3 {
            let pn = r.next_pn;
            held = Some((r.seal(FLOW, frames), pn));
            continue;
        }
        r.packet(frames, fate);
        if n == 4 {
            let (packet, pn) = held.take().unwrap();
            r.arrives(&packet, pn, 0, "taken");
            r.arrives(&packet, pn, 0, "duplicate");
        }
    }
    assert!(pieces.len() > 10);
    r.packet(&ping, Fate::Foreign);

    // The second update: in its middle a new epoch is announced, and soon after used; packets
    // between the two epochs do not exist. The last packet of the old epoch arrives late.
    let pieces = cut(FIRST + 1, &updates[1]);
    let (old, new) = pieces.split_at(5);
    let mut first_of_new = 0;
    for (n, (frames, _)) in old.iter().enumerate() {
        if n == 2 {
            first_of_new = r.next_pn + AHEAD;
            record_key(&mut r, 7, first_of_new);
        }
        if n == 4 {
            let pn = r.next_pn;
            held = Some((r.seal(FLOW, frames), pn));
        } else {
            r.packet(frames, Fate::Taken);
        }
    }
    assert!(first_of_new > r.next_pn);
    r.next_pn = first_of_new;
    r.epoch = 1;
    for (n, (frames, _)) in new.iter().enumerate() {
        r.packet(frames, Fate::Taken);
        if n == 1 {
            let (packet, pn) = held.take().unwrap();
            r.arrives(&packet, pn, 0, "taken");
        }
    }

    // A packet of several frames: padding, an extension of a later version, a message to all; it is
    // no part of any update.
    let mut frames = vec![
        0, 0, 0, 0x80, 0x00, 0x70, 0x01, 0x04, 0xde, 0xad, 0xbe, 0xef,
    ];
    assert!(put_datagram(&mut frames, 100, b"to all"));
    put_ping(&mut frames);
    r.packet(&frames, Fate::Taken);

    // The third update is begun on the flow and abandoned there.
    let third = FIRST + 2;
    let (frames, begun) = cut(third, &updates[2]).swap_remove(0);
    r.packet(&frames, Fate::Taken);
    let mut frames = Vec::new();
    put_reset(&mut frames, third, 0, updates[2].len() as u64);
    r.packet(&frames, Fate::Taken);

    for range in missing {
        r.repair(FIRST, &updates[0], range);
    }
    r.repair(third, &updates[2], begun.end..updates[2].len());

    for (seq, update) in (FIRST..).zip(&updates) {
        let fields = [
            ("seq", seq.to_string()),
            ("length", update.len().to_string()),
            ("sha256", sha256(update)),
        ];
        r.vector(&format!("recorded-update-{seq}"), &fields, &[]);
    }
    r.text
}

fn record_key(r: &mut Recorder, sequence: u64, first_pn: u64) {
    let key = key(sequence, first_pn);
    let fields = [
        ("frame", "FC_KEY".to_owned()),
        ("flow-id", HEXLOWER.encode(&FLOW.0)),
        ("sequence", sequence.to_string()),
        ("first-pn", first_pn.to_string()),
        ("secret", HEXLOWER.encode(key.secret.as_bytes())),
        ("algorithm", format!("{:04x}", key.algorithm)),
    ];
    r.control(Control::Key(key), &fields);
}

const INTRODUCTION: &str = "\
# A recorded flow

What one receiver saw, in the order in which it arrived: frames of the source's control stream,
packets of a flow, streams of the unicast path; and at the end the updates that come out.
`docs/protocol.md` says what the bytes mean, its section 1 how vectors are written. Each vector has
the fields that its bytes decode to, so that a decoder can be checked step by step.

`crates/flexicast/tests/it/recorded.rs` makes this file and holds the crate to it;
`docs/decode_flow.py` decodes it without the crate.

The receiver is at update 300. The packet numbers pass 2^32. Of the first update's packets two are
lost and one is damaged, one is overtaken, and one comes twice; a packet of another flow comes
along. In the middle of the second update the source changes keys, from AES-128-GCM to
ChaCha20-Poly1305, and leaves out the packet numbers in between; the last packet of the old epoch
comes after the first ones of the new. The third update is begun and abandoned on the flow. The
unicast path brings what is missing.
";

#[test]
fn the_document_is_this_recording() {
    let made = recording();
    if std::env::var_os("WRITE_RECORDING").is_some() {
        std::fs::write(RECORDING, &made).unwrap();
    }
    let written = std::fs::read_to_string(RECORDING).unwrap_or_default();
    let same = written.lines().zip(made.lines()).position(|(a, b)| a != b);
    assert!(
        written == made,
        "{RECORDING} is another recording from line {same:?} on; WRITE_RECORDING=1 writes it again"
    );
}

#[test]
fn a_receiver_reproduces_the_recording() {
    let now = Instant::now();
    let cursor = Cursor {
        incarnation: INCARNATION,
        seq: FIRST - 1,
    };
    let mut config = ReceiverConfig::new(
        Uuid::from_u128(1),
        Credential::None,
        vec![("lore".into(), Some(cursor))],
    );
    config.name = "r1".into();
    config.software = "recorded".into();
    config.rungs = Rungs {
        multicast_v4: true,
        amt_v4: false,
        amt_v6: false,
        multicast_v6: true,
        replicated: false,
    };
    config.seed = 1;
    let mut receiver = Receiver::new(config);
    receiver.connected();
    let vectors = recorded();
    let mut streams = 0;
    for (name, vector) in &vectors {
        if name.starts_with("recorded-update-") {
            continue;
        }
        let mut bytes = vector.hex();
        match vector.text("kind") {
            "control" => receiver.on_control(&bytes, now).unwrap(),
            "flow" => {
                let input = receiver.on_flow_datagram(Rung::Multicast, &mut bytes, now);
                let expected: &[FlowInput] = match vector.text("outcome") {
                    "taken" => &[FlowInput::Accepted],
                    "duplicate" => &[FlowInput::Duplicate],
                    _ => &[FlowInput::Unverified, FlowInput::UnknownFlow],
                };
                assert!(expected.contains(&input), "{name}: {input:?}");
            }
            "stream" => {
                receiver.on_unicast(streams * 4 + 3, &bytes, true).unwrap();
                streams += 1;
            }
            kind => panic!("{name}: a {kind}"),
        }
    }
    for seq in FIRST..FIRST + LENGTHS.len() as u64 {
        let expected = &vectors[&format!("recorded-update-{seq}")];
        let Some((_, incarnation, Output::Update(update))) = receiver.poll_update() else {
            panic!("update {seq} is not whole");
        };
        assert_eq!((incarnation, update.seq), (INCARNATION, seq));
        assert_eq!(update.encoded.len().to_string(), expected.text("length"));
        assert_eq!(sha256(&update.encoded), expected.text("sha256"));
    }
    assert_eq!(receiver.poll_update(), None);
}
