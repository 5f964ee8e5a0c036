//! The end of a run: the disturbances are over, everybody catches up, memory returns, everybody
//! climbs.

use std::time::Duration;

use flexicast::merge::MAX_BUFFERED;
use flexicast::{MAX_UPDATE, Rung};

use crate::node::Presence;
use crate::script::Act;
use crate::violation::{BrokenPromise, Promise, broken};
use crate::world::{Event, World, channel_name};

const MS: Duration = Duration::from_millis(1);
/// Time to catch up, in addition to the transfer time of the bytes.
const CATCH_UP: Duration = Duration::from_secs(60);
/// Rate of a flow in bit/s, at least, once everything is healed.
const LEAST_RATE: u64 = 100_000;
/// Bound on a receiver's memory per channel, in bytes: the merge's bound plus one update beyond it.
const MOST_HELD: usize = MAX_BUFFERED + 2 * MAX_UPDATE;
/// Bound on a flow's memory: its queue plus one update beyond it.
const MOST_QUEUED: usize = (8 << 20) + MAX_UPDATE;
/// By then nothing may be held any more, once all receivers have everything.
const SETTLE: Duration = Duration::from_secs(20);
/// The longest back-off is 300 s, with a quarter of jitter, and may have begun just now; what came
/// of it may then begin another.
const CLIMB: Duration = Duration::from_secs(1500);

