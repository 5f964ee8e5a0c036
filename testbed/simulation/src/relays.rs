//! AMT relays and the gateways of the receivers: which relay a receiver has, what it forwards, and
//! when its loss is noticed. What RFC 7450 says between the two is modelled as the time that it
//! takes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use flexicast::FlowId;
use flexicast::control::Endpoint;
use rand::RngExt;

use crate::fault::Fault;
use crate::node::Presence;
use crate::violation::BrokenPromise;
use crate::world::{Event, World};

const MS: Duration = Duration::from_millis(1);

/// A relay.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    /// Until then it does nothing.
    down_until: Option<Instant>,
    /// Grows with each failure: what it knew of its gateways is gone then.
    life: u64,
}

impl Relay {
    fn is_up(&self, now: Instant) -> bool {
        self.down_until.is_none_or(|until| until <= now)
    }
}

/// The gateway in a receiver's process.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    /// The flows that it is to get, and by which endpoints.
    pub(crate) flows: BTreeMap<FlowId, Vec<Endpoint>>,
    /// The relay that it has, in that life of it.
    relay: Option<(usize, u64)>,
    /// Whether discovery is running.
    looking: bool,
    /// Whether a liveness check of the relay is pending.
    asking: bool,
    /// Whether the absence of a relay was reported.
    none: bool,
}

impl Gateway {
    /// Ends the tunnel of a flow, and leaves the relay with the last one: another gateway may have
    /// it.
    pub(crate) fn release(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
        if self.flows.is_empty() {
            self.relay = None;
        }
    }
}

impl World {
    fn forwards(&self, relay: (usize, u64)) -> bool {
        let known = self.relays.get(relay.0);
        known.is_some_and(|r| r.is_up(self.now) && r.life == relay.1)
    }

    /// Whether a packet that is sent to these endpoints comes to a receiver through the relay of
    /// its tunnel with this number.
    pub(crate) fn relayed(
        &self,
        i: usize,
        number: u64,
        flow: FlowId,
        endpoints: &[Endpoint],
    ) -> bool {
        let gateway = self.nodes[i].gateways.get(number as usize);
        gateway.is_some_and(|gateway| {
            let wanted = gateway.flows.get(&flow);
            wanted.is_some_and(|w| w.iter().any(|e| endpoints.contains(e)))
                && gateway.relay.is_some_and(|relay| self.forwards(relay))
        })
    }

    /// A receiver wants a flow through a relay.
    pub(crate) fn tunnel(&mut self, i: usize, number: u64, flow: FlowId, at: Vec<Endpoint>) {
        if number > 0 {
            self.count("second relays asked for");
        }
        self.nodes[i].gateway(number).flows.insert(flow, at);
        self.look(i, number, 200);
    }

    /// A receiver doubts its relay.
    pub(crate) fn doubt(&mut self, i: usize, number: u64) {
        match self.nodes[i].gateway(number).relay {
            None => self.look(i, number, 200),
            Some(_) => self.notice_later(i, number, 600..900),
        }
    }

    /// Looks for a relay, which takes up to so many milliseconds.
    fn look(&mut self, i: usize, number: u64, most: u64) {
        let gateway = self.nodes[i].gateway(number);
        if gateway.relay.is_none() && !std::mem::replace(&mut gateway.looking, true) {
            self.wake_gateway(i, number, 10..most as u32);
        }
    }

    fn notice_later(&mut self, i: usize, number: u64, within: Range<u32>) {
        let gateway = self.nodes[i].gateway(number);
        if !std::mem::replace(&mut gateway.asking, true) {
            self.wake_gateway(i, number, within);
        }
    }

    fn wake_gateway(&mut self, receiver: usize, number: u64, within: Range<u32>) {
        let at = self.now + MS * self.rng.random_range(within);
        let boot = self.nodes[receiver].boot;
        self.schedule(
            at,
            Event::Gateway {
                receiver,
                number,
                boot,
            },
        );
    }

    /// A gateway has found a relay, or none, or has found out whether the one that it has lives.
    pub(crate) fn gateway(
        &mut self,
        i: usize,
        number: u64,
        boot: u64,
    ) -> Result<(), BrokenPromise> {
        let now = self.now;
        let node = &mut self.nodes[i];
        if node.boot != boot || node.presence != Presence::Here {
            return Ok(());
        }
        let taken = node.gateway(1 - number).relay.map(|(relay, _)| relay);
        let gateway = node.gateway(number);
        (gateway.looking, gateway.asking) = (false, false);
        let flows: Vec<_> = gateway.flows.keys().copied().collect();
        if let Some(relay) = gateway.relay {
            if self.forwards(relay) {
                return Ok(());
            }
            self.say(|| format!("receiver {i} has lost relay {}", relay.0));
            self.count("relays lost");
            if self.fault == Some(Fault::NoOtherRelay) {
                return Ok(());
            }
            let node = &mut self.nodes[i];
            node.gateway(number).relay = None;
            for flow in flows {
                node.core.relay_lost(flow, number, now);
            }
            self.look(i, number, 500);
            return self.pump_receiver(i).map(|_| ());
        }
        if flows.is_empty() {
            return Ok(());
        }
        let up = self.relays.iter().enumerate();
        let up = up.filter(|(r, relay)| relay.is_up(now) && Some(*r) != taken);
        let up: Vec<_> = up.collect();
        let chosen = match up.len() {
            0 => None,
            many => up.get(self.rng.random_range(0..many)),
        };
        match chosen.map(|(r, relay)| (*r, relay.life)) {
            Some(relay) => {
                let node = &mut self.nodes[i];
                let gateway = node.gateway(number);
                gateway.relay = Some(relay);
                if std::mem::take(&mut gateway.none) {
                    for flow in flows {
                        node.core.relay_found(flow, number, now);
                    }
                }
                self.say(|| format!("receiver {i} has relay {}", relay.0));
            }
            None => {
                let node = &mut self.nodes[i];
                node.gateway(number).none = true;
                for flow in flows {
                    node.core.no_relay(flow, number, now);
                }
                self.look(i, number, 5000);
            }
        }
        self.pump_receiver(i).map(|_| ())
    }

    /// A relay's process dies and starts again a while later, without any tunnel. Gateways
    /// notice at once if its host notifies them, or only later.
    pub(crate) fn relay_fails(&mut self, relay: usize, span: Duration, notified: bool) {
        let until = self.now + span;
        let Some(failed) = self.relays.get_mut(relay) else {
            return;
        };
        failed.life += 1;
        failed.down_until = failed.down_until.max(Some(until));
        for i in 0..self.nodes.len() {
            for number in [0, 1] {
                let used = self.nodes[i].gateway(number).relay;
                if used.is_some_and(|(used, _)| used == relay) {
                    self.notice_later(i, number, if notified { 1..50 } else { 2000..9000 });
                }
            }
        }
    }

    /// Heals all relays; gateways of failed ones find out.
    pub(crate) fn heal_relays(&mut self) {
        self.relays.iter_mut().for_each(|r| r.down_until = None);
        for i in 0..self.nodes.len() {
            if self.nodes[i].presence == Presence::Here {
                self.doubt(i, 0);
                self.doubt(i, 1);
            }
        }
    }
}
