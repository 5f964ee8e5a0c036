//! Movement in virtual time: both ends' output, the links, the clock.

use std::time::Duration;

use flexicast::control::{Control, ControlReader, Credential, Leg, Refusal};
use flexicast::protect::FlowSecret;
use flexicast::receiver::{FlowInput, Output, ReceiverEvent};
use flexicast::source::{SourceEvent, Unicast};
use flexicast::{Cursor, Ecn};
use rand::RngExt;

use super::{Asked, CHANNEL, Down, Event, INCARNATION, Lab, Up, VIOLATION};

impl Lab {
    pub(super) fn send_down(&mut self, i: usize, what: Down) {
        let node = &mut self.nodes[i];
        let passed = match (&mut node.bottleneck, &what) {
            (Some(link), Down::Stream { bytes, .. }) => link.pass(self.now, bytes.len(), false),
            _ => Some(self.now),
        };
        let (at, life) = (passed.unwrap_or(self.now) + self.delay, node.life);
        self.schedule(
            at,
            Event::ToReceiver {
                node: i,
                life,
                what,
            },
        );
    }

    /// Moves everything that is ready at this instant, until nothing is.
    pub fn pump(&mut self) {
        let mut packet = Vec::new();
        for round in 0.. {
            assert!(round < 100_000, "a busy loop at {:?}", self.elapsed());
            let mut idle = true;
            while let Some(event) = self.source.poll_event() {
                idle = false;
                match event {
                    SourceEvent::Authorise { session, hello } => {
                        let good = hello.credential == Credential::Token(b"t".to_vec());
                        let verdict = if good {
                            Ok(())
                        } else {
                            Err((Refusal::BadCredential, "no such token".into()))
                        };
                        self.source.authorised(session, verdict, self.now);
                    }
                    SourceEvent::Explained {
                        session,
                        rung,
                        on,
                        cause,
                        ..
                    } => self.explained.push((session, rung, on, cause)),
                    SourceEvent::MassFallBack { members, cause, .. } => {
                        self.mass.push((members, cause));
                    }
                    SourceEvent::Forged {
                        session, on, signs, ..
                    } => self.forgeries.push((session, on, signs)),
                    SourceEvent::Leg {
                        session,
                        leg,
                        state,
                        ..
                    } => self.legs.push((session, leg, state)),
                    SourceEvent::Breaker { state, .. } => self.breakers.push(state),
                    SourceEvent::Ahead { .. }
                    | SourceEvent::Moved { .. }
                    | SourceEvent::Probe { .. } => {}
                    SourceEvent::SecretWanted { channel } => {
                        self.secrets += 1;
                        let secret = FlowSecret::from([self.secrets; 32]);
                        self.source.rekey(channel, secret, self.now);
                    }
                    SourceEvent::Close { session, code, .. } => {
                        if let Some(i) = self.node_of(session) {
                            self.nodes[i].closes.push(code);
                            self.disconnect(i);
                        }
                    }
                }
            }
            while let Some(session) = self.source.poll_dirty() {
                idle = false;
                self.flush_session(session);
            }
            while self.source.poll_transmit(self.now, &mut packet).is_some() {
                idle = false;
                self.flow_packets += 1;
                self.send_flow(&packet);
            }
            for i in 0..self.nodes.len() {
                idle &= !self.flush_node(i);
            }
            if idle {
                break;
            }
        }
        let mut deadlines: Vec<_> = self
            .nodes
            .iter()
            .filter(|n| n.connected)
            .filter_map(|n| n.core.poll_timeout())
            .collect();
        deadlines.extend(self.source.poll_timeout(self.now));
        if let Some(at) = deadlines.into_iter().min() {
            self.schedule(at, Event::Wake);
        }
    }

