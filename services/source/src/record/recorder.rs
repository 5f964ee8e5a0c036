//! Observation of events, and selection of rows to write.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::source::{HistoryEvent, HistoryEventKind, LoadStatus, Move, SourceStatus};
use store::{Fence, MoveRow, RelayRow, SessionRow};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::about::{overload_row, overload_warning};
use super::feeds::Feeds;
use super::fleet::Fleet;
use super::hour::LastHour;
use super::outbox::Outbox;
use super::parts::{ReceiverScan, Takeover};
use super::progress::Progress;
use super::tallies::{ChannelSample, Tallies};
use super::{RecordParts, fences};
use crate::clock::now_ms;
use crate::http::Sample;
use crate::status::{Phase, RelayView};

/// Window in which events are grouped.
const TOGETHER: Duration = Duration::from_millis(80);
/// Longest wait for the transport.
const PATIENCE: Duration = Duration::from_secs(1);
/// Wait before a retry after a failure of the database.
const AGAIN: Duration = Duration::from_secs(2);
/// Rows of receivers' progress per sample.
const BUDGET: usize = 1_000;
/// Interval at which the database's receivers are read.
const KNOWN: Duration = Duration::from_secs(60);
/// Interval after a failure: nothing waits for it, and a database that does not answer is left
/// alone for a while.
const UNKNOWN: Duration = Duration::from_secs(10);
/// Interval of signs of life: a console treats a source without one for 15 s as gone.
const ALIVE: Duration = Duration::from_secs(5);
/// Number of recent moves whose cause may be found later.
const RECENT: usize = 1_024;
/// Interval of unchanged totals, to spare a database on a small machine.
const STILL: Duration = Duration::from_secs(5);

/// Recorder of events.
pub struct Recorder {
    parts: RecordParts,
    outbox: Arc<Outbox>,
    losses: watch::Receiver<u64>,
    /// Current leases for writing.
    held: Vec<Fence>,
    /// Progress of taking over another source's rows.
    taking: Option<Takeover>,
    /// Time of the next attempt to continue.
    again: Option<Instant>,
    fleet: Fleet,
    /// Open connections, by the transport's numbers.
    sessions: BTreeMap<u64, SessionRow>,
    progress: BTreeMap<String, Progress>,
    /// Updates published, by channel.
    hours: BTreeMap<String, LastHour>,
    tallies: Tallies,
    feeds: Feeds,
    relays: BTreeMap<String, RelayView>,
    /// Position in the transport's history.
    taken: u64,
    pulsed: BTreeMap<String, (Instant, store::PulseRow)>,
    /// Last moves, for causes that are found later.
    recent: VecDeque<(u64, MoveRow)>,
    /// Time of the next scan of the receivers in the database.
    know_at: Option<Instant>,
    /// Scan in progress.
    knowing: Option<ReceiverScan>,
    /// Time of the last sign of life.
    said_at: Option<Instant>,
    /// The source's last load, with its overloads.
    load: LoadStatus,
}

impl Recorder {
    pub(super) fn new(
        parts: RecordParts,
        outbox: Arc<Outbox>,
        losses: watch::Receiver<u64>,
    ) -> Self {
        Self {
            parts,
            outbox,
            losses,
            held: Vec::new(),
            taking: None,
            again: None,
            fleet: Fleet::default(),
            sessions: BTreeMap::new(),
            progress: BTreeMap::new(),
            hours: BTreeMap::new(),
            tallies: Tallies::default(),
            feeds: Feeds::default(),
            relays: BTreeMap::new(),
            taken: 0,
            pulsed: BTreeMap::new(),
            recent: VecDeque::new(),
            know_at: None,
            knowing: None,
            said_at: None,
            load: LoadStatus::default(),
        }
    }

