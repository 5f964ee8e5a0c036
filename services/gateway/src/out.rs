//! Re-emission: one socket for each address family, and packets of one flow in trains.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use netio::MulticastSender;

use crate::tunnels::FlowId;

/// Most bytes of one train; the socket limits it to the maximum of the kernel.
const MAX_TRAIN: usize = 1 << 16;

/// Counts of re-emitted packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounters {
    /// Packets that the kernel accepted.
    pub packets: u64,
    /// Packets that the kernel had no room for, or refused.
    pub lost: u64,
    /// Packets that were not re-emitted because they came from here: a relay receives the output of
    /// this program, and returned it.
    pub own: u64,
}

/// Consecutive packets of one flow, all of one size except for a shorter last one.
#[derive(Debug, Default)]
struct Train {
    group: Option<SocketAddr>,
    bytes: Vec<u8>,
    size: usize,
    packets: u64,
    /// Whether a shorter packet ended the train.
    closed: bool,
}

/// Output sockets.
#[derive(Debug)]
pub struct Outlet {
    v4: Option<MulticastSender>,
    v6: Option<MulticastSender>,
    /// Source addresses of this program's packets.
    own: Vec<SocketAddr>,
    groups: BTreeMap<FlowId, SocketAddr>,
    train: Train,
    sent: SentCounters,
}

impl Outlet {
    /// Opens a socket on `interface` (a name or an address) for each address family of `groups`.
    ///
    /// # Errors
    /// The interface cannot send such groups; the text contains the cause and a remedy.
    pub async fn open(
        interface: &str,
        ttl: u8,
        groups: BTreeMap<FlowId, SocketAddr>,
    ) -> io::Result<Self> {
        let mut senders = [None, None];
        for (ipv4, sender) in [true, false].into_iter().zip(&mut senders) {
            if groups.values().any(|group| group.is_ipv4() == ipv4) {
                let address = netio::interface_address(interface, ipv4)?;
                let opened = MulticastSender::bind(address, ttl.into(), true)?;
                opened.writable().await?;
                *sender = Some(opened);
            }
        }
        let own = senders.iter().flatten().map(|sender| {
            let port = sender.socket().local_addr().port();
            SocketAddr::new(sender.source(), port)
        });
        let own = own.collect();
        let [v4, v6] = senders;
        Ok(Self {
            v4,
            v6,
            own,
            groups,
            train: Train::default(),
            sent: SentCounters::default(),
        })
    }

    /// Queues a packet that was sent by `from`; it is sent at the latest with the next
    /// [`flush`](Self::flush). A packet of this program itself is dropped, because it would loop
    /// for ever.
    pub fn push(&mut self, flow: FlowId, from: SocketAddr, payload: &[u8]) {
        let Some(group) = self.groups.get(&flow).copied() else {
            return;
        };
        let same = |own: &SocketAddr| (own.ip(), own.port()) == (from.ip(), from.port());
        if self.own.iter().any(same) {
            if self.sent.own == 0 {
                tracing::warn!(
                    %group, %from,
                    "own packets come back from the relay; dropping them: choose another \
                     --out-interface, or a smaller --ttl"
                );
            }
            self.sent.own += 1;
            return;
        }
        let train = &self.train;
        let fits = train.group == Some(group)
            && !train.closed
            && payload.len() <= train.size
            && !payload.is_empty()
            && train.bytes.len() + payload.len() <= MAX_TRAIN;
        if !fits {
            self.flush();
            self.train.group = Some(group);
            self.train.size = payload.len();
        }
        self.train.closed = payload.len() < self.train.size || payload.is_empty();
        self.train.bytes.extend_from_slice(payload);
        self.train.packets += 1;
    }

    /// Sends the queued packets.
    pub fn flush(&mut self) {
        let train = &mut self.train;
        let Some(group) = train.group.take() else {
            return;
        };
        let sender = match group {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        let size = (train.packets > 1).then_some(train.size);
        let taken = match sender {
            Some(sender) => {
                let before = sender.counters().send_lost;
                let taken = sender.try_send(group, &train.bytes, size);
                let lost = sender.counters().send_lost - before;
                taken.map(|()| train.packets.saturating_sub(lost))
            }
            None => Ok(0),
        };
        let taken = taken.unwrap_or_else(|error| {
            // A full buffer is the usual reason; others show in the counter as well.
            tracing::debug!(%error, %group, "packets not forwarded");
            0
        });
        self.sent.packets += taken;
        self.sent.lost += train.packets - taken;
        train.bytes.clear();
        train.packets = 0;
        train.closed = false;
    }

    /// Returns the counts so far.
    pub fn sent(&self) -> SentCounters {
        self.sent
    }
}
