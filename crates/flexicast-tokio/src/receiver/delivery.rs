//! Delivery of events to the application.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime};

use flexicast::control::Refusal;
use flexicast::receiver::{Output, ReceiverEvent};
use tracing::warn;

use super::Event;
use super::engine::{Engine, MAX_HELD};
use super::tunnels::RelayStatus;

/// Bytes of updates that wait for the application, beside the number of events.
const WAITING_BYTES: usize = 16 << 20;

/// The events that were handed to the application and not taken by it yet.
#[derive(Default)]
pub(super) struct DeliveryState {
    sizes: VecDeque<usize>,
    bytes: usize,
}

impl DeliveryState {
    fn push(&mut self, event: &Event) {
        let size = match event {
            Event::Update { encoded, .. } => encoded.len(),
            Event::Datagram { data, .. } => data.len(),
            _ => 0,
        };
        self.sizes.push_back(size);
        self.bytes += size;
    }

    /// Only the last `waiting` have not been taken.
    fn settle(&mut self, waiting: usize) {
        while self.sizes.len() > waiting {
            self.bytes -= self.sizes.pop_front().unwrap_or_default();
        }
    }
}

impl Engine {
    /// Executes the state machine's requests and forwards its events.
    pub(super) fn core_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                ReceiverEvent::Join { flow, endpoints } => self.groups.join(flow, endpoints),
                ReceiverEvent::Rejoin { flow } => self.groups.rejoin(flow),
                ReceiverEvent::Leave { flow } => self.groups.leave(flow),
                ReceiverEvent::Tunnel {
                    flow,
                    channel,
                    endpoints,
                    relays,
                } => match self.tunnels.open(flow, channel, endpoints, relays) {
                    Ok(told) => self.tell_relays(told),
                    Err(told) => {
                        self.core.no_relay(flow, Instant::now());
                        self.tell_relays([told]);
                    }
                },
                ReceiverEvent::Retunnel { flow } => self.tunnels.doubt(flow),
                ReceiverEvent::EndTunnel { flow } => {
                    let told = self.tunnels.end(flow);
                    self.tell_relays(told);
                }
                ReceiverEvent::Explained {
                    channel,
                    rung,
                    on,
                    cause,
                } => {
                    self.held.push_back(Event::Explained {
                        channel,
                        rung,
                        on,
                        cause,
                        at: SystemTime::now(),
                    });
                }
                ReceiverEvent::Moved {
                    channel,
                    rung,
                    cause,
                } => {
                    self.held.push_back(Event::Rung {
                        channel,
                        rung,
                        cause,
                        at: SystemTime::now(),
                    });
                }
                ReceiverEvent::Welcome {
                    channel,
                    incarnation,
                    head,
                    first,
                    resync,
                } => {
                    let now = Instant::now();
                    self.welcomed_at = Some(now);
                    self.shunned.clear();
                    let before = first.saturating_sub(1);
                    self.stall.delivered(&channel, before, now);
                    self.held.push_back(Event::Welcome {
                        channel,
                        incarnation,
                        head,
                        first,
                        resync,
                    });
                }
                ReceiverEvent::Distrusted { channel, found } => {
                    // The counters say how many there are.
                    if self.held.len() < MAX_HELD {
                        self.held.push_back(Event::Distrusted { channel, found });
                    }
                }
                ReceiverEvent::Reconnect { channel, seq } => {
                    self.reconnect = Some(format!(
                        "update {seq} of {channel} came wrong by the flow; this source does not \
                         answer requests for it"
                    ));
                }
                ReceiverEvent::Datagram { channel, data } => {
                    // Messages are unreliable.
                    if self.held.len() < MAX_HELD {
                        self.held.push_back(Event::Datagram { channel, data });
                    }
                }
                ReceiverEvent::Refused { code, reason } => {
                    let later = [Refusal::Unavailable, Refusal::TooMany, Refusal::IdInUse];
                    let refusal = Refusal::from_number(code);
                    self.refused = Some(refusal.unwrap_or(Refusal::BadHello));
                    let fatal = !refusal.is_some_and(|refusal| later.contains(&refusal));
                    if fatal {
                        // The same words would be refused again.
                        self.stopped = true;
                        self.retry_at = None;
                    }
                    self.held.push_back(Event::Refused {
                        code,
                        reason,
                        fatal,
                    });
                }
                // Of a later version of the state machine.
                event => warn!(?event, "unknown event of the state machine ignored"),
            }
        }
    }

    /// Forwards the gateways' findings.
    pub(super) fn tell_relays(&mut self, all: impl IntoIterator<Item = RelayStatus>) {
        for told in all {
            self.held.push_back(Event::Relay {
                channel: told.channel,
                relay: told.relay,
                text: told.text,
                at: SystemTime::now(),
            });
        }
    }

    /// Hands out events and updates while the application takes them. What it does not take stays
    /// in the state machine, which then takes no more either.
    pub(super) fn hand_out(&mut self) {
        let waiting = self.events.max_capacity() - self.events.capacity();
        self.handed.settle(waiting);
        loop {
            if self.held.is_empty() {
                // Without room, one update that waits here makes the loop wait for room.
                let event = self.next_output();
                self.held.extend(event);
            }
            if self.held.is_empty() || self.handed.bytes >= WAITING_BYTES {
                return;
            }
            let Ok(permit) = self.events.try_reserve() else {
                return;
            };
            if let Some(event) = self.held.pop_front() {
                self.handed.push(&event);
                permit.send(event);
            }
        }
    }

    /// Returns the room at which a blocked delivery resumes, once the application has taken a good
    /// part of the pending events: following each one is not worth it.
    pub(super) fn room_later(&self) -> usize {
        let (most, free) = (self.events.max_capacity(), self.events.capacity());
        if free > 0 && self.handed.bytes < WAITING_BYTES {
            return 1;
        }
        (free + (most - free).div_ceil(4)).clamp(1, most)
    }

    fn next_output(&mut self) -> Option<Event> {
        let (channel, incarnation, output) = self.core.poll_update()?;
        let last = match &output {
            Output::Update(update) => update.seq,
            Output::Gap { to, .. } => *to,
        };
        self.stall.delivered(channel, last, Instant::now());
        let channel = channel.to_owned();
        Some(match output {
            Output::Update(update) => Event::Update {
                channel,
                incarnation,
                seq: update.seq,
                encoded: update.encoded,
                via: update.via,
            },
            Output::Gap { from, to } => Event::Gap { channel, from, to },
        })
    }

    /// Reports counters that have changed.
    pub(super) fn stats(&mut self) {
        for (i, (channel, _)) in self.config.channels.iter().enumerate() {
            let Some(stats) = self.core.stats(channel) else {
                continue;
            };
            if self.last_stats[i] == Some(stats) {
                continue;
            }
            let event = Event::Stats {
                channel: channel.clone(),
                stats,
            };
            // Counters without room are sent later.
            if let Ok(permit) = self.events.try_reserve() {
                self.handed.push(&event);
                permit.send(event);
                self.last_stats[i] = Some(stats);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_wait_are_those_that_were_not_taken() {
        let update = |len: usize| Event::Update {
            channel: "lore".into(),
            incarnation: uuid::Uuid::nil(),
            seq: 1,
            encoded: vec![0; len].into(),
            via: crate::Via::Unicast,
        };
        let mut handed = DeliveryState::default();
        for len in [5, 7, 11] {
            handed.push(&update(len));
        }
        handed.push(&Event::Gap {
            channel: "lore".into(),
            from: 1,
            to: 2,
        });
        assert_eq!(handed.bytes, 23);
        handed.settle(4);
        assert_eq!(handed.bytes, 23);
        handed.settle(2);
        assert_eq!(handed.bytes, 11);
        handed.settle(0);
        assert_eq!((handed.bytes, handed.sizes.len()), (0, 0));
    }
}
