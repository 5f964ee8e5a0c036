//! A receiver's host at work: what a socket loop around `flexicast::receiver::Receiver` does, and
//! the application behind it.

use std::time::Duration;

use bytes::Bytes;
use flexicast::control::Leg;
use flexicast::receiver::{FlowInput, Output, ReceiverEvent};
use flexicast::source::SessionId;
use flexicast::{Ecn, FlowId, Rung};
use rand::RngExt;

use crate::fault::Fault;
use crate::node::Presence;
use crate::path::{Down, Unread, Up};
use crate::trace::Kind;
use crate::violation::{BrokenPromise, Promise, broken};
use crate::wake::Activity;
use crate::world::{Event, Host, World};

const MS: Duration = Duration::from_millis(1);

impl World {
    pub(crate) fn start_receiver(&mut self, i: usize) -> Result<(), BrokenPromise> {
        let seed = self.rng.random();
        let node = &mut self.nodes[i];
        match node.presence {
            Presence::Expected => {}
            Presence::Down => node.starts(seed),
            Presence::Here | Presence::Gone => return Ok(()),
        }
        node.presence = Presence::Here;
        let boot = node.boot;
        self.say(|| format!("receiver {i} starts"));
        self.connect(i, boot)
    }

    pub(crate) fn wake_receiver(&mut self, i: usize) -> Result<(), BrokenPromise> {
        let now = self.now;
        let node = &mut self.nodes[i];
        if node.wake.armed.is_none_or(|at| at != now) || node.presence != Presence::Here {
            return Ok(());
        }
        node.wake.armed = None;
        let due = node.core.poll_timeout();
        if due.is_some_and(|at| at > now) {
            self.arm(Host::Receiver(i), due);
            return Ok(());
        }
        if self.fault != Some(Fault::DeafTimers) {
            node.core.handle_timeout(now);
        }
        self.note(Kind::Wake, i as u64 + 1, &[]);
        let moved = self.pump_receiver(i)?;
        let node = &mut self.nodes[i];
        let next = node.core.poll_timeout();
        let channels = node.readings.len();
        node.wake.rang(
            &format!("receiver {i}"),
            channels,
            0,
            Activity::Nothing.or(moved),
            next,
            now,
        )
    }

    /// Moves everything that is ready at a receiver; returns whether there was anything.
    pub(crate) fn pump_receiver(&mut self, i: usize) -> Result<bool, BrokenPromise> {
        let mut moved = false;
        if self.nodes[i].presence != Presence::Here {
            return Ok(false);
        }
        for round in 0.. {
            if round > 100_000 {
                return broken(
                    Promise::Timers,
                    format!("receiver {i} always has something to do"),
                );
            }
            let mut busy = false;
            while let Some(event) = self.nodes[i].core.poll_event() {
                busy = true;
                self.receiver_event(i, event)?;
            }
            busy |= self.read_streams(i)?;
            busy |= self.application(i)?;
            busy |= self.speak(i);
            if !busy {
                break;
            }
            moved = true;
        }
        let deadline = self.nodes[i].core.poll_timeout();
        self.arm(Host::Receiver(i), deadline);
        Ok(moved)
    }

    /// Reads server streams, while the receiver wants to.
    fn read_streams(&mut self, i: usize) -> Result<bool, BrokenPromise> {
        let mut moved = false;
        let Some(session) = self.nodes[i].path else {
            return Ok(false);
        };
        while self.nodes[i].core.wants_unicast() {
            let path = self.paths.get_mut(&session).filter(|p| p.at_receiver);
            let Some(Unread { stream, bytes, fin }) = path.and_then(|p| p.unread.pop_front())
            else {
                break;
            };
            moved = true;
            if let Err(error) = self.nodes[i].core.on_unicast(stream, &bytes, fin) {
                return broken(
                    Promise::Protocol,
                    format!("receiver {i} does not understand stream {stream}: {error}"),
                );
            }
            let at = self.now + self.nodes[i].unicast.quality.delay;
            let bytes = bytes.len();
            self.schedule(at, Event::Credit { session, bytes });
        }
        Ok(moved)
    }

    /// Sends control frames and acknowledgements.
    fn speak(&mut self, i: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[i];
        let Some(session) = node.path else {
            return false;
        };
        if self.paths.get(&session).is_none_or(|p| !p.at_receiver) {
            return false;
        }
        let control = node.core.take_control();
        let mut moved = !control.is_empty();
        let mut acks = Vec::new();
        while let Some((_, ack)) = node.core.poll_datagram(now) {
            moved = true;
            let arrivals = node.unicast.arrivals(now, &mut self.rng);
            acks.extend(arrivals[0].map(|at| (at, ack)));
        }
        while let Some(packet) = node.core.poll_feedback() {
            moved = true;
            let arrivals = node.unicast.arrivals(now, &mut self.rng);
            let arrivals = arrivals.into_iter().flatten();
            acks.extend(arrivals.map(|at| (at, packet.clone())));
        }
        if !control.is_empty() {
            for piece in self.pieces(&control) {
                self.send_up(session, Up::Control(piece));
            }
        }
        for (at, bytes) in acks {
            self.schedule(at, Event::Datagram { session, bytes });
        }
        moved
    }

