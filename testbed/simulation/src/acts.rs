//! Effects of a scenario's acts on the world.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::FlowId;
use flexicast::control::Leg;
use flexicast::frame::put_stream;
use rand::RngExt;

use crate::link::Link;
use crate::node::Presence;
use crate::origin::{endpoints_of, flow_config};
use crate::path::Up;
use crate::script::Act;
use crate::store::Store;
use crate::trace::Kind;
use crate::violation::{BrokenPromise, Promise, broken};
use crate::world::{Event, Host, World};

impl World {
    pub(crate) fn perform(&mut self, act: Act) -> Result<(), BrokenPromise> {
        self.note(Kind::Act, 0, &[]);
        if !matches!(act, Act::Publish { .. } | Act::Message { .. }) {
            self.say(|| format!("{act:?}"));
        }
        self.inspect()?;
        let now = self.now;
        match act {
            Act::Publish { channel, len } => {
                self.origin.stores[channel].push(len);
                // A suspended host stores nothing: updates due meanwhile are stored when it
                // resumes.
                if self.suspended(Host::Source).is_none() {
                    self.pump_source()?;
                }
            }
            Act::Message { channel, len } => {
                let mut bytes = (self.messages.len() as u64).to_be_bytes().to_vec();
                bytes.resize(len + 8, channel as u8);
                let bytes = Bytes::from(bytes);
                let number = self.messages.len() as u64 + 1;
                if let Some(core) = self.source_awake() {
                    // What finds no room is one that gets lost.
                    let _ = core.send_message(channel, number, &bytes, now);
                    self.messages.insert(bytes);
                    self.pump_source()?;
                }
            }
            Act::Weather {
                receiver,
                multicast,
                loss,
            } => self.link(receiver, multicast).quality.loss = loss,
            Act::Distance {
                receiver,
                flow,
                unicast,
            } => {
                let node = &mut self.nodes[receiver];
                node.multicast.quality.delay = flow;
                node.copied.quality.delay = unicast;
                node.unicast.quality.delay = unicast;
                let (session, rtt) = (node.path, node.rtt());
                if let (Some(session), Some(core)) = (session, self.source_awake()) {
                    core.set_rtt(session, rtt);
                }
            }
            Act::Cut {
                receiver,
                copies,
                span,
            } => {
                self.link(receiver, true).cut(now + span);
                if copies {
                    self.link(receiver, false).cut(now + span);
                }
            }
            Act::CutAll { span } => {
                for node in &mut self.nodes {
                    node.multicast.cut(now + span);
                    node.copied.cut(now + span);
                    node.relayed.cut(now + span);
                }
            }
            Act::Partition { receiver, span } => self.partition(receiver, span),
            Act::ForgetJoin { receiver } => {
                let joined = &mut self.nodes[receiver].joined;
                joined.values_mut().for_each(Vec::clear);
            }
            Act::RestartSource { down, new_store } => self.stop_source(down, new_store)?,
            Act::RestartReceiver {
                receiver,
                down,
                politely,
            } => {
                if self.nodes[receiver].presence == Presence::Here {
                    self.stop_receiver(receiver, politely)?;
                    self.nodes[receiver].presence = Presence::Down;
                    self.schedule(now + down, Event::Start(Host::Receiver(receiver)));
                }
            }
            Act::Leave { receiver, politely } => {
                if self.nodes[receiver].presence == Presence::Here {
                    self.stop_receiver(receiver, politely)?;
                    self.nodes[receiver].presence = Presence::Gone;
                }
            }
            Act::Eject { receiver } => self.eject(receiver)?,
            Act::Rekey { channel } => {
                if let Some(core) = self.source_awake() {
                    core.request_rekey(channel, now);
                    self.pump_source()?;
                }
            }
            Act::Withdraw { channel, span } => {
                let announced = self.origin.flows[channel].is_some();
                if announced && let Some(core) = self.source_awake() {
                    core.withdraw(channel, now);
                    self.origin.flows[channel] = None;
                    self.pump_source()?;
                    let boot = self.origin.boot;
                    self.schedule(now + span, Event::Reannounce { channel, boot });
                }
            }
            Act::ReplaceFlow { channel } => {
                if self.origin.flows[channel].is_some() && self.source_awake().is_some() {
                    self.new_flow(channel)?;
                }
            }
            Act::Endpoints { channel, v4, v6 } => {
                let variant = self.rng.random_range(0..3);
                let endpoints = endpoints_of(channel, v4, v6, variant);
                let announced = self.origin.flows[channel].is_some();
                if announced && let Some(core) = self.source_awake() {
                    core.set_endpoints(channel, endpoints.clone(), now);
                    self.origin.endpoints[channel] = endpoints;
                    self.pump_source()?;
                }
            }
            Act::Store { span, delay, fails } => {
                self.origin.store_bad_until = Some(now + span);
                self.origin.store_delay = delay;
                self.origin.store_fails = fails;
            }
            Act::Retain { channel, keep } => {
                if let Some(core) = self.origin.core.as_mut() {
                    let store = &mut self.origin.stores[channel];
                    store.retain(keep);
                    core.set_first(channel, store.first);
                    self.pump_source()?;
                }
            }
            Act::Stall { receiver, span } => {
                self.nodes[receiver].stalled_until = Some(now + span);
            }
            Act::Abandon { channel } => {
                let back = self.rng.random_range(0..4);
                let seq = self.origin.stores[channel].published.saturating_sub(back);
                if let Some(core) = self.source_awake() {
                    core.abandon(channel, seq, now);
                    self.pump_source()?;
                }
            }
            Act::Leap { span } => {
                self.stall(span);
                for receiver in 0..self.nodes.len() {
                    self.suspend(receiver, span);
                }
            }
            Act::SuspendSource { span } => {
                self.stall(span);
                self.unanswered(span);
            }
            Act::Suspend { receiver, span } => self.suspend(receiver, span),
            Act::Moves {
                receiver,
                validated_after,
            } => self.moves(receiver, validated_after),
            Act::NetworkChanged { receiver } => {
                let node = &mut self.nodes[receiver];
                if node.presence == Presence::Here && node.is_suspended(now).is_none() {
                    node.core.network_changed(now);
                    self.doubt(receiver, 0);
                    self.doubt(receiver, 1);
                    self.pump_receiver(receiver)?;
                }
            }
            Act::RelayFails {
                relay,
                span,
                notified,
            } => self.relay_fails(relay, span, notified),
            Act::CutRelay { receiver, span } => self.nodes[receiver].relayed.cut(now + span),
            Act::Forge {
                channel,
                ahead,
                offset,
                len,
                fin,
            } => self.forge(channel, ahead, offset, &vec![0xee; len], fin),
            Act::ForgeTags { channel, ahead } => {
                let core = self.origin.core.as_ref();
                let flow = core.and_then(|core| core.flow(channel));
                let pn = flow.map_or(0, |flow| flow.next_pn() + ahead);
                let forged = self.watch.forge_tags(channel, pn);
                self.inject(channel, forged, "forged packets of tags");
            }
            Act::Replay { channel, back } => {
                let sent = self.watch.recorded(channel, back);
                self.inject(channel, sent, "replayed packets");
            }
            Act::CopyFails { receiver } => self.nodes[receiver].copy_fails = true,
        }
        Ok(())
    }

