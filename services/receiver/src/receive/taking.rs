//! From the transport's events to what waits to be written.

use flexicast_tokio::receiver::Event;
use tracing::debug;

use super::End;
use super::lane::Lane;
use crate::board::Board;
use crate::deliver::{Item, Received, What};
use crate::narrate::Narrator;
use crate::sink::Sink;
use service::peer_text::plain;

/// Takes events in.
pub(super) struct Taking<'a> {
    pub(super) board: &'a Board,
    pub(super) narrator: Narrator,
    /// Nothing is said of gaps: only for sabotage.
    pub(super) gaps_untold: bool,
}

impl Taking<'_> {
    /// Takes an event in. Returns an end if it is one.
    pub(super) fn take<S: Sink>(&mut self, event: Event, lanes: &mut [Lane<'_, S>]) -> Option<End> {
        let channel = match &event {
            Event::Update { channel, .. } | Event::Gap { channel, .. } => Some(channel),
            _ => None,
        };
        // It comes again, and counts then.
        if channel.is_some_and(|name| lanes.iter().any(|l| l.channel == *name && l.is_behind())) {
            return None;
        }
        if !(self.gaps_untold && matches!(event, Event::Gap { .. })) {
            self.narrator.tell(&event, self.board);
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
                let what = What::Update(Received {
                    encoded,
                    via,
                    live: live_after.is_some_and(|head| seq > head),
                });
                lane.push(Item {
                    incarnation,
                    seq,
                    what,
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
                // The incarnation stays where an older backup was restored.
                if renumbered || resync {
                    lane.push(Item {
                        incarnation,
                        seq: first.saturating_sub(1),
                        what: What::Begins { resync },
                    });
                }
            }
            Event::Refused {
                code,
                reason,
                fatal: true,
            } => return Some(End::Refused(self.narrator.refusal(code, &reason))),
            // It comes in order, so everything before it waits or was written.
            Event::Gap { channel, from, to } => {
                let lane = find(lanes, &channel)?;
                // Without a welcome there is nothing that could have a gap.
                let incarnation = lane.incarnation?;
                lane.push(Item {
                    incarnation,
                    seq: to,
                    what: What::Gap { from },
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
            "an event of the channel {}, which nobody asked for",
            plain(channel)
        );
    }
    lane
}
