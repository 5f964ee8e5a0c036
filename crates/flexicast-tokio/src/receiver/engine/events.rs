//! Events of the state machine: requests to execute, and what is for the application.

use std::time::{Instant, SystemTime};

use flexicast::receiver::{AuthenticationFailure, Output, Receiver as Core, ReceiverEvent};
use tracing::warn;

use super::Engine;
use crate::receiver::Event;
use crate::receiver::stall::Stall;
use crate::receiver::tunnels::RelayStatus;

impl Engine {
    /// Executes the state machine's requests and forwards its events.
    pub(super) fn core_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                ReceiverEvent::Addresses(addresses) => {
                    if let Some(connection) = &self.connection {
                        let now = Instant::now();
                        self.reconnection.announced(addresses, connection.peer, now);
                    }
                    self.remember_source();
                }
                ReceiverEvent::Join { flow, endpoints } => self.groups.join(flow, endpoints),
                ReceiverEvent::Rejoin { flow } => self.groups.rejoin(flow),
                ReceiverEvent::Leave { flow } => self.groups.leave(flow),
                ReceiverEvent::Tunnel {
                    flow,
                    number,
                    channel,
                    endpoints,
                    relays,
                } => match self
                    .tunnels
                    .open((flow, number), channel, endpoints, relays)
                {
                    Ok(statuses) => self.report_relays(statuses),
                    Err(status) => {
                        self.core.no_relay(flow, number, Instant::now());
                        self.report_relays([status]);
                    }
                },
                ReceiverEvent::Retunnel { flow, number } => {
                    let statuses = self.tunnels.doubt(flow, number);
                    self.report_relays(statuses);
                }
                ReceiverEvent::EndTunnel { flow, number } => {
                    let statuses = self.tunnels.end(flow, number);
                    self.report_relays(statuses);
                }
                ReceiverEvent::Explained {
                    channel,
                    rung,
                    on,
                    cause,
                } => {
                    self.delivery.push(Event::Explained {
                        channel,
                        rung,
                        on,
                        cause,
                        at: SystemTime::now(),
                    });
                }
                ReceiverEvent::Leg {
                    channel,
                    leg,
                    state,
                } => {
                    self.delivery.push(Event::Leg {
                        channel,
                        leg,
                        state,
                        at: SystemTime::now(),
                    });
                }
                ReceiverEvent::OneLeg => self.delivery.push(Event::OneLeg),
                ReceiverEvent::Moved {
                    channel,
                    rung,
                    cause,
                } => {
                    self.delivery.push(Event::Rung {
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
                    self.reconnection.welcomed(now);
                    self.remember_source();
                    let before = first.saturating_sub(1);
                    self.stall.delivered(&channel, before, now);
                    self.delivery.push(Event::Welcome {
                        channel,
                        incarnation,
                        head,
                        first,
                        resync,
                    });
                }
                ReceiverEvent::Lineage { channel, lineage } => {
                    self.delivery.push(Event::Lineage { channel, lineage });
                }
                ReceiverEvent::Distrusted { channel, found } => {
                    // The counters say how many there are.
                    if !self.delivery.is_crowded() {
                        self.delivery.push(Event::Distrusted { channel, found });
                    }
                }
                ReceiverEvent::AuthenticationFailed { channel, failure } => {
                    self.authentication_failed(channel, failure);
                }
                ReceiverEvent::Reconnect { channel, seq } => {
                    self.reconnect = Some(format!(
                        "update {seq} of {channel} came wrong by the flow; this source does not \
                         answer requests for it"
                    ));
                }
                ReceiverEvent::Message {
                    channel,
                    number,
                    deadline_ms,
                    encoded,
                } => {
                    // Messages are unreliable.
                    if !self.delivery.is_crowded() {
                        let expires_at = deadline_ms.and_then(|at| self.core.passes_at(at));
                        self.delivery.push(Event::Message {
                            channel,
                            number,
                            encoded,
                            deadline_ms,
                            expires_at,
                        });
                    }
                }
                ReceiverEvent::Refused { code, reason } => {
                    let fatal = self.reconnection.refused(code);
                    self.delivery.push(Event::Refused {
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

    /// Ends a connection by which the source failed to authenticate an update, and leaves the
    /// channel out of the next ones once that is certain.
    fn authentication_failed(&mut self, channel: String, failure: AuthenticationFailure) {
        let (seq, forgery) = (failure.seq, failure.forgery);
        self.reconnect = Some(format!("update {seq} of {channel}: {forgery}"));
        let now = Instant::now();
        if let Some(retry_in) = self.suspensions.failed(&channel, seq, now) {
            self.core.suspend(&channel, true);
            self.delivery.push(Event::AuthenticationFailed {
                channel,
                failure,
                retry_in,
            });
        }
    }

    /// Takes suspended channels in again that are due. Returns whether there are any.
    pub(super) fn resume_channels(&mut self, now: Instant) -> bool {
        let due = self.suspensions.take_due(now);
        due.iter()
            .for_each(|channel| self.core.suspend(channel, false));
        !due.is_empty()
    }

    /// Remembers where the source is, and reports it if that has changed.
    fn remember_source(&mut self) {
        let peer = self.connection.as_ref().map(|connection| connection.peer);
        if let Some(known) = peer.and_then(|peer| self.reconnection.remember(peer)) {
            self.delivery.push(Event::Addresses { known });
        }
    }

    /// Forwards the gateways' findings.
    pub(super) fn report_relays(&mut self, statuses: impl IntoIterator<Item = RelayStatus>) {
        for status in statuses {
            self.delivery.push(Event::Relay {
                channel: status.channel,
                number: status.number,
                relay: status.relay,
                text: status.text,
                at: SystemTime::now(),
            });
        }
    }

    /// Hands out events and updates while the application takes them. What it does not take stays
    /// in the state machine, which then takes no more either. Returns whether it took any.
    pub(super) fn hand_out(&mut self) -> bool {
        let (core, stall) = (&mut self.core, &mut self.stall);
        self.delivery.hand_out(|| next_output(core, stall))
    }

    /// Reports counters that have changed.
    pub(super) fn report_stats(&mut self) {
        for (i, (channel, _)) in self.config.channels.iter().enumerate() {
            if let Some(stats) = self.core.stats(channel) {
                self.delivery.report_stats(i, channel, stats);
            }
        }
    }
}

fn next_output(core: &mut Core, stall: &mut Stall) -> Option<Event> {
    let now = Instant::now();
    if let Some((channel, incarnation, update)) = core.poll_live(now) {
        let channel = channel.to_owned();
        let deadline_ms = update.deadline_ms.unwrap_or(u64::MAX);
        return Some(Event::Live {
            channel,
            incarnation,
            seq: update.seq,
            encoded: update.encoded,
            via: update.via,
            deadline_ms,
            expires_at: core.passes_at(deadline_ms),
        });
    }
    let (channel, incarnation, output) = core.poll_update()?;
    stall.delivered(channel, output.last(), now);
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
        Output::Expired { from, to, .. } => Event::Expired { channel, from, to },
    })
}
