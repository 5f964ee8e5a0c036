//! Sends packets at a steady rate, or counts what arrives, for measuring what is in between. Prints
//! what came of it as one line of JSON.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use testbed::pump::{self, Address, FloorPlan, Ingress, SendPlan, SinkPlan};
use testbed::urgent::RealTime;

/// Many packets.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-pump", version)]
struct Arguments {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Clone, Args)]
struct Common {
    /// The group and port, or the first of the ports
    #[arg(long)]
    to: SocketAddr,
    /// Address of the sender
    #[arg(long)]
    from: IpAddr,
    /// Bytes in each packet
    #[arg(long, default_value_t = 1200)]
    size: usize,
    /// Duration, in milliseconds
    #[arg(long, default_value_t = 3000)]
    for_ms: u64,
    /// In the real-time class, where that is allowed
    #[arg(long)]
    urgent: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send
    Send {
        #[command(flatten)]
        common: Common,
        /// Packets a second; 0 for as many as possible
        #[arg(long, default_value_t = 1000)]
        rate: u32,
        /// Packets that go out at once
        #[arg(long, default_value_t = 1)]
        train: usize,
    },
    /// Send every packet to all of some ports
    Floor {
        #[command(flatten)]
        common: Common,
        /// Packets a second
        #[arg(long, default_value_t = 300)]
        rate: u32,
        /// Number of ports
        #[arg(long)]
        count: u16,
    },
    /// Receive
    Drain {
        #[command(flatten)]
        common: Common,
        /// Over tunnels of this relay; without it, by a join
        #[arg(long)]
        relay: Option<SocketAddr>,
        /// Number of tunnels, or of ports
        #[arg(long)]
        count: Option<u16>,
        /// Measure the time on the way
        #[arg(long)]
        latency: bool,
    },
}

fn main() -> Result<()> {
    let (common, line) = match Arguments::parse().what {
        Action::Send {
            common,
            rate,
            train,
        } => {
            let _urgent = urgent(&common);
            let plan = SendPlan {
                address: address(&common),
                size: common.size,
                rate,
                train,
                time: Duration::from_millis(common.for_ms),
            };
            let sent = pump::send(&plan)?;
            (common, serde_json::to_string(&sent)?)
        }
        Action::Floor {
            common,
            rate,
            count,
        } => {
            let plan = FloorPlan {
                address: address(&common),
                count,
                size: common.size,
                rate,
                time: Duration::from_millis(common.for_ms),
            };
            let sent = pump::floor(&plan)?;
            (common, serde_json::to_string(&sent)?)
        }
        Action::Drain {
            common,
            relay,
            count,
            latency,
        } => {
            let _urgent = urgent(&common);
            let how = match (relay, count) {
                (Some(relay), Some(count)) => Ingress::Tunnels { relay, count },
                (Some(relay), None) => Ingress::Gateway { relay },
                (None, Some(count)) => Ingress::Ports { count },
                (None, None) => Ingress::Direct,
            };
            let plan = SinkPlan {
                how,
                address: address(&common),
                size: common.size,
                time: Duration::from_millis(common.for_ms),
                latency,
            };
            let drained = pump::drain(&plan)?;
            (common, serde_json::to_string(&drained)?)
        }
    };
    println!("{line}");
    let _ = common;
    Ok(())
}

fn address(common: &Common) -> Address {
    Address {
        to: common.to,
        from: common.from,
    }
}

/// The measuring process must not wait for the measured one.
fn urgent(common: &Common) -> Option<RealTime> {
    common
        .urgent
        .then(|| RealTime::begin(RealTime::APPARATUS).context("the real-time class"))
        .and_then(Result::ok)
}
