//! Settings of the source: flags win over environment variables, those over the configuration file,
//! and that over the defaults. [`settings`] declares every setting once.

mod channels;
mod command_line;
mod environment;
mod file;
mod groups;
mod pins;
mod relays;
mod resolve;
mod settings;
mod values;

#[cfg(test)]
pub(crate) mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use url::Url;

pub use channels::{ChannelSettings, FeedAddress, MAX_CHANNELS, redacted};
pub use command_line::{command, with_settings};
pub use environment::Environment;
pub use groups::{FlowSources, Groups};
pub use pins::show as show_pin;
pub use relays::Relay;
pub use resolve::{Place, Resolved, Shown, resolve};
pub use service::logging::LogFormat;
pub use values::PublicAddress;

/// Parsers of single values, also for commands.
pub mod parse {
    pub use super::groups::groups;
    pub use super::values::{age, channel, interval, keep, rate};
}

/// Prefix of the variables.
const PREFIX: &str = "FLEXFEED_";

/// Names a configuration file.
const CONFIG_FLAG: &str = "config";
const CONFIG_VARIABLE: &str = "FLEXFEED_CONFIG";

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
    /// Those from flags, environment and file; there may be more in the database, and there may be
    /// none at all.
    pub channels: Vec<ChannelSettings>,
    /// Groups from which those of channels without groups of their own are counted.
    pub first_groups: Groups,
    /// Lets all feeds' addresses lead to private networks.
    pub allow_private_feed: bool,
    /// Of feeds that have none of their own.
    pub poll: Intervals,
    /// Contact URL or address in the User-Agent header.
    pub contact: Option<String>,
    /// The data folder.
    pub data: PathBuf,
    /// The database; `None` for the one in the data folder.
    pub database_url: Option<String>,
    /// Address that receivers connect to.
    pub listen: SocketAddr,
    /// Address in enrolment links; `None` if it was not given.
    pub public_address: Option<PublicAddress>,
    /// Source addresses of flows.
    pub flow_sources: FlowSources,
    /// Groups are announced as (*,G), not as (S,G).
    pub asm: bool,
    /// TTL of the packets of flows, in hops; with 0 they do not leave this machine.
    pub multicast_ttl: u32,
    /// AMT relays announced to receivers.
    pub relays: Vec<Relay>,
    /// Flows are copied to single receivers that ask for it.
    pub replicate: bool,
    /// Of channels that have no retention of their own.
    pub keep: Keep,
    /// Of the status pages.
    pub http: SocketAddr,
    /// The console in this process, if there is to be one.
    pub console: Option<Console>,
    /// Of each receiver's own connection, and of flows that have no rate of their own, in bit/s.
    pub rate_bps: u64,
    /// Of all receivers' own connections together.
    pub unicast_rate_bps: u64,
    /// `None` for the one in the data folder.
    pub certificate: Option<OwnCertificate>,
    /// A second pin for enrolment links.
    pub next_pin: Option<[u8; 32]>,
    /// Longest delay of receivers' acknowledgements.
    pub ack_delay: Duration,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Of an idle flow.
    pub heartbeat: Duration,
    /// Time limit for the farewell.
    pub drain_time: Duration,
    /// Name of this source among several on one database.
    pub holder_name: String,
    /// A folder for qlog files.
    pub qlog: Option<PathBuf>,
    /// Form of log lines.
    pub log_format: LogFormat,
    /// Log filter; `None` for RUST_LOG or the default.
    pub log_level: Option<String>,
    /// Warnings about settings that are valid but probably not meant.
    pub warnings: Vec<String>,
}

/// A console in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Console {
    /// HTTP address.
    pub listen: SocketAddr,
    /// The address at which browsers reach it.
    pub public_url: Option<Url>,
    /// Proxies whose word counts for where a request came from.
    pub trusted_proxies: Vec<IpNet>,
}

impl Config {
    /// The intervals of a feed that asks for these. One that asks for less than everything else
    /// does gets it.
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
