//! Multicast groups that many receivers of one process share: each is joined once, and each packet
//! is read once.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::Ecn;
use flexicast::control::Endpoint;
use netio::UdpSocket;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::batch::with_batch;

/// Packets that wait for one receiver; the oldest are lost beyond, as in a socket's buffer.
const MAX_WAITING: usize = 1024;
/// A group is left and joined again at most once in this time, however many receivers ask for it.
const REJOIN_EVERY: Duration = Duration::from_secs(1);

/// Random loss of flow packets before each receiver, for tests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowLoss {
    /// Part of the packets that is lost, from 0 to 1; each receiver loses others.
    pub part: f64,
    /// Seed of the choice.
    pub seed: u64,
}

/// Multicast groups that receivers share; see [`super::Receiver::start_sharing`]. Clones are the
/// same groups.
///
/// A receiver gets the packets of the groups that it joined itself, in a queue of its own that
/// holds 1,024 of them, and decrypts, acknowledges and merges them itself.
#[derive(Clone, Default)]
pub struct SharedGroups {
    sharing: Arc<Mutex<Sharing>>,
    loss: Option<FlowLoss>,
}

/// Which group is joined, and on which interface.
type Key = (SocketAddr, Option<IpAddr>, Option<IpAddr>);

#[derive(Default)]
struct Sharing {
    groups: BTreeMap<Key, Shared>,
    /// Number of the next subscription.
    next: u64,
}

struct Shared {
    /// The task that reads the group's socket; it has the socket.
    reader: Option<JoinHandle<()>>,
    joined_at: Instant,
    queues: BTreeMap<u64, Arc<Queue>>,
}

impl Shared {
    /// Leaves the group and joins it again. Left before it is joined: only then does the network
    /// hear of it.
    fn rejoin(&mut self, key: Key, sharing: Arc<Mutex<Sharing>>, now: Instant) {
        self.joined_at = now;
        let before = self.reader.take();
        self.reader = Some(tokio::spawn(async move {
            if let Some(before) = before {
                before.abort();
                let _ = before.await;
            }
            let (group, source, interface) = key;
            match netio::join(group, source, interface) {
                Ok(socket) => read(socket, key, sharing).await,
                Err(error) => lock(&sharing).fail(&key, &error),
            }
        }));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
        }
    }
}

impl Sharing {
    /// Gives a group up, whose socket failed.
    fn fail(&mut self, key: &Key, error: &io::Error) {
        if let Some(shared) = self.groups.remove(key) {
            shared.queues.values().for_each(|queue| queue.fail(error));
        }
    }
}

impl SharedGroups {
    /// Returns groups that lose packets on the way to each receiver.
    #[must_use]
    pub fn with_loss(loss: FlowLoss) -> Self {
        SharedGroups {
            sharing: Arc::default(),
            loss: (loss.part > 0.0).then_some(loss),
        }
    }

    /// Joins a group for one more receiver; `again` leaves it first, for all.
    pub(super) fn join(
        &self,
        endpoint: Endpoint,
        interface: Option<IpAddr>,
        again: bool,
    ) -> io::Result<Subscription> {
        let key = (endpoint.group, endpoint.source, interface);
        let now = Instant::now();
        let mut sharing = lock(&self.sharing);
        let number = sharing.next;
        sharing.next += 1;
        let queue = Arc::<Queue>::default();
        if let Some(known) = sharing.groups.get_mut(&key) {
            if again && now >= known.joined_at + REJOIN_EVERY {
                known.rejoin(key, self.sharing.clone(), now);
            }
            known.queues.insert(number, queue.clone());
        } else {
            let socket = netio::join(endpoint.group, endpoint.source, interface)?;
            let shared = Shared {
                reader: Some(tokio::spawn(read(socket, key, self.sharing.clone()))),
                joined_at: now,
                queues: BTreeMap::from([(number, queue.clone())]),
            };
            sharing.groups.insert(key, shared);
        }
        Ok(Subscription {
            key,
            number,
            queue,
            loss: self.loss.map(|loss| {
                let seed = loss.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (loss.part, SmallRng::seed_from_u64(seed))
            }),
            taken: VecDeque::new(),
            packet: Vec::new(),
            sharing: self.sharing.clone(),
        })
    }
}

