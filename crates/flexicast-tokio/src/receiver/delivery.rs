//! Delivery of events to the application.

use std::collections::VecDeque;

use flexicast::receiver::ChannelStats;
use tokio::sync::mpsc;

use super::Event;

/// Bytes of updates that wait for the application, beside the number of events.
const WAITING_BYTES: usize = 16 << 20;
/// With so many events that the application does not take, no further connection is made.
const MAX_HELD: usize = 64;

/// Sizes of the events that were handed to the application and not taken by it yet.
#[derive(Default)]
struct HandedSizes {
    sizes: VecDeque<usize>,
    bytes: usize,
}

impl HandedSizes {
    fn push(&mut self, event: &Event) {
        let size = match event {
            Event::Update { encoded, .. }
            | Event::Live { encoded, .. }
            | Event::Message { encoded, .. } => encoded.len(),
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

/// The queue of events to the application.
pub(super) struct Delivery {
    events: mpsc::Sender<Event>,
    /// Events that did not fit into the channel yet: few, for updates are taken from the state
    /// machine only when there is room.
    held: VecDeque<Event>,
    handed: HandedSizes,
    /// Counters that were reported last, by channel.
    last_stats: Vec<Option<ChannelStats>>,
}

impl Delivery {
    pub(super) fn new(events: mpsc::Sender<Event>, channels: usize) -> Self {
        Delivery {
            events,
            held: VecDeque::new(),
            handed: HandedSizes::default(),
            last_stats: vec![None; channels],
        }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.held.push_back(event);
    }

    /// Whether events wait for room.
    pub(super) fn is_blocked(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether so many events wait for room that none may be added without need.
    pub(super) fn is_crowded(&self) -> bool {
        self.held.len() >= MAX_HELD
    }

    /// Waits for room for so many events; returns whether the application still takes any.
    pub(super) async fn wait_for_room(&self, events: usize) -> bool {
        self.events.reserve_many(events).await.is_ok()
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

    /// Hands out events, then those of `next`, while the application takes them. Returns whether it
    /// took any.
    pub(super) fn hand_out(&mut self, mut next: impl FnMut() -> Option<Event>) -> bool {
        let mut took = false;
        let waiting = self.events.max_capacity() - self.events.capacity();
        self.handed.settle(waiting);
        loop {
            if self.held.is_empty() {
                // Without room, one update that waits here makes the loop wait for room.
                self.held.extend(next());
            }
            if self.held.is_empty() || self.handed.bytes >= WAITING_BYTES {
                return took;
            }
            let Ok(permit) = self.events.try_reserve() else {
                return took;
            };
            if let Some(event) = self.held.pop_front() {
                self.handed.push(&event);
                permit.send(event);
                took = true;
            }
        }
    }

    /// Reports counters of a channel if they have changed. Those without room are sent later.
    pub(super) fn report_stats(&mut self, index: usize, channel: &str, stats: ChannelStats) {
        if self.last_stats[index] == Some(stats) {
            return;
        }
        let event = Event::Stats {
            channel: channel.to_owned(),
            stats,
        };
        if let Ok(permit) = self.events.try_reserve() {
            self.handed.push(&event);
            permit.send(event);
            self.last_stats[index] = Some(stats);
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
        let mut handed = HandedSizes::default();
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
