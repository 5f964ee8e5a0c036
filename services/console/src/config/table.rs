//! Every setting, named once.

use service::logging::LogSettings;
use service::setting;
use service::settings::table::hidden;
use service::settings::{Setting, Table};

/// All settings, in the order of the help.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_CONSOLE_",
    settings: SETTINGS,
    other_variables: &[],
    strict: false,
};

const SETTINGS: &[Setting] = &[
    Setting::CONFIG,
    setting!(
        "database_url",
        "URL",
        "The database of the source: postgres://USER:PASSWORD@HOST/DATABASE, or sqlite://PATH \
         on the same machine. DATABASE_URL does the same"
    )
    .general_variable("DATABASE_URL")
    .shown(hidden),
    setting!(
        "database_url_file",
        "FILE",
        "A file with the URL of the database, for one that holds a password; instead of the URL \
         itself. DATABASE_URL_FILE does the same"
    )
    .path()
    .general_variable("DATABASE_URL_FILE"),
    setting!(
        "listen",
        "ADDRESS:PORT",
        "Where to answer browsers and programs. Beyond this machine, put a proxy with TLS in \
         front and set --public-url"
    )
    .default("127.0.0.1:9470"),
    setting!(
        "public_url",
        "URL",
        "The address at which browsers reach the console, such as https://console.example.org: \
         for links, cookies and the check of where requests come from"
    ),
    setting!(
        "secure_cookies",
        "WHEN",
        "Whether cookies are for https only: on, off, or auto: where the public URL is one of \
         https, or a trusted proxy says that the request was"
    )
    .default("auto"),
    setting!(
        "trusted_proxy",
        "PREFIX",
        "Proxies whose word counts for where a request came from (X-Forwarded-For, \
         X-Forwarded-Proto); can be repeated"
    )
    .list(),
    setting!(
        "session_time",
        "TIME",
        "How long somebody who does nothing stays signed in (in seconds, or with s, m, h or d); \
         at most 7 days in all"
    )
    .default("12h"),
    setting!(
        "allow_private_feeds",
        "",
        "Lets operators add and test feeds in private networks, which the console otherwise \
         refuses to reach"
    )
    .switch(),
    setting!(
        "contact",
        "URL",
        "A URL or mailto: address for those who run the servers of feeds; the feed test names it"
    ),
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];
