//! Who is on the flow: promotion on proof, fall-back, back-off, and replacement of the flow (protocol.md section 8).

use std::time::{Duration, Instant};

use rand::RngExt;

use super::session::Session;
use super::{CHANNEL, LIVE_WITHIN, SessionId, Source, SourceEvent};
use crate::control::{Action, Announce, Control, Key, RungNotice, State};
use crate::flow::{Departure, FlowConfig, FlowEvent, FlowSender};
use crate::protect::KeyError;
use crate::{Cause, PathId, Rung};

/// A membership shorter than this counts as flapping.
const FLAP: Duration = Duration::from_secs(10);
/// FC_KEY sequence of the one epoch.
const KEY_SEQUENCE: u64 = 0;
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

impl Source {
    pub(super) fn announcement(&self) -> Option<Announce> {
        let config = self.flow.as_ref()?.config();
        Some(Announce {
            flow: config.flow,
            sequence: self.announce_sequence,
            endpoints: self.config.endpoints.clone(),
            ack_delay: config.ack_delay,
            flow_index: self.flow_index,
            channel: CHANNEL,
            heartbeat: config.heartbeat,
        })
    }

    pub(super) fn on_state(&mut self, id: SessionId, state: &State, now: Instant) {
        let (Some(flow), Some(session)) = (&mut self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let config = flow.config();
        if state.flow != config.flow
            || session
                .state_sequence
                .is_some_and(|known| state.sequence <= known)
        {
            // About a flow that was replaced meanwhile, or overtaken.
            return;
        }
        session.state_sequence = Some(state.sequence);
        match state.action {
            Action::Join => {
                // Answered once: the answer is larger than the question.
                if std::mem::replace(&mut session.joined, true) {
                    return;
                }
                let key = Key {
                    flow: config.flow,
                    sequence: KEY_SEQUENCE,
                    first_pn: 0,
                    secret: config.secret.clone(),
                    algorithm: config.algorithm as u64,
                };
                Control::Key(key).encode(&mut session.control_out);
                self.dirty.insert(id);
                self.count_listeners(now);
            }
            Action::Ready => {
                let known_path = state.path.rung() == Some(Rung::Multicast)
                    && state.path.flow_index() == self.flow_index;
                let backing_off = session.backoff_until.is_some_and(|until| now < until);
                if session.joined
                    && known_path
                    && state.key_sequence == KEY_SEQUENCE
                    && session.member.is_none()
                    && !backing_off
                {
                    session.ready = Some(state.path);
                    self.try_promote(id, now);
                }
            }
            Action::Leave => {
                let cause = state.cause.unwrap_or(Cause::Left);
                if config.fall_back_off && cause == Cause::HeartbeatLost {
                    return;
                }
                if let Some(departure) = flow.dismiss(id) {
                    self.fell_back(id, cause, departure, now);
                }
                // Who misses heartbeats goes on listening for the flow's return; anybody else is off it.
                if cause != Cause::HeartbeatLost {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.joined = false;
                        session.ready = None;
                    }
                    self.count_listeners(now);
                }
            }
        }
    }

    pub(super) fn count_listeners(&mut self, now: Instant) {
        let listeners = self.sessions.values().filter(|s| s.joined).count();
        if let Some(flow) = &mut self.flow {
            flow.set_listeners(listeners, now);
        }
    }