/// Reads a group's packets for all its receivers until it fails, or none is left.
async fn read(socket: UdpSocket, key: Key, sharing: Arc<Mutex<Sharing>>) {
    loop {
        let mut packets: Vec<Packet> = Vec::new();
        let read = match socket.readable().await {
            Ok(()) => with_batch(|batch| {
                socket.try_recv(batch, |datagram| {
                    let mark = Ecn::from_tos(datagram.ecn);
                    let data = Bytes::copy_from_slice(datagram.data);
                    packets.push((datagram.from, mark, data));
                })
            }),
            Err(error) => Err(error),
        };
        let mut sharing = lock(&sharing);
        let Some(shared) = sharing.groups.get(&key) else {
            return;
        };
        match read {
            Ok(_) => shared
                .queues
                .values()
                .for_each(|queue| queue.push(&packets)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return sharing.fail(&key, &error),
        }
    }
}

type Packet = (SocketAddr, Ecn, Bytes);

/// Packets on their way to one receiver.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Default)]
struct Waiting {
    packets: VecDeque<Packet>,
    /// Why no more will come.
    failure: Option<(io::ErrorKind, String)>,
}

impl Queue {
    fn push(&self, packets: &[Packet]) {
        let mut waiting = lock(&self.waiting);
        waiting.packets.extend(packets.iter().cloned());
        let excess = waiting.packets.len().saturating_sub(MAX_WAITING);
        waiting.packets.drain(..excess);
        drop(waiting);
        self.filled.notify_one();
    }

    fn fail(&self, error: &io::Error) {
        lock(&self.waiting).failure = Some((error.kind(), error.to_string()));
        self.filled.notify_one();
    }
}

/// A group as one receiver has it; it leaves when this is dropped.
pub(super) struct Subscription {
    key: Key,
    number: u64,
    queue: Arc<Queue>,
    /// Part of the packets that is lost.
    loss: Option<(f64, SmallRng)>,
    /// Packets taken from the queue; empty between two calls.
    taken: VecDeque<Packet>,
    /// The packet that is being handed out: packets are decrypted in place.
    packet: Vec<u8>,
    sharing: Arc<Mutex<Sharing>>,
}

impl Subscription {
    /// Waits until there may be packets.
    pub(super) async fn readable(&self) {
        self.queue.filled.notified().await;
    }

    /// Calls `each` with the sender, the ECN mark and the bytes of the packets that wait.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; any other error means that the group's socket failed.
    pub(super) fn receive(
        &mut self,
        mut each: impl FnMut(SocketAddr, Ecn, &mut [u8]),
    ) -> io::Result<()> {
        let mut waiting = lock(&self.queue.waiting);
        std::mem::swap(&mut waiting.packets, &mut self.taken);
        if self.taken.is_empty() {
            return Err(match waiting.failure.take() {
                Some((kind, text)) => io::Error::new(kind, text),
                None => io::ErrorKind::WouldBlock.into(),
            });
        }
        if waiting.failure.is_some() {
            self.queue.filled.notify_one();
        }
        drop(waiting);
        while let Some((from, mark, packet)) = self.taken.pop_front() {
            if let Some((part, random)) = &mut self.loss
                && random.random_bool(*part)
            {
                continue;
            }
            self.packet.clear();
            self.packet.extend_from_slice(&packet);
            each(from, mark, &mut self.packet);
        }
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut sharing = lock(&self.sharing);
        if let Some(shared) = sharing.groups.get_mut(&self.key) {
            shared.queues.remove(&self.number);
            if shared.queues.is_empty() {
                sharing.groups.remove(&self.key);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GROUP: &str = "239.70.71.1:0";

    /// A free port of a group, and a socket that sends to it.
    fn place() -> (Endpoint, std::net::UdpSocket) {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut group: SocketAddr = GROUP.parse().unwrap();
        group.set_port(free.local_addr().unwrap().port());
        let endpoint = Endpoint {
            group,
            source: None,
        };
        let sender = socket2::SockRef::from(&free);
        sender.set_multicast_if_v4(&[127, 0, 0, 1].into()).unwrap();
        (endpoint, free)
    }

    const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    async fn take(subscription: &mut Subscription, count: usize) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        while taken.len() < count {
            subscription.readable().await;
            let _ = subscription.receive(|_, _, data| {
                taken.push(data.to_vec());
                // Decryption in place is not seen by another receiver.
                data.fill(0);
            });
        }
        taken
    }

    #[tokio::test]
    async fn each_receiver_gets_each_packet_of_the_groups_that_it_joined() {
        let groups = SharedGroups::default();
        let (endpoint, sender) = place();
        let (other, _) = place();
        let join = |endpoint| groups.join(endpoint, LOOPBACK, false).unwrap();
        let mut receivers = [endpoint; 3].map(join);
        let mut beside = join(other);
        assert_eq!(lock(&groups.sharing).groups.len(), 2, "one join each");
        for number in 0..100u8 {
            sender.send_to(&[number; 9], endpoint.group).unwrap();
        }
        for receiver in &mut receivers {
            let taken = take(receiver, 100).await;
            assert!(taken.iter().enumerate().all(|(n, p)| *p == [n as u8; 9]));
        }
        let nothing = beside.receive(|_, _, _| ()).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn the_last_receiver_leaves_the_group_and_a_rejoin_keeps_the_others() {
        let groups = SharedGroups::default();
        let (endpoint, sender) = place();
        let mut first = groups.join(endpoint, LOOPBACK, false).unwrap();
        let joined = |groups: &SharedGroups| lock(&groups.sharing).groups.len();
        let key = first.key;
        let age = || lock(&groups.sharing).groups[&key].joined_at;
        let before = age();
        drop(groups.join(endpoint, LOOPBACK, true).unwrap());
        assert_eq!(age(), before, "joined just now");
        let long_ago = before.checked_sub(REJOIN_EVERY).unwrap();
        lock(&groups.sharing)
            .groups
            .get_mut(&key)
            .unwrap()
            .joined_at = long_ago;
        let second = groups.join(endpoint, LOOPBACK, true).unwrap();
        assert!(age() > long_ago);
        // Between the two joins, packets are lost.
        let taken = loop {
            sender.send_to(b"after", endpoint.group).unwrap();
            let taken = take(&mut first, 1);
            if let Ok(taken) = tokio::time::timeout(Duration::from_millis(50), taken).await {
                break taken;
            }
        };
        assert_eq!(taken[0], b"after");
        drop(first);
        assert_eq!(joined(&groups), 1);
        drop(second);
        assert_eq!(joined(&groups), 0);
    }

    #[tokio::test]
    async fn a_receiver_that_reads_nothing_loses_the_oldest() {
        let queue = Arc::<Queue>::default();
        let from = ([127, 0, 0, 1], 1).into();
        let packet = |n: usize| (from, Ecn::Ect0, Bytes::from(n.to_string()));
        for n in 0..MAX_WAITING + 5 {
            queue.push(&[packet(n)]);
        }
        let waiting = lock(&queue.waiting);
        assert_eq!(waiting.packets.len(), MAX_WAITING);
        assert_eq!(waiting.packets.front(), Some(&packet(5)));
    }

    #[tokio::test]
    async fn loss_is_by_the_seed_and_differs_between_receivers() {
        let lost = async |seed: u64| {
            let groups = SharedGroups::with_loss(FlowLoss { part: 0.3, seed });
            let (endpoint, _) = place();
            let mut receivers = [0, 1].map(|_| groups.join(endpoint, LOOPBACK, false).unwrap());
            for number in 0..1000u64 {
                let from = ([127, 0, 0, 1], 1).into();
                let packet = Bytes::copy_from_slice(&number.to_be_bytes());
                for receiver in &receivers {
                    receiver.queue.push(&[(from, Ecn::Ect0, packet.clone())]);
                }
            }
            receivers.each_mut().map(|receiver| {
                let mut taken = Vec::new();
                while receiver
                    .receive(|_, _, data| taken.push(data.to_vec()))
                    .is_ok()
                {}
                taken
            })
        };
        let [one, other] = lost(7).await;
        assert_ne!(one, other);
        for taken in [&one, &other] {
            assert!((600..800).contains(&taken.len()), "{}", taken.len());
        }
        assert_eq!(lost(7).await, [one.clone(), other]);
        assert_ne!(lost(8).await[0], one);
    }
}
