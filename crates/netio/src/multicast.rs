//! IPv4 multicast: the sender's socket, and joining a group as a receiver.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::loss::Counters;
use crate::udp::{UdpSocket, context, new_socket};

/// A socket that sends to multicast groups by one interface, from that interface's address.
///
/// The source address is part of what receivers join (S,G), so it is fixed at the start.
#[derive(Debug)]
pub struct MulticastSender {
    socket: UdpSocket,
    source: Ipv4Addr,
}

impl MulticastSender {
    /// Opens a socket that sends from `interface`, an address of one of this machine's interfaces,
    /// with time-to-live `ttl` (1 stays on the local link; at most 255). `loop_` also delivers to
    /// receivers on this machine.
    ///
    /// # Errors
    /// No interface has that address, or `ttl` is above 255; the text says which and what to do.
    pub fn bind(interface: Ipv4Addr, ttl: u32, loop_: bool) -> io::Result<Self> {
        if interface.is_unspecified() || interface.is_multicast() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "cannot send multicast from {interface}: give the address of the interface that the flow leaves by"
                ),
            ));
        }
        if ttl > 255 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("multicast time-to-live {ttl} is above 255"),
            ));
        }
        let address = SocketAddr::from((interface, 0));
        let open = || {
            let socket = new_socket(address)?;
            socket.bind(&address.into())?;
            socket.set_multicast_if_v4(&interface)?;
            socket.set_multicast_ttl_v4(ttl)?;
            socket.set_multicast_loop_v4(loop_)?;
            UdpSocket::from_std(socket.into())
        };
        let socket = open().map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => io::Error::new(
                error.kind(),
                format!(
                    "cannot send multicast from {interface}: no interface of this machine has that address; choose one that `ip -4 addr` lists"
                ),
            ),
            _ => context(error, format_args!("cannot send multicast from {interface}")),
        })?;
        Ok(Self {
            socket,
            source: interface,
        })
    }

    /// The address that the datagrams come from: S of (S,G).
    pub fn source(&self) -> Ipv4Addr {
        self.source
    }

    /// Sends to `group`; everything else as [`UdpSocket::try_send`].
    ///
    /// # Errors
    /// As [`UdpSocket::try_send`].
    pub fn try_send(
        &self,
        group: SocketAddrV4,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        self.socket
            .try_send(SocketAddr::V4(group), payload, segment_size)
    }

    /// Sends to `group`, waiting for room in the kernel's buffer; see [`UdpSocket::send`].
    ///
    /// # Errors
    /// As [`UdpSocket::send`].
    pub async fn send(
        &self,
        group: SocketAddrV4,
        payload: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        self.socket
            .send(SocketAddr::V4(group), payload, segment_size)
            .await
    }

    /// Waits until [`try_send`](Self::try_send) may have room. Cancel safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// What was lost so far.
    pub fn counters(&self) -> Counters {
        self.socket.counters()
    }

    /// The socket underneath.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

/// Joins a multicast group and returns the socket that its datagrams arrive on: source-specific
/// (RFC 4607, IGMPv3) if `source` is given, else from any source.
///
/// `interface` is an address of the interface to join on; without one the kernel takes the interface
/// of its route towards the group. Several sockets and processes may join the same group and port;
/// each gets every datagram, and none gets those of groups or sources that only others joined.
/// Dropping the socket leaves the group.
///
/// # Errors
/// The address is not a multicast group, there is no such interface, no route towards the group, or
/// a system limit is reached. The text names group and interface and says what to do.
pub fn join(
    group: SocketAddrV4,
    source: Option<Ipv4Addr>,
    interface: Option<Ipv4Addr>,
) -> io::Result<UdpSocket> {
    let what = Membership {
        group,
        source,
        interface,
    };
    if !group.ip().is_multicast() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "cannot join {what}: {} is not a multicast address (224.0.0.0 to 239.255.255.255)",
                group.ip()
            ),
        ));
    }
    let on = interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let open = || {
        let address = SocketAddr::V4(group);
        let socket = new_socket(address)?;
        socket.set_reuse_address(true)?;
        // Without this, Linux also delivers groups that any other process on the host joined.
        socket.set_multicast_all_v4(false)?;
        // Bound to the group: unicast to this port and other groups stay out.
        socket.bind(&address.into())?;
        match source {
            Some(source) => socket.join_ssm_v4(&source, group.ip(), &on)?,
            None => socket.join_multicast_v4(group.ip(), &on)?,
        }
        UdpSocket::from_std(socket.into())
    };
    open().map_err(|error| what.explain(error))
}

/// What one wants to join, as error texts name it.
struct Membership {
    group: SocketAddrV4,
    source: Option<Ipv4Addr>,
    interface: Option<Ipv4Addr>,
}

impl Membership {
    fn explain(&self, error: io::Error) -> io::Error {
        let advice = match (error.raw_os_error(), self.interface) {
            (Some(libc::ENODEV | libc::EADDRNOTAVAIL), Some(interface)) => format!(
                "no interface of this machine has the address {interface}; choose one that `ip -4 addr` lists"
            ),
            (Some(libc::ENODEV | libc::EADDRNOTAVAIL), None) => format!(
                "this machine has no route towards the group; name the interface by its address, or add a route (`ip route add {}/32 dev INTERFACE`)",
                self.group.ip()
            ),
            (Some(libc::ENOBUFS), _) => "this machine's limit of memberships is reached; raise net.ipv4.igmp_max_memberships or igmp_max_msf".to_owned(),
            (Some(libc::EADDRINUSE), _) => format!(
                "port {} is held by a socket that does not share it (no SO_REUSEADDR); stop that program or choose another port",
                self.group.port()
            ),
            _ => return context(error, format_args!("cannot join {self}")),
        };
        io::Error::new(error.kind(), format!("cannot join {self}: {advice}"))
    }
}

impl std::fmt::Display for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "multicast group {}", self.group)?;
        match self.source {
            Some(source) => write!(f, " from source {source}")?,
            None => write!(f, " from any source")?,
        }
        match self.interface {
            Some(interface) => write!(f, " on interface {interface}"),
            None => write!(f, " on the interface of the route towards it"),
        }
    }
}
