//! The command line and the environment: every flag is also a variable `FLEXFEED_<FLAG>`.

mod values;

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, RangedU64ValueParser, Resettable};
use clap::error::ErrorKind;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, ValueEnum};
use url::Url;

use crate::sabotage;

pub use values::PublicAddress;

/// Groups that routers take to be source-specific (RFC 4607).
const SSM_FIRST_OCTET: u8 = 232;

/// What the variables of all settings begin with.
const PREFIX: &str = "FLEXFEED_";

const EXAMPLES: &str = "\
Examples:
  Push the Linux kernel's lists to receivers on this machine:
    flexfeed-source --feed https://lore.kernel.org/all/new.atom

  Serve receivers elsewhere, which reach this machine as feeds.example.org, UDP port 4433:
    flexfeed-source --feed https://example.org/feed.atom --public-address feeds.example.org

  Without multicast, every receiver on its own connection:
    flexfeed-source --feed https://example.org/feed.atom --group ''

The first start makes a certificate and prints an enrolment link for receivers. It stays in
DIR/enrolment-link.";

/// Reads a feed and pushes every new entry to all receivers at once.
#[derive(Debug, Parser)]
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

    /// Lets the feed's address lead to private, loopback and similar networks
    #[arg(long, env = "FLEXFEED_ALLOW_PRIVATE_FEED", value_parser = BoolishValueParser::new())]
    allow_private_feed: bool,

    /// Time between two polls of the feed: seconds, or with a unit: 500ms, 20s, 5m, 1h
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

    /// IPv4 multicast group and port of the flow; '' for no flow (unicast only)
    #[arg(long, value_name = "IP:PORT", env = "FLEXFEED_GROUP",
          default_value = "232.70.70.1:4434", value_parser = values::group)]
    group: values::Group,

    /// Address of the interface that the flow leaves by [default: by the route to the group]
    #[arg(long, value_name = "IP", env = "FLEXFEED_FLOW_SOURCE", value_parser = values::flow_source)]
    flow_source: Option<Ipv4Addr>,

    /// Announces the group for any source, (*,G), instead of for this one, (S,G)
    #[arg(long, env = "FLEXFEED_ASM", value_parser = BoolishValueParser::new())]
    asm: bool,

    /// Address and port of /healthz, /readyz, /metrics and /status.json
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "FLEXFEED_HTTP",
        default_value = "127.0.0.1:8090"
    )]
    http: SocketAddr,

    /// Highest rate of the flow, and of each receiver's own connection, in bit/s: 500k, 10M, 1G
    #[arg(long, value_name = "RATE", env = "FLEXFEED_RATE", default_value = "10M",
          value_parser = values::rate)]
    rate: u64,

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
    /// The feed's address.
    pub feed: FeedAddress,
    /// Lets it lead to private networks.
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
    /// The channel's name.
    pub channel: String,
    /// Where the flow goes; `None` for unicast only.
    pub flow: Option<FlowSettings>,
    /// Of the status pages.
    pub http: SocketAddr,
    /// In bit/s.
    pub rate_bps: u64,
    /// How long receivers may hold acknowledgements back.
    pub ack_delay: Duration,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Of an idle flow.
    pub heartbeat: Duration,
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, as directives; `None` for RUST_LOG or the default.
    pub log_level: Option<String>,
    /// What is allowed but probably not meant; to be logged.
    pub warnings: Vec<String>,
}

/// A flow's place in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSettings {
    /// Group and port.
    pub group: SocketAddrV4,
    /// The address that packets leave from, if one was named.
    pub source: Option<Ipv4Addr>,
    /// (*,G) instead of (S,G).
    pub asm: bool,
}

/// The feed's address, in the form that is asked for and in the one that may be seen by everybody.
#[derive(Clone, PartialEq, Eq)]
pub struct FeedAddress {
    /// With a user name and password if it has them.
    pub secret: String,
    /// Without them: in logs, events and the database.
    pub shown: String,
}

impl std::fmt::Debug for FeedAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
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
    /// Checks what concerns several flags or has to be explained better than clap does.
    fn check(self) -> Result<Config, clap::Error> {
        let feed = feed_address(self.feed.as_deref())?;
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
        let flow = self.group.0.map(|group| FlowSettings {
            group,
            source: self.flow_source,
            asm: self.asm,
        });
        let mut warnings = Vec::new();
        match flow {
            Some(flow) => warnings.extend(flow.doubt()),
            None if self.asm || self.flow_source.is_some() => warnings.push(
                "--asm and --flow-source have no effect without a flow (--group is empty)".into(),
            ),
            None => {}
        }
        warnings.extend(values::reachability(
            self.public_address.as_ref(),
            self.listen,
        ));
        Ok(Config {
            feed,
            allow_private_feed: self.allow_private_feed,
            poll_interval: self.poll_interval,
            data: self.data,
            database_url,
            listen: self.listen,
            public_address: self.public_address,
            channel: self.channel,
            flow,
            http: self.http,
            rate_bps: self.rate,
            ack_delay: Duration::from_millis(self.ack_delay_ms),
            fall_back: Duration::from_millis(self.fall_back_ms),
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            log_format: self.log_format,
            log_level: self.log_level.filter(|level| !level.is_empty()),
            warnings,
        })
    }
}

impl FlowSettings {
    /// What is allowed but works in few networks.
    fn doubt(&self) -> Option<String> {
        let ssm_range = self.group.ip().octets()[0] == SSM_FIRST_OCTET;
        match (self.asm, ssm_range) {
            (false, false) => Some(format!(
                "the group {} is outside 232.0.0.0/8: many routers forward (S,G) joins only in \
                 that range; choose a group from it, or give --asm",
                self.group.ip()
            )),
            (true, true) => Some(format!(
                "the group {} is in 232.0.0.0/8, where routers do not forward (*,G) joins: leave \
                 --asm out, or choose a group outside, for example from 239.0.0.0/8",
                self.group.ip()
            )),
            _ => None,
        }
    }
}

fn usage(text: String) -> clap::Error {
    Arguments::command().error(ErrorKind::ValueValidation, text)
}

fn feed_address(given: Option<&str>) -> Result<FeedAddress, clap::Error> {
    let Some(given) = given.map(str::trim).filter(|given| !given.is_empty()) else {
        return Err(Arguments::command().error(
            ErrorKind::MissingRequiredArgument,
            "which feed? Give its address with --feed URL or FLEXFEED_FEED, for example:\n\n  \
             flexfeed-source --feed https://lore.kernel.org/all/new.atom",
        ));
    };
    // The address may hold a password: it is not repeated before it has been taken apart.
    let wrong = |why: &str| {
        usage(format!(
            "the address given with --feed cannot be used: {why}; write it as https://host/path"
        ))
    };
    let url = Url::parse(given).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong(&format!(
            "it begins with {}:, and only http and https feeds can be fetched",
            url.scheme()
        )));
    }
    let mut shown = url.clone();
    // These fail only for addresses without a host, and http(s) ones have one.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    Ok(FeedAddress {
        secret: url.into(),
        shown: shown.into(),
    })
}
