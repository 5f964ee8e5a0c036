//! The receiver's loop: one task owns the connection, the groups and the state machine.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use flexicast::control::{Credential, Refusal};
use flexicast::receiver::{
    ChannelStats, Receiver as Core, ReceiverConfig as CoreConfig, ReceiverEvent,
};
use flexicast::source::close;
use flexicast::{Cursor, Rung};
use netio::RecvBatch;
use rand::RngExt;
use tokio::sync::{mpsc, watch};
use tracing::debug;

use super::connection::{Connection, End};
use super::groups::Groups;
use super::{Event, ReceiverConfig};

/// The first pause after a failed attempt; it doubles up to the maximum.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A connection that was served for so long was a good one: the next pause is short again.
const SETTLED: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// With so many events that the application does not take, no further connection is made.
const MAX_HELD: usize = 64;
const STATS_EVERY: Duration = Duration::from_secs(1);

/// The last cursor of each channel that the application confirmed.
pub(super) type Cursors = BTreeMap<String, Cursor>;

enum Woken {
    Unicast(std::io::Result<()>),
    Flow,
    Cursors(bool),
    Room(bool),
    Timer,
}

pub(super) struct Engine {
    config: ReceiverConfig,
    core: Core,
    groups: Groups,
    connection: Option<Connection>,
    events: mpsc::Sender<Event>,
    /// Confirmed cursors; the end of it is the application's goodbye.
    cursors: watch::Receiver<Cursors>,
    told: Cursors,
    /// Events that did not fit into the channel yet: few, for updates are taken from the state machine only when there is room.
    held: VecDeque<Event>,
    retry_at: Option<Instant>,
    pause: Duration,
    /// A connection that is given up and still has to be told.
    leaving: Option<(Connection, u64, String)>,
    /// When the source began to serve this connection.
    welcomed_at: Option<Instant>,
    /// REFUSED came, so the close that follows says nothing new.
    refused: bool,
    stopped: bool,
    stats_at: Instant,
    last_stats: Vec<Option<ChannelStats>>,
    attempt: usize,
}

impl Engine {
    pub(super) fn new(
        config: ReceiverConfig,
        events: mpsc::Sender<Event>,
        cursors: watch::Receiver<Cursors>,
    ) -> Self {
        let core = Core::new(CoreConfig {
            receiver: config.receiver_id,
            name: config.name.clone(),
            software: config.software.clone(),
            credential: if config.token.is_empty() {
                Credential::None
            } else {
                Credential::Token(config.token.clone())
            },
            channels: config.channels.clone(),
            multicast: config.multicast,
            seed: rand::rng().random(),
            dedupe_off: config.sabotage_dedupe_off,
        });
        let now = Instant::now();
        Engine {
            core,
            groups: Groups::new(config.interface),
            connection: None,
            events,
            cursors,
            told: Cursors::new(),
            held: VecDeque::new(),
            retry_at: Some(now),
            pause: RETRY_FIRST,
            leaving: None,
            welcomed_at: None,
            refused: false,
            stopped: false,
            stats_at: now + STATS_EVERY,
            last_stats: vec![None; config.channels.len()],
            attempt: 0,
            config,
        }
    }

    pub(super) async fn run(mut self) {
        let mut batch = RecvBatch::new();
        loop {
            let deadline = self.deadline();
            let full = !self.held.is_empty();
            let woken = tokio::select! {
                ready = readable(self.connection.as_ref()) => Woken::Unicast(ready),
                () = self.groups.readable() => Woken::Flow,
                changed = self.cursors.changed() => Woken::Cursors(changed.is_ok()),
                room = self.events.reserve(), if full => Woken::Room(room.is_ok()),
                () = tokio::time::sleep_until(deadline.into()) => Woken::Timer,
            };
            match woken {
                Woken::Unicast(Ok(())) => self.receive(&mut batch),
                Woken::Unicast(Err(error)) => {
                    self.disconnected(End::new(format!("the UDP socket failed: {error}")))
                }
                Woken::Flow => self.receive_flow(&mut batch),
                Woken::Cursors(true) => self.confirm(Instant::now()),
                // The application is done, or does not read events any more.
                Woken::Cursors(false) | Woken::Room(false) => {
                    return self.say_goodbye().await;
                }
                Woken::Room(true) | Woken::Timer => {}
            }
            self.drive().await;
        }
    }

