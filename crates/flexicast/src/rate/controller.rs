//! A CUBIC controller with what a flow adds to it: floors while the flow is idle, and depth for
//! heavy losses.

use super::cubic::{BETA, Cubic, INITIAL_WINDOW};

/// Packets below which the share of losses around a congestion event says nothing.
const MIN_EPISODE: u64 = 10;
/// A single congestion event takes at most half of the window.
const MAX_CUT: f64 = 0.5;

/// Newly lost packets as a controller takes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Losses {
    /// Number of packets.
    pub(super) packets: u64,
    /// One past the largest packet number.
    pub(super) end: u64,
}

/// The flow's activity while a report is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// Part of the window that the flow uses, in packets.
    pub(super) used: f64,
    /// Whether the queue is empty.
    pub(super) idle: bool,
    /// The next packet number.
    pub(super) next_pn: u64,
}

/// The last congestion event, as long as its losses may turn out to be none.
#[derive(Debug, Clone)]
struct Reduction {
    before: Cubic,
    /// Packets of the event that still count as lost.
    lost: u64,
}

/// A congestion controller.
#[derive(Debug, Clone)]
pub(super) struct Controller {
    pub(super) cubic: Cubic,
    /// Packets reported since the last congestion event that were sent before the reduction.
    episode: u64,
    /// The lost ones among them.
    episode_lost: u64,
    last: Option<Reduction>,
}

impl Controller {
    pub(super) fn new(cubic: Cubic) -> Self {
        Controller {
            cubic,
            episode: 0,
            episode_lost: 0,
            last: None,
        }
    }

    /// Takes losses: at most one congestion event per round trip (RFC 9002 section 7.3.2). Returns
    /// whether it was one.
    pub(super) fn on_lost(&mut self, losses: Losses, usage: Usage) -> bool {
        if losses.packets == 0 {
            return false;
        }
        if losses.end <= self.cubic.recovery() {
            if let Some(last) = &mut self.last {
                last.lost += losses.packets;
            }
            return false;
        }
        self.last = Some(Reduction {
            before: self.cubic.clone(),
            lost: losses.packets,
        });
        // A flow without anything to send could also start again with the initial window (RFC 9002
        // section 7.8, RFC 5681 section 4.1).
        let (used, floor) = match usage.idle {
            true => (f64::INFINITY, INITIAL_WINDOW),
            false => (usage.used, 0.0),
        };
        self.cubic.on_congestion(used, floor, usage.next_pn);
        (self.episode, self.episode_lost) = (0, 0);
        true
    }

    /// Goes on with packets that are shorter by this factor.
    pub(super) fn rescale(&mut self, factor: f64) {
        self.cubic.rescale(factor);
        if let Some(last) = &mut self.last {
            last.before.rescale(factor);
        }
    }

    /// Makes the last reduction final, because its cause was no loss.
    pub(super) fn confirm(&mut self) {
        self.last = None;
    }

    /// Takes losses back that were none. Once all losses of an event are, its reduction is undone;
    /// returns whether that happened.
    pub(super) fn on_spurious(&mut self, packets: u64) -> bool {
        let Some(last) = &mut self.last else {
            return false;
        };
        last.lost = last.lost.saturating_sub(packets);
        let Some(undone) = self.last.take_if(|last| packets > 0 && last.lost == 0) else {
            return false;
        };
        self.cubic.restore(undone.before);
        (self.episode, self.episode_lost) = (0, 0);
        true
    }

    /// Takes how many packets from before the reduction were reported, and how many of them were
    /// lost. When more is lost than the reduction gives up, the window is cut to what arrives.
    pub(super) fn on_reported(&mut self, packets: u64, lost: u64) {
        self.episode += packets;
        self.episode_lost += lost;
        if lost > 0 && self.episode >= MIN_EPISODE {
            let arrived = 1.0 - self.episode_lost as f64 / self.episode as f64;
            if arrived < BETA {
                self.cubic.deepen(arrived.max(MAX_CUT));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(next_pn: u64) -> Usage {
        Usage {
            used: f64::INFINITY,
            idle: false,
            next_pn,
        }
    }

    fn losses(packets: u64, end: u64) -> Losses {
        Losses { packets, end }
    }

    #[test]
    fn losses_of_one_round_trip_are_one_event() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        assert!(controller.on_lost(losses(1, 10), busy(50)));
        assert!(!controller.on_lost(losses(3, 50), busy(60)));
        assert_eq!(controller.cubic.window(), 70.0);
        assert!(controller.on_lost(losses(1, 51), busy(70)));
        assert_eq!(controller.cubic.window(), 49.0);
    }

    #[test]
    fn a_reduction_is_undone_when_none_of_its_packets_was_lost() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        controller.on_lost(losses(2, 10), busy(50));
        controller.on_lost(losses(1, 20), busy(60));
        controller.on_reported(20, 10);
        assert_eq!(controller.cubic.window(), 50.0);
        assert!(!controller.on_spurious(2), "one packet was lost");
        assert!(controller.on_spurious(1));
        assert_eq!(
            (controller.cubic.window(), controller.cubic.recovery()),
            (100.0, 50)
        );
        assert!(!controller.on_spurious(1), "once");
        assert!(controller.on_lost(losses(1, 51), busy(70)));
        assert_eq!(controller.cubic.window(), 70.0);
    }

    #[test]
    fn heavy_losses_cut_to_what_arrives_and_to_half_at_most() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        controller.on_lost(losses(1, 10), busy(50));
        controller.on_reported(5, 3);
        assert_eq!(controller.cubic.window(), 70.0, "too few to tell");
        controller.on_reported(5, 1);
        assert_eq!(controller.cubic.window(), 60.0);
        controller.on_reported(10, 10);
        assert_eq!(controller.cubic.window(), 50.0);
    }

    #[test]
    fn an_idle_flow_keeps_the_initial_window() {
        let mut controller = Controller::new(Cubic::with_window(12.0, false));
        let idle = |next_pn| Usage {
            idle: true,
            ..busy(next_pn)
        };
        (1..10).for_each(|pn| assert!(controller.on_lost(losses(1, pn + 1), idle(pn))));
        assert_eq!(controller.cubic.window(), INITIAL_WINDOW);
    }
}