impl World {
    /// Checks invariants that hold at any time: bounded memory and plausible messages.
    pub(crate) fn inspect(&self) -> Result<(), BrokenPromise> {
        if let Some(core) = &self.origin.core {
            let flows = (0..core.channels()).filter_map(|c| core.flow(c));
            if let Some(queued) = flows.map(|f| f.queued_bytes()).find(|b| *b > MOST_QUEUED) {
                return broken(Promise::Memory, format!("a flow holds {queued} bytes"));
            }
            for channel in 0..core.channels() {
                let subscriptions = core.sessions().flat_map(|s| s.channels);
                let on = subscriptions.filter(|s| s.channel == channel && s.rung < Rung::Unicast);
                let (on, members) = (on.count(), core.flow(channel).map_or(0, |f| f.members()));
                if on != members {
                    return broken(
                        Promise::Memory,
                        format!(
                            "the flow of channel {channel} waits for {members} members, but {on} \
                             receivers are on it"
                        ),
                    );
                }
            }
            let counters = core.counters();
            // A forged packet's number is acknowledged before the source has sent it.
            let unsent = if self.script.is_forgery_believed() {
                0
            } else {
                counters.invalid_acks
            };
            if unsent + counters.excess_acks + counters.excess_control > 0 {
                return broken(
                    Promise::Protocol,
                    format!("the source finds honest receivers dishonest: {counters:?}"),
                );
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let held = node.core.buffered();
            if held > MOST_HELD * node.readings.len() {
                return broken(Promise::Memory, format!("receiver {i} holds {held} bytes"));
            }
            for channel in node.readings.keys() {
                let stats = node.core.stats(channel);
                if !self.script.is_forgery_believed()
                    && stats.is_some_and(|s| s.reception.mismatches > 0)
                {
                    return broken(
                        Promise::Bytes,
                        format!(
                            "receiver {i} sees flow and unicast path of {channel} contradict each \
                                other"
                        ),
                    );
                }
            }
        }
        Ok(())
    }

    /// Heals all links; every remaining receiver must then get everything, including updates
    /// published from now on.
    pub(crate) fn heal(&mut self) -> Result<(), BrokenPromise> {
        self.say(|| "healing begins".to_owned());
        self.healing = true;
        let now = self.now;
        self.origin.store_bad_until = None;
        for node in &mut self.nodes {
            node.multicast.heal();
            node.copied.heal();
            node.relayed.heal();
            node.unicast.heal();
            node.stalled_until = None;
            node.copy_fails = false;
            node.plan.bandwidth = 1_000_000_000;
            node.plan.reads_per_second = None;
        }
        self.heal_relays();
        for receiver in 0..self.nodes.len() {
            let boot = self.nodes[receiver].boot;
            self.schedule(now, Event::Read { receiver, boot });
        }
        // In half of the runs nothing is published any more: what is missing has to come by itself.
        let silent = self.script.seed % 2 == 1;
        for channel in 0..self.script.channels.len() {
            for n in (0..8).filter(|_| !silent) {
                let act = Act::Publish { channel, len: 300 };
                self.schedule(now + MS * (10 + 371 * n), Event::Act(act));
            }
        }
        let limit = now + CATCH_UP + self.owed() + self.queued();
        self.advance(3 * Duration::from_secs(1))?;
        while let Some(missing) = self.missing() {
            if self.now >= limit {
                return broken(Promise::Delivery, missing);
            }
            self.advance(100 * MS)?;
        }
        Ok(())
    }

    /// Returns an upper bound of the time that the flows need for the queued bytes: a path that
    /// reorders or loses packets all the time slows them down, as it does TCP.
    fn queued(&self) -> Duration {
        let Some(core) = &self.origin.core else {
            return Duration::ZERO;
        };
        let mut longest = Duration::ZERO;
        for flow in (0..self.script.channels.len()).filter_map(|c| core.flow(c)) {
            let ms = flow.queued_bytes() as u64 * 8 * 1000 / LEAST_RATE;
            longest = longest.max(Duration::from_millis(ms));
        }
        longest
    }

    /// Returns an upper bound of the time that the shared unicast rate needs for the queued bytes,
    /// including bytes that arrived by the flow meanwhile.
    fn waiting(&self) -> Duration {
        let (Some(rate), Some(core)) = (self.script.unicast_rate, &self.origin.core) else {
            return Duration::ZERO;
        };
        let subscriptions = core.sessions().flat_map(|s| s.channels);
        let bytes = subscriptions.map(|s| s.backlog * self.origin.stores[s.channel].longest());
        Duration::from_millis(bytes.sum::<u64>() * 8 * 1000 / rate)
    }

    /// Returns the time that the shared unicast rate needs for the missing bytes.
    fn owed(&self) -> Duration {
        let Some(rate) = self.script.unicast_rate else {
            return Duration::ZERO;
        };
        let mut bytes = 0;
        for node in &self.nodes {
            for (channel, reading) in &node.readings {
                let Some(store) = self.origin.store_of(channel) else {
                    continue;
                };
                let known = reading.expects.filter(|e| e.0 == store.incarnation);
                let from = known.map_or(store.first, |(_, next)| next);
                let lens = (from..=store.head()).filter_map(|seq| store.get(seq));
                bytes += lens.map(|b| b.len() as u64 + 100).sum::<u64>();
            }
        }
        Duration::from_millis(bytes * 8 * 1000 / rate) * 2
    }

    /// Returns receivers and their missing updates.
    fn missing(&self) -> Option<String> {
        let nodes = self.nodes.iter().enumerate();
        for (i, node) in nodes.filter(|(_, n)| n.presence != Presence::Gone) {
            for channel in node.readings.keys() {
                let store = self.origin.store_of(channel)?;
                if let Some(missing) = node.misses(channel, store) {
                    let path = node.path;
                    return Some(format!("receiver {i} (session {path:?}) {missing}"));
                }
            }
        }
        None
    }

    /// Nothing may be held for any receiver, and both ends must agree on every rung.
    pub(crate) fn settle(&mut self) -> Result<(), BrokenPromise> {
        self.inspect()?;
        self.say(|| "all receivers have everything".to_owned());
        let limit = self.now + SETTLE + self.queued() + self.waiting();
        // The condition has to hold at one quiet instant, not at all: there is always a heartbeat
        // about to be acknowledged.
        while let Some((promise, held)) = self.held() {
            if self.now >= limit {
                return broken(promise, held);
            }
            self.say(|| held);
            self.advance(37 * MS)?;
        }
        self.advance(2 * Duration::from_secs(1))?;
        if let Some(missing) = self.missing() {
            return broken(Promise::Delivery, missing);
        }
        if !self.script.patient {
            return Ok(());
        }
        let limit = self.now + CLIMB;
        while let Some(low) = self.too_low() {
            if self.now >= limit {
                return broken(Promise::Rung, low);
            }
            self.advance(Duration::from_secs(1))?;
        }
        Ok(())
    }

    /// Returns leftover state, or a disagreement of the two ends.
    fn held(&mut self) -> Option<(Promise, String)> {
        let memory = |what: String| Some((Promise::Memory, what));
        let core = self.origin.core.as_ref()?;
        for channel in 0..core.channels() {
            let Some(flow) = core.flow(channel) else {
                continue;
            };
            let (packets, bytes) = (flow.outstanding(), flow.queued_bytes());
            if packets > 0 || bytes > 0 {
                return memory(format!(
                    "the flow of channel {channel} holds {packets} packets and {bytes} bytes with \
                     {} members",
                    flow.members()
                ));
            }
        }
        let known = self.paths.values().filter(|p| p.at_source && p.accepted);
        let (known, served) = (known.count(), core.sessions().count());
        if known != served {
            return memory(format!(
                "the source serves {served} sessions, but {known} are connected"
            ));
        }
        for session in core.sessions() {
            let receiver = self.paths.get(&session.session).map(|p| p.receiver);
            for subscription in &session.channels {
                let channel = subscription.channel;
                if subscription.backlog > 0 {
                    return memory(format!(
                        "{} updates of channel {channel} wait for session {}",
                        subscription.backlog, session.session
                    ));
                }
                let node = receiver.and_then(|r| self.nodes.get(r));
                let reading = node.and_then(|n| n.readings.get(&channel_name(channel)));
                let durable = reading.and_then(|r| r.durable);
                let incarnation = self.origin.stores[channel].incarnation;
                let durable = durable.filter(|c| c.incarnation == incarnation);
                if subscription.cursor != durable {
                    return Some((
                        Promise::Delivery,
                        format!(
                            "receiver {receiver:?} has {durable:?} of channel {channel} on disk, \
                             the source thinks {:?}",
                            subscription.cursor
                        ),
                    ));
                }
                let believed = reading.and_then(|r| r.rung).unwrap_or(Rung::Unicast);
                if reading.is_some() && believed != subscription.rung {
                    return Some((
                        Promise::Rung,
                        format!(
                            "receiver {receiver:?} is on {} in channel {channel} for the source, \
                             and on {believed} for itself",
                            subscription.rung
                        ),
                    ));
                }
            }
        }
        // Forged bytes of updates that are not published are held until their connection ends.
        let honest = self
            .nodes
            .iter()
            .filter(|_| !self.script.is_forgery_believed());
        for (i, node) in honest.enumerate() {
            let unread = node.path.and_then(|s| self.paths.get(&s));
            let unread = unread.map_or(0, |p| p.unread.len());
            let held = node.core.buffered();
            if node.presence == Presence::Here && held + unread > 0 {
                return memory(format!(
                    "receiver {i} holds {held} bytes, {unread} pieces are unread"
                ));
            }
        }
        None
    }

    /// Returns a receiver on a worse rung than it could have.
    fn too_low(&self) -> Option<String> {
        let core = self.origin.core.as_ref()?;
        for session in core.sessions() {
            let receiver = self.paths.get(&session.session)?.receiver;
            let node = &self.nodes[receiver];
            for subscription in &session.channels {
                let channel = subscription.channel;
                let flow = self.origin.flows[channel].is_some();
                let endpoints = &self.origin.endpoints[channel];
                let multicast = endpoints.iter().any(|e| {
                    if e.group.is_ipv4() {
                        node.plan.v4
                    } else {
                        node.plan.v6
                    }
                });
                let amt = !self.relays.is_empty()
                    && endpoints.iter().any(|e| {
                        if e.group.is_ipv4() {
                            node.plan.amt_v4
                        } else {
                            node.plan.amt_v6
                        }
                    });
                let copies = self.script.channels[channel].copies && node.plan.copies;
                if !multicast && !amt && copies && self.script.copies < self.nodes.len() {
                    // There are not enough copies for everybody.
                    continue;
                }
                let is_authenticated = self.script.channels[channel].authentication.is_some();
                let flow = flow && (node.authenticates() || !is_authenticated);
                let best = match (flow, multicast, amt, copies) {
                    (true, true, _, _) => Rung::Multicast,
                    (true, false, true, _) => Rung::Amt,
                    (true, false, false, true) => Rung::Replicated,
                    _ => Rung::Unicast,
                };
                if subscription.rung != best {
                    return Some(format!(
                        "receiver {receiver} is on {} in channel {channel}, but could have {best}",
                        subscription.rung
                    ));
                }
            }
        }
        None
    }
}
