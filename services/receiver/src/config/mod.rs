//! Settings of the receiver: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`. The documentation is made from
//! the descriptions here. `hooks` has webhooks and commands, `values` the parsers.

pub mod check;
mod hooks;
mod values;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args};
use flexicast_tokio::receiver::{Redundancy, RelayName, Relays, Verify};
use service::listen::{HttpSettings, http};
use service::logging::LogSettings;
use service::settings::{Check, Environment, Keys, Layer, Problems, Table, Tables, table};
use service::values::{host, machine_name, name, size, times, whole};

pub use hooks::{Exec, Secret, Webhook};
pub use values::shown_url;

use crate::link::{Link, redact};

/// Printed where no link is given.
pub const NO_LINK: &str = "\
A receiver needs an enrolment link; the operator of the source has it. It looks like this:

  flexfeed://TOKEN@host:4433?pin=sha256:PIN&ch=lore

Give it in one of these ways:

  flexfeed-receiver 'LINK'                   in single quotes, because it has an & in it
  flexfeed-receiver --link-file FILE         keeps it out of the list of processes
  FLEXFEED_LINK or FLEXFEED_LINK_FILE        the same as environment variables, for containers
  link_file = \"FILE\"                         in the file of --config FILE

If the source is yours: 'flexfeed-source token create' prints one. See 'flexfeed-receiver --help'
for everything else.";

/// Settings of a receiver. The descriptions are the help.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Enrolment link
    #[arg(value_name = "LINK", hide_env_values = true, value_parser = values::link)]
    pub link: Link,
    /// File with the enrolment link, instead of LINK
    #[arg(long, value_name = "FILE")]
    pub link_file: Option<PathBuf>,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of the feed files, the cursors and the receiver's id
    #[arg(long, value_name = "DIR", default_value = "./flexfeed-receiver")]
    pub data: PathBuf,
    /// Name shown to the source's operator [default: this machine's name]
    #[arg(long, value_name = "NAME", value_parser = name)]
    #[arg(default_value_t = machine_name("receiver"), hide_default_value = true)]
    pub name: String,
    /// HTTP address of feeds, events, health and metrics; off for none
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    #[arg(value_parser = http(8080))]
    pub http: std::option::Option<HttpSettings>,
    /// Outputs.
    #[command(flatten)]
    pub outputs: Outputs,
    /// Number of a channel's last updates to request at the first start; all for everything that
    /// the source has kept [default: 100]
    #[arg(long, value_name = "NUMBER", value_parser = values::history)]
    pub history: Option<u64>,
    /// Bounds on the journal of each channel.
    #[command(flatten)]
    pub journal: JournalSettings,
    /// Paths of the flow.
    #[command(flatten)]
    pub network: Network,
    /// Authentication of the source; follows from the settings after it and the link.
    #[arg(skip = Verify::Roots)]
    pub verify: Verify,
    /// Verify the source's certificate and name against the CA certificates in this PEM file, if
    /// the link has no pin
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Do not verify the source at all: an impostor can obtain the token; only for tests
    #[arg(long)]
    pub insecure: bool,
    /// Write qlog files of connections and flows to this folder; their size is unbounded, and they
    /// reveal what was received and when
    #[arg(long, value_name = "DIR")]
    pub qlog: Option<PathBuf>,
    /// The log.
    #[command(flatten)]
    pub log: LogSettings,
}

