//! The receiver's loop: one task owns the connection, the groups and the state machine.

mod events;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flexicast::control::Credential;
use flexicast::receiver::{FlowInput, Receiver as Core, ReceiverConfig as CoreConfig, Rungs};
use flexicast::source::close;
use flexicast::{Cursor, Rung};
use rand::RngExt;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info};

use super::connection::{CloseReason, Connection};
use super::delivery::Delivery;
use super::groups::Groups;
use super::race::{Race, RaceState};
use super::reconnection::Reconnection;
use super::route::Route;
use super::shared_groups::SharedGroups;
use super::stall::Stall;
use super::suspension::Suspensions;
use super::tunnels::Tunnels;
use super::{Event, ReceiverConfig};
use crate::qlog::{LocalEnd as Vantage, Qlog};
use crate::timers::away;

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
    config: ReceiverConfig,
    core: Core,
    groups: Groups,
    tunnels: Tunnels,
    connection: Option<Connection>,
    /// Attempts to connect.
    race: Option<Race>,
    route: Route,
    stall: Stall,
    delivery: Delivery,
    /// Confirmed cursors; the end of it is the application's goodbye.
    cursors: watch::Receiver<Cursors>,
    /// Cursors that the state machine has.
    confirmed: Cursors,
    reconnection: Reconnection,
    suspensions: Suspensions,
    /// Abandoned connections that still have to be closed.
    leaving: Vec<(Connection, u64, String)>,
    /// Why this connection has to be replaced by another one.
    reconnect: Option<String>,
    tick_at: Instant,
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
        core_config.verify_updates = config.verify_updates;
        core_config.pinned_keys = config.pinned_keys.clone();
        core_config.feedback = true;
        core_config.redundancy = config.redundancy;
        let mut core = Core::new(core_config);
        let name = format!("receiver-{}", config.receiver_id);
        let qlog = config
            .qlog
            .clone()
            .map(|path| Qlog::new(path, Vantage::Receiver, name));
        core.set_tracing(qlog.is_some());
        let now = Instant::now();
        Engine {
            core,
            groups: Groups::new(config.interface, None),
            tunnels: Tunnels::new(config.amt.clone()),
            connection: None,
            race: None,
            route: Route::default(),
            stall: Stall::new(now),
            delivery: Delivery::new(events, config.channels.len()),
            cursors,
            confirmed: Cursors::new(),
            reconnection: Reconnection::new(config.known.clone(), now),
            suspensions: Suspensions::default(),
            leaving: Vec::new(),
            reconnect: None,
            tick_at: now + TICK,
            qlog,
            config,
        }
    }

    /// Takes multicast by groups that other receivers of this process take, too.
    pub(super) fn share_groups(&mut self, shared: SharedGroups) {
        self.groups = Groups::new(self.config.interface, Some(shared));
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn inject_faults(&mut self, faults: super::Faults) {
        self.core.set_dedupe_off(faults.dedupe_off);
        self.core.set_signatures_off(faults.signatures_off);
        self.core.set_hash_check_off(faults.hash_check_off);
        self.core.set_packet_check_off(faults.packet_check_off);
        self.core.set_rebuilt_proves(faults.rebuilt_proves);
        self.core.set_message_check_off(faults.message_check_off);
        self.core.set_legs_unmerged(faults.legs_unmerged);
        self.core.set_expired_delivered(faults.expired_delivered);
        self.tunnels.inject_faults(faults);
    }

    pub(super) async fn run(mut self) {
        loop {
            let deadline = self.deadline();
            let (blocked, room) = (self.delivery.is_blocked(), self.delivery.room_later());
            let woken = tokio::select! {
                ready = readable(self.connection.as_ref()) => WakeReason::Unicast(ready),
                () = woken(self.race.as_mut()) => WakeReason::Ready,
                () = self.groups.readable() => WakeReason::Ready,
                () = self.tunnels.ready() => WakeReason::Ready,
                changed = self.cursors.changed() => WakeReason::Cursors(changed.is_ok()),
                room = self.delivery.wait_for_room(room), if blocked => WakeReason::Room(room),
                () = tokio::time::sleep_until(deadline.into()) => WakeReason::Ready,
            };
            match woken {
                WakeReason::Unicast(Err(error)) => {
                    self.disconnected(CloseReason::new(format!("the UDP socket failed: {error}")))
                }
                WakeReason::Cursors(true) => self.confirm(Instant::now()),
                // The application is done, or does not read events any more.
                WakeReason::Cursors(false) | WakeReason::Room(false) => {
                    return self.close_gracefully().await;
                }
                WakeReason::Unicast(Ok(())) | WakeReason::Room(true) | WakeReason::Ready => {}
            }
            // Which branch was taken is chance. What is known to have come is read before the
            // source is blamed for being silent; and the flow before the unicast path, so that a
            // repair is mostly not taken before what it repairs. Not always: the runtime may not
            // have noticed yet that the flow's socket can be read.
            self.receive_flow();
            self.core_events();
            if self.hand_out() {
                // The application may be on this thread, and need not wait for the rest of the
                // turn. It may take its time.
                tokio::task::yield_now().await;
                self.receive_flow();
            }
            let statuses = self.tunnels.receive(&mut self.core);
            self.report_relays(statuses);
            self.receive();
            // The source is judged by this time: should the process pause from here on, the next
            // round detects that it did.
            let now = Instant::now();
            if away(deadline, now).is_some() {
                self.core.grant_grace(now);
                if let Some(connection) = &mut self.connection {
                    connection.grant_grace(&self.core, now);
                }
            }
            self.drive(now).await;
        }
    }

    fn confirm(&mut self, now: Instant) {
        let cursors = self.cursors.borrow_and_update().clone();
        for (channel, cursor) in cursors
            .iter()
            .filter(|(name, cursor)| self.confirmed.get(*name) != Some(cursor))
        {
            self.core.confirm(channel, *cursor, now);
        }
        self.confirmed = cursors;
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
        let suspensions = self.suspensions.next_timeout();
        let reconnection = self.reconnection.next_timeout();
        [connection, core, race, reconnection, suspensions]
            .into_iter()
            .flatten()
            .fold(self.tick_at, Instant::min)
    }

    fn receive(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let now = Instant::now();
        match connection.receive(&mut self.core, now) {
            Ok(true) => self.stall.reset(now),
            Ok(false) => {}
            Err(end) => self.disconnected(end),
        }
    }

    fn receive_flow(&mut self) {
        let (now, core) = (Instant::now(), &mut self.core);
        let (mut failed, mut works) = (Vec::new(), Vec::new());
        for (flow, place, intake) in self.groups.intakes() {
            let mut taken = false;
            let read = intake.receive(|from, mark, data| {
                let input = core.on_marked_flow_datagram(Rung::Multicast, mark, data, now);
                taken |= input == FlowInput::Accepted;
                debug!(%from, ?input, "flow datagram");
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

    async fn drive(&mut self, now: Instant) {
        if self.resume_channels(now) && self.connection.is_some() {
            self.reconnect = Some("a suspended channel is tried again".to_owned());
        }
        if self.reconnection.is_due(now) {
            if !self.core.wants_channels() {
                let later = self.suspensions.next_timeout();
                self.reconnection.postpone(later.unwrap_or(now + TICK));
            } else if self.delivery.is_crowded() {
                // Each connection brings a few events: an application that reads none gets no
                // further connections.
                self.reconnection.postpone(now + TICK);
            } else {
                let candidates = self.reconnection.begin();
                self.race = Some(Race::begin(&self.config.server, candidates, now));
            }
        }
        if let Some(addresses) = self.reconnection.begin_move(now) {
            self.stop_race();
            self.race = Some(Race::among(addresses, now));
        }
        self.run_race(now).await;
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
            self.report_stats();
            self.detect_stall(now);
            if self.route.has_changed() {
                self.network_changed(now);
            }
        }
    }

    async fn run_race(&mut self, now: Instant) {
        let Some(race) = &mut self.race else { return };
        let state = race.drive(&self.config, self.qlog.as_ref(), now).await;
        for (connection, end) in race.take_over() {
            self.leaving.push((connection, end.say, end.reason));
        }
        if !matches!(state, RaceState::Going) {
            self.reconnection.set_addresses(race.addresses());
        }
        match state {
            RaceState::Going => {}
            RaceState::Won(winner, losers) => {
                self.race = None;
                self.leave_connection();
                self.reconnection.connected();
                let reason = "another address of the source was faster";
                let losers = losers.into_iter();
                self.leaving
                    .extend(losers.map(|loser| (loser, close::DONE, reason.to_owned())));
                let addr = winner.peer;
                self.route.watch(addr.ip());
                self.delivery.push(Event::Connected { addr });
                self.connection = Some(*winner);
                self.core.connected();
            }
            RaceState::Lost(end) if self.connection.is_some() => {
                self.race = None;
                info!(
                    reason = end.reason,
                    "the source's other address does not answer"
                );
                self.reconnection.move_failed(now);
            }
            RaceState::Lost(end) => {
                self.race = None;
                self.disconnected(end);
            }
        }
    }

    /// Ends the connection in favour of one to another address that is there already.
    fn leave_connection(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let reason = "moving to another address of the source".to_owned();
        self.leaving.push((connection, close::DONE, reason.clone()));
        self.forget_connection();
        let retry_in = Duration::ZERO;
        self.delivery.push(Event::Disconnected { reason, retry_in });
    }

    /// Clears what belongs to a connection that is gone.
    fn forget_connection(&mut self) {
        self.reconnection.disconnected();
        self.core_events();
        self.core.disconnected();
        self.core_events();
        self.groups.clear();
        self.reconnect = None;
    }

    /// Gives up attempts that are under way.
    fn stop_race(&mut self) {
        let Some(mut race) = self.race.take() else {
            return;
        };
        let reason = "other addresses of the source are tried";
        let attempts = race.stop().into_iter();
        self.leaving
            .extend(attempts.map(|attempt| (attempt, close::DONE, reason.to_owned())));
    }

    /// A connection that lives and brings nothing, although there is more, is replaced.
    fn detect_stall(&mut self, now: Instant) {
        if self.connection.is_none() || self.delivery.is_blocked() {
            // An application that takes no updates is not waiting for them.
            self.stall.grant_grace(now);
            return;
        }
        let stuck = self.config.channels.iter().find(|(channel, _)| {
            let head = self.core.stats(channel).map_or(0, |stats| stats.head);
            !self.core.is_suspended(channel) && self.stall.is_stuck(channel, head, now)
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
        let is_connected = self.connection.is_some();
        self.reconnection.network_changed(is_connected, now);
        self.tunnels.network_changed();
        if let Some(connection) = &mut self.connection {
            self.core.network_changed(now);
            connection.network_changed(now);
        }
    }

    fn disconnected(&mut self, end: CloseReason) {
        // A move of the connection that has ended: the source may have another use for it.
        self.stop_race();
        if let Some(connection) = self.connection.take() {
            self.leaving.push((connection, end.say, end.reason.clone()));
        }
        self.forget_connection();
        if let Some((retry_in, reason)) = self.reconnection.plan(end) {
            self.delivery.push(Event::Disconnected { reason, retry_in });
        }
    }

    async fn close_gracefully(mut self) {
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
    use super::*;
    use crate::receiver::{Redundancy, Verify};

    #[test]
    fn secrets_are_not_printed() {
        let config = ReceiverConfig {
            server: "source.example:4433".into(),
            known: Vec::new(),
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
            redundancy: Redundancy::One,
            qlog: None,
            check: None,
            verify_updates: true,
            pinned_keys: Vec::new(),
        };
        assert!(!format!("{config:?}").contains("1, 1, 1"));
    }
}
