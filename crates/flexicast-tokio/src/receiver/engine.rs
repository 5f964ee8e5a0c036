//! The receiver's loop: one task owns the connection, the groups and the state machine.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flexicast::control::{Credential, Refusal};
use flexicast::receiver::{
    ChannelStats, FlowInput, Receiver as Core, ReceiverConfig as CoreConfig, Rungs,
};
use flexicast::source::close;
use flexicast::{Cursor, Rung};
use netio::RecvBatch;
use rand::RngExt;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info};

use super::connection::{CloseReason, Connection};
use super::delivery::DeliveryState;
use super::groups::Groups;
use super::race::{Race, RaceState};
use super::route::Route;
use super::stall::Stall;
use super::tunnels::Tunnels;
use super::{Event, ReceiverConfig};
use crate::qlog::{LocalEnd as Vantage, Qlog};
use crate::timers::away;

/// The first pause after a failed attempt; it doubles up to the maximum.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A source that ends, or gives a channel away, has its receivers back within this time.
const COME_BACK: Duration = Duration::from_millis(1500);
/// A connection that was served for so long was a good one: the next pause is short again.
const SETTLED: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// With so many events that the application does not take, no further connection is made.
pub(super) const MAX_HELD: usize = 64;
/// Interval of counter events and of checks of the route to the source.
const TICK: Duration = Duration::from_secs(1);

/// The last cursor of each channel that the application confirmed.
pub(super) type Cursors = BTreeMap<String, Cursor>;

enum WakeReason {
    Unicast(std::io::Result<()>),
    Cursors(bool),
    Room(bool),
    /// Something else has come, or something is due.
    Ready,
}

pub(super) struct Engine {
    pub(super) config: ReceiverConfig,
    pub(super) core: Core,
    pub(super) groups: Groups,
    pub(super) tunnels: Tunnels,
    connection: Option<Connection>,
    /// Attempts to connect.
    race: Option<Race>,
    route: Route,
    pub(super) stall: Stall,
    pub(super) events: mpsc::Sender<Event>,
    /// Confirmed cursors; the end of it is the application's goodbye.
    cursors: watch::Receiver<Cursors>,
    told: Cursors,
    /// Events that did not fit into the channel yet: few, for updates are taken from the state
    /// machine only when there is room.
    pub(super) held: VecDeque<Event>,
    pub(super) handed: DeliveryState,
    pub(super) retry_at: Option<Instant>,
    pause: Duration,
    /// Abandoned connections that still have to be closed.
    leaving: Vec<(Connection, u64, String)>,
    /// When the source began to serve this connection.
    pub(super) welcomed_at: Option<Instant>,
    /// REFUSED came with this code, so the close that follows says nothing new.
    pub(super) refused: Option<Refusal>,
    /// Last resolved addresses of the source's name.
    addresses: Vec<SocketAddr>,
    /// Those of them that refused to serve, or sent this receiver away, since it was served last.
    pub(super) shunned: Vec<SocketAddr>,
    pub(super) stopped: bool,
    /// Why this connection has to be replaced by another one.
    pub(super) reconnect: Option<String>,
    tick_at: Instant,
    pub(super) last_stats: Vec<Option<ChannelStats>>,
    qlog: Option<Qlog>,
}

