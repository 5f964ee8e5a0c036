//! Every setting, named once.

use service::logging::LogSettings;
use service::settings::table::hidden;
use service::settings::{Form, Key, KeyForm, Place, Setting, Table};

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
};

/// What is shown of a command: they have passwords in them, and are long.
fn command(_: &str) -> String {
    "(a command)".to_owned()
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "link",
        value: "LINK",
        place: Place::Argument,
        shown: redact,
        help: "The enrolment link",
        ..Setting::PLAIN
    },
    Setting {
        name: "link_file",
        flag: "link-file",
        value: "FILE",
        form: Form::Path,
        help: "A file with the enrolment link, instead of LINK",
        ..Setting::PLAIN
    },
    Setting {
        name: "config",
        flag: "config",
        value: "FILE",
        form: Form::Path,
        place: Place::NotInFile,
        help: "A TOML file with settings",
        ..Setting::PLAIN
    },
    Setting {
        name: "data",
        flag: "data",
        value: "DIR",
        form: Form::Path,
        default: "./flexfeed-receiver",
        help: "Folder of the feed files, the cursors and the receiver's id",
        ..Setting::PLAIN
    },
    Setting {
        name: "name",
        flag: "name",
        value: "NAME",
        default: "this machine's name",
        help: "What the source's operator sees this receiver as",
        ..Setting::PLAIN
    },
    Setting {
        name: "http",
        flag: "http",
        value: "ADDRESS:PORT",
        default: "127.0.0.1:8080",
        help: "Where to answer HTTP: feeds, events, health, metrics; off for nowhere",
        ..Setting::PLAIN
    },
    Setting {
        name: "no_json",
        flag: "no-json",
        form: Form::Switch,
        default: "false",
        help: "Keeps no JSON Feed file beside the Atom file",
        ..Setting::PLAIN
    },
    Setting {
        name: "keep_entries",
        flag: "keep-entries",
        value: "NUMBER",
        form: Form::Number,
        default: "500",
        help: "Number of entries in each Atom and JSON Feed file, 1 to 10000; the oldest are \
               dropped, also above 64 MiB",
        ..Setting::PLAIN
    },
    Setting {
        name: "file_interval",
        flag: "file-interval",
        value: "DURATION",
        default: "5s",
        help: "Shortest time between two writes of a channel's feed files, which follow the \
               journal within a budget of bytes; 0 to write them at each update",
        ..Setting::PLAIN
    },
    Setting {
        name: "webhook",
        flag: "webhook",
        value: "URL",
        form: Form::Sections(WEBHOOK_KEYS),
        words: true,
        shown: shown_address,
        help: "Posts each update to this URL; can be repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "webhook_secret",
        flag: "webhook-secret",
        value: "SECRET",
        place: Place::NotAsFlag,
        shown: hidden,
        help: "Signs what is posted to webhooks that have no secret of their own",
        ..Setting::PLAIN
    },
    Setting {
        name: "webhook_secret_file",
        flag: "webhook-secret-file",
        value: "FILE",
        form: Form::Path,
        help: "A file with the secret that signs what is posted to webhooks",
        ..Setting::PLAIN
    },
    Setting {
        name: "exec",
        flag: "exec",
        value: "COMMAND",
        form: Form::Sections(EXEC_KEYS),
        shown: command,
        help: "Runs this shell command for each update, which it finds on its standard input; \
               can be repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "delivery_log",
        flag: "delivery-log",
        value: "FILE",
        form: Form::Path,
        help: "Appends a JSON line to this file for each update",
        ..Setting::PLAIN
    },
    Setting {
        name: "history",
        flag: "history",
        value: "NUMBER",
        form: Form::Number,
        default: "100",
        help: "How many of a channel's last updates to begin with where this data folder has none; \
               all for everything that the source still keeps",
        ..Setting::PLAIN
    },
    Setting {
        name: "journal_updates",
        flag: "journal-updates",
        value: "NUMBER",
        form: Form::Number,
        default: "10000",
        help: "How many of its last updates the receiver keeps for each channel, for events, \
               webhooks and commands",
        ..Setting::PLAIN
    },
    Setting {
        name: "journal_bytes",
        flag: "journal-bytes",
        value: "SIZE",
        form: Form::Number,
        default: "64M",
        help: "How many bytes of them at most (with K, M or G)",
        ..Setting::PLAIN
    },
    Setting {
        name: "interface",
        flag: "interface",
        value: "IP",
        default: "by the routing table",
        help: "An address, IPv4 or IPv6, of the interface to join multicast groups on",
        ..Setting::PLAIN
    },
    Setting {
        name: "no_multicast",
        flag: "no-multicast",
        form: Form::Switch,
        default: "false",
        help: "Never joins multicast groups",
        ..Setting::PLAIN
    },
    Setting {
        name: "no_replicate",
        flag: "no-replicate",
        form: Form::Switch,
        default: "false",
        help: "Never takes copies of the flow's packets; with --no-multicast, everything \
               comes on the receiver's own connection",
        ..Setting::PLAIN
    },
    Setting {
        name: "amt_relay",
        flag: "amt-relay",
        value: "LIST",
        form: Form::List,
        alias: Some("relay"),
        help: "AMT relays to try before those that the source tells of, the preferred ones \
               first: HOST or HOST:PORT each, with commas between; anycast for any relay \
               near here; can be repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "amt_local_port",
        flag: "amt-local-port",
        value: "PORT",
        form: Form::Number,
        default: "that of the run before",
        help: "Local UDP port towards AMT relays where it is free, for relays that serve one port \
               of each address, and for firewalls",
        ..Setting::PLAIN
    },
    Setting {
        name: "no_amt",
        flag: "no-amt",
        form: Form::Switch,
        default: "false",
        help: "Never uses AMT relays where multicast does not reach",
        ..Setting::PLAIN
    },
    Setting {
        name: "no_amt_dns",
        flag: "no-amt-dns",
        form: Form::Switch,
        default: "false",
        help: "Never asks the DNS for relays of the source (RFC 8777)",
        ..Setting::PLAIN
    },
    Setting {
        name: "ca_file",
        flag: "ca-file",
        value: "FILE",
        form: Form::Path,
        help: "Verifies the source's certificate and name by the authorities in this PEM \
               file, where the link has no pin",
        ..Setting::PLAIN
    },
    Setting {
        name: "insecure",
        flag: "insecure",
        form: Form::Switch,
        default: "false",
        help: "Does not verify the source at all: whoever answers learns the token; only for \
               tests",
        ..Setting::PLAIN
    },
    Setting {
        name: "qlog",
        flag: "qlog",
        value: "DIR",
        form: Form::Path,
        help: "Writes what passes on connections and flows to files in this folder, for tools \
               that read qlog; they grow without end and show when what came",
        ..Setting::PLAIN
    },
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];

