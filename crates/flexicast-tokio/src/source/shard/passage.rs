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

    /// Passes a datagram on to another shard.
    pub(super) fn pass(&self, shard: u8, datagram: Passed) {
        let Some(slot) = self.0.get(usize::from(shard)) else {
            return;
        };
        let mut waiting = slot.waiting();
        if waiting.len() < WAITING {
            waiting.push_back(datagram);
            slot.arrived.notify_one();
        }
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
