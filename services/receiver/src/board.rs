//! State of the running receiver, for status, metrics and readiness.

mod channel;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use flexicast::{Cursor, Rung, Via};
use flexicast_tokio::receiver::Event;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use self::channel::ChannelState;
use crate::deliver::Outcome;
use crate::latency::LatencyHistograms;
use crate::live::{Follower, Live, LiveUpdate};
use crate::messages::{Messages, ReceivedMessage};
use crate::status::model::{Hook, Status, VERSION};
use service::peer_text::plain;
use tracing::warn;

/// Returns the Unix time in ms.
#[must_use]
pub fn now_ms() -> f64 {
    unix_ms(SystemTime::now())
}

fn unix_ms(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0.0, |age| age.as_secs_f64() * 1000.0)
}

/// Names of this receiver and its source.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Display name.
    pub name: String,
    /// Id of the receiver.
    pub receiver_id: Uuid,
    /// `host:port` of the source.
    pub source: String,
}

/// Event counts since the start, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections on which the source admitted the receiver.
    pub connections: u64,
    /// Connections, and attempts to connect, that failed or ended.
    pub disconnects: u64,
    /// Refusals by the source.
    pub refusals: u64,
    /// Failed attempts to write the outputs.
    pub storage_failures: u64,
}

/// State of a receiver, shared by the loop that changes it and the one that writes the status.
#[derive(Debug)]
pub struct Board {
    identity: Identity,
    started_ms: u64,
    state: Mutex<State>,
    changed: Notify,
    spread: LatencyHistograms,
    /// Whether the source has admitted the receiver since the start.
    let_in: watch::Sender<bool>,
    /// Where the source is.
    known: watch::Sender<Vec<SocketAddr>>,
    /// Updates with a deadline, for event clients.
    live: Live<LiveUpdate>,
    messages: Messages,
}

#[derive(Debug)]
struct State {
    address: Option<String>,
    connected: bool,
    /// Error of the connection.
    connection_error: Option<String>,
    http: Option<SocketAddr>,
    leaving: bool,
    channels: Vec<ChannelState>,
    hooks: Vec<Hook>,
    counts: Counts,
}

impl Board {
    /// Returns the state before the first connection; each channel has the cursor of its outputs.
    #[must_use]
    pub fn new(identity: Identity, channels: &[(String, Option<Cursor>)]) -> Self {
        let since = now_ms() as u64;
        let spread = LatencyHistograms::default();
        for (name, _) in channels {
            spread.begin(name);
        }
        let channels = channels
            .iter()
            .map(|(name, cursor)| ChannelState::new(name, *cursor, since));
        Self {
            identity,
            started_ms: since,
            state: Mutex::new(State {
                address: None,
                connected: false,
                connection_error: None,
                http: None,
                leaving: false,
                channels: channels.collect(),
                hooks: Vec::new(),
                counts: Counts::default(),
            }),
            changed: Notify::new(),
            spread,
            let_in: watch::Sender::new(false),
            known: watch::Sender::new(Vec::new()),
            live: Live::default(),
            messages: Messages::of_messages(),
        }
    }

    /// Returns the updates with a deadline from now on, as soon as they are whole.
    pub fn live(&self) -> Follower<LiveUpdate> {
        self.live.follow()
    }

    /// Returns the messages from now on.
    pub fn messages(&self) -> Follower<Arc<ReceivedMessage>> {
        self.messages.follow()
    }

    /// Waits for a change, or returns if there was one since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until the source has admitted the receiver.
    pub async fn let_in(&self) {
        // The sender lives as long as the board.
        let _ = self.let_in.subscribe().wait_for(|is| *is).await;
    }

    /// Returns the addresses at which the source is; none before it has served this receiver.
    #[must_use]
    pub fn known(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.known.subscribe()
    }