    fn confirm(&mut self, now: Instant) {
        let cursors = self.cursors.borrow_and_update().clone();
        for (channel, cursor) in cursors
            .iter()
            .filter(|(name, cursor)| self.told.get(*name) != Some(cursor))
        {
            self.core.confirm(channel, *cursor, now);
        }
        self.told = cursors;
    }

    fn deadline(&self) -> Instant {
        let connection = self
            .connection
            .as_ref()
            .and_then(|c| c.deadline(&self.core));
        let core = self
            .connection
            .as_ref()
            .and_then(|_| self.core.poll_timeout());
        [connection, core, self.retry_at, Some(self.stats_at)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.stats_at)
    }

    fn receive(&mut self, batch: &mut RecvBatch) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let addr = connection.peer;
        match connection.receive(batch, &self.config, &mut self.core, Instant::now()) {
            Ok(true) => {
                self.held.push_back(Event::Connected { addr });
            }
            Ok(false) => {}
            Err(end) => self.disconnected(end),
        }
    }

    fn receive_flow(&mut self, batch: &mut RecvBatch) {
        let (now, core) = (Instant::now(), &mut self.core);
        let mut failed = Vec::new();
        for (flow, socket) in self.groups.sockets() {
            let read = socket.try_recv(batch, |datagram| {
                let input = core.on_flow_datagram(Rung::Multicast, datagram.data, now);
                debug!(from = %datagram.from, ?input, "flow datagram");
            });
            match read {
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    failed.push((flow, error))
                }
                _ => {}
            }
        }
        for (flow, error) in failed {
            self.groups.failed(flow, &error);
        }
    }

    async fn drive(&mut self) {
        let now = Instant::now();
        if let Some((mut connection, code, reason)) = self.leaving.take() {
            connection.close(code, &reason).await;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            if self.held.len() < MAX_HELD {
                self.connect().await;
            } else {
                // Each connection brings a few events: an application that reads none gets no further connections.
                self.retry_at = Some(now + STATS_EVERY);
            }
        }
        if let Some(connection) = &mut self.connection {
            connection.on_timeout();
            self.core.handle_timeout(now);
            // Streams that were left unread while the application was slow may go on now.
            let read = connection
                .read(&self.config, &mut self.core, now)
                .map(|_| ());
            let done = match read {
                Ok(()) => connection.flush(&mut self.core, now).await,
                Err(end) => Err(end),
            };
            if let Err(end) = done {
                self.disconnected(end);
            }
        }
        self.core_events();
        self.hand_out();
        if now >= self.stats_at {
            self.stats_at = now + STATS_EVERY;
            self.stats();
        }
    }

    async fn connect(&mut self) {
        let found = tokio::net::lookup_host(&self.config.server)
            .await
            .map(|addresses| addresses.collect::<Vec<_>>());
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                return self.disconnected(End::new(format!(
                    "cannot find {}: {error}",
                    self.config.server
                )));
            }
        };
        // Another address at each attempt, so that one that does not work is not in the way of one that does.
        let Some(peer) = found.get(self.attempt % found.len().max(1)).copied() else {
            return self.disconnected(End::new(format!("{} has no address", self.config.server)));
        };
        self.attempt += 1;
        self.refused = false;
        match Connection::open(&self.config, peer, Instant::now()) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => self.disconnected(End::new(error.to_string())),
        }
    }

    fn disconnected(&mut self, end: End) {
        self.leaving = self
            .connection
            .take()
            .map(|connection| (connection, end.say, end.reason.clone()));
        if self
            .welcomed_at
            .take()
            .is_some_and(|at| at.elapsed() >= SETTLED)
        {
            self.pause = RETRY_FIRST;
        }
        self.core_events();
        self.core.disconnected();
        self.core_events();
        self.groups.clear();
        if self.stopped {
            return;
        }
        let mut reason = end.reason;
        if end.code == Some(close::REFUSED) && self.refused {
            // REFUSED said why, and that another attempt may help: not at once.
            self.pause = self.pause.max(RETRY_FIRST * 8);
        } else if end.code == Some(close::SUPERSEDED) {
            // Two receivers with one id would throw each other out for ever.
            self.pause = RETRY_MAX;
            reason.push_str(". Another receiver uses this receiver's id: if the data folder is a copy, remove the receiver's id in one of them");
        }
        let retry_in = self.pause.mul_f64(rand::rng().random_range(0.5..1.0));
        self.pause = (self.pause * 2).min(RETRY_MAX);
        self.retry_at = Some(Instant::now() + retry_in);
        self.held
            .push_back(Event::Disconnected { reason, retry_in });
    }

    fn core_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                ReceiverEvent::Join { flow, endpoints } => self.groups.join(flow, endpoints),
                ReceiverEvent::Rejoin { flow } => self.groups.rejoin(flow),
                ReceiverEvent::Leave { flow } => self.groups.leave(flow),
                ReceiverEvent::Moved {
                    channel,
                    rung,
                    cause,
                } => {
                    self.held.push_back(Event::Rung {
                        channel,
                        rung,
                        cause,
                        at: SystemTime::now(),
                    });
                }
                ReceiverEvent::Welcome {
                    channel,
                    incarnation,
                    head,
                    first,
                    resync,
                } => {
                    self.welcomed_at = Some(Instant::now());
                    self.held.push_back(Event::Welcome {
                        channel,
                        incarnation,
                        head,
                        first,
                        resync,
                    });
                }
                ReceiverEvent::Gap { channel, from, to } => {
                    self.held.push_back(Event::Gap { channel, from, to })
                }
                ReceiverEvent::Refused { code, reason } => {
                    self.refused = true;
                    let fatal = Refusal::from_number(code) != Some(Refusal::Unavailable);
                    if fatal {
                        // The same words would be refused again.
                        self.stopped = true;
                        self.retry_at = None;
                    }
                    self.held.push_back(Event::Refused {
                        code,
                        reason,
                        fatal,
                    });
                }
            }
        }
    }

    /// Hands out events and updates while the application takes them. What it does not take stays in the state machine, which then takes no more either.
    fn hand_out(&mut self) {
        while let Ok(permit) = self.events.try_reserve() {
            if let Some(event) = self.held.pop_front() {
                permit.send(event);
                continue;
            }
            let Some((channel, incarnation, update)) = self.core.poll_update() else {
                return;
            };
            permit.send(Event::Update {
                channel: channel.to_owned(),
                incarnation,
                seq: update.seq,
                encoded: update.encoded,
                via: update.via,
            });
        }
        if self.held.is_empty() {
            // An update may wait in the state machine: taking one out makes the loop wait for room.
            if let Some((channel, incarnation, update)) = self.core.poll_update() {
                self.held.push_back(Event::Update {
                    channel: channel.to_owned(),
                    incarnation,
                    seq: update.seq,
                    encoded: update.encoded,
                    via: update.via,
                });
            }
        }
    }

    fn stats(&mut self) {
        for (i, (channel, _)) in self.config.channels.iter().enumerate() {
            let stats = self.core.stats(channel);
            if stats == self.last_stats[i] {
                continue;
            }
            let Some(now) = stats else { continue };
            let event = Event::Stats {
                channel: channel.clone(),
                head: now.head,
                flow_packets: now.flow_packets,
                flow_invalid: now.flow_invalid,
                duplicates: now.duplicates,
                mismatches: now.mismatches,
            };
            // Counters that find no room are told later.
            if self.events.try_send(event).is_ok() {
                self.last_stats[i] = stats;
            }
        }
    }

    async fn say_goodbye(mut self) {
        let now = Instant::now();
        // Cursors that were confirmed just before are still told.
        self.confirm(now);
        self.core.handle_timeout(now + Duration::from_secs(2));
        if let Some(mut connection) = self.connection.take() {
            let _ = connection.flush(&mut self.core, now).await;
            let _ = connection
                .link
                .conn
                .close(true, close::DONE, b"the receiver shuts down");
            let _ = connection.flush(&mut self.core, now).await;
        }
    }
}

async fn readable(connection: Option<&Connection>) -> std::io::Result<()> {
    match connection {
        Some(connection) => connection.socket.readable().await,
        None => std::future::pending().await,
    }
}
