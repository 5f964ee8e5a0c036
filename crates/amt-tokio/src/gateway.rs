//! The gateway with its sockets and timers.

use std::collections::{BTreeSet, VecDeque};
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::gateway::{
    Candidate, CandidateStatus, Counters, Event, Gateway as Core, Input, RelayStatus,
    SubscribeError, Subscription, SubscriptionId, TunnelProof, UsedRelay,
};
use amt::ip::decapsulated_ecn;
use netio::RecvBatch;
use rand::RngExt;
use tracing::{debug, trace};

use crate::alarm::Alarm;
#[cfg(any(test, feature = "fault-injection"))]
use crate::config::Faults;
use crate::config::{Config, Hint};
use crate::finder::{Finder, Lookup, NameStatus};
use crate::memory::Memory;
#[cfg(test)]
use crate::name::RelayName;
use crate::sockets::{SendOutcome, Sockets};

/// Time limit of a stop, if the kernel's buffers are full.
const STOP_WITHIN: Duration = Duration::from_millis(250);
/// Pause before a failed socket is replaced.
const REOPEN_AFTER: Duration = Duration::from_millis(100);
/// Most events waiting for the caller; older ones are dropped first.
const MAX_EVENTS: usize = 64;
/// Most messages sent in one round; more at once are a bug.
const MAX_SENT_AT_ONCE: usize = 1024;

/// Length of the header of Multicast Data (RFC 7450 section 5.1.6).
const DATA_HEADER: usize = 2;

/// A packet of a flow.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Subscription that it belongs to.
    pub subscription: SubscriptionId,
    /// Sender, from the inner packet.
    pub from: SocketAddr,
    /// ECN field (RFC 3168) of the inner packet, with what the tunnel adds to it (RFC 6040).
    pub ecn: u8,
    /// Payload of the inner UDP datagram; writable, because packet protection is removed in place.
    pub data: &'a mut [u8],
}

/// Snapshot of a gateway, for a status page.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Relay in use.
    pub relay: Option<RelayStatus>,
    /// Known candidates, in the order of preference.
    pub candidates: Vec<CandidateStatus>,
    /// Names that are looked up.
    pub names: Vec<NameStatus>,
    /// Number of distinct subscriptions.
    pub subscriptions: usize,
    /// Counters of the state machine.
    pub counters: Counters,
    /// Messages without a route to their destination.
    pub refused: u64,
}

impl Status {
    /// Returns a line for each name that was not found, and for each relay that cannot be used.
    pub fn failures(&self) -> Vec<String> {
        let names = self.names.iter().filter_map(|known| match &known.lookup {
            Lookup::Failed(why) => Some(format!("{}: {why}", known.name)),
            Lookup::UnderWay | Lookup::Found(_) => None,
        });
        let candidates = self.candidates.iter().filter_map(|known| {
            let Candidate { addr, origin, .. } = known.candidate;
            known.failed.map(|why| format!("{addr} ({origin}): {why}"))
        });
        names.chain(candidates).collect()
    }
}

