//! Every setting, named once.

use service::setting;
use service::settings::{Form, Key, Setting, Table};

/// Default address of the console.
pub(super) const CONSOLE: &str = "127.0.0.1:9470";

/// All settings, in the order of the help.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_",
    settings: SETTINGS,
    other_variables: &[
        #[cfg(feature = "fault-injection")]
        crate::faults::VARIABLE,
    ],
    strict: true,
};

/// Returns the text in place of a secret.
fn stars(_: &str) -> String {
    "***".to_owned()
}

const SETTINGS: &[Setting] = &[
    setting!(
        "config",
        "FILE",
        "TOML file with settings, named as the variables are, in lower case and without FLEXFEED_, \
         and with [[channel]] and [[channel.feed]] tables"
    )
    .path()
    .not_in_file(),
    setting!(
        "feed",
        "URL",
        "Feed of the first channel: Atom, RSS or JSON Feed, by http or https. Its address is shown \
         to receivers with its query, which must hold no secret; a user name and password are left \
         out. More feeds come from the configuration file, or with `flexfeed-source feed add`"
    )
    .secret()
    .shown(stars),
    switch(setting!(
        "allow_private_feed",
        "",
        "Allow all feeds to be in private, loopback and similar networks"
    )),
    setting!(
        "poll_interval",
        "TIME",
        "Fixed time between two polls of each feed, in seconds or with a unit: 500ms, 20s, 5m, 1h; \
         overrides the hints of the server [default: by the feed's rate, within the next two]"
    ),
    setting!(
        "min_poll_interval",
        "TIME",
        "Shortest time between two polls of a feed, also after a suspected gap"
    )
    .default("20s"),
    setting!(
        "max_poll_interval",
        "TIME",
        "Longest time between two polls of a feed, unless its server asks for more"
    )
    .default("1h"),
    setting!(
        "contact",
        "URL",
        "Contact URL sent in the User-Agent header, for the operators of feeds: a page, or \
         mailto:NAME@HOST"
    ),
    setting!(
        "data",
        "DIR",
        "Folder of the certificate, the keys, the database and the enrolment link"
    )
    .path()
    .default("./flexfeed-source"),
    setting!(
        "database_url",
        "URL",
        "Database: sqlite://PATH or postgresql://USER:PASSWORD@HOST/NAME; the variable \
         DATABASE_URL does the same [default: sqlite://DIR/flexfeed.db]"
    )
    .secret()
    .shown(stars)
    .general_variable("DATABASE_URL"),
    setting!(
        "listen",
        "IP:PORT",
        "UDP address and port that receivers connect to"
    )
    .default("0.0.0.0:4433"),
    setting!(
        "public_address",
        "HOST[:PORT]",
        "Public name or address of this machine for enrolment links, with a port if it differs \
         from that of --listen [default: 127.0.0.1]"
    ),
    setting!(
        "channel",
        "NAME",
        "Name of the first channel: letters, digits, '-', '_' and '.'. The first channel exists only \
         if this or --feed is given"
    )
    .default("lore"),
    setting!("channels", "", "Channels").tables("channel", CHANNEL_KEYS),
    setting!(
        "group",
        "LIST",
        "Multicast groups of the first channel's flow: an IPv4 address and port, an IPv6 one in \
         brackets, or both separated by a comma; '' for no multicast. Channels without groups of \
         their own get consecutive ones: 232.70.70.2 after 232.70.70.1"
    )
    .list()
    .or_empty()
    .default("232.70.70.1:4434"),
    switch(setting!(
        "private",
        "",
        "Rotate the key of the first channel's flow at each join, so that new members cannot \
         decrypt earlier packets"
    )),
    setting!(
        "channel_spec",
        "SPEC",
        "Further channel with its own feed and flow: NAME,feed=URL, then ,group=LIST, ,rate=RATE \
         and ,private as needed. Can be repeated; the variable separates channels by white space"
    )
    .list()
    .words()
    .secret()
    .shown(stars),
    setting!(
        "flow_source",
        "LIST",
        "Addresses of the interfaces that flows leave by: IPv4, IPv6, or both separated by a comma \
         [default: by the route to the group]"
    )
    .list(),
    switch(setting!(
        "asm",
        "",
        "Announce any-source groups, (*,G), instead of source-specific ones, (S,G)"
    )),
    setting!(
        "multicast_ttl",
        "HOPS",
        "TTL of the packets of flows, in hops; 0 keeps multicast on this machine, as for an AMT \
         relay on the same machine, which must then use --udp-ports"
    )
    .default("64"),
    setting!(
        "amt_relay",
        "LIST",
        "AMT relays announced to receivers, the preferred ones first: HOST or HOST:PORT as \
         receivers reach them, followed by =HOST:PORT if this machine reaches them elsewhere. A | \
         separates relays of equal preference, which receivers share. Each is probed every 5 s, \
         and only those that answer are announced"
    )
    .list()
    .alias("relay"),
    switch(setting!(
        "no_replicate",
        "",
        "Send no copies of flows to receivers that multicast does not reach; they get everything \
         on their own connections, which takes more bandwidth"
    )),
    setting!(
        "retention",
        "N",
        "Keep the last N updates of each channel for receivers that were away; 0 keeps all"
    )
    .default("0"),
    setting!(
        "retention_age",
        "AGE",
        "Keep updates of each channel for this long: 12h, 30d, 8w [default: unlimited]"
    ),
    setting!(
        "http",
        "IP:PORT",
        "Address and port of /healthz, /readyz, /metrics and /status.json"
    )
    .default("127.0.0.1:8090"),
    setting!(
        "console",
        "IP:PORT",
        "Serve the operators' console in this process: an API and a dashboard for browsers, at \
         127.0.0.1:9470 or the address given. Keep it on this machine unless a proxy with https is \
         in front"
    )
    .optional(CONSOLE),
    setting!(
        "console_public_url",
        "URL",
        "Address at which browsers reach the console of --console behind a proxy: \
         https://console.example.org"
    ),
    setting!(
        "console_trusted_proxy",
        "LIST",
        "Proxies in front of the console of --console, as addresses or prefixes, whose \
         X-Forwarded-For and X-Forwarded-Proto headers are trusted"
    )
    .list(),
    setting!(
        "rate",
        "RATE",
        "Highest rate of a flow, and of each receiver's own connection, in bit/s: 500k, 10M, 1G"
    )
    .default("10M"),
    setting!(
        "unicast_rate",
        "RATE",
        "Highest rate of the updates on all receivers' own connections together; bounds a mass \
         fall-back"
    )
    .default("200M"),
    setting!(
        "cert",
        "FILE",
        "Certificate of your own (PEM, with its chain); read again when it changes and on SIGHUP \
         [default: DIR/cert.pem, made at the first start]"
    )
    .path(),
    setting!("key", "FILE", "Private key of --cert (PEM)").path(),
    setting!(
        "next_pin",
        "PIN",
        "Pin of the key that will be used next, sha256:…: added to enrolment links, so that \
         receivers know both keys before the change"
    ),
    setting!(
        "ack_delay_ms",
        "MS",
        "Longest delay of receivers' acknowledgements, in ms"
    )
    .default("25"),
    setting!(
        "fall_back_ms",
        "MS",
        "Time without acknowledgements, in ms, after which a member falls back to unicast"
    )
    .default("150"),
    setting!(
        "heartbeat_ms",
        "MS",
        "Time between heartbeats of an idle flow, in ms"
    )
    .default("1000"),
    setting!(
        "drain_time",
        "TIME",
        "Time at shutdown to wait for acknowledgements of what is published before connections are \
         closed; 0 for none"
    )
    .default("5s"),
    setting!(
        "holder_name",
        "NAME",
        "Name of this source where several share one database [default: this machine's name]"
    ),
    setting!(
        "qlog",
        "DIR",
        "Write qlog files of connections and flows to this folder, for tools such as qvis; \
         their size is unbounded, and they reveal what was sent to each receiver and when"
    )
    .path(),
    setting!(
        "log_format",
        "FORMAT",
        "Form of the log, which goes to standard error: text or json"
    )
    .default("text"),
    setting!(
        "log_level",
        "LEVEL",
        "Log filter: error, warn, info, debug, trace, or directives such as info,feed=debug; the \
         variable RUST_LOG does the same [default: info]"
    ),
];

/// Makes it a switch that shows no value where it is not given.
const fn switch(setting: Setting) -> Setting {
    setting.switch().default("")
}

const CHANNEL_KEYS: &[Key] = &[
    Key::new("name", Form::Text, "", "Name"),
    Key::new("groups", Form::List, "consecutive ones", "Multicast groups"),
    Key::new("rate", Form::Text, "rate", "Highest rate of the flow"),
    Key::new(
        "private",
        Form::Switch,
        "false",
        "Rotate the key at each join",
    ),
    Key::new("keep", Form::List, "retention", "Retention"),
    Key::new("feed", Form::Sections(FEED_KEYS), "", "Feeds"),
];

const FEED_KEYS: &[Key] = &[
    Key::new("url", Form::Text, "", "Address"),
    Key::new("local", Form::Switch, "false", "Allow private networks"),
    Key::new("interval", Form::Text, "", "Fixed time between two polls"),
    Key::new(
        "min_interval",
        Form::Text,
        "",
        "Shortest time between two polls",
    ),
    Key::new(
        "max_interval",
        Form::Text,
        "",
        "Longest time between two polls",
    ),
];
