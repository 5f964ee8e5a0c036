//! Progress of one receiver on one channel, and the check that every update comes once and in
//! order.

use flexicast::{Cause, Cursor, Rung, Via};
use serde::Serialize;
use uuid::Uuid;

/// Promises of delivery that were broken, by number of updates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Violations {
    /// Updates left out without a word.
    pub missing: u64,
    /// Updates that came again, or after a later one.
    pub repeated: u64,
    /// Updates with other bytes than at another receiver, or that are no update of that number.
    pub wrong: u64,
    /// Updates reported as gone for good.
    pub gone: u64,
    /// Updates not there at the end.
    pub behind: u64,
}

impl Violations {
    /// Returns the number of updates.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.missing + self.repeated + self.wrong + self.gone + self.behind
    }

    /// Adds those of another receiver.
    pub fn add(&mut self, other: Violations) {
        self.missing += other.missing;
        self.repeated += other.repeated;
        self.wrong += other.wrong;
        self.gone += other.gone;
        self.behind += other.behind;
    }
}

/// Counts of updates by the path of their arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ViaCounts {
    /// Every byte first came by the flow.
    pub flow: u64,
    /// Some did.
    pub repaired: u64,
    /// None did.
    pub unicast: u64,
}

/// Progress of one receiver on one channel.
#[derive(Debug, Clone)]
pub struct Position {
    incarnation: Option<Uuid>,
    /// The next update; 0 before WELCOME.
    next: u64,
    /// Head of the source when this connection began: later updates are live.
    head: u64,
    /// Current rung.
    pub rung: Rung,
    /// Number of updates delivered.
    pub delivered: u64,
    /// Number of them that were published in the time of the measurement.
    pub measured: u64,
    /// All of them by path.
    pub via: ViaCounts,
    /// Everything that was wrong.
    pub violations: Violations,
}

impl Default for Position {
    fn default() -> Self {
        Self {
            incarnation: None,
            next: 0,
            head: 0,
            rung: Rung::Unicast,
            delivered: 0,
            measured: 0,
            via: ViaCounts::default(),
            violations: Violations::default(),
        }
    }
}

impl Position {
    /// The source serves the channel from update `first` on.
    pub fn welcome(&mut self, incarnation: Uuid, head: u64, first: u64, resync: bool) {
        if resync || self.incarnation != Some(incarnation) {
            self.incarnation = Some(incarnation);
            self.next = first;
        }
        self.head = head;
    }

    /// Takes an update that was delivered. Returns whether it is a new one, as opposed to one that
    /// was due before.
    pub fn take(&mut self, seq: u64, via: Via) -> bool {
        if seq < self.next {
            self.violations.repeated += 1;
            return false;
        }
        self.violations.missing += seq - self.next;
        self.next = seq + 1;
        self.delivered += 1;
        match via {
            Via::Flow => self.via.flow += 1,
            Via::Repaired => self.via.repaired += 1,
            Via::Unicast => self.via.unicast += 1,
        }
        true
    }

    /// Takes the report that updates are gone for good.
    pub fn gap(&mut self, from: u64, to: u64) {
        self.violations.missing += from.saturating_sub(self.next);
        self.violations.repeated += self.next.saturating_sub(from);
        self.violations.gone += to.saturating_sub(from) + 1;
        self.next = self.next.max(to + 1);
    }

    /// Whether an update was published while this receiver was connected.
    #[must_use]
    pub fn is_live(&self, seq: u64) -> bool {
        seq > self.head
    }

    /// Moves to another rung. Returns the fall-back, if it is a worse one.
    pub fn step(&mut self, rung: Rung, cause: Cause) -> Option<FallBack> {
        let from = std::mem::replace(&mut self.rung, rung);
        (rung > from).then_some(FallBack {
            from,
            to: rung,
            cause,
        })
    }

