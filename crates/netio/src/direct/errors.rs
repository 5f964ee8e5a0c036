//! What the network answered to datagrams that were sent earlier.

use std::io;
use std::net::IpAddr;

use super::port::{UdpPort, raw};
use super::sys::{Control, RawAddress, control_messages, read};

/// An answer of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// The way to `to` takes packets of `mtu` bytes at most.
    TooLarge {
        /// Where the datagram was going.
        to: IpAddr,
        /// The largest IP packet in bytes.
        mtu: u32,
    },
    /// Something else, such as a port where nobody listens.
    Other {
        /// Where the datagram was going.
        to: IpAddr,
        /// What it amounts to.
        errno: i32,
    },
}

impl UdpPort {
    /// Takes up to `most` answers from the socket's error queue. Returns how many there were.
    ///
    /// # Errors
    /// Only if the socket is unusable.
    pub fn path_errors(&self, most: usize, mut each: impl FnMut(PathError)) -> io::Result<usize> {
        for taken in 0..most {
            let mut address = RawAddress::room();
            let mut control = Control::<256>::new();
            // SAFETY: the structure is made of integers and pointers: all zeroes is a value.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_name = address.as_mut_ptr().cast();
            header.msg_namelen = address.len();
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = control.0.len() as _;
            // SAFETY: the header leads to locals that outlive the call; without buffers, the datagram
            // itself is not copied.
            let result = unsafe {
                libc::recvmsg(
                    raw(self),
                    &raw mut header,
                    libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
                )
            };
            if result < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(taken),
                    _ => Err(error),
                };
            }
            // The address is that of the datagram's destination.
            let Some(to) = address.get() else {
                continue;
            };
            control_messages(&header, |level, kind, bytes| {
                let told = matches!(
                    (level, kind),
                    (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                );
                if !told {
                    return;
                }
                let Some(error) = read::<libc::sock_extended_err>(bytes) else {
                    return;
                };
                let errno = i32::try_from(error.ee_errno).unwrap_or_default();
                each(if errno == libc::EMSGSIZE {
                    PathError::TooLarge {
                        to: to.ip(),
                        mtu: error.ee_info,
                    }
                } else {
                    PathError::Other { to: to.ip(), errno }
                });
            });
        }
        Ok(most)
    }
}
