//! The way to a flow through an AMT relay (rung 2): when it is tried, tried again and given up (protocol.md section 8.5).

use std::time::{Duration, Instant};

use rand::RngExt;

use super::flow::{Flow, REJOIN_FIRST, STAGGER, send_state};
use super::probe::{self, Probe};
use super::{REJOIN_MAX, Receiver, ReceiverEvent};
use crate::control::{Action, Announce};
use crate::{Cause, FlowId, PathId, Rung};

/// Behind the flow's key, the native join has so long to bring a packet before a relay is asked: where multicast works, no relay is bothered.
const NATIVE_FIRST: Duration = Duration::from_millis(300);
/// But no later than this after the native join.
const AT_THE_LATEST: Duration = Duration::from_secs(1);
/// Native packets that do not make this receiver a member keep a relay away for no longer than this.
const NATIVE_PATIENCE: Duration = Duration::from_secs(3);
/// The tunnel of a receiver that has come to native multicast stays open for this time: the flow may yet be lost there.
const HOLD: Duration = Duration::from_secs(10);

/// Relay state of one flow.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// The owner was asked for it.
    open: bool,
    /// When to open it, or, while it is open and brings nothing, to say so.
    at: Option<Instant>,
    after: Duration,
    /// When it was first wanted, since it was last closed.
    wanted: Option<Instant>,
    /// When the owner may close it, for native multicast works.
    until: Option<Instant>,
    /// When the last packet came natively.
    native: Option<Instant>,
    /// Probe of the tunnel.
    pub(super) probe: Probe,
    /// Whether the receiver fell back from it without knowing whether its relay is to blame.
    fell: bool,
}

impl Tunnel {
    pub(super) fn new() -> Self {
        Tunnel {
            open: false,
            at: None,
            after: REJOIN_FIRST,
            wanted: None,
            until: None,
            native: None,
            probe: Probe::default(),
            fell: false,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.at, self.until].into_iter().flatten().min()
    }

    fn want(&mut self, at: Instant, now: Instant) {
        self.wanted.get_or_insert(now);
        self.at = Some(self.at.map_or(at, |known| known.min(at)));
    }

    /// A packet came natively. It keeps a relay away for a moment, or, where this receiver is a member by native multicast, for good.
    pub(super) fn native(&mut self, member: bool, now: Instant) {
        self.native = Some(now);
        if member && !self.open {
            (self.at, self.wanted) = (None, None);
        }
    }

    /// A packet came through the relay.
    pub(super) fn works(&mut self, quiet: Duration, now: Instant) {
        self.after = REJOIN_FIRST;
        self.probe.end();
        self.fell = false;
        if self.open && self.at.is_some() {
            self.at = Some(now + REJOIN_FIRST.max(quiet));
        }
    }

    /// An open tunnel is not doubted before `until`.
    pub(super) fn trust(&mut self, until: Instant) {
        if self.open {
            self.at = self.at.map(|at| at.max(until));
        }
    }

    /// Closes the tunnel. Returns whether it was open.
    pub(super) fn close(&mut self) -> bool {
        (self.at, self.until, self.wanted) = (None, None, None);
        self.after = REJOIN_FIRST;
        self.probe.end();
        self.fell = false;
        std::mem::take(&mut self.open)
    }

    /// Whether a relay stays out of it for now, because packets come natively.
    fn waits(&self, now: Instant) -> bool {
        let native = self.native.is_some_and(|at| now < at + NATIVE_FIRST);
        native && self.wanted.is_some_and(|at| now < at + NATIVE_PATIENCE)
    }
}

impl Receiver {
    /// Whether one of the endpoints can be had through a relay.
    fn can_tunnel(&self, announce: &Announce) -> bool {
        let mut groups = announce.endpoints.iter();
        groups.any(|e| self.config.rungs.tunnels(e.group.is_ipv4()))
    }

