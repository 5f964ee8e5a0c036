//! Reordering on a member's path: losses that turn out to be none, and the patience that they teach
//! (RFC 9002 section 6.1; as in RACK, RFC 8985 section 6.2).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Newest packets declared lost that are remembered.
const REMEMBERED: usize = 256;
/// Losses in a row that stay losses, after which the patience ends: the path may have changed.
const FORGET_AFTER: u32 = 64;

/// A packet that was declared lost.
#[derive(Debug)]
struct Declared {
    pn: u64,
    sent: Instant,
    /// Whether its loss had no consequence.
    is_ignored: bool,
}

/// Packets of a member that were declared lost, and how late they may be.
#[derive(Debug, Default)]
pub(super) struct Reordering {
    /// Packets declared lost, ascending.
    declared: VecDeque<Declared>,
    /// Time after which a packet below the largest acknowledged one counts as lost, if that is
    /// longer than usual.
    patience: Duration,
    /// Losses since the last one that was none.
    proven: u32,
}

impl Reordering {
    /// Whether the order of packets says nothing about losses.
    pub(super) fn is_usual(&self) -> bool {
        !self.patience.is_zero()
    }

    /// Returns the time after which a packet counts as lost, where `usual` is that without
    /// reordering.
    pub(super) fn loss_delay(&self, usual: Duration) -> Duration {
        usual.max(self.patience)
    }

    /// Takes a packet that is declared lost.
    pub(super) fn on_lost(&mut self, pn: u64, sent: Instant) {
        let declared = Declared {
            pn,
            sent,
            is_ignored: false,
        };
        if self.declared.back().is_some_and(|last| last.pn >= pn) {
            self.declared.insert(self.index(pn), declared);
        } else {
            self.declared.push_back(declared);
        }
        if self.declared.len() > REMEMBERED {
            self.declared.pop_front();
        }
        self.proven += 1;
        if self.proven >= FORGET_AFTER {
            (self.patience, self.proven) = (Duration::ZERO, 0);
        }
    }

    /// Returns the number of remembered packets below `pn`.
    fn index(&self, pn: u64) -> usize {
        self.declared.partition_point(|known| known.pn < pn)
    }

    /// Notes that the loss of these packets had no consequence: there is nothing to take back.
    pub(super) fn ignore(&mut self, range: &Range<u64>) {
        let (from, to) = (self.index(range.start), self.index(range.end));
        for declared in self.declared.range_mut(from..to.max(from)) {
            declared.is_ignored = true;
        }
    }

    /// Takes an acknowledged range. Calls `spurious` with each packet of it whose loss was declared
    /// and had consequences. Next time, a packet is waited for as long as these took, which `took`
    /// returns for the time at which one was sent.
    pub(super) fn on_acked(
        &mut self,
        range: &Range<u64>,
        took: impl Fn(Instant) -> Duration,
        mut spurious: impl FnMut(u64),
    ) {
        let (from, to) = (self.index(range.start), self.index(range.end));
        for late in self.declared.drain(from..to.max(from)) {
            self.patience = self.patience.max(took(late.sent));
            self.proven = 0;
            if !late.is_ignored {
                spurious(late.pn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(100);

    /// Time that a packet took which arrives at `now`.
    fn until(now: Instant) -> impl Fn(Instant) -> Duration {
        move |sent| (now - sent).min(LONGEST)
    }

    #[test]
    fn a_late_packet_is_waited_for_as_long_the_next_time() {
        let start = Instant::now();
        let mut path = Reordering::default();
        (5..8).for_each(|pn| path.on_lost(pn, start + MS * pn as u32));
        assert!(!path.is_usual() && path.loss_delay(MS * 20) == MS * 20);
        let mut late = Vec::new();
        path.on_acked(&(6..7), until(start + MS * 40), |pn| late.push(pn));
        assert_eq!(late, [6]);
        assert!(path.is_usual());
        assert_eq!(path.loss_delay(MS * 20), MS * 34);
        path.on_acked(&(0..9), until(start + MS * 1000), |pn| late.push(pn));
        path.on_acked(&(0..9), until(start + MS * 1000), |pn| late.push(pn));
        assert_eq!(late, [6, 5, 7], "each once");
        assert_eq!(path.loss_delay(MS * 20), LONGEST, "within bounds");
    }

    #[test]
    fn a_loss_without_a_consequence_is_not_taken_back() {
        let start = Instant::now();
        let mut path = Reordering::default();
        (5..9).for_each(|pn| path.on_lost(pn, start));
        path.ignore(&(6..8));
        path.ignore(&(10..20));
        let mut late = Vec::new();
        path.on_acked(&(5..8), until(start + MS * 40), |pn| late.push(pn));
        assert_eq!(late, [5]);
        assert_eq!(path.loss_delay(MS * 20), MS * 40, "it was late");
    }

    #[test]
    fn memory_is_bounded_and_losses_that_stay_end_the_patience() {
        let start = Instant::now();
        let mut path = Reordering::default();
        (0..1000).for_each(|pn| path.on_lost(pn, start));
        path.on_lost(900, start);
        assert_eq!(path.declared.len(), REMEMBERED);
        let mut late = 0;
        path.on_acked(&(0..1000), until(start + MS * 50), |_| late += 1);
        assert_eq!(late, REMEMBERED);
        (1000..1063).for_each(|pn| path.on_lost(pn, start));
        assert!(path.is_usual());
        path.on_lost(1063, start);
        assert!(!path.is_usual());
    }
}
