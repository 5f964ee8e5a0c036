//! Speaks AMT with a relay as an outsider: scripted gateways, forgeries, floods. Prints the result
//! as one line of JSON.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use testbed::tunnel::{self, Flood, GatewaysPlan, JoinPlan, Leave, Wave};
use testbed::until::StopCondition;

/// AMT from outside.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-tunnel", version)]
struct Arguments {
    /// Address of the relay
    #[arg(long, global = true)]
    relay: Option<SocketAddr>,
    #[command(flatten)]
    wanted: WantedArguments,
    /// End when standard input is closed, at the latest after the given time (`join` and `forge`)
    #[arg(long, global = true)]
    until_closed: bool,
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Args)]
struct WantedArguments {
    /// The group and port to join
    #[arg(long, global = true, default_value = "232.70.70.1:4434")]
    group: SocketAddr,
    /// Join (S,G) with this S; without it, (*,G)
    #[arg(long, global = true)]
    source: Option<IpAddr>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Gateways that join and count what they get
    Join {
        /// Number.
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// The address to send from [default: the kernel's choice]
        #[arg(long)]
        from: Option<IpAddr>,
        /// Duration, in milliseconds
        #[arg(long, default_value_t = 2000)]
        for_ms: u64,
        /// End when each of them has got so many data messages
        #[arg(long)]
        enough: Option<u64>,
        /// The first one leaves so many milliseconds after its first data message, and goes on
        /// listening
        #[arg(long)]
        first_leaves_after_ms: Option<u64>,
        /// Way of leaving
        #[arg(long, value_enum, default_value = "teardown")]
        leave: Leave,
        /// Milliseconds between two Requests of a gateway
        #[arg(long, default_value_t = 1000)]
        again_ms: u64,
    },
    /// Reports and teardowns that a relay must not obey
    Attack {
        /// Duration of each part, in milliseconds
        #[arg(long, default_value_t = 1000)]
        each_ms: u64,
    },
    /// Flow packets of the group that no relay sent
    Forge {
        /// Destination with port; can be repeated
        #[arg(long, required = true)]
        to: Vec<SocketAddr>,
        /// Duration, in milliseconds
        #[arg(long, default_value_t = 2000)]
        for_ms: u64,
    },
    /// Many messages from many addresses
    Flood {
        /// Type of the messages
        #[arg(long, value_enum)]
        wave: Wave,
        /// The first address
        #[arg(long)]
        first: IpAddr,
        /// Number of addresses
        #[arg(long, default_value_t = 1000)]
        addresses: u32,
        /// Number of messages from each
        #[arg(long, default_value_t = 1)]
        each: u32,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let wanted = JoinPlan {
        source: arguments.wanted.source,
        group: arguments.wanted.group,
    };
    let relay = arguments.relay.context("--relay is missing");
    let until_closed = arguments.until_closed;
    let until = |ms| {
        let time = Duration::from_millis(ms);
        if until_closed {
            StopCondition::closed_or_after(time)
        } else {
            StopCondition::after(time)
        }
    };
    let line = match arguments.what {
        Action::Forge { to, for_ms } => {
            serde_json::to_string(&tunnel::forge(wanted, &to, &until(for_ms))?)?
        }
        Action::Join {
            count,
            from,
            for_ms,
            enough,
            first_leaves_after_ms,
            leave,
            again_ms,
        } => serde_json::to_string(&tunnel::play(&GatewaysPlan {
            relay: relay?,
            from,
            count,
            wanted,
            until: until(for_ms),
            enough,
            first_leaves_after: first_leaves_after_ms.map(Duration::from_millis),
            leave,
            again: Duration::from_millis(again_ms),
        })?)?,
        Action::Attack { each_ms } => {
            let each = Duration::from_millis(each_ms);
            serde_json::to_string(&tunnel::attack(relay?, wanted, each)?)?
        }
        Action::Flood {
            wave,
            first,
            addresses,
            each,
        } => serde_json::to_string(&tunnel::flood(&Flood {
            relay: relay?,
            wave,
            first,
            addresses,
            each,
            wanted,
        })?)?,
    };
    println!("{line}");
    Ok(())
}