    fn receiver_event(&mut self, i: usize, event: ReceiverEvent) -> Result<(), BrokenPromise> {
        let boot = self.nodes[i].boot;
        let node = &mut self.nodes[i];
        let mut join = None;
        match event {
            ReceiverEvent::Welcome {
                channel,
                incarnation,
                head,
                first,
                resync,
            } => {
                if let Some(store) = self.origin.store_of(&channel) {
                    self.nodes[i]
                        .welcomed(&channel, incarnation, head, first, resync, store)
                        .map_err(|b| b.at_receiver(i))?;
                }
                if resync {
                    self.count("resyncs");
                }
                self.say(|| {
                    format!("receiver {i} is welcome to {channel}: head {head}, from {first}")
                });
            }
            ReceiverEvent::Refused { code, reason } => {
                if !self.origin.banned.contains(&node.id) {
                    return broken(
                        Promise::Protocol,
                        format!("receiver {i} is refused with {code}: {reason}"),
                    );
                }
            }
            ReceiverEvent::Join { flow, endpoints } => {
                node.wanted.insert(flow, endpoints);
                join = Some(flow);
            }
            ReceiverEvent::Rejoin { flow } => join = Some(flow),
            ReceiverEvent::Leave { flow } => {
                node.wanted.remove(&flow);
                node.joined.remove(&flow);
            }
            ReceiverEvent::Tunnel {
                flow,
                number,
                endpoints,
                ..
            } => self.tunnel(i, number, flow, endpoints),
            ReceiverEvent::Retunnel { number, .. } => self.doubt(i, number),
            ReceiverEvent::EndTunnel { flow, number } => {
                node.gateway(number).release(flow);
            }
            ReceiverEvent::Explained {
                channel,
                rung,
                cause,
                ..
            } => {
                self.note(Kind::Moved, i as u64, &[rung as u8, cause as u8]);
                self.say(|| format!("receiver {i} knows of {rung} in {channel}: {cause}"));
            }
            ReceiverEvent::Leg {
                channel,
                leg,
                state,
            } => {
                self.count(format!("leg {leg} {state} at its receiver"));
                self.note(Kind::Moved, i as u64, &[leg.rung as u8, state as u8]);
                self.say(|| format!("receiver {i} in {channel}: leg {leg} {state}"));
            }
            ReceiverEvent::OneLeg => {}
            ReceiverEvent::Moved {
                channel,
                rung,
                cause,
            } => {
                if let Some(reading) = node.readings.get_mut(&channel) {
                    reading.rung = Some(rung);
                }
                self.note(Kind::Moved, i as u64, &[rung as u8, cause as u8]);
                self.say(|| format!("receiver {i} is on {rung} in {channel}: {cause}"));
            }
            ReceiverEvent::Distrusted { channel, found } => {
                if !self.script.is_forgery_believed() {
                    return broken(
                        Promise::Bytes,
                        format!("receiver {i} doubts what the flow of {channel} brings: {found:?}"),
                    );
                }
                self.count("doubted updates");
            }
            ReceiverEvent::Reconnect { channel, seq } => {
                return broken(
                    Promise::Protocol,
                    format!("receiver {i} cannot ask for update {seq} of {channel}"),
                );
            }
            ReceiverEvent::Message {
                channel,
                encoded: data,
                ..
            } => {
                if !self.messages.contains(&data) {
                    return broken(
                        Promise::Bytes,
                        format!("receiver {i} gets a message of {channel} that was never sent"),
                    );
                }
                if !self.nodes[i].messages.insert(data.clone()) {
                    return broken(
                        Promise::Order,
                        format!("receiver {i} gets a message of {channel} twice"),
                    );
                }
                self.note(Kind::Delivered, i as u64, &data);
                self.count("messages");
            }
            // No output of the simulation keeps keys.
            ReceiverEvent::Lineage { .. } => {}
            event => unreachable!("an event that the simulation does not know: {event:?}"),
        }
        if let Some(flow) = join
            && let Some(endpoints) = self.nodes[i].wanted.get(&flow).cloned()
        {
            // Until the network has taken note of it, nothing comes.
            self.nodes[i].joined.insert(flow, Vec::new());
            let at = self.now + MS * self.rng.random_range(1..40);
            self.schedule(
                at,
                Event::Joined {
                    receiver: i,
                    boot,
                    flow,
                    endpoints,
                },
            );
        }
        Ok(())
    }

