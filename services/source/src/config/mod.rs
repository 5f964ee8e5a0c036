//! The command line and the environment: every flag is also a variable `FLEXFEED_<FLAG>`.

mod channels;
mod groups;
mod values;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, RangedU64ValueParser, Resettable};
use clap::error::ErrorKind;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, ValueEnum};

use crate::sabotage;

pub use channels::{ChannelSettings, FeedAddress};
pub use groups::{FlowSources, Groups};
pub use values::PublicAddress;

/// With fewer updates kept, even receivers that are away for moments may miss some.
const FEW_KEPT: u64 = 100;

/// What the variables of all settings begin with.
const PREFIX: &str = "FLEXFEED_";

const EXAMPLES: &str = "\
Examples:
  Push the Linux kernel's lists to receivers on this machine:
    flexfeed-source --feed https://lore.kernel.org/all/new.atom

  Serve receivers elsewhere, which reach this machine as feeds.example.org, UDP port 4433:
    flexfeed-source --feed https://example.org/feed.atom --public-address feeds.example.org

  By IPv4 and IPv6 multicast, and a second channel beside the first:
    flexfeed-source --feed https://example.org/feed.atom --group '232.1.1.1:4434,[ff3e::1]:4434' \
      --channel-spec 'news,feed=https://example.org/news.atom,rate=5M'

  Without multicast and copies, every receiver on its own connection:
    flexfeed-source --feed https://example.org/feed.atom --group '' --no-replicate

The first start makes a certificate and prints an enrolment link for receivers. It stays in
DIR/enrolment-link.";

