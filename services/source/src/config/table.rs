//! Every setting, once: [`ALL`] is what flags, variables and the keys of a configuration file are
//! made from, and what the tests of the order between them go through.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use console::config::{prefix, public_url};
use ipnet::IpNet;
use url::Url;

use super::channels::FeedAddress;
use super::groups::{self, FlowSources, Groups};
use super::relays::{self, Relay};
use super::values::{self, PublicAddress};
use super::{LogFormat, pins};

/// One setting. Its name makes the flag `--some-name`, the variable `FLEXFEED_SOME_NAME` and the
/// key `some_name`.
pub(super) struct Setting {
    /// As it is in the flag.
    pub name: &'static str,
    /// Form of the value.
    pub form: Form,
    /// Placeholder of the value in the help; empty for switches.
    pub value: &'static str,
    /// Default; empty for none.
    pub default: &'static str,
    /// Whether it may hold a password: it is never shown, and can be read from a file that a
    /// variable with `_FILE` at its end names.
    pub secret: bool,
    /// An empty text says something, and not that nothing is said.
    pub empty: bool,
    /// For the help.
    pub help: &'static str,
    /// Reads it.
    pub take: fn(&mut Settings, &str) -> Result<(), String>,
}

/// Form of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Given or not.
    Switch,
    /// A text or a number.
    One,
    /// A file or folder: one that a configuration file names counts from that file's folder.
    Path,
    /// A switch that may say more: given alone, it stands for this.
    Maybe(&'static str),
    /// Several, with this character between them where there is only one text.
    List(char),
}

impl Setting {
    /// The variable.
    pub(super) fn variable(&self) -> String {
        format!("{}{}", super::PREFIX, self.key().to_uppercase())
    }

    /// The key of the configuration file.
    pub(super) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The one of that name.
    pub(super) fn named(name: &str) -> Option<&'static Setting> {
        ALL.iter().find(|setting| setting.name == name)
    }
}

/// Values of all settings; `None` for those that are not given and have no default.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Settings {
    pub feed: Option<FeedAddress>,
    pub allow_private_feed: Option<bool>,
    pub poll_interval: Option<Duration>,
    pub min_poll_interval: Option<Duration>,
    pub max_poll_interval: Option<Duration>,
    pub contact: Option<String>,
    pub data: Option<PathBuf>,
    pub database_url: Option<String>,
    pub listen: Option<SocketAddr>,
    pub public_address: Option<PublicAddress>,
    pub channel: Option<String>,
    pub group: Option<Groups>,
    pub private: Option<bool>,
    pub channel_spec: Option<String>,
    pub flow_source: Option<FlowSources>,
    pub asm: Option<bool>,
    pub multicast_ttl: Option<u64>,
    pub relay: Option<Vec<Relay>>,
    pub no_replicate: Option<bool>,
    pub retention: Option<u64>,
    pub retention_age: Option<Duration>,
    pub http: Option<SocketAddr>,
    pub console: Option<Option<SocketAddr>>,
    pub console_public_url: Option<Url>,
    pub console_trusted_proxy: Option<Vec<IpNet>>,
    pub rate: Option<u64>,
    pub unicast_rate: Option<u64>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub next_pin: Option<[u8; 32]>,
    pub ack_delay_ms: Option<u64>,
    pub fall_back_ms: Option<u64>,
    pub heartbeat_ms: Option<u64>,
    pub drain_time: Option<Duration>,
    pub holder_name: Option<String>,
    pub qlog: Option<PathBuf>,
    pub log_format: Option<LogFormat>,
    pub log_level: Option<String>,
}

fn put<T>(field: &mut Option<T>, read: Result<T, String>) -> Result<(), String> {
    *field = Some(read?);
    Ok(())
}

fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("write the path of a file or folder".into()),
        text => Ok(text.into()),
    }
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an address and a port, such as 127.0.0.1:4433, an IPv6 address in brackets".into()
    })
}

/// Default address of the console.
const CONSOLE: &str = "127.0.0.1:9470";

/// An address, or whether there is one at all.
fn maybe_socket(text: &str) -> Result<Option<SocketAddr>, String> {
    match switch(text) {
        Ok(true) => socket(CONSOLE).map(Some),
        Ok(false) => Ok(None),
        Err(_) => socket(text)
            .map(Some)
            .map_err(|why| format!("{why}, or true or false")),
    }
}

