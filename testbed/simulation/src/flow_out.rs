//! The source's flow output: updates in, packets out to the listeners.

use bytes::Bytes;
use flexicast::control::Leg;
use flexicast::protect::peek_flow_id;
use flexicast::{FlowId, Rung};

use crate::node::Presence;
use crate::trace::Kind;
use crate::violation::{BrokenPromise, Promise, broken};
use crate::world::{Event, World};

impl World {
    /// Publishes what is stored, as far as there is room.
    pub(crate) fn feed(&mut self) -> bool {
        let Some(core) = &mut self.origin.core else {
            return false;
        };
        let mut moved = false;
        for (channel, store) in self.origin.stores.iter_mut().enumerate() {
            while store.published < store.head() && core.has_room(channel) {
                store.published += 1;
                if let Some(bytes) = store.get(store.published) {
                    core.publish(channel, store.published, bytes.clone());
                    moved = true;
                }
            }
        }
        moved
    }

    /// Sends the flow packets that are due.
    pub(crate) fn transmit(&mut self) -> Result<bool, BrokenPromise> {
        let mut packet = std::mem::take(&mut self.scratch);
        let mut moved = false;
        loop {
            let now = self.now;
            let Some(core) = &mut self.origin.core else {
                break;
            };
            let Some(channel) = core.poll_transmit(now, &mut packet) else {
                break;
            };
            moved = true;
            self.send_packet(channel, &mut packet)?;
        }
        self.scratch = packet;
        Ok(moved)
    }

    fn send_packet(&mut self, channel: usize, packet: &mut Vec<u8>) -> Result<(), BrokenPromise> {
        let sealed = Bytes::copy_from_slice(packet);
        self.note(Kind::FlowSent, channel as u64, &sealed);
        let (name, flow) = (peek_flow_id(&sealed), self.origin.flows[channel]);
        let is_tags = name.is_some_and(|name| self.watch.is_tags(channel, name));
        let Some(flow) = flow.filter(|_| is_tags || name == flow) else {
            return broken(
                Promise::Flow,
                format!("a packet of channel {channel} bears the name of another flow"),
            );
        };
        if is_tags {
            self.watch.tags(channel, &sealed)?;
            self.say(|| format!("channel {channel} sends tags"));
        } else {
            self.inspect_packet(channel, packet)?;
        }
        self.deliver(channel, flow, &sealed)
    }

    /// Checks a packet with frames.
    fn inspect_packet(
        &mut self,
        channel: usize,
        packet: &mut Vec<u8>,
    ) -> Result<(), BrokenPromise> {
        let now = self.now;
        let store = &self.origin.stores[channel];
        let seen = self.watch.packet(channel, packet, now)?;
        self.trace.say(now - self.start, || {
            let parts = seen.streams.iter();
            let parts =
                parts.map(|(seq, offset, data, _)| format!(" {seq}@{offset}+{}", data.len()));
            format!(
                "channel {channel} sends {}:{}",
                seen.pn,
                parts.collect::<String>()
            )
        });
        for (seq, offset, data, fin) in seen.streams {
            let update = store.get(seq).map_or(&[][..], |b| &b[..]);
            let (start, end) = (offset as usize, offset as usize + data.len());
            let right = update.get(start..end) == Some(data) && (!fin || end == update.len());
            if seq > store.published || !right {
                return broken(
                    Promise::Bytes,
                    format!(
                        "the flow of channel {channel} carries other bytes of update {seq} than \
                         were published"
                    ),
                );
            }
        }
        Ok(())
    }

    /// Lets a packet arrive wherever it is heard.
    fn deliver(
        &mut self,
        channel: usize,
        flow: FlowId,
        sealed: &Bytes,
    ) -> Result<(), BrokenPromise> {
        let now = self.now;
        let endpoints = &self.origin.endpoints[channel];
        let mut arrivals = Vec::new();
        for (i, node) in self.nodes.iter_mut().enumerate() {
            if node.presence == Presence::Here && node.hears(flow, endpoints) {
                let at = node.multicast.arrivals(now, &mut self.rng);
                arrivals.extend(at.into_iter().flatten().map(|at| (at, i, Leg::NATIVE)));
            }
        }
        for i in 0..self.nodes.len() {
            if self.nodes[i].presence != Presence::Here {
                continue;
            }
            for leg in [Leg::RELAY, Leg::SECOND_RELAY] {
                let endpoints = &self.origin.endpoints[channel];
                if self.relayed(i, leg.number, flow, endpoints) {
                    let at = self.nodes[i].relayed.arrivals(now, &mut self.rng);
                    arrivals.extend(at.into_iter().flatten().map(|at| (at, i, leg)));
                }
            }
        }
        let Some(core) = &mut self.origin.core else {
            return Ok(());
        };
        for session in core.replicas(channel).to_vec() {
            let Some(path) = self.paths.get(&session).filter(|p| p.at_source) else {
                return broken(
                    Promise::Memory,
                    format!("copies go to session {session}, which is closed"),
                );
            };
            if !path.validated {
                return broken(
                    Promise::Reflection,
                    format!("a copy goes to session {session}, whose address is not validated"),
                );
            }
            let node = &mut self.nodes[path.receiver];
            if std::mem::take(&mut node.copy_fails) {
                core.replica_failed(session, channel, now);
                continue;
            }
            let cut = node.unicast.cut_until.is_some_and(|until| now < until);
            if node.presence == Presence::Here && node.path == Some(session) && !cut {
                let at = node.copied.arrivals(now, &mut self.rng);
                let receiver = path.receiver;
                let leg = Leg {
                    rung: Rung::Replicated,
                    number: 0,
                };
                arrivals.extend(at.into_iter().flatten().map(|at| (at, receiver, leg)));
            }
        }
        for (at, receiver, leg) in arrivals {
            let boot = self.nodes[receiver].boot;
            self.schedule(
                at,
                Event::Packet {
                    receiver,
                    boot,
                    flow,
                    leg,
                    packet: sealed.clone(),
                },
            );
        }
        Ok(())
    }
}
