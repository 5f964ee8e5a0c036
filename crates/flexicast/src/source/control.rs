//! Input of receivers: control frames and acknowledgements.

use std::time::Instant;

use super::channel::Channel;
use super::overdue::CursorAhead;
use super::subscription::Subscription;
use super::types::channel_number;
use super::{SessionId, Source, SourceEvent, close};
use crate::ack::{PATH_ACK, PathAck};
use crate::control::{Control, Need, NeedReason, Window};
use crate::flow::ledger::StreamRange;
use crate::wire::Reader;
use crate::{Cause, Cursor, WireError};

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
        let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.is_closing()) else {
            return Ok(());
        };
        session.control.push(bytes);
        loop {
            let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.is_closing()) else {
                return Ok(());
            };
            let frame = session.control.next_frame()?;
            let skipped = session.control.take_skipped();
            session.budgets.control.take(skipped as usize);
            if frame.is_none() && skipped == 0 {
                return Ok(());
            }
            if session.budgets.control.ready_at(now) > now {
                self.counters.excess_control += 1;
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
                        Ok(()) => self
                            .events
                            .push_back(SourceEvent::Authorise { session: id, hello }),
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
                Control::Need(need) => self.on_need(id, &need, now)?,
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

    fn on_cursor(&mut self, id: SessionId, cursor: Cursor) -> Result<(), WireError> {
        let same = |c: &Channel| c.incarnation == cursor.incarnation;
        let channel = self.channels.iter().position(same);
        let session = self.sessions.get_mut(&id);
        if let (Some(channel), Some(session)) = (channel, session)
            && let Some(subscription) = session.subscription(channel)
        {
            let head = self.channels[channel].head;
            match subscription.outputs.update(cursor, head) {
                Ok(is_open) => self.cursors.note(is_open),
                Err(CursorAhead) => {
                    self.counters.cursors_ahead += 1;
                    return Err(WireError::invalid("CURSOR", "a seq beyond the head"));
                }
            }
        }
        Ok(())
    }

    /// Bytes that the flow brought wrong are sent on the unicast path, those of an update that is
    /// not published yet when it is.
    fn on_need(&mut self, id: SessionId, need: &Need, now: Instant) -> Result<(), WireError> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Ok(());
        };
        let wrong = need.reason != NeedReason::Missing as u64;
        self.counters.needs += u64::from(wrong);
        let (budgets, subscriptions) = session.budgets_and_subscriptions();
        let number = |s: &&mut Subscription| channel_number(s.channel) == need.channel;
        let Some(subscription) = subscriptions.iter_mut().find(number) else {
            return Err(WireError::invalid(
                "NEED",
                "a channel that WELCOME did not name",
            ));
        };
        let head = self.channels[subscription.channel].head;
        // Bytes of an update that is not published yet are forged, whatever is missing.
        self.counters.needs += u64::from(!wrong && need.seq > head);
        let range = need.offset
            ..need
                .length
                .map_or(u64::MAX, |n| need.offset.saturating_add(n));
        let seq = need.seq;
        let asked = StreamRange { seq, range };
        // An honest receiver is held up by many of these, too, when its connection stalled: it is
        // not closed. What its outputs lack it gets all the same, since its cursor shows it.
        let answered = if seq > head {
            subscription.delivery.need_later(seq, head)
        } else if subscription.delivery.backlog.owes(&asked) {
            true
        } else if budgets.needs.ready_at(now) <= now {
            budgets.needs.take(1);
            subscription.delivery.backlog.repair([asked]);
            self.dirty.insert(id);
            true
        } else {
            false
        };
        self.counters.excess_needs += u64::from(!answered);
        Ok(())
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
        if !subscription.ladder.windows.advance(window.sequence) {
            return;
        }
        if let Some(flow) = &mut self.channels[channel].flow {
            flow.on_window(id, window.offset);
        }
    }

    /// Asks the owner to close a session; what it says meanwhile does not count.
    pub(super) fn close(&mut self, id: SessionId, code: u64, reason: String) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !session.begin_close() {
            return;
        }
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Close {
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
        let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.is_closing()) else {
            return Ok(());
        };
        if session.budgets.acks.ready_at(now) > now {
            self.counters.excess_acks += 1;
            return Ok(());
        }
        session.budgets.acks.take(1);
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
            // Possibly not the receiver's fault: any holder of the flow's key can forge packets,
            // and nothing that arrives on the flow may close a connection.
            self.counters.invalid_acks += 1;
            if let Some(departure) = flow.dismiss(id) {
                // One forged packet does this to all members at once.
                self.channels[channel].count_fall_back(Cause::FlowInvalid, now);
                self.fell_back(id, channel, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow_events(channel, now);
        Ok(())
    }
}
