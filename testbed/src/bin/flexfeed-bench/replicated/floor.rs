//! Least cost of sending: the same trains by one segmented send for each receiver, with nothing
//! else around.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};

use super::receivers::Receivers;
use super::{BATCH, Cost, Load, Updates};
use crate::cpu::Stopwatch;
use crate::parcel::UDP_PAYLOAD;

/// Sends as many bytes as the updates of a load have, in packets of full size.
///
/// # Errors
/// When the kernel does not segment, or something did not arrive.
pub fn send(load: Load, receivers: &mut Receivers) -> Result<Cost> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    segment(&socket)?;
    let addresses: Vec<_> = receivers.addresses().collect();
    let mut updates = Updates::of(load);
    let mut watch = Stopwatch::new();
    let mut packets = 0;
    for _ in 0..load.updates {
        let update = updates.next();
        for (batch, first) in addresses.chunks(BATCH).zip((0..).step_by(BATCH)) {
            watch.time(|| -> Result<()> {
                for to in batch {
                    ensure!(socket.send_to(&update, to)? == update.len(), "half a train");
                }
                Ok(())
            })?;
            packets += (update.len().div_ceil(UDP_PAYLOAD) * batch.len()) as u64;
            receivers.take_from(first..first + batch.len(), &update)?;
        }
    }
    Ok(Cost {
        engine: watch.total(),
        packets,
        ..Cost::default()
    })
}

/// Lets the kernel cut everything that is sent from this socket into packets.
fn segment(socket: &UdpSocket) -> Result<()> {
    let size = UDP_PAYLOAD as libc::c_int;
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
