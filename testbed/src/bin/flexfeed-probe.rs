//! Sends and counts plain datagrams in a lab's node: multicast and questions to prove the network,
//! garbage to disturb the services.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use testbed::until::{JOINED, StopCondition};
use testbed::{garbage, probing};

/// Datagrams for proving and disturbing.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-probe", version)]
struct Arguments {
    /// End when standard input is closed, at the latest after the given time (not `garbage`)
    #[arg(long, global = true)]
    until_closed: bool,
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send numbered datagrams to a multicast group
    Send {
        /// The group and port
        #[arg(long)]
        group: SocketAddr,
        /// The address to send from [default: by the route to the group]
        #[arg(long)]
        from: Option<IpAddr>,
        /// Number.
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Bytes in each
        #[arg(long, default_value_t = 4)]
        size: usize,
        /// Milliseconds between two
        #[arg(long, default_value_t = 5)]
        interval_ms: u64,
    },
    /// Join a multicast group and print how many datagrams arrived; with --until-closed also
    /// `joined`, before
    Count {
        /// The group and port
        #[arg(long)]
        group: SocketAddr,
        /// Join (S,G) with this S; without it, (*,G)
        #[arg(long)]
        source: Option<IpAddr>,
        /// The address of the interface to join on
        #[arg(long)]
        interface: IpAddr,
        /// Do not join: only listen on the port
        #[arg(long)]
        no_join: bool,
        /// End when so many have come
        #[arg(long)]
        enough: Option<u64>,
        /// Duration, in milliseconds
        #[arg(long, default_value_t = 1000)]
        for_ms: u64,
    },
    /// Join a multicast group and print a digest of each datagram, in order; with --until-closed
    /// `joined` before
    Record {
        /// The group and port
        #[arg(long)]
        group: SocketAddr,
        /// Join (S,G) with this S; without it, (*,G)
        #[arg(long)]
        source: Option<IpAddr>,
        /// The address of the interface to join on
        #[arg(long)]
        interface: IpAddr,
        /// Duration, in milliseconds
        #[arg(long, default_value_t = 1000)]
        for_ms: u64,
    },
    /// Answer each datagram with the address that it came from
    Tell {
        /// Address to listen on
        #[arg(long)]
        listen: SocketAddr,
        /// Duration, in milliseconds
        #[arg(long, default_value_t = 1000)]
        for_ms: u64,
    },
    /// Ask such a place from one socket again and again, and print each new answer
    Ask {
        /// The place
        #[arg(long)]
        to: SocketAddr,
        /// Duration, in milliseconds
        #[arg(long, default_value_t = 1000)]
        for_ms: u64,
    },
    /// Send datagrams that no service can use
    Garbage {
        /// Destination, a group or a single address
        #[arg(long)]
        to: SocketAddr,
        /// Number.
        #[arg(long, default_value_t = 300)]
        count: u32,
        /// Rate per second
        #[arg(long, default_value_t = 300)]
        per_second: u32,
        /// A Flow ID (16 hexadecimal digits) to put into some of them
        #[arg(long, value_parser = garbage::flow_id)]
        flow: Option<[u8; 8]>,
        /// Seed of the random bytes
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Make one shard of a source fail, whichever gets the datagram
    Poison {
        /// Address of the source
        #[arg(long)]
        to: SocketAddr,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let until_closed = arguments.until_closed;
    let until = |time| {
        if until_closed {
            StopCondition::closed_or_after(time)
        } else {
            StopCondition::after(time)
        }
    };
    let joined = || {
        if until_closed {
            println!("{JOINED}");
        }
    };
    match arguments.what {
        Action::Send {
            group,
            from,
            count,
            size,
            interval_ms,
        } => {
            let interval = Duration::from_millis(interval_ms);
            // The count ends it.
            let until = until(Duration::from_secs(24 * 3600));
            probing::send_numbered(group, from, count, size, interval, &until)
        }
        Action::Count {
            group,
            source,
            interface,
            no_join,
            enough,
            for_ms,
        } => {
            let until = until(Duration::from_millis(for_ms));
            let arrived = probing::count_arrivals(
                group, source, interface, !no_join, &until, enough, joined,
            )?;
            println!("{arrived}");
            Ok(())
        }
        Action::Record {
            group,
            source,
            interface,
            for_ms,
        } => {
            let until = until(Duration::from_millis(for_ms));
            for digest in probing::record(group, source, interface, &until, joined)? {
                println!("{digest}");
            }
            Ok(())
        }
        Action::Tell { listen, for_ms } => {
            probing::echo_origins(listen, &until(Duration::from_millis(for_ms)))
        }
        Action::Ask { to, for_ms } => {
            let until = until(Duration::from_millis(for_ms));
            probing::ask_origin(to, &until, |answer| println!("{answer}"))
        }
        Action::Garbage {
            to,
            count,
            per_second,
            flow,
            seed,
        } => garbage::send_garbage(to, count, per_second, flow, seed),
        Action::Poison { to } => garbage::send_poison(to),
    }
}
