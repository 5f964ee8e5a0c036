//! Flow packets from an address that is no relay's.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use amt::Message;
use amt::ip::{Udp, write_udp};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::JoinPlan;
use crate::until::StopCondition;
use crate::waiting::pause;

/// Between two rounds.
const EVERY: Duration = Duration::from_millis(2);

/// Forged packets.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ForgeReport {
    /// Datagrams that were sent to each address.
    pub sent: u64,
}

/// Sends Multicast Data of what is wanted, right in every byte, to every address in `to` until the
/// end: a gateway must take it from its relay only.
///
/// # Errors
/// When the source is missing or of another family, or the socket cannot be made; single refused
/// datagrams are no error.
pub fn forge(wanted: JoinPlan, to: &[SocketAddr], until: &StopCondition) -> Result<ForgeReport> {
    let source = wanted.source.context("--source is missing")?;
    let udp = Udp {
        from: SocketAddr::new(source, 40_000),
        to: wanted.group,
        ttl: 9,
        payload: b"forged: no relay sent this",
    };
    let mut packet = Vec::new();
    ensure!(
        write_udp(&udp, 0, &mut packet),
        "group and source are of different families"
    );
    let mut bytes = Vec::new();
    Message::Data { packet: &packet }.encode(&mut bytes);
    let socket = UdpSocket::bind("0.0.0.0:0").context("opening a UDP socket")?;
    let mut sent = 0;
    while !until.is_over() {
        for to in to {
            let _ = socket.send_to(&bytes, to);
        }
        sent += 1;
        pause(EVERY);
    }
    Ok(ForgeReport { sent })
}
