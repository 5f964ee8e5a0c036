//! ECN marks of many members: an acknowledgement counts marks, and does not say of which packets.

use std::time::{Duration, Instant};

/// Members that reported marks within a round trip: when they are most, the congestion is shared.
#[derive(Debug, Default)]
pub(super) struct MarkRound {
    /// Begin of the round.
    began: Option<Instant>,
    /// Its number, from 1.
    number: u64,
    /// When the oldest packet that may be marked was sent.
    sent: Option<Instant>,
    members: usize,
    /// Whether most members have reported marks.
    is_shared: bool,
}

/// Congestion that marks tell of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// One member's own, so far.
    Own,
    /// Congestion of most members, in packets sent from then on; returned once per round.
    Shared(Instant),
    /// Shared, and known already.
    Known,
}

impl MarkRound {
    /// Takes that one of `count` members reports marks: `last` is the round of its last report, and
    /// the packet was sent at `sent`.
    pub(super) fn on_marked(
        &mut self,
        last: &mut u64,
        sent: Instant,
        count: usize,
        round: Duration,
        now: Instant,
    ) -> Marks {
        let is_over = |began| now.saturating_duration_since(began) >= round;
        if self.began.is_none_or(is_over) {
            *self = MarkRound {
                began: Some(now),
                number: self.number + 1,
                ..MarkRound::default()
            };
        }
        if std::mem::replace(last, self.number) != self.number {
            self.members += 1;
        }
        let oldest = self.sent.map_or(sent, |oldest| oldest.min(sent));
        self.sent = Some(oldest);
        match (self.is_shared, self.members * 2 > count) {
            (true, _) => Marks::Known,
            (false, true) => {
                self.is_shared = true;
                Marks::Shared(oldest)
            }
            (false, false) => Marks::Own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_most_members_within_a_round_are_shared_once() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let (mut round, mut last) = (MarkRound::default(), [0; 4]);
        let mut mark = |member: usize, at: u32| {
            let now = start + ms * (1000 + at);
            round.on_marked(&mut last[member], now - ms * 50, 4, ms * 100, now)
        };
        assert_eq!([mark(0, 0), mark(0, 10), mark(1, 20)], [Marks::Own; 3]);
        assert_eq!(mark(2, 99), Marks::Shared(start + ms * 950));
        assert_eq!(mark(3, 99), Marks::Known);
        assert_eq!([mark(3, 100), mark(2, 150), mark(3, 199)], [Marks::Own; 3]);
        assert_eq!([mark(1, 250), mark(0, 260)], [Marks::Own; 2]);
        assert_eq!(mark(2, 270), Marks::Shared(start + ms * 1200));
    }
}
