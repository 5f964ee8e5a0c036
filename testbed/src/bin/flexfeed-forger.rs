//! A receiver that is admitted, and forges packets of the flow whose key it was given.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Parser;
use flexfeed_receiver::link::Link;
use testbed::forger::{Attack, forge};
use testbed::until::{JOINED, StopCondition};

/// Enrols, and forges packets of each kind in turn, then of all kinds together.
#[derive(Debug, Parser)]
#[command(name = "flexfeed-forger", version)]
struct Arguments {
    /// The enrolment link
    #[arg(long, env = "FLEXFEED_LINK", hide_env_values = true)]
    link: String,
    /// The address of the interface to join the group on, and to send from
    #[arg(long)]
    interface: Ipv4Addr,
    /// Milliseconds of each kind of forgery
    #[arg(long, default_value_t = 1_500)]
    each_ms: u64,
    /// Milliseconds of all kinds together
    #[arg(long, default_value_t = 3_000)]
    all_ms: u64,
    /// End when standard input is closed, at the latest after ten minutes
    #[arg(long)]
    until_closed: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (link, _) = Link::parse(&arguments.link).map_err(|error| anyhow!("{error}"))?;
    let attack = Attack {
        interface: arguments.interface,
        each: Duration::from_millis(arguments.each_ms),
        all: Duration::from_millis(arguments.all_ms),
    };
    let longest = Duration::from_secs(600);
    let until = match arguments.until_closed {
        true => StopCondition::closed_or_after(longest),
        false => StopCondition::after(longest),
    };
    forge(
        &link,
        &attack,
        &until,
        || println!("{JOINED}"),
        |line| println!("{line}"),
    )
}
