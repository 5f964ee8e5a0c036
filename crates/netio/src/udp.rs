//! UDP socket: segmented sends, batched and coalesced receives, readiness by tokio.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use quinn_udp::{EcnCodepoint, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::batch::{Datagram, RecvBatch};
use crate::direct::sys::set;
use crate::error::context;
use crate::loss::{Counters, Losses, concerns_one_datagram, may_refuse_segmentation};
use crate::packets::most_segments;
use crate::read_interest::ReadInterest;

/// Requested size of both kernel buffers. The kernel grants at most `net.core.rmem_max` and
/// `wmem_max`; less works, with more loss in bursts.
const KERNEL_BUFFER_BYTES: usize = 4 << 20;

/// Trains sent one by one after the kernel refused to segment one, before it is asked again: the
/// refusal may be due to one route (IPsec, a tunnel), while others support it.
const TRAINS_WITHOUT_GSO: u32 = 1024;

/// Pending errors that one receive call skips before it lets other tasks run.
const MAX_ERRORS_PER_RECEIVE: usize = 64;

/// Options of [`UdpSocket::bind_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BindOptions {
    /// Whether `SO_REUSEADDR` is set: other sockets that also set it may bind the same address and
    /// port.
    pub reuse_address: bool,
    /// Whether `IPV6_V6ONLY` is set: an IPv4 socket may have the same port.
    pub only_v6: bool,
}

/// A non-blocking UDP socket, usable from several tasks at once.
#[derive(Debug)]
pub struct UdpSocket {
    io: AsyncFd<StdSocket>,
    /// Readiness for reading, where that can be paused.
    read_interest: Option<ReadInterest>,
    state: UdpSocketState,
    local: SocketAddr,
    /// Mark of all datagrams.
    ecn: Option<EcnCodepoint>,
    losses: Losses,
    /// Trains still to be sent one by one, see [`TRAINS_WITHOUT_GSO`].
    without_gso: AtomicU32,
}