impl Engine {
    pub(super) fn new(
        config: ReceiverConfig,
        events: mpsc::Sender<Event>,
        cursors: watch::Receiver<Cursors>,
    ) -> Self {
        let mut core_config = CoreConfig::new(
            config.receiver_id,
            Credential::Enrol {
                token: config.token.clone(),
                secret: config.credential,
                instance: rand::rng().random(),
            },
            config.channels.clone(),
        );
        core_config.name = config.name.clone();
        core_config.software = config.software.clone();
        core_config.rungs = Rungs {
            multicast_v4: config.multicast,
            multicast_v6: config.multicast,
            amt_v4: config.amt.is_some(),
            amt_v6: config.amt.is_some(),
            replicated: config.replicated,
        };
        core_config.seed = rand::rng().random();
        core_config.check = config.check;
        let mut core = Core::new(core_config);
        let who = format!("receiver-{}", config.receiver_id);
        let qlog = config
            .qlog
            .clone()
            .map(|path| Qlog::new(path, Vantage::Receiver, who));
        core.set_tracing(qlog.is_some());
        let now = Instant::now();
        Engine {
            core,
            groups: Groups::new(config.interface),
            tunnels: Tunnels::new(config.amt.clone()),
            connection: None,
            race: None,
            route: Route::default(),
            stall: Stall::new(now),
            events,
            cursors,
            told: Cursors::new(),
            held: VecDeque::new(),
            handed: DeliveryState::default(),
            retry_at: Some(now),
            pause: RETRY_FIRST,
            leaving: Vec::new(),
            welcomed_at: None,
            refused: None,
            addresses: Vec::new(),
            shunned: Vec::new(),
            stopped: false,
            reconnect: None,
            tick_at: now + TICK,
            last_stats: vec![None; config.channels.len()],
            qlog,
            config,
        }
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn inject_faults(&mut self, faults: super::Faults) {
        self.core.set_dedupe_off(faults.dedupe_off);
        self.tunnels.inject_faults(faults);
    }

    pub(super) async fn run(mut self) {
        let mut batch = RecvBatch::new();
        loop {
            let deadline = self.deadline();
            let (full, room) = (!self.held.is_empty(), self.room_later());
            let woken = tokio::select! {
                ready = readable(self.connection.as_ref()) => WakeReason::Unicast(ready),
                () = woken(self.race.as_mut()) => WakeReason::Ready,
                () = self.groups.readable() => WakeReason::Ready,
                () = self.tunnels.ready() => WakeReason::Ready,
                changed = self.cursors.changed() => WakeReason::Cursors(changed.is_ok()),
                room = self.events.reserve_many(room), if full => WakeReason::Room(room.is_ok()),
                () = tokio::time::sleep_until(deadline.into()) => WakeReason::Ready,
            };
            match woken {
                WakeReason::Unicast(Err(error)) => {
                    self.disconnected(CloseReason::new(format!("the UDP socket failed: {error}")))
                }
                WakeReason::Cursors(true) => self.confirm(Instant::now()),
                // The application is done, or does not read events any more.
                WakeReason::Cursors(false) | WakeReason::Room(false) => {
                    return self.say_goodbye().await;
                }
                WakeReason::Unicast(Ok(())) | WakeReason::Room(true) | WakeReason::Ready => {}
            }
            // Which branch was taken is chance. What is known to have come is read before the
            // source is blamed for being silent; and the flow before the unicast path, so that a
            // repair is mostly not taken before what it repairs. Not always: the runtime may not
            // have noticed yet that the flow's socket can be read.
            self.receive_flow(&mut batch);
            let told = self.tunnels.receive(&mut batch, &mut self.core);
            self.tell_relays(told);
            self.receive(&mut batch);
            // The source is judged by this time: should the machine stand still from here on, the
            // next round finds that it did.
            let now = Instant::now();
            if away(deadline, now).is_some() {
                self.core.grant_grace(now);
                if let Some(connection) = &mut self.connection {
                    connection.grant_grace(&self.core, now);
                }
            }
            self.drive(&mut batch, now).await;
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
        let race = self.race.as_ref().and_then(Race::deadline);
        [connection, core, race, self.retry_at]
            .into_iter()
            .flatten()
            .fold(self.tick_at, Instant::min)
    }

    fn receive(&mut self, batch: &mut RecvBatch) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let now = Instant::now();
        match connection.receive(batch, &mut self.core, now) {
            Ok(true) => self.stall.reset(now),
            Ok(false) => {}
            Err(end) => self.disconnected(end),
        }
    }

    fn receive_flow(&mut self, batch: &mut RecvBatch) {
        let (now, core) = (Instant::now(), &mut self.core);
        let (mut failed, mut works) = (Vec::new(), Vec::new());
        for (flow, place, socket) in self.groups.sockets() {
            let mut taken = false;
            let read = socket.try_recv(batch, |datagram| {
                let input = core.on_flow_datagram(Rung::Multicast, datagram.data, now);
                taken |= input == FlowInput::Accepted;
                debug!(from = %datagram.from, ?input, "flow datagram");
            });
            match read {
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    failed.push((flow, place, error))
                }
                _ if taken => works.push((flow, place)),
                _ => {}
            }
        }
        // At most one of each in a round: the places of the others have changed by then.
        if let Some((flow, place, error)) = failed.first() {
            self.groups.failed(*flow, *place, error);
            return;
        }
        works.dedup_by_key(|(flow, _)| *flow);
        for (flow, place) in works {
            self.groups.works(flow, place);
        }
    }

