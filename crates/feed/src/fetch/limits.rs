//! How many requests run at the same time, over all feeds of a process: too many at once are a
//! burden on this machine, too many to one server are an attack on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests under way at the same time by default, over all hosts.
pub const GLOBAL: usize = 64;

/// Requests under way at the same time by default, to one host.
pub const PER_HOST: usize = 2;

/// The most requests under way at the same time, in all and to one host. Shared by the fetchers of
/// a process through [`FetchConfig::limits`](super::FetchConfig::limits).
#[derive(Debug)]
pub struct Limits {
    global: Arc<Semaphore>,
    per_host: usize,
    /// The hosts that something is asked of or waits to be. Others are forgotten.
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// Leave for one request, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _global: OwnedSemaphorePermit,
    _host: OwnedSemaphorePermit,
    // Keeps the host's entry: a new request would otherwise start a count of its own.
    _count: Arc<Semaphore>,
}

impl Limits {
    /// At least one each.
    #[must_use]
    pub fn new(global: usize, per_host: usize) -> Self {
        let bounded = |n: usize| n.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            global: Arc::new(Semaphore::new(bounded(global))),
            per_host: bounded(per_host),
            hosts: Mutex::new(HashMap::new()),
        }
    }

    /// Waits for a turn at this host. The host's comes first: those who wait for a slow host hold
    /// up nobody else. `None` cannot happen while the limits exist.
    pub(super) async fn turn(&self, host: &str) -> Option<Turn> {
        let count = self.host(host);
        let at_host = Arc::clone(&count).acquire_owned().await.ok()?;
        let in_all = Arc::clone(&self.global).acquire_owned().await.ok()?;
        Some(Turn {
            _global: in_all,
            _host: at_host,
            _count: count,
        })
    }

    fn host(&self, host: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = hosts.get(host).and_then(Weak::upgrade) {
            return count;
        }
        hosts.retain(|_, count| count.strong_count() > 0);
        let count = Arc::new(Semaphore::new(self.per_host));
        hosts.insert(host.to_owned(), Arc::downgrade(&count));
        count
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(GLOBAL, PER_HOST)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now<T>(turn: impl Future<Output = T>) -> Option<T> {
        match pin!(turn).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_host_and_all_hosts_have_their_limits() {
        let limits = Limits::new(3, 2);
        let first = now(limits.turn("a")).unwrap();
        let _second = now(limits.turn("a")).unwrap();
        assert!(now(limits.turn("a")).is_none(), "two to one host");
        let _third = now(limits.turn("b")).unwrap();
        assert!(now(limits.turn("c")).is_none(), "three in all");
        drop(first);
        assert!(now(limits.turn("c")).is_some());
    }

    #[test]
    fn who_waits_for_a_host_holds_up_no_other() {
        let limits = Limits::new(2, 1);
        let _busy = now(limits.turn("slow")).unwrap();
        let mut waits = Box::pin(limits.turn("slow"));
        assert!(now(waits.as_mut()).is_none());
        assert!(now(limits.turn("fast")).is_some());
    }

    #[test]
    fn hosts_are_forgotten() {
        let limits = Limits::new(9, 1);
        for n in 0..1000 {
            drop(now(limits.turn(&format!("h{n}"))).unwrap());
        }
        assert!(limits.hosts.lock().unwrap().len() <= 1);
    }
}
