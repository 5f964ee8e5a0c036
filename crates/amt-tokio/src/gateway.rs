//! The gateway with its sockets.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use amt::gateway::{
    Candidate, CandidateStatus, Counters, Event, Gateway as Core, Input, RelayStatus,
    SubscribeError, Subscription, SubscriptionId, TunnelProof,
};
use netio::RecvBatch;
use rand::RngExt;
use tracing::{debug, trace};

use crate::alarm::Alarm;
#[cfg(any(test, feature = "fault-injection"))]
use crate::config::Faults;
use crate::config::{Config, Hint};
use crate::finder::{Finder, Lookup, NameStatus};
use crate::memory::Memory;
use crate::sockets::{Sent, Sockets};

/// A stop waits so long for room in the kernel's buffers.
const STOP_WITHIN: Duration = Duration::from_millis(250);
/// A socket that failed is replaced after this time.
const REOPEN_AFTER: Duration = Duration::from_millis(100);
/// Events that wait to be taken; older ones go first.
const MAX_EVENTS: usize = 64;
/// Messages that one round sends; more of them at once are a fault.
const MAX_SENT_AT_ONCE: usize = 1024;

/// A packet of a flow.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Whose it is.
    pub subscription: SubscriptionId,
    /// Who sent it, inside the tunnel.
    pub from: SocketAddr,
    /// The payload of the UDP datagram; writable, because packet protection is removed in place.
    pub data: &'a mut [u8],
}

/// How things stand, for a status page.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The relay in use.
    pub relay: Option<RelayStatus>,
    /// The known addresses of relays, in the order of preference.
    pub candidates: Vec<CandidateStatus>,
    /// The names that are looked up.
    pub names: Vec<NameStatus>,
    /// Different subscriptions.
    pub subscriptions: usize,
    /// What came in, went out and was dropped.
    pub counters: Counters,
    /// Messages that could not be sent, for want of a way.
    pub refused: u64,
}