    /// Records until `stop`, then marks all receivers as disconnected.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut samples = self.parts.samples.clone();
        let mut latest = self.parts.latest.clone();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = samples.changed() => {
                    let sample = samples.borrow_and_update().clone();
                    self.look(sample, &stop).await;
                }
                Ok(()) = latest.changed() => {
                    sleep(TOGETHER).await;
                    latest.borrow_and_update();
                    // Queries the store, which may hang; the steps below do not.
                    stop.run_until_cancelled(self.lead()).await;
                    self.follow().await;
                }
                Ok(()) = self.losses.changed() => self.lose("another source has taken over"),
                // Until the lease for writing is known, polls stay in their queue, which is
                // bounded, and overflows are counted.
                Some(poll) = self.parts.polls.recv(), if !self.is_beginning() => {
                    if !self.held.is_empty() {
                        self.feeds.polled(poll, &self.outbox);
                    }
                }
                Ok(()) = self.parts.info.changed() => self.record_info(),
            }
            self.outbox.ring();
        }
        self.end();
    }

    /// Discards the written state.
    fn lose(&mut self, why: &str) {
        info!(reason = why, "console records stopped");
        self.outbox.clear();
        self.held.clear();
        self.taking = None;
        self.hours.clear();
        self.fleet.forget_written();
        self.pulsed.clear();
        self.relays.clear();
    }

    /// Updates the leases, and takes over the records of earlier ones.
    async fn lead(&mut self) {
        let held = fences(&self.parts.board);
        if held == self.held {
            return;
        }
        if held.is_empty() {
            self.lose("this source does not publish at present");
            return;
        }
        let is_known = |fence: &&Fence| self.held.contains(fence);
        let new: Vec<Fence> = held.iter().filter(|f| !is_known(f)).cloned().collect();
        if self.again.is_some_and(|at| at > Instant::now()) {
            return;
        }
        if !new.is_empty() && !self.take_up(new).await {
            return;
        }
        self.again = None;
        let is_held = |name: &String| held.iter().any(|fence| fence.channel == *name);
        self.hours.retain(|name, _| is_held(name));
        self.held.clone_from(&held);
        self.outbox.set_fences(held);
        self.record_info();
    }

    /// Marks receivers of these channels that are not connected here as disconnected: another
    /// source, or an earlier run of this one, could not do so at its end. Returns whether all rows
    /// are taken over; otherwise the next call continues.
    async fn take_up(&mut self, new: Vec<Fence>) -> bool {
        let mut taking = match self.taking.take() {
            Some(taking) if taking.fences() == new => taking,
            _ => Takeover::new(new),
        };
        match taking.go_on(&self.parts.store).await {
            Ok(true) => {}
            Ok(false) => {
                self.taking = Some(taking);
                return false;
            }
            Err(failure) => {
                debug!(error = %failure, "take-over of receiver records failed; retrying");
                self.again = Some(Instant::now() + AGAIN);
                self.taking = Some(taking);
                return false;
            }
        }
        self.fleet.forget_written();
        let (states, events, hours) = taking.taken();
        self.fleet.know(states);
        self.feeds.know(events);
        for (channel, hour) in hours {
            self.hours.entry(channel).or_default().merge(hour);
        }
        for session in self.sessions.values() {
            self.outbox.session(session.clone());
        }
        self.relays.clear();
        self.pulsed.clear();
        true
    }

    /// Whether recording is about to start here.
    fn is_beginning(&self) -> bool {
        self.held.is_empty() && !fences(&self.parts.board).is_empty()
    }

    /// Processes the events since the last call.
    async fn follow(&mut self) {
        if self.is_beginning() {
            // The transport keeps them until the lease for writing is known.
            return;
        }
        loop {
            let asked = self.parts.transport.history(self.taken);
            let Ok(Some(history)) = timeout(PATIENCE, asked).await else {
                return;
            };
            if history.missed > 0 {
                let count = history.missed;
                warn!(count, "receiver events not recorded in time");
                let lost = usize::try_from(count).unwrap_or(usize::MAX);
                self.parts.metrics.dropped("moves", lost);
                self.taken += count;
            }
            for event in &history.events {
                self.taken = event.number;
                self.take(event);
            }
            if history.events.is_empty() || self.taken >= history.last {
                break;
            }
        }
        if !self.held.is_empty() {
            let outbox = Arc::clone(&self.outbox);
            let add = |row| outbox.state(row);
            self.fleet.moves(Instant::now(), now_ms(), add);
        }
    }

    fn take(&mut self, event: &HistoryEvent) {
        let progress = &self.progress;
        let head = |channel: &str| progress.get(channel).map_or(0, Progress::head);
        let at_ms = i64::try_from(event.at_ms).unwrap_or(i64::MAX);
        let leads = !self.held.is_empty();
        match &event.what {
            HistoryEventKind::Connected {
                session,
                receiver,
                name,
                software,
                addr,
                channels,
            } => {
                let row = SessionRow {
                    id: SessionRow::number(at_ms, salt(*session)),
                    receiver: *receiver,
                    name: name.clone(),
                    software: software.clone(),
                    address: addr.clone(),
                    began_ms: at_ms,
                    ended_ms: None,
                    end_cause: None,
                };
                if leads {
                    self.outbox.session(row.clone());
                }
                self.sessions.insert(*session, row.clone());
                self.fleet
                    .connected(*receiver, (*session, row), channels, head);
            }
            HistoryEventKind::Moved(step) => {
                self.fleet.moved(step);
                self.tallies.moved(&step.channel);
                self.record_move(event.number, at_ms, step);
            }
            // Not a move, but it explains why there was none.
            HistoryEventKind::Reported(step) => self.record_move(event.number, at_ms, step),
            HistoryEventKind::Explained { moved, cause } => {
                if leads && !self.outbox.explain(*moved, cause) {
                    // The written row stays; the explanation follows it.
                    let known = self.recent.iter().find(|(number, _)| number == moved);
                    if let Some((_, row)) = known {
                        let now = MoveRow {
                            at_ms,
                            from: row.to.clone(),
                            cause: cause.clone(),
                            ..row.clone()
                        };
                        self.outbox.step(event.number, now);
                    }
                }
            }
            HistoryEventKind::Disconnected {
                session,
                receiver,
                reason,
            } => {
                self.fleet
                    .disconnected(*receiver, *session, event.at_ms, reason, head);
                if let Some(mut row) = self.sessions.remove(session) {
                    row.ended_ms = Some(at_ms);
                    row.end_cause = Some(reason.clone());
                    if leads {
                        self.outbox.session(row);
                    }
                }
            }
            // With the next sample, at once.
            HistoryEventKind::Overload(_) => self.said_at = None,
        }
    }

    /// Queues a move for writing.
    fn record_move(&mut self, number: u64, at_ms: i64, step: &Move) {
        let (Ok(receiver), false) = (step.receiver.parse::<Uuid>(), self.held.is_empty()) else {
            return;
        };
        let row = MoveRow {
            id: 0,
            at_ms,
            receiver,
            name: step.name.clone(),
            channel: step.channel.clone(),
            from: step.from.clone(),
            to: step.to.clone(),
            cause: step.cause.clone(),
            change: 0,
        };
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((number, row.clone()));
        self.outbox.step(number, row);
    }

    /// Processes a sample.
    async fn look(&mut self, sample: Sample, stop: &CancellationToken) {
        stop.run_until_cancelled(self.lead()).await;
        self.follow().await;
        let Some(status) = sample.status else { return };
        let now_ms = now_ms();
        self.publish(&status, now_ms);
        self.see(&status, sample.upto, now_ms);
        // Not from events, of which the end of an overload may be missed.
        let is_news = overload_warning(&status.load) != overload_warning(&self.load);
        self.load.clone_from(&status.load);
        if is_news || self.said_at.is_none_or(|at| at.elapsed() >= ALIVE) {
            self.record_info();
        }
        if self.held.is_empty() {
            return;
        }
        let outbox = Arc::clone(&self.outbox);
        let now = Instant::now();
        self.fleet.moves(now, now_ms, |row| outbox.state(row));
        let add = |row| outbox.state(row);
        self.fleet.progress(now, BUDGET, add);
        for progress in self.progress.values_mut() {
            progress.changed(|row| outbox.progress(row));
        }
        self.count(&status, now_ms);
        self.show_relays(now_ms);
        stop.run_until_cancelled(self.know_receivers()).await;
    }

    /// Records updates that were published since the last sample.
    fn publish(&mut self, status: &SourceStatus, now_ms: i64) {
        let there = |name: &String| status.channels.iter().any(|c| c.channel == *name);
        self.progress.retain(|name, _| there(name));
        for channel in &status.channels {
            let (name, head) = (&channel.channel, channel.head);
            let new = || Progress::new(name, head, now_ms);
            let progress = self.progress.entry(name.clone()).or_insert_with(new);
            if head != progress.head() {
                let hour = self.hours.entry(name.clone()).or_default();
                hour.add(head.saturating_sub(progress.head()), now_ms);
                progress.published(head, self.fleet.connected_to(name), now_ms);
            }
        }
    }

    /// Takes the progress of receivers from a sample.
    fn see(&mut self, status: &SourceStatus, upto: u64, now_ms: i64) {
        for receiver in &status.receivers {
            for advance in self.fleet.seen(receiver, upto, now_ms) {
                if let Some(progress) = self.progress.get_mut(&advance.channel) {
                    progress.delivered(&advance.spans, now_ms);
                }
            }
        }
    }

    /// Records totals, and counts in steps of time.
    fn count(&mut self, status: &SourceStatus, now_ms: i64) {
        let mut looks = BTreeMap::new();
        let mut heads = BTreeMap::new();
        for channel in &status.channels {
            let name = &channel.channel;
            let Some(progress) = self.progress.get(name) else {
                continue;
            };
            if !self.held.iter().any(|fence| fence.channel == *name) {
                continue;
            }
            let tally = self.fleet.tally(name, channel.head);
            let lag = tally.lowest.map_or((0, 0), |cursor| {
                (channel.head - cursor, progress.behind_ms(cursor, now_ms))
            });
            let look = ChannelSample {
                tally,
                lag,
                head: channel.head,
                bytes: channel.bytes,
            };
            let hour = self.hours.get(name).map_or(0, |hour| hour.count(now_ms));
            let pulse = look.pulse(channel, hour, now_ms);
            let now = Instant::now();
            let is_changed = self.pulsed.get(name).is_none_or(|(at, known)| {
                let same = store::PulseRow {
                    at_ms: pulse.at_ms,
                    ..known.clone()
                };
                same != pulse || now.saturating_duration_since(*at) >= STILL
            });
            if is_changed {
                self.pulsed.insert(name.clone(), (now, pulse.clone()));
                self.outbox.pulse(pulse);
            }
            heads.insert(name.clone(), channel.head);
            looks.insert(name.clone(), look);
        }
        let all = self.fleet.tally_all(&heads);
        let outbox = &self.outbox;
        self.tallies
            .look(&looks, all, now_ms, |row| outbox.sample(row));
    }

    fn show_relays(&mut self, now_ms: i64) {
        let seen = self.parts.board.snapshot().relays;
        let mut before = std::mem::take(&mut self.relays);
        for relay in seen {
            if before.remove(&relay.address).as_ref() != Some(&relay) {
                self.outbox.relay(RelayRow {
                    gone: false,
                    ..relay_row(&relay, now_ms)
                });
            }
            self.relays.insert(relay.address.clone(), relay);
        }
        for gone in before.into_values() {
            self.outbox.relay(RelayRow {
                gone: true,
                healthy: false,
                ..relay_row(&gone, now_ms)
            });
        }
    }

    /// Drops receivers that the database does not know any more.
    async fn know_receivers(&mut self) {
        if self.know_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        let new = || ReceiverScan::new(now_ms());
        let knowing = self.knowing.get_or_insert_with(new);
        match knowing.go_on(&self.parts.store).await {
            Ok(false) => {}
            Ok(true) => {
                if let Some(knowing) = self.knowing.take() {
                    let (known, since_ms) = knowing.known();
                    self.fleet.retain(&known, since_ms);
                }
                self.know_at = Some(Instant::now() + KNOWN);
            }
            Err(failure) => {
                debug!(error = %failure, "receiver scan failed; retrying");
                self.know_at = Some(Instant::now() + UNKNOWN);
            }
        }
    }

    fn record_info(&mut self) {
        let mut info = self.parts.info.borrow_and_update().clone();
        info.at_ms = now_ms();
        info.warnings.splice(0..0, overload_warning(&self.load));
        info.overloads = self.load.overloads.iter().map(overload_row).collect();
        if !self.held.is_empty() || self.has_no_channel() {
            self.said_at = Some(Instant::now());
            self.outbox.info(info);
        }
    }

    /// Whether there is no channel to publish at all: without a lease to acquire, a source is no
    /// standby.
    fn has_no_channel(&self) -> bool {
        let seen = self.parts.board.snapshot();
        seen.channels.is_empty() && seen.phase == Phase::Running
    }

    /// Records the end of the source, and with it of all connections.
    fn end(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (now_ms, reason) = (now_ms(), "the source has stopped");
        let progress = &self.progress;
        let head = |channel: &str| progress.get(channel).map_or(0, Progress::head);
        let at_ms = u64::try_from(now_ms).unwrap_or(0);
        for (id, session) in self.fleet.live() {
            self.fleet.disconnected(id, session, at_ms, reason, head);
        }
        for (_, mut row) in std::mem::take(&mut self.sessions) {
            row.ended_ms = Some(now_ms);
            row.end_cause = Some(reason.to_owned());
            self.outbox.session(row);
        }
        let outbox = Arc::clone(&self.outbox);
        let add = |row| outbox.state(row);
        self.fleet.moves(Instant::now(), now_ms, add);
        self.outbox.ring();
    }
}

/// Returns a number that distinguishes connections of one millisecond.
fn salt(session: u64) -> u32 {
    (session & 0x000f_ffff) as u32
}

fn relay_row(relay: &RelayView, now_ms: i64) -> RelayRow {
    RelayRow {
        address: relay.address.clone(),
        asked: relay.asked.clone(),
        healthy: relay.healthy,
        since_ms: relay.since_ms.and_then(|ms| i64::try_from(ms).ok()),
        answer_us: relay.answer_ms.map(|ms| (ms * 1e3) as u64),
        detail: relay.error.clone().unwrap_or_default(),
        gone: false,
        at_ms: now_ms,
        change: 0,
    }
}
