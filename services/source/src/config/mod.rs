//! Settings of the source: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. `channels` has channels and
//! feeds, `values`, `groups` and `relays` the parsers, `resolve` what is checked together.

// The help texts are no Markdown.
#![allow(rustdoc::bare_urls, rustdoc::broken_intra_doc_links)]

mod channels;
mod groups;
mod relays;
mod resolve;
mod values;

#[cfg(test)]
pub(crate) mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use console::config::{prefix, public_url};
use flexicast_tokio::source::RatePolicy;
use ipnet::IpNet;
use service::link::{Pin, channel};
use service::logging::LogSettings;
use service::settings::{Keys, Table, table};
use service::values::{HostAddresses, listen, machine_name, name, one_of, times, whole};
use url::Url;

pub use channels::{
    ChannelArguments, ChannelSettings, FeedAddress, FeedArguments, FeedSettings, redacted,
};
pub use groups::{Groups, groups};
pub use relays::Relay;
pub use resolve::{Resolved, resolve};
pub use values::{PublicAddress, age};

use channels::ChannelTable;
use relays::relays;
use values::rate;

/// Values of `--rate-policy`.
const POLICIES: &[(&str, RatePolicy)] = &[
    ("tcp-friendly", RatePolicy::TcpFriendly),
    ("cubic-min", RatePolicy::CubicMin),
    ("fixed", RatePolicy::Fixed),
];

/// Default address of the console.
const CONSOLE: &str = "127.0.0.1:9470";

/// Settings of the source, checked as far as possible without the system. The descriptions are the
/// help.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// TOML file with settings, named as the variables are, in lower case and without FLEXFEED_,
    /// and with [[channel]] and [[channel.feed]] tables
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Channels as they are given.
    #[command(flatten)]
    pub given: GivenChannels,
    /// Channels of flags, environment and file; there may be more in the database, and none here.
    #[arg(skip)]
    pub channels: Vec<ChannelSettings>,
    /// Settings of feeds.
    #[command(flatten)]
    pub feeds: FeedDefaults,
    /// Folder of the certificate, the keys, the database and the enrolment link
    #[arg(long, value_name = "DIR", default_value = "./flexfeed-source")]
    pub data: PathBuf,
    /// Database: sqlite://PATH or postgresql://USER:PASSWORD@HOST/NAME; the variable DATABASE_URL
    /// does the same [default: sqlite://DIR/flexfeed.db]
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    #[arg(value_parser = store::check_url)]
    pub database_url: Option<String>,
    /// UDP address and port that receivers connect to
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:4433")]
    #[arg(value_parser = |text: &str| listen(text, 4433))]
    pub listen: SocketAddr,
    /// Public name or address of this machine for enrolment links, with a port if it differs from
    /// that of --listen [default: 127.0.0.1]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = values::public_address)]
    pub public_address: Option<PublicAddress>,
    /// Settings of flows.
    #[command(flatten)]
    pub flows: FlowDefaults,
    /// Retention of channels that have none of their own.
    #[command(flatten)]
    pub keep: Keep,
    /// Address and port of /healthz, /readyz, /metrics and /status.json
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8090")]
    #[arg(value_parser = |text: &str| listen(text, 8090))]
    pub http: SocketAddr,
    /// Console in this process.
    #[command(flatten)]
    pub console: Console,
    /// Certificate of your own (PEM, with its chain); read again when it changes and on SIGHUP
    /// [default: DIR/cert.pem, made at the first start]
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Pin of the key that will be used next, sha256:…: added to enrolment links, so that receivers
    /// know both keys before the change
    #[arg(long, value_name = "PIN")]
    pub next_pin: Option<Pin>,
    /// File of the key that signs updates, 32 secret bytes; several sources on one database need
    /// the same [default: DIR/signing.key, made at the first start]
    #[arg(long, value_name = "FILE")]
    pub signing_key: Option<PathBuf>,
    /// Time at shutdown to wait for acknowledgements of what is published before connections are
    /// closed; 0 for none
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = times("0s", "10m", true))]
    pub drain_time: Duration,
    /// Name of this source where several share one database [default: this machine's name]
    #[arg(long, value_name = "NAME", value_parser = name)]
    #[arg(default_value_t = machine_name("flexfeed-source"), hide_default_value = true)]
    pub holder_name: String,
    /// Write qlog files of connections and flows to this folder, for tools such as qvis; their size
    /// is unbounded, and they reveal what was sent to each receiver and when
    #[arg(long, value_name = "DIR")]
    pub qlog: Option<PathBuf>,
    /// Log.
    #[command(flatten)]
    pub log: LogSettings,
    /// Warnings about settings that are valid but probably not meant.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

