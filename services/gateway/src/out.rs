//! Sending on: one socket for each address family, and packets of one flow in trains.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use netio::MulticastSender;

use crate::tunnels::FlowId;

/// Most bytes of one train; the socket cuts it to what the kernel takes.
const MAX_TRAIN: usize = 1 << 16;

/// What was sent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets that the kernel took.
    pub packets: u64,
    /// Packets that it had no room for, or refused.
    pub lost: u64,
    /// Packets that were not sent on because they came from here: a relay hears what this program
    /// sends, and brought it back.
    pub own: u64,
}

/// Packets of one flow that lie behind each other, all of one size but for a shorter last one.
#[derive(Debug, Default)]
struct Train {
    group: Option<SocketAddr>,
    bytes: Vec<u8>,
    size: usize,
    packets: u64,
    /// A shorter packet ends it.
    closed: bool,
}

/// The way out.
#[derive(Debug)]
pub struct Outlet {
    v4: Option<MulticastSender>,
    v6: Option<MulticastSender>,
    /// Where the packets of this program come from.
    own: Vec<SocketAddr>,
    groups: BTreeMap<FlowId, SocketAddr>,
    train: Train,
    sent: Sent,
}

impl Outlet {
    /// Opens a socket on `interface` (a name or an address) for each address family of `groups`.
    ///
    /// # Errors
    /// The interface cannot send such groups; the text says why and what to do.
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
            sent: Sent::default(),
        })
    }

    /// Sends a packet on that was sent by `from`, at the latest with the next
    /// [`flush`](Self::flush). One that this program sent itself would go round without end.
    pub fn push(&mut self, flow: FlowId, from: SocketAddr, payload: &[u8]) {
        let Some(group) = self.groups.get(&flow).copied() else {
            return;
        };
        let same = |own: &SocketAddr| (own.ip(), own.port()) == (from.ip(), from.port());
        if self.own.iter().any(same) {
            if self.sent.own == 0 {
                tracing::warn!(
                    "packets for {group} that this program sent on come back from the relay: it hears {from}. They are left out; choose another --out-interface, or a smaller --ttl"
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

    /// Sends what was held back.
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
            // No room is the usual reason; others show in the counter as well.
            tracing::debug!(%error, %group, "packets could not be sent on");
            0
        });
        self.sent.packets += taken;
        self.sent.lost += train.packets - taken;
        train.bytes.clear();
        train.packets = 0;
        train.closed = false;
    }

    /// What was sent on so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }
}
