//! Fan-out of one train of datagrams to many destinations.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::port::{UdpPort, raw};
use super::sys::{Control, RawAddress, check};
use crate::packets::most_segments;

/// Messages per system call.
pub(super) const MESSAGES: usize = 128;

/// Room for the control messages: a source address, a segment size and an ECN field.
const CONTROL_BYTES: usize = 96;

/// ECT(0) (RFC 3168): ECN-capable, not marked.
const ECT0: libc::c_int = 2;

/// Trains sent one by one after the kernel refused to segment one.
const TRAINS_WITHOUT_GSO: u32 = 1024;

/// Destination of a train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Destination address, of the socket's family.
    pub to: SocketAddr,
    /// Local address to send from; without it, the kernel's choice.
    pub from: Option<IpAddr>,
}

/// Failure of sending to one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailure {
    /// The datagrams exceed the path MTU.
    TooLarge,
    /// The kernel refused some datagrams, or had no room for them.
    Lost {
        /// Number of lost datagrams.
        datagrams: usize,
        /// Last error, as `errno`.
        errno: i32,
    },
}

impl SendFailure {
    /// Returns the last error, as `errno`.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::TooLarge => libc::EMSGSIZE,
            Self::Lost { errno, .. } => errno,
        }
    }

    /// Returns this failure together with an `earlier` one of the same train.
    fn after(self, earlier: Option<Self>) -> Self {
        match (self, earlier) {
            (
                Self::Lost { datagrams, errno },
                Some(Self::Lost {
                    datagrams: before, ..
                }),
            ) => Self::Lost {
                datagrams: datagrams + before,
                errno,
            },
            (Self::TooLarge, _) | (_, Some(Self::TooLarge)) => Self::TooLarge,
            (failure, None) => failure,
        }
    }
}

/// Remaining time for waiting for room in send buffers.
#[derive(Debug)]
struct Patience(Duration);

impl Patience {
    /// Returns a patience of zero.
    fn none() -> Self {
        Self(Duration::ZERO)
    }

    /// Waits until a socket can send again or the patience is used up; returns whether it waited.
    fn wait(&mut self, socket: &impl AsFd) -> bool {
        // `poll` counts in milliseconds.
        let most = libc::c_int::try_from(self.0.as_millis()).unwrap_or(1);
        if most == 0 {
            return false;
        }
        let mut poll = libc::pollfd {
            fd: raw(socket),
            events: libc::POLLOUT,
            revents: 0,
        };
        let begun = Instant::now();
        // SAFETY: one `pollfd` that lives until the call returns. Its answer shows in the next
        // attempt.
        unsafe { libc::poll(&raw mut poll, 1, most) };
        self.0 = self.0.saturating_sub(begun.elapsed());
        true
    }
}

/// Reusable buffers of [`send`](Self::send).
pub struct Fanout {
    addresses: Vec<RawAddress>,
    controls: Vec<Control<CONTROL_BYTES>>,
    headers: Vec<libc::mmsghdr>,
    /// Trains still to be sent one by one; see [`TRAINS_WITHOUT_GSO`].
    without_gso: u32,
    patience: Patience,
    /// Type of service, or traffic class, of all datagrams.
    tos: libc::c_int,
}

impl std::fmt::Debug for Fanout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fanout").finish_non_exhaustive()
    }
}

// SAFETY: the pointers in `headers` lead to the other fields' heap memory or to arguments of the
// call that wrote them, and are rewritten before each use.
unsafe impl Send for Fanout {}

impl Default for Fanout {
    fn default() -> Self {
        Self::new()
    }
}