/// As the console reads it, whose variable has the same name.
fn console_url(text: &str) -> Result<Url, String> {
    public_url(text).map_err(|why| format!("it {why}"))
}

/// As the console reads it.
fn console_proxies(text: &str) -> Result<Vec<IpNet>, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let read = |part: &str| prefix(part).map_err(|why| format!("{part:?} {why}"));
    parts.map(read).collect()
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    service::values::log_format(text).map_err(|_| "write text or json".into())
}

/// As `socket`; without an address, all of this machine.
fn http(text: &str) -> Result<SocketAddr, String> {
    // As all programs take it; what is wrong is said as for the other addresses here.
    service::values::listen(text, 8090).or_else(|_| socket(text))
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "y" | "t" => Ok(true),
        "false" | "no" | "off" | "0" | "n" | "f" => Ok(false),
        _ => Err("write true or false".into()),
    }
}

fn whole(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ if *range.end() == u64::MAX => Err("write a whole number".into()),
        _ => Err(format!(
            "write a whole number from {} to {}",
            range.start(),
            range.end()
        )),
    }
}

const PLAIN: Setting = Setting {
    name: "",
    form: Form::One,
    value: "",
    default: "",
    secret: false,
    empty: false,
    help: "",
    take: |_, _| Ok(()),
};

