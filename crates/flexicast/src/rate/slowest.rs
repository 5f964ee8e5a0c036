//! The slowest member, kept between scans of all.

use crate::flow::MemberId;

/// The least rate of all members, which member has it, and the next one.
///
/// Kept exact when a rate falls. When the least one rises above the next, the next counts until the
/// following scan.
#[derive(Debug)]
pub(super) struct Slowest {
    member: Option<MemberId>,
    least: f64,
    next: f64,
}

impl Default for Slowest {
    fn default() -> Self {
        Slowest {
            member: None,
            least: f64::INFINITY,
            next: f64::INFINITY,
        }
    }
}

impl Slowest {
    /// Takes the rate of a member, a new one or one that changed.
    pub(super) fn update(&mut self, member: MemberId, rate: f64) {
        if self.member == Some(member) {
            self.least = rate;
        } else if rate < self.least {
            if self.member.is_some() {
                self.next = self.next.min(self.least);
            }
            (self.member, self.least) = (Some(member), rate);
        } else {
            self.next = self.next.min(rate);
        }
    }

    /// Forgets a member; returns whether it was the slowest.
    pub(super) fn remove(&mut self, member: MemberId) -> bool {
        let was = self.member == Some(member);
        if was {
            (self.member, self.least) = (None, self.next);
        }
        was
    }

    /// The least rate.
    pub(super) fn rate(&self) -> f64 {
        self.least.min(self.next)
    }

    /// The member with the least rate.
    pub(super) fn member(&self) -> Option<MemberId> {
        self.member.filter(|_| self.least.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_and_the_next_are_known() {
        let mut slowest = Slowest::default();
        assert_eq!((slowest.rate(), slowest.member()), (f64::INFINITY, None));
        for (member, rate) in [(1, 30.0), (2, 10.0), (3, 20.0)] {
            slowest.update(member, rate);
        }
        assert_eq!((slowest.rate(), slowest.member()), (10.0, Some(2)));
        slowest.update(2, 50.0);
        assert_eq!(slowest.rate(), 20.0, "not above the next");
        slowest.update(1, 5.0);
        assert_eq!((slowest.rate(), slowest.member()), (5.0, Some(1)));
        assert!(!slowest.remove(3) && slowest.remove(1));
        assert_eq!(slowest.rate(), 20.0);
    }
}