    /// Sends a packet in the name of the source, with the number of the next one.
    fn forge(&mut self, channel: usize, ahead: u64, offset: u64, data: &[u8], fin: bool) {
        let seq = self.origin.stores[channel].published + ahead;
        let core = self.origin.core.as_ref();
        let Some(pn) = core.and_then(|c| c.flow(channel)).map(|f| f.next_pn()) else {
            return;
        };
        let mut frames = Vec::new();
        let whole = put_stream(&mut frames, 1150, seq, offset, data, fin);
        let sealed = self.watch.seal(channel, pn, &frames);
        let forged = whole.filter(|_| seq > 0).and(sealed);
        self.inject(channel, forged, "forged packets");
    }

    /// Lets a packet that the source did not send now arrive at all native listeners.
    fn inject(&mut self, channel: usize, packet: Option<(FlowId, Bytes)>, what: &str) {
        let now = self.now;
        let Some((flow, packet)) = packet else {
            return;
        };
        self.count(what);
        for i in 0..self.nodes.len() {
            let (node, rng) = (&mut self.nodes[i], &mut self.rng);
            if node.presence != Presence::Here || !node.hears(flow, &self.origin.endpoints[channel])
            {
                continue;
            }
            let (boot, arrivals) = (node.boot, node.multicast.arrivals(now, rng));
            for at in arrivals.into_iter().flatten() {
                let event = Event::Packet {
                    receiver: i,
                    boot,
                    flow,
                    leg: Leg::NATIVE,
                    packet: packet.clone(),
                };
                self.schedule(at, event);
            }
        }
    }