/// In the order in which the help shows them.
pub(super) const ALL: &[Setting] = &[
    Setting {
        name: "feed",
        value: "URL",
        secret: true,
        help: "The feed of the first channel: Atom, RSS or JSON Feed, by http or https. Its address \
               is shown to receivers with its query, which must hold no secret; a user name and \
               password are left out. More feeds come from the configuration file, or with \
               `flexfeed-source feed add`",
        take: |s, text| put(&mut s.feed, FeedAddress::parse(text)),
        ..PLAIN
    },
    Setting {
        name: "allow-private-feed",
        form: Form::Switch,
        help: "Lets all feeds' addresses lead to private, loopback and similar networks",
        take: |s, text| put(&mut s.allow_private_feed, switch(text)),
        ..PLAIN
    },
    Setting {
        name: "poll-interval",
        value: "TIME",
        help: "Polls every feed this often, whatever it says and however often it changes: seconds, \
               or with a unit: 500ms, 20s, 5m, 1h [default: by the feed's rate, within the next two]",
        take: |s, text| put(&mut s.poll_interval, values::interval(text)),
        ..PLAIN
    },
    Setting {
        name: "min-poll-interval",
        value: "TIME",
        default: "20s",
        help: "Polls no feed more often than this, also after a suspected gap",
        take: |s, text| put(&mut s.min_poll_interval, values::interval(text)),
        ..PLAIN
    },
    Setting {
        name: "max-poll-interval",
        value: "TIME",
        default: "1h",
        help: "Polls every feed at least this often, unless its server asks for patience",
        take: |s, text| put(&mut s.max_poll_interval, values::interval(text)),
        ..PLAIN
    },
    Setting {
        name: "contact",
        value: "URL",
        help: "Whom the servers of feeds can ask about their visitor: a page, or mailto:NAME@HOST; it \
               is a part of the User-Agent",
        take: |s, text| {
            let checked = feed::fetch::check_contact(text).map(|()| text.to_owned());
            put(&mut s.contact, checked)
        },
        ..PLAIN
    },
    Setting {
        name: "data",
        form: Form::Path,
        value: "DIR",
        default: "./flexfeed-source",
        help: "Folder of the certificate, the keys, the database and the enrolment link",
        take: |s, text| put(&mut s.data, path(text)),
        ..PLAIN
    },
    Setting {
        name: "database-url",
        value: "URL",
        secret: true,
        help: "The database: sqlite://PATH or postgresql://USER:PASSWORD@HOST/NAME; the variable \
               DATABASE_URL does the same [default: sqlite://DIR/flexfeed.db]",
        take: |s, text| {
            let checked = store::check_url(text).map_err(|error| error.to_string());
            put(&mut s.database_url, checked.map(|()| text.to_owned()))
        },
        ..PLAIN
    },
    Setting {
        name: "listen",
        value: "IP:PORT",
        default: "0.0.0.0:4433",
        help: "UDP address and port that receivers connect to",
        take: |s, text| put(&mut s.listen, socket(text)),
        ..PLAIN
    },
    Setting {
        name: "public-address",
        value: "HOST[:PORT]",
        help: "How receivers reach this machine, for enrolment links: a name or address, and a port \
               if it is another than that of --listen [default: 127.0.0.1]",
        take: |s, text| put(&mut s.public_address, values::public_address(text)),
        ..PLAIN
    },
    Setting {
        name: "channel",
        value: "NAME",
        default: "lore",
        help: "The first channel's name: letters, digits, '-', '_' and '.'. Without --feed and \
               without this there is no such channel",
        take: |s, text| put(&mut s.channel, values::channel(text)),
        ..PLAIN
    },
    Setting {
        name: "group",
        form: Form::List(','),
        value: "LIST",
        default: "232.70.70.1:4434",
        empty: true,
        help: "Multicast groups of the first channel's flow: an IPv4 address and port, an IPv6 one \
               in brackets, or both with a comma between; '' for no multicast. Channels without \
               groups of their own get the next ones: after 232.70.70.1 comes 232.70.70.2",
        take: |s, text| put(&mut s.group, groups::groups(text)),
        ..PLAIN
    },
    Setting {
        name: "private",
        form: Form::Switch,
        help: "Whoever joins the first channel's flow cannot decrypt what was sent before: each join \
               begins a new key",
        take: |s, text| put(&mut s.private, switch(text)),
        ..PLAIN
    },
    Setting {
        name: "channel-spec",
        form: Form::List(' '),
        value: "SPEC",
        secret: true,
        help: "A further channel, with its own feed and flow: NAME,feed=URL, and then ,group=LIST, \
               ,rate=RATE and ,private as wanted. May be repeated; in the variable, channels are \
               separated by white space",
        take: |s, text| put(&mut s.channel_spec, Ok(text.to_owned())),
        ..PLAIN
    },
    Setting {
        name: "flow-source",
        form: Form::List(','),
        value: "LIST",
        help: "Addresses of the interfaces that flows leave by: an IPv4 one, an IPv6 one, or both \
               with a comma between [default: by the route to the group]",
        take: |s, text| put(&mut s.flow_source, groups::flow_sources(text)),
        ..PLAIN
    },
    Setting {
        name: "asm",
        form: Form::Switch,
        help: "Announces groups for any source, (*,G), instead of for this one, (S,G)",
        take: |s, text| put(&mut s.asm, switch(text)),
        ..PLAIN
    },
    Setting {
        name: "multicast-ttl",
        value: "HOPS",
        default: "64",
        help: "How many hops the packets of flows may make; 0 keeps multicast on this machine, as for \
               an AMT relay beside the source, which then needs --udp-ports and not --capture",
        take: |s, text| put(&mut s.multicast_ttl, whole(text, 0..=255)),
        ..PLAIN
    },
    Setting {
        name: "amt-relay",
        form: Form::List(','),
        value: "LIST",
        help: "AMT relays that receivers are told of, the preferred ones first: HOST or HOST:PORT as \
               receivers reach them, and behind it =HOST:PORT if this machine reaches them \
               elsewhere. Those with | between them are alike, and receivers share them. Each is asked \
               every 5 s, and only those that answer are told of",
        take: |s, text| put(&mut s.relay, relays::relays(text)),
        ..PLAIN
    },
    Setting {
        name: "no-replicate",
        form: Form::Switch,
        help: "Sends no copies of flows to single receivers that multicast does not reach; they get \
               everything on their own connections, which costs more per receiver",
        take: |s, text| put(&mut s.no_replicate, switch(text)),
        ..PLAIN
    },
    Setting {
        name: "retention",
        value: "N",
        default: "0",
        help: "Keeps the last N updates of each channel for receivers that were away; 0 keeps all",
        take: |s, text| put(&mut s.retention, whole(text, 0..=u64::MAX)),
        ..PLAIN
    },
    Setting {
        name: "retention-age",
        value: "AGE",
        help: "Keeps updates of each channel for this long: 12h, 30d, 8w [default: for ever]",
        take: |s, text| put(&mut s.retention_age, values::age(text)),
        ..PLAIN
    },
    Setting {
        name: "http",
        value: "IP:PORT",
        default: "127.0.0.1:8090",
        help: "Address and port of /healthz, /readyz, /metrics and /status.json",
        take: |s, text| put(&mut s.http, http(text)),
        ..PLAIN
    },
    Setting {
        name: "console",
        form: Form::Maybe(CONSOLE),
        value: "IP:PORT",
        help: "Has the operator's console in this program, too: an API and a dashboard for browsers, \
               at 127.0.0.1:9470 or the address given. Without an https proxy before it, leave it on \
               this machine",
        take: |s, text| put(&mut s.console, maybe_socket(text)),
        ..PLAIN
    },
    Setting {
        name: "console-public-url",
        value: "URL",
        help: "The address that people type to reach the console of --console, where a proxy is before \
               it: https://console.example.org",
        take: |s, text| put(&mut s.console_public_url, console_url(text)),
        ..PLAIN
    },
    Setting {
        name: "console-trusted-proxy",
        form: Form::List(','),
        value: "LIST",
        help: "Proxies before the console of --console, as addresses or prefixes: their X-Forwarded-For \
               and X-Forwarded-Proto count",
        take: |s, text| put(&mut s.console_trusted_proxy, console_proxies(text)),
        ..PLAIN
    },
    Setting {
        name: "rate",
        value: "RATE",
        default: "10M",
        help: "Highest rate of a flow, and of each receiver's own connection, in bit/s: 500k, 10M, \
            1G",
        take: |s, text| put(&mut s.rate, values::rate(text)),
        ..PLAIN
    },
    Setting {
        name: "unicast-rate",
        value: "RATE",
        default: "200M",
        help: "Highest rate of the updates on all receivers' own connections together, for the \
               moment when many lose a flow at once",
        take: |s, text| put(&mut s.unicast_rate, values::rate(text)),
        ..PLAIN
    },
    Setting {
        name: "cert",
        form: Form::Path,
        value: "FILE",
        help: "A certificate of your own (PEM, with its chain); read again when it changes and on \
               SIGHUP [default: DIR/cert.pem, made at the first start]",
        take: |s, text| put(&mut s.cert, path(text)),
        ..PLAIN
    },
    Setting {
        name: "key",
        form: Form::Path,
        value: "FILE",
        help: "The private key of --cert (PEM)",
        take: |s, text| put(&mut s.key, path(text)),
        ..PLAIN
    },
    Setting {
        name: "next-pin",
        value: "PIN",
        help: "The pin of the key that will be used next, sha256:…: it is put into enrolment links \
               beside the present one, so that receivers know both before the change",
        take: |s, text| put(&mut s.next_pin, pins::read(text)),
        ..PLAIN
    },
    Setting {
        name: "ack-delay-ms",
        value: "MS",
        default: "25",
        help: "How long receivers may collect acknowledgements, in ms",
        take: |s, text| put(&mut s.ack_delay_ms, whole(text, 1..=1000)),
        ..PLAIN
    },
    Setting {
        name: "fall-back-ms",
        value: "MS",
        default: "150",
        help: "A receiver that owes acknowledgements for this long, in ms, gets its updates by \
               unicast",
        take: |s, text| put(&mut s.fall_back_ms, whole(text, 10..=60_000)),
        ..PLAIN
    },
    Setting {
        name: "heartbeat-ms",
        value: "MS",
        default: "1000",
        help: "Time between heartbeats of an idle flow, in ms",
        take: |s, text| put(&mut s.heartbeat_ms, whole(text, 50..=60_000)),
        ..PLAIN
    },
    Setting {
        name: "drain-time",
        value: "TIME",
        default: "5s",
        help: "At the end, how long what is published may take to be acknowledged before \
               connections are closed; 0 for not at all",
        take: |s, text| put(&mut s.drain_time, values::drain_time(text)),
        ..PLAIN
    },
    Setting {
        name: "holder-name",
        value: "NAME",
        help: "What this source is called where several share one database [default: this \
               machine's name]",
        take: |s, text| put(&mut s.holder_name, values::holder_name(text)),
        ..PLAIN
    },
    Setting {
        name: "qlog",
        form: Form::Path,
        value: "DIR",
        help: "Writes what passes on connections and flows to files in this folder, for tools that \
               read qlog, such as qvis; they grow without end, and show when what went to whom",
        take: |s, text| put(&mut s.qlog, path(text)),
        ..PLAIN
    },
    Setting {
        name: "log-format",
        value: "FORMAT",
        default: "text",
        help: "How log lines look, text or json; they go to standard error",
        take: |s, text| put(&mut s.log_format, log_format(text)),
        ..PLAIN
    },
    Setting {
        name: "log-level",
        value: "LEVEL",
        help: "What is logged: error, warn, info, debug, trace, or directives such as \
               info,feed=debug; the variable RUST_LOG does the same [default: info]",
        take: |s, text| put(&mut s.log_level, values::log_level(text)),
        ..PLAIN
    },
];
