//! Addresses of this machine that other hosts reach, and which of them are about to go.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::context;

/// Bytes of the kernel's answer that are read at once; it sends no message above 32 KiB.
const ANSWER: usize = 64 << 10;
/// The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// Length of `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;
/// Length of `struct ifaddrmsg`.
const ADDRESS_HEADER: usize = 8;

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress {
    /// Number of the interface.
    pub interface: u32,
    /// The address.
    pub ip: IpAddr,
    /// Whether nothing new should begin with it: its preferred lifetime is over (RFC 4862 section
    /// 5.5.4), as after `ip address change … preferred_lft 0`.
    pub deprecated: bool,
}

/// Returns the addresses of this machine with a scope beyond one link, sorted; those that are not
/// in use yet and the temporary ones of IPv6 (RFC 8981) are left out.
///
/// # Errors
/// The kernel does not tell (rtnetlink).
pub fn host_addresses() -> io::Result<Vec<HostAddress>> {
    ask().map_err(|error| context(error, format_args!("cannot list this machine's addresses")))
}

fn ask() -> io::Result<Vec<HostAddress>> {
    let protocol = Protocol::from(libc::NETLINK_ROUTE);
    let mut socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(&request())?;
    let mut found = Vec::new();
    let mut answer = vec![0; ANSWER];
    loop {
        let length = socket.read(&mut answer)?;
        if read_messages(answer.get(..length).unwrap_or_default(), &mut found)? {
            found.sort_unstable();
            return Ok(found);
        }
    }
}

/// A request for all addresses: `nlmsghdr` and `ifaddrmsg`.
fn request() -> [u8; MESSAGE_HEADER + ADDRESS_HEADER] {
    let mut request = [0; MESSAGE_HEADER + ADDRESS_HEADER];
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETADDR.to_ne_bytes());
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request
}

/// Reads messages of the kernel's answer; returns whether it was the last one.
fn read_messages(mut bytes: &[u8], found: &mut Vec<HostAddress>) -> io::Result<bool> {
    while bytes.len() >= MESSAGE_HEADER {
        let length = number(bytes, 0) as usize;
        if length < MESSAGE_HEADER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let body = bytes.get(MESSAGE_HEADER..length).unwrap_or_default();
        match number(bytes, 4) as u16 {
            kind if i32::from(kind) == libc::NLMSG_DONE => return Ok(true),
            kind if i32::from(kind) == libc::NLMSG_ERROR => {
                let errno = (number(body, 0) as i32).saturating_neg();
                return Err(io::Error::from_raw_os_error(errno));
            }
            libc::RTM_NEWADDR => found.extend(read_address(body)),
            _ => {}
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads an `ifaddrmsg` with its attributes.
fn read_address(body: &[u8]) -> Option<HostAddress> {
    let &[family, _, flags, scope, ..] = body else {
        return None;
    };
    let (mut address, mut local, mut flags) = (None, None, u32::from(flags));
    let mut attributes = body.get(ADDRESS_HEADER..)?;
    while attributes.len() >= 4 {
        let head = number(attributes, 0).to_ne_bytes();
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = attributes.get(4..length)?;
        match u16::from_ne_bytes([head[2], head[3]]) {
            libc::IFA_ADDRESS => address = ip(family, value),
            libc::IFA_LOCAL => local = ip(family, value),
            libc::IFA_FLAGS => flags = number(value, 0),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    let unusable = flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0;
    // The same bit of an IPv4 address means that it is not the first of its network.
    let is_v6 = i32::from(family) == libc::AF_INET6;
    let is_temporary = is_v6 && flags & libc::IFA_F_TEMPORARY != 0;
    if is_temporary || unusable || scope >= libc::RT_SCOPE_LINK {
        return None;
    }
    Some(HostAddress {
        interface: number(body, 4),
        // The address of a point-to-point link is the other end's.
        ip: local.or(address)?,
        deprecated: flags & libc::IFA_F_DEPRECATED != 0,
    })
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// Returns the four bytes at `at` in the machine's order; 0 where they are not there.
fn number(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_ne_bytes)
}

/// Returns a length with the padding that netlink puts behind it.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (MESSAGE_HEADER as u32 + body.len() as u32)
            .to_ne_bytes()
            .to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(MESSAGE_HEADER, 0);
        bytes.extend(body);
        bytes
    }

    fn address(scope: u8, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![libc::AF_INET as u8, 24, flags as u8, scope];
        body.extend(7u32.to_ne_bytes());
        body.extend(attributes.concat());
        message(libc::RTM_NEWADDR, &body)
    }

    #[test]
    fn addresses_of_the_kernels_answer_are_read() {
        let local = attribute(libc::IFA_LOCAL, &[10, 0, 0, 1]);
        let peer = attribute(libc::IFA_ADDRESS, &[10, 0, 0, 9]);
        let wide_flags = attribute(libc::IFA_FLAGS, &libc::IFA_F_DEPRECATED.to_ne_bytes());
        let answer = [
            address(0, 0, &[peer.clone(), local.clone()]),
            address(0, libc::IFA_F_DEPRECATED, std::slice::from_ref(&peer)),
            address(
                0,
                0,
                &[attribute(libc::IFA_LOCAL, &[10, 0, 0, 3]), wide_flags],
            ),
            address(0, libc::IFA_F_TENTATIVE, std::slice::from_ref(&local)),
            address(libc::RT_SCOPE_HOST, 0, &[local]),
        ]
        .concat();
        let mut found = Vec::new();
        assert!(!read_messages(&answer, &mut found).unwrap());
        let own = |host, deprecated| HostAddress {
            interface: 7,
            ip: Ipv4Addr::new(10, 0, 0, host).into(),
            deprecated,
        };
        assert_eq!(found, [own(1, false), own(9, true), own(3, true)]);

        let done = message(libc::NLMSG_DONE as u16, &[0; 4]);
        assert!(read_messages(&done, &mut found).unwrap());
        let refused = message(libc::NLMSG_ERROR as u16, &(-libc::EPERM).to_ne_bytes());
        let error = read_messages(&refused, &mut found).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_broken_answer_ends() {
        let whole = address(0, 0, &[attribute(libc::IFA_LOCAL, &[10, 0, 0, 1])]);
        for length in 0..whole.len() {
            let _ = read_messages(&whole[..length], &mut Vec::new());
        }
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 0xff;
            let _ = read_messages(&broken, &mut Vec::new());
        }
        assert!(
            read_messages(&[0; 64], &mut Vec::new()).is_err(),
            "no progress"
        );
    }

    #[test]
    fn the_kernel_lists_no_loopback_address() {
        let found = host_addresses().unwrap();
        assert!(found.iter().all(|one| !one.ip.is_loopback()), "{found:?}");
    }
}
