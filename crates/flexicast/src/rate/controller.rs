//! A CUBIC controller with what a flow adds to it: floors while the flow is idle, and depth for
//! heavy losses.

use super::cubic::{BETA, Cubic, INITIAL_WINDOW};

/// Packets below which the share of losses around a congestion event says nothing.
const MIN_EPISODE: u64 = 10;
/// A single congestion event takes at most half of the window.
const MAX_CUT: f64 = 0.5;

/// Sign of congestion on a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Signal<'a> {
    /// Newly lost packets, ascending.
    Lost(&'a [u64]),
    /// A mark, on a packet up to this one.
    Marked(u64),
}

impl Signal<'_> {
    /// Returns the newest packet that it can be about.
    fn newest(&self) -> Option<u64> {
        match self {
            Signal::Lost(lost) => lost.last().copied(),
            Signal::Marked(newest) => Some(*newest),
        }
    }

    /// Returns the lost packets.
    pub(super) fn lost(&self) -> &[u64] {
        match self {
            Signal::Lost(lost) => lost,
            Signal::Marked(_) => &[],
        }
    }
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
    /// First packet that can belong to the event: those below belong to older ones.
    first: u64,
    /// Packets of the event that still count as lost.
    lost: u64,
}

impl Reduction {
    /// Returns how many of these packets, in ascending order, can belong to the event.
    fn count(&self, packets: &[u64]) -> u64 {
        let older = packets.partition_point(|pn| *pn < self.first);
        (packets.len() - older) as u64
    }
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

    /// Whether it is another congestion event: about packets sent after the last reduction.
    pub(super) fn is_event(&self, signal: Signal<'_>) -> bool {
        let newest = signal.newest();
        newest.is_some_and(|newest| newest >= self.cubic.recovery())
    }

    /// Takes a sign of congestion: at most one event per round trip (RFC 9002 section 7.3.2).
    /// Returns whether it was one.
    ///
    /// A reduction for which there is a mark is final: no loss caused it.
    pub(super) fn on_signal(&mut self, signal: Signal<'_>, usage: Usage) -> bool {
        let is_event = self.is_event(signal);
        if is_event {
            self.last = Some(Reduction {
                before: self.cubic.clone(),
                first: self.cubic.recovery(),
                lost: 0,
            });
            self.reduce(usage);
        }
        match (signal, &mut self.last) {
            (Signal::Lost(lost), Some(last)) => last.lost += last.count(lost),
            _ => self.last = None,
        }
        is_event
    }

    fn reduce(&mut self, usage: Usage) {
        // A flow without anything to send could also start again with the initial window (RFC 9002
        // section 7.8, RFC 5681 section 4.1).
        let (used, floor) = match usage.idle {
            true => (f64::INFINITY, INITIAL_WINDOW),
            false => (usage.used, 0.0),
        };
        self.cubic.on_congestion(used, floor, usage.next_pn);
        (self.episode, self.episode_lost) = (0, 0);
    }

    /// Goes on with packets that are shorter by this factor.
    pub(super) fn rescale(&mut self, factor: f64) {
        self.cubic.rescale(factor);
        if let Some(last) = &mut self.last {
            last.before.rescale(factor);
        }
    }

    /// Takes lost packets, in ascending order, that arrived after all. Once all losses of the last
    /// event have, its reduction is undone; returns whether that happened.
    pub(super) fn on_spurious(&mut self, packets: &[u64]) -> bool {
        let Some(last) = &mut self.last else {
            return false;
        };
        let of_event = last.count(packets);
        last.lost = last.lost.saturating_sub(of_event);
        let Some(undone) = self.last.take_if(|last| of_event > 0 && last.lost == 0) else {
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
    use super::Signal::{Lost, Marked};
    use super::*;

    fn busy(next_pn: u64) -> Usage {
        Usage {
            used: f64::INFINITY,
            idle: false,
            next_pn,
        }
    }

    #[test]
    fn losses_of_one_round_trip_are_one_event() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        assert!(controller.on_signal(Lost(&[9]), busy(50)));
        assert!(!controller.on_signal(Lost(&[10, 20, 49]), busy(60)));
        assert_eq!(controller.cubic.window(), 70.0);
        assert!(controller.on_signal(Lost(&[50]), busy(70)));
        assert_eq!(controller.cubic.window(), 49.0);
    }

    #[test]
    fn a_reduction_is_undone_when_none_of_its_packets_was_lost() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        controller.on_signal(Lost(&[8, 9]), busy(50));
        controller.on_signal(Lost(&[19]), busy(60));
        controller.on_reported(20, 10);
        assert_eq!(controller.cubic.window(), 50.0);
        assert!(!controller.on_spurious(&[8, 9]), "one packet was lost");
        assert!(controller.on_spurious(&[19]));
        assert_eq!(
            (controller.cubic.window(), controller.cubic.recovery()),
            (100.0, 50)
        );
        assert!(!controller.on_spurious(&[19]), "once");
        assert!(controller.on_signal(Lost(&[50]), busy(70)));
        assert_eq!(controller.cubic.window(), 70.0);
    }

    #[test]
    fn packets_of_an_older_event_undo_no_later_one() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        controller.on_signal(Lost(&[8, 9]), busy(50));
        // An older loss that is found out late belongs to the older event.
        controller.on_signal(Lost(&[30, 60, 61]), busy(100));
        controller.on_signal(Lost(&[40]), busy(110));
        assert!(!controller.on_spurious(&[8, 9, 30, 40]));
        assert!(!controller.on_spurious(&[60]));
        assert_eq!(controller.cubic.window(), 49.0);
        assert!(controller.on_spurious(&[61]));
        assert_eq!(controller.cubic.window(), 70.0);
    }

    #[test]
    fn a_reduction_for_a_mark_is_final() {
        for marked in [40, 60] {
            let mut controller = Controller::new(Cubic::with_window(100.0, false));
            controller.on_signal(Lost(&[8, 9]), busy(50));
            controller.on_signal(Marked(marked), busy(100));
            let window = controller.cubic.window();
            assert_eq!(window, if marked < 50 { 70.0 } else { 49.0 });
            assert!(!controller.on_spurious(&[8, 9]) && !controller.on_spurious(&[marked]));
            assert_eq!(controller.cubic.window(), window);
        }
    }

    #[test]
    fn heavy_losses_cut_to_what_arrives_and_to_half_at_most() {
        let mut controller = Controller::new(Cubic::with_window(100.0, false));
        controller.on_signal(Lost(&[9]), busy(50));
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
        (1..10).for_each(|pn| assert!(controller.on_signal(Lost(&[pn]), idle(pn))));
        assert_eq!(controller.cubic.window(), INITIAL_WINDOW);
    }
}