    fn send_flow(&mut self, packet: &[u8]) {
        if self.recording {
            self.recorded.push(packet.to_vec());
        }
        if self.shared_loss > 0 && self.flow_packets.is_multiple_of(self.shared_loss) {
            self.lost_bytes += packet.len() as u64;
            return;
        }
        for i in 0..self.nodes.len() {
            let node = &self.nodes[i];
            let most = self.jitter + node.jitter;
            let jitter = most.mul_f64(self.rng.random_range(0.0..1.0));
            let mark = match node.marks {
                Some(share) if self.rng.random_range(0..100) < share => Ecn::Ce,
                Some(_) => Ecn::Ect0,
                None => Ecn::NotEct,
            };
            let lost = node.loss > 0 && self.rng.random_range(0..100) < node.loss;
            let lost = lost || self.drops.is_some_and(|drops| drops(i, packet));
            let lost = lost || node.max_payload.is_some_and(|most| packet.len() > most);
            let native = node.joined && node.multicast;
            let relays = [node.relay, node.second_relay];
            let [first, second] = [0, 1].map(|n| node.tunnels[n] && relays[n]);
            let node = &mut self.nodes[i];
            // A native path and a relay's share the last link; no test has both.
            let passed = match &mut node.bottleneck {
                Some(link) if native || first => link.pass(self.now, packet.len(), true),
                _ => Some(self.now),
            };
            let Some(passed) = passed else { continue };
            let (at, life) = (passed + self.delay + jitter, node.life);
            let ways = [
                (native, Leg::NATIVE),
                (first, Leg::RELAY),
                (second, Leg::SECOND_RELAY),
            ];
            let (losses, delays) = (node.leg_loss, node.leg_delay);
            for (at_leg, (_, leg)) in ways.into_iter().enumerate().filter(|(_, w)| w.0 && !lost) {
                if losses[at_leg] > 0 && self.rng.random_range(0..100) < losses[at_leg] {
                    continue;
                }
                let at = at + delays[at_leg];
                let what = Down::Flow(leg, mark, packet.to_vec());
                self.schedule(
                    at,
                    Event::ToReceiver {
                        node: i,
                        life,
                        what,
                    },
                );
            }
        }
    }

    fn flush_session(&mut self, session: u64) {
        let control = self.source.take_control(session);
        let Some(i) = self.node_of(session) else {
            return;
        };
        if !control.is_empty() {
            let said = match self.old_source {
                true => without_capabilities(&control),
                false => control.to_vec(),
            };
            self.send_down(i, Down::Control(said));
        }
        for datagram in self.source.take_datagrams(session) {
            if self.rng.random_range(0..100) >= self.datagram_loss {
                self.send_down(i, Down::Datagram(datagram.bytes.to_vec()));
            }
        }
        loop {
            match self.source.poll_unicast(session, self.now) {
                Unicast::Stream { mut head, body, .. } => {
                    head.extend_from_slice(&body);
                    let id = self.nodes[i].next_stream;
                    self.nodes[i].next_stream += 4;
                    self.send_down(
                        i,
                        Down::Stream {
                            id,
                            bytes: head,
                            fin: true,
                        },
                    );
                }
                Unicast::CatchUp { mut head, body, .. } => {
                    head.extend_from_slice(&body);
                    let node = &mut self.nodes[i];
                    let next = &mut node.next_stream;
                    let id = *node
                        .catch_up
                        .get_or_insert_with(|| std::mem::replace(next, *next + 4));
                    self.send_down(
                        i,
                        Down::Stream {
                            id,
                            bytes: head,
                            fin: false,
                        },
                    );
                }
                Unicast::CatchUpEnd { .. } => {
                    if let Some(id) = self.nodes[i].catch_up.take() {
                        self.send_down(
                            i,
                            Down::Stream {
                                id,
                                bytes: vec![],
                                fin: true,
                            },
                        );
                    }
                }
                Unicast::Fetch { from, limit, .. } => {
                    let from_index = from as usize - 1;
                    let found = self
                        .store
                        .iter()
                        .enumerate()
                        .skip(from_index)
                        .take(limit)
                        .map(|(i, b)| (i as u64 + 1, b.clone()))
                        .collect();
                    let answer = (!self.fetch_fails).then_some(found);
                    self.source.provide(session, 0, from, answer, self.now);
                    if self.fetch_fails {
                        return;
                    }
                }
                Unicast::Idle => return,
            }
        }
    }

