//! Replication of packets to many destinations, by threads of its own.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::fanout::{Fanout, MESSAGES, SendFailure, Target};
use crate::packets::Packets;

/// Packets that wait for one thread, those being sent included.
const QUEUE: usize = 256;

/// Packets that a thread joins to trains when it is late.
const JOINED: usize = 64;

/// Time that a thread waits for room in the socket's buffer, for one train to all destinations.
const PATIENCE: Duration = Duration::from_millis(20);

/// Destination of replicated packets.
#[derive(Debug)]
pub struct Destination {
    id: u64,
    target: Target,
    open: AtomicBool,
}

impl Destination {
    /// Creates an open destination. `id` is the owner's, and chooses the thread: packets to one id
    /// keep their order, also after a change of its address.
    #[must_use]
    pub fn new(id: u64, target: Target) -> Self {
        Self {
            id,
            target,
            open: AtomicBool::new(true),
        }
    }

    /// Returns the address.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// Discards everything that is queued for this destination. Only the system call that is in
    /// progress can still write to its address.
    pub fn close(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// Whether packets are sent there: neither closed nor failed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }
}

/// Destinations of one stream of packets, replaced as a whole when one of them changes.
#[derive(Debug, Default)]
pub struct Destinations {
    /// Destinations of each thread.
    parts: Vec<Arc<[Arc<Destination>]>>,
    sent: Arc<AtomicU64>,
}

impl Destinations {
    /// Returns the number of destinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Whether there is no destination.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that the kernel took for all destinations so far, former ones included.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Destination that the kernel does not send to. It gets nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicationFailure {
    /// Its id.
    pub id: u64,
    /// Error, as `errno`.
    pub errno: i32,
}

/// Threads that send packets to many destinations each, from a socket that others may use as well.
/// Packets without room in a thread's queue or in the socket's buffer are dropped and counted; the
/// caller never waits.
#[derive(Debug)]
pub struct Replicator {
    lanes: Vec<Lane>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Lane {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl Replicator {
    /// Starts `threads` threads that send from `socket`, as ECN-capable. `failed` is called by
    /// them, and must not block.
    ///
    /// # Errors
    /// The system refuses another descriptor or thread.
    pub fn new(
        socket: &impl AsFd,
        threads: NonZeroUsize,
        failed: impl Fn(ReplicationFailure) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let mut replicator = Self {
            lanes: Vec::new(),
            dropped: Arc::default(),
        };
        let failed = Arc::new(failed);
        for number in 0..threads.get() {
            let queue = Arc::new(Queue::default());
            let mut fanout = Fanout::new();
            fanout.set_ecn_capable();
            let sender = Sender {
                socket: socket.as_fd().try_clone_to_owned()?,
                fanout,
                queue: Arc::clone(&queue),
                dropped: Arc::clone(&replicator.dropped),
                failed: Arc::clone(&failed),
            };
            let thread = std::thread::Builder::new()
                .name(format!("replication-{number}"))
                .spawn(move || sender.run())?;
            replicator.lanes.push(Lane {
                queue,
                thread: Some(thread),
            });
        }
        Ok(replicator)
    }

    /// Replaces the destinations of a set, from the next packet on. Those that are not in it any
    /// more have to be closed.
    pub fn assign(
        &self,
        set: &mut Destinations,
        destinations: impl Iterator<Item = Arc<Destination>>,
    ) {
        let lanes = self.lanes.len();
        let mut parts = vec![Vec::new(); lanes];
        for destination in destinations {
            let lane = destination.id % lanes as u64;
            parts[lane as usize].push(destination);
        }
        set.parts = parts.into_iter().map(Arc::from).collect();
    }

    /// Queues packets for all destinations of a set. Packets without room in a thread's queue are
    /// dropped for that thread's destinations.
    pub fn send(&self, packets: &Arc<Packets>, set: &Destinations) {
        for (lane, part) in self.lanes.iter().zip(&set.parts) {
            let batch = Batch {
                packets: Arc::clone(packets),
                destinations: Arc::clone(part),
                sent: Arc::clone(&set.sent),
            };
            if !part.is_empty() && !lane.queue.push(batch) {
                self.dropped
                    .fetch_add((packets.len() * part.len()) as u64, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of packets that wait for the thread with the longest queue.
    #[must_use]
    pub fn queued(&self) -> usize {
        let queues = self.lanes.iter().map(|lane| lane.queue.packets());
        queues.max().unwrap_or_default()
    }

    /// Returns the number of packets, counted for each destination, that were dropped because a
    /// queue or the socket's buffer was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Replicator {
    /// Ends the threads after the trains that they are sending. What is queued is discarded.
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.queue.close();
        }
        for lane in &mut self.lanes {
            if let Some(thread) = lane.thread.take() {
                // A thread that has panicked has said so.
                let _ = thread.join();
            }
        }
    }
}

/// Packets for the destinations of one thread.
#[derive(Debug)]
struct Batch {
    packets: Arc<Packets>,
    destinations: Arc<[Arc<Destination>]>,
    sent: Arc<AtomicU64>,
}

/// Batches of one thread.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Packets that wait or are being sent.
    packets: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch; returns whether there was room.
    fn push(&self, batch: Batch) -> bool {
        let packets = batch.packets.len();
        let mut waiting = self.lock();
        // Any batch fits an empty queue.
        let queued = self.packets();
        if queued > 0 && queued + packets > QUEUE {
            return false;
        }
        self.packets.fetch_add(packets, Ordering::Relaxed);
        waiting.batches.push_back(batch);
        drop(waiting);
        self.changed.notify_one();
        true
    }

    /// Waits for the next batch, whose packets are those of several batches if they have the same
    /// destinations. Returns `None` once the queue is closed.
    fn next(&self) -> Option<Batch> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(mut first) = waiting.batches.pop_front() {
                while let Some(next) = waiting.batches.front()
                    && Arc::ptr_eq(&next.destinations, &first.destinations)
                    && first.packets.len() + next.packets.len() <= JOINED
                {
                    // Copies those of the first batch while the caller still has them.
                    Arc::make_mut(&mut first.packets).append(&next.packets);
                    waiting.batches.pop_front();
                }
                return Some(first);
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn sent(&self, packets: usize) {
        self.packets.fetch_sub(packets, Ordering::Relaxed);
    }

    fn packets(&self) -> usize {
        self.packets.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }
}

/// One thread's part.
struct Sender<F> {
    socket: OwnedFd,
    fanout: Fanout,
    queue: Arc<Queue>,
    dropped: Arc<AtomicU64>,
    failed: Arc<F>,
}

impl<F: Fn(ReplicationFailure)> Sender<F> {
    fn run(mut self) {
        while let Some(batch) = self.queue.next() {
            self.send(&batch);
            self.queue.sent(batch.packets.len());
        }
    }

    /// Sends a batch's packets to its open destinations.
    fn send(&mut self, batch: &Batch) {
        for (train, segment) in batch.packets.trains() {
            if self.queue.is_closed() {
                return;
            }
            self.fanout.set_patience(PATIENCE);
            self.send_train(train, segment.unwrap_or(train.len()), batch);
        }
    }

    /// Sends a train to all open destinations of a batch.
    fn send_train(&mut self, train: &[u8], segment: usize, batch: &Batch) {
        let mut sent = 0;
        // One system call each, so that a destination that is closed gets nothing from the next
        // call on.
        for destinations in batch.destinations.chunks(MESSAGES) {
            let mut open = [None; MESSAGES];
            let mut count = 0;
            for destination in destinations.iter().filter(|d| d.is_open()) {
                if let Some(place) = open.get_mut(count) {
                    *place = Some(destination);
                    count += 1;
                }
            }
            let targets = open.iter().flatten().map(|d| d.target);
            sent += train.len() * count;
            self.fanout
                .send(&self.socket, train, segment, targets, |number, failure| {
                    let lost = match failure {
                        SendFailure::TooLarge => train.len(),
                        SendFailure::Lost { datagrams, .. } => train.len().min(datagrams * segment),
                    };
                    sent -= lost;
                    // Too large for one path is like lost on it: smaller ones arrive.
                    let SendFailure::Lost { datagrams, errno } = failure else {
                        return;
                    };
                    if is_lack_of_room(errno) {
                        self.dropped.fetch_add(datagrams as u64, Ordering::Relaxed);
                    } else if let Some(destination) = open.get(number).copied().flatten() {
                        destination.close();
                        (self.failed)(ReplicationFailure {
                            id: destination.id,
                            errno,
                        });
                    }
                });
        }
        batch.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }
}

/// Whether the error says nothing about the destination.
fn is_lack_of_room(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn batch(destinations: &Arc<[Arc<Destination>]>, lengths: &[usize]) -> Batch {
        let mut packets = Packets::default();
        for len in lengths {
            packets.push(&vec![0; *len]);
        }
        Batch {
            packets: Arc::new(packets),
            destinations: Arc::clone(destinations),
            sent: Arc::default(),
        }
    }

    #[test]
    fn a_late_thread_joins_batches_to_the_same_destinations() {
        let (here, there): (Arc<[_]>, Arc<[_]>) = (Arc::from([]), Arc::from([]));
        let queue = Queue::default();
        for destinations in [&here, &here, &there, &here] {
            assert!(queue.push(batch(destinations, &[100, 100])));
        }
        let mut joined = Vec::new();
        for _ in 0..3 {
            let packets = queue.next().unwrap().packets.len();
            joined.push(packets);
            queue.sent(packets);
        }
        assert_eq!((joined, queue.packets()), (vec![4, 2, 2], 0));
        assert!(queue.push(batch(&here, &[1; JOINED - 1])));
        assert!(queue.push(batch(&here, &[1; 2])));
        let next = queue.next().unwrap();
        assert_eq!(
            next.packets.len(),
            JOINED - 1,
            "the next one would be too many"
        );
    }

    #[test]
    fn a_full_queue_takes_no_more_and_an_empty_one_any_batch() {
        let all: Arc<[_]> = Arc::from([]);
        let queue = Queue::default();
        assert!(queue.push(batch(&all, &[1; QUEUE + 1])));
        assert!(!queue.push(batch(&all, &[1])));
        let next = queue.next().unwrap();
        assert!(!queue.push(batch(&all, &[1])), "it is being sent");
        queue.sent(next.packets.len());
        assert!(queue.push(batch(&all, &[1])));
        queue.close();
        assert!(queue.next().is_none(), "discarded");
    }

    #[test]
    fn nothing_queued_is_sent_to_a_destination_that_was_closed_since() {
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (socket, sinks) = (bind(), [(); 3].map(|()| bind()));
        let to = |sink: &std::net::UdpSocket| Target {
            to: sink.local_addr().unwrap(),
            from: None,
        };
        let all: Arc<[_]> = (0..)
            .zip(&sinks)
            .map(|(id, sink)| Arc::new(Destination::new(id, to(sink))))
            .collect();
        let mut sender = Sender {
            socket: socket.as_fd().try_clone_to_owned().unwrap(),
            fanout: Fanout::new(),
            queue: Arc::default(),
            dropped: Arc::default(),
            failed: Arc::new(|failure| panic!("{failure:?}")),
        };
        // The first one is more than UDP takes, which ends nothing.
        let queued = batch(&all, &[66_000, 100, 100, 50]);
        assert!(sender.queue.push(queued));
        all[1].close();
        let next = sender.queue.next().unwrap();
        sender.send(&next);
        assert_eq!(next.sent.load(Ordering::Relaxed), 2 * 250);
        let mut buffer = [0; 200];
        for (number, sink) in sinks.iter().enumerate() {
            sink.set_nonblocking(true).unwrap();
            let lengths: Vec<_> = std::iter::from_fn(|| sink.recv(&mut buffer).ok()).collect();
            let wanted: &[usize] = if number == 1 { &[] } else { &[100, 100, 50] };
            assert_eq!(lengths, wanted, "{number}");
        }
    }
}
