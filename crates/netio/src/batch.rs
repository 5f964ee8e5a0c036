//! Buffers for receiving many datagrams in one system call.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use quinn_udp::{BATCH_SIZE, RecvMeta};

/// Size of a kernel message's buffer: the largest UDP payload, and the largest coalesced (GRO)
/// train, which Linux also bounds by 64 KiB. Nothing is ever truncated.
const MESSAGE_BYTES: usize = 1 << 16;

/// A received datagram, borrowed from a [`RecvBatch`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram<'a> {
    /// Sender. An IPv4 sender has an IPv4 address even on a dual-stack socket.
    pub from: SocketAddr,
    /// Destination address (the group's on a multicast socket), if the kernel reports it.
    pub to: Option<IpAddr>,
    /// ECN field of the IP header (RFC 3168), two bits; 0 if the kernel does not report it. All
    /// datagrams of a coalesced train have the same.
    pub ecn: u8,
    /// Payload; writable, because packet protection is removed in place. May be empty.
    pub data: &'a mut [u8],
}

/// Reusable receive buffers: 32 messages of 64 KiB, of which only what is used becomes resident.
///
/// One batch serves any number of sockets in turn, so a loop needs only one.
pub struct RecvBatch {
    buffer: Vec<u8>,
    meta: [RecvMeta; BATCH_SIZE],
    /// Messages of the last call.
    messages: usize,
}

impl RecvBatch {
    /// Most kernel messages of one call.
    pub(crate) const MESSAGES: usize = BATCH_SIZE;

    /// Reserves the buffers (2 MiB of address space).
    pub fn new() -> Self {
        Self {
            buffer: vec![0; MESSAGE_BYTES * BATCH_SIZE],
            meta: [RecvMeta::default(); BATCH_SIZE],
            messages: 0,
        }
    }

    /// Whether the last call had room for no more messages, so that there may be others.
    #[must_use]
    pub fn was_full(&self) -> bool {
        self.messages >= Self::MESSAGES
    }

    /// Lets `receive` fill the buffers; returns its number of messages.
    pub(crate) fn fill(
        &mut self,
        receive: impl FnOnce(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut chunks = self.buffer.chunks_exact_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        self.messages = 0;
        self.messages = receive(&mut slices, &mut self.meta)?;
        Ok(self.messages)
    }

    /// Passes the first `messages` messages on, datagram by datagram; returns the number of
    /// datagrams.
    pub(crate) fn for_each(
        &mut self,
        messages: usize,
        mut each: impl FnMut(Datagram<'_>),
    ) -> usize {
        let mut datagrams = 0;
        for (buffer, meta) in self
            .buffer
            .chunks_exact_mut(MESSAGE_BYTES)
            .zip(&self.meta)
            .take(messages)
        {
            let from = canonical(meta.addr);
            let to = meta.dst_ip.map(|ip| ip.to_canonical());
            let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
            let message = buffer
                .get_mut(..meta.len.min(MESSAGE_BYTES))
                .unwrap_or_default();
            if message.is_empty() {
                datagrams += 1;
                each(Datagram {
                    from,
                    to,
                    ecn,
                    data: message,
                });
                continue;
            }
            // All datagrams of a coalesced train have the same length, except a shorter last one.
            for data in message.chunks_mut(meta.stride.max(1)) {
                datagrams += 1;
                each(Datagram {
                    from,
                    to,
                    ecn,
                    data,
                });
            }
        }
        datagrams
    }
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch").finish_non_exhaustive()
    }
}

/// Unmaps `::ffff:a.b.c.d`, the form of an IPv4 peer on a dual-stack socket: peers are compared by
/// address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    }
}
