//! The source's state machine, driven by peers that do anything at all, with a few that make sense.

mod model;

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use flexicast::ack::PathAck;
use flexicast::authentication::{AuthenticationConfig, PacketAuthentication};
use flexicast::control::{
    Action, CAPABILITY_FEC, CAPABILITY_FEEDBACK, CAPABILITY_HITLESS,
    CAPABILITY_PACKET_AUTHENTICATION, Control, Credential, Hello, LegReport, LegState, Legs, Need,
    Refusal, State, Window,
};
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::source::SourceCounters;
use flexicast::{Cause, Cursor, FlowId, PathId, Rung};
use model::{CHANNELS, INCARNATIONS, Model, SESSIONS, content, endpoints};
use uuid::Uuid;

/// One thing that happens. Numbers are small, so that what follows from another is likely; `Raw`
/// and `Ack` are not.
#[derive(Debug, Arbitrary)]
enum Step<'a> {
    /// A receiver comes and does all that it should until it is a member, or all but the proof.
    Begin {
        session: u8,
        receiver: u8,
        channel: u8,
        copies: bool,
        proves: bool,
    },
    Accept(u8),
    Closed(u8),
    Rtt(u8, u16),
    Validated(u8, bool),
    /// Its connection has no room.
    Blocked(u8, bool),
    Raw(u8, &'a [u8]),
    RawDatagram(u8, &'a [u8]),
    Hello {
        session: u8,
        receiver: u8,
        channels: u8,
        cursor: Option<(bool, u16)>,
    },
    Authorised {
        session: u8,
        good: bool,
    },
    /// A receiver's FC_STATE: joins, proofs, leaves; `odd` makes one of the fields invalid.
    State {
        session: u8,
        channel: u8,
        action: u8,
        rung: u8,
        odd: Option<(u8, u64)>,
    },
    Window {
        session: u8,
        channel: u8,
        offset: u64,
    },
    Cursor {
        session: u8,
        channel: u8,
        seq: u16,
    },
    /// Acknowledges the newest packets but some.
    Acks {
        session: u8,
        channel: u8,
        rung: u8,
        skip: u8,
        holes: u8,
    },
    Ack {
        session: u8,
        path: u16,
        largest: u64,
        ranges: &'a [u8],
    },
    /// Acknowledges what was never sent.
    AckFar {
        session: u8,
        channel: u8,
        rung: u8,
    },
    /// The same many times.
    Flood {
        session: u8,
        acks: bool,
        count: u8,
    },
    Publish {
        channel: u8,
        len: u16,
    },
    PublishMany {
        channel: u8,
        count: u8,
    },
    Message {
        channel: u8,
        len: u8,
    },
    Pass {
        millis: u16,
    },
    Fetches {
        fail: bool,
    },
    /// Whether secrets are given when they are asked for.
    Secrets {
        give: bool,
    },
    RequestRekey(u8),
    Rekey(u8, u8),
    Eject(u8),
    Endpoints(u8, bool),
    Withdraw(u8),
    Replace(u8),
    Abandon {
        channel: u8,
        back: u8,
    },
    SetFirst {
        channel: u8,
        back: u8,
    },
    ReplicaFailed {
        session: u8,
        channel: u8,
    },
}

/// Whatever receivers do: nothing is lost for one that stays, no key is given to one that may not
/// have it, limits hold, timers end.
pub fn source(data: &[u8]) {
    play_source(data);
}

/// The same; returns what the state machine counted.
pub fn play_source(data: &[u8]) -> SourceCounters {
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
    model.source.counters()
}

fn take(m: &mut Model, step: Step) {
    let session = |number: u8| u64::from(number % SESSIONS);
    let channel = |number: u8| usize::from(number) % CHANNELS;
    match step {
        Step::Begin {
            session: s,
            receiver,
            channel: c,
            copies,
            proves,
        } => {
            let (s, c) = (session(s), channel(c));
            let rung = if copies {
                Rung::Replicated
            } else {
                Rung::Multicast
            };
            m.accept(s);
            m.frame(s, &Control::Hello(hello(receiver, 1 << c, None)));
            m.pump();
            m.source.authorised(s, Ok(()), m.now);
            m.pump();
            m.say_state(s, c, Action::Join, rung, None);
            m.pump();
            if proves {
                m.say_state(s, c, Action::Ready, rung, None);
            }
        }
        Step::Accept(s) => m.accept(session(s)),
        Step::Closed(s) => m.closed(session(s)),
        Step::Rtt(s, millis) => m
            .source
            .set_rtt(session(s), Duration::from_millis(millis.into())),
        Step::Validated(s, is) => {
            m.peer(session(s)).validated = is;
            m.source.set_validated(session(s), is, m.now);
        }
        Step::Blocked(s, is) => m.peer(session(s)).blocked = is,
        Step::Raw(s, bytes) => m.control(session(s), bytes),
        Step::RawDatagram(s, bytes) => m.datagram(session(s), bytes),
        Step::Hello {
            session: s,
            receiver,
            channels,
            cursor,
        } => {
            m.frame(
                session(s),
                &Control::Hello(hello(receiver, channels, cursor)),
            );
        }
        Step::Authorised { session: s, good } => {
            let no = || Err((Refusal::BadCredential, "no".to_owned()));
            let verdict = if good { Ok(()) } else { no() };
            m.source.authorised(session(s), verdict, m.now);
        }
        Step::State {
            session: s,
            channel: c,
            action,
            rung,
            odd,
        } => {
            let (s, c) = (session(s), channel(c));
            let action = [Action::Join, Action::Ready, Action::Leave][usize::from(action % 3)];
            m.say_state(s, c, action, rung_of(rung), odd);
        }
        // The largest are none that a window has.
        Step::Window {
            session: s,
            channel: c,
            offset,
        } if offset >> 60 == 15 => {
            let [_, _, seq_high, seq_low, at, short, len, reason] = offset.to_be_bytes();
            let need = Need {
                channel: u64::from(c % 4),
                seq: u64::from(u16::from_be_bytes([seq_high, seq_low])),
                offset: u64::from(at),
                length: (short % 2 == 1).then_some(u64::from(len) + 1),
                reason: u64::from(reason),
            };
            m.frame(session(s), &Control::Need(need));
        }
        // Nor are those before.
        Step::Window {
            session: s,
            channel: c,
            offset,
        } if offset >> 60 == 14 => say_legs(m, session(s), channel(c), offset),
        Step::Window {
            session: s,
            channel: c,
            offset,
        } => {
            let flow = m.flow_id(channel(c));
            let peer = m.peer(session(s));
            peer.window_sequence += 1;
            let window = Window {
                flow,
                sequence: peer.window_sequence,
                offset: offset >> 2,
            };
            m.frame(session(s), &Control::Window(window));
        }
        Step::Cursor {
            session: s,
            channel: c,
            seq,
        } => {
            // One that is beyond the head ends the connection.
            let head = m.store[channel(c)].len() as u64;
            let cursor = Cursor {
                incarnation: INCARNATIONS[channel(c)],
                seq: u64::from(seq) % (head + 2),
            };
            m.frame(session(s), &Control::Cursors(vec![cursor]));
        }
        Step::Acks {
            session: s,
            channel: c,
            rung,
            skip,
            holes,
        } => {
            m.acknowledge(
                session(s),
                channel(c),
                rung_of(rung),
                u64::from(skip % 8),
                holes,
            );
        }
        Step::Ack {
            session: s,
            path,
            largest,
            ranges,
        } => {
            let (mut end, mut list) = (largest >> 2, Vec::new());
            for sizes in ranges.chunks(2).take(63) {
                let Some(start) = end.checked_sub(u64::from(sizes[0]) + 1) else {
                    break;
                };
                list.push(start..end);
                let gap = sizes.get(1).copied().unwrap_or(0);
                let Some(next) = start.checked_sub(u64::from(gap) + 1) else {
                    break;
                };
                end = next;
            }
            if !list.is_empty() {
                let ack = PathAck {
                    path: PathId(path.into()),
                    delay: Duration::ZERO,
                    ranges: list,
                    ecn: None,
                    rebuilt: Vec::new(),
                };
                m.datagram(session(s), &ack.encode());
            }
        }
        Step::AckFar {
            session: s,
            channel: c,
            rung,
        } => {
            let (s, c) = (session(s), channel(c));
            let far = m.source.flow(c).map_or(0, |f| f.next_pn()) + 3;
            let path = PathId::new(m.flow_index(s, c), rung_of(rung));
            let ack = PathAck {
                path,
                delay: Duration::ZERO,
                ranges: std::iter::once(far..far + 1).collect(),
                ecn: None,
                rebuilt: Vec::new(),
            };
            m.datagram(s, &ack.encode());
        }
        Step::Flood {
            session: s,
            acks,
            count,
        } => {
            for _ in 0..count {
                if acks {
                    m.acknowledge(session(s), 0, Rung::Multicast, 0, 0);
                } else {
                    m.frame(session(s), &Control::Cursors(vec![]));
                }
            }
        }
        Step::Publish { channel: c, len } => m.publish(channel(c), len.into()),
        Step::PublishMany { channel: c, count } => {
            (0..count).for_each(|n| m.publish(channel(c), n.into()))
        }
        Step::Message { channel: c, len } => {
            let (number, message) = (u64::from(len), vec![7; usize::from(len) * 300]);
            let _ = m.source.send_message(channel(c), number, &message, m.now);
        }
        Step::Pass { millis } => m.pass(Duration::from_millis(millis.into())),
        Step::Fetches { fail } => m.fetches_fail = fail,
        Step::Secrets { give } => m.gives_secrets = give,
        Step::RequestRekey(c) => m.source.request_rekey(channel(c), m.now),
        Step::Rekey(c, byte) => m
            .source
            .rekey(channel(c), FlowSecret::from([byte; 32]), m.now),
        Step::Eject(s) => m.eject(session(s)),
        Step::Endpoints(c, some) => {
            let list = if some { endpoints() } else { vec![] };
            m.source.set_endpoints(channel(c), list, m.now);
        }
        Step::Withdraw(c) => m.source.withdraw(channel(c), m.now),
        Step::Replace(c) => {
            m.flows += 1;
            let secret = FlowSecret::from([m.flows as u8; 32]);
            let mut config = FlowConfig::new(FlowId(m.flows.to_be_bytes()), secret.clone());
            config.authentication =
                authentication(c).map(|packets| AuthenticationConfig { packets, secret });
            m.source
                .replace_flow(channel(c), config, m.now)
                .expect("a key");
        }
        Step::Abandon { channel: c, back } => {
            let seq = m.source.head(channel(c)).saturating_sub(back.into());
            m.source.abandon(channel(c), seq, m.now);
        }
        Step::SetFirst { channel: c, back } => {
            // The store keeps at least the newest update.
            let head = m.source.head(channel(c));
            m.set_first(channel(c), head.saturating_sub(back.into()).max(1));
        }
        Step::ReplicaFailed {
            session: s,
            channel: c,
        } => {
            m.source.replica_failed(session(s), channel(c), m.now);
        }
    }
}

/// Returns the type of authentication of a new flow's packets; most have none.
fn authentication(kind: u8) -> Option<PacketAuthentication> {
    match kind {
        0..128 => None,
        128..160 => Some(PacketAuthentication::Signature),
        160..192 => Some(PacketAuthentication::Tags),
        _ => Some(PacketAuthentication::Auto { tags_up_to: 1 }),
    }
}

/// A HELLO for the channels whose bit is set, with a cursor of the right or of another incarnation.
fn hello(receiver: u8, channels: u8, cursor: Option<(bool, u16)>) -> Hello {
    let cursor = |c: usize| {
        let (known, seq) = cursor?;
        let incarnation = if known {
            INCARNATIONS[c]
        } else {
            Uuid::from_u128(9)
        };
        Some(Cursor {
            incarnation,
            seq: seq.into(),
        })
    };
    let wanted = (0..CHANNELS).filter(|c| channels >> c & 1 == 1);
    Hello {
        receiver: Uuid::from_u128((receiver % 3).into()),
        name: "r".into(),
        software: String::new(),
        credential: Credential::None,
        channels: wanted
            .map(|c| (model::NAMES[c].to_owned(), cursor(c)))
            .collect(),
        capabilities: match receiver < 128 {
            true => vec![CAPABILITY_FEEDBACK],
            false => vec![
                CAPABILITY_FEEDBACK,
                CAPABILITY_PACKET_AUTHENTICATION,
                CAPABILITY_FEC,
                CAPABILITY_HITLESS,
            ],
        },
    }
}

/// Reports two legs: true ones, or with numbers that were never sent.
fn say_legs(m: &mut Model, s: u64, c: usize, bits: u64) {
    let (flow, index) = (m.flow_id(c), m.flow_index(s, c));
    let next = m.source.flow(c).map_or(0, |flow| flow.next_pn());
    let peer = m.peer(s);
    peer.window_sequence += 1;
    let sequence = peer.window_sequence;
    let bytes = bits.to_be_bytes();
    let legs = [(Rung::Multicast, bytes[6]), (Rung::Amt, bytes[7])];
    let legs = legs.map(|(rung, bits)| LegReport {
        path: PathId::new(index, rung),
        number: u64::from(bits >> 7),
        state: [LegState::Trying, LegState::Working, LegState::Lost][usize::from(bits % 3)],
        largest: (next + u64::from(bits >> 5 & 1)).checked_sub(1),
        missed: bits.into(),
        lag: Duration::from_millis(u64::from(bits) * 8),
    });
    let legs = Legs {
        flow,
        sequence,
        legs: legs.to_vec(),
    };
    m.frame(s, &Control::Legs(legs));
}

fn rung_of(number: u8) -> Rung {
    [Rung::Multicast, Rung::Replicated, Rung::Unicast, Rung::Amt][usize::from(number % 4)]
}

impl Model {
    fn say_state(&mut self, s: u64, c: usize, action: Action, rung: Rung, odd: Option<(u8, u64)>) {
        let flow = self.flow_id(c);
        let index = self.flow_index(s, c);
        let peer = self.peer(s);
        peer.state_sequence += 1;
        let path = match (action, rung) {
            (Action::Join | Action::Leave, Rung::Multicast) => PathId::UNICAST,
            (_, rung) => PathId::new(index, rung),
        };
        let mut state = State {
            flow,
            sequence: peer.state_sequence,
            action,
            path,
            key_sequence: peer.keys.get(&flow).copied().unwrap_or(0),
            cause: (action == Action::Leave && rung == Rung::Amt).then_some(Cause::HeartbeatLost),
            largest: None,
        };
        match odd {
            Some((0, value)) => state.key_sequence = value >> 2,
            Some((1, value)) => state.sequence = value >> 2,
            Some((2, value)) => state.path = PathId(value >> 2),
            Some((3, value)) => state.flow = FlowId(value.to_be_bytes()),
            Some((4, value)) => state.largest = Some(value >> 2),
            _ => {}
        }
        self.frame(s, &Control::State(state));
    }

    fn publish(&mut self, c: usize, len: usize) {
        if !self.source.has_room(c) {
            return;
        }
        let seq = self.source.head(c) + 1;
        let bytes = content(c, seq, len);
        self.store[c].push(bytes.clone());
        self.source.publish(c, seq, bytes);
    }
}
