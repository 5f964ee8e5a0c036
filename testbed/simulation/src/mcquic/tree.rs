//! The network of section 5.2: a binary tree of links below the source, with a receiver at each of
//! its nodes.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

/// Bits per second of each link.
const RATE: f64 = 100e6;
/// One-way delay of each link.
const DELAY: Duration = Duration::from_millis(3);
/// IPv4 and UDP headers, which take their time on a link and are no payload.
const HEADERS: usize = 28;

/// Links on which packets get lost, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossyLinks {
    /// Those to the leaves: half of the receivers lose packets, each its own.
    Leaves,
    /// The left one of the two below the root: all receivers below it lose the same packets.
    LeftBranch,
}

/// One direction of a link.
#[derive(Debug, Clone, Copy)]
struct Link {
    free_at: Instant,
    loss: f64,
}

impl Link {
    /// Returns when a packet that begins now is at the other end, unless it gets lost.
    fn pass(&mut self, now: Instant, payload: usize, rng: &mut SmallRng) -> Option<Instant> {
        if self.loss > 0.0 && rng.random_bool(self.loss) {
            return None;
        }
        let bits = ((payload + HEADERS) * 8) as f64;
        let sent = self.free_at.max(now) + Duration::from_secs_f64(bits / RATE);
        self.free_at = sent;
        Some(sent + DELAY)
    }
}

/// The tree. Receivers have numbers from 0, the root first and each layer from the left.
#[derive(Debug)]
pub(super) struct Tree {
    down: Vec<Link>,
    up: Vec<Link>,
}

/// Returns the receiver above one; `None` for the root, which is below the source.
pub(super) fn above(receiver: usize) -> Option<usize> {
    Some(receiver.checked_sub(1)? / 2)
}

impl LossyLinks {
    /// Returns whether packets of a receiver get lost, in a tree of so many.
    #[must_use]
    pub fn affects(self, receiver: usize, receivers: usize) -> bool {
        match self {
            LossyLinks::Leaves => is_leaf(receiver, receivers),
            LossyLinks::LeftBranch => {
                let mut at = receiver;
                while at > 2 {
                    at = above(at).unwrap_or(0);
                }
                at == 1
            }
        }
    }
}

fn is_leaf(receiver: usize, receivers: usize) -> bool {
    2 * receiver + 1 >= receivers
}

impl Tree {
    pub(super) fn new(receivers: usize, lossy: LossyLinks, loss: f64, now: Instant) -> Tree {
        let link = |receiver| {
            let loses = match lossy {
                LossyLinks::Leaves => is_leaf(receiver, receivers),
                LossyLinks::LeftBranch => receiver == 1,
            };
            let loss = if loses { loss } else { 0.0 };
            Link { free_at: now, loss }
        };
        Tree {
            down: (0..receivers).map(link).collect(),
            up: (0..receivers).map(link).collect(),
        }
    }

    /// Returns the round-trip time of a receiver over empty links.
    pub(super) fn round_trip(receiver: usize) -> Duration {
        let mut links = 1;
        let mut at = receiver;
        while let Some(next) = above(at) {
            (at, links) = (next, links + 1);
        }
        DELAY * 2 * links
    }

    /// Sends a packet down all links, and returns when it arrives at each receiver.
    ///
    /// All packets begin at the source, so that each link passes them on in the order in which they
    /// are sent.
    pub(super) fn multicast(
        &mut self,
        now: Instant,
        payload: usize,
        rng: &mut SmallRng,
    ) -> Vec<Option<Instant>> {
        let mut arrivals: Vec<Option<Instant>> = Vec::with_capacity(self.down.len());
        for (receiver, link) in self.down.iter_mut().enumerate() {
            let here = above(receiver).map_or(Some(now), |above| arrivals[above]);
            arrivals.push(here.and_then(|at| link.pass(at, payload, rng)));
        }
        arrivals
    }

    /// Sends a packet down to one receiver.
    pub(super) fn unicast(
        &mut self,
        to: usize,
        now: Instant,
        payload: usize,
        rng: &mut SmallRng,
    ) -> Option<Instant> {
        let here = match above(to) {
            Some(above) => self.unicast(above, now, payload, rng)?,
            None => now,
        };
        self.down[to].pass(here, payload, rng)
    }

    /// Sends a packet up the link above a receiver.
    pub(super) fn climb(
        &mut self,
        from: usize,
        now: Instant,
        payload: usize,
        rng: &mut SmallRng,
    ) -> Option<Instant> {
        self.up[from].pass(now, payload, rng)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn half_of_fifty_receivers_are_leaves() {
        let affected = |lossy: LossyLinks| (0..50).filter(|n| lossy.affects(*n, 50)).count();
        assert_eq!(affected(LossyLinks::Leaves), 25);
        // The last layer is filled from the left.
        assert_eq!(affected(LossyLinks::LeftBranch), 31);
        assert_eq!(Tree::round_trip(49), 36 * MS);
        assert_eq!(Tree::round_trip(0), 6 * MS);
    }

    #[test]
    fn links_delay_and_serialise() {
        let (now, mut rng) = (Instant::now(), SmallRng::seed_from_u64(1));
        let mut tree = Tree::new(7, LossyLinks::Leaves, 0.0, now);
        // 1,222 + 28 bytes take 0.1 ms.
        let arrivals = tree.multicast(now, 1_222, &mut rng);
        let micros = |at: Option<Instant>| at.map(|at| (at - now).as_micros());
        assert_eq!(micros(arrivals[0]), Some(3_100));
        assert_eq!(micros(arrivals[6]), Some(9_300));
        let second = tree.unicast(6, now, 1_222, &mut rng);
        assert_eq!(micros(second), Some(9_400), "behind the first");
        assert_eq!(micros(tree.climb(6, now, 1_222, &mut rng)), Some(3_100));
    }

    #[test]
    fn receivers_below_a_lossy_link_lose_the_same() {
        let (now, mut rng) = (Instant::now(), SmallRng::seed_from_u64(1));
        let mut tree = Tree::new(50, LossyLinks::LeftBranch, 0.2, now);
        let mut lost = 0;
        for _ in 0..1_000 {
            let arrivals = tree.multicast(now, 1_000, &mut rng);
            for (receiver, arrival) in arrivals.iter().enumerate() {
                let affected = LossyLinks::LeftBranch.affects(receiver, 50);
                assert_eq!(arrival.is_none(), affected && arrivals[1].is_none());
            }
            lost += usize::from(arrivals[1].is_none());
        }
        assert!((150..250).contains(&lost), "{lost}");
    }
}
