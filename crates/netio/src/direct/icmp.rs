//! ICMP messages to senders of packets that are too large.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::sys::set;
use crate::error::context;

/// A raw socket for ICMP or ICMPv6 messages. Needs CAP_NET_RAW.
#[derive(Debug)]
pub struct IcmpPort {
    socket: Socket,
    v4: bool,
}

impl IcmpPort {
    /// Opens a socket for IPv4 (`v4`) or IPv6.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW.
    pub fn open(v4: bool) -> io::Result<Self> {
        let (domain, protocol) = if v4 {
            (Domain::IPV4, Protocol::ICMPV4)
        } else {
            (Domain::IPV6, Protocol::ICMPV6)
        };
        let open = || {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            // The socket only sends: received messages would fill its buffer. Bit set: type not
            // delivered.
            let none = [u32::MAX; 8];
            if v4 {
                const ICMP_FILTER: libc::c_int = 1;
                set(socket.as_fd(), libc::SOL_RAW, ICMP_FILTER, &u32::MAX)?;
            } else {
                const ICMPV6_FILTER: libc::c_int = 1;
                set(socket.as_fd(), libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &none)?;
            }
            Ok(Self { socket, v4 })
        };
        let version = if v4 { "ICMP" } else { "ICMPv6" };
        open().map_err(|error| context(error, format_args!("cannot send {version} messages")))
    }

    /// Sends an ICMP message (without IP header) to `to`.
    ///
    /// # Errors
    /// The error of the kernel; `InvalidInput` for an address of the other family.
    pub fn send(&self, message: &[u8], to: IpAddr) -> io::Result<()> {
        if to.is_ipv4() != self.v4 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let to = SocketAddr::new(to, 0);
        self.socket.send_to(message, &to.into()).map(|_| ())
    }
}