/// Channels as they are given.
#[derive(Debug, Clone, Args)]
pub struct GivenChannels {
    /// Feed of the first channel: Atom, RSS or JSON Feed, by http or https. Its address is shown to
    /// receivers with its query, which must hold no secret; a user name and password are left out.
    /// More feeds come from the configuration file, or with `flexfeed-source feed add`
    #[arg(long, value_name = "URL", hide_env_values = true, value_parser = FeedAddress::parse)]
    feed: Option<FeedAddress>,
    /// Name of the first channel: letters, digits, '-', '_' and '.'. The first channel exists only
    /// if this or --feed is given
    #[arg(long, value_name = "NAME", default_value = "lore", value_parser = channel)]
    channel: String,
    /// Multicast groups of the first channel's flow: an IPv4 address and port, an IPv6 one in
    /// brackets, or both separated by a comma; '' for no multicast. Channels without groups of
    /// their own get consecutive ones: 232.70.70.2 after 232.70.70.1
    #[arg(long, value_name = "LIST", default_value = "232.70.70.1:4434", value_parser = groups)]
    pub group: Groups,
    /// Rotate the key of the first channel's flow at each join, so that new members cannot decrypt
    /// earlier packets
    #[arg(long)]
    private: bool,
    /// Further channel with its own feed and flow: NAME,feed=URL, then ,group=LIST, ,rate=RATE,
    /// ,private, ,packet-authentication=TYPE, ,fec=FEC and ,deadline=TIME as needed. Can be
    /// repeated; the variable separates channels by white space
    #[arg(long, value_name = "SPEC", hide_env_values = true)]
    #[arg(value_delimiter = ' ', value_parser = channels::spec)]
    channel_spec: Vec<ChannelTable>,
    /// Channels of the file.
    #[arg(long, hide = true, value_name = "channel", value_parser = table::<ChannelTable>)]
    channels: Vec<ChannelTable>,
}

/// Settings of feeds.
#[derive(Debug, Clone, Args)]
pub struct FeedDefaults {
    /// Allow all feeds to be in private, loopback and similar networks
    #[arg(long = "allow-private-feed")]
    pub allow_private: bool,
    /// Fixed time between two polls of each feed, in seconds or with a unit: 500ms, 20s, 5m, 1h;
    /// overrides the hints of the server [default: by the feed's rate, within the next two]
    #[arg(long, value_name = "TIME", value_parser = values::interval)]
    #[arg(conflicts_with_all = ["min_poll_interval", "max_poll_interval"])]
    poll_interval: Option<Duration>,
    /// Shortest time between two polls of a feed, also after a suspected gap
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = values::interval)]
    min_poll_interval: Duration,
    /// Longest time between two polls of a feed, unless its server asks for more
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::interval)]
    max_poll_interval: Duration,
    /// Contact URL sent in the User-Agent header, for the operators of feeds: a page, or
    /// mailto:NAME@HOST
    #[arg(long, value_name = "URL", value_parser = feed::fetch::check_contact)]
    pub contact: Option<String>,
}

/// Settings of flows.
#[derive(Debug, Clone, Args)]
pub struct FlowDefaults {
    /// Addresses of the interfaces that flows leave by: IPv4, IPv6, or both separated by a comma
    /// [default: by the route to the group]
    #[arg(long = "flow-source", value_name = "LIST")]
    pub sources: Option<HostAddresses>,
    /// Announce any-source groups, (*,G), instead of source-specific ones, (S,G)
    #[arg(long)]
    pub asm: bool,
    /// TTL of the packets of flows, in hops; 0 keeps multicast on this machine, as for an AMT relay
    /// on the same machine, which must then use --udp-ports
    #[arg(long = "multicast-ttl", value_name = "HOPS", default_value = "64")]
    #[arg(value_parser = whole::<u32>(0..=255))]
    pub ttl: u32,
    /// AMT relays announced to receivers, the preferred ones first: HOST or HOST:PORT as receivers
    /// reach them, followed by =HOST:PORT if this machine reaches them elsewhere. A | separates
    /// relays of equal preference, which receivers share. Each is probed every 5 s, and only those
    /// that answer are announced
    #[arg(long = "amt-relay", visible_alias = "relay", value_name = "LIST", value_parser = relays)]
    pub relays: Option<std::vec::Vec<Relay>>,
    /// Send no copies of flows to receivers that multicast does not reach; they get everything on
    /// their own connections, which takes more bandwidth
    #[arg(long = "no-replicate", action = ArgAction::SetFalse)]
    pub replicate: bool,
    /// Highest rate of a flow, and of each receiver's own connection, in bit/s: 500k, 10M, 1G
    #[arg(long = "rate", value_name = "RATE", default_value = "10M", value_parser = rate)]
    pub rate_bps: u64,
    /// Highest rate of the updates on all receivers' own connections together; bounds a mass
    /// fall-back
    #[arg(long = "unicast-rate", value_name = "RATE", default_value = "200M", value_parser = rate)]
    pub unicast_rate_bps: u64,
    /// Policy by which the rate of a flow follows what its members receive: tcp-friendly, or
    /// cubic-min for the slowest member's CUBIC window, or fixed to send always at --rate, for
    /// networks with reserved capacity
    #[arg(long, value_name = "POLICY", default_value = "tcp-friendly")]
    #[arg(value_parser = one_of(POLICIES))]
    pub rate_policy: RatePolicy,
    /// Rate in bit/s below which no member may hold a flow for more than two seconds [default: half
    /// of what the channel's members could get, as their median]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub min_rate: Option<u64>,
    /// Share of a flow's packets that a member may lose before it is moved to unicast, in percent
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = whole::<u8>(1..=90))]
    pub max_loss: u8,
    /// Largest UDP payload of the flows' packets, in bytes, which they have if the paths of all
    /// members take it; 1180 or less is not exceeded at all [default: what the interfaces of the
    /// flow take]
    #[arg(long, value_name = "BYTES", value_parser = whole::<usize>(576..=8972))]
    pub max_packet_size: Option<usize>,
    /// Maximum number of receivers of each channel that the flow's packets are replicated to
    #[arg(long, value_name = "NUMBER", default_value = "2000")]
    #[arg(value_parser = whole::<usize>(0..=100_000))]
    pub max_replicas: usize,
    /// Number of threads that send replicated packets
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = whole::<usize>(1..=64))]
    pub replication_threads: usize,
    /// Number of threads that the receivers' connections are divided among [default: one for each
    /// processor, 8 at most]
    #[arg(long, value_name = "NUMBER", value_parser = whole::<usize>(1..=128))]
    pub shards: Option<usize>,
    /// Longest delay of receivers' acknowledgements, in ms
    #[arg(long = "ack-delay-ms", value_name = "MS", default_value = "25")]
    #[arg(value_parser = values::ms(1..=1000))]
    pub ack_delay: Duration,
    /// Time without acknowledgements, in ms, after which a member falls back to unicast
    #[arg(long = "fall-back-ms", value_name = "MS", default_value = "150")]
    #[arg(value_parser = values::ms(10..=60_000))]
    pub fall_back: Duration,
    /// Time between heartbeats of an idle flow, in ms
    #[arg(long = "heartbeat-ms", value_name = "MS", default_value = "1000")]
    #[arg(value_parser = values::ms(50..=60_000))]
    pub heartbeat: Duration,
}