    /// The flow was announced, or can be had elsewhere now.
    pub(super) fn announced_tunnel(&mut self, id: FlowId, now: Instant) {
        let Some(flow) = self.flows.get(&id) else {
            return;
        };
        let possible = self.can_tunnel(&flow.announce) && !flow.is_off();
        if flow.tunnel.open {
            if possible {
                self.ask(id, now);
            } else {
                self.close_tunnel(id);
            }
        } else if possible && flow.rung() != Rung::Multicast {
            let wait = match flow.joined {
                // The key, or a packet, comes first.
                true => AT_THE_LATEST,
                false => Duration::ZERO,
            };
            self.want_tunnel(id, now + wait, now);
        }
    }

    /// Opens the tunnel at `at`, unless it is open.
    fn want_tunnel(&mut self, id: FlowId, at: Instant, now: Instant) {
        let possible = self.flows.get(&id).is_some_and(|flow| {
            !flow.is_off() && !flow.tunnel.open && self.can_tunnel(&flow.announce)
        });
        if possible && let Some(flow) = self.flows.get_mut(&id) {
            flow.tunnel.want(at, now);
        }
    }

    /// The flow's first key has come, so its packets are on their way: the native join has its chance now.
    pub(super) fn first_key(&mut self, id: FlowId, now: Instant) {
        if let Some(flow) = self.flows.get_mut(&id)
            && !flow.tunnel.open
            && flow.tunnel.at.is_some()
        {
            flow.tunnel.want(now + NATIVE_FIRST, now);
        }
    }

