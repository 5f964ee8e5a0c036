//! Multicast membership of a receiver, source-specific or from any source.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;

use socket2::{InterfaceIndexOrAddress, SockAddr, Socket};

use crate::error::context;
use crate::interface::index_of;
use crate::udp::{UdpSocket, new_socket};

/// Joins a multicast group and returns the socket that receives its datagrams: source-specific (RFC
/// 4607; IGMPv3 for IPv4, MLDv2 for IPv6) if `source` is given, else from any source.
///
/// `interface` is an address, of either family, of the interface to join on. Without one, the
/// kernel takes the interface of its route towards the group. An IPv6 group of link-local scope
/// (`ff32::…`, `ff12::…`) needs an interface, given so or as the scope of `group`.
///
/// Several sockets and processes may join the same group and port; each gets every datagram, and
/// none gets those of groups or sources that only others joined. Dropping the socket leaves the
/// group.
///
/// # Errors
/// The address is not a multicast group, source and group are of different families, there is no
/// such interface, no route towards the group, or a system limit is reached. The text names group
/// and interface and says what to do.
pub fn join(
    group: SocketAddr,
    source: Option<IpAddr>,
    interface: Option<IpAddr>,
) -> io::Result<UdpSocket> {
    let what = Membership {
        group,
        source: source.map(|ip| ip.to_canonical()),
        interface: interface.map(|ip| ip.to_canonical()),
    };
    what.check()?;
    let open = || {
        let socket = match group {
            SocketAddr::V4(group) => what.open_v4(*group.ip())?,
            SocketAddr::V6(group) => what.open_v6(group)?,
        };
        UdpSocket::from_std(socket.into())
    };
    open().map_err(|error| what.explain(error))
}

/// Membership to join, and its description in error texts.
struct Membership {
    group: SocketAddr,
    source: Option<IpAddr>,
    interface: Option<IpAddr>,
}