    async fn drive(&mut self, batch: &mut RecvBatch, now: Instant) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            if self.held.len() < MAX_HELD {
                self.refused = None;
                let shunned = self.shunned.clone();
                self.race = Some(Race::begin(&self.config.server, shunned, now));
            } else {
                // Each connection brings a few events: an application that reads none gets no
                // further connections.
                self.retry_at = Some(now + TICK);
            }
        }
        self.run_race(batch, now).await;
        if let Some(connection) = &mut self.connection {
            connection.on_timeout();
            self.core.handle_timeout(now);
            // Streams that were left unread while the application was slow may go on now.
            let done = match connection.read(&mut self.core, now) {
                Ok(arrived) => {
                    if arrived {
                        self.stall.reset(now);
                    }
                    connection.flush(&mut self.core, now).await
                }
                Err(end) => Err(end),
            };
            if let Err(end) = done {
                self.disconnected(end);
            }
        }
        for (mut connection, code, reason) in std::mem::take(&mut self.leaving) {
            connection.close(code, &reason).await;
        }
        self.core_events();
        if let Some(reason) = self.reconnect.take()
            && self.connection.is_some()
        {
            self.disconnected(CloseReason::new(reason));
        }
        self.hand_out();
        if let Some(qlog) = &mut self.qlog {
            qlog.packets(self.core.take_trace());
        }
        if now >= self.tick_at {
            self.tick_at = now + TICK;
            self.stats();
            self.look_for_a_stall(now);
            if self.route.has_changed() {
                self.network_changed(now);
            }
        }
    }

    async fn run_race(&mut self, batch: &mut RecvBatch, now: Instant) {
        let Some(race) = &mut self.race else { return };
        let standing = race
            .drive(batch, &self.config, self.qlog.as_ref(), now)
            .await;
        for (connection, end) in race.take_over() {
            self.leaving.push((connection, end.say, end.reason));
        }
        if !matches!(standing, RaceState::Going) {
            self.addresses = race.addresses().to_vec();
        }
        match standing {
            RaceState::Going => {}
            RaceState::Won(winner, losers) => {
                self.race = None;
                let reason = "another address of the source was faster";
                let losers = losers.into_iter();
                self.leaving
                    .extend(losers.map(|loser| (loser, close::DONE, reason.to_owned())));
                let addr = winner.peer;
                self.route.watch(addr.ip());
                self.held.push_back(Event::Connected { addr });
                self.connection = Some(*winner);
                self.core.connected();
            }
            RaceState::Lost(end) => {
                self.race = None;
                self.disconnected(end);
            }
        }
    }

    /// A connection that lives and brings nothing, although there is more, is replaced.
    fn look_for_a_stall(&mut self, now: Instant) {
        if self.connection.is_none() || !self.held.is_empty() {
            // An application that takes no updates is not waiting for them.
            self.stall.grant_grace(now);
            return;
        }
        let stuck = self.config.channels.iter().find(|(channel, _)| {
            let head = self.core.stats(channel).map_or(0, |stats| stats.head);
            self.stall.is_stuck(channel, head, now)
        });
        if let Some((channel, _)) = stuck {
            let reason = format!("the source has updates of {channel} that do not arrive");
            self.stall.grant_grace(now);
            self.disconnected(CloseReason::new(reason));
        }
    }

    /// Packets leave from another address than before.
    fn network_changed(&mut self, now: Instant) {
        info!("this machine's network has changed");
        self.pause = RETRY_FIRST;
        self.tunnels.network_changed();
        if let Some(connection) = &mut self.connection {
            self.core.network_changed(now);
            connection.network_changed(now);
        } else if let Some(at) = &mut self.retry_at {
            // An earlier failure may not repeat.
            *at = now;
        }
    }

    fn disconnected(&mut self, end: CloseReason) {
        if let Some(connection) = self.connection.take() {
            self.leaving.push((connection, end.say, end.reason.clone()));
        }
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
        let mut retry_in = None;
        if end.code == Some(close::REFUSED) && self.refused == Some(Refusal::IdInUse) {
            // The holder of the id has shown to be alive.
            retry_in = Some(RETRY_MAX.mul_f64(rand::rng().random_range(1.0..1.5)));
        } else if end.code == Some(close::REFUSED) && self.refused.is_some() {
            // REFUSED said why, and that another attempt may help: not at once, but for the
            // source's other addresses.
            self.pause = self.pause.max(RETRY_FIRST * 8);
            retry_in = self.shun(end.peer);
        } else if matches!(end.code, Some(close::GOING_AWAY | close::CHANNEL_GONE)) {
            // The source dismisses all its receivers at once: they do not return all at once.
            let after = rand::rng().random_range(0.2..1.0);
            self.shun(end.peer);
            retry_in = Some(COME_BACK.mul_f64(after));
        } else if end.code == Some(close::RECONNECT) {
            // Somebody wants it to come back.
            self.pause = RETRY_FIRST;
        } else if end.code == Some(close::EJECTED) {
            // Somebody decided so: this receiver comes back no sooner than it must.
            self.pause = RETRY_MAX;
        } else if end.code == Some(close::SUPERSEDED) {
            // Two receivers with one id would throw each other out for ever.
            self.pause = RETRY_MAX;
            reason.push_str(
                ". Another receiver uses this receiver's id: if the data folder is a \
                copy, remove the receiver's id in one of them",
            );
        }
        let retry_in = retry_in.unwrap_or_else(|| {
            let pause = self.pause;
            self.pause = (pause * 2).min(RETRY_MAX);
            pause.mul_f64(rand::rng().random_range(0.5..1.0))
        });
        self.retry_at = Some(Instant::now() + retry_in);
        self.held
            .push_back(Event::Disconnected { reason, retry_in });
    }

    /// This address of the source's serves nothing now: the others go first in the next attempt,
    /// which comes soon if there are any that have not done the same.
    fn shun(&mut self, peer: Option<SocketAddr>) -> Option<Duration> {
        // One that was tried last, and came first all the same: the others do not answer.
        let again = peer.is_none_or(|peer| self.shunned.contains(&peer));
        self.shunned.extend(peer);
        let untried = self.addresses.iter().any(|a| !self.shunned.contains(a));
        if untried && !again {
            return Some(RETRY_FIRST.mul_f64(rand::rng().random_range(0.2..1.0)));
        }
        // All of them: the next round begins.
        self.shunned.clear();
        None
    }

    async fn say_goodbye(mut self) {
        let now = Instant::now();
        // Cursors confirmed just before are still sent.
        self.confirm(now);
        self.core.handle_timeout(now + Duration::from_secs(2));
        let reason = "the receiver shuts down";
        self.tunnels.stop().await;
        if let Some(mut connection) = self.connection.take() {
            let _ = connection.flush(&mut self.core, now).await;
            connection.close(close::DONE, reason).await;
        }
        if let Some(mut race) = self.race.take() {
            for mut connection in race.stop() {
                connection.close(close::DONE, reason).await;
            }
        }
        for (mut connection, code, reason) in std::mem::take(&mut self.leaving) {
            connection.close(code, &reason).await;
        }
        if let Some(mut qlog) = self.qlog.take() {
            qlog.packets(self.core.take_trace());
            qlog.finish().await;
        }
    }
}

