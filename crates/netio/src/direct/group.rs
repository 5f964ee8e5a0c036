//! Multicast groups: a socket that receives groups on one port, and joins without receiving.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

use super::port::{exclusive, new_socket, set_up};
use super::sys::{RawAddress, dropped, set};
use crate::error::context;

/// A socket that is bound to one group and port and receives the packets of its memberships.
///
/// Linux limits the sources of a group on one socket (`igmp_max_msf`); for more, open another
/// socket for the same group and port. No two of them may have the same membership: each gets its
/// own copy.
#[derive(Debug)]
pub struct GroupPort {
    socket: Socket,
    group: SocketAddr,
    interface: u32,
    sources: usize,
    any: bool,
}

impl GroupPort {
    /// Opens the socket, without any membership. `interface` is the number of the interface to join
    /// on; with 0 the kernel takes the one of its route.
    ///
    /// # Errors
    /// There is no such interface, or another program holds the port and does not share it.
    pub fn open(group: SocketAddr, interface: u32) -> io::Result<Self> {
        let open = || {
            let socket = new_socket(group)?;
            socket.set_reuse_address(true)?;
            exclusive(&socket, group.ip())?;
            set_up(&socket, group, false)?;
            let bound = match group {
                SocketAddr::V6(mut v6) => {
                    socket.set_only_v6(true)?;
                    if is_link_scoped(*v6.ip()) {
                        v6.set_scope_id(interface);
                    }
                    SocketAddr::V6(v6)
                }
                v4 @ SocketAddr::V4(_) => v4,
            };
            socket.bind(&bound.into())?;
            Ok(Self {
                socket,
                group,
                interface,
                sources: 0,
                any: false,
            })
        };
        open().map_err(|error| context(error, format_args!("cannot receive group {group}")))
    }

    /// Returns the group and port.
    #[must_use]
    pub fn group(&self) -> SocketAddr {
        self.group
    }

    /// Returns the number of the interface given to [`open`](Self::open).
    #[must_use]
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Whether there is no membership.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sources == 0 && !self.any
    }

    /// Returns the number of messages dropped because the socket's buffer was full, modulo 2³². A
    /// train counts as one.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        dropped(self.socket.as_fd())
    }

    /// Joins the group from `source`, or from any.
    ///
    /// # Errors
    /// The error of the kernel. Any-source and single-source memberships exclude each other on one
    /// socket; `ENOBUFS` if it can hold no more.
    pub fn join(&mut self, source: Option<IpAddr>) -> io::Result<()> {
        change(&self.socket, self.interface, self.group.ip(), source, true)?;
        match source {
            Some(_) => self.sources += 1,
            None => self.any = true,
        }
        Ok(())
    }

    /// Leaves the group from `source`, or from any.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn leave(&mut self, source: Option<IpAddr>) -> io::Result<()> {
        change(&self.socket, self.interface, self.group.ip(), source, false)?;
        match source {
            Some(_) => self.sources = self.sources.saturating_sub(1),
            None => self.any = false,
        }
        Ok(())
    }
}

impl AsFd for GroupPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Memberships for another way of receiving, such as [`Capture`](super::Capture): routers and
/// network cards let the groups through, and no socket receives them.
#[derive(Debug, Default)]
pub struct Memberships {
    sockets: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    socket: Socket,
    interface: u32,
    held: Vec<(Option<IpAddr>, IpAddr)>,
}

impl Memberships {
    /// Joins `group` from `source`, or from any, on the interface with this number or, with 0, that
    /// of the kernel's route.
    ///
    /// # Errors
    /// There is no such interface or no route, or a limit of the machine is reached.
    pub fn join(
        &mut self,
        source: Option<IpAddr>,
        group: IpAddr,
        interface: u32,
    ) -> io::Result<()> {
        let what = |error| context(error, format_args!("cannot join group {group}"));
        // Any-source and single-source memberships exclude each other on one socket.
        let fits = |holder: &&mut Holder| {
            let same = |held: &&(Option<IpAddr>, IpAddr)| held.1 == group;
            let mut others = holder.held.iter().filter(same);
            holder.interface == interface && others.all(|held| held.0.is_some() && source.is_some())
        };
        for holder in self.sockets.iter_mut().filter(fits) {
            match change(&holder.socket, interface, group, source, true) {
                Ok(()) => {
                    holder.held.push((source, group));
                    return Ok(());
                }
                // The socket can hold no more, or is of the other family.
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(what(error)),
            }
        }
        let open = || {
            let any: IpAddr = match group {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            // Not bound: nothing is delivered to it.
            let socket = new_socket(SocketAddr::new(any, 0))?;
            exclusive(&socket, group)?;
            change(&socket, interface, group, source, true)?;
            Ok(socket)
        };
        let socket = open().map_err(what)?;
        self.sockets.push(Holder {
            socket,
            interface,
            held: vec![(source, group)],
        });
        Ok(())
    }

    /// Leaves a membership, if there is one.
    pub fn leave(&mut self, source: Option<IpAddr>, group: IpAddr) {
        let held = (source, group);
        for holder in &mut self.sockets {
            if let Some(at) = holder.held.iter().position(|one| *one == held) {
                holder.held.swap_remove(at);
                // An interface that is gone has taken its memberships with it.
                let _ = change(&holder.socket, holder.interface, group, source, false);
                break;
            }
        }
        self.sockets.retain(|holder| !holder.held.is_empty());
    }
}

/// Whether an error may mean that this socket can hold no more, or never could.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::ENOMEM | libc::ENOPROTOOPT | libc::EINVAL | libc::EAFNOSUPPORT)
    )
}

/// Whether a group is a different one on each link (RFC 4291, section 2.7).
fn is_link_scoped(group: Ipv6Addr) -> bool {
    matches!(group.octets(), [0xff, scope, ..] if matches!(scope & 0xf, 1 | 2))
}

/// Joins or leaves by the options that are the same for both families (RFC 3678, section 5.1).
fn change(
    socket: &Socket,
    index: u32,
    group: IpAddr,
    source: Option<IpAddr>,
    join: bool,
) -> io::Result<()> {
    let level = if group.is_ipv4() {
        libc::IPPROTO_IP
    } else {
        libc::IPPROTO_IPV6
    };
    let storage = |ip: IpAddr| {
        // SAFETY: the structure is made of integers and byte arrays: all zeroes is a value.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut address = RawAddress::new(SocketAddr::new(ip, 0));
        // SAFETY: an address is never longer than a `sockaddr_storage`, of which any bytes are a
        // value.
        unsafe {
            std::ptr::copy_nonoverlapping(
                address.as_mut_ptr().cast::<u8>(),
                (&raw mut storage).cast::<u8>(),
                address.len() as usize,
            );
        }
        storage
    };
    let fd = socket.as_fd();
    match source {
        Some(source) => {
            // SAFETY: as above.
            let mut request: libc::group_source_req = unsafe { std::mem::zeroed() };
            request.gsr_interface = index;
            request.gsr_group = storage(group);
            request.gsr_source = storage(source);
            let name = if join {
                libc::MCAST_JOIN_SOURCE_GROUP
            } else {
                libc::MCAST_LEAVE_SOURCE_GROUP
            };
            set(fd, level, name, &request)
        }
        None => {
            // SAFETY: as above.
            let mut request: libc::group_req = unsafe { std::mem::zeroed() };
            request.gr_interface = index;
            request.gr_group = storage(group);
            let name = if join {
                libc::MCAST_JOIN_GROUP
            } else {
                libc::MCAST_LEAVE_GROUP
            };
            set(fd, level, name, &request)
        }
    }
}
