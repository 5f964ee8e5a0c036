//! A slow cable for the testbed's networks, and what proves it.

use std::io::{Write, stdin, stdout};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use testbed::delay::{Trip, answer, carry, send_trips};

/// Delays frames between two interfaces, and measures round trips.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-delay", version)]
struct Arguments {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Carry frames between two interfaces of this network namespace until standard input ends;
    /// then print what was carried, as JSON
    Carry {
        /// The two interfaces
        #[arg(num_args = 2, required = true)]
        interfaces: Vec<String>,
        /// Delay of a frame, each way
        #[arg(long, default_value_t = 10)]
        delay_ms: u64,
        /// Number of bytes that may be under way, each way
        #[arg(long, default_value_t = 16 << 20)]
        limit: usize,
    },
    /// Send every datagram back
    Answer {
        /// The address and port
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Send datagrams to an echo server; print answers and round-trip times as JSON
    Ask {
        /// Address of the echo server
        #[arg(long)]
        to: SocketAddr,
        /// Number.
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Bytes of payload
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Microseconds between two
        #[arg(long, default_value_t = 10_000)]
        interval_us: u64,
        /// Milliseconds without an answer after which the others are given up
        #[arg(long, default_value_t = 1000)]
        patience_ms: u64,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().what {
        Action::Carry {
            interfaces,
            delay_ms,
            limit,
        } => {
            let names = [0, 1].map(|at| interfaces.get(at).map_or("", String::as_str));
            let up = || {
                writeln!(stdout(), "up")?;
                stdout().flush()
            };
            let delay = Duration::from_millis(delay_ms);
            let report = carry(names, delay, limit, &mut stdin(), up)?;
            println!("{}", serde_json::to_string(&report)?);
        }
        Action::Answer { listen } => answer(listen)?,
        Action::Ask {
            to,
            count,
            size,
            interval_us,
            patience_ms,
        } => {
            let trips = send_trips(Trip {
                to,
                count,
                size,
                interval: Duration::from_micros(interval_us),
                patience: Duration::from_millis(patience_ms),
            })?;
            println!("{}", serde_json::to_string(&trips)?);
        }
    }
    Ok(())
}
