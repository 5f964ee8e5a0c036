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
        "Database of the source: postgres://USER:PASSWORD@HOST/DATABASE, or sqlite://PATH \
         on the same machine. DATABASE_URL does the same"
    )
    .general_variable("DATABASE_URL")
    .shown(hidden),
    setting!(
        "database_url_file",
        "FILE",
        "File with the URL of the database, which keeps a password off the command line; instead \
         of --database-url. DATABASE_URL_FILE does the same"
    )
    .path()
    .general_variable("DATABASE_URL_FILE"),
    setting!(
        "listen",
        "ADDRESS:PORT",
        "HTTP address for browsers and programs. For remote access, put a proxy with TLS in \
         front and set --public-url"
    )
    .default("127.0.0.1:9470"),
    setting!(
        "public_url",
        "URL",
        "Address at which browsers reach the console, such as https://console.example.org: \
         for links, cookies and the check of the Origin header"
    ),
    setting!(
        "secure_cookies",
        "WHEN",
        "Whether cookies are for https only: on, off, or auto: if the public URL, or the \
         X-Forwarded-Proto of a trusted proxy, is https"
    )
    .default("auto"),
    setting!(
        "trusted_proxy",
        "PREFIX",
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted; can be \
         repeated"
    )
    .list(),
    setting!(
        "session_time",
        "TIME",
        "Idle time after which a session ends (in seconds, or with s, m, h or d); 7 days at \
         most"
    )
    .default("12h"),
    setting!(
        "allow_private_feeds",
        "",
        "Let operators add and test feeds in private networks, which the console otherwise \
         refuses to reach"
    )
    .switch(),
    setting!(
        "contact",
        "URL",
        "Contact URL sent in the User-Agent header of feed tests: a page, or mailto:NAME@HOST"
    ),
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];