/// Reads feeds and pushes every new entry to all receivers at once.
#[derive(Parser)]
#[command(name = "flexfeed-source", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Arguments {
    /// Runs the source; this is what happens without it, too
    #[arg(value_name = "run", value_parser = ["run"], hide_possible_values = true)]
    command: Option<String>,

    /// The feed to read: Atom, RSS or JSON Feed, by http or https. Its address is shown to
    /// receivers with its query, which must hold no secret; a user name and password are left out
    #[arg(
        long,
        value_name = "URL",
        env = "FLEXFEED_FEED",
        hide_env_values = true
    )]
    feed: Option<String>,

    /// Lets the feeds' addresses lead to private, loopback and similar networks
    #[arg(long, env = "FLEXFEED_ALLOW_PRIVATE_FEED", value_parser = BoolishValueParser::new())]
    allow_private_feed: bool,

    /// Time between two polls of a feed: seconds, or with a unit: 500ms, 20s, 5m, 1h
    #[arg(long, value_name = "TIME", env = "FLEXFEED_POLL_INTERVAL", default_value = "20",
          value_parser = values::interval)]
    poll_interval: Duration,

    /// Folder of the certificate, the keys, the database and the enrolment link
    #[arg(
        long,
        value_name = "DIR",
        env = "FLEXFEED_DATA",
        default_value = "./flexfeed-source"
    )]
    data: PathBuf,

    /// The database [default: sqlite://DIR/flexfeed.db]
    #[arg(
        long,
        value_name = "URL",
        env = "FLEXFEED_DATABASE_URL",
        hide_env_values = true
    )]
    database_url: Option<String>,

    /// UDP address and port that receivers connect to
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "FLEXFEED_LISTEN",
        default_value = "0.0.0.0:4433"
    )]
    listen: SocketAddr,

    /// How receivers reach this machine, for the enrolment link: a name or address, and a port if
    /// it is another than that of --listen [default: 127.0.0.1]
    #[arg(long, value_name = "HOST[:PORT]", env = "FLEXFEED_PUBLIC_ADDRESS",
          value_parser = values::public_address)]
    public_address: Option<PublicAddress>,

    /// The channel's name: letters, digits, '-', '_' and '.'
    #[arg(long, value_name = "NAME", env = "FLEXFEED_CHANNEL", default_value = "lore",
          value_parser = values::channel)]
    channel: String,

    /// Multicast groups of the channel's flow: an IPv4 address and port, an IPv6 one in brackets,
    /// or both with a comma between; '' for no multicast
    #[arg(long, value_name = "LIST", env = "FLEXFEED_GROUP",
          default_value = "232.70.70.1:4434", value_parser = groups::groups)]
    group: Groups,

    /// Whoever joins the channel's flow cannot decrypt what was sent before: each join begins a new
    /// key
    #[arg(long, env = "FLEXFEED_PRIVATE", value_parser = BoolishValueParser::new())]
    private: bool,

    /// A further channel, with its own feed and flow: NAME,feed=URL, and then ,group=LIST,
    /// ,rate=RATE and ,private as wanted. May be repeated; in the variable, channels are separated
    /// by white space. Without group=, the first channel's groups are counted on: after
    /// 232.70.70.1 comes 232.70.70.2
    #[arg(
        long,
        value_name = "SPEC",
        env = "FLEXFEED_CHANNEL_SPEC",
        hide_env_values = true
    )]
    channel_spec: Vec<String>,

    /// Addresses of the interfaces that flows leave by: an IPv4 one, an IPv6 one, or both with a
    /// comma between [default: by the route to the group]
    #[arg(long, value_name = "LIST", env = "FLEXFEED_FLOW_SOURCE",
          value_parser = groups::flow_sources)]
    flow_source: Option<FlowSources>,

    /// Announces groups for any source, (*,G), instead of for this one, (S,G)
    #[arg(long, env = "FLEXFEED_ASM", value_parser = BoolishValueParser::new())]
    asm: bool,

    /// Sends no copies of flows to single receivers that multicast does not reach; they get
    /// everything on their own connections, which costs more per receiver
    #[arg(long, env = "FLEXFEED_NO_REPLICATE", value_parser = BoolishValueParser::new())]
    no_replicate: bool,

    /// Keeps the last N updates of each channel for receivers that were away; 0 keeps all
    #[arg(
        long,
        value_name = "N",
        env = "FLEXFEED_RETENTION",
        default_value = "0"
    )]
    retention: u64,

    /// Address and port of /healthz, /readyz, /metrics and /status.json
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "FLEXFEED_HTTP",
        default_value = "127.0.0.1:8090"
    )]
    http: SocketAddr,

    /// Highest rate of a flow, and of each receiver's own connection, in bit/s: 500k, 10M, 1G
    #[arg(long, value_name = "RATE", env = "FLEXFEED_RATE", default_value = "10M",
          value_parser = values::rate)]
    rate: u64,

    /// Highest rate of the updates on all receivers' own connections together, for the moment when
    /// many lose a flow at once
    #[arg(long, value_name = "RATE", env = "FLEXFEED_UNICAST_RATE", default_value = "200M",
          value_parser = values::rate)]
    unicast_rate: u64,

    /// How long receivers may collect acknowledgements, in ms
    #[arg(long, value_name = "MS", env = "FLEXFEED_ACK_DELAY_MS", default_value = "25",
          value_parser = RangedU64ValueParser::<u64>::new().range(1..=1000))]
    ack_delay_ms: u64,

    /// A receiver that owes acknowledgements for this long, in ms, gets its updates by unicast
    #[arg(long, value_name = "MS", env = "FLEXFEED_FALL_BACK_MS", default_value = "150",
          value_parser = RangedU64ValueParser::<u64>::new().range(10..=60_000))]
    fall_back_ms: u64,

    /// Time between heartbeats of an idle flow, in ms
    #[arg(long, value_name = "MS", env = "FLEXFEED_HEARTBEAT_MS", default_value = "1000",
          value_parser = RangedU64ValueParser::<u64>::new().range(50..=60_000))]
    heartbeat_ms: u64,

    /// Writes what passes on connections and flows to files in this folder, for tools that read
    /// qlog, such as qvis; they grow without end, and show when what went to whom
    #[arg(long, value_name = "DIR", env = "FLEXFEED_QLOG")]
    qlog: Option<PathBuf>,

    /// How log lines look; they go to standard error
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "FLEXFEED_LOG_FORMAT",
        default_value = "text"
    )]
    log_format: LogFormat,

    /// What is logged: error, warn, info, debug, trace, or directives such as info,feed=debug;
    /// the variable RUST_LOG does the same [default: info]
    #[arg(long, value_name = "LEVEL", env = "FLEXFEED_LOG_LEVEL")]
    log_level: Option<String>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What the source does, checked as far as that needs no system.
#[derive(Debug, Clone)]
pub struct Config {
    /// At least one.
    pub channels: Vec<ChannelSettings>,
    /// Lets feeds' addresses lead to private networks.
    pub allow_private_feed: bool,
    /// Between two polls.
    pub poll_interval: Duration,
    /// The data folder.
    pub data: PathBuf,
    /// The database; `None` for the one in the data folder.
    pub database_url: Option<String>,
    /// Where receivers connect to.
    pub listen: SocketAddr,
    /// What enrolment links say; `None` if it was not given.
    pub public_address: Option<PublicAddress>,
    /// Where flows leave from.
    pub flow_sources: FlowSources,
    /// Groups are announced as (*,G), not as (S,G).
    pub asm: bool,
    /// Flows are copied to single receivers that ask for it.
    pub replicate: bool,
    /// Updates kept of each channel; 0 for all.
    pub retention: u64,
    /// Of the status pages.
    pub http: SocketAddr,
    /// Of each receiver's own connection, in bit/s.
    pub rate_bps: u64,
    /// Of all of them together.
    pub unicast_rate_bps: u64,
    /// How long receivers may hold acknowledgements back.
    pub ack_delay: Duration,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Of an idle flow.
    pub heartbeat: Duration,
    /// A folder for qlog files.
    pub qlog: Option<PathBuf>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, as directives; `None` for RUST_LOG or the default.
    pub log_level: Option<String>,
    /// What is allowed but probably not meant; to be logged.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads the process's command line and environment.
    ///
    /// # Errors
    /// What clap prints: help and version as well as wrong usage.
    pub fn from_command_line() -> Result<Config, clap::Error> {
        let command = Arguments::command().mut_args(without_empty_variable);
        let mut config = Arguments::from_arg_matches(&command.try_get_matches()?)?.check()?;
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        let unknown = unknown_variables(names).into_iter().map(|name| {
            format!("the environment variable {name} is no setting of this program and is ignored")
        });
        config.warnings.extend(unknown);
        Ok(config)
    }
}

