//! Every setting, named once.

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A file; in a TOML file, a relative one counts from that file's folder.
    Path,
    /// A whole number, or a text for one with a unit.
    Number,
    /// True or false; the flag alone means true.
    Switch,
    /// Several: separated by commas, the flag repeated, or a list in the TOML file.
    List,
}

/// One setting. Its key in the TOML file is its name, its flag the same with hyphens, its variable
/// the same in capitals after `FLEXFEED_CONSOLE_`.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its flag, without the two hyphens in front.
    pub flag: &'static str,
    /// What stands for its value in texts.
    pub value: &'static str,
    /// How it is written.
    pub form: Form,
    /// What it is without being given, as shown.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Acceptable values, for tests.
    #[cfg(test)]
    pub examples: [&'static str; 3],
}

/// What all variables begin with.
pub const PREFIX: &str = "FLEXFEED_CONSOLE_";

impl Setting {
    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase())
    }

    /// The variable that counts where that one is not set: the one that all programs have for their
    /// database.
    #[must_use]
    pub fn general_variable(&self) -> Option<&'static str> {
        match self.name {
            "database_url" => Some("DATABASE_URL"),
            "database_url_file" => Some("DATABASE_URL_FILE"),
            _ => None,
        }
    }

    /// Whether its value may hold a password.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.name == "database_url"
    }

    /// Whether it can stand in the file; one is about the file.
    #[must_use]
    pub fn in_file(&self) -> bool {
        self.name != "config"
    }
}

macro_rules! settings {
    ($($name:literal $flag:literal $value:literal $form:ident $default:literal $help:literal
       [$one:literal, $two:literal, $three:literal];)*) => {
        &[$(Setting {
            name: $name,
            flag: $flag,
            value: $value,
            form: Form::$form,
            default: $default,
            help: $help,
            #[cfg(test)]
            examples: [$one, $two, $three],
        }),*]
    };
}

/// All settings, in the order of the help.
pub const SETTINGS: &[Setting] = settings![
    "config" "config" "FILE" Path ""
        "A TOML file with settings"
        ["", "", ""];
    "database_url" "database-url" "URL" Text ""
        "The database of the source: postgres://USER:PASSWORD@HOST/DATABASE, or sqlite://PATH on the same machine. DATABASE_URL does the same"
        ["sqlite://a.db", "sqlite://b.db", "postgres://h/d"];
    "database_url_file" "database-url-file" "FILE" Path ""
        "A file with the URL of the database, for one that holds a password; instead of the URL itself. DATABASE_URL_FILE does the same"
        ["a", "b", "c"];
    "listen" "listen" "ADDRESS:PORT" Text "127.0.0.1:9470"
        "Where to answer browsers and programs. Beyond this machine, put a proxy with TLS in front and set --public-url"
        ["127.0.0.1:1", "[::1]:2", ":3"];
    "public_url" "public-url" "URL" Text ""
        "The address at which browsers reach the console, such as https://console.example.org: for links, cookies and the check of where requests come from"
        ["https://a.example", "https://b.example", "http://c.example:8080"];
    "secure_cookies" "secure-cookies" "WHEN" Text "auto"
        "Whether cookies are for https only: on, off, or auto: where the public URL is one of https, or a trusted proxy says that the request was"
        ["auto", "on", "off"];
    "trusted_proxy" "trusted-proxy" "PREFIX" List ""
        "Proxies whose word counts for where a request came from (X-Forwarded-For, X-Forwarded-Proto); can be repeated"
        ["192.0.2.0/24", "2001:db8::/32", "192.0.2.1,10.0.0.0/8"];
    "session_time" "session-time" "TIME" Number "12h"
        "How long somebody who does nothing stays signed in (in seconds, or with s, m, h or d); at most 7 days in all"
        ["60", "90m", "1d"];
    "allow_private_feeds" "allow-private-feeds" "" Switch "false"
        "Lets operators add and test feeds in private networks, which the console otherwise refuses to reach"
        ["true", "false", "true"];
    "contact" "contact" "URL" Text ""
        "A URL or mailto: address for those who run the servers of feeds; the feed test names it"
        ["mailto:a@example.org", "https://b.example/", "https://c.example/about"];
    "log_format" "log-format" "FORM" Text "text"
        "Form of the log, which goes to standard error: text or json"
        ["text", "json", "text"];
    "log_level" "log-level" "LEVEL" Text "info"
        "What to log: error, warn, info, debug, trace, or filters as in RUST_LOG, which counts where this is not given"
        ["a", "b", "c"];
];