    fn link(&mut self, receiver: usize, multicast: bool) -> &mut Link {
        let node = &mut self.nodes[receiver];
        if multicast {
            &mut node.multicast
        } else {
            &mut node.copied
        }
    }

    /// The source, if its process runs and its host does not stand still.
    fn source_awake(&mut self) -> Option<&mut flexicast::source::Source> {
        if self.suspended(Host::Source).is_some() {
            return None;
        }
        self.origin.core.as_mut()
    }

    /// Cuts a receiver's unicast path for a while. Peers with a shorter idle timeout close the
    /// connection.
    fn partition(&mut self, receiver: usize, span: Duration) {
        let now = self.now;
        self.nodes[receiver].unicast.cut(now + span);
        let Some(session) = self.nodes[receiver].path else {
            return;
        };
        if span > self.script.receiver_patience {
            let (at, host) = (
                now + self.script.receiver_patience,
                Host::Receiver(receiver),
            );
            self.schedule(at, Event::End { session, host });
        }
        if span > self.script.source_patience {
            let (at, host) = (now + self.script.source_patience, Host::Source);
            self.schedule(at, Event::End { session, host });
        }
    }

    fn stall(&mut self, span: Duration) {
        let until = self.now + span;
        self.origin.suspended_until = self.origin.suspended_until.max(Some(until));
        self.schedule(until, Event::Resume(Host::Source));
    }

    /// The source does not answer for a while: receivers that are less patient than that give their
    /// connections up.
    fn unanswered(&mut self, span: Duration) {
        if span <= self.script.receiver_patience {
            return;
        }
        for i in 0..self.nodes.len() {
            if let Some(session) = self.nodes[i].path {
                let late = Duration::from_millis(self.rng.random_range(0..500));
                let at = self.now + self.script.receiver_patience + late;
                let host = Host::Receiver(i);
                self.schedule(at, Event::End { session, host });
            }
        }
    }

    fn suspend(&mut self, receiver: usize, span: Duration) {
        let now = self.now;
        let node = &mut self.nodes[receiver];
        node.suspended_until = node.suspended_until.max(Some(now + span));
        let path = node.path;
        self.schedule(now + span, Event::Resume(Host::Receiver(receiver)));
        let Some(session) = path else { return };
        if span > self.script.source_patience {
            let at = now + self.script.source_patience;
            let host = Host::Source;
            self.schedule(at, Event::End { session, host });
        }
        if span > self.script.receiver_patience {
            let host = Host::Receiver(receiver);
            self.schedule(now + span, Event::End { session, host });
        }
    }

    pub(crate) fn resume(&mut self, host: Host) -> Result<(), BrokenPromise> {
        if self.suspended(host).is_some() {
            return Ok(());
        }
        match host {
            Host::Source => {
                self.watch.resumed(self.now);
                self.pump_source().map(|_| ())
            }
            Host::Receiver(i) => {
                self.nodes[i].held_packets = 0;
                self.pump_receiver(i).map(|_| ())
            }
        }
    }

