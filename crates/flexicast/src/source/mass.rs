//! Fall-backs of many members within a second: one event, most likely with one reason.

use std::time::Duration;

use crate::Cause;

/// Fall-backs within this time are one event if they are many.
pub(super) const MASS_WITHIN: Duration = Duration::from_secs(1);
/// Many are at least so many, and at least a fifth of the members.
const MASS_AT_LEAST: usize = 5;

/// Fall-backs that may turn out to be one event.
#[derive(Debug)]
struct Burst {
    count: usize,
    /// Members at the first of them.
    members: usize,
    /// Cause of the first of them.
    cause: Cause,
}

/// Counts the fall-backs of a flow, from the first of them on for [`MASS_WITHIN`].
#[derive(Debug, Default)]
pub(super) struct MassFallBack(Option<Burst>);

impl MassFallBack {
    /// Counts a member that fell back by the flow's own timers, of which `members` are left.
    /// Returns whether the time begins with it.
    pub(super) fn count(&mut self, cause: Cause, members: usize) -> bool {
        let is_first = self.0.is_none();
        let burst = self.0.get_or_insert(Burst {
            count: 0,
            members: members + 1,
            cause,
        });
        burst.count += 1;
        is_first
    }

    /// Ends the time; returns the number of fall-backs and the first cause, if they were many.
    pub(super) fn take(&mut self) -> Option<(usize, Cause)> {
        let burst = self.0.take()?;
        let many = burst.count >= MASS_AT_LEAST && burst.count * 5 >= burst.members;
        many.then_some((burst.count, burst.cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fall_backs(count: usize, members: usize) -> Option<(usize, Cause)> {
        let mut mass = MassFallBack::default();
        for left in (members - count..members).rev() {
            let is_first = mass.count(Cause::AckTimeout, left);
            assert_eq!(is_first, left == members - 1);
        }
        mass.take()
    }

    #[test]
    fn many_are_five_and_a_fifth_of_the_members() {
        assert_eq!(fall_backs(4, 4), None);
        assert_eq!(fall_backs(5, 5), Some((5, Cause::AckTimeout)));
        assert_eq!(fall_backs(19, 100), None);
        assert_eq!(fall_backs(20, 100), Some((20, Cause::AckTimeout)));
    }
}
