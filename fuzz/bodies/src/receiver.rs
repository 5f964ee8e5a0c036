//! The receiver's state machine, driven by an arbitrary, mostly sensible source, and by an attacker
//! with the flow's key.

mod model;

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use flexicast::control::{
    Announce, Control, Expired, Key, RungNotice, SOURCE_ANSWERS_NEED, SOURCE_KEEPS_TIME, Welcome,
    WelcomeChannel,
};
use flexicast::frame::{apart_symbol, put_datagram, put_ping, put_reset, put_stream};
use flexicast::message::Fragment;
use flexicast::receiver::ChannelStats;
use flexicast::unicast::{RangeHeader, put_catch_up, put_catch_up_item};
use flexicast::{Cause, PathId, Rung};
use model::{AUTHENTICATED, FLOWS, INCARNATIONS, Model, NAMES, content, endpoints, secret};

/// A frame on the flow.
#[derive(Debug, Arbitrary)]
enum FlowFrame<'a> {
    Ping,
    /// A range of an update, near those that come next, as it is or false.
    Stream {
        ahead: u8,
        offset: u16,
        len: u16,
        truth: bool,
    },
    /// A whole update.
    Whole {
        ahead: u8,
        truth: bool,
    },
    Far {
        seq: u64,
        offset: u64,
        len: u8,
        fin: bool,
    },
    Reset {
        ahead: u8,
        size: u64,
    },
    Message(&'a [u8]),
    Raw(&'a [u8]),
}

/// One thing that happens.
#[derive(Debug, Arbitrary)]
enum Step<'a> {
    /// All that a source does until the receiver is a member.
    Begin {
        flow: u8,
        sequence: u8,
        copies: bool,
    },
    Raw(&'a [u8]),
    RawDatagram(bool, &'a [u8]),
    RawStream(u8, &'a [u8], bool),
    Welcome {
        head: u16,
        first: u16,
        other: bool,
    },
    Announce {
        flow: u8,
        channel: u8,
        endpoints: bool,
        copies: bool,
        withdrawn: bool,
        ack_delay: u16,
        heartbeat: u16,
    },
    /// The key of an epoch; `ahead` is where it begins, seen from the flow's next packet.
    Key {
        flow: u8,
        sequence: u8,
        ahead: u8,
        other: bool,
    },
    Rung {
        flow: u8,
        path: u8,
        ahead: i8,
        anchor: Option<(u16, u64)>,
    },
    Gap {
        channel: u8,
        first: u16,
        len: u16,
    },
    Refused,
    /// A flow packet; `jump` puts its number anywhere.
    Packet {
        flow: u8,
        sequence: u8,
        rung: bool,
        skip: u8,
        jump: Option<u64>,
        phase: bool,
        frames: Vec<FlowFrame<'a>>,
    },
    /// One that was sent before, by either way.
    Again {
        back: u8,
        rung: bool,
        damage: Option<(u16, u8)>,
    },
    Range {
        channel: u8,
        ahead: u8,
        offset: u16,
        len: u16,
        truth: bool,
    },
    Whole {
        channel: u8,
        ahead: u8,
        count: u8,
    },
    CatchUp {
        channel: u8,
        ahead: u8,
        count: u8,
    },
    Take(u8),
    Confirm(u8),
    Pass {
        millis: u16,
    },
    NetworkChanged,
    Reconnect,
}

/// Whatever arrives: updates leave in order and once, those that were never contradicted as they
/// are; only arrived packets are acknowledged; memory has a bound.
pub fn receiver(data: &[u8]) {
    play_receiver(data);
}

/// The same; returns what the state machine counted, and how many packets were taken by a
/// signature, and packets of tags by which others were.
pub fn play_receiver(data: &[u8]) -> (ChannelStats, (u64, u64)) {
    let mut u = Unstructured::new(data);
    let mut model = Model::new(u.arbitrary().unwrap_or(0));
    for _ in 0..400 {
        if u.is_empty() {
            break;
        }
        let Ok(step) = Step::arbitrary(&mut u) else {
            break;
        };
        take(&mut model, step);
        model.pump();
    }
    model.settle();
    (model.stats(), model.proved)
}

fn take(m: &mut Model, step: Step) {
    // The authenticated flow came later: what was kept before means the same but for these.
    let flow = |number: u8| match number {
        224.. => AUTHENTICATED,
        _ => usize::from(number) % AUTHENTICATED,
    };
    let channel = |number: u8| usize::from(number) % NAMES.len();
    match step {
        Step::Begin {
            flow: f,
            sequence,
            copies,
        } => {
            let next = m.expected[0].min(60_000) as u16;
            take(
                m,
                Step::Welcome {
                    head: next + 50,
                    first: next,
                    other: false,
                },
            );
            take(
                m,
                Step::Announce {
                    flow: f,
                    channel: 0,
                    endpoints: true,
                    copies,
                    withdrawn: false,
                    ack_delay: 25,
                    heartbeat: 1000,
                },
            );
            take(
                m,
                Step::Key {
                    flow: f,
                    sequence,
                    ahead: 0,
                    other: false,
                },
            );
            let ping = Step::Packet {
                flow: f,
                sequence,
                rung: copies,
                skip: 0,
                jump: None,
                phase: false,
                frames: vec![],
            };
            take(m, ping);
            let path = if copies { 2 } else { 1 };
            take(
                m,
                Step::Rung {
                    flow: f,
                    path,
                    ahead: 0,
                    anchor: Some((next, 0)),
                },
            );
        }
        Step::Raw(bytes) => m.raw_control(bytes),
        Step::RawDatagram(copied, bytes) => {
            let rung = if copied {
                Rung::Replicated
            } else {
                Rung::Multicast
            };
            m.datagram(rung, bytes.to_vec(), None);
            m.receiver.on_datagram(bytes, m.now);
            m.receiver.on_datagram(&fragment(0, bytes), m.now);
        }
        Step::RawStream(number, bytes, fin) => {
            m.lied.fill(true);
            m.stream(u64::from(number % 4) * 4 + 3, bytes, fin);
            let flow = FLOWS[usize::from(number) % FLOWS.len()];
            let symbol = apart_symbol(flow, bytes.len(), |out| {
                out.extend_from_slice(bytes);
                true
            });
            if let Some(symbol) = symbol {
                m.receiver.on_datagram(&symbol, m.now);
            }
        }
        Step::Welcome { head, first, other } => {
            let welcome = (0..NAMES.len()).map(|c| WelcomeChannel {
                channel: c as u64 + 1,
                name: NAMES[c].into(),
                incarnation: if other {
                    uuid::Uuid::from_u128(77)
                } else {
                    INCARNATIONS[c]
                },
                head: head.into(),
                first: first.into(),
            });
            let mut capabilities = Vec::new();
            capabilities.extend((first % 2 == 0).then_some(SOURCE_ANSWERS_NEED));
            capabilities.extend((first % 4 == 0).then_some(SOURCE_KEEPS_TIME));
            m.frame(Control::Welcome(Welcome {
                channels: welcome.collect(),
                capabilities,
            }));
        }
        Step::Announce {
            flow: f,
            channel,
            endpoints: some,
            copies,
            withdrawn,
            ack_delay,
            heartbeat,
        } => {
            m.announce_sequence += 1;
            let f = flow(f);
            m.frame(Control::Announce(Announce {
                flow: FLOWS[f],
                sequence: m.announce_sequence,
                withdrawn,
                endpoints: if some && !withdrawn {
                    endpoints()
                } else {
                    vec![]
                },
                relays: vec![],
                copies,
                ack_delay: Duration::from_millis(ack_delay.into()),
                flow_index: f as u64 + 1,
                channel: u64::from(channel % 3) + 1,
                heartbeat: Duration::from_millis(heartbeat.into()),
                authentication: m
                    .parameters(f)
                    .map(flexicast::authentication::FlowAuthentication::Packets),
                fec: None,
            }));
        }
        Step::Key {
            flow: f,
            sequence,
            ahead,
            other,
        } => {
            let f = flow(f);
            let sequence = u64::from(sequence % 8);
            if f == AUTHENTICATED {
                m.give_tag_key();
            }
            m.frame(Control::Key(Key {
                flow: FLOWS[f],
                sequence,
                first_pn: m.next_pn[f] + u64::from(ahead),
                secret: secret(sequence),
                algorithm: if other {
                    0x1302
                } else {
                    model::algorithm(sequence) as u64
                },
            }));
        }
        Step::Rung {
            flow: f,
            path,
            ahead,
            anchor,
        } => {
            let f = flow(f);
            m.notice_sequence += 1;
            let rung = [Rung::Unicast, Rung::Multicast, Rung::Replicated, Rung::Amt]
                [usize::from(path % 4)];
            m.frame(Control::Rung(RungNotice {
                flow: FLOWS[f],
                sequence: m.notice_sequence,
                path: if path < 200 {
                    PathId::new(f as u64 + 1, rung)
                } else {
                    PathId(path.into())
                },
                first_pn: m.next_pn[f].saturating_add_signed(ahead.into()),
                cause: Cause::Joined,
                anchor: anchor.map(|(seq, offset)| flexicast::control::Anchor {
                    seq: seq.into(),
                    offset: offset >> 2,
                }),
            }));
        }
        Step::Gap {
            channel: c,
            first,
            len,
        } => {
            let (channel, first) = (u64::from(c % 3) + 1, u64::from(first));
            let last = first + u64::from(len);
            m.frame(match c < 128 {
                true => Control::Gap {
                    channel,
                    first,
                    last,
                },
                false => Control::Expired(Expired {
                    channel,
                    first,
                    last,
                    offset: Some(last << 10),
                }),
            });
        }
        Step::Refused => m.frame(Control::Refused {
            code: 5,
            reason: "no".into(),
        }),
        Step::Packet {
            flow: f,
            sequence,
            rung,
            skip,
            jump,
            phase,
            frames,
        } => {
            let f = flow(f);
            let mut plain = Vec::new();
            frames
                .iter()
                .for_each(|carried| put(m, carried, &mut plain));
            if plain.is_empty() {
                put_ping(&mut plain);
            }
            m.next_pn[f] += u64::from(skip);
            let pn = jump.map_or(m.next_pn[f], |to| to >> 2);
            m.next_pn[f] += u64::from(jump.is_none());
            let (epoch, proof) = (u64::from(sequence % 8), sequence >> 5);
            m.seal(f, epoch, pn, phase, &plain);
            if f != AUTHENTICATED {
                return m.again(0, rung, None);
            }
            match proof {
                0 => m.again(0, rung, None),
                1..=3 => {
                    m.sign(proof != 3);
                    m.again(0, rung, None);
                }
                4 => {
                    m.tag(epoch, true);
                    m.again(0, rung, None);
                    m.again(1, rung, None);
                }
                _ => {
                    m.again(0, rung, None);
                    m.tag(epoch, proof != 7);
                    m.again(0, rung, None);
                }
            }
        }
        Step::Again { back, rung, damage } => m.again(back.into(), rung, damage),
        Step::Range {
            channel: c,
            ahead,
            offset,
            len,
            truth,
        } => {
            let c = channel(c);
            let seq = m.expected[c] + u64::from(ahead);
            let (update, range) = m.range(c, seq, offset, len, truth);
            let header = RangeHeader {
                channel: c as u64 + 1,
                seq,
                encoding: update.first().copied().unwrap_or(0),
                total: update.len() as u64,
                offset: range.start as u64,
            };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes.extend_from_slice(&update[range]);
            m.new_stream(&bytes);
        }
        Step::Whole {
            channel: c,
            ahead,
            count,
        } => {
            let c = channel(c);
            for n in 0..u64::from(count % 16) {
                let seq = m.expected[c] + u64::from(ahead) + n;
                let update = content(c, seq);
                let total = update.len() as u64;
                let header = RangeHeader {
                    channel: c as u64 + 1,
                    seq,
                    encoding: 0,
                    total,
                    offset: 0,
                };
                let mut bytes = Vec::new();
                header.encode(&mut bytes);
                bytes.extend_from_slice(&update);
                m.new_stream(&bytes);
            }
        }
        Step::CatchUp {
            channel: c,
            ahead,
            count,
        } => {
            let c = channel(c);
            let mut bytes = Vec::new();
            put_catch_up(&mut bytes, c as u64 + 1);
            for n in 0..u64::from(count) {
                let seq = m.expected[c] + u64::from(ahead) + n;
                let update = content(c, seq);
                put_catch_up_item(&mut bytes, seq, update.len());
                bytes.extend_from_slice(&update);
            }
            m.new_stream(&bytes);
        }
        Step::Take(count) => m.take_updates(count.into()),
        Step::Confirm(c) => m.confirm(channel(c)),
        Step::Pass { millis } => m.pass(Duration::from_millis(millis.into())),
        Step::NetworkChanged => m.receiver.network_changed(m.now),
        Step::Reconnect => m.reconnect(),
    }
}

fn put(m: &mut Model, carried: &FlowFrame, out: &mut Vec<u8>) {
    const LIMIT: usize = 1400;
    // The flows of this test are the first channel's.
    let c = 0;
    match *carried {
        FlowFrame::Ping => put_ping(out),
        FlowFrame::Stream {
            ahead,
            offset,
            len,
            truth,
        } => {
            let seq = m.expected[c] + u64::from(ahead);
            let (update, range) = m.range(c, seq, offset, len, truth);
            let ends = range.end == update.len();
            put_stream(out, LIMIT, seq, range.start as u64, &update[range], ends);
        }
        FlowFrame::Whole { ahead, truth } => {
            let seq = m.expected[c] + u64::from(ahead);
            let (update, _) = m.range(c, seq, 0, u16::MAX, truth);
            put_stream(out, LIMIT, seq, 0, &update, true);
        }
        FlowFrame::Far {
            seq,
            offset,
            len,
            fin,
        } => {
            m.lied.fill(true);
            let seq = (seq >> 4).max(1);
            put_stream(out, LIMIT, seq, offset >> 2, &vec![1; len.into()], fin);
        }
        FlowFrame::Reset { ahead, size } => {
            put_reset(out, m.expected[c] + u64::from(ahead), 0, size >> 2)
        }
        FlowFrame::Message(bytes) => {
            put_datagram(out, LIMIT, &fragment(c, bytes));
        }
        FlowFrame::Raw(bytes) => {
            m.lied.fill(true);
            out.extend_from_slice(&bytes[..bytes.len().min(LIMIT)]);
        }
    }
}

/// Returns a fragment of one of a few messages of a channel, often a whole one, or other bytes.
fn fragment(c: usize, bytes: &[u8]) -> Vec<u8> {
    let (number, before, behind, data) = match bytes {
        [number, data @ ..] if number % 4 < 2 && !data.is_empty() => (number, 0, 0, data),
        [number, place, data @ ..] if number % 4 == 2 => (number, place % 16, place / 16, data),
        bytes => return bytes.to_vec(),
    };
    let (before, behind) = (usize::from(before), usize::from(behind));
    let fragment = Fragment {
        channel: c as u64 + 1,
        number: u64::from(number % 8),
        length: before + data.len() + behind,
        offset: before,
        data,
    };
    fragment.encode()
}