const fn key(name: &'static str, form: KeyForm, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        form,
        default,
        help,
    }
}

/// The keys of `[[webhook]]`.
const WEBHOOK_KEYS: &[Key] = &[
    key(
        "url",
        KeyForm::Text,
        "",
        "Where updates are posted; http or https",
    ),
    key(
        "name",
        KeyForm::Text,
        "from the URL",
        "Names it in the status, in metrics and in the dead-letter file",
    ),
    key("secret", KeyForm::Text, "", "Signs what is posted"),
    key("secret_file", KeyForm::Path, "", "A file with that secret"),
    key(
        "channels",
        KeyForm::Texts,
        "all",
        "Only the updates of these channels",
    ),
    key("timeout", KeyForm::Text, "10s", "For one attempt"),
    key(
        "attempts",
        KeyForm::Number,
        "20",
        "After so many, the update goes to the dead-letter file",
    ),
    key("max_age", KeyForm::Text, "1d", "After so long, too"),
];

/// The keys of `[[exec]]`.
const EXEC_KEYS: &[Key] = &[
    key("command", KeyForm::Text, "", "For /bin/sh -c"),
    key(
        "name",
        KeyForm::Text,
        "from the command",
        "Names it in the status, in metrics and in the dead-letter file",
    ),
    key(
        "channels",
        KeyForm::Texts,
        "all",
        "Only for the updates of these channels",
    ),
    key(
        "concurrency",
        KeyForm::Number,
        "1",
        "So many at a time; with more than one, they can overtake each other",
    ),
    key(
        "timeout",
        KeyForm::Text,
        "60s",
        "Then it is killed, with all that it started",
    ),
    key(
        "attempts",
        KeyForm::Number,
        "3",
        "After so many, the update goes to the dead-letter file",
    ),
];
