//! Batched receives, with all control data of the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use super::port::raw;
use super::sys::{Control, RawAddress, control_messages, read};

/// Size of a kernel message's buffer: a datagram or a coalesced train, which Linux bounds by 64
/// KiB.
const MESSAGE_BYTES: usize = 1 << 16;

/// Room for the control messages of one message.
const CONTROL_BYTES: usize = 192;

/// A kernel message: a datagram, or a train of equally long ones from the same sender.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message<'a> {
    /// Sender.
    pub from: SocketAddr,
    /// Destination address.
    pub to: Option<IpAddr>,
    /// Number of the receiving interface, 0 if unknown.
    pub interface: u32,
    /// TTL or hop limit.
    pub ttl: Option<u8>,
    /// Type of service or traffic class.
    pub tos: Option<u8>,
    /// Length of each datagram of the train but the last, in bytes; at least 1.
    pub stride: usize,
    /// Payload of all datagrams.
    pub data: &'a [u8],
    /// Number of datagrams dropped by then because the socket's buffer was full, modulo 2³².
    pub overflow: Option<u32>,
}

/// Reusable receive buffers of 64 KiB for each message, of which only what is used becomes
/// resident. One inbox serves any number of sockets in turn.
pub struct Inbox {
    buffer: Vec<u8>,
    addresses: Vec<RawAddress>,
    controls: Vec<Control<CONTROL_BYTES>>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    messages: usize,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

// SAFETY: the pointers in `vectors` and `headers` lead to the other fields' heap memory and nowhere
// else; they are rewritten before each use, so they are only ever used by the thread that has
// `self`.
unsafe impl Send for Inbox {}

impl Inbox {
    /// Allocates buffers for `messages` messages.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        // SAFETY: the structures are made of integers and pointers: all zeroes is a value.
        let (vector, header) = unsafe { std::mem::zeroed::<(libc::iovec, libc::mmsghdr)>() };
        Self {
            buffer: vec![0; MESSAGE_BYTES * messages],
            addresses: vec![RawAddress::room(); messages],
            controls: vec![Control::new(); messages],
            vectors: vec![vector; messages],
            headers: vec![header; messages],
            messages,
        }
    }

    /// Receives at most `most` messages, as many as are there and fit, and calls `each` for every
    /// one. Returns their number, possibly 0.
    ///
    /// # Errors
    /// The error of the kernel, including ICMP errors of datagrams sent earlier.
    pub fn receive(
        &mut self,
        socket: &impl AsFd,
        most: usize,
        mut each: impl FnMut(Message<'_>),
    ) -> io::Result<usize> {
        let parts = self
            .buffer
            .chunks_exact_mut(MESSAGE_BYTES)
            .zip(&mut self.addresses)
            .zip(&mut self.controls);
        let places = self.vectors.iter_mut().zip(&mut self.headers);
        let most = most.min(self.messages);
        for (((buffer, address), control), (vector, header)) in parts.zip(places).take(most) {
            *address = RawAddress::room();
            vector.iov_base = buffer.as_mut_ptr().cast();
            vector.iov_len = buffer.len();
            header.msg_len = 0;
            header.msg_hdr.msg_name = address.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = address.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            header.msg_hdr.msg_flags = 0;
        }
        let count = libc::c_uint::try_from(most).unwrap_or_default();
        // SAFETY: each of the first `count` headers leads to a buffer, an address and a control
        // buffer of its own, all alive and as long as it says.
        let received = unsafe {
            libc::recvmmsg(
                raw(socket),
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let received = match super::sys::check(received) {
            Ok(received) => usize::try_from(received).unwrap_or_default(),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(0),
                _ => return Err(error),
            },
        };
        let messages = self.buffer.chunks_exact(MESSAGE_BYTES);
        let messages = messages.zip(&self.headers).zip(&self.addresses);
        for ((buffer, header), address) in messages.take(received) {
            let len = (header.msg_len as usize).min(MESSAGE_BYTES);
            let Some(from) = address.get() else {
                continue;
            };
            let mut message = Message {
                from,
                to: None,
                interface: 0,
                ttl: None,
                tos: None,
                stride: len.max(1),
                data: buffer.get(..len).unwrap_or_default(),
                overflow: None,
            };
            control_messages(&header.msg_hdr, |level, kind, bytes| {
                message.take(level, kind, bytes);
            });
            each(message);
        }
        Ok(received)
    }
}

impl Message<'_> {
    /// Returns the datagrams: at least one, which may be empty.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let empty = self.data.is_empty().then_some(self.data);
        self.data.chunks(self.stride).chain(empty)
    }

    fn take(&mut self, level: libc::c_int, kind: libc::c_int, bytes: &[u8]) {
        let byte = |bytes: &[u8]| {
            let number = read::<libc::c_int>(bytes);
            number.and_then(|number| u8::try_from(number).ok())
        };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(info) = read::<libc::in_pktinfo>(bytes) {
                    self.to = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                    self.interface = u32::try_from(info.ipi_ifindex).unwrap_or_default();
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = read::<libc::in6_pktinfo>(bytes) {
                    let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    self.to = Some(ip.to_canonical());
                    self.interface = info.ipi6_ifindex;
                }
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = byte(bytes);
            }
            // The kernel gives this one as a single byte.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = bytes.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = byte(bytes),
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let stride = read::<libc::c_int>(bytes);
                let stride = stride.and_then(|stride| usize::try_from(stride).ok());
                if let Some(stride) = stride.filter(|stride| *stride > 0) {
                    self.stride = stride;
                }
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.overflow = read::<u32>(bytes),
            _ => {}
        }
    }
}
