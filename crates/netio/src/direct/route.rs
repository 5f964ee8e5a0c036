//! Interfaces of routes, and the state of interfaces.

use std::io;
use std::net::IpAddr;
use std::os::fd::{FromRawFd, OwnedFd};

use socket2::Socket;

use super::sys::check;
use crate::error::context;

/// Length of a `nlmsghdr`, in bytes.
const HEADER: usize = 16;

/// Length of a `rtmsg`, in bytes.
const ROUTE: usize = 12;

/// Length of a `rtattr`, in bytes.
const ATTRIBUTE: usize = 4;

/// Returns the number of the interface of the kernel's route to `to`, a host or a group. A
/// membership without an interface is made there.
///
/// # Errors
/// There is no route (`NetworkUnreachable`), or the query is not permitted.
pub fn route_interface(to: IpAddr) -> io::Result<u32> {
    let asked = || {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes no memory; the descriptor is new and owned from here on.
        let socket = unsafe {
            let fd = check(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE))?;
            Socket::from(OwnedFd::from_raw_fd(fd))
        };
        // The kernel answers before the call returns.
        socket.send(&question(to))?;
        let mut answer = Vec::with_capacity(4096);
        socket.recv(answer.spare_capacity_mut()).map(|len| {
            // SAFETY: the kernel has written so many bytes to the room that the vector has.
            unsafe { answer.set_len(len) };
        })?;
        interface_of(&answer)
    };
    asked().map_err(|error| context(error, format_args!("no route towards {to}")))
}

/// Returns a request for a route (`RTM_GETROUTE`) to one address.
fn question(to: IpAddr) -> Vec<u8> {
    let (family, octets) = match to.to_canonical() {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let bits = (octets.len() * 8) as u8;
    let attribute = ATTRIBUTE + octets.len();
    let mut message = Vec::with_capacity(HEADER + ROUTE + attribute);
    message.extend_from_slice(&((HEADER + ROUTE + attribute) as u32).to_ne_bytes());
    message.extend_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and sender.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[family as u8, bits]);
    message.extend_from_slice(&[0; ROUTE - 2]);
    message.extend_from_slice(&(attribute as u16).to_ne_bytes());
    message.extend_from_slice(&libc::RTA_DST.to_ne_bytes());
    message.extend_from_slice(&octets);
    message
}

/// Parses the interface of the answer.
fn interface_of(answer: &[u8]) -> io::Result<u32> {
    let broken = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer is too short",
        )
    };
    let kind = bytes::<2>(answer, 4).map(u16::from_ne_bytes);
    if kind.ok_or_else(broken)? == libc::NLMSG_ERROR as u16 {
        let errno = bytes::<4>(answer, HEADER).map(i32::from_ne_bytes);
        return Err(io::Error::from_raw_os_error(-errno.ok_or_else(broken)?));
    }
    let mut at = HEADER + ROUTE;
    loop {
        let len = bytes::<2>(answer, at).map(u16::from_ne_bytes);
        let len = usize::from(len.ok_or_else(broken)?);
        let kind = bytes::<2>(answer, at + 2).map(u16::from_ne_bytes);
        if kind.ok_or_else(broken)? == libc::RTA_OIF {
            let index = bytes::<4>(answer, at + ATTRIBUTE).map(u32::from_ne_bytes);
            return index.ok_or_else(broken);
        }
        at += len.next_multiple_of(4).max(ATTRIBUTE);
    }
}

fn bytes<const N: usize>(of: &[u8], at: usize) -> Option<[u8; N]> {
    of.get(at..at + N)?.try_into().ok()
}

/// Returns the state of the interface with this number.
#[must_use]
pub fn interface_state(index: u32) -> InterfaceState {
    // SAFETY: the structure is made of integers and byte arrays: all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: `if_indextoname` writes at most `IF_NAMESIZE` bytes, which the name has.
    let named = unsafe { libc::if_indextoname(index, request.ifr_name.as_mut_ptr()) };
    if named.is_null() {
        return InterfaceState::Gone;
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: the descriptor is new and owned from here on.
    let socket = unsafe {
        match check(libc::socket(libc::AF_INET, kind, 0)) {
            Ok(fd) => OwnedFd::from_raw_fd(fd),
            // Unknown: an existing interface may be up.
            Err(_) => return InterfaceState::Up,
        }
    };
    let fd = super::port::raw(&socket);
    // SAFETY: the kernel reads the name of an `ifreq` that lives until the call returns, and writes
    // to it.
    let asked = unsafe { check(libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request)) };
    // SAFETY: the kernel has written the flags, of which any bits are a value.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    match asked {
        Ok(_) if libc::c_int::from(flags) & libc::IFF_UP == 0 => InterfaceState::Down,
        Ok(_) => InterfaceState::Up,
        Err(_) => InterfaceState::Gone,
    }
}

/// State of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterfaceState {
    /// Usable.
    Up,
    /// Switched off.
    Down,
    /// There is none with this number (any more).
    Gone,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_route_to_this_machine_uses_the_loopback_interface() {
        let lo = crate::find_interface("lo").unwrap();
        assert_eq!(route_interface(Ipv4Addr::LOCALHOST.into()).unwrap(), lo);
        assert_eq!(interface_state(lo), InterfaceState::Up);
        assert_eq!(interface_state(0x7fff_fff0), InterfaceState::Gone);
    }

    #[test]
    fn a_truncated_answer_is_an_error() {
        let mut answer = question(Ipv6Addr::LOCALHOST.into());
        for len in 0..answer.len() {
            assert!(interface_of(&answer[..len]).is_err());
        }
        // An attribute with length zero must not stop the parser.
        answer[28..30].copy_from_slice(&[0, 0]);
        assert!(interface_of(&answer).is_err());
    }
}
