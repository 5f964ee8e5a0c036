//! Packets at a steady rate.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netio::{MulticastSender, UdpSocket};

use super::{Address, Cargo, SendReport, nanoseconds, thread_time};
use crate::waiting::pause;

/// Parameters of the sender.
#[derive(Debug, Clone, Copy)]
pub struct SendPlan {
    /// Destination, a group or a single address, and source address.
    pub address: Address,
    /// Bytes in each packet.
    pub size: usize,
    /// Packets a second; 0 for as many as possible.
    pub rate: u32,
    /// Packets that go out at once.
    pub train: usize,
    /// Duration.
    pub time: Duration,
}

enum Out {
    Group(MulticastSender),
    One(UdpSocket),
}

impl Out {
    async fn send(&self, to: SocketAddr, train: &[u8], size: usize) -> std::io::Result<()> {
        match self {
            Out::Group(sender) => sender.send(to, train, Some(size)).await,
            Out::One(socket) => socket.send(to, train, Some(size)).await,
        }
    }

    fn refused(&self) -> u64 {
        match self {
            Out::Group(sender) => sender.counters().send_lost,
            Out::One(socket) => socket.counters().send_lost,
        }
    }
}

/// Sends as planned. To a group, the packets stay on this machine.
///
/// # Errors
/// When the socket cannot be made, or fails.
pub fn send(plan: &SendPlan) -> Result<SendReport> {
    ensure!(plan.train > 0, "a train has at least one packet");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    runtime.block_on(async {
        let Address { to, from } = plan.address;
        let out = if to.ip().is_multicast() {
            Out::Group(MulticastSender::bind(from, 0, true)?)
        } else {
            Out::One(UdpSocket::bind(SocketAddr::new(from, 0))?)
        };
        let cargo = Cargo::new(plan.size);
        let mut train = cargo.train(plan.train);
        let (begun, cpu) = (Instant::now(), thread_time());
        let mut packets = 0_u64;
        let length = u64::try_from(plan.train)?;
        while begun.elapsed() < plan.time {
            if plan.rate > 0 {
                let due = begun.elapsed().as_secs_f64() * f64::from(plan.rate);
                let ahead = (packets + length) as f64 - due;
                if ahead > 0.0 {
                    pause(Duration::from_secs_f64(ahead / f64::from(plan.rate)));
                    continue;
                }
            }
            cargo.number(&mut train, packets);
            out.send(to, &train, cargo.size()).await?;
            packets += length;
        }
        Ok(SendReport {
            packets,
            refused: out.refused(),
            cpu_ns: nanoseconds(thread_time().saturating_sub(cpu)),
            ms: u64::try_from(begun.elapsed().as_millis())?,
        })
    })
}