impl Fanout {
    /// Allocates buffers for 128 destinations per call; for more, several calls are made.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: the structure is made of integers and pointers: all zeroes is a value.
        let header = unsafe { std::mem::zeroed::<libc::mmsghdr>() };
        Self {
            addresses: vec![RawAddress::room(); MESSAGES],
            controls: vec![Control::new(); MESSAGES],
            headers: vec![header; MESSAGES],
            without_gso: 0,
            patience: Patience::none(),
            tos: 0,
        }
    }

    /// Sends all datagrams as ECN-capable from now on, with ECT(0) (RFC 3168).
    pub fn set_ecn_capable(&mut self) {
        self.tos = ECT0;
    }

    /// Sets the time for waiting for room in send buffers, in whole milliseconds and for all
    /// destinations together. Meanwhile arriving packets wait in the receive buffers, whose size
    /// bounds the time. After that, datagrams without room are lost at once. The default is zero.
    pub fn set_patience(&mut self, all: Duration) {
        self.patience = Patience(all);
    }

    /// Sends one datagram, with the remaining patience; returns the failure, if it was not sent.
    pub fn send_one(
        &mut self,
        socket: &impl AsFd,
        payload: &[u8],
        target: Target,
    ) -> Option<SendFailure> {
        let segment = payload.len().max(1);
        let tos = self.tos;
        one_by_one(socket, payload, segment, target, tos, &mut self.patience)
    }

    /// Returns the number of datagrams of `segment` bytes in the longest train.
    #[must_use]
    pub fn train_len(segment: usize) -> usize {
        most_segments(segment)
    }

    /// Sends `train`, at most [`train_len`](Self::train_len) datagrams of `segment` bytes of which
    /// the last may be shorter, to each of `targets`. Calls `failed` with the index of each target
    /// that did not get everything.
    ///
    /// The kernel segments the train if it can; else one datagram after the other is sent to all
    /// destinations. A destination that fails does not keep the train from the others.
    pub fn send(
        &mut self,
        socket: &impl AsFd,
        train: &[u8],
        segment: usize,
        targets: impl Iterator<Item = Target>,
        mut failed: impl FnMut(usize, SendFailure),
    ) {
        let segment = segment.max(1);
        let mut targets = targets.enumerate().peekable();
        while targets.peek().is_some() {
            let several = train.len() > segment;
            let whole = !several || self.use_gso();
            let mut batch = [(0, None); MESSAGES];
            let mut filled = 0;
            let room = self.headers.iter_mut().zip(&mut self.addresses);
            let room = room.zip(&mut self.controls).zip(&mut batch);
            for (((header, address), control), entry) in room {
                let Some((number, target)) = targets.next() else {
                    break;
                };
                *entry = (number, Some(target));
                filled += 1;
                *address = RawAddress::new(target.to);
                let size = (several && whole).then_some(segment);
                fill(header, address, control, target, size, self.tos);
            }
            let batch = batch.get(..filled).unwrap_or_default();
            if whole {
                self.send_batch(socket, train, segment, batch, &mut failed);
            } else {
                self.send_in_pieces(socket, train, segment, batch, &mut failed);
            }
        }
    }

    /// Sends the prepared messages without the kernel's segmentation: a batch for each datagram.
    fn send_in_pieces(
        &mut self,
        socket: &impl AsFd,
        train: &[u8],
        segment: usize,
        batch: &[(usize, Option<Target>)],
        failed: &mut impl FnMut(usize, SendFailure),
    ) {
        let mut failures = [None; MESSAGES];
        let first = batch.first().map_or(0, |(number, _)| *number);
        for datagram in train.chunks(segment) {
            self.send_batch(socket, datagram, segment, batch, &mut |number, what| {
                // Targets are numbered in order.
                if let Some(failure) = failures.get_mut(number - first) {
                    *failure = Some(what.after(*failure));
                }
            });
        }
        for ((number, _), failure) in batch.iter().zip(failures) {
            if let Some(what) = failure {
                failed(*number, what);
            }
        }
    }

    /// Sends the prepared messages.
    fn send_batch(
        &mut self,
        socket: &impl AsFd,
        train: &[u8],
        segment: usize,
        batch: &[(usize, Option<Target>)],
        failed: &mut impl FnMut(usize, SendFailure),
    ) {
        let mut vector = libc::iovec {
            iov_base: train.as_ptr().cast_mut().cast(),
            iov_len: train.len(),
        };
        for header in self.headers.iter_mut().take(batch.len()) {
            header.msg_hdr.msg_iov = &raw mut vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        let mut done = 0;
        while let Some(rest) = self.headers.get_mut(done..batch.len()) {
            if rest.is_empty() {
                return;
            }
            let count = libc::c_uint::try_from(rest.len()).unwrap_or_default();
            // SAFETY: each header leads to an address and a control buffer of `self` and to
            // `vector`, which leads to `train`; all live until the call returns, and the kernel
            // only reads them.
            let result = unsafe {
                libc::sendmmsg(
                    raw(socket),
                    rest.as_mut_ptr(),
                    count,
                    libc::MSG_DONTWAIT as _,
                )
            };
            let error = match check(result) {
                Ok(sent) => {
                    done += usize::try_from(sent).unwrap_or_default().max(1);
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock if self.patience.wait(socket) => continue,
                _ => {}
            }
            if let Some((number, Some(target))) = batch.get(done)
                && let Some(what) = self.refused(socket, train, segment, *target, &error)
            {
                failed(*number, what);
            }
            done += 1;
        }
    }

    /// Handles the error of one destination.
    fn refused(
        &mut self,
        socket: &impl AsFd,
        train: &[u8],
        segment: usize,
        target: Target,
        error: &io::Error,
    ) -> Option<SendFailure> {
        let datagrams = train.len().div_ceil(segment).max(1);
        let errno = error.raw_os_error().unwrap_or_default();
        let several = datagrams > 1;
        match errno {
            // Either the segmentation or the size of the datagrams is refused: a single datagram
            // shows which, and its error comes with the MTU.
            libc::EINVAL | libc::EIO | libc::EMSGSIZE if several => {
                let tos = self.tos;
                let outcome = one_by_one(socket, train, segment, target, tos, &mut self.patience);
                if outcome.is_none() && errno != libc::EMSGSIZE {
                    self.without_gso = TRAINS_WITHOUT_GSO;
                }
                outcome
            }
            libc::EMSGSIZE => Some(SendFailure::TooLarge),
            // The error of an earlier datagram was reported in place of sending this one.
            libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH => {
                let tos = self.tos;
                one_by_one(socket, train, segment, target, tos, &mut self.patience)
            }
            _ => Some(SendFailure::Lost { datagrams, errno }),
        }
    }

    fn use_gso(&mut self) -> bool {
        match self.without_gso.checked_sub(1) {
            Some(left) => {
                self.without_gso = left;
                false
            }
            None => true,
        }
    }
}

impl UdpPort {
    /// Sends one datagram to `to`, from the address `from` if the socket is bound to all. Never
    /// waits.
    ///
    /// # Errors
    /// The error of the kernel; `EMSGSIZE` above the path MTU, `WouldBlock` without room.
    pub fn send(&self, payload: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
        send_one(self, payload, Target { to, from }, 0, &mut Patience::none())
    }
}

/// Sends a train without the kernel's segmentation.
fn one_by_one(
    socket: &impl AsFd,
    train: &[u8],
    segment: usize,
    target: Target,
    tos: libc::c_int,
    patience: &mut Patience,
) -> Option<SendFailure> {
    let (mut lost, mut last) = (0, 0);
    for datagram in train.chunks(segment) {
        match send_one(socket, datagram, target, tos, patience) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                return Some(SendFailure::TooLarge);
            }
            Err(error) => {
                lost += 1;
                last = error.raw_os_error().unwrap_or_default();
            }
        }
    }
    (lost > 0).then_some(SendFailure::Lost {
        datagrams: lost,
        errno: last,
    })
}

