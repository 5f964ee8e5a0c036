//! The source's loop: one task owns the state machine and the flows' sockets. The connections are
//! those of its shards.

mod channels;
mod drain;
mod flow;
mod intake;
mod load;
mod records;
mod report;
mod requests;
mod sessions;
mod shards;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{RelayHint, SourceAddress};
use flexicast::source::{ChannelIndex, MessageError, Source as Core};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};
use uuid::Uuid;

use super::history::{EventLog, History};
use super::replication::Replication;
use super::shard::{Gate, Passage, ShardContext, Work};
use super::wall_clock::unix_now;
use super::{
    Absence, Backlog, ChannelConfig, Counters, FlowEndpoint, Publication, Senders, SourceConfig,
    SourceStatus,
};
pub(super) use channels::EngineChannel;
use channels::EngineChannels;
use drain::Draining;
use records::Records;
use requests::StoreAnswer;
use sessions::Sessions;
use shards::Shards;

use crate::Error;
use crate::qlog::{LocalEnd, Qlog};
use crate::timers::{LATE, away};

/// Answers of the store that wait for the engine.
const ANSWERS: usize = 256;
/// Share of the total unicast rate for catch-up, as one part of so many: the other receivers want
/// new updates, and the processor some rest.
const CATCH_UP_PART: u64 = 2;
/// After so many sessions the flow gets its turn again.
const FLOW_EVERY: usize = 8;
/// Time between two looks at the system's clock.
const CLOCK_EVERY: Duration = Duration::from_secs(1);

pub(super) enum Command {
    First(String, u64),
    Relays(Vec<RelayHint>),
    Addresses(Vec<SourceAddress>),
    Endpoints(
        String,
        Vec<FlowEndpoint>,
        oneshot::Sender<Result<(), Error>>,
    ),
    Rekey(String),
    Eject(Uuid),
    Disconnect(Uuid, oneshot::Sender<usize>),
    Hold(BTreeSet<Uuid>),
    History(u64, oneshot::Sender<History>),
    Withdraw(String),
    Replace(String),
    Message(
        String,
        u64,
        Bytes,
        oneshot::Sender<Result<(), MessageError>>,
    ),
    Abandon(String, u64),
    Status(oneshot::Sender<SourceStatus>),
    Add(Box<ChannelConfig>, oneshot::Sender<Result<(), Error>>),
    Remove(String, Absence, oneshot::Sender<()>),
    Elsewhere(String),
    Certificate(Box<quiche::Config>, oneshot::Sender<()>),
    Drain(Duration, oneshot::Sender<()>),
    Shutdown,
}

/// Components of a source.
pub(super) struct EngineParts {
    pub(super) quic: quiche::Config,
    /// The QUIC socket of each shard, all bound to one address.
    pub(super) sockets: (StdSocket, Vec<StdSocket>),
    pub(super) local: SocketAddr,
    pub(super) channels: Vec<EngineChannel>,
    pub(super) core: Core,
    pub(super) backlog: Arc<dyn Backlog>,
    pub(super) senders: Senders,
    pub(super) inbox: mpsc::Receiver<Command>,
    pub(super) event_log: EventLog,
}

pub(super) struct Engine {
    config: SourceConfig,
    local: SocketAddr,
    channels: EngineChannels,
    core: Core,
    gate: Arc<Gate>,
    shards: Shards,
    backlog: Arc<dyn Backlog>,
    senders: Senders,
    inbox: mpsc::Receiver<Command>,
    /// Answers of the store, in a queue of their own: they are taken even while no further update
    /// is.
    answers: (mpsc::Sender<StoreAnswer>, mpsc::Receiver<StoreAnswer>),
    sessions: Sessions,
    /// Sessions that something happened to, and that may have something to send.
    touched: BTreeSet<u64>,
    replication: Replication,
    records: Records,
    counters: Counters,
    /// When the clock by which deadlines run is looked at next.
    clock_at: Instant,
    /// The source is on its way out.
    draining: Option<Draining>,
    qlog: Option<Qlog>,
}

