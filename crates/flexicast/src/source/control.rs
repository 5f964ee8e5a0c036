//! What receivers say: control frames and acknowledgements.

use std::time::Instant;

use uuid::Uuid;

use super::channel::Channel;
use super::session::Session;
use super::subscription::Subscription;
use super::{FIRST_UPDATES, SessionId, Source, SourceEvent, close};
use crate::ack::{PATH_ACK, PathAck};
use crate::control::{Control, Credential, Hello, Refusal, WelcomeChannel, Window};
use crate::wire::Reader;
use crate::{Cause, Cursor, WireError};

impl Source {
    /// Bytes of a session's control stream. An error is a violation by the receiver: close the connection with it.
    ///
    /// # Errors
    /// The bytes are no frames, or frames that a receiver may not send now.
    pub fn on_control(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.closing) else {
            return Ok(());
        };
        session.control.push(bytes);
        loop {
            let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.closing) else {
                return Ok(());
            };
            let frame = session.control.next_frame()?;
            let skipped = session.control.take_skipped();
            session.control_limit.take(skipped as usize);
            if frame.is_none() && skipped == 0 {
                return Ok(());
            }
            if session.control_limit.ready_at(now) > now {
                self.counters.excess_control += 1;
                let reason = "more control frames than the source takes";
                self.close(id, close::EXCESSIVE, reason.into());
                return Ok(());
            }
            let Some(frame) = frame else {
                return Ok(());
            };
            session.control_limit.take(1);
            match frame {
                Control::Hello(_) if session.hello.is_some() => {
                    return Err(WireError::invalid("HELLO", "a second one"));
                }
                Control::Hello(hello) => {
                    session.instance = hello.credential.instance();
                    // The secret is for whoever decides, and not kept here.
                    session.hello = Some(Hello {
                        credential: Credential::None,
                        ..hello.clone()
                    });
                    match self.examine(&hello) {
                        Ok(()) => self
                            .events
                            .push_back(SourceEvent::Authorise { session: id, hello }),
                        Err((refusal, reason)) => self.refuse(id, refusal, reason),
                    }
                }
                _ if !session.served => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame before WELCOME",
                    ));
                }
                Control::Cursors(cursors) => {
                    for cursor in cursors {
                        self.on_cursor(id, cursor);
                    }
                }
                Control::State(state) => self.on_state(id, &state, now),
                Control::Window(window) => self.on_window(id, &window),
                Control::Welcome(_)
                | Control::Refused { .. }
                | Control::Announce(_)
                | Control::Key(_)
                | Control::Rung(_)
                | Control::Gap { .. } => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame that only sources send",
                    ));
                }
            }
        }
    }

    fn on_cursor(&mut self, id: SessionId, cursor: Cursor) {
        let same = |c: &Channel| c.incarnation == cursor.incarnation;
        let channel = self.channels.iter().position(same);
        let session = self.sessions.get_mut(&id);
        if let (Some(channel), Some(session)) = (channel, session)
            && let Some(subscription) = session.subscription(channel)
        {
            subscription.cursor = Some(cursor);
        }
    }

    fn on_window(&mut self, id: SessionId, window: &Window) {
        let Some(channel) = self.channel_of_flow(window.flow) else {
            return;
        };
        let Some(subscription) = self
            .sessions
            .get_mut(&id)
            .and_then(|s| s.subscription(channel))
        else {
            return;
        };
        if subscription
            .window_sequence
            .is_some_and(|known| window.sequence <= known)
        {
            return;
        }
        subscription.window_sequence = Some(window.sequence);
        if let Some(flow) = &mut self.channels[channel].flow {
            flow.on_window(id, window.offset);
        }
    }

    /// Whether a HELLO makes sense here.
    fn examine(&self, hello: &Hello) -> Result<(), (Refusal, String)> {
        if hello.channels.is_empty() {
            return Err((Refusal::BadHello, "no channel is asked for".into()));
        }
        for (at, (name, _)) in hello.channels.iter().enumerate() {
            if hello.channels[..at].iter().any(|(other, _)| other == name) {
                let reason = format!("the channel \"{name}\" is asked for twice");
                return Err((Refusal::BadHello, reason));
            }
        }
        Ok(())
    }

    fn refuse(&mut self, id: SessionId, refusal: Refusal, reason: String) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.say(&Control::Refused {
            code: refusal as u64,
            reason: reason.clone(),
        });
        self.close(id, close::REFUSED, reason);
    }

    /// Asks the owner to close a session; what it says meanwhile does not count.
    pub(super) fn close(&mut self, id: SessionId, code: u64, reason: String) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut session.closing, true) {
            return;
        }
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Close {
            session: id,
            code,
            reason,
        });
    }

    /// The decision about a HELLO: serves the receiver or turns it away.
    pub fn authorised(
        &mut self,
        id: SessionId,
        verdict: Result<(), (Refusal, String)>,
        now: Instant,
    ) {
        let asked = |s: &&Session| !s.served && !s.closing;
        let Some(hello) = self
            .sessions
            .get(&id)
            .filter(asked)
            .map(|s| s.hello.clone())
        else {
            return;
        };
        if let Err((refusal, reason)) = verdict {
            return self.refuse(id, refusal, reason);
        }
        let Some(hello) = hello else { return };
        // Only those who may receive learn what there is.
        let absent = hello.channels.iter().filter_map(|(n, _)| self.absence(n));
        // What will never be there weighs more than what is not there now.
        let absent = absent.min_by_key(|(refusal, _)| *refusal as u64);
        if let Some((refusal, reason)) = absent {
            return self.refuse(id, refusal, reason);
        }
        // Verdicts come in any order: an older connection does not throw out a newer one.
        if self
            .by_receiver
            .get(&hello.receiver)
            .is_some_and(|newer| *newer > id)
        {
            let reason = "the same receiver has connected anew".into();
            return self.close(id, close::SUPERSEDED, reason);
        }
        let replaces = usize::from(self.by_receiver.contains_key(&hello.receiver));
        if self.served - replaces >= self.limits.receivers {
            self.counters.too_many += 1;
            let reason = format!("{} receivers are served already", self.served);
            return self.refuse(id, Refusal::TooMany, reason);
        }
        self.supersede(id, hello.receiver, now);
        let mut welcome = Vec::new();
        let mut subscriptions = Vec::new();
        for (name, cursor) in &hello.channels {
            let Some(index) = self.channel_named(name) else {
                continue;
            };
            let channel = &self.channels[index];
            // A cursor beyond the head is from a history that this store does not have: the receiver sees that by the head, and starts over.
            let known = |c: &&Cursor| c.incarnation == channel.incarnation && c.seq <= channel.head;
            let cursor = cursor.as_ref().filter(known);
            let first = match cursor {
                Some(cursor) => cursor.seq + 1,
                None => (channel.head + 1).saturating_sub(FIRST_UPDATES),
            };
            let first = first.max(channel.first).min(channel.head + 1);
            let mut subscription = Subscription::new(index, now);
            // One that stands at the beginning says that the outputs hold nothing.
            subscription.cursor = cursor.copied().filter(|c| c.seq > 0);
            subscription.backlog.start(first, channel.head);
            subscriptions.push(subscription);
            welcome.push(WelcomeChannel {
                channel: Channel::number(index),
                name: name.clone(),
                incarnation: channel.incarnation,
                head: channel.head,
                first,
            });
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.served = true;
        self.served += 1;
        session.say(&Control::Welcome(welcome));
        for subscription in &subscriptions {
            let index = subscription.channel;
            if let Some(announce) = self.channels[index].announcement(index) {
                session.say(&Control::Announce(announce));
            }
        }
        session.subscriptions = subscriptions;
        self.dirty.insert(id);
    }

    /// A receiver that connects anew has given up its older connection.
    fn supersede(&mut self, id: SessionId, receiver: Uuid, now: Instant) {
        let old = self.by_receiver.insert(receiver, id);
        if let Some(session) = old.filter(|old| *old != id) {
            self.closed(session, now);
            let reason = "the same receiver has connected anew".to_owned();
            self.events.push_back(SourceEvent::Close {
                session,
                code: close::SUPERSEDED,
                reason,
            });
        }
    }

    /// A DATAGRAM of a session. An error is a violation by the receiver: close the connection with it.
    ///
    /// # Errors
    /// It begins like an acknowledgement and is none.
    pub fn on_datagram(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        let mut r = Reader::new("DATAGRAM", bytes);
        if r.varint()? != PATH_ACK {
            return Ok(());
        }
        let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.closing) else {
            return Ok(());
        };
        if session.ack_limit.ready_at(now) > now {
            self.counters.excess_acks += 1;
            return Ok(());
        }
        session.ack_limit.take(1);
        let ack = PathAck::decode(bytes)?;
        let index = ack.path.flow_index();
        let Some(channel) = self.channels.iter().position(|c| c.flow_index == index) else {
            // Of a flow that was replaced meanwhile.
            return Ok(());
        };
        let Some(flow) = &mut self.channels[channel].flow else {
            return Ok(());
        };
        if flow.on_ack(id, &ack, now).is_err() {
            // Perhaps not its own fault: whoever holds the flow's key can forge packets, and nothing that arrives on the flow may close a connection.
            self.counters.invalid_acks += 1;
            if let Some(departure) = flow.dismiss(id) {
                self.fell_back(id, channel, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow_events(channel, now);
        Ok(())
    }
}