async fn readable(connection: Option<&Connection>) -> std::io::Result<()> {
    match connection {
        Some(connection) => connection.socket.readable().await,
        None => std::future::pending().await,
    }
}

async fn woken(race: Option<&mut Race>) {
    match race {
        Some(race) => race.woken().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::receiver::Verify;

    fn engine() -> Engine {
        let config = ReceiverConfig {
            server: "source.example:4433".into(),
            verify: Verify::Insecure,
            token: Vec::new(),
            credential: [1; 32],
            receiver_id: uuid::Uuid::nil(),
            name: String::new(),
            software: String::new(),
            channels: Vec::new(),
            interface: None,
            multicast: false,
            replicated: false,
            amt: None,
            qlog: None,
            check: None,
        };
        assert!(!format!("{config:?}").contains("1, 1, 1"), "no secret");
        let (events, _) = mpsc::channel(1);
        let (_, confirmed) = watch::channel(Cursors::new());
        Engine::new(config, events, confirmed)
    }

    /// A standby source that refuses is left for the other one at once; where both refuse, or the
    /// other does not answer, the pauses grow as ever.
    #[tokio::test]
    async fn a_source_that_refuses_is_left_for_another_one_at_once() {
        let mut engine = engine();
        let here: SocketAddr = "192.0.2.1:4433".parse().unwrap();
        let there: SocketAddr = "[2001:db8::1]:4433".parse().unwrap();
        engine.addresses = vec![here];
        for _ in 0..3 {
            assert_eq!(engine.shun(Some(here)), None, "there is no other");
        }
        engine.shunned.clear();
        engine.addresses = vec![here, there];
        assert!(engine.shun(Some(here)).unwrap() <= RETRY_FIRST);
        assert_eq!(engine.shunned, [here]);
        assert_eq!(engine.shun(Some(there)), None, "both refuse");
        assert!(
            engine.shun(Some(here)).unwrap() <= RETRY_FIRST,
            "a new round"
        );
        engine.shunned = vec![here];
        assert_eq!(engine.shun(Some(here)), None, "the other does not answer");
        assert_eq!(engine.shun(None), None);
    }
}