    /// Returns the cursor, to confirm and to resume from; none before WELCOME.
    #[must_use]
    pub fn cursor(&self) -> Option<Cursor> {
        let incarnation = self.incarnation?;
        let seq = self.next.saturating_sub(1);
        Some(Cursor { incarnation, seq })
    }

    /// Returns the number of updates up to `head` that are not there; none before WELCOME.
    #[must_use]
    pub fn behind(&self, head: u64) -> u64 {
        match self.incarnation {
            Some(_) => (head + 1).saturating_sub(self.next),
            None => 0,
        }
    }
}

/// A move to a worse rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FallBack {
    /// Rung that was left.
    pub from: Rung,
    /// Rung that was taken.
    pub to: Rung,
    /// Why.
    pub cause: Cause,
}

impl std::fmt::Display for FallBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}: {}", self.from, self.to, self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = Uuid::from_u128(1);
    const B: Uuid = Uuid::from_u128(2);

    fn welcomed(first: u64) -> Position {
        let mut position = Position::default();
        assert_eq!((position.cursor(), position.behind(9)), (None, 0));
        position.welcome(A, first - 1, first, false);
        position
    }

    #[test]
    fn updates_once_and_in_order_violate_nothing() {
        let mut position = welcomed(8);
        let vias = [Via::Flow, Via::Repaired, Via::Unicast];
        for (seq, via) in (8..11).zip(vias) {
            assert!(position.is_live(seq) && position.take(seq, via));
        }
        assert!(!position.is_live(7));
        assert_eq!(position.violations, Violations::default());
        let (flow, repaired, unicast) = (1, 1, 1);
        let via = ViaCounts {
            flow,
            repaired,
            unicast,
        };
        assert_eq!((position.delivered, position.via), (3, via));
        assert_eq!((position.behind(10), position.behind(12)), (0, 2));
    }

    #[test]
    fn every_other_order_is_a_violation() {
        let cases: [(&[u64], u64, u64); 4] = [
            (&[5, 7], 1, 0),
            (&[5, 5], 0, 1),
            (&[6, 5], 1, 1),
            (&[5, 6, 9, 6], 2, 1),
        ];
        for (seqs, missing, repeated) in cases {
            let mut position = welcomed(5);
            for seq in seqs {
                position.take(*seq, Via::Flow);
            }
            let found = position.violations;
            assert_eq!(
                (found.missing, found.repeated),
                (missing, repeated),
                "{seqs:?}"
            );
            assert_eq!(found.total(), missing + repeated);
        }
    }

    #[test]
    fn a_reported_gap_is_counted_as_gone() {
        let mut position = welcomed(5);
        position.gap(5, 9);
        assert!(position.take(10, Via::Unicast));
        let gone = Violations {
            gone: 5,
            ..Violations::default()
        };
        assert_eq!(position.violations, gone);
        // Not where it belongs.
        position.gap(13, 13);
        assert_eq!(
            (position.violations.missing, position.violations.gone),
            (2, 6)
        );
    }

    #[test]
    fn a_receiver_resumes_where_it_was_and_starts_over_with_a_new_incarnation() {
        let mut position = welcomed(5);
        position.take(5, Via::Flow);
        let seq = 5;
        let incarnation = A;
        assert_eq!(position.cursor(), Some(Cursor { incarnation, seq }));
        position.welcome(A, 20, 6, false);
        assert!(position.take(6, Via::Unicast) && !position.is_live(6));
        position.welcome(B, 3, 2, true);
        assert!(position.take(2, Via::Unicast));
        assert_eq!(position.violations.total(), 0);
    }

    #[test]
    fn only_a_worse_rung_is_a_fall_back() {
        let mut position = Position::default();
        assert_eq!(position.step(Rung::Multicast, Cause::Joined), None);
        let fall = position.step(Rung::Unicast, Cause::AckTimeout);
        let text = fall.map(|fall| fall.to_string());
        assert_eq!(text.as_deref(), Some("multicast to unicast: ack-timeout"));
    }
}