/// Sends one datagram, and waits for room while there is patience.
fn send_one(
    socket: &impl AsFd,
    payload: &[u8],
    target: Target,
    tos: libc::c_int,
    patience: &mut Patience,
) -> io::Result<()> {
    let mut address = RawAddress::new(target.to);
    let mut control = Control::new();
    // SAFETY: the structure is made of integers and pointers: all zeroes is a value.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    fill(&mut header, &mut address, &mut control, target, None, tos);
    let mut vector = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    header.msg_hdr.msg_iov = &raw mut vector;
    header.msg_hdr.msg_iovlen = 1;
    let mut tries = 0;
    loop {
        // SAFETY: the header leads to locals and to `payload`, all of which outlive the call.
        let result =
            unsafe { libc::sendmsg(raw(socket), &raw const header.msg_hdr, libc::MSG_DONTWAIT) };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EAGAIN) && patience.wait(socket) {
            continue;
        }
        tries += 1;
        match error.raw_os_error() {
            // The error of an earlier datagram is reported once, in place of sending this one.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EINTR)
                if tries == 1 => {}
            _ => return Err(error),
        }
    }
}

fn fill(
    header: &mut libc::mmsghdr,
    address: &mut RawAddress,
    control: &mut Control<CONTROL_BYTES>,
    target: Target,
    segment: Option<usize>,
    tos: libc::c_int,
) {
    let mut used = 0;
    if tos != 0 {
        let is_v4 = target.to.ip().to_canonical().is_ipv4();
        used = match is_v4 {
            true => control.push(used, libc::IPPROTO_IP, libc::IP_TOS, &tos),
            false => control.push(used, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &tos),
        };
    }
    if let Some(segment) = segment.and_then(|segment| u16::try_from(segment).ok()) {
        used = control.push(used, libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
    }
    match target.from {
        Some(IpAddr::V4(ip)) if target.to.is_ipv4() && !ip.is_unspecified() => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            used = control.push(used, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        Some(IpAddr::V6(ip)) if target.to.is_ipv6() && !ip.is_unspecified() => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                ipi6_ifindex: 0,
            };
            used = control.push(used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        _ => {}
    }
    header.msg_len = 0;
    header.msg_hdr.msg_name = address.as_mut_ptr().cast();
    header.msg_hdr.msg_namelen = address.len();
    header.msg_hdr.msg_control = if used > 0 {
        control.0.as_mut_ptr().cast()
    } else {
        std::ptr::null_mut()
    };
    header.msg_hdr.msg_controllen = used as _;
    header.msg_hdr.msg_flags = 0;
}
