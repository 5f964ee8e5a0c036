//! Sockets whose trains the kernel cuts into packets, for floors: one system call and nothing else.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};

/// Lets the kernel cut everything that is sent from this socket into packets of `size` bytes.
///
/// # Errors
/// When the kernel does not segment.
pub fn let_kernel_segment(socket: &UdpSocket, size: usize) -> Result<()> {
    let size = size as libc::c_int;
    // SAFETY: the descriptor is open, and the option's value is a live int of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    ensure!(result == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}
