//! Limits of concurrent requests over all feeds of a process: too many at once burden this machine,
//! too many to one server are an attack on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default number of concurrent requests over all hosts.
pub const GLOBAL: usize = 64;

/// Default number of concurrent requests to one host.
pub const PER_HOST: usize = 2;

/// Largest number of concurrent requests, in total and per host. Shared by the fetchers of a
/// process through [`FetchConfig::limits`](super::FetchConfig::limits).
#[derive(Debug)]
pub struct Limits {
    global: Arc<Semaphore>,
    per_host: usize,
    /// Hosts with requests in progress or waiting. Others are dropped.
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// Permit for one request, until dropped.
#[derive(Debug)]
pub(super) struct Permit {
    _global: OwnedSemaphorePermit,
    _host: OwnedSemaphorePermit,
    // Keeps the host's entry: a new request would otherwise start a separate count.
    _count: Arc<Semaphore>,
}

impl Limits {
    /// Returns limits of at least one each.
    #[must_use]
    pub fn new(global: usize, per_host: usize) -> Self {
        let bounded = |n: usize| n.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            global: Arc::new(Semaphore::new(bounded(global))),
            per_host: bounded(per_host),
            hosts: Mutex::new(HashMap::new()),
        }
    }

    /// Waits for a permit for this host. The host's comes first, so requests that wait for a slow
    /// host delay no others. `None` cannot happen while the limits exist.
    pub(super) async fn permit(&self, host: &str) -> Option<Permit> {
        let count = self.host(host);
        let at_host = Arc::clone(&count).acquire_owned().await.ok()?;
        let in_all = Arc::clone(&self.global).acquire_owned().await.ok()?;
        Some(Permit {
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

    fn now<T>(permit: impl Future<Output = T>) -> Option<T> {
        match pin!(permit).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_host_and_all_hosts_have_their_limits() {
        let limits = Limits::new(3, 2);
        let first = now(limits.permit("a")).unwrap();
        let _second = now(limits.permit("a")).unwrap();
        assert!(now(limits.permit("a")).is_none(), "two to one host");
        let _third = now(limits.permit("b")).unwrap();
        assert!(now(limits.permit("c")).is_none(), "three in all");
        drop(first);
        assert!(now(limits.permit("c")).is_some());
    }

    #[test]
    fn waiting_for_a_slow_host_delays_no_other() {
        let limits = Limits::new(2, 1);
        let _busy = now(limits.permit("slow")).unwrap();
        let mut waits = Box::pin(limits.permit("slow"));
        assert!(now(waits.as_mut()).is_none());
        assert!(now(limits.permit("fast")).is_some());
    }

    #[test]
    fn idle_hosts_are_dropped() {
        let limits = Limits::new(9, 1);
        for n in 0..1000 {
            drop(now(limits.permit(&format!("h{n}"))).unwrap());
        }
        assert!(limits.hosts.lock().unwrap().len() <= 1);
    }
}