    /// A receiver appears at another address. What is on the way to the old one is lost, and copies
    /// wait until the new one is validated.
    fn moves(&mut self, receiver: usize, validated_after: Duration) {
        let now = self.now;
        let node = &mut self.nodes[receiver];
        let (delay, rtt) = (node.unicast.quality.delay, node.rtt());
        node.copied.cut(now + delay);
        let Some(session) = node.path else { return };
        let yes = false;
        self.schedule(now + delay, Event::Validated { session, yes });
        let at = now + delay + validated_after.max(rtt);
        let yes = true;
        self.schedule(at, Event::Validated { session, yes });
    }

    fn stop_source(&mut self, down: Duration, new_store: bool) -> Result<(), BrokenPromise> {
        if self.origin.core.take().is_none() {
            return Ok(());
        }
        let now = self.now;
        self.origin.boot += 1;
        self.origin.wake.armed = None;
        if new_store {
            for store in &mut self.origin.stores {
                *store = Store::new(std::mem::take(&mut store.name), &mut self.rng);
            }
        }
        self.schedule(now + down, Event::Start(Host::Source));
        let sessions: Vec<_> = self.paths.keys().copied().collect();
        for session in sessions {
            let Some(path) = self.paths.get_mut(&session) else {
                continue;
            };
            let (receiver, alive) = (path.receiver, path.at_receiver);
            path.at_source = false;
            self.watch.gone(session, receiver, false, now);
            if !alive {
                self.paths.remove(&session);
                continue;
            }
            // A stateless reset says so as soon as the process runs again and the receiver says
            // something; otherwise it is silence that says so.
            let reset = down + Duration::from_millis(self.rng.random_range(1..1000));
            let at: Instant = now + reset.min(self.script.receiver_patience);
            let host = Host::Receiver(receiver);
            self.schedule(at, Event::End { session, host });
        }
        Ok(())
    }

    /// A receiver's process ends.
    fn stop_receiver(&mut self, receiver: usize, politely: bool) -> Result<(), BrokenPromise> {
        let session = self.nodes[receiver].path;
        self.nodes[receiver].dies();
        let Some(session) = session else {
            return Ok(());
        };
        if politely {
            self.send_up(session, Up::Closed);
        }
        self.end(session, Host::Receiver(receiver))
    }

    fn eject(&mut self, receiver: usize) -> Result<(), BrokenPromise> {
        let id = self.nodes[receiver].id;
        let now = self.now;
        let Some(core) = self.source_awake() else {
            return Ok(());
        };
        let sessions = core.sessions().filter(|s| s.receiver == id);
        let sessions: Vec<_> = sessions.map(|s| s.session).collect();
        for session in &sessions {
            core.eject(*session, now);
        }
        self.origin.banned.insert(id);
        for session in sessions {
            self.watch.gone(session, receiver, true, now);
        }
        self.pump_source()?;
        let node = &mut self.nodes[receiver];
        node.presence = Presence::Gone;
        let session = node.path;
        node.dies();
        session.map_or(Ok(()), |session| {
            self.end(session, Host::Receiver(receiver))
        })
    }

    pub(crate) fn reannounce(&mut self, channel: usize, boot: u64) -> Result<(), BrokenPromise> {
        if boot == self.origin.boot && self.origin.flows[channel].is_none() {
            return self.new_flow(channel);
        }
        Ok(())
    }

    fn new_flow(&mut self, channel: usize) -> Result<(), BrokenPromise> {
        let config = flow_config(&self.script.channels[channel], &mut self.rng);
        self.watch.flow(channel, &config);
        self.origin.flows[channel] = Some(config.flow);
        let now = self.now;
        if let Some(core) = &mut self.origin.core
            && let Err(error) = core.replace_flow(channel, config, now)
        {
            return broken(Promise::Protocol, format!("a new flow: {error}"));
        }
        self.pump_source().map(|_| ())
    }
}