/// Retention of a channel's updates; `None` is no limit, and of two the stricter one holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Keep {
    /// Keep the last N updates of each channel for receivers that were away; 0 keeps all
    #[arg(long = "retention", value_name = "N", default_value = "0", value_parser = values::count)]
    pub count: std::option::Option<u64>,
    /// Keep updates of each channel for this long: 12h, 30d, 8w [default: unlimited]
    #[arg(long = "retention-age", value_name = "AGE", value_parser = values::age)]
    pub age: Option<Duration>,
}

/// A console in this process.
#[derive(Debug, Clone, Args)]
pub struct Console {
    /// Serve the operators' console in this process: an API and a dashboard for browsers, at
    /// 127.0.0.1:9470 or the address given. Keep it on this machine unless a proxy with https is in
    /// front
    #[arg(long = "console", value_name = "IP:PORT", num_args = 0..=1)]
    #[arg(default_value = "false", hide_default_value = true, default_missing_value = CONSOLE)]
    #[arg(value_parser = values::console)]
    pub at: std::option::Option<SocketAddr>,
    /// Address at which browsers reach the console of --console behind a proxy:
    /// https://console.example.org
    #[arg(long = "console-public-url", value_name = "URL", value_parser = public_url)]
    pub public_url: Option<Url>,
    /// Proxies in front of the console of --console, as addresses or prefixes, whose
    /// X-Forwarded-For and X-Forwarded-Proto headers are trusted
    #[arg(long = "console-trusted-proxy", value_name = "LIST")]
    #[arg(value_delimiter = ',', value_parser = prefix)]
    pub trusted_proxies: Vec<IpNet>,
}

/// The times between two polls of a feed; both the same if they do not adapt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intervals {
    /// Never sooner.
    pub min: Duration,
    /// Never later.
    pub max: Duration,
}

/// The settings of all places.
pub const TABLE: Table = Table {
    hidden: |_, _| "***".to_owned(),
    empty: "group",
    ..Table::of::<Config>("FLEXFEED_", &[("channels", CHANNEL)])
};

const CHANNEL: Keys = Keys::of::<ChannelTable>(&[("feed", Keys::of::<FeedSettings>(&[]))]);

impl Keep {
    /// So many are all: what a channel says where others keep less.
    pub const ALL: u64 = i64::MAX as u64;
}

impl FeedDefaults {
    /// Returns the intervals of feeds that have none of their own.
    pub fn poll(&self) -> Intervals {
        let fixed = self.poll_interval;
        Intervals {
            min: fixed.unwrap_or(self.min_poll_interval),
            max: fixed.unwrap_or(self.max_poll_interval),
        }
    }

    /// Returns the intervals of a feed that asks for these. One that asks for less than everything
    /// else does gets it.
    pub fn intervals(&self, min: Option<Duration>, max: Option<Duration>) -> Intervals {
        let poll = self.poll();
        Intervals {
            min: min.unwrap_or_else(|| max.map_or(poll.min, |max| poll.min.min(max))),
            max: max.unwrap_or(poll.max).max(min.unwrap_or_default()),
        }
    }
}