    fn flush_node(&mut self, i: usize) -> bool {
        let now = self.now;
        let at = now + self.delay;
        let elapsed = self.elapsed();
        let node = &mut self.nodes[i];
        let life = node.life;
        let mut busy = false;
        let mut up = Vec::new();
        while let Some((.., update)) = node.core.poll_live(now) {
            busy = true;
            assert_eq!(
                self.store.get(update.seq as usize - 1),
                Some(&update.encoded)
            );
            node.live.push((update.seq, elapsed));
        }
        while let Some((channel, incarnation, update)) = node.core.poll_update() {
            busy = true;
            let update = match update {
                Output::Update(update) => update,
                Output::Expired { from, to, .. } => {
                    node.expired.extend(from..=to);
                    let cursor = Cursor {
                        incarnation,
                        seq: to,
                    };
                    node.core.confirm(CHANNEL, cursor, now);
                    continue;
                }
                Output::Gap { .. } => panic!("{update:?}: nothing is gone in these tests"),
            };
            assert_eq!((channel, incarnation), (CHANNEL, INCARNATION));
            let stored = self.store.get(update.seq as usize - 1);
            if self.tolerates_forgery && stored != Some(&update.encoded) {
                node.forged.push(update.seq);
            } else {
                let seq = update.seq;
                assert_eq!(
                    Some(&update.encoded),
                    stored,
                    "update {seq} is not what was stored"
                );
            }
            node.got.push((update.seq, update.via, elapsed));
            let cursor = Cursor {
                incarnation,
                seq: update.seq,
            };
            node.core.confirm(CHANNEL, cursor, now);
        }
        while let Some(event) = node.core.poll_event() {
            busy = true;
            match event {
                ReceiverEvent::Join { .. } => node.joined = true,
                ReceiverEvent::Leave { .. } => node.joined = false,
                ReceiverEvent::Rejoin { .. } => node.rejoins += 1,
                ReceiverEvent::Tunnel { number, relays, .. } => {
                    node.tunnels[number as usize] = true;
                    node.requests(number).push((elapsed, Asked::Tunnel(relays)));
                }
                ReceiverEvent::Retunnel { number, .. } => {
                    let is_open = node.tunnels[number as usize];
                    assert!(is_open, "there is no tunnel to be looked at");
                    node.requests(number).push((elapsed, Asked::Again));
                }
                ReceiverEvent::EndTunnel { number, .. } => {
                    let was_open = std::mem::take(&mut node.tunnels[number as usize]);
                    assert!(was_open, "there is no tunnel to be ended");
                    node.requests(number).push((elapsed, Asked::End));
                }
                ReceiverEvent::Explained {
                    rung, on, cause, ..
                } => node.explained.push((elapsed, rung, on, cause)),
                ReceiverEvent::Leg { leg, state, .. } => node.legs.push((elapsed, leg, state)),
                ReceiverEvent::Moved { rung, cause, .. } => node.moves.push((elapsed, rung, cause)),
                ReceiverEvent::Message {
                    number, encoded, ..
                } => node.messages.push((number, encoded)),
                ReceiverEvent::Distrusted { found, .. } => node.distrusted.push(found),
                ReceiverEvent::Reconnect { .. } => node.must_reconnect = true,
                _ => {}
            }
        }
        if node.connected {
            let mut control = node.core.take_control().to_vec();
            let mut reader = ControlReader::new();
            reader.push(&std::mem::take(&mut control));
            while let Some(mut frame) = reader.next_frame().unwrap() {
                if let Control::Hello(hello) = &mut frame {
                    hello.capabilities.retain(|it| !self.hides.contains(it));
                }
                if node.says.is_none_or(|says| says(&frame)) {
                    frame.encode(&mut control);
                    if let Control::State(state) = frame {
                        node.said.push((elapsed, state));
                    }
                }
            }
            if !control.is_empty() {
                up.push(Up::Control(control));
            }
            while let Some((_, ack)) = node.core.poll_datagram(now) {
                busy = true;
                self.acks += 1;
                if !node.acks {
                    continue;
                }
                if self.datagram_loss == 0 || self.rng.random_range(0..100) >= self.datagram_loss {
                    up.push(Up::Datagram(ack));
                }
            }
        }
        while let Some(packet) = self.nodes[i].core.poll_feedback() {
            let path = &mut self.feedback;
            path.sent.push(packet.clone());
            let lost = !self.nodes[i].acks || self.rng.random_range(0..100) < path.loss;
            let copies = 1 + usize::from(self.rng.random_range(0..100) < path.copies);
            up.extend((0..if lost { 0 } else { copies }).map(|_| Up::Feedback(packet.clone())));
        }
        busy |= !up.is_empty();
        up.into_iter().for_each(|what| {
            let late = match what {
                Up::Feedback(_) if !self.feedback.jitter.is_zero() => self
                    .feedback
                    .jitter
                    .mul_f64(self.rng.random_range(0.0..1.0)),
                _ => Duration::ZERO,
            };
            self.schedule(
                at + late,
                Event::ToSource {
                    node: i,
                    life,
                    what,
                },
            )
        });
        busy
    }