    /// The application reads what is ready, as fast as it can.
    fn application(&mut self, i: usize) -> Result<bool, BrokenPromise> {
        let now = self.now;
        let mut moved = false;
        loop {
            let node = &mut self.nodes[i];
            let stalled = node.stalled_until.filter(|until| now < *until);
            let paced = Some(node.next_read).filter(|at| now < *at);
            if let Some(at) = stalled.max(paced).filter(|_| !self.healing) {
                if node.reads_at.is_none_or(|known| at < known) {
                    node.reads_at = Some(at);
                    let boot = node.boot;
                    self.schedule(at, Event::Read { receiver: i, boot });
                }
                return Ok(moved);
            }
            let Some((channel, incarnation, output)) = node.core.poll_update() else {
                return Ok(moved);
            };
            moved = true;
            let channel = channel.to_owned();
            if let Some(rate) = node.plan.reads_per_second {
                node.next_read = now + Duration::from_secs(1) / rate;
            }
            let Some(store) = self.origin.store_of(&channel) else {
                continue;
            };
            if matches!(output, Output::Gap { .. }) {
                *self.seen.entry("gaps".to_owned()).or_default() += 1;
            }
            node.takes(&channel, incarnation, &output, store)
                .map_err(|b| b.at_receiver(i))?;
            if !std::mem::replace(&mut node.confirm_due, true) {
                let (at, boot) = (now + node.plan.confirms_after, node.boot);
                self.schedule(at, Event::Confirm { receiver: i, boot });
            }
            let next = self.nodes[i].readings.get(&channel).and_then(|r| r.expects);
            let next = next.map_or(0, |(_, next)| next);
            self.note(Kind::Delivered, i as u64, &next.to_be_bytes());
        }
    }

    /// Confirms updates that the application has on disk.
    pub(crate) fn confirm(&mut self, i: usize, boot: u64) -> Result<(), BrokenPromise> {
        let now = self.now;
        let node = &mut self.nodes[i];
        if node.boot != boot {
            return Ok(());
        }
        node.confirm_due = false;
        for (channel, reading) in &mut node.readings {
            if let Some(cursor) = reading.handed.filter(|c| reading.durable != Some(*c)) {
                reading.durable = Some(cursor);
                node.core.confirm(channel, cursor, now);
            }
        }
        self.pump_receiver(i).map(|_| ())
    }

    /// A fragment of a message arrives.
    pub(crate) fn arrive_fragment(
        &mut self,
        session: SessionId,
        bytes: &[u8],
    ) -> Result<(), BrokenPromise> {
        let path = self.paths.get(&session).filter(|path| path.at_receiver);
        let Some(i) = path.map(|path| path.receiver) else {
            return Ok(());
        };
        if self.is_cut(i).is_none() {
            self.nodes[i].core.on_datagram(bytes, self.now);
        }
        self.pump_receiver(i).map(|_| ())
    }

    /// The next message of a lane arrives.
    pub(crate) fn arrive_down(
        &mut self,
        session: SessionId,
        lane: u64,
    ) -> Result<(), BrokenPromise> {
        let now = self.now;
        let Some(i) = self.paths.get(&session).map(|p| p.receiver) else {
            return Ok(());
        };
        if let Some(at) = self.is_cut(i) {
            self.schedule(at, Event::Down { session, lane });
            return Ok(());
        }
        let Some(path) = self.paths.get_mut(&session) else {
            return Ok(());
        };
        let message = path.down.get_mut(&lane).and_then(|l| l.pop());
        let Some(message) = message.filter(|_| path.at_receiver) else {
            return Ok(());
        };
        match message {
            Down::Control(bytes) => {
                if let Err(error) = self.nodes[i].core.on_control(&bytes, now) {
                    return broken(
                        Promise::Protocol,
                        format!("receiver {i} does not understand the source: {error}"),
                    );
                }
            }
            Down::Stream { bytes, fin } => {
                if fin {
                    path.down.remove(&lane);
                }
                path.unread.push_back(Unread {
                    stream: lane,
                    bytes,
                    fin,
                });
            }
            Down::Closed => return self.end(session, Host::Receiver(i)),
        }
        self.pump_receiver(i).map(|_| ())
    }

    /// A flow packet arrives.
    pub(crate) fn arrive_packet(
        &mut self,
        (i, boot): (usize, u64),
        flow: FlowId,
        leg: Leg,
        packet: &Bytes,
    ) -> Result<(), BrokenPromise> {
        let (now, rung) = (self.now, leg.rung);
        let node = &mut self.nodes[i];
        if node.boot != boot || node.presence != Presence::Here {
            return Ok(());
        }
        if rung == Rung::Multicast && !node.joined.contains_key(&flow) {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.scratch);
        buffer.clear();
        buffer.extend_from_slice(packet);
        let by = match self.fault {
            Some(Fault::RelayedIsNative) if rung == Rung::Amt => Leg::NATIVE,
            _ => leg,
        };
        let input = node.core.on_leg_datagram(by, Ecn::NotEct, &mut buffer, now);
        self.scratch = buffer;
        if input == FlowInput::Invalid {
            return broken(
                Promise::Protocol,
                format!("receiver {i} finds a packet of the source invalid"),
            );
        }
        self.say(|| format!("receiver {i} gets a packet by {leg}: {input:?}"));
        self.note(Kind::FlowArrived, i as u64, &[rung as u8]);
        self.pump_receiver(i).map(|_| ())
    }
}
