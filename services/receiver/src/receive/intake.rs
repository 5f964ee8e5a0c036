//! Intake of the transport's events into the pending batches.

use flexicast_tokio::receiver::Event;
use tracing::debug;

use super::LoopExit;
use super::lane::Lane;
use crate::board::Board;
use crate::connection_log::ConnectionLog;
use crate::deliver::{Item, ItemKind, ReceivedUpdate};
use crate::journal::Missing;
use crate::sink::Sink;
use service::peer_text::plain;

/// Intake of events.
pub(super) struct Intake<'a> {
    pub(super) board: &'a Board,
    pub(super) log: ConnectionLog,
}

impl Intake<'_> {
    /// Takes an event. Returns the end of the loop if the event causes it.
    pub(super) fn take<S: Sink>(
        &mut self,
        event: Event,
        lanes: &mut [Lane<'_, S>],
    ) -> Option<LoopExit> {
        let channel = match &event {
            Event::Update { channel, .. }
            | Event::Gap { channel, .. }
            | Event::Expired { channel, .. }
            | Event::Lineage { channel, .. } => Some(channel),
            _ => None,
        };
        // The update arrives again after the reconnection, and counts then. One with a deadline is
        // shown meanwhile, for it would be late.
        if channel.is_some_and(|name| lanes.iter().any(|l| l.channel == *name && l.is_behind())) {
            return None;
        }
        let silenced = false;
        #[cfg(feature = "fault-injection")]
        let silenced = silenced
            || service::faults::Fault::GapsUntold.is_injected()
                && matches!(event, Event::Gap { .. });
        if !silenced {
            self.log.log(&event, self.board);
            self.board.apply(&event);
        }
        match event {
            Event::Update {
                channel,
                incarnation,
                seq,
                encoded,
                via,
            } => {
                let lane = find(lanes, &channel)?;
                let live_after = lane.live_after;
                let kind = ItemKind::Update(ReceivedUpdate {
                    encoded,
                    via,
                    live: live_after.is_some_and(|head| seq > head),
                });
                lane.push(Item {
                    incarnation,
                    seq,
                    kind,
                });
            }
            Event::Welcome {
                channel,
                incarnation,
                head,
                first,
                resync,
            } => {
                let lane = find(lanes, &channel)?;
                lane.live_after = Some(head);
                let renumbered = lane.incarnation.replace(incarnation) != Some(incarnation);
                // The incarnation stays the same if an older backup was restored.
                if renumbered || resync {
                    lane.push(Item {
                        incarnation,
                        seq: first.saturating_sub(1),
                        kind: ItemKind::Begins { resync },
                    });
                }
            }
            Event::Refused {
                code,
                reason,
                fatal: true,
            } => return Some(LoopExit::Refused(self.log.refusal(code, &reason))),
            // Gaps arrive in order, so all earlier updates are pending or written.
            Event::Gap { channel, from, to } => {
                find(lanes, &channel)?.miss(from, to, Missing::Gone);
            }
            Event::Expired { channel, from, to } => {
                find(lanes, &channel)?.miss(from, to, Missing::Expired);
            }
            Event::Lineage { channel, lineage } => {
                let lane = find(lanes, &channel)?;
                // There is no lineage before a WELCOME.
                let incarnation = lane.incarnation?;
                lane.push(Item {
                    incarnation,
                    seq: 0,
                    kind: ItemKind::Lineage(lineage),
                });
            }
            _ => {}
        }
        None
    }
}

fn find<'l, 'a, S>(lanes: &'l mut [Lane<'a, S>], channel: &str) -> Option<&'l mut Lane<'a, S>> {
    let lane = lanes.iter_mut().find(|lane| lane.channel == channel);
    if lane.is_none() {
        debug!(
            channel = plain(channel),
            "event of a channel that was not requested"
        );
    }
    lane
}