/// Settings of outputs.
#[derive(Debug, Clone, Args)]
pub struct Outputs {
    /// Keep no JSON Feed file next to the Atom file
    #[arg(id = "no_json", long = "no-json", action = ArgAction::SetFalse)]
    pub json: bool,
    /// Number of entries in each Atom and JSON Feed file, 1 to 10000; the oldest are dropped, also
    /// if a file exceeds 64 MiB
    #[arg(long, value_name = "NUMBER", default_value = "500")]
    #[arg(value_parser = whole::<usize>(1..=10_000))]
    pub keep_entries: usize,
    /// Shortest time between two writes of a channel's feed files, also limited by a budget of
    /// bytes; 0 to write them at each update
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = times("0s", "36500d", true))]
    pub file_interval: Duration,
    /// Post each update to this URL; can be repeated
    #[arg(long, value_name = "URL", hide_env_values = true)]
    #[arg(value_delimiter = ' ', value_parser = table::<Webhook>)]
    pub webhook: Vec<Webhook>,
    /// Secret that signs requests to webhooks without a secret of their own
    #[arg(long, value_name = "SECRET", hide = true, hide_env_values = true)]
    #[arg(value_parser = Secret::parse)]
    pub webhook_secret: Option<Secret>,
    /// File with the secret that signs requests to webhooks
    #[arg(long, value_name = "FILE")]
    pub webhook_secret_file: Option<PathBuf>,
    /// Run this shell command for each update, with the update on its standard input; can be
    /// repeated
    #[arg(long, value_name = "COMMAND", hide_env_values = true, value_parser = table::<Exec>)]
    pub exec: Vec<Exec>,
    /// Append a JSON line to this file for each update
    #[arg(long, value_name = "FILE")]
    pub delivery_log: Option<PathBuf>,
}

/// Bounds of each channel's journal; what is older than the stricter one goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct JournalSettings {
    /// Maximum number of updates in each channel's journal, for events, webhooks and commands
    #[arg(long = "journal-updates", value_name = "NUMBER")]
    #[arg(default_value = "10000", value_parser = whole::<usize>(16..=u32::MAX.into()))]
    pub updates: usize,
    /// Maximum size of each channel's journal in bytes (with K, M or G)
    #[arg(long = "journal-bytes", value_name = "SIZE", default_value = "64M")]
    // Less leaves no room to work in.
    #[arg(value_parser = size(64 << 10))]
    pub bytes: u64,
}

/// Settings of the paths of the flow.
#[derive(Debug, Clone, Args)]
pub struct Network {
    /// Address, IPv4 or IPv6, of the interface to join multicast groups on [default: by the routing
    /// table]
    #[arg(long, value_name = "IP", value_parser = host)]
    pub interface: Option<IpAddr>,
    /// Never join multicast groups
    #[arg(long = "no-multicast", action = ArgAction::SetFalse)]
    pub multicast: bool,
    /// Never take replicated packets of the flow; with --no-multicast and --no-amt, everything
    /// comes on the receiver's own connection
    #[arg(long = "no-replicate", action = ArgAction::SetFalse)]
    pub replicate: bool,
    /// AMT relays to try before those that the source announces, the preferred ones first: HOST or
    /// HOST:PORT each, with commas between; anycast for the nearest relay; can be repeated
    #[arg(long, visible_alias = "relay")]
    #[arg(value_name = "LIST", value_delimiter = ',')]
    amt_relay: Vec<RelayName>,
    /// Preferred local UDP port towards AMT relays, for relays that accept one port per address and
    /// for firewalls [default: that of the previous run]
    #[arg(long, value_name = "PORT", value_parser = whole::<u16>(1..=65_535))]
    amt_local_port: Option<u16>,
    /// Never use AMT relays where multicast does not reach
    #[arg(long)]
    no_amt: bool,
    /// Never ask the DNS for relays of the source (RFC 8777)
    #[arg(long)]
    no_amt_dns: bool,
    /// Paths by which to take each flow at once, one or two: with two, multicast and an AMT relay
    /// or, without multicast, two relays, losing one of them costs nothing
    #[arg(long, value_name = "NUMBER", default_value = "one", value_parser = values::redundancy)]
    pub redundancy: Redundancy,
}

impl Network {
    /// Returns the AMT relays; `None` to use none.
    pub fn amt(&self) -> Option<Relays> {
        let relays = self.amt_relay.iter().cloned();
        let configured = relays.filter(|relay| *relay != RelayName::Anycast);
        (!self.no_amt).then(|| Relays {
            configured: configured.collect(),
            anycast: self.amt_relay.contains(&RelayName::Anycast),
            dns: !self.no_amt_dns,
            port: self.amt_local_port,
            memory: None,
        })
    }
}

