//! The engine's commands, its requests to the store, and the state machine's requests.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Hello, Leg, LegState, Refusal};
use flexicast::flow::BreakerState;
use flexicast::source::{ChannelIndex, MessageError, SessionId, SourceEvent, close};
use flexicast::{Cause, Rung};
use tracing::{info, warn};

use super::sessions::{FetchRequest, Session};
use super::{Command, Engine};
use crate::Error;
use crate::config::random_secret;
use crate::source::shard::Work;
use crate::source::wall_clock::unix_ms_now;
use crate::source::{Absence, Admission, AdmissionError, Move};

/// Bytes of one read of the store for one session.
const FETCH_BYTES: usize = 256 << 10;
/// The store has to answer by then.
const STORE_WITHIN: Duration = Duration::from_secs(10);

/// Answer of the store.
pub(super) enum StoreAnswer {
    Authorised {
        session: u64,
        verdict: Result<(), AdmissionError>,
    },
    Fetched {
        session: u64,
        channel: ChannelIndex,
        from: u64,
        updates: Option<Vec<(u64, Bytes)>>,
    },
}

impl Engine {
    /// Executes the owner's command.
    pub(super) fn command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::First(name, first) => {
                if let Some(channel) = self.channel(&name) {
                    self.core.set_first(channel, first);
                }
            }
            Command::Relays(relays) => self.core.set_relays(relays, now),
            Command::Addresses(addresses) => self.core.set_addresses(addresses),
            Command::Endpoints(channel, endpoints, answer) => {
                let _ = answer.send(self.set_endpoints(&channel, endpoints, now));
            }
            Command::Rekey(name) => {
                if let Some(channel) = self.channel(&name) {
                    self.core.request_rekey(channel, now);
                }
            }
            Command::Eject(receiver) => {
                info!(%receiver, "ejected");
                // Also where it is on its way in or has just gone: it may still hold a key.
                self.core.eject_receiver(receiver, now);
            }
            Command::Withdraw(name) => {
                if let Some(channel) = self.channel(&name) {
                    info!(channel = name, "the flow is withdrawn");
                    self.core.withdraw(channel, now);
                }
            }
            Command::Replace(name) => self.replace_flow(&name, now),
            Command::Message(name, number, message, answer) => {
                let channel = self.channel(&name);
                let sent = channel.map_or(Err(MessageError::NoChannel), |channel| {
                    self.core.send_message(channel, number, &message, now)
                });
                let _ = answer.send(sent);
            }
            Command::Abandon(name, seq) => {
                if let Some(channel) = self.channel(&name) {
                    self.core.abandon(channel, seq, now);
                }
            }
            Command::Disconnect(receiver, answer) => {
                let count = self.core.disconnect_receiver(receiver, now);
                info!(%receiver, connections = count, "disconnected by the operator");
                let _ = answer.send(count);
            }
            Command::Hold(receivers) => {
                info!(receivers = receivers.len(), "held on unicast");
                self.core.set_held(receivers, now);
            }
            Command::History(after, answer) => drop(answer.send(self.records.events.after(after))),
            Command::Status(answer) => drop(answer.send(self.status())),
            Command::Add(config, answer) => drop(answer.send(self.add_channel(*config))),
            Command::Remove(name, absence, answer) => {
                self.remove_channel(&name, absence, now);
                let _ = answer.send(());
            }
            Command::Elsewhere(name) => self.core.set_absent(&name, Absence::Elsewhere),
            Command::Certificate(quic, answer) => {
                self.gate.set_config(*quic);
                info!("another certificate is shown from now on");
                let _ = answer.send(());
            }
            Command::Drain(within, done) => self.drain(within, done, now),
            // The loop ends on it before it comes here.
            Command::Shutdown => {}
        }
    }

    pub(super) fn answer(&mut self, answer: StoreAnswer) {
        let now = Instant::now();
        match answer {
            StoreAnswer::Authorised { session, verdict } => self.authorised(session, verdict, now),
            StoreAnswer::Fetched {
                session,
                channel,
                from,
                updates,
            } => {
                self.core.provide(session, channel, from, updates, now);
                self.touched.insert(session);
            }
        }
    }

    fn authorised(&mut self, session: u64, verdict: Result<(), AdmissionError>, now: Instant) {
        let verdict = match (verdict, &self.draining) {
            (Ok(()), Some(_)) => Err(AdmissionError::Unavailable(
                "the source is shutting down; come back a little later".into(),
            )),
            (verdict, _) => verdict,
        };
        let verdict = verdict.map_err(|denied| match denied {
            AdmissionError::Token(reason) => (Refusal::BadCredential, reason),
            AdmissionError::InUse(reason) => (Refusal::IdInUse, reason),
            AdmissionError::Unavailable(reason) => (Refusal::Unavailable, reason),
        });
        self.core.authorised(session, verdict, now);
        self.touched.insert(session);
    }

    /// Probes a receiver whose id another one uses: an answer shows that it lives.
    fn probe(&mut self, session: SessionId, now: Instant) {
        if let Some(shard) = self.sessions.get(session).map(|known| known.shard) {
            self.shards.send(shard, Work::Probe(session), now);
        }
    }

    /// Executes the state machine's requests.
    pub(super) fn events(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(event) = self.core.poll_event() {
            match event {
                SourceEvent::Authorise { session, hello } => self.ask(session, hello),
                SourceEvent::Probe { session } => self.probe(session, now),
                SourceEvent::Ahead {
                    session,
                    channel,
                    seq,
                } => {
                    let name = self.core.receiver(session).map(|(_, name)| name);
                    let head = self.core.head(channel);
                    let channel = self.core.channel_name(channel);
                    warn!(
                        receiver = name,
                        channel,
                        cursor = seq,
                        head,
                        "cursor beyond the head; the receiver starts over"
                    );
                }
                SourceEvent::Moved {
                    session,
                    channel,
                    from,
                    to,
                    cause,
                    at,
                } => {
                    if let Some((_, name)) = self.core.receiver(session) {
                        let channel = self.core.channel_name(channel);
                        info!(receiver = name, channel, %from, %to, %cause, "moved");
                    }
                    let at_ms = self.sessions.get_mut(session);
                    let Some(at_ms) = at_ms.map(|known| known.since_ms(channel, at)) else {
                        continue;
                    };
                    self.note_move(session, channel, [from, to], cause, at_ms);
                }
                SourceEvent::Explained {
                    session,
                    channel,
                    rung,
                    on,
                    cause: Cause::RelayLost,
                } => self.explain_move(session, channel, rung, on),
                SourceEvent::Explained {
                    session,
                    channel,
                    rung,
                    on,
                    cause,
                } => {
                    if let Some((_, name)) = self.core.receiver(session) {
                        let channel = self.core.channel_name(channel);
                        info!(receiver = name, channel, tried = %rung, %on, %cause, "attempt failed");
                    }
                    let at_ms = unix_ms_now();
                    self.note_move(session, channel, [rung, on], cause, at_ms);
                }
                SourceEvent::Leg {
                    session,
                    channel,
                    leg,
                    state,
                    worked,
                    ..
                } => self.note_leg(session, channel, (leg, state), worked),
                SourceEvent::Forged {
                    session,
                    channel,
                    on,
                    signs,
                } => {
                    if let Some((_, name)) = self.core.receiver(session) {
                        let channel = self.core.channel_name(channel);
                        info!(receiver = name, channel, %on, signs, "forged packets reported");
                    }
                    let at_ms = unix_ms_now();
                    self.note_move(session, channel, [on, on], Cause::Forged, at_ms);
                }
                SourceEvent::MassFallBack {
                    channel,
                    members,
                    cause,
                } => {
                    let channel = self.core.channel_name(channel);
                    info!(channel, members, %cause, "many receivers fell back at once; look for \
                        what broke between the source and them");
                    self.records.add_mass_fall_back(channel, members, cause);
                }
                SourceEvent::Breaker { channel, state } => {
                    let channel = self.core.channel_name(channel);
                    match state {
                        BreakerState::Closed => info!(channel, "circuit breaker closed"),
                        BreakerState::Halved => {
                            warn!(channel, "most members lose most packets; flow halved");
                        }
                        BreakerState::Open => warn!(channel, "circuit breaker open; flow stopped"),
                    }
                }
                // A new secret is random and owes nothing to the one before.
                SourceEvent::SecretWanted { channel } => {
                    self.core.rekey(channel, random_secret()?, now);
                }
                SourceEvent::Close {
                    session,
                    code,
                    reason,
                } => {
                    if let Some(known) = self.sessions.get_mut(session) {
                        if code == close::REFUSED {
                            self.counters.refused += 1;
                            let name = self.core.receiver(session).map(|(_, name)| name);
                            warn!(receiver = name, from = %known.address(), reason, "refused");
                        }
                        known.close(code, reason);
                        self.touched.insert(session);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reports a change of one of a receiver's legs. The loss of the only one by its rung is a
    /// move; that of another one that worked is recorded here.
    fn note_leg(
        &mut self,
        session: SessionId,
        channel: ChannelIndex,
        (leg, state): (Leg, LegState),
        worked: bool,
    ) {
        let Some((_, name)) = self.core.receiver(session) else {
            return;
        };
        info!(receiver = name, channel = self.core.channel_name(channel), %leg, %state, "leg");
        let on = self.core.rung(session, channel);
        if worked
            && state == LegState::Lost
            && let Some(on) = on.filter(|on| leg.rung == Rung::Amt && leg.rung >= *on)
        {
            self.note_move(
                session,
                channel,
                [leg.rung, on],
                Cause::LegLost,
                unix_ms_now(),
            );
        }
    }

    /// Records a move, or a receiver's report that moves it nowhere.
    fn note_move(
        &mut self,
        session: SessionId,
        channel: ChannelIndex,
        [from, to]: [Rung; 2],
        cause: Cause,
        at_ms: u64,
    ) {
        let Some((receiver, name)) = self.core.receiver(session) else {
            return;
        };
        let step = Move {
            number: 0,
            at_ms,
            channel: self.core.channel_name(channel).to_owned(),
            receiver: receiver.to_string(),
            name: name.to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            cause: cause.to_string(),
        };
        self.records.add_move(step, cause);
    }

    /// Records that a receiver's relay was the cause of its last move from a rung.
    fn explain_move(&mut self, session: SessionId, channel: ChannelIndex, from: Rung, on: Rung) {
        let Some((receiver, name)) = self.core.receiver(session) else {
            return;
        };
        let (channel, cause) = (self.core.channel_name(channel), Cause::RelayLost);
        info!(receiver = name, channel, %from, %on, %cause, "its move is explained");
        let (receiver, from) = (receiver.to_string(), from.to_string());
        self.records.explain_move(&receiver, channel, &from, cause);
    }

    /// Asks the store about a HELLO, without waiting for it here.
    fn ask(&self, session: u64, hello: Hello) {
        let (backlog, answers) = (self.backlog.clone(), self.answers.0.clone());
        let Some(from) = self.sessions.get(session).map(Session::address) else {
            return;
        };
        let request = Admission {
            credential: hello.credential,
            receiver: hello.receiver,
            name: hello.name,
            software: hello.software,
            channels: hello.channels.into_iter().map(|(name, _)| name).collect(),
            from,
        };
        tokio::spawn(async move {
            let asked = backlog.authorise(&request);
            let late = || {
                Err(AdmissionError::Unavailable(
                    "the source's store does not answer".into(),
                ))
            };
            let answer = tokio::time::timeout(STORE_WITHIN, asked).await;
            let verdict = answer.unwrap_or_else(|_| late());
            let _ = answers
                .send(StoreAnswer::Authorised { session, verdict })
                .await;
        });
    }

    /// Asks the store for updates, without waiting for them here.
    pub(super) fn fetch(&self, session: u64, request: FetchRequest) {
        let (backlog, answers) = (self.backlog.clone(), self.answers.0.clone());
        let FetchRequest {
            channel,
            from,
            limit,
        } = request;
        let name = self.core.channel_name(channel).to_owned();
        tokio::spawn(async move {
            let asked = backlog.updates(&name, from, limit, FETCH_BYTES);
            let late = || Err("no answer in time".into());
            let answer = tokio::time::timeout(STORE_WITHIN, asked)
                .await
                .unwrap_or_else(|_| late());
            let updates = match answer {
                Ok(updates) => Some(updates),
                Err(error) => {
                    warn!(channel = name, from, error = %error, "the store does not answer; trying \
                        again");
                    None
                }
            };
            let _ = answers
                .send(StoreAnswer::Fetched {
                    session,
                    channel,
                    from,
                    updates,
                })
                .await;
        });
    }
}