impl Membership {
    fn check(&self) -> io::Result<()> {
        let group = self.group.ip();
        let wrong = if !group.is_multicast() {
            let range = if group.is_ipv4() {
                "224.0.0.0 to 239.255.255.255"
            } else {
                "ff00::/8"
            };
            format!("{group} is not a multicast address ({range})")
        } else if self.source.is_some_and(|s| s.is_ipv4() != group.is_ipv4()) {
            "source and group are of different address families; both are IPv4 or both are IPv6"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot join {self}: {wrong}"),
        ))
    }

    fn open_v4(&self, group: Ipv4Addr) -> io::Result<Socket> {
        let socket = new_socket(self.group)?;
        socket.set_reuse_address(true)?;
        // Without this, Linux also delivers groups that any other process on the host joined.
        socket.set_multicast_all_v4(false)?;
        // Bound to the group: unicast to this port and other groups stay out.
        socket.bind(&self.group.into())?;
        match (self.source, self.interface) {
            (Some(source), Some(other @ IpAddr::V6(_))) => {
                join_source(&socket, index_of(other)?, self.group, source)?;
            }
            (None, Some(other @ IpAddr::V6(_))) => socket
                .join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(index_of(other)?))?,
            (Some(IpAddr::V4(source)), on) => {
                socket.join_ssm_v4(&source, &group, &v4_or_any(on))?;
            }
            (_, on) => socket.join_multicast_v4(&group, &v4_or_any(on))?,
        }
        Ok(socket)
    }

    fn open_v6(&self, group: SocketAddrV6) -> io::Result<Socket> {
        let index = match self.interface {
            Some(ip) => index_of(ip)?,
            // 0 leaves it to the kernel's routes.
            None => group.scope_id(),
        };
        let scope = if is_link_scoped(*group.ip()) {
            if index == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a group of link-local scope is another group on each link; name the interface \
                     by its address",
                ));
            }
            index
        } else {
            0
        };
        let address = SocketAddr::from(SocketAddrV6::new(*group.ip(), group.port(), 0, scope));
        let socket = new_socket(address)?;
        socket.set_reuse_address(true)?;
        socket.set_only_v6(true)?;
        // As for IPv4; kernels before 4.20 lack it, and then the bind alone keeps others out.
        match socket.set_multicast_all_v6(false) {
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
            _ => {}
        }
        socket.bind(&address.into())?;
        if let Some(index) = NonZeroU32::new(index) {
            // Unlike for IPv4, the kernel does not compare the interface of an arriving datagram
            // with that of the membership. Kernels before 5.7 require a privilege for this; without
            // it, the group also arrives from other interfaces where another process joined it.
            let _ = socket.bind_device_by_index_v6(Some(index));
        }
        match self.source {
            Some(source) => join_source(&socket, index, address, source)?,
            None => socket.join_multicast_v6(group.ip(), index)?,
        }
        Ok(socket)
    }

    fn explain(&self, error: io::Error) -> io::Error {
        let v4 = self.group.is_ipv4();
        let advice = match (error.raw_os_error(), self.interface) {
            (Some(libc::ENODEV | libc::EADDRNOTAVAIL), Some(interface)) => {
                crate::interface::no_such_address(interface)
            }
            (Some(libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENETUNREACH), None) => {
                let route = match self.group.ip() {
                    IpAddr::V4(group) => format!("ip route add {group}/32 dev INTERFACE"),
                    IpAddr::V6(group) => {
                        format!("ip -6 route add multicast {group}/128 dev INTERFACE table local")
                    }
                };
                format!(
                    "this machine has no route towards the group; name the interface by its \
                     address, or add a route (`{route}`)"
                )
            }
            (Some(libc::ENOBUFS | libc::ENOMEM), _) if v4 => "this machine's limit of memberships \
                 is reached; raise net.ipv4.igmp_max_memberships or igmp_max_msf"
                .to_owned(),
            (Some(libc::ENOBUFS | libc::ENOMEM), _) => "this machine's limit of memberships is \
                 reached; raise net.core.optmem_max or net.ipv6.mld_max_msf"
                .to_owned(),
            (Some(libc::EADDRINUSE), _) => format!(
                "port {} is held by a socket that does not share it (no SO_REUSEADDR); stop that \
                 program or choose another port",
                self.group.port()
            ),
            (Some(libc::EAFNOSUPPORT), _) if !v4 => {
                "this machine has IPv6 switched off; switch it on (net.ipv6.conf.all.disable_ipv6, \
                 kernel option ipv6.disable) or use an IPv4 group"
                    .to_owned()
            }
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

fn v4_or_any(interface: Option<IpAddr>) -> Ipv4Addr {
    match interface {
        Some(IpAddr::V4(ip)) => ip,
        _ => Ipv4Addr::UNSPECIFIED,
    }
}

/// Whether a group is a different one on each link: interface-local and link-local scope (RFC 4291,
/// section 2.7).
fn is_link_scoped(group: Ipv6Addr) -> bool {
    matches!(group.octets(), [0xff, scope, ..] if matches!(scope & 0xf, 1 | 2))
}

/// Joins (`source`, `group`) on the interface with this number (0: by the kernel's routes), by the
/// option that is the same for both address families (RFC 3678, section 5.1).
fn join_source(socket: &Socket, index: u32, group: SocketAddr, source: IpAddr) -> io::Result<()> {
    let level = if group.is_ipv4() {
        libc::IPPROTO_IP
    } else {
        libc::IPPROTO_IPV6
    };
    // SAFETY: the structure is made of integers and byte arrays, for which all zeroes is a value.
    let mut request: libc::group_source_req = unsafe { std::mem::zeroed() };
    request.gsr_interface = index;
    copy_into(&mut request.gsr_group, &group.into());
    copy_into(&mut request.gsr_source, &SocketAddr::new(source, 0).into());
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the option's value is a
    // live `group_source_req` of the size given, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            libc::MCAST_JOIN_SOURCE_GROUP,
            (&raw const request).cast(),
            size_of_val(&request) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn copy_into(place: &mut libc::sockaddr_storage, address: &SockAddr) {
    // SAFETY: a `SockAddr` is `len` bytes of socket address at `as_ptr`, never more than a
    // `sockaddr_storage` holds; `place` is one, is ours alone, and any bytes are a value of it.
    unsafe {
        std::ptr::copy_nonoverlapping(
            address.as_ptr().cast::<u8>(),
            std::ptr::from_mut(place).cast::<u8>(),
            (address.len() as usize).min(size_of::<libc::sockaddr_storage>()),
        );
    }
}