/// Settings with their origins and warnings.
pub type Loaded = service::settings::Loaded<Settings>;

/// The settings of all places.
pub const TABLE: Table = Table {
    hidden: |name, text| match name {
        "link" => redact(values::link_line(text)),
        "webhook" | "url" => values::shown_address(text),
        "exec" | "command" => "(a command)".to_owned(),
        _ => "(secret)".to_owned(),
    },
    missing: NO_LINK,
    ..Table::of::<Settings>("FLEXFEED_", TABLES)
};

const TABLES: Tables = &[
    ("webhook", Keys::of::<Webhook>(&[])),
    ("exec", Keys::of::<Exec>(&[])),
];

/// Returns the settings of the command line, the environment and the TOML file that either names;
/// where no link is given, `link_of` may know one for the data folder. Also returns whether it did.
///
/// # Errors
/// All problems of the settings.
pub fn load_or(
    line: Layer,
    environment: &Environment,
    link_of: impl Fn(&Path) -> Option<String>,
) -> Result<(Loaded, bool), Problems> {
    let data = data_folder(line.clone(), environment);
    let mut given = TABLE.gather(line, environment);
    let data = data.ok().filter(|_| given.layers.given("link").is_none());
    let found = data.and_then(|data| link_of(&data));
    let no_link = found.is_some();
    if let Some(link) = found {
        let (origin, mut layer) = ("the data folder's status".to_owned(), Layer::default());
        layer.put("link", origin.into(), vec![link]);
        given.layers.0.push(layer);
    }
    Ok((TABLE.resolve(given, complete)?, no_link))
}

/// Returns only the data folder, for commands that look at one.
///
/// # Errors
/// The settings that could name it cannot be read.
pub fn data_folder(line: Layer, environment: &Environment) -> Result<PathBuf, Problems> {
    let given = TABLE.load_some(line, environment, &["data"])?;
    Ok(given.get_one("data").cloned().unwrap_or_default())
}

/// Completes settings that are valid one by one, and checks them together.
pub fn complete(settings: &mut Settings, check: &mut Check) {
    let text = check.layers.text("link");
    let parsed = text.and_then(|(_, text)| Link::parse(values::link_line(text)).ok());
    let unknown = parsed.into_iter().flat_map(|(_, unknown)| unknown);
    check.warnings.extend(unknown.map(|name| {
        format!("this version does not know the link's parameter {name}, which is ignored")
    }));
    if let Some(http) = &mut settings.http {
        http.explicit = check.layers.given("http").is_some();
    }
    hooks::complete(&mut settings.outputs, &settings.link.channels, check);
    settings.verify = verify(settings, check);
}

/// Returns the verification of the source. One weaker than the link's needs a setting, and a
/// warning.
fn verify(settings: &Settings, check: &mut Check) -> Verify {
    let link = &settings.link;
    match (settings.insecure, link.pins.is_empty(), &settings.ca_file) {
        (true, ..) => {
            check.warn(format!(
                "THE SOURCE IS NOT VERIFIED (insecure): any machine that answers for {} learns \
                 this receiver's token and credential, and can deliver arbitrary updates; only \
                 for tests",
                link.server()
            ));
            check.wrong_setting("ca_file", "has no effect together with insecure");
            Verify::Insecure
        }
        (_, false, _) => {
            let what = "has no effect, for the link has a pin, which is stricter";
            check.wrong_setting("ca_file", what);
            Verify::Pins(link.pins.iter().map(|pin| pin.0).collect())
        }
        (_, true, Some(file)) => {
            if let Err(what) = values::has_certificate(file) {
                check.wrong_setting("ca_file", &what);
            }
            Verify::CaFile(file.clone())
        }
        (_, true, None) => Verify::Roots,
    }
}

#[cfg(test)]
mod tests;