/// An AMT gateway inside a program, driven by one task.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use amt::gateway::Subscription;
/// let config = amt_tokio::Config {
///     relays: vec!["relay.example".parse()?],
///     ..Default::default()
/// };
/// let mut gateway = amt_tokio::Gateway::start(config)?;
/// gateway.subscribe(Subscription {
///     source: Some("192.0.2.10".parse()?),
///     group: "232.1.1.1".parse()?,
///     port: 5000,
/// })?;
/// let mut batch = netio::RecvBatch::new();
/// loop {
///     gateway.ready().await;
///     gateway.receive(&mut batch, |packet| println!("{} bytes", packet.data.len()))?;
///     while let Some(event) = gateway.poll_event() {
///         println!("{event}");
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Gateway {
    core: Core,
    finder: Finder,
    /// Relays of other gateways, which must not be used.
    excluded: BTreeSet<UsedRelay>,
    /// Whether a relay in use is kept though it is among them.
    keeps_relay: bool,
    sockets: Sockets,
    alarm: Alarm,
    /// Message waiting for room in the socket's buffer.
    unsent: Option<(SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
    refused: u64,
    /// Whether relays are looked for, as they are from the first subscription on.
    started: bool,
    /// Whether lookups have ended since the state machine last got candidates.
    lookups_ended: bool,
    /// Whether the lack of candidates is to be reported once all lookups have ended.
    lack_unreported: bool,
    /// Whether events are queued that no wait has returned for.
    events_queued: bool,
    /// Time at which a socket that failed in sending is replaced.
    reopen: Option<Instant>,
    /// State for the next run, and its last content.
    pub(crate) memory: Option<Memory>,
    stored: ([Option<u16>; 2], Option<TunnelProof>),
    #[cfg(any(test, feature = "fault-injection"))]
    faults: Faults,
}

impl Gateway {
    /// Creates a gateway, which is idle until the first subscription.
    ///
    /// # Errors
    /// The call is not inside a tokio runtime.
    pub fn start(config: Config) -> io::Result<Self> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(io::Error::other(
                "an AMT gateway must be started inside a tokio runtime",
            ));
        }
        let remembered = config.memory.as_ref().map(Memory::ports);
        let preferred = remembered.unwrap_or_default().map(|remembered| {
            let mut ports: Vec<u16> = config.port.into_iter().chain(remembered).collect();
            ports.dedup();
            ports
        });
        Ok(Self {
            core: Core::new(config.timing, rand::rng().random()),
            finder: Finder::new(
                config.relays,
                config.dns,
                config.anycast,
                config.timing.hold_down,
                rand::rng().random(),
            ),
            excluded: BTreeSet::new(),
            keeps_relay: false,
            sockets: Sockets::new(preferred),
            alarm: Alarm::default(),
            unsent: None,
            events: VecDeque::new(),
            refused: 0,
            started: false,
            lookups_ended: false,
            lack_unreported: false,
            events_queued: false,
            reopen: None,
            memory: config.memory,
            stored: Default::default(),
            #[cfg(any(test, feature = "fault-injection"))]
            faults: Faults::default(),
        })
    }

    /// Leaves protections out from now on, for tests that must notice.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn inject_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Adds a subscription, and requests its flow at once. Equal ones share an id and are counted.
    ///
    /// # Errors
    /// No relay could serve it; see [`SubscribeError`].
    pub fn subscribe(
        &mut self,
        subscription: Subscription,
    ) -> Result<SubscriptionId, SubscribeError> {
        let now = Instant::now();
        if !self.started {
            self.started = true;
            self.resume();
            self.finder.resolve(false);
            self.update_candidates(now);
        }
        let id = self.core.subscribe(subscription, now)?;
        if let Some(source) = subscription.source {
            self.finder.wants(source);
        }
        self.drive(now);
        Ok(id)
    }

    /// Removes one use of a subscription. With the last one, the relay is left.
    pub fn unsubscribe(&mut self, id: SubscriptionId) {
        let now = Instant::now();
        let source = self.core.subscription(id).and_then(|known| known.source);
        self.lookups_ended |= source.is_some_and(|source| self.finder.forgets(source));
        self.core.unsubscribe(id, now);
        self.drive(now);
    }

    /// Replaces the relays that the source announces. A relay in use stays in use while it works.
    pub fn set_hints(&mut self, hints: &[Hint]) {
        let now = Instant::now();
        self.finder.set_hints(hints);
        if self.started {
            self.finder.resolve(false);
            if !self.finder.candidates().is_empty() {
                // Hints often arrive right after the subscription, and end the lack of candidates.
                let is_past = |event: &Event| matches!(event, Event::NoRelay { candidates: 0, .. });
                self.events.retain(|event| !is_past(event));
            }
            self.update_candidates(now);
            self.drive(now);
        }
    }

    /// Replaces the relays that must not be used: other gateways have them. A relay in use that is
    /// among them is left. Of a name with addresses of both families, those of the other family may
    /// be the same relay, and are left out, too.
    pub fn exclude(&mut self, relays: impl IntoIterator<Item = UsedRelay>) {
        self.replace_excluded(relays, false);
    }

    /// Replaces the relays that must not be used like [`exclude`](Self::exclude), but keeps a relay
    /// in use that is among them.
    pub fn avoid(&mut self, relays: impl IntoIterator<Item = UsedRelay>) {
        self.replace_excluded(relays, true);
    }

    fn replace_excluded(&mut self, relays: impl IntoIterator<Item = UsedRelay>, keeps_relay: bool) {
        let now = Instant::now();
        (self.excluded, self.keeps_relay) = (relays.into_iter().collect(), keeps_relay);
        self.core.exclude(self.excluded_addresses(), now);
        self.drive(now);
    }

    /// Returns the addresses of the relay in use.
    pub fn relay(&self) -> Option<UsedRelay> {
        self.core.relay()
    }

    /// Returns the addresses of the relay in use, and then those of the other family that have a
    /// name in common with it.
    pub fn relay_with_aliases(&self) -> Vec<UsedRelay> {
        let Some(own) = self.core.relay() else {
            return Vec::new();
        };
        let aliases = self.addresses_of(own);
        let aliases = aliases.into_iter().filter(|alias| *alias != own.relay);
        let aliases = aliases.map(|alias| UsedRelay {
            relay: alias,
            found_at: alias,
        });
        std::iter::once(own).chain(aliases).collect()
    }

    /// Whether the relay in use is, or may be, this one of another gateway.
    pub fn may_share(&self, other: UsedRelay) -> bool {
        let addresses = self.addresses_of(other);
        let has = |own: UsedRelay| {
            [own.relay, own.found_at]
                .iter()
                .any(|a| addresses.contains(a))
        };
        self.core.relay().is_some_and(has)
    }

    /// Returns the addresses under which another gateway's relay may be known here.
    fn addresses_of(&self, other: UsedRelay) -> BTreeSet<IpAddr> {
        let known = [other.relay, other.found_at];
        let others = known.map(|ip| self.finder.other_family(ip));
        let others = others.into_iter().flatten();
        others.chain([other.relay]).collect()
    }

    fn excluded_addresses(&self) -> BTreeSet<IpAddr> {
        let relays = self.excluded.iter();
        let mut addresses: BTreeSet<_> =
            relays.flat_map(|relay| self.addresses_of(*relay)).collect();
        if let Some(own) = self.core.relay().filter(|_| self.keeps_relay) {
            addresses.remove(&own.relay);
            addresses.remove(&own.found_at);
        }
        addresses
    }

    /// Hands the known candidates to the state machine.
    fn update_candidates(&mut self, now: Instant) {
        // First, or one that is excluded by its name would be asked.
        self.core.exclude(self.excluded_addresses(), now);
        self.core.set_candidates(self.finder.candidates(), now);
    }

    /// Reports that packets are missing. The relay is asked at once whether it is alive; others are
    /// asked as well if it does not answer twice, or answers but has brought nothing for
    /// [`Timing::silence`](amt::gateway::Timing::silence). May be called at any rate.
    pub fn suspect(&mut self) {
        let now = Instant::now();
        self.core.suspect(now);
        self.drive(now);
    }

    /// Reports that this machine's network has changed: the relay gets the new address, and failed
    /// candidates are tried again.
    pub fn network_changed(&mut self) {
        let now = Instant::now();
        if self.started {
            self.finder.network_changed();
        }
        self.core.network_changed(now);
        self.drive(now);
    }

    /// Waits until [`receive`](Self::receive) has something to do; for ever without subscriptions.
    /// Cancel safe.
    pub async fn ready(&mut self) {
        // Calls other than this one may have queued events.
        if self.lookups_ended || std::mem::take(&mut self.events_queued) {
            return;
        }
        let timeouts = (self.core.poll_timeout(), self.finder.poll_timeout());
        let deadline = [timeouts.0, timeouts.1, self.reopen];
        let deadline = deadline.into_iter().flatten().min();
        let unsent = self.unsent.as_ref().map(|(to, _)| *to);
        // Lookups come first, so that an endless stream of packets does not starve them. Messages
        // and timers are handled with every batch of packets.
        tokio::select! {
            biased;
            () = self.finder.resolved(), if self.finder.is_busy() => self.lookups_ended = true,
            () = self.sockets.readable() => {}
            () = room(&self.sockets, unsent), if unsent.is_some() => {}
            () = self.alarm.wait(deadline) => {}
        }
    }

    /// Receives a batch, passes the packets of flows in their order of arrival to `each`, and
    /// handles timers and messages. Never waits. Returns the number of packets.
    ///
    /// # Errors
    /// A socket failed. The next call continues with a new one.
    pub fn receive(
        &mut self,
        batch: &mut RecvBatch,
        mut each: impl FnMut(Packet<'_>),
    ) -> io::Result<usize> {
        let now = Instant::now();
        let core = &mut self.core;
        #[cfg(any(test, feature = "fault-injection"))]
        let (faults, relay) = (self.faults, core.status().relay.map(|relay| relay.addr));
        let mut packets = 0;
        let received = self.sockets.receive(batch, |datagram| {
            let from = datagram.from;
            #[cfg(any(test, feature = "fault-injection"))]
            let from = faults.falsify(from, datagram.data, relay);
            let inner = datagram.data.get(DATA_HEADER..).unwrap_or_default();
            let ecn = decapsulated_ecn(inner, datagram.ecn);
            match core.handle(from, datagram.data, now) {
                Input::Data { .. } | Input::Assembled { .. } if ecn.is_none() => {
                    trace!(relay = %from, "dropped for congestion of the tunnel");
                }
                Input::Data {
                    subscription,
                    from,
                    payload,
                } => {
                    if let Some(data) = datagram.data.get_mut(payload) {
                        packets += 1;
                        each(Packet {
                            subscription,
                            from,
                            ecn: ecn.unwrap_or_default(),
                            data,
                        });
                    }
                }
                Input::Assembled {
                    subscription,
                    from,
                    mut payload,
                } => {
                    packets += 1;
                    each(Packet {
                        subscription,
                        from,
                        ecn: ecn.unwrap_or_default(),
                        data: &mut payload,
                    });
                }
                Input::Fragment => {}
                Input::Control => trace!(relay = %datagram.from, "AMT relay answered"),
                Input::Dropped(why) => {
                    trace!(from = %datagram.from, why = why.reason(), "dropped");
                }
            }
        });
        if received.is_err() {
            // The next socket has another address, which the relay has to learn.
            self.core.network_changed(now);
        }
        self.drive(now);
        self.events_queued = false;
        received.map(|()| packets)
    }

    /// [`ready`](Self::ready) and [`receive`](Self::receive) until there are packets or events.
    /// Cancel safe.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn recv(
        &mut self,
        batch: &mut RecvBatch,
        mut each: impl FnMut(Packet<'_>),
    ) -> io::Result<usize> {
        loop {
            self.ready().await;
            let packets = self.receive(batch, &mut each)?;
            if packets > 0 || !self.events.is_empty() {
                return Ok(packets);
            }
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns a snapshot of relay, candidates, names and counters.
    pub fn status(&self) -> Status {
        let core = self.core.status();
        Status {
            relay: core.relay,
            candidates: core.candidates,
            names: self.finder.status(),
            subscriptions: core.subscriptions,
            counters: core.counters,
            refused: self.refused,
        }
    }

    /// Returns the counters of [`status`](Self::status) alone, at no cost.
    pub fn counters(&self) -> &Counters {
        self.core.counters()
    }

    /// Leaves all groups and the relay. Waits at most a quarter of a second for the network, and as
    /// long for the disk.
    pub async fn stop(mut self) {
        let end = tokio::time::Instant::now() + STOP_WITHIN;
        self.core.stop();
        self.flush(Instant::now());
        while let Some((to, _)) = self.unsent {
            let room = self.sockets.writable(to);
            if tokio::time::timeout_at(end, room).await.is_err() {
                break;
            }
            self.flush(Instant::now());
        }
        self.store_state(Instant::now());
        if let Some(memory) = &self.memory {
            // A slow disk keeps the previous state.
            let _ = tokio::time::timeout(STOP_WITHIN, memory.written()).await;
        }
    }

    /// Resumes the tunnel that the previous run left, or tears it down if its local port is not
    /// free.
    fn resume(&mut self) {
        let Some(memory) = &self.memory else {
            return;
        };
        let Some(tunnel) = memory.tunnel() else {
            return;
        };
        let [v4, v6] = memory.ports();
        let before = if tunnel.relay.is_ipv4() { v4 } else { v6 };
        match self.sockets.open(tunnel.relay) {
            Ok(port) if Some(port) == before => self.core.resume(tunnel),
            Ok(_) => self.core.take_down(tunnel),
            // Without a socket, the relay cannot be reached.
            Err(error) => debug!(%error, relay = %tunnel.relay, "no socket towards AMT relay"),
        }
    }

    /// Stores the state for the next run.
    fn store_state(&mut self, now: Instant) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let state = (self.sockets.ports(), self.core.tunnel());
        if self.started && self.stored != state {
            self.stored = state;
            memory.keep(state.0, state.1, now);
        }
    }

    /// Handles timers, candidates, messages and events.
    fn drive(&mut self, now: Instant) {
        self.finder.handle_timeout(now);
        if self.reopen.is_some_and(|at| at <= now) {
            self.reopen = None;
            self.core.network_changed(now);
        }
        if std::mem::take(&mut self.lookups_ended) {
            self.update_candidates(now);
        }
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        self.flush(now);
        self.store_state(now);
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::NoRelay { candidates: 0, .. } if self.finder.is_busy() => {
                    self.lack_unreported = true;
                }
                event => self.report(event, now),
            }
        }
        if self.lack_unreported && !self.finder.is_busy() {
            self.lack_unreported = false;
            if self.finder.candidates().is_empty() {
                let none = Event::NoRelay {
                    candidates: 0,
                    retry: None,
                };
                self.report(none, now);
            }
        }
        // The state machine reports the lack of a relay only once. Names are looked up until there
        // is one.
        if self.core.is_looking() {
            self.finder.needs_more(now);
        }
    }

    fn report(&mut self, event: Event, now: Instant) {
        trace!("{event}");
        match event {
            Event::Connected { .. } | Event::Idle { .. } => self.finder.settled(),
            Event::NoRelay { .. } => self.finder.needs_more(now),
            Event::Lost { .. } => self.finder.resolve(true),
            _ => {}
        }
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.events_queued = true;
    }

    fn flush(&mut self, now: Instant) {
        let mut bytes = Vec::new();
        let mut broken = false;
        for _ in 0..MAX_SENT_AT_ONCE {
            let to = match self.unsent.take() {
                Some((to, waiting)) => {
                    bytes = waiting;
                    to
                }
                None => match self.core.poll_transmit(&mut bytes) {
                    Some(to) => to,
                    None => break,
                },
            };
            match self.sockets.send(to, &bytes) {
                SendOutcome::Sent => {}
                SendOutcome::NoRoute => {
                    self.refused += 1;
                    self.core.unreachable(to, now);
                }
                SendOutcome::Broken => {
                    self.refused += 1;
                    broken = true;
                }
                SendOutcome::Full => {
                    self.unsent = Some((to, bytes));
                    break;
                }
            }
        }
        if broken {
            // The next socket has another address, which the relay has to learn. After a pause: the
            // next socket may fail as well.
            self.reopen.get_or_insert(now + REOPEN_AFTER);
        }
    }
}

#[cfg(test)]
impl Gateway {
    /// Notes a name as looked up.
    pub(crate) fn know(&mut self, name: RelayName, found: Vec<SocketAddr>) {
        self.finder.know(name, found);
        self.update_candidates(Instant::now());
    }

    /// Makes sending to `to` fail.
    pub(crate) fn break_socket(&mut self, to: SocketAddr) {
        self.sockets.break_socket(to);
    }
}

impl Drop for Gateway {
    /// Leaves the relay, as far as possible without waiting.
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.core.stop();
            self.flush(Instant::now());
            self.store_state(Instant::now());
        }
    }
}

async fn room(sockets: &Sockets, to: Option<SocketAddr>) {
    match to {
        Some(to) => sockets.writable(to).await,
        None => pending().await,
    }
}
