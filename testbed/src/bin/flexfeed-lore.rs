//! The feed generator as a program, to be run inside a lab's node.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use testbed::http;
use testbed::lore::{Book, Growth, Hour, Mode, Origin, Play, Recorded, serve};

/// A feed like lore's that grows on command.
///
/// Controls while it runs: POST /grow?n=5, POST /edit?n=1, POST /rate?r=2.5, POST
/// /mode?m=feed|html|garbage|error, POST /play, GET /state.
#[derive(Debug, Parser)]
#[command(
    name = "flexfeed-lore",
    version,
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    client: Option<Client>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Client {
    /// Fetch a URL and print what it answers; exit status 1 unless the answer is a success
    Get {
        /// http://ADDRESS:PORT/path
        url: String,
    },
    /// Send an empty POST and print the answer
    Post {
        /// http://ADDRESS:PORT/path
        url: String,
    },
}

#[derive(Debug, Args)]
struct Server {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:8070")]
    listen: SocketAddr,
    /// Entries shown from the start (at most 25)
    #[arg(long, default_value_t = 5)]
    initial: u32,
    /// Entries added each second
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Number of entries the rate adds at once
    #[arg(long, default_value_t = 1)]
    burst: u32,
    /// Stop adding when there are this many in all
    #[arg(long)]
    count: Option<u64>,
    /// Seed of the generated mails
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write each new or changed entry to this file, as a JSON line, before it is shown
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// Additions wait while this many have not been fetched yet; 0 lets entries pass unseen
    #[arg(long, default_value_t = 10)]
    max_unseen: u64,
    /// Reveal the entries of this recorded Atom document, oldest first, instead of made-up ones
    #[arg(long, conflicts_with = "follow")]
    serve_file: Option<PathBuf>,
    /// Show this Atom document, which another program keeps up to date
    #[arg(long)]
    follow: Option<PathBuf>,
    /// After POST /play, play an hour of a busy archive so many times faster than it would happen
    #[arg(long, value_name = "SPEED", conflicts_with_all = ["serve_file", "follow"])]
    hour: Option<f64>,
    /// Begin with a bot-check page instead of the feed
    #[arg(long)]
    html: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.client {
        Some(Client::Get { url }) => print_answer("GET", &url),
        Some(Client::Post { url }) => print_answer("POST", &url),
        None => run_server(arguments.server),
    }
}

fn print_answer(method: &str, url: &str) -> Result<()> {
    let response = http::request(method, url)?;
    std::io::stdout().write_all(&response.body)?;
    if !(200..300).contains(&response.status) {
        bail!("{url}: status {}", response.status);
    }
    Ok(())
}

fn run_server(server: Server) -> Result<()> {
    let origin = match (server.serve_file, server.follow) {
        (Some(path), _) => Origin::Recorded(Recorded::read(&path)?),
        (None, Some(path)) => Origin::Followed(path),
        (None, None) => Origin::Generated(server.seed),
    };
    let ledger = server.ledger.as_deref();
    let mut book = Book::open(origin, server.initial, server.max_unseen, ledger)?;
    if server.html {
        book.mode = Mode::Html;
    }
    let growth = Growth {
        per_second: server.rate,
        burst: server.burst,
        total: server.count.unwrap_or(u64::MAX),
    };
    let hour = server.hour.map(|speed| Play {
        hour: Hour::made_up(server.seed),
        speed: speed.clamp(0.1, 1_000.0),
    });
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(book, server.listen, growth, hour))
}