/// Those variables that look like settings and are none, such as typing errors, fit for a log line.
fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let command = Arguments::command();
    let known: Vec<_> = command.get_arguments().filter_map(Arg::get_env).collect();
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && name != sabotage::VARIABLE)
        .filter(|name| !known.iter().any(|known| *known == name.as_str()))
        .map(|name| name.escape_debug().to_string())
        .collect();
    unknown.sort();
    unknown
}

/// An empty variable counts as none: container files pass on variables that nobody has set. Only
/// for the group it has a meaning.
fn without_empty_variable(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    if argument.get_id() != "group" && value.is_some_and(|value| value.is_empty()) {
        argument.env(Resettable::Reset)
    } else {
        argument
    }
}

impl Arguments {
    /// The first channel and the further ones.
    fn channels(&self) -> Result<Vec<ChannelSettings>, clap::Error> {
        let given = self.feed.as_deref().map(str::trim);
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return Err(Arguments::command().error(
                ErrorKind::MissingRequiredArgument,
                "which feed? Give its address with --feed URL or FLEXFEED_FEED, for example:\n\n  \
                 flexfeed-source --feed https://lore.kernel.org/all/new.atom",
            ));
        };
        let first = ChannelSettings {
            name: self.channel.clone(),
            feed: FeedAddress::parse(given).map_err(|why| usage(format!("--feed: {why}")))?,
            groups: self.group.clone(),
            rate_bps: self.rate,
            private: self.private,
        };
        let mut all = vec![first.clone()];
        let specs = self.channel_spec.iter().flat_map(|s| s.split_whitespace());
        for (number, spec) in specs.enumerate() {
            let channel = channels::further(spec, number + 1, &first)
                .map_err(|why| usage(format!("--channel-spec: {why}")))?;
            all.push(channel);
        }
        channels::check(&all).map_err(usage)?;
        Ok(all)
    }

    /// Checks what concerns several flags or has to be explained better than clap does.
    fn check(self) -> Result<Config, clap::Error> {
        let channels = self.channels()?;
        if self.fall_back_ms <= self.ack_delay_ms {
            return Err(usage(format!(
                "--fall-back-ms {} must be longer than --ack-delay-ms {}: receivers may hold \
                 acknowledgements back for that long",
                self.fall_back_ms, self.ack_delay_ms
            )));
        }
        if let Some(level) = &self.log_level {
            level
                .parse::<tracing_subscriber::EnvFilter>()
                .map_err(|error| usage(format!("--log-level {level:?}: {error}")))?;
        }
        let database_url = self.database_url.filter(|url| !url.is_empty());
        if let Some(url) = &database_url {
            store::check_url(url).map_err(|error| usage(error.to_string()))?;
        }
        let flow_sources = self.flow_source.unwrap_or_default();
        let mut warnings = Vec::new();
        for channel in &channels {
            warnings.extend(channel.groups.doubts(self.asm));
        }
        let multicast = channels.iter().any(|c| !c.groups.all().is_empty());
        if !multicast && (self.asm || flow_sources.is_given()) {
            warnings.push(
                "--asm and --flow-source have no effect without multicast (--group is empty)"
                    .into(),
            );
        }
        if (1..FEW_KEPT).contains(&self.retention) {
            warnings.push(format!(
                "--retention {}: receivers that are away for no more than so many updates miss \
                 some",
                self.retention
            ));
        }
        warnings.extend(values::reachability(
            self.public_address.as_ref(),
            self.listen,
        ));
        Ok(Config {
            channels,
            allow_private_feed: self.allow_private_feed,
            poll_interval: self.poll_interval,
            data: self.data,
            database_url,
            listen: self.listen,
            public_address: self.public_address,
            flow_sources,
            asm: self.asm,
            replicate: !self.no_replicate,
            retention: self.retention,
            http: self.http,
            rate_bps: self.rate,
            unicast_rate_bps: self.unicast_rate,
            ack_delay: Duration::from_millis(self.ack_delay_ms),
            fall_back: Duration::from_millis(self.fall_back_ms),
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            qlog: self.qlog,
            log_format: self.log_format,
            log_level: self.log_level.filter(|level| !level.is_empty()),
            warnings,
        })
    }
}

fn usage(text: String) -> clap::Error {
    Arguments::command().error(ErrorKind::ValueValidation, text)
}
