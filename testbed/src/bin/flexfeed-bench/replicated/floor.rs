//! Least cost of sending: the same trains by one segmented send for each receiver, with nothing
//! else around.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Result, ensure};

use super::receivers::Receivers;
use super::{BATCH, Cost, Load, Updates};
use crate::cpu::Stopwatch;
use crate::parcel::UDP_PAYLOAD;
use crate::segments::let_kernel_segment;

/// Sends as many bytes as the updates of a load have, in packets of full size.
///
/// # Errors
/// When the kernel does not segment, or something did not arrive.
pub fn send(load: Load, receivers: &mut Receivers) -> Result<Cost> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let_kernel_segment(&socket, UDP_PAYLOAD)?;
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