    /// The receiver has been moved from `was` to the rung on which it stands now, or has noticed that it must be.
    pub(super) fn tunnel_after_move(&mut self, id: FlowId, was: Rung, now: Instant) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        let (rung, open) = (flow.rung(), flow.tunnel.open);
        match rung {
            Rung::Multicast => {
                flow.tunnel.at = None;
                flow.tunnel.wanted = None;
                flow.tunnel.fell = false;
                flow.tunnel.until = open.then_some(now + HOLD);
            }
            _ if open => {
                flow.tunnel.until = None;
                flow.tunnel.at.get_or_insert(now + REJOIN_FIRST);
                if was == Rung::Amt && rung == Rung::Unicast {
                    // Perhaps the relay is dead: the owner asks it.
                    flow.tunnel.fell = true;
                    flow.tunnel.after = REJOIN_FIRST;
                    flow.tunnel.at = Some(now);
                }
            }
            _ if was == Rung::Multicast || flow.tunnel.at.is_none() => {
                let wait = if flow.joined {
                    NATIVE_FIRST
                } else {
                    Duration::ZERO
                };
                self.want_tunnel(id, now + wait, now);
            }
            _ => {}
        }
    }

    /// Requests a tunnel from the owner, with the flow's endpoints and relays.
    fn ask(&mut self, id: FlowId, now: Instant) {
        let rungs = self.config.rungs;
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut flow.tunnel.open, true) {
            flow.tunnel.probe.begin(now);
        }
        flow.tunnel.at = Some(now + REJOIN_FIRST);
        let path = PathId::new(flow.announce.flow_index, Rung::Amt);
        send_state(flow, &mut self.control_out, Action::Join, path, None);
        let endpoints = flow.announce.endpoints.iter();
        let endpoints = endpoints.filter(|e| rungs.tunnels(e.group.is_ipv4()));
        self.events.push_back(ReceiverEvent::Tunnel {
            flow: id,
            channel: self.channels[flow.channel].name.clone(),
            endpoints: endpoints.copied().collect(),
            relays: flow.announce.relays.clone(),
        });
    }

    pub(super) fn close_tunnel(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if flow.tunnel.close() {
            let path = PathId::new(flow.announce.flow_index, Rung::Amt);
            send_state(flow, &mut self.control_out, Action::Leave, path, None);
            self.events.push_back(ReceiverEvent::EndTunnel { flow: id });
        }
    }

    /// Handles the timers of a flow's tunnel.
    pub(super) fn tunnel_timeout(&mut self, id: FlowId, now: Instant) {
        let later = self.rng.random_range(0.75..1.25);
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if flow.tunnel.until.is_some_and(|at| at <= now) {
            return self.close_tunnel(id);
        }
        if flow.tunnel.at.is_none_or(|at| at > now) {
            return;
        }
        if flow.tunnel.open {
            flow.tunnel.at = Some(now + flow.tunnel.after.mul_f64(later));
            flow.tunnel.after = (flow.tunnel.after * 2).min(REJOIN_MAX);
            let channel = &self.channels[flow.channel].name;
            let (out, events) = (&mut self.control_out, &mut self.events);
            probe::judge(flow, Rung::Amt, channel, out, events, now);
            self.events.push_back(ReceiverEvent::Retunnel { flow: id });
        } else if flow.tunnel.waits(now) {
            flow.tunnel.at = Some(now + NATIVE_FIRST);
        } else {
            self.ask(id, now);
        }
    }

    /// The host's network has changed: a relay may be near now, or the one in use far.
    pub(super) fn reopen_tunnel(&mut self, id: FlowId, now: Instant) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.tunnel.after = REJOIN_FIRST;
        if flow.tunnel.open {
            flow.tunnel.at = flow.tunnel.at.map(|_| now + REJOIN_FIRST);
            self.events.push_back(ReceiverEvent::Retunnel { flow: id });
        } else {
            // Packets that came natively before say nothing about here.
            flow.tunnel.native = None;
            let wait = match (flow.rung(), flow.joined) {
                // The next packet shows whether it is still so.
                (Rung::Multicast, _) => flow.announce.heartbeat + NATIVE_FIRST,
                (_, true) => NATIVE_FIRST,
                (_, false) => Duration::ZERO,
            };
            self.want_tunnel(id, now + wait, now);
        }
    }

    /// The relay by which the flow came is lost. The owner goes on looking for another; packets that come by that one prove it. Where the flow was missed before
    /// its relay was, this explains why.
    pub fn relay_lost(&mut self, id: FlowId, now: Instant) {
        let Some(flow) = self.flows.get_mut(&id).filter(|f| f.rung() >= Rung::Amt) else {
            return;
        };
        let path = PathId::new(flow.announce.flow_index, Rung::Amt);
        let member = flow.rung() == Rung::Amt;
        let fell = std::mem::take(&mut flow.tunnel.fell);
        // Packets by the next relay are a proof at once.
        let proved = !member && flow.ready_sent.remove(&path).is_some();
        if !member && !fell && !proved {
            return;
        }
        let cause = Cause::RelayLost;
        if member {
            flow.member = None;
        }
        let out = &mut self.control_out;
        send_state(flow, out, Action::Leave, path, Some(cause));
        flow.tunnel.after = REJOIN_FIRST;
        flow.tunnel.at = Some(now + REJOIN_FIRST);
        let channel = self.channels[flow.channel].name.clone();
        let at = now + STAGGER;
        if member {
            self.events.push_back(ReceiverEvent::Moved {
                channel,
                rung: Rung::Unicast,
                cause,
            });
            self.want_replication(id, at);
        } else if fell {
            // Copies were put off, for the flow might have come back by itself. It does not.
            flow.copies_at = flow.copies_at.map(|known| known.min(at));
            self.events.push_back(ReceiverEvent::Explained {
                channel,
                rung: Rung::Amt,
                on: flow.rung(),
                cause,
            });
        }
    }

    /// A relay answers, after none did for a while: what was put off for longer and longer is tried soon.
    pub fn relay_found(&mut self, id: FlowId, now: Instant) {
        if let Some(flow) = self.flows.get_mut(&id)
            && flow.tunnel.open
            && flow.rung() >= Rung::Amt
        {
            flow.tunnel.after = REJOIN_FIRST;
            flow.tunnel.at = Some(now + REJOIN_FIRST);
        }
    }

    /// There is no relay for the flow, or none that answers: the worse rungs need not wait for one.
    pub fn no_relay(&mut self, id: FlowId, now: Instant) {
        self.relay_lost(id, now);
        if let Some(flow) = self.flows.get(&id)
            && !flow.joined
            && flow.awaits_replication()
        {
            self.want_replication(id, now);
        }
    }
}

/// Returns the event for a tunnel that is dropped together with its flow.
pub(super) fn forgotten(flow: &mut Flow) -> Option<ReceiverEvent> {
    let id = flow.announce.flow;
    flow.tunnel
        .close()
        .then_some(ReceiverEvent::EndTunnel { flow: id })
}
