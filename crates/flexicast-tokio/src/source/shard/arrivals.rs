//! Datagrams that were read, and those that the kernel dropped.

use std::time::{Duration, Instant};

/// Interval at which the kernel is asked for the datagrams that it dropped.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Progress of reading the arrived datagrams.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// When none was left for the last time.
    drained_at: Instant,
    /// Datagrams that the kernel had dropped, modulo 2³², at the last look.
    dropped: u32,
    looked_at: Instant,
}

/// Datagrams that the kernel dropped between two looks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelDrop {
    pub(super) datagrams: u64,
    /// The look before.
    pub(super) since: Instant,
}

impl Arrivals {
    /// `dropped` is the kernel's count: the socket may be older than the shard.
    pub(super) fn new(dropped: u32, now: Instant) -> Self {
        Arrivals {
            drained_at: now,
            dropped,
            looked_at: now,
        }
    }

    /// Notes that datagrams were read, all of them or not. Returns since when some may lie unread.
    pub(super) fn note_read(&mut self, is_drained: bool, now: Instant) -> Option<Instant> {
        if is_drained {
            self.drained_at = now;
        }
        (!is_drained).then_some(self.drained_at)
    }

    /// Takes the number of arrived datagrams that the kernel has dropped so far, modulo 2³², if it is
    /// time to look. Returns those that are new, if there are any.
    pub(super) fn look(
        &mut self,
        now: Instant,
        dropped: impl FnOnce() -> u32,
    ) -> Option<KernelDrop> {
        if now < self.looked_at + LOOK_EVERY {
            return None;
        }
        let dropped = dropped();
        let new = dropped.wrapping_sub(std::mem::replace(&mut self.dropped, dropped));
        let since = std::mem::replace(&mut self.looked_at, now);
        (new > 0).then_some(KernelDrop {
            datagrams: new.into(),
            since,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_read_is_known_with_its_time() {
        const MS: Duration = Duration::from_millis(1);
        let now = Instant::now();
        let mut arrivals = Arrivals::new(0, now);
        assert_eq!(arrivals.note_read(true, now + MS), None);
        assert_eq!(arrivals.note_read(false, now + 2 * MS), Some(now + MS));
        assert_eq!(arrivals.note_read(false, now + 3 * MS), Some(now + MS));
        assert_eq!(arrivals.note_read(true, now + 4 * MS), None);

        assert_eq!(arrivals.look(now + MS, || 7), None, "too soon");
        let [first, second, third] = [1, 2, 3].map(|n| now + n * LOOK_EVERY);
        let drop = |datagrams: u32, since| {
            let datagrams = datagrams.into();
            Some(KernelDrop { datagrams, since })
        };
        assert_eq!(arrivals.look(first, || u32::MAX), drop(u32::MAX, now));
        assert_eq!(arrivals.look(second, || u32::MAX), None);
        // The kernel's counter wraps.
        assert_eq!(arrivals.look(third, || 1), drop(2, second));
    }
}