impl Status {
    /// What failed and why: a line for each name that was not found, and for each relay that
    /// cannot be used.
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
    sockets: Sockets,
    alarm: Alarm,
    /// A message for which there was no room yet.
    unsent: Option<(SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
    refused: u64,
    /// Whether relays are being looked for: from the first subscription on.
    begun: bool,
    /// Names were found; the state machine does not know yet.
    found: bool,
    /// There is no candidate, but lookups have not ended: it is told when they have.
    none_yet: bool,
    /// There are events that came neither of a wait nor of a receipt.
    news: bool,
    /// When a socket that failed while sending is replaced, and the relay told.
    reopen: Option<Instant>,
    /// For the next run, and what it holds.
    pub(crate) memory: Option<Memory>,
    kept: ([Option<u16>; 2], Option<TunnelProof>),
    #[cfg(any(test, feature = "fault-injection"))]
    faults: Faults,
}

impl Gateway {
    /// A gateway that does nothing before the first subscription.
    ///
    /// # Errors
    /// This is not called inside a tokio runtime.
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
            sockets: Sockets::new(preferred),
            alarm: Alarm::default(),
            unsent: None,
            events: VecDeque::new(),
            refused: 0,
            begun: false,
            found: false,
            none_yet: false,
            news: false,
            reopen: None,
            memory: config.memory,
            kept: Default::default(),
            #[cfg(any(test, feature = "fault-injection"))]
            faults: Faults::default(),
        })
    }

    /// Leaves protections out from now on, for tests that must notice.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn inject_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Subscribes, and asks for the flow at once. Equal subscriptions have one id, and are counted.
    ///
    /// # Errors
    /// No relay could serve it; see [`SubscribeError`].
    pub fn subscribe(
        &mut self,
        subscription: Subscription,
    ) -> Result<SubscriptionId, SubscribeError> {
        let now = Instant::now();
        if !self.begun {
            self.begun = true;
            self.recall();
            self.finder.look_up(false);
            self.core.set_candidates(self.finder.candidates(), now);
        }
        let id = self.core.subscribe(subscription, now)?;
        if let Some(source) = subscription.source {
            self.finder.wants(source);
        }
        self.drive(now);
        Ok(id)
    }

    /// Takes one subscription back. With the last one, the relay is left.
    pub fn unsubscribe(&mut self, id: SubscriptionId) {
        let now = Instant::now();
        let source = self.core.subscription(id).and_then(|known| known.source);
        self.found |= source.is_some_and(|source| self.finder.forgets(source));
        self.core.unsubscribe(id, now);
        self.drive(now);
    }

    /// The relays that the source announces; replaces those before. A relay that is in use stays
    /// so while it works.
    pub fn set_hints(&mut self, hints: &[Hint]) {
        let now = Instant::now();
        self.finder.set_hints(hints);
        if self.begun {
            self.finder.look_up(false);
            let candidates = self.finder.candidates();
            if !candidates.is_empty() {
                // Hints often come right after the subscription: that there was none is past.
                let is_past = |event: &Event| matches!(event, Event::NoRelay { candidates: 0, .. });
                self.events.retain(|event| !is_past(event));
            }
            self.core.set_candidates(candidates, now);
            self.drive(now);
        }
    }

    /// Packets are missing: the relay is asked at once whether it is there, and others as well if
    /// it does not answer twice, or has brought nothing for [`Timing::silence`](amt::gateway::Timing::silence) though it answers.
    /// May be called as often as one likes.
    pub fn suspect(&mut self) {
        let now = Instant::now();
        self.core.suspect(now);
        self.drive(now);
    }

    /// This machine's network has changed: the relay is told the new address, and everything that
    /// failed is tried again.
    pub fn network_changed(&mut self) {
        let now = Instant::now();
        if self.begun {
            self.finder.network_changed();
        }
        self.core.network_changed(now);
        self.drive(now);
    }

    /// Waits until [`receive`](Self::receive) has something to do. Cancel safe; without
    /// subscriptions it waits for ever.
    pub async fn ready(&mut self) {
        // Events may have come of a call that was no wait.
        if self.found || std::mem::take(&mut self.news) {
            return;
        }
        let timeouts = (self.core.poll_timeout(), self.finder.poll_timeout());
        let deadline = [timeouts.0, timeouts.1, self.reopen];
        let deadline = deadline.into_iter().flatten().min();
        let unsent = self.unsent.as_ref().map(|(to, _)| *to);
        // Lookups come first, and few: packets without end do not keep their answers waiting. What
        // is sent and what is due is seen to with every packet.
        tokio::select! {
            biased;
            () = self.finder.resolved(), if self.finder.is_busy() => self.found = true,
            () = self.sockets.readable() => {}
            () = room(&self.sockets, unsent), if unsent.is_some() => {}
            () = self.alarm.wait(deadline) => {}
        }
    }

    /// Reads what has come, hands out the packets of flows in the order of their arrival, and does
    /// and sends what is due. Never waits. Returns how many packets there were.
    ///
    /// # Errors
    /// A socket failed. The next call goes on with a new one.
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
            match core.handle(from, datagram.data, now) {
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
                        data: &mut payload,
                    });
                }
                Input::Fragment => {}
                Input::Control => trace!(relay = %datagram.from, "an AMT relay answered"),
                Input::Dropped(why) => {
                    trace!(from = %datagram.from, why = why.reason(), "dropped");
                }
            }
        });
        if received.is_err() {
            // The next socket has another address: the relay has to hear of it.
            self.core.network_changed(now);
        }
        self.drive(now);
        self.news = false;
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

    /// What happened since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How things stand.
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

    /// The counters of [`status`](Self::status) alone, at no cost.
    pub fn counters(&self) -> &Counters {
        self.core.counters()
    }

    /// Leaves all groups and the relay; waits a quarter of a second at most, and as long for the
    /// disk.
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
        self.keep(Instant::now());
        if let Some(memory) = &self.memory {
            // A disk that does not answer keeps what it has.
            let _ = tokio::time::timeout(STOP_WITHIN, memory.written()).await;
        }
    }

    /// Goes on with the tunnel that the run before has left, or takes it down where its local port
    /// is not free.
    fn recall(&mut self) {
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
            // Without a socket there is nothing that the relay could hear.
            Err(error) => debug!(%error, relay = %tunnel.relay, "no socket for an AMT relay"),
        }
    }

    /// Notes what the next run needs.
    fn keep(&mut self, now: Instant) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let standing = (self.sockets.ports(), self.core.tunnel());
        if self.begun && self.kept != standing {
            self.kept = standing;
            memory.keep(standing.0, standing.1, now);
        }
    }

    /// Timers, candidates, messages and events.
    fn drive(&mut self, now: Instant) {
        self.finder.handle_timeout(now);
        if self.reopen.is_some_and(|at| at <= now) {
            self.reopen = None;
            self.core.network_changed(now);
        }
        if std::mem::take(&mut self.found) {
            self.core.set_candidates(self.finder.candidates(), now);
        }
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        self.flush(now);
        self.keep(now);
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::NoRelay { candidates: 0, .. } if self.finder.is_busy() => {
                    self.none_yet = true;
                }
                event => self.tell(event, now),
            }
        }
        if self.none_yet && !self.finder.is_busy() {
            self.none_yet = false;
            if self.finder.candidates().is_empty() {
                let none = Event::NoRelay {
                    candidates: 0,
                    retry: None,
                };
                self.tell(none, now);
            }
        }
        // The state machine says only once that there is no relay. Names are looked up until there
        // is one.
        if self.core.is_looking() {
            self.finder.needs_more(now);
        }
    }

    fn tell(&mut self, event: Event, now: Instant) {
        trace!("{event}");
        match event {
            Event::Connected { .. } | Event::Idle { .. } => self.finder.settled(),
            Event::NoRelay { .. } => self.finder.needs_more(now),
            Event::Lost { .. } => self.finder.look_up(true),
            Event::AddressChanged { .. } | Event::Unanswered { .. } => {}
        }
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.news = true;
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
                Sent::Gone => {}
                Sent::NoWay => {
                    self.refused += 1;
                    self.core.unreachable(to, now);
                }
                Sent::Broken => {
                    self.refused += 1;
                    broken = true;
                }
                Sent::Full => {
                    self.unsent = Some((to, bytes));
                    break;
                }
            }
        }
        if broken {
            // The next socket has another address: the relay has to hear of it. Not at once, for
            // that one may be no better.
            self.reopen.get_or_insert(now + REOPEN_AFTER);
        }
    }
}

#[cfg(test)]
impl Gateway {
    /// The socket towards `to` cannot send any more.
    pub(crate) fn break_socket(&mut self, to: SocketAddr) {
        self.sockets.break_socket(to);
    }
}

impl Drop for Gateway {
    /// Leaves as far as that is possible without waiting.
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.core.stop();
            self.flush(Instant::now());
            self.keep(Instant::now());
        }
    }
}

async fn room(sockets: &Sockets, to: Option<SocketAddr>) {
    match to {
        Some(to) => sockets.writable(to).await,
        None => pending().await,
    }
}