    /// Applies an event of the transport.
    pub fn apply(&self, event: &Event) {
        let mut state = self.lock();
        match event {
            // The source has not admitted the receiver yet.
            Event::Connected { addr } => state.address = Some(addr.to_string()),
            Event::Addresses { known } => {
                self.known.send_replace(known.clone());
                return;
            }
            Event::Disconnected { reason, .. } => {
                state.counts.disconnects += 1;
                state.connected = false;
                state.address = None;
                state.connection_error = Some(plain(reason));
                let now = now_ms() as u64;
                for channel in &mut state.channels {
                    channel.disconnect(now);
                }
            }
            Event::Refused { reason, .. } => {
                state.counts.refusals += 1;
                state.connected = false;
                state.connection_error = Some(plain(reason));
            }
            Event::AuthenticationFailed {
                channel, failure, ..
            } => {
                if let Some(channel) = state.channel(channel) {
                    channel.auth_failures += 1;
                    channel.auth_error = Some(format!(
                        "channel {}: auth-failed at update {}: {}",
                        channel.name, failure.seq, failure.forgery
                    ));
                }
            }
            Event::Welcome {
                channel,
                incarnation,
                head,
                first,
                resync,
            } => {
                // Each channel has a WELCOME of its own.
                state.counts.connections += u64::from(!state.connected);
                state.connected = true;
                state.connection_error = None;
                self.let_in.send_replace(true);
                if let Some(channel) = state.channel(channel) {
                    if *resync {
                        channel.auth_error = None;
                        channel.cursor = first.saturating_sub(1);
                    }
                    channel.incarnation = Some(*incarnation);
                    channel.head = *head;
                }
            }
            Event::Gap { channel, from, to } => {
                if let Some(channel) = state.channel(channel) {
                    channel.lose(*from, *to, now_ms() as u64);
                }
            }
            Event::Rung {
                channel,
                rung,
                cause,
                at,
            } => {
                if let Some(channel) = state.channel(channel) {
                    channel.step(*rung, &cause.to_string(), unix_ms(*at) as u64);
                }
            }
            Event::Leg {
                channel,
                leg,
                state: leg_state,
                at,
            } => {
                if let Some(channel) = state.channel(channel) {
                    channel.note_leg(*leg, *leg_state, unix_ms(*at) as u64);
                }
            }
            Event::Explained {
                channel,
                rung,
                on,
                cause,
                at,
            } => {
                if let Some(channel) = state.channel(channel) {
                    channel.explain(*rung, *on, *cause, unix_ms(*at) as u64);
                }
            }
            Event::Relay {
                channel,
                number,
                relay,
                text,
                ..
            } => {
                if let Some(channel) = state.channel(channel) {
                    channel.note_relay(*number, *relay, plain(text));
                }
            }
            Event::Stats { channel, stats } => {
                if let Some(channel) = state.channel(channel) {
                    channel.head = channel.head.max(stats.head);
                    channel.reception = stats.reception;
                    channel.messages = stats.messages;
                }
            }
            // Counted once the outputs have it; but the source has it.
            Event::Update { channel, seq, .. } | Event::Live { channel, seq, .. } => {
                if let Event::Live {
                    encoded,
                    expires_at,
                    ..
                } = event
                {
                    self.live.send(LiveUpdate {
                        channel: channel.clone(),
                        seq: *seq,
                        encoded: encoded.clone(),
                        expires_at: *expires_at,
                    });
                }
                if let Some(channel) = state.channel(channel) {
                    channel.head = channel.head.max(*seq);
                }
                return;
            }
            Event::Message {
                channel,
                number,
                encoded,
                expires_at,
                ..
            } => {
                match ReceivedMessage::of(channel, *number, encoded, *expires_at) {
                    Ok(message) => self.messages.send(Arc::new(message)),
                    Err(error) => warn!(
                        channel = plain(channel),
                        number,
                        error = plain(&error.to_string()),
                        "message dropped"
                    ),
                }
                return;
            }
            // Findings are not part of the status.
            _ => return,
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the rung of a channel.
    #[must_use]
    pub fn rung(&self, channel: &str) -> Option<Rung> {
        self.lock().channel(channel).map(|channel| channel.rung)
    }

    /// Returns the position of a channel's outputs, with its incarnation.
    #[must_use]
    pub fn cursor(&self, channel: &str) -> Option<Cursor> {
        let mut state = self.lock();
        let channel = state.channel(channel)?;
        Some(Cursor {
            incarnation: channel.incarnation?,
            seq: channel.cursor,
        })
    }

    /// Notes that a batch is in the outputs.
    pub fn delivered(&self, channel: &str, outcome: &Outcome) {
        let mut state = self.lock();
        if let Some(channel) = state.channel(channel) {
            channel.storage_error = None;
            if !outcome.delivered.is_empty() {
                channel.auth_error = None;
            }
            for (record, live) in &outcome.delivered {
                *match record.via {
                    Via::Flow => &mut channel.paths.flow,
                    Via::Repaired => &mut channel.paths.repaired,
                    Via::Unicast => &mut channel.paths.unicast,
                } += 1;
                if *live {
                    channel.latencies.push(record.latency_ms);
                    self.spread.push(&channel.name, record.latency_ms);
                }
            }
            channel.undecodable += outcome.undecodable;
            // A batch from before a resync has numbers of the old numbering.
            if let Some(cursor) = outcome.cursor
                && channel.incarnation.is_none_or(|i| i == cursor.incarnation)
            {
                channel.cursor = cursor.seq;
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that the outputs of a channel cannot be written.
    pub fn storage_failed(&self, channel: &str, error: String) {
        let mut state = self.lock();
        state.counts.storage_failures += 1;
        if let Some(channel) = state.channel(channel) {
            channel.storage_error = Some(error);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that the feed files of a channel cannot be written, or can again.
    pub fn files_failed(&self, channel: &str, error: Option<String>) {
        let mut state = self.lock();
        state.counts.storage_failures += u64::from(error.is_some());
        if let Some(channel) = state.channel(channel) {
            channel.files_error = error;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Sets the address of the HTTP server.
    pub fn set_http(&self, address: Option<SocketAddr>) {
        self.lock().http = address;
        self.changed.notify_one();
    }

    /// Replaces the status of the webhooks and commands.
    pub fn set_hooks(&self, hooks: Vec<Hook>) {
        let mut state = self.lock();
        if state.hooks != hooks {
            state.hooks = hooks;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Notes that the receiver is about to stop: not ready any more, whatever still works.
    pub fn leave(&self) {
        self.lock().leaving = true;
    }

    /// Whether the receiver is about to stop.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// Notes the end of the receiver.
    pub fn ended(&self) {
        let mut state = self.lock();
        state.connected = false;
        state.address = None;
        state.http = None;
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the event counts since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Returns the number of moves of a channel to each rung since the start.
    #[must_use]
    pub fn moved(&self, channel: &str) -> BTreeMap<String, u64> {
        let mut state = self.lock();
        let channel = state.channel(channel);
        channel.map_or_else(BTreeMap::new, |channel| channel.moved.clone())
    }

    /// Returns the latencies of all live updates since the start.
    #[must_use]
    pub fn latencies(&self) -> &LatencyHistograms {
        &self.spread
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.lock();
        let storage = state.channels.iter();
        let storage = storage.flat_map(|channel| {
            let channel_errors = [&channel.storage_error, &channel.files_error];
            channel_errors.into_iter().chain([&channel.auth_error])
        });
        let errors = storage.chain([&state.connection_error]).flatten();
        let mut errors: Vec<&str> = errors.map(String::as_str).collect();
        // An error common to all channels is shown once.
        errors.dedup();
        Status {
            version: VERSION,
            pid: std::process::id(),
            updated_ms: now_ms() as u64,
            started_ms: self.started_ms,
            name: self.identity.name.clone(),
            receiver_id: self.identity.receiver_id,
            source: self.identity.source.clone(),
            address: state.address.clone(),
            connected: state.connected,
            error: (!errors.is_empty()).then(|| errors.join("; ")),
            http: state.http,
            channels: state.channels.iter().map(ChannelState::status).collect(),
            hooks: state.hooks.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic under the lock, a counter lacks one event at worst.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn channel(&mut self, name: &str) -> Option<&mut ChannelState> {
        self.channels
            .iter_mut()
            .find(|channel| channel.name == name)
    }
}

#[cfg(test)]
mod tests;
