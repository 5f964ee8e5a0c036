//! System calls shared by these sockets, and socket addresses in the kernel's form.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Converts the result of a system call.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Raises the limit of file descriptors to the system's maximum, as each group and port needs one;
/// returns it.
///
/// # Errors
/// The error of the kernel.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes, then reads, one `rlimit`.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
    }
    Ok(limit.rlim_cur)
}

/// Sets an option whose value is a structure or a number.
pub(crate) fn set<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `size_of::<T>()` bytes
    // at `value`, which is that long.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result).map(|_| ())
}

/// Returns the number of datagrams dropped because a socket's buffer was full, modulo 2³².
pub(crate) fn dropped(fd: BorrowedFd<'_>) -> u32 {
    /// Index of the drops in `SO_MEMINFO`.
    const DROPS: usize = 8;
    let mut numbers = [0_u32; DROPS + 1];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `numbers`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { numbers[DROPS] } else { 0 }
}

/// Enables a boolean option.
pub(super) fn switch_on(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<()> {
    set(fd, level, name, &1_i32)
}

/// A socket address of either family, as the kernel reads and writes it.
#[derive(Clone, Copy)]
pub(super) struct RawAddress {
    /// Large enough for both families; an IPv4 address is at its start.
    place: libc::sockaddr_in6,
    len: libc::socklen_t,
}

impl RawAddress {
    /// Returns room for an address that the kernel writes.
    pub(super) fn room() -> Self {
        Self {
            // SAFETY: the structure is made of integers and byte arrays: all zeroes is a value.
            place: unsafe { std::mem::zeroed() },
            len: size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    pub(super) fn new(address: SocketAddr) -> Self {
        let mut raw = Self::room();
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: as in `room`.
                let mut place: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                place.sin_family = libc::AF_INET as libc::sa_family_t;
                place.sin_port = v4.port().to_be();
                place.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                // SAFETY: a `sockaddr_in` is smaller than the place and needs no larger alignment.
                unsafe {
                    (&raw mut raw.place)
                        .cast::<libc::sockaddr_in>()
                        .write(place)
                };
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                raw.place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.place.sin6_port = v6.port().to_be();
                raw.place.sin6_addr.s6_addr = v6.ip().octets();
                raw.place.sin6_scope_id = v6.scope_id();
            }
        }
        raw
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr_in6 {
        &raw mut self.place
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        self.len
    }

    /// Returns the address that the kernel wrote; an IPv4-mapped one as IPv4.
    pub(super) fn get(&self) -> Option<SocketAddr> {
        match i32::from(self.place.sin6_family) {
            libc::AF_INET => {
                // SAFETY: the family says that a `sockaddr_in` was written; it fits, and is
                // aligned.
                let v4 = unsafe { (&raw const self.place).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(self.place.sin6_addr.s6_addr);
                let port = u16::from_be(self.place.sin6_port);
                Some(match ip.to_canonical() {
                    IpAddr::V4(ip) => SocketAddr::from((ip, port)),
                    IpAddr::V6(ip) => {
                        SocketAddrV6::new(ip, port, 0, self.place.sin6_scope_id).into()
                    }
                })
            }
            _ => None,
        }
    }
}

/// Buffer for control messages, aligned as they require.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Control<N> {
    pub(super) const fn new() -> Self {
        Self([0; N])
    }

    /// Appends a control message after the first `at` bytes; returns the new length, or `at` if it
    /// does not fit.
    pub(super) fn push<T: Copy>(
        &mut self,
        at: usize,
        level: libc::c_int,
        kind: libc::c_int,
        value: &T,
    ) -> usize {
        // SAFETY: these two only compute.
        let (space, len) = unsafe {
            (
                libc::CMSG_SPACE(size_of::<T>() as u32) as usize,
                libc::CMSG_LEN(size_of::<T>() as u32) as usize,
            )
        };
        let Some(room) = self.0.get_mut(at..at + space) else {
            return at;
        };
        room.fill(0);
        let header = libc::cmsghdr {
            cmsg_len: len as _,
            cmsg_level: level,
            cmsg_type: kind,
        };
        // SAFETY: `room` is `CMSG_SPACE` bytes of a buffer that is aligned for headers, at a
        // multiple of that alignment: it holds a header and, at `CMSG_DATA`, a `T`.
        unsafe {
            let place = room.as_mut_ptr().cast::<libc::cmsghdr>();
            place.write_unaligned(header);
            libc::CMSG_DATA(place).cast::<T>().write_unaligned(*value);
        }
        at + space
    }
}

/// Calls `each` with level, type and bytes of every control message of a received message.
pub(super) fn control_messages(
    header: &libc::msghdr,
    mut each: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) {
    // SAFETY: the kernel filled `header`, whose control buffer is alive and as long as it says; the
    // macros stay within it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(one) = next.as_ref() {
            let data = libc::CMSG_DATA(next);
            let before = (data as usize).saturating_sub(next as usize);
            let len = (one.cmsg_len).saturating_sub(before);
            each(
                one.cmsg_level,
                one.cmsg_type,
                std::slice::from_raw_parts(data, len),
            );
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
}

/// Reads a control message's value, if it has the right length.
pub(super) fn read<T: Copy>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: there are enough bytes; `T` is one of the kernel's structures or a number, of which
    // any bytes are a value.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
