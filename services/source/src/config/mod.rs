//! Settings of the source: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. `table` declares every setting
//! once, `resolve` gives each its type, `channels` reads those of flags and file.

mod channels;
mod command_line;
mod groups;
mod pins;
mod relays;
mod resolve;
mod table;
mod values;

#[cfg(test)]
pub(crate) mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use service::logging::LogSettings;
use url::Url;

pub use channels::{ChannelSettings, FeedAddress, MAX_CHANNELS, redacted};
pub use command_line::command;
pub use groups::{FlowSources, Groups};
pub use pins::show as show_pin;
pub use relays::Relay;
pub use resolve::{Resolved, resolve};
pub use table::TABLE;
pub use values::PublicAddress;

/// Parsers of single values, also for commands.
pub mod parse {
    pub use super::groups::groups;
    pub use super::values::{age, channel, interval, keep, rate};
}

/// The times between two polls of a feed; both the same if they do not adapt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intervals {
    /// Never sooner.
    pub min: Duration,
    /// Never later.
    pub max: Duration,
}

/// Retention of a channel's updates; `None` is no limit, and of two the stricter one holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The last so many.
    pub count: Option<u64>,
    /// Those of this time.
    pub age: Option<Duration>,
}

impl Keep {
    /// So many are all: what a channel says where others keep less.
    pub const ALL: u64 = i64::MAX as u64;
}

/// Files of an own certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnCertificate {
    /// PEM, with its chain.
    pub cert: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// Configuration of the source, checked as far as possible without the system.
#[derive(Debug, Clone)]
pub struct Config {
    /// Channels of flags, environment and file; there may be more in the database, and none here.
    pub channels: Vec<ChannelSettings>,
    /// Groups from which those of channels without groups of their own are counted.
    pub first_groups: Groups,
    /// Retention of channels that have none of their own.
    pub keep: Keep,
    /// Settings of feeds.
    pub feeds: FeedDefaults,
    /// Settings of flows.
    pub flows: FlowDefaults,
    /// Data folder.
    pub data: PathBuf,
    /// Database; `None` for the one in the data folder.
    pub database_url: Option<String>,
    /// Address that receivers connect to.
    pub listen: SocketAddr,
    /// Address in enrolment links; `None` if it was not given.
    pub public_address: Option<PublicAddress>,
    /// Rate of all receivers' own connections together, in bit/s.
    pub unicast_rate_bps: u64,
    /// Certificate; `None` for the one in the data folder.
    pub certificate: Option<OwnCertificate>,
    /// A second pin for enrolment links.
    pub next_pin: Option<[u8; 32]>,
    /// Address of the status pages.
    pub http: SocketAddr,
    /// Console in this process.
    pub console: Option<Console>,
    /// Time limit for the farewell.
    pub drain_time: Duration,
    /// Name of this source among several on one database.
    pub holder_name: String,
    /// A folder for qlog files.
    pub qlog: Option<PathBuf>,
    /// Log.
    pub log: LogSettings,
    /// Warnings about settings that are valid but probably not meant.
    pub warnings: Vec<String>,
}

/// Settings of feeds.
#[derive(Debug, Clone)]
pub struct FeedDefaults {
    /// Whether all feeds' addresses may lead to private networks.
    pub allow_private: bool,
    /// Times between polls of feeds that have none of their own.
    pub poll: Intervals,
    /// Contact URL or address in the User-Agent header.
    pub contact: Option<String>,
}

/// Settings of flows.
#[derive(Debug, Clone)]
pub struct FlowDefaults {
    /// Source addresses.
    pub sources: FlowSources,
    /// Whether groups are announced as (*,G), not as (S,G).
    pub asm: bool,
    /// TTL of the packets, in hops; with 0 they do not leave this machine.
    pub ttl: u32,
    /// AMT relays announced to receivers.
    pub relays: Vec<Relay>,
    /// Whether flows are copied to single receivers that ask for it.
    pub replicate: bool,
    /// Rate of each receiver's own connection, and of flows that have none of their own, in bit/s.
    pub rate_bps: u64,
    /// Longest delay of receivers' acknowledgements.
    pub ack_delay: Duration,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Heartbeat of an idle flow.
    pub heartbeat: Duration,
}

/// A console in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Console {
    /// HTTP address.
    pub listen: SocketAddr,
    /// Address at which browsers reach it.
    pub public_url: Option<Url>,
    /// Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
}

impl FeedDefaults {
    /// Returns the intervals of a feed that asks for these. One that asks for less than everything
    /// else does gets it.
    pub fn intervals(&self, min: Option<Duration>, max: Option<Duration>) -> Intervals {
        match (min, max) {
            (Some(min), Some(max)) => Intervals {
                min,
                max: max.max(min),
            },
            (Some(min), None) => Intervals {
                min,
                max: self.poll.max.max(min),
            },
            (None, Some(max)) => Intervals {
                min: self.poll.min.min(max),
                max,
            },
            (None, None) => self.poll,
        }
    }
}
