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

/// Returns the text in place of a command, which may contain secrets.
fn command(_: &str) -> String {
    "(a command)".to_owned()
}

const SETTINGS: &[Setting] = &[
    setting!("link", "LINK", "Enrolment link")
        .argument()
        .shown(redact),
    setting!(
        "link_file",
        "FILE",
        "File with the enrolment link, instead of LINK"
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
    setting!("name", "NAME", "Name shown to the source's operator").default("this machine's name"),
    setting!(
        "http",
        "ADDRESS:PORT",
        "HTTP address of feeds, events, health and metrics; off for none"
    )
    .default("127.0.0.1:8080"),
    setting!(
        "no_json",
        "",
        "Keep no JSON Feed file next to the Atom file"
    )
    .switch(),
    setting!(
        "keep_entries",
        "NUMBER",
        "Number of entries in each Atom and JSON Feed file, 1 to 10000; the oldest are dropped, \
         also if a file exceeds 64 MiB"
    )
    .default("500"),
    setting!(
        "file_interval",
        "DURATION",
        "Shortest time between two writes of a channel's feed files, also limited by a budget of \
         bytes; 0 to write them at each update"
    )
    .default("5s"),
    setting!(
        "webhook",
        "URL",
        "Post each update to this URL; can be repeated"
    )
    .sections(WEBHOOK_KEYS)
    .words()
    .shown(shown_address),
    setting!(
        "webhook_secret",
        "SECRET",
        "Secret that signs requests to webhooks without a secret of their own"
    )
    .not_as_flag()
    .shown(hidden),
    setting!(
        "webhook_secret_file",
        "FILE",
        "File with the secret that signs requests to webhooks"
    )
    .path(),
    setting!(
        "exec",
        "COMMAND",
        "Run this shell command for each update, with the update on its standard input; can be \
         repeated"
    )
    .sections(EXEC_KEYS)
    .shown(command),
    setting!(
        "delivery_log",
        "FILE",
        "Append a JSON line to this file for each update"
    )
    .path(),
    setting!(
        "history",
        "NUMBER",
        "Number of a channel's last updates to request at the first start; all for everything that \
         the source has kept"
    )
    .default("100"),
    setting!(
        "journal_updates",
        "NUMBER",
        "Maximum number of updates in each channel's journal, for events, webhooks and commands"
    )
    .default("10000"),
    setting!(
        "journal_bytes",
        "SIZE",
        "Maximum size of each channel's journal in bytes (with K, M or G)"
    )
    .default("64M"),
    setting!(
        "interface",
        "IP",
        "Address, IPv4 or IPv6, of the interface to join multicast groups on"
    )
    .default("by the routing table"),
    setting!("no_multicast", "", "Never join multicast groups").switch(),
    setting!(
        "no_replicate",
        "",
        "Never take replicated packets of the flow; with --no-multicast and --no-amt, \
         everything comes on the receiver's own connection"
    )
    .switch(),
    setting!(
        "amt_relay",
        "LIST",
        "AMT relays to try before those that the source announces, the preferred ones first: \
         HOST or HOST:PORT each, with commas between; anycast for the nearest relay; can be \
         repeated"
    )
    .list()
    .alias("relay"),
    setting!(
        "amt_local_port",
        "PORT",
        "Preferred local UDP port towards AMT relays, for relays that accept one port per address \
         and for firewalls"
    )
    .default("that of the previous run"),
    setting!(
        "no_amt",
        "",
        "Never use AMT relays where multicast does not reach"
    )
    .switch(),
    setting!(
        "no_amt_dns",
        "",
        "Never ask the DNS for relays of the source (RFC 8777)"
    )
    .switch(),
    setting!(
        "ca_file",
        "FILE",
        "Verify the source's certificate and name against the CA certificates in this PEM file, \
         if the link has no pin"
    )
    .path(),
    setting!(
        "insecure",
        "",
        "Do not verify the source at all: an impostor can obtain the token; only for tests"
    )
    .switch(),
    setting!(
        "qlog",
        "DIR",
        "Write qlog files of connections and flows to this folder; their size is unbounded, \
         and they reveal what was received and when"
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
        "Destination of updates; http or https",
    ),
    Key::new(
        "name",
        Form::Text,
        "from the URL",
        "Name in the status, in metrics and in the dead-letter file",
    ),
    Key::new("secret", Form::Text, "", "Secret that signs requests"),
    Key::new("secret_file", Form::Path, "", "File with that secret"),
    Key::new(
        "channels",
        Form::List,
        "all",
        "Only the updates of these channels",
    ),
    Key::new("timeout", Form::Text, "10s", "Time limit of one attempt"),
    Key::new(
        "attempts",
        Form::Text,
        "20",
        "Maximum number of attempts before the update goes to the dead-letter file",
    ),
    Key::new(
        "max_age",
        Form::Text,
        "1d",
        "Maximum age of an update before it goes there",
    ),
];

/// The keys of `[[exec]]`.
const EXEC_KEYS: &[Key] = &[
    Key::new("command", Form::Text, "", "Command for /bin/sh -c"),
    Key::new(
        "name",
        Form::Text,
        "from the command",
        "Name in the status, in metrics and in the dead-letter file",
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
        "Maximum number of concurrent runs; more than one can reorder updates",
    ),
    Key::new(
        "timeout",
        Form::Text,
        "60s",
        "Time limit of one run, after which all of its processes are killed",
    ),
    Key::new(
        "attempts",
        Form::Text,
        "3",
        "Maximum number of attempts before the update goes to the dead-letter file",
    ),
];