    /// Makes a receiver a member if it has proved that packets arrive and is near enough to the head.
    pub(super) fn try_promote(&mut self, id: SessionId, now: Instant) {
        let (Some(flow), Some(session)) = (&mut self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let Some(path) = session.ready else { return };
        let backing_off = session.backoff_until.is_some_and(|until| now < until);
        if session.member.is_some() || backing_off || session.backlog.len() > LIVE_WITHIN {
            return;
        }
        let cut = flow.admit(id, path, session.rtt);
        session.ready = None;
        session.member = Some(path);
        session.cut_head = self.head;
        session.since = now;
        session.backlog.set_live(false);
        let notice = session.notice(flow.config().flow, path, cut, Cause::Joined);
        Control::Rung(notice).encode(&mut session.control_out);
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            from: Rung::Unicast,
            to: Rung::Multicast,
            cause: Cause::Joined,
        });
    }

    /// The other end of a membership: everything that the flow did not bring goes to the unicast path.
    pub(super) fn fell_back(
        &mut self,
        id: SessionId,
        cause: Cause,
        departure: Departure,
        now: Instant,
    ) {
        let (Some(flow), Some(session)) = (&mut self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let Some(path) = session.member.take() else {
            return;
        };
        session.backlog.repair(departure.owed);
        session
            .backlog
            .insert(departure.resume.max(session.cut_head + 1), self.head);
        session.ready = None;
        session.backlog.set_live(true);
        // A first membership that ends soon is a failure, only one after a return is flapping.
        let flapped = session.returned && now.saturating_duration_since(session.since) < FLAP;
        session.returned = true;
        session.flaps = if flapped {
            session.flaps.saturating_add(1)
        } else {
            0
        };
        session.backoff_until = None;
        if session.flaps > 0 {
            let wait = BACKOFF_FIRST
                .saturating_mul(1 << (session.flaps - 1).min(16))
                .min(BACKOFF_MAX);
            let until = now + wait.mul_f64(self.rng.random_range(0.75..1.25));
            session.backoff_until = Some(until);
            self.proofs.insert((until, id));
        }
        session.since = now;
        session.last_cause = cause;
        let notice = session.notice(flow.config().flow, PathId::UNICAST, flow.next_pn(), cause);
        Control::Rung(notice).encode(&mut session.control_out);
        self.dirty.insert(id);
        let from = path.rung().unwrap_or(Rung::Multicast);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            from,
            to: Rung::Unicast,
            cause,
        });
    }

    pub(super) fn flow_events(&mut self, now: Instant) {
        while let Some(event) = self.flow.as_mut().and_then(FlowSender::poll_event) {
            match event {
                FlowEvent::Repair { member, range } => {
                    if self.config.repair_off {
                        continue;
                    }
                    if let Some(session) = self.sessions.get_mut(&member) {
                        session.backlog.repair([range]);
                        self.dirty.insert(member);
                    }
                }
                FlowEvent::FellBack {
                    member,
                    cause,
                    mut departure,
                } => {
                    if self.config.repair_off {
                        departure.owed.clear();
                    }
                    self.fell_back(member, cause, departure, now);
                }
            }
        }
    }

    /// The back-off of a receiver that flapped is over: packets from now on prove that the flow reaches it.
    pub(super) fn ask_for_proof(&mut self, id: SessionId, now: Instant) {
        let (Some(flow), Some(session)) = (&self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        if session.member.is_some() || session.backoff_until.is_none_or(|until| until > now) {
            return;
        }
        session.backoff_until = None;
        let notice = session.notice(
            flow.config().flow,
            PathId::UNICAST,
            flow.next_pn(),
            session.last_cause,
        );
        Control::Rung(notice).encode(&mut session.control_out);
        self.dirty.insert(id);
    }

    /// Withdraws the flow and begins another one with a fresh Flow ID and secret: members go to unicast and prove themselves anew.
    pub fn replace_flow(&mut self, config: FlowConfig, now: Instant) -> Result<(), KeyError> {
        let fresh = FlowSender::new(config)?;
        let Some(mut withdrawn) = self.announcement() else {
            return Ok(());
        };
        withdrawn.endpoints.clear();
        self.announce_sequence += 1;
        withdrawn.sequence = self.announce_sequence;
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in &ids {
            if let Some(departure) = self.flow.as_mut().and_then(|f| f.dismiss(*id)) {
                self.fell_back(*id, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow = Some(fresh);
        // Path ids of its own: acknowledgements of the old flow that are under way mean nothing for this one.
        self.flow_index += 1;
        self.worn_out = false;
        let announce = self.announcement();
        for (id, session) in self.sessions.iter_mut().filter(|(_, s)| s.served) {
            session.forget_flow();
            Control::Announce(withdrawn.clone()).encode(&mut session.control_out);
            if let Some(announce) = &announce {
                Control::Announce(announce.clone()).encode(&mut session.control_out);
            }
            self.dirty.insert(*id);
        }
        Ok(())
    }
}

impl Session {
    fn notice(
        &mut self,
        flow: crate::FlowId,
        path: PathId,
        first_pn: u64,
        cause: Cause,
    ) -> RungNotice {
        self.notice_sequence += 1;
        RungNotice {
            flow,
            sequence: self.notice_sequence,
            path,
            first_pn,
            cause,
        }
    }
}
