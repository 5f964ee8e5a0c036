//! Datagrams that the kernel gave to another shard than their connection's: of a receiver whose
//! address has changed, or after the number of shards has.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Datagrams that wait for a shard; further ones are dropped, as if the network had.
const WAITING: usize = 1024;

/// A datagram.
#[derive(Debug)]
pub(in crate::source) struct Passed {
    pub(in crate::source) from: SocketAddr,
    pub(in crate::source) to: SocketAddr,
    pub(in crate::source) data: Vec<u8>,
}

/// Datagrams on their way from shard to shard.
pub(in crate::source) struct Passage(Vec<Slot>);

#[derive(Default)]
struct Slot {
    waiting: Mutex<VecDeque<Passed>>,
    arrived: Notify,
}

impl Passage {
    /// A passage between so many shards.
    pub(in crate::source) fn new(shards: usize) -> Self {
        Passage((0..shards).map(|_| Slot::default()).collect())
    }

    /// Whether there is a shard with this number.
    pub(super) fn has(&self, shard: u8) -> bool {
        usize::from(shard) < self.0.len()
    }

    /// Passes a datagram on to another shard; `false` if there is no room for it.
    pub(super) fn pass(&self, shard: u8, datagram: Passed) -> bool {
        let Some(slot) = self.0.get(usize::from(shard)) else {
            return false;
        };
        let mut waiting = slot.waiting();
        let has_room = waiting.len() < WAITING;
        if has_room {
            waiting.push_back(datagram);
            slot.arrived.notify_one();
        }
        has_room
    }

    /// Waits for datagrams for a shard. Cancel safe.
    pub(super) async fn arrived(&self, shard: u8) {
        match self.0.get(usize::from(shard)) {
            Some(slot) => slot.arrived.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Takes the datagrams for a shard.
    pub(super) fn take(&self, shard: u8) -> VecDeque<Passed> {
        let slot = self.0.get(usize::from(shard));
        slot.map(|slot| std::mem::take(&mut *slot.waiting()))
            .unwrap_or_default()
    }
}

impl Slot {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Passed>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(byte: u8) -> Passed {
        let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
        Passed {
            from: nobody,
            to: nobody,
            data: vec![byte],
        }
    }

    #[tokio::test]
    async fn a_shard_gets_its_datagrams_in_order_within_a_bound() {
        let passage = Passage::new(2);
        assert!(passage.has(1) && !passage.has(2));
        assert!(!passage.pass(2, datagram(0)), "there is no such shard");
        for byte in 0..3 {
            assert!(passage.pass(1, datagram(byte)));
        }
        passage.arrived(1).await;
        assert!(passage.take(0).is_empty());
        let taken: Vec<_> = passage.take(1).into_iter().map(|d| d.data[0]).collect();
        assert_eq!(taken, [0, 1, 2]);
        for _ in 0..WAITING {
            assert!(passage.pass(0, datagram(7)));
        }
        assert!(!passage.pass(0, datagram(7)));
        assert_eq!(passage.take(0).len(), WAITING);
        assert!(passage.pass(0, datagram(7)));
    }
}