    /// Lets virtual time pass.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.pump();
        while let Some(((at, _), event)) = self
            .queue
            .first_key_value()
            .filter(|((at, _), _)| *at <= end)
            .map(|(k, _)| *k)
            .and_then(|k| self.queue.remove_entry(&k))
        {
            self.steps += 1;
            self.now = self.now.max(at);
            match event {
                Event::ToReceiver {
                    node: i,
                    life,
                    what,
                } => {
                    let now = self.now;
                    let node = &mut self.nodes[i];
                    if node.life == life && node.connected {
                        match what {
                            Down::Control(bytes) => node.core.on_control(&bytes, now).unwrap(),
                            Down::Stream { id, bytes, fin } => {
                                assert!(node.core.wants_unicast());
                                node.core.on_unicast(id, &bytes, fin).unwrap();
                            }
                            Down::Datagram(bytes) => node.core.on_datagram(&bytes, now),
                            // A gateway without the tunnel drops them.
                            Down::Flow(Leg::SECOND_RELAY, ..) if !node.tunnels[1] => {}
                            Down::Flow(leg, mark, mut packet) => {
                                let input = node.core.on_leg_datagram(leg, mark, &mut packet, now);
                                assert!(
                                    self.hostile
                                        || !matches!(
                                            input,
                                            FlowInput::Unverified
                                                | FlowInput::Invalid
                                                | FlowInput::NoRoom
                                        ),
                                    "{input:?}"
                                );
                            }
                        }
                    }
                }
                Event::ToSource {
                    node: i,
                    life,
                    what,
                } => {
                    let session = self.session(i);
                    if self.nodes[i].life == life && self.nodes[i].connected {
                        let taken = match what {
                            Up::Control(bytes) => self.source.on_control(session, &bytes, self.now),
                            Up::Datagram(bytes) => {
                                self.source.on_datagram(session, &bytes, self.now)
                            }
                            Up::Feedback(packet) => {
                                self.take_feedback(i, packet);
                                Ok(())
                            }
                        };
                        if let Err(error) = taken {
                            assert!(self.hostile, "{error}");
                            self.nodes[i].closes.push(VIOLATION);
                            self.disconnect(i);
                        }
                    }
                }
                Event::Wake => {
                    // Several wake-ups may stand for the same instant; one does.
                    while self
                        .queue
                        .first_key_value()
                        .is_some_and(|((next, _), e)| *next <= self.now && matches!(e, Event::Wake))
                    {
                        self.queue.pop_first();
                    }
                }
            }
            let now = self.now;
            self.source.handle_timeout(now);
            self.nodes
                .iter_mut()
                .filter(|n| n.connected)
                .for_each(|n| n.core.handle_timeout(now));
            self.pump();
            for i in 0..self.nodes.len() {
                if std::mem::take(&mut self.nodes[i].must_reconnect) {
                    self.nodes[i].reconnects += 1;
                    self.disconnect(i);
                    self.connect(i);
                }
            }
        }
        self.now = end;
    }
}

impl Lab {
    fn take_feedback(&mut self, i: usize, mut packet: Vec<u8>) {
        let (now, elsewhere, session) = (self.now, self.feedback.elsewhere, self.session(i));
        self.feedback.arrived += 1;
        if self.feedback.raced {
            let notice = self.source.on_feedback(&mut packet.clone(), now, |_| false);
            self.feedback.notices += u64::from(notice.is_some());
        }
        let is_path = |id| id == session && !elsewhere;
        if let Some(notice) = self.source.on_feedback(&mut packet, now, is_path) {
            assert!(notice.len() < packet.len());
            assert!(self.nodes[i].core.is_feedback_returned(&notice));
            self.feedback.notices += 1;
        }
    }
}

/// The same frames as from a source of an earlier version.
fn without_capabilities(control: &[u8]) -> Vec<u8> {
    let (mut reader, mut said) = (ControlReader::new(), Vec::new());
    reader.push(control);
    while let Some(mut frame) = reader.next_frame().unwrap() {
        if let Control::Welcome(welcome) = &mut frame {
            welcome.capabilities.clear();
        }
        frame.encode(&mut said);
    }
    said
}
