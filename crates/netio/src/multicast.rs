//! Multicast sender: a socket tied to one interface and one source address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use socket2::Socket;

use crate::error::context;
use crate::interface::{index_of, no_such_address};
use crate::loss::Counters;
use crate::udp::{UdpSocket, new_socket};

/// A source-specific group (RFC 4607), for asking the kernel for its route.
const SOME_GROUP: Ipv6Addr = Ipv6Addr::new(0xff3e, 0, 0, 0, 0, 0, 0x8000, 1);

/// A socket that sends to multicast groups by one interface, from that interface's address.
///
/// The source address is part of what receivers join (S,G), so it is fixed at the start. A flow
/// with IPv4 and IPv6 endpoints has a sender for each family.
#[derive(Debug)]
pub struct MulticastSender {
    socket: UdpSocket,
    source: IpAddr,
    /// Memberships without reception: see [`MulticastSender::stay_inside`].
    inside: Vec<UdpSocket>,
}

impl MulticastSender {
    /// Opens a socket that sends from `interface`, an address of one of this machine's interfaces,
    /// with time-to-live (IPv6: hop limit) `ttl` (1 stays on the local link; at most 255). `loop_`
    /// also delivers to receivers on this machine.
    ///
    /// # Errors
    /// No interface has that address, it cannot be used yet, the interface has no route for IPv6
    /// multicast, or `ttl` is above 255; the text says which and what to do.
    pub fn bind(interface: IpAddr, ttl: u32, loop_: bool) -> io::Result<Self> {
        let interface = interface.to_canonical();
        if interface.is_unspecified() || interface.is_multicast() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "cannot send multicast from {interface}: give the address of the interface \
                     that the flow leaves by"
                ),
            ));
        }
        if ttl > 255 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("multicast time-to-live {ttl} is above 255"),
            ));
        }
        let opened = match interface {
            IpAddr::V4(ip) => open_v4(ip, ttl, loop_),
            IpAddr::V6(ip) => open_v6(ip, ttl, loop_),
        };
        let socket = opened
            .and_then(|socket| UdpSocket::from_std(socket.into()))
            .map_err(|error| {
                context(
                    error,
                    format_args!("cannot send multicast from {interface}"),
                )
            })?;
        Ok(Self {
            socket,
            source: interface,
            inside: Vec::new(),
        })
    }

    /// Enforces a time-to-live of 0 for `group`, so that nothing leaves this machine. Linux stops
    /// such datagrams at the interface only while a process on this machine has joined their group,
    /// so this sender joins it, until it is dropped. It receives none of them.
    ///
    /// # Errors
    /// The group cannot be joined, as [`join`](crate::join); datagrams may leave then while no
    /// other process on this machine has joined it.
    pub fn stay_inside(&mut self, group: IpAddr) -> io::Result<()> {
        // Port 0: no datagrams are sent there.
        let nothing = SocketAddr::new(group, 0);
        let joined = crate::join(nothing, Some(self.source), Some(self.source))?;
        self.inside.push(joined);
        Ok(())
    }

    /// Sends all datagrams as ECN-capable; see [`UdpSocket::set_ecn_capable`].
    pub fn set_ecn_capable(&mut self) {
        self.socket.set_ecn_capable();
    }

    /// Returns the source address of the datagrams: S of (S,G).
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Sends to `group`, otherwise like [`UdpSocket::try_send`].
    ///
    /// # Errors
    /// As [`UdpSocket::try_send`]; and `InvalidInput` for a group of the other address family.
    pub fn try_send(
        &self,
        group: SocketAddr,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        self.check_family(group)?;
        self.socket.try_send(group, payload, segment_size)
    }

    /// Sends to `group`, waiting for room in the kernel's buffer; see [`UdpSocket::send`].
    ///
    /// # Errors
    /// As [`UdpSocket::send`]; and `InvalidInput` for a group of the other address family.
    pub async fn send(
        &self,
        group: SocketAddr,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        self.check_family(group)?;
        self.socket.send(group, payload, segment_size).await
    }

    /// Waits until [`try_send`](Self::try_send) may have room. Cancel safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Returns the counters of lost datagrams.
    pub fn counters(&self) -> Counters {
        self.socket.counters()
    }

    /// Returns the underlying socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Rejects groups of the other family, whose datagrams the kernel would silently drop for ever.
    fn check_family(&self, group: SocketAddr) -> io::Result<()> {
        if group.is_ipv4() == self.source.is_ipv4() {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "cannot send to {group} from {}: they are of different address families; open a \
                 sender for each family",
                self.source
            ),
        ))
    }
}

fn open_v4(ip: Ipv4Addr, ttl: u32, loop_: bool) -> io::Result<Socket> {
    let address = SocketAddr::from((ip, 0));
    let socket = new_socket(address)?;
    socket
        .bind(&address.into())
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => io::Error::new(error.kind(), no_such_address(ip.into())),
            _ => error,
        })?;
    socket.set_multicast_if_v4(&ip)?;
    socket.set_multicast_ttl_v4(ttl)?;
    socket.set_multicast_loop_v4(loop_)?;
    Ok(socket)
}

fn open_v6(ip: Ipv6Addr, ttl: u32, loop_: bool) -> io::Result<Socket> {
    let index = index_of(ip.into())?;
    // A link-local address is ambiguous without its interface; others need no scope.
    let scope = if ip.is_unicast_link_local() { index } else { 0 };
    let address = SocketAddr::from(SocketAddrV6::new(ip, 0, 0, scope));
    let socket = new_socket(address)?;
    socket
        .bind(&address.into())
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => io::Error::new(
                error.kind(),
                format!(
                    "the address {ip} cannot be used yet: its check for duplicates is not over or \
                     failed; try again in some seconds, and look for `tentative` or `dadfailed` in \
                     `ip -6 addr`"
                ),
            ),
            _ => error,
        })?;
    socket.set_multicast_if_v6(index)?;
    socket.set_multicast_hops_v6(ttl)?;
    socket.set_multicast_loop_v6(loop_)?;
    check_way(ip, index)?;
    Ok(socket)
}

/// Checks that the interface takes IPv6 multicast: by default, the loopback interface does not, and
/// every datagram would be lost. Nothing is sent.
fn check_way(ip: Ipv6Addr, index: u32) -> io::Result<()> {
    let to = SocketAddr::from((SOME_GROUP, 9));
    let socket = new_socket(to)?;
    socket.set_multicast_if_v6(index)?;
    socket
        .connect(&to.into())
        .map_err(|error| match error.raw_os_error() {
            // Routes of other types over the loopback interface do not help.
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) if ip.is_loopback() => io::Error::new(
                error.kind(),
                "the loopback interface has no route for IPv6 multicast; choose another, or add \
                 one: `ip -6 route add local ff00::/8 dev lo`",
            ),
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => io::Error::new(
                error.kind(),
                format!(
                    "the interface of {ip} has no route for IPv6 multicast; choose another, or add \
                     one: `ip -6 route add multicast ff00::/8 dev INTERFACE table local`"
                ),
            ),
            _ => error,
        })
}
