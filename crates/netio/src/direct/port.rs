//! A UDP socket that reports each datagram's destination, and whose datagrams are never fragmented.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::sys::{set, switch_on};
use crate::error::context;

/// Requested size of both kernel buffers; less works, with more loss in bursts.
const KERNEL_BUFFER_BYTES: usize = 16 << 20;

/// An unconnected UDP socket with path MTU discovery: datagrams above the path MTU are refused, and
/// [`path_errors`](Self::path_errors) returns that MTU. An IPv6 socket receives no IPv4, and
/// neither receives multicast, whichever process on this machine has joined it.
#[derive(Debug)]
pub struct UdpPort {
    pub(super) socket: Socket,
    local: SocketAddr,
}

impl UdpPort {
    /// Binds a socket to `address`; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// The address is in use, not one of this machine's, or not permitted; the text names it.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let open = || {
            let socket = new_socket(address)?;
            if address.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            exclusive(&socket, address.ip())?;
            set_up(&socket, address, true)?;
            socket.bind(&address.into())?;
            let local = socket.local_addr()?.as_socket().unwrap_or(address);
            Ok(Self { socket, local })
        };
        open().map_err(|error| context(error, format_args!("cannot open UDP port {address}")))
    }

    /// Converts a bound socket, as systemd passes them.
    ///
    /// # Errors
    /// The socket is not a UDP socket.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        let local = socket.local_addr()?;
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        enlarge(&socket);
        exclusive(&socket, local.ip())?;
        set_up(&socket, local, true)?;
        Ok(Self { socket, local })
    }

    /// Lets the network fragment packets, a fault for tests that must notice.
    ///
    /// # Errors
    /// The error of the kernel.
    #[cfg(feature = "fault-injection")]
    pub fn allow_fragments(&self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        if self.local.is_ipv4() {
            let never = libc::IP_PMTUDISC_DONT;
            set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &never)
        } else {
            let never = libc::IPV6_PMTUDISC_DONT;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, &0_i32)?;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &never)
        }
    }

    /// Returns the address that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the number of datagrams dropped because the socket's buffer was full, modulo 2³².
    #[must_use]
    pub fn dropped(&self) -> u32 {
        super::sys::dropped(self.socket.as_fd())
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Creates a non-blocking UDP socket of the address's family with large buffers.
pub(super) fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    enlarge(&socket);
    Ok(socket)
}

/// Requests large buffers; above the kernel's limits, they need a privilege.
pub(super) fn enlarge(socket: &Socket) {
    let fd = socket.as_fd();
    let bytes = KERNEL_BUFFER_BYTES as libc::c_int;
    if set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes).is_err() {
        let _ = socket.set_recv_buffer_size(KERNEL_BUFFER_BYTES);
    }
    if set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        let _ = socket.set_send_buffer_size(KERNEL_BUFFER_BYTES);
    }
}

/// Requests the control messages of each datagram and, with `outer`, path MTU discovery.
pub(super) fn set_up(socket: &Socket, address: SocketAddr, outer: bool) -> io::Result<()> {
    let fd = socket.as_fd();
    // Both are optional: without coalescing there are more calls, and an old kernel does not count.
    let _ = switch_on(fd, libc::SOL_UDP, libc::UDP_GRO);
    let _ = switch_on(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
    if address.is_ipv4() {
        let level = libc::IPPROTO_IP;
        switch_on(fd, level, libc::IP_PKTINFO)?;
        switch_on(fd, level, libc::IP_RECVTTL)?;
        switch_on(fd, level, libc::IP_RECVTOS)?;
        if outer {
            set(fd, level, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
            switch_on(fd, level, libc::IP_RECVERR)?;
        }
    } else {
        let level = libc::IPPROTO_IPV6;
        switch_on(fd, level, libc::IPV6_RECVPKTINFO)?;
        switch_on(fd, level, libc::IPV6_RECVHOPLIMIT)?;
        switch_on(fd, level, libc::IPV6_RECVTCLASS)?;
        if outer {
            set(fd, level, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_DO)?;
            switch_on(fd, level, libc::IPV6_DONTFRAG)?;
            switch_on(fd, level, libc::IPV6_RECVERR)?;
        }
    }
    Ok(())
}

/// Stops the delivery of groups that other sockets on the host joined, which is Linux's default.
pub(super) fn exclusive(socket: &Socket, address: IpAddr) -> io::Result<()> {
    if address.is_ipv4() {
        return socket.set_multicast_all_v4(false);
    }
    match socket.set_multicast_all_v6(false) {
        // Kernels before 4.20 lack it: then the bound address alone keeps others out.
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the descriptor, for system calls.
pub(super) fn raw(socket: &impl AsFd) -> libc::c_int {
    socket.as_fd().as_raw_fd()
}
