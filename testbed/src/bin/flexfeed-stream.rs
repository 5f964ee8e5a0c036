//! Both ends of a stream, to be run inside a lab's nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use flexicast_tokio::receiver::RelayName;
use testbed::stream::{ReceiverSettings, SourceSettings, publish, receive, send, sink};

/// Drives the transport with numbered messages at a steady rate.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-stream", version)]
struct Arguments {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Publish, when enough receivers are members
    Source {
        /// Address that receivers connect to
        #[arg(long, default_value = "0.0.0.0:4433")]
        listen: SocketAddr,
        /// Destination of the flow
        #[arg(long)]
        group: SocketAddr,
        /// The address of the interface it leaves by
        #[arg(long)]
        interface: IpAddr,
        /// Number of receivers that have to be members
        #[arg(long)]
        receivers: usize,
        /// Number of messages
        #[arg(long)]
        count: u64,
        /// Bytes of each message
        #[arg(long, default_value_t = 1_100)]
        size: usize,
        /// Bits of messages per second
        #[arg(long, default_value_t = 5_000_000)]
        rate: u64,
        /// Time that flow data may stay unacknowledged, in ms
        #[arg(long, default_value_t = 150)]
        fall_back_ms: u64,
        /// Maximum acknowledgement delay of receivers, in ms
        #[arg(long, default_value_t = 25)]
        ack_delay_ms: u64,
        /// Bits per second that the flow and each session may send
        #[arg(long, default_value_t = 50_000_000)]
        pace: u64,
        /// Copy the flow's packets to receivers that multicast does not reach
        #[arg(long)]
        replicate: bool,
        /// A folder for qlog files
        #[arg(long)]
        qlog: Option<PathBuf>,
        /// The report to write
        #[arg(long)]
        report: PathBuf,
        /// Break a promise: members stay on a flow that does not reach them
        #[arg(long)]
        fallback_off: bool,
        /// Break a promise: what the flow lost is not repaired
        #[arg(long)]
        repair_off: bool,
        /// Let the flow's rate follow the receivers' acknowledgements
        #[arg(long)]
        rate_control: bool,
    },
    /// Send by TCP until the connection ends
    Send {
        /// Address of a sink
        #[arg(long)]
        to: SocketAddr,
    },
    /// Accept one TCP connection, and write down how much arrived when
    Sink {
        /// Address to listen at
        #[arg(long)]
        listen: SocketAddr,
        /// The file to write
        #[arg(long)]
        report: PathBuf,
    },
    /// Receive until SIGTERM, and write down what arrives when
    Receiver {
        /// host:port of the source
        #[arg(long)]
        server: String,
        /// The name that the source shows
        #[arg(long)]
        name: String,
        /// The file to write
        #[arg(long)]
        records: PathBuf,
        /// AMT relays to use, with commas between them
        #[arg(long, value_delimiter = ',')]
        relay: Vec<RelayName>,
        /// Legs to take the flow by: one or two
        #[arg(long, default_value = "one")]
        redundancy: String,
        /// Break a promise: what arrives twice is delivered twice
        #[arg(long)]
        dedupe_off: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().what {
        Action::Source {
            listen,
            group,
            interface,
            receivers,
            count,
            size,
            rate,
            fall_back_ms,
            ack_delay_ms,
            pace,
            replicate,
            qlog,
            report,
            fallback_off,
            repair_off,
            rate_control,
        } => tokio::runtime::Runtime::new()?.block_on(publish(SourceSettings {
            listen,
            group,
            interface,
            receivers,
            count,
            size,
            rate_bps: rate,
            fall_back: Duration::from_millis(fall_back_ms),
            ack_delay: Duration::from_millis(ack_delay_ms),
            pace_bps: pace,
            replicate,
            qlog,
            report,
            fall_back_off: fallback_off,
            repair_off,
            rate_control,
        })),
        Action::Send { to } => send(to),
        Action::Sink { listen, report } => sink(listen, &report),
        // There are many of them on one machine: one thread each.
        Action::Receiver {
            server,
            name,
            records,
            relay,
            redundancy,
            dedupe_off,
        } => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(receive(ReceiverSettings {
                server,
                name,
                records,
                relays: relay,
                two_legs: redundancy == "two",
                dedupe_off,
            })),
    }
}