impl Engine {
    pub(super) fn new(config: SourceConfig, parts: EngineParts) -> Result<Self, Error> {
        let EngineParts {
            quic,
            sockets: (first, others),
            local,
            channels,
            mut core,
            backlog,
            senders,
            inbox,
            event_log,
        } = parts;
        let qlog = config
            .qlog
            .clone()
            .map(|path| Qlog::new(path, LocalEnd::Source, "source".into()));
        core.set_tracing(qlog.is_some());
        core.set_clock(Instant::now(), unix_now());
        let shards = 1 + others.len();
        let gate = Arc::new(Gate::new(quic, Instant::now())?);
        let context = ShardContext {
            gate: Arc::clone(&gate),
            passage: Arc::new(Passage::new(shards)),
            reset_key: config.reset_key,
            feedback: core.feedback_ids(),
            rate_bps: config.rate_bps,
            qlog: qlog.as_ref().map(Qlog::connections),
        };
        Ok(Engine {
            replication: Replication::start(&first, config.replication_threads)?,
            sessions: Sessions::new(shards),
            shards: Shards::start(first, others, context).map_err(Error::io(
                "cannot start threads for the receivers' connections",
            ))?,
            local,
            config,
            channels: EngineChannels::new(channels),
            core,
            gate,
            backlog,
            senders,
            inbox,
            answers: mpsc::channel(ANSWERS),
            touched: BTreeSet::new(),
            records: Records::new(event_log, Instant::now()),
            counters: Counters::default(),
            clock_at: Instant::now(),
            draining: None,
            qlog,
        })
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn inject_faults(&mut self, faults: super::Faults) -> Result<(), Error> {
        if faults.other_version {
            self.gate.speak_another_version()?;
        }
        if faults.shard_restart_off {
            self.shards.leave_failed();
        }
        self.core.inject_faults(flexicast::source::Faults {
            repair_off: faults.repair_off,
            fall_back_off: faults.fall_back_off,
            eviction_off: faults.eviction_off,
            reordering_off: false,
            sizes_unconfirmed: faults.sizes_unconfirmed,
            lag_grace_off: faults.lag_grace_off,
            window_across_epochs: false,
            expired_delivered: faults.expired_delivered,
            message_copies_off: faults.message_copies_off,
        });
        Ok(())
    }

    pub(super) async fn run(mut self) -> Result<(), Error> {
        // tokio learns only by this that the socket can be written to, and resets do not wait for
        // it.
        self.shards.writable().await.map_err(failed())?;
        loop {
            let now = Instant::now();
            let end = self.draining.as_ref().map(|draining| draining.until);
            let shards = self.shards.next_timeout(self.is_judging(), now);
            let wake = [shards, self.core.poll_timeout(now), end]
                .into_iter()
                .flatten()
                .min();
            let wake = wake.unwrap_or(now + Duration::from_secs(60));
            // Nothing more is written to an address whose receiver has gone in the last turn.
            self.follow_replicas();
            let mut has_published = false;
            tokio::select! {
                ready = self.shards.ready() => ready.map_err(failed())?,
                (channel, update) = self.channels.next_update(&self.core) => {
                    self.publish(channel, update);
                    has_published = true;
                }
                command = self.inbox.recv() => match command {
                    None | Some(Command::Shutdown) => return self.close_gracefully().await,
                    Some(command) => self.command(command),
                },
                Some(answer) = self.answers.1.recv() => self.answer(answer),
                Some(failure) = self.replication.next_failure() => {
                    self.end_replication(failure, Instant::now())
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            let woken = Instant::now();
            // Which branch was taken is chance. What has come is read before any receiver is
            // blamed for being silent.
            // What this turn comes late for is known before anything is judged by it.
            let late = self.note_lag(wake, woken);
            if has_published {
                // An update does not wait for what has to be read and followed up.
                self.send_flows(woken).await;
            }
            self.receive()?;
            // All are judged by this time: should the process pause from here on, the next round
            // detects that it did.
            let now = Instant::now();
            if let Some(span) = away(wake, now) {
                self.core.grant_grace(span, now);
            }
            self.excuse_shards(now);
            self.note_lag(wake, now);
            self.drive(now).await?;
            let end = Instant::now();
            self.records.load.turned(late.max(end - woken));
            if let Some(acks_per_s) = self.records.judge_load(end) {
                self.core.set_ack_budget(acks_per_s, end);
            }
            if self.has_drained(Instant::now()) {
                return self.close_gracefully().await;
            }
        }
    }

    /// Whether receivers may be blamed for silence.
    fn is_judging(&self) -> bool {
        let mut flows = (0..self.core.channels()).filter_map(|c| self.core.flow(c));
        flows.any(|flow| flow.outstanding() > 0)
    }

    /// Blames no receiver for what its shard has not read.
    fn excuse_shards(&mut self, now: Instant) {
        let judging = self.is_judging();
        let lag = self.shards.lag(judging, now);
        if judging && lag > LATE {
            self.core.grant_grace(lag, now);
        }
    }

    fn publish(&mut self, channel: ChannelIndex, update: Publication) {
        let Publication {
            seq,
            encoded,
            since,
        } = update;
        self.records.load.waited(since.elapsed());
        let head = self.core.head(channel);
        if seq == head + 1 {
            self.core.publish(channel, seq, encoded);
        } else {
            let channel = self.core.channel_name(channel);
            warn!(
                channel,
                seq, head, "an update that does not follow the head was not published"
            );
        }
    }

    /// Follows the system's clock, which may be adjusted, now and then.
    fn follow_clock(&mut self, now: Instant) {
        if now >= self.clock_at {
            self.clock_at = now + CLOCK_EVERY;
            self.core.set_clock(Instant::now(), unix_now());
        }
    }

    /// Does everything that can be done now, for all connections that something happened to.
    async fn drive(&mut self, now: Instant) -> Result<(), Error> {
        self.shards.expire(now);
        self.follow_clock(now);
        self.core.handle_timeout(now);
        self.send_flows(now).await;
        self.events(now)?;
        self.serve(now).await?;
        // Filling a session can promote it.
        self.events(now)?;
        self.serve(now).await?;
        if let Some(qlog) = &mut self.qlog {
            qlog.packets(self.core.take_trace());
        }
        Ok(())
    }

    /// Moves the work of all sessions that have some to their shards.
    async fn serve(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(session) = self.core.poll_dirty() {
            self.touched.insert(session);
        }
        for shard in 0..self.shards.len() {
            if self.shards.has_room(shard) {
                self.sessions.resume(shard, &mut self.touched);
            }
        }
        let mut served = 0;
        while let Some(session) = self.touched.pop_first() {
            self.flush(session, now);
            self.mind_flows(&mut served).await;
        }
        while self.shards.flush_next(now).await.map_err(failed())? {
            self.mind_flows(&mut served).await;
        }
        Ok(())
    }

    /// Many sessions that need data at once, as after a correlated failure, do not hold up the
    /// members of the flow.
    async fn mind_flows(&mut self, served: &mut usize) {
        *served += 1;
        if served.is_multiple_of(FLOW_EVERY) {
            self.send_flows(Instant::now()).await;
        }
    }

    /// Moves a session's work to its shard.
    fn flush(&mut self, number: u64, now: Instant) {
        let Some(session) = self.sessions.get_mut(number) else {
            return;
        };
        let shard = session.shard;
        if !self.shards.has_room(shard) {
            // The shard reports when it has.
            return self.sessions.defer(shard, number);
        }
        let load = session.fill(number, &mut self.core, now);
        self.counters.unicast_bytes += load.bytes;
        let mut rate = self.config.rate_bps;
        if let Some(all) = self.config.unicast_rate_bps
            && session.is_catching_up()
        {
            // The congestion window keeps it to what the path to the receiver bears.
            let part = all / CATCH_UP_PART / self.core.catching_up().max(1) as u64;
            rate = rate.max(part);
        }
        let greeted = self.core.receiver(number).is_some();
        if let Some(work) = session.finish(load.work, rate, greeted) {
            self.shards.send(shard, Work::Session(number, work), now);
        }
        if !session.served && self.core.is_served(number) {
            self.has_connected(number);
        }
        for request in load.fetches {
            self.fetch(number, request);
        }
    }

    async fn close_gracefully(self) -> Result<(), Error> {
        let receivers = self.sessions.len();
        info!(receivers, "shutting down");
        let have_ended = self.shards.shutdown().await.map_err(failed())?;
        let (qlog, mut core) = (self.qlog, self.core);
        if let Some(mut qlog) = qlog {
            qlog.packets(core.take_trace());
            if have_ended {
                qlog.finish().await;
            }
        }
        Ok(())
    }
}

fn failed() -> impl FnOnce(std::io::Error) -> Error {
    Error::io("the QUIC socket failed")
}
