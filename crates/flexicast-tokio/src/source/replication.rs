//! Replication of flow packets to receivers that multicast does not reach (rung 3): by threads of
//! its own, from the QUIC socket.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::Arc;

use flexicast::source::SessionId;
use netio::Packets;
use netio::direct::{Destination, Destinations, ReplicationFailure, Replicator, Target};
use tokio::sync::mpsc;

use crate::Error;

/// Failures that wait for the engine. A further one is noticed by the member's silence.
const FAILURES: usize = 1024;

/// State that destinations belong to: the generations of a channel's audience and of all paths.
pub(super) type Version = (u64, u64);

/// Receivers of one channel's replicated packets. What is queued for them is discarded when it is
/// dropped.
#[derive(Default)]
pub(super) struct Replicas {
    version: Option<Version>,
    by_session: BTreeMap<SessionId, Arc<Destination>>,
    destinations: Destinations,
}

impl Replicas {
    /// Whether the destinations are those of this version.
    pub(super) fn is_at(&self, version: Version) -> bool {
        self.version == Some(version)
    }

    /// Whether the kernel does not send to a receiver's present address.
    pub(super) fn has_failed(&self, session: SessionId) -> bool {
        let destination = self.by_session.get(&session);
        destination.is_some_and(|destination| !destination.is_open())
    }

    /// Returns the bytes that were sent to all receivers so far.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.destinations.sent_bytes()
    }

    /// Replaces the receivers. Those whose address is the same keep what is queued for them.
    fn replace(&mut self, version: Version, wanted: impl Iterator<Item = (SessionId, Target)>) {
        let mut former = std::mem::take(&mut self.by_session);
        for (session, target) in wanted {
            let same = |d: &Destination| d.target() == target && d.is_open();
            let kept = match former.get(&session) {
                Some(known) if same(known) => former.remove(&session),
                _ => None,
            };
            let kept = kept.unwrap_or_else(|| Arc::new(Destination::new(session, target)));
            self.by_session.insert(session, kept);
        }
        former.values().for_each(|gone| gone.close());
        self.version = Some(version);
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.by_session.values().for_each(|gone| gone.close());
    }
}

/// The sending threads, and the failures that they report.
pub(super) struct Replication {
    replicator: Replicator,
    failures: mpsc::Receiver<ReplicationFailure>,
}

impl Replication {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(super) fn start(socket: &impl AsFd, threads: NonZeroUsize) -> Result<Self, Error> {
        let (report, failures) = mpsc::channel(FAILURES);
        let failed = move |failure| {
            let _ = report.try_send(failure);
        };
        let replicator = Replicator::new(socket, threads, failed)
            .map_err(Error::io("cannot start threads for replicated packets"))?;
        Ok(Replication {
            replicator,
            failures,
        })
    }

    /// Returns the next failure. Cancel safe.
    pub(super) async fn next_failure(&mut self) -> Option<ReplicationFailure> {
        self.failures.recv().await
    }

    /// Replaces the receivers of a channel, from the next packet on.
    pub(super) fn assign(
        &self,
        replicas: &mut Replicas,
        version: Version,
        wanted: impl Iterator<Item = (SessionId, Target)>,
    ) {
        replicas.replace(version, wanted);
        let destinations = replicas.by_session.values().map(Arc::clone);
        self.replicator
            .assign(&mut replicas.destinations, destinations);
    }

    /// Hands packets over for all receivers of a channel; returns their number, counted for each
    /// receiver.
    pub(super) fn send(&self, packets: &Arc<Packets>, replicas: &Replicas) -> u64 {
        let receivers = replicas.destinations.len();
        if receivers > 0 {
            self.replicator.send(packets, &replicas.destinations);
        }
        (packets.len() * receivers) as u64
    }

    /// Returns the packets that wait for the thread with the longest queue.
    pub(super) fn queued(&self) -> usize {
        self.replicator.queued()
    }

    /// Returns the packets, counted for each receiver, that were dropped for lack of room.
    pub(super) fn dropped(&self) -> u64 {
        self.replicator.dropped()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn target(port: u16) -> Target {
        Target {
            to: SocketAddr::from(([127, 0, 0, 1], port)),
            from: None,
        }
    }

    #[test]
    fn a_failure_at_a_former_address_is_none_at_the_present_one() {
        let mut replicas = Replicas::default();
        assert!(!replicas.has_failed(1), "no receiver");
        replicas.replace((1, 0), [(1, target(1))].into_iter());
        let former = Arc::clone(&replicas.by_session[&1]);
        assert!(!replicas.has_failed(1));
        // As the sending thread does before it reports.
        former.close();
        assert!(replicas.has_failed(1));
        replicas.replace((1, 1), [(1, target(2))].into_iter());
        former.close();
        assert!(!replicas.has_failed(1), "reported late");
        replicas.by_session[&1].close();
        assert!(replicas.has_failed(1));
    }

    #[test]
    fn receivers_that_stay_keep_what_is_queued_for_them() {
        let mut replicas = Replicas::default();
        assert!(!replicas.is_at((0, 0)));
        replicas.replace(
            (1, 0),
            [(1, target(1)), (2, target(2)), (3, target(3))].into_iter(),
        );
        let before = replicas.by_session.clone();
        // One has moved, one is gone, one has failed, one is new.
        replicas.replace(
            (2, 1),
            [(1, target(9)), (2, target(2)), (4, target(4))].into_iter(),
        );
        assert!(replicas.is_at((2, 1)));
        assert!(!before[&1].is_open() && !before[&3].is_open());
        assert!(before[&2].is_open() && Arc::ptr_eq(&before[&2], &replicas.by_session[&2]));
        assert_eq!(replicas.by_session[&1].target(), target(9));
        before[&2].close();
        replicas.replace((3, 1), [(2, target(2))].into_iter());
        let last = Arc::clone(&replicas.by_session[&2]);
        assert!(last.is_open(), "asked for again after a failure");
        drop(replicas);
        assert!(!last.is_open());
    }
}
