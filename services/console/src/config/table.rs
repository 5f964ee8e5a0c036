//! Every setting, named once.

use service::logging::LogSettings;
use service::settings::table::hidden;
use service::settings::{Form, Place, Setting, Table};

/// All settings, in the order of the help.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_CONSOLE_",
    settings: SETTINGS,
    other_variables: &[],
};

const SETTINGS: &[Setting] = &[
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
        name: "database_url",
        flag: "database-url",
        value: "URL",
        general_variable: Some("DATABASE_URL"),
        shown: hidden,
        help: "The database of the source: postgres://USER:PASSWORD@HOST/DATABASE, or \
               sqlite://PATH on the same machine. DATABASE_URL does the same",
        ..Setting::PLAIN
    },
    Setting {
        name: "database_url_file",
        flag: "database-url-file",
        value: "FILE",
        form: Form::Path,
        general_variable: Some("DATABASE_URL_FILE"),
        help: "A file with the URL of the database, for one that holds a password; instead of \
               the URL itself. DATABASE_URL_FILE does the same",
        ..Setting::PLAIN
    },
    Setting {
        name: "listen",
        flag: "listen",
        value: "ADDRESS:PORT",
        default: "127.0.0.1:9470",
        help: "Where to answer browsers and programs. Beyond this machine, put a proxy with \
               TLS in front and set --public-url",
        ..Setting::PLAIN
    },
    Setting {
        name: "public_url",
        flag: "public-url",
        value: "URL",
        help: "The address at which browsers reach the console, such as \
               https://console.example.org: for links, cookies and the check of where \
               requests come from",
        ..Setting::PLAIN
    },
    Setting {
        name: "secure_cookies",
        flag: "secure-cookies",
        value: "WHEN",
        default: "auto",
        help: "Whether cookies are for https only: on, off, or auto: where the public URL is \
               one of https, or a trusted proxy says that the request was",
        ..Setting::PLAIN
    },
    Setting {
        name: "trusted_proxy",
        flag: "trusted-proxy",
        value: "PREFIX",
        form: Form::List,
        help: "Proxies whose word counts for where a request came from (X-Forwarded-For, \
               X-Forwarded-Proto); can be repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "session_time",
        flag: "session-time",
        value: "TIME",
        form: Form::Number,
        default: "12h",
        help: "How long somebody who does nothing stays signed in (in seconds, or with s, m, \
               h or d); at most 7 days in all",
        ..Setting::PLAIN
    },
    Setting {
        name: "allow_private_feeds",
        flag: "allow-private-feeds",
        form: Form::Switch,
        default: "false",
        help: "Lets operators add and test feeds in private networks, which the console \
               otherwise refuses to reach",
        ..Setting::PLAIN
    },
    Setting {
        name: "contact",
        flag: "contact",
        value: "URL",
        help: "A URL or mailto: address for those who run the servers of feeds; the feed test \
               names it",
        ..Setting::PLAIN
    },
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];
