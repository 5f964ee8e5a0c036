//! Bare cost of sending a packet to many: one `sendmmsg` for all destinations.

use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Address, Cargo, SendReport, nanoseconds, thread_time};
use crate::waiting::pause;

/// Parameters of the sender.
#[derive(Debug, Clone, Copy)]
pub struct FloorPlan {
    /// The first port, and the address to send from.
    pub address: Address,
    /// Number of ports.
    pub count: u16,
    /// Bytes in each packet.
    pub size: usize,
    /// Packets a second, to each.
    pub rate: u32,
    /// Duration.
    pub time: Duration,
}

/// Sends every packet to all ports by one system call. IPv4 only.
///
/// # Errors
/// When the socket cannot be made, or fails.
pub fn floor(plan: &FloorPlan) -> Result<SendReport> {
    ensure!(plan.rate > 0, "a rate is needed");
    let Address { to, from } = plan.address;
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).context("opening a UDP socket")?;
    let SocketAddr::V4(first) = to else {
        bail!("only IPv4 addresses")
    };
    let mut names: Vec<libc::sockaddr_in> = (0..plan.count)
        .map(|n| libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: (first.port() + n).to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(*first.ip()).to_be(),
            },
            sin_zero: [0; 8],
        })
        .collect();
    let cargo = Cargo::new(plan.size);
    let mut packet = cargo.train(1);
    let mut part = libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: packet.len(),
    };
    let mut messages: Vec<libc::mmsghdr> = names
        .iter_mut()
        .map(|name| {
            // SAFETY: all fields of this C struct may be 0.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            message.msg_hdr.msg_iov = &raw mut part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    let begun = Instant::now();
    let mut spent = Duration::ZERO;
    let (mut packets, mut refused) = (0_u64, 0_u64);
    while begun.elapsed() < plan.time {
        let ahead = packets as f64 / f64::from(plan.rate) - begun.elapsed().as_secs_f64();
        if ahead > 0.0 {
            pause(Duration::from_secs_f64(ahead));
            continue;
        }
        cargo.number(&mut packet, packets);
        let cpu = thread_time();
        let mut done = 0;
        while let Some(rest) = messages.get_mut(done..).filter(|rest| !rest.is_empty()) {
            // SAFETY: the messages point to names, and one buffer, that live and do not move.
            let sent = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    rest.as_mut_ptr(),
                    libc::c_uint::try_from(rest.len())?,
                    0,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) if sent > 0 => done += sent,
                _ => {
                    // ICMP about one of the ports, for example.
                    refused += 1;
                    done += 1;
                }
            }
        }
        spent += thread_time().saturating_sub(cpu);
        packets += 1;
    }
    Ok(SendReport {
        packets,
        refused,
        cpu_ns: nanoseconds(spent),
        ms: u64::try_from(begun.elapsed().as_millis())?,
    })
}