impl UdpSocket {
    /// Binds a socket with large kernel buffers (4 MiB each, as far as the kernel grants them).
    ///
    /// `[::]` also receives IPv4 traffic. With port 0, the kernel chooses one.
    ///
    /// # Errors
    /// The address is in use, not one of this machine's, or not permitted; or the call is not
    /// inside a tokio runtime. The text names the address.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(address, BindOptions::default())
    }

    /// Binds a socket like [`bind`](Self::bind), with options.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(address: SocketAddr, options: BindOptions) -> io::Result<Self> {
        let bound = || {
            let socket = new_socket(address)?;
            if options.reuse_address {
                socket.set_reuse_address(true)?;
            }
            if options.only_v6 && address.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            socket.bind(&address.into())?;
            Self::from_std(socket.into())
        };
        bound().map_err(|error| context(error, format_args!("cannot open UDP socket {address}")))
    }

    /// Converts a socket of the standard library, which becomes non-blocking.
    ///
    /// # Errors
    /// The socket refuses an option, or the call is not inside a tokio runtime.
    pub fn from_std(socket: StdSocket) -> io::Result<Self> {
        Self::with_interest(socket, Interest::READABLE | Interest::WRITABLE, None)
    }

    /// Converts a socket like [`from_std`](Self::from_std), whose reading can be
    /// [paused](Self::pause_reading). That costs two system calls whenever it becomes readable, and
    /// each receive call asks the kernel, also when there is nothing. The runtime needs its time
    /// driver.
    ///
    /// # Errors
    /// As [`from_std`](Self::from_std); or the process has no file descriptors left.
    pub fn pausable(socket: StdSocket) -> io::Result<Self> {
        ensure_runtime()?;
        let read_interest = ReadInterest::new(&socket)?;
        Self::with_interest(socket, Interest::WRITABLE, Some(read_interest))
    }

    fn with_interest(
        socket: StdSocket,
        interest: Interest,
        read_interest: Option<ReadInterest>,
    ) -> io::Result<Self> {
        ensure_runtime()?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Timestamps, which are not read, would leave no room for the ECN field of a coalesced
        // train in quinn-udp's buffer for control messages.
        let _ = set(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            &0_i32,
        );
        let local = socket.local_addr()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            // SAFETY: a socket is one descriptor, which is open as long as it lives.
            io: unsafe { AsyncFd::register_with_interest(socket, interest)? },
            read_interest,
            without_gso: AtomicU32::new(if state.max_gso_segments() > 1 {
                0
            } else {
                u32::MAX
            }),
            state,
            local,
            ecn: None,
            losses: Losses::default(),
        })
    }

    /// Sends all datagrams as ECN-capable from now on, with ECT(0) (RFC 3168): routers may mark
    /// them instead of dropping them. The protocol has to react to the marks.
    pub fn set_ecn_capable(&mut self) {
        self.ecn = Some(EcnCodepoint::Ect0);
    }

    /// Returns the address that the socket is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the counters of lost datagrams and hidden errors.
    pub fn counters(&self) -> Counters {
        self.losses.snapshot()
    }

    /// Returns the number of arrived datagrams that the kernel dropped because the receive buffer
    /// was full, modulo 2³²; 0 where it does not say.
    pub fn dropped(&self) -> u32 {
        crate::direct::dropped(self.as_fd())
    }

    /// Waits until [`try_recv`](Self::try_recv) may have something. Cancel safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.read_interest {
            Some(interest) => interest.readable(&self.io).await,
            None => self.io.readable().await.map(drop),
        }
    }

    /// Suspends [`readable`](Self::readable) until then: what arrives wakes no thread, but can be
    /// received all the same. Only for a socket whose one reader does not wait meanwhile. Without
    /// effect on one that is not [`pausable`](Self::pausable).
    pub fn pause_reading(&self, until: Instant) {
        if let Some(interest) = &self.read_interest {
            interest.pause(&self.io, until);
        }
    }

    /// Waits until [`try_send`](Self::try_send) may have room. Cancel safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        self.io.writable().await.map(drop)
    }

    /// Receives the result of one system call (up to 32 messages, each one datagram or a coalesced
    /// train), and calls `each` for every single datagram. Returns their number, at least 1.
    ///
    /// Errors that the kernel reports here about datagrams sent earlier (an ICMP "port
    /// unreachable") are counted and skipped.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram; any other error means that the socket is unusable.
    pub fn try_recv(
        &self,
        batch: &mut RecvBatch,
        each: impl FnMut(Datagram<'_>),
    ) -> io::Result<usize> {
        for _ in 0..MAX_ERRORS_PER_RECEIVE {
            let mut messages = 0;
            let mut read = |socket: &StdSocket| {
                messages = batch
                    .fill(|slices, meta| self.state.recv(UdpSockRef::from(socket), slices, meta))?;
                if messages < RecvBatch::MESSAGES {
                    // The kernel found no more messages: tokio learns that now, without another
                    // call that would only return this result.
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(())
            };
            let received = match &self.read_interest {
                Some(_) => read(self.io.get_ref()),
                None => self.io.try_io(Interest::READABLE, read),
            };
            match received {
                Ok(()) => return Ok(batch.for_each(messages, each)),
                Err(_) if messages > 0 => return Ok(batch.for_each(messages, each)),
                Err(error) if concerns_one_datagram(&error) => self.losses.received_error(),
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Sends `payload` to `to`: one datagram, or with `segment_size` a train of datagrams of that
    /// many bytes each, the last of which may be shorter. Trains are sent by GSO if the kernel
    /// supports it, and else one by one.
    ///
    /// `Ok` means passed to the kernel or lost on the way there: [`counters`](Self::counters) has
    /// the datagrams that the kernel refused because of their destination or size. If the kernel's
    /// buffer fills up in the middle of a train, the rest of the train counts as lost, too; where
    /// that is not acceptable, use [`try_send_some`](Self::try_send_some) or [`send`](Self::send).
    ///
    /// # Errors
    /// `WouldBlock` if nothing was sent because the kernel's buffer is full, or because the socket
    /// is new and tokio does not know yet that it is [`writable`](Self::writable); `InvalidInput`
    /// for a segment size of 0; any other error means that the socket is unusable.
    pub fn try_send(
        &self,
        to: SocketAddr,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let sent = self.try_send_some(to, None, payload, segment_size)?;
        let rest = payload.len().saturating_sub(sent);
        if rest > 0 {
            let lost = rest.div_ceil(segment_size.unwrap_or(rest).max(1));
            self.losses.lost(lost as u64, libc::EAGAIN);
        }
        Ok(())
    }

    /// Sends like [`try_send`](Self::try_send), from the local address `from` if one is given (on a
    /// socket bound to all addresses: the one that the peer wrote to, [`Datagram::to`]).
    ///
    /// Returns the number of bytes taken, whole segments from the front of `payload`: fewer than
    /// all if the kernel's buffer filled up in the middle of a train.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send).
    pub fn try_send_some(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<usize> {
        let segment = match segment_size {
            Some(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the segment size of a UDP train must not be 0",
                ));
            }
            Some(size) if size < payload.len() => size,
            _ => return self.send_train(to, from, payload, None),
        };
        let train_bytes = segment * most_segments(segment);
        let mut sent = 0;
        for train in payload.chunks(train_bytes) {
            match self.send_train(to, from, train, Some(segment)) {
                Ok(taken) => {
                    sent += taken;
                    if taken < train.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends all of `payload` like [`try_send`](Self::try_send), waiting for room.
    ///
    /// Cancelling may leave a train half sent.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send), except `WouldBlock`.
    pub async fn send(
        &self,
        to: SocketAddr,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let mut rest = payload;
        loop {
            match self.try_send_some(to, None, rest, segment_size) {
                Ok(sent) if sent >= rest.len() => return Ok(()),
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.writable().await?;
        }
    }

    /// Sends one datagram (`segment` is `None`) or one train that fits a single GSO call.
    fn send_train(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        train: &[u8],
        segment: Option<usize>,
    ) -> io::Result<usize> {
        let Some(size) = segment.filter(|&size| size < train.len()) else {
            return self.send_single(to, from, train).map(|_| train.len());
        };
        // Whether segmentation was tried; if so, it was refused where the match is left.
        let refused = self.use_gso();
        if refused {
            match self.transmit(to, from, train, Some(size)) {
                Ok(()) => return Ok(train.len()),
                Err(error) if may_refuse_segmentation(&error) => {}
                Err(error) if concerns_one_datagram(&error) => {
                    self.lost(train.len().div_ceil(size), &error);
                    return Ok(train.len());
                }
                Err(error) => return Err(error),
            }
            self.losses.refused_train();
        }
        let mut sent = 0;
        for datagram in train.chunks(size) {
            match self.send_single(to, from, datagram) {
                // The same destination takes a single datagram: the segmentation was refused.
                Ok(true) if refused && sent == 0 => self
                    .without_gso
                    .store(TRAINS_WITHOUT_GSO, Ordering::Relaxed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent > 0 => break,
                Err(error) => return Err(error),
            }
            sent += datagram.len();
        }
        Ok(sent)
    }

    /// Sends one datagram; `Ok(false)` if the kernel refused it and it was counted as lost.
    fn send_single(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        datagram: &[u8],
    ) -> io::Result<bool> {
        match self.transmit(to, from, datagram, None) {
            Ok(()) => Ok(true),
            Err(error) if concerns_one_datagram(&error) => {
                self.lost(1, &error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn transmit(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: self.ecn,
            contents,
            segment_size,
            // A datagram may have arrived at a group, which cannot be a source.
            src_ip: from.filter(|ip| !ip.is_multicast() && !ip.is_unspecified()),
        };
        let mut tries = 0;
        loop {
            let sent = self.io.try_io(Interest::WRITABLE, |socket| {
                self.state.try_send(UdpSockRef::from(socket), &transmit)
            });
            match sent {
                // On a connected socket the kernel reports the ICMP answer to an earlier datagram
                // instead of sending this one; the second attempt sends it.
                Err(error) if tries == 0 && error.kind() == io::ErrorKind::ConnectionRefused => {
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// Whether the next train may be segmented by the kernel; counts down to the next attempt.
    fn use_gso(&self) -> bool {
        let update = self
            .without_gso
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
                0 | u32::MAX => None,
                left => Some(left - 1),
            });
        update == Err(0)
    }

    fn lost(&self, datagrams: usize, error: &io::Error) {
        self.losses
            .lost(datagrams as u64, error.raw_os_error().unwrap_or_default());
    }
}

/// Returns the error of a call outside of a tokio runtime.
fn ensure_runtime() -> io::Result<()> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::other(
            "a UDP socket must be opened inside a tokio runtime",
        )),
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

/// Binds several non-blocking sockets to one address, among which the kernel divides what arrives
/// by the peers' addresses (`SO_REUSEPORT`). Options and buffers are those of [`UdpSocket::bind`];
/// [`UdpSocket::from_std`] takes the sockets.
///
/// The address has to be free at first, also of sockets that would share it.
///
/// # Errors
/// As [`UdpSocket::bind`], but for the runtime.
pub fn bind_group(
    address: SocketAddr,
    count: NonZeroUsize,
) -> io::Result<(std::net::UdpSocket, Vec<std::net::UdpSocket>)> {
    let bound = || {
        let first = new_socket(address)?;
        first.bind(&address.into())?;
        first.set_nonblocking(true)?;
        let first: std::net::UdpSocket = first.into();
        let mut others = Vec::new();
        if count.get() > 1 {
            // Only now: otherwise the first would share a port that is in use, even one that the
            // kernel chooses.
            SockRef::from(&first).set_reuse_port(true)?;
            let address = first.local_addr()?;
            for _ in 1..count.get() {
                let socket = new_socket(address)?;
                socket.set_reuse_port(true)?;
                socket.bind(&address.into())?;
                socket.set_nonblocking(true)?;
                others.push(socket.into());
            }
        }
        Ok((first, others))
    };
    bound().map_err(|error| context(error, format_args!("cannot open UDP socket {address}")))
}

/// Creates a UDP socket of the address's family with large buffers, not bound yet.
pub(crate) fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    // Large buffers are an improvement, not a condition: a kernel limit must not stop the program.
    let _ = socket.set_recv_buffer_size(KERNEL_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(KERNEL_BUFFER_BYTES);
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    Ok(socket)
}
