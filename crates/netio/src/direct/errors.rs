//! Answers of the network to datagrams sent earlier.

use std::io;
use std::net::IpAddr;

use super::port::{UdpPort, raw};
use super::sys::{Control, RawAddress, control_messages, read};

/// Answer of the network to a datagram sent earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// The path to `to` has a smaller MTU than the datagram.
    TooLarge {
        /// Destination of the datagram.
        to: IpAddr,
        /// Path MTU in bytes.
        mtu: u32,
    },
    /// Another error, such as a closed port.
    Other {
        /// Destination of the datagram.
        to: IpAddr,
        /// Error that Linux makes of the ICMP message.
        errno: i32,
    },
}

impl UdpPort {
    /// Takes up to `most` answers from the socket's error queue. Returns their number.
    ///
    /// # Errors
    /// The socket is unusable.
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
            // SAFETY: the header leads to locals that outlive the call; without buffers, the
            // datagram itself is not copied.
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
            // The address is the destination of the datagram.
            let Some(to) = address.get() else {
                continue;
            };
            control_messages(&header, |level, kind, bytes| {
                let is_error = matches!(
                    (level, kind),
                    (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                );
                if !is_error {
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
