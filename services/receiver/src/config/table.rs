//! Every setting, named once.

use service::logging::LogSettings;
use service::setting;
use service::settings::table::hidden;
use service::settings::{Form, Key, Setting, Table};

use super::values::shown_address;
use crate::link::redact;

/// All settings, in the order of the help.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_",
    settings: SETTINGS,
    other_variables: &[
        #[cfg(feature = "fault-injection")]
        service::faults::VARIABLE,
    ],
    strict: false,
};

/// Returns the text in place of a command: commands have passwords in them, and are long.
fn command(_: &str) -> String {
    "(a command)".to_owned()
}

const SETTINGS: &[Setting] = &[
    setting!("link", "LINK", "The enrolment link")
        .argument()
        .shown(redact),
    setting!(
        "link_file",
        "FILE",
        "A file with the enrolment link, instead of LINK"
    )
    .path(),
    Setting::CONFIG,
    setting!(
        "data",
        "DIR",
        "Folder of the feed files, the cursors and the receiver's id"
    )
    .path()
    .default("./flexfeed-receiver"),
    setting!(
        "name",
        "NAME",
        "What the source's operator sees this receiver as"
    )
    .default("this machine's name"),
    setting!(
        "http",
        "ADDRESS:PORT",
        "Where to answer HTTP: feeds, events, health, metrics; off for nowhere"
    )
    .default("127.0.0.1:8080"),
    setting!(
        "no_json",
        "",
        "Keeps no JSON Feed file beside the Atom file"
    )
    .switch(),
    setting!(
        "keep_entries",
        "NUMBER",
        "Number of entries in each Atom and JSON Feed file, 1 to 10000; the oldest are dropped, \
         also above 64 MiB"
    )
    .default("500"),
    setting!(
        "file_interval",
        "DURATION",
        "Shortest time between two writes of a channel's feed files, which follow the journal \
         within a budget of bytes; 0 to write them at each update"
    )
    .default("5s"),
    setting!(
        "webhook",
        "URL",
        "Posts each update to this URL; can be repeated"
    )
    .sections(WEBHOOK_KEYS)
    .words()
    .shown(shown_address),
    setting!(
        "webhook_secret",
        "SECRET",
        "Signs what is posted to webhooks that have no secret of their own"
    )
    .not_as_flag()
    .shown(hidden),
    setting!(
        "webhook_secret_file",
        "FILE",
        "A file with the secret that signs what is posted to webhooks"
    )
    .path(),
    setting!(
        "exec",
        "COMMAND",
        "Runs this shell command for each update, which it finds on its standard input; can be \
         repeated"
    )
    .sections(EXEC_KEYS)
    .shown(command),
    setting!(
        "delivery_log",
        "FILE",
        "Appends a JSON line to this file for each update"
    )
    .path(),
    setting!(
        "history",
        "NUMBER",
        "How many of a channel's last updates to begin with where this data folder has none; \
         all for everything that the source still keeps"
    )
    .default("100"),
    setting!(
        "journal_updates",
        "NUMBER",
        "How many of its last updates the receiver keeps for each channel, for events, webhooks \
         and commands"
    )
    .default("10000"),
    setting!(
        "journal_bytes",
        "SIZE",
        "How many bytes of them at most (with K, M or G)"
    )
    .default("64M"),
    setting!(
        "interface",
        "IP",
        "An address, IPv4 or IPv6, of the interface to join multicast groups on"
    )
    .default("by the routing table"),
    setting!("no_multicast", "", "Never joins multicast groups").switch(),
    setting!(
        "no_replicate",
        "",
        "Never takes copies of the flow's packets; with --no-multicast, everything comes on the \
         receiver's own connection"
    )
    .switch(),
    setting!(
        "amt_relay",
        "LIST",
        "AMT relays to try before those that the source tells of, the preferred ones first: \
         HOST or HOST:PORT each, with commas between; anycast for any relay near here; can be \
         repeated"
    )
    .list()
    .alias("relay"),
    setting!(
        "amt_local_port",
        "PORT",
        "Local UDP port towards AMT relays where it is free, for relays that serve one port of \
         each address, and for firewalls"
    )
    .default("that of the run before"),
    setting!(
        "no_amt",
        "",
        "Never uses AMT relays where multicast does not reach"
    )
    .switch(),
    setting!(
        "no_amt_dns",
        "",
        "Never asks the DNS for relays of the source (RFC 8777)"
    )
    .switch(),
    setting!(
        "ca_file",
        "FILE",
        "Verifies the source's certificate and name by the authorities in this PEM file, where \
         the link has no pin"
    )
    .path(),
    setting!(
        "insecure",
        "",
        "Does not verify the source at all: whoever answers learns the token; only for tests"
    )
    .switch(),
    setting!(
        "qlog",
        "DIR",
        "Writes what passes on connections and flows to files in this folder, for tools that \
         read qlog; they grow without end and show when what came"
    )
    .path(),
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];

/// The keys of `[[webhook]]`.
const WEBHOOK_KEYS: &[Key] = &[
    Key::new(
        "url",
        Form::Text,
        "",
        "Where updates are posted; http or https",
    ),
    Key::new(
        "name",
        Form::Text,
        "from the URL",
        "Names it in the status, in metrics and in the dead-letter file",
    ),
    Key::new("secret", Form::Text, "", "Signs what is posted"),
    Key::new("secret_file", Form::Path, "", "A file with that secret"),
    Key::new(
        "channels",
        Form::List,
        "all",
        "Only the updates of these channels",
    ),
    Key::new("timeout", Form::Text, "10s", "For one attempt"),
    Key::new(
        "attempts",
        Form::Text,
        "20",
        "After so many, the update goes to the dead-letter file",
    ),
    Key::new("max_age", Form::Text, "1d", "After so long, too"),
];

/// The keys of `[[exec]]`.
const EXEC_KEYS: &[Key] = &[
    Key::new("command", Form::Text, "", "For /bin/sh -c"),
    Key::new(
        "name",
        Form::Text,
        "from the command",
        "Names it in the status, in metrics and in the dead-letter file",
    ),
    Key::new(
        "channels",
        Form::List,
        "all",
        "Only for the updates of these channels",
    ),
    Key::new(
        "concurrency",
        Form::Text,
        "1",
        "So many at a time; with more than one, they can overtake each other",
    ),
    Key::new(
        "timeout",
        Form::Text,
        "60s",
        "Then it is killed, with all that it started",
    ),
    Key::new(
        "attempts",
        Form::Text,
        "3",
        "After so many, the update goes to the dead-letter file",
    ),
];
