//! Input of receivers: control frames and acknowledgements.

use std::time::Instant;

use super::Source;
use super::channel::Channel;
use super::outputs::CursorAhead;
use super::subscription::Subscription;
use super::types::{SessionId, SourceEvent, channel_number, close};
use crate::ack::{PATH_ACK, PathAck};
use crate::control::{Action, Control, Need, NeedReason, State, Window};
use crate::flow::ledger::StreamRange;
use crate::wire::Reader;
use crate::{Cursor, WireError};

impl Source {
    /// Bytes of a session's control stream. An error is a violation by the receiver: close the
    /// connection with it.
    ///
    /// # Errors
    /// The bytes are no frames, or frames that a receiver may not send now.
    pub fn on_control(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        let Some(session) = self.sessions.get_mut(id).filter(|s| !s.is_closing()) else {
            return Ok(());
        };
        session.control.push(bytes);
        loop {
            let Some(session) = self.sessions.get_mut(id).filter(|s| !s.is_closing()) else {
                return Ok(());
            };
            let frame = session.control.next_frame()?;
            let skipped = session.control.take_skipped();
            session.budgets.control.take(skipped as usize);
            if frame.is_none() && skipped == 0 {
                return Ok(());
            }
            if session.budgets.control.ready_at(now) > now {
                self.out.counters.excess_control += 1;
                let reason = "more control frames than the source takes";
                self.close(id, close::EXCESSIVE, reason.into());
                return Ok(());
            }
            let Some(frame) = frame else {
                return Ok(());
            };
            session.budgets.control.take(1);
            match frame {
                Control::Hello(_) if session.hello().is_some() => {
                    return Err(WireError::invalid("HELLO", "a second one"));
                }
                Control::Hello(hello) => {
                    session.greet(&hello);
                    match self.examine(&hello) {
                        Ok(()) => self.out.push(SourceEvent::Authorise { session: id, hello }),
                        Err((refusal, reason)) => self.refuse(id, refusal, reason),
                    }
                }
                _ if !session.is_served() => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame before WELCOME",
                    ));
                }
                Control::Cursors(cursors) => {
                    for cursor in cursors {
                        self.on_cursor(id, cursor)?;
                    }
                }
                Control::State(state) => self.on_state(id, &state, now),
                Control::Window(window) => self.on_window(id, &window),
                Control::Legs(legs) => self.on_legs(id, legs, now),
                Control::Need(need) => self.on_need(id, &need, now)?,
                Control::Clock(clock) => self.on_clock(id, clock, now),
                Control::Welcome(_)
                | Control::Refused { .. }
                | Control::Announce(_)
                | Control::Key(_)
                | Control::Rung(_)
                | Control::Feedback(_)
                | Control::Heard(_)
                | Control::TagKey(_)
                | Control::Addresses(_)
                | Control::Lineage(_)
                | Control::Keys(_)
                | Control::Expired(_)
                | Control::Gap { .. } => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame that only sources send",
                    ));
                }
            }
        }
    }

    fn on_cursor(&mut self, id: SessionId, cursor: Cursor) -> Result<(), WireError> {
        let same = |c: &Channel| c.incarnation == cursor.incarnation;
        if let Some((index, channel)) = self.channels.find(same)
            && let Some(subscription) = self.sessions.subscription(id, index)
        {
            let head = channel.head;
            match subscription.outputs.update(cursor, head) {
                Ok(is_open) => self.cursors_open |= is_open,
                Err(CursorAhead) => {
                    self.out.counters.cursors_ahead += 1;
                    return Err(WireError::invalid("CURSOR", "a seq beyond the head"));
                }
            }
        }
        Ok(())
    }

    /// Bytes that the flow brought wrong are sent on the unicast path, those of an update that is
    /// not published yet when it is.
    fn on_need(&mut self, id: SessionId, need: &Need, now: Instant) -> Result<(), WireError> {
        let Some(session) = self.sessions.get_mut(id) else {
            return Ok(());
        };
        let wrong = need.reason != NeedReason::Missing as u64;
        self.out.counters.needs += u64::from(wrong);
        let (budgets, subscriptions) = session.budgets_and_subscriptions();
        let number = |s: &&mut Subscription| channel_number(s.channel) == need.channel;
        let Some(subscription) = subscriptions.iter_mut().find(number) else {
            return Err(WireError::invalid(
                "NEED",
                "a channel that WELCOME did not name",
            ));
        };
        let index = subscription.channel;
        let head = self.channels.head(index);
        // Bytes of an update that is not published yet are forged, whatever is missing.
        self.out.counters.needs += u64::from(!wrong && need.seq > head);
        self.out.counters.needs_missing += u64::from(!wrong && need.seq <= head);
        let range = need.offset
            ..need
                .length
                .map_or(u64::MAX, |n| need.offset.saturating_add(n));
        let seq = need.seq;
        let asked = StreamRange { seq, range };
        // An honest receiver is held up by many of these, too, when its connection stalled: it is
        // not closed. What its outputs lack it gets all the same, since its cursor shows it.
        let answered = if seq > head {
            if let Some(channel) = self.channels.get_mut(index) {
                channel.direct.insert(id);
            }
            subscription.delivery.need_later(seq, head)
        } else if subscription.delivery.backlog.owes(&asked) {
            true
        } else if budgets.needs.ready_at(now) <= now {
            budgets.needs.take(1);
            subscription.delivery.backlog.repair([asked]);
            self.out.mark_dirty(id);
            true
        } else {
            false
        };
        self.out.counters.excess_needs += u64::from(!answered);
        let is_forged = need.reason == NeedReason::Forged as u64;
        if (is_forged || seq > head)
            && let Some(mut scope) = self.scope(index)
        {
            match is_forged {
                true => scope.on_forged_need(id, seq, now),
                // One forged update makes a receiver ask for many before it.
                false => scope.note_forgery(id, false, now),
            }
        }
        Ok(())
    }

    fn on_state(&mut self, id: SessionId, state: &State, now: Instant) {
        // A frame may be about a flow that was replaced meanwhile.
        let Some(index) = self.channels.of_flow(state.flow) else {
            return;
        };
        let session = self.sessions.get(id);
        let channel = self.channels.get(index);
        if !session.is_some_and(|s| channel.is_some_and(|channel| channel.is_for(s))) {
            return;
        }
        let mut scope = self.scope(index);
        if !scope
            .as_mut()
            .is_some_and(|s| s.accept_state(id, state, now))
        {
            return;
        }
        if state.action == Action::Join {
            // The limit of replication counts those of this instant, too.
            self.settle(now);
        }
        if let Some(mut scope) = self.scope(index) {
            scope.on_state(id, state, now);
        }
    }

    fn on_window(&mut self, id: SessionId, window: &Window) {
        let index = self.channels.of_flow(window.flow);
        let Some(mut scope) = index.and_then(|index| self.scope(index)) else {
            return;
        };
        let subscription = scope.subscription(id);
        if subscription.is_some_and(|s| s.ladder.windows.advance(window.sequence))
            && let Some(flow) = &mut scope.channel.flow
        {
            flow.on_window(id, window.offset);
        }
    }

    /// Asks the owner to close a session; what it says meanwhile does not count.
    pub(super) fn close(&mut self, id: SessionId, code: u64, reason: String) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if !session.begin_close() {
            return;
        }
        self.out.mark_dirty(id);
        self.out.push(SourceEvent::Close {
            session: id,
            code,
            reason,
        });
    }

    /// Handles a DATAGRAM of a session.
    ///
    /// # Errors
    /// A violation by the receiver: the datagram begins like an acknowledgement and is none. Close
    /// the connection with it.
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
        let Some(session) = self.sessions.get_mut(id).filter(|s| !s.is_closing()) else {
            return Ok(());
        };
        if session.budgets.acks.ready_at(now) > now {
            self.out.counters.excess_acks += 1;
            return Ok(());
        }
        session.budgets.acks.take(1);
        self.out.counters.acks += 1;
        let ack = PathAck::decode(bytes)?;
        let index = ack.path.flow_index();
        // An acknowledgement may be of a flow that was replaced meanwhile.
        let found = self.channels.find(|c| c.flow_index == index);
        let found = found.map(|(index, _)| index);
        if let Some(mut scope) = found.and_then(|index| self.scope(index)) {
            scope.on_ack(id, &ack, now);
        }
        Ok(())
    }
}
