//! Sends and counts plain datagrams in a lab's node: multicast to prove the network, garbage to disturb the services.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use testbed::garbage;

/// Datagrams for proving and disturbing.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-probe", version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Send numbered datagrams to a multicast group
    Send {
        /// The group and port
        #[arg(long)]
        group: SocketAddrV4,
        /// How many
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Milliseconds between two
        #[arg(long, default_value_t = 5)]
        interval_ms: u64,
    },
    /// Join a multicast group and print how many datagrams arrived
    Count {
        /// The group and port
        #[arg(long)]
        group: SocketAddrV4,
        /// Join (S,G) with this S; without it, (*,G)
        #[arg(long)]
        source: Option<Ipv4Addr>,
        /// The address of the interface to join on
        #[arg(long)]
        interface: Ipv4Addr,
        /// Do not join: only listen on the port
        #[arg(long)]
        no_join: bool,
        /// How long, in milliseconds
        #[arg(long, default_value_t = 1000)]
        for_ms: u64,
    },
    /// Send datagrams that no service can use
    Garbage {
        /// Where to, a group or a single address
        #[arg(long)]
        to: SocketAddrV4,
        /// How many
        #[arg(long, default_value_t = 300)]
        count: u32,
        /// How many a second
        #[arg(long, default_value_t = 300)]
        per_second: u32,
        /// A Flow ID (16 hexadecimal digits) to put into some of them
        #[arg(long, value_parser = garbage::flow_id)]
        flow: Option<[u8; 8]>,
        /// What the randomness comes from
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().what {
        What::Send {
            group,
            count,
            interval_ms,
        } => garbage::send_numbered(group, count, Duration::from_millis(interval_ms)),
        What::Count {
            group,
            source,
            interface,
            no_join,
            for_ms,
        } => {
            let time = Duration::from_millis(for_ms);
            let arrived = garbage::count_arrivals(group, source, interface, !no_join, time)?;
            println!("{arrived}");
            Ok(())
        }
        What::Garbage {
            to,
            count,
            per_second,
            flow,
            seed,
        } => garbage::send_garbage(to, count, per_second, flow, seed),
    }
}
