//! Every setting, named once.

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A text that no message may quote.
    Secret,
    /// A file or folder; in a TOML file, a relative one counts from that file's folder.
    Path,
    /// A whole number, or a text for one with a unit.
    Number,
    /// True or false; the flag alone means true.
    Switch,
    /// Several texts, with commas between where there is only one text.
    List,
    /// Several texts. In the TOML file each is a table of its own.
    Tables,
}

/// Where a setting can be given beside its variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// By a flag and in the file.
    Everywhere,
    /// As an argument without a name, and in the file.
    Argument,
    /// By a flag, not in the file: it is about the file.
    NotInFile,
    /// In the file, not by a flag, which everybody who lists processes would see.
    NotAsFlag,
}

/// One setting. Its key in the TOML file is its name, its flag the same with hyphens, its variable
/// the same in capitals after `FLEXFEED_`.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its flag without the two hyphens in front: the name with hyphens.
    pub flag: &'static str,
    /// What stands for its value in texts.
    pub value: &'static str,
    /// How it is written.
    pub form: Form,
    /// Where.
    pub place: Place,
    /// What it is without being given, as shown.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    /// An acceptable value, for tests.
    #[cfg(test)]
    pub examples: [&'static str; 3],
}

impl Setting {
    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("FLEXFEED_{}", self.name.to_ascii_uppercase())
    }

    /// Whether it can stand on the command line.
    #[must_use]
    pub fn on_line(&self) -> bool {
        self.place != Place::NotAsFlag
    }

    /// Whether it can stand in the file.
    #[must_use]
    pub fn in_file(&self) -> bool {
        self.place != Place::NotInFile
    }
}

/// The setting with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

macro_rules! settings {
    ($($name:literal $flag:literal $value:literal $form:ident $place:ident $default:literal $help:literal
       [$one:literal, $two:literal, $three:literal];)*) => {
        &[$(Setting {
            name: $name,
            flag: $flag,
            value: $value,
            form: Form::$form,
            place: Place::$place,
            default: $default,
            help: $help,
            #[cfg(test)]
            examples: [$one, $two, $three],
        }),*]
    };
}

/// All settings, in the order of the help.
pub const SETTINGS: &[Setting] = settings![
    "link" "link" "LINK" Secret Argument ""
        "The enrolment link"
        ["flexfeed://a@h?ch=a", "flexfeed://b@h?ch=b", "flexfeed://c@h?ch=c"];
    "link_file" "link-file" "FILE" Path Everywhere ""
        "A file with the enrolment link, instead of LINK"
        ["@flexfeed://a@h?ch=a", "@flexfeed://b@h?ch=b", "@flexfeed://c@h?ch=c"];
    "config" "config" "FILE" Path NotInFile ""
        "A TOML file with settings"
        ["", "", ""];
    "data" "data" "DIR" Path Everywhere "./flexfeed-receiver"
        "Folder of the feed files, the cursors and the receiver's id"
        ["/a", "/b", "/c"];
    "name" "name" "NAME" Text Everywhere "this machine's name"
        "What the source's operator sees this receiver as"
        ["a", "b", "c"];
    "http" "http" "ADDRESS:PORT" Text Everywhere "127.0.0.1:8080"
        "Where to answer HTTP: feeds, events, health, metrics; off for nowhere"
        ["127.0.0.1:1", "[::1]:2", "off"];
    "no_json" "no-json" "" Switch Everywhere "false"
        "Keeps no JSON Feed file beside the Atom file"
        ["true", "false", "true"];
    "webhook" "webhook" "URL" Tables Everywhere ""
        "Posts each update to this URL; can be repeated"
        ["https://a.example/", "https://b.example/", "https://c.example/"];
    "webhook_secret" "webhook-secret" "SECRET" Secret NotAsFlag ""
        "Signs what is posted to webhooks that have no secret of their own"
        ["0123456789abcdef-a", "0123456789abcdef-b", "0123456789abcdef-c"];
    "webhook_secret_file" "webhook-secret-file" "FILE" Path Everywhere ""
        "A file with the secret that signs what is posted to webhooks"
        ["@0123456789abcdef-a", "@0123456789abcdef-b", "@0123456789abcdef-c"];
    "exec" "exec" "COMMAND" Tables Everywhere ""
        "Runs this shell command for each update, which it finds on its standard input; can be repeated"
        ["a", "b", "c"];
    "delivery_log" "delivery-log" "FILE" Path Everywhere ""
        "Appends a JSON line to this file for each update that is in the feed files"
        ["/a", "/b", "/c"];
    "journal_updates" "journal-updates" "NUMBER" Number Everywhere "10000"
        "How many of its last updates the receiver keeps for each channel, for events, webhooks and commands"
        ["16", "17", "18"];
    "journal_bytes" "journal-bytes" "SIZE" Number Everywhere "64M"
        "How many bytes of them at most (with K, M or G)"
        ["1M", "2M", "3M"];
    "interface" "interface" "IP" Text Everywhere "by the routing table"
        "An address, IPv4 or IPv6, of the interface to join multicast groups on"
        ["192.0.2.1", "192.0.2.2", "2001:db8::3"];
    "no_multicast" "no-multicast" "" Switch Everywhere "false"
        "Never joins multicast groups"
        ["true", "false", "true"];
    "no_replicate" "no-replicate" "" Switch Everywhere "false"
        "Never takes copies of the flow's packets; with --no-multicast, everything comes on the receiver's own connection"
        ["true", "false", "true"];
    "amt_relay" "amt-relay" "LIST" List Everywhere ""
        "AMT relays to try before those that the source tells of, the preferred ones first: HOST or HOST:PORT each, with commas between; anycast for any relay near here; can be repeated"
        ["a.example", "b.example:7,192.0.2.1", "anycast"];
    "no_amt" "no-amt" "" Switch Everywhere "false"
        "Never uses AMT relays where multicast does not reach"
        ["true", "false", "true"];
    "no_amt_dns" "no-amt-dns" "" Switch Everywhere "false"
        "Never asks the DNS for relays of the source (RFC 8777)"
        ["true", "false", "true"];
    "ca_file" "ca-file" "FILE" Path Everywhere ""
        "Verifies the source's certificate and name by the authorities in this PEM file, where the link has no pin"
        ["@-----BEGIN CERTIFICATE----- a", "@-----BEGIN CERTIFICATE----- b", "@-----BEGIN CERTIFICATE----- c"];
    "insecure" "insecure" "" Switch Everywhere "false"
        "Does not verify the source at all: whoever answers learns the token; only for tests"
        ["true", "false", "true"];
    "qlog" "qlog" "DIR" Path Everywhere ""
        "Writes what passes on connections and flows to files in this folder, for tools that read qlog; they grow without end and show when what came"
        ["/a", "/b", "/c"];
    "log_format" "log-format" "FORM" Text Everywhere "text"
        "Form of the log, which goes to standard error: text or json"
        ["text", "json", "text"];
    "log_level" "log-level" "LEVEL" Text Everywhere "info"
        "What to log: error, warn, info, debug, trace, or filters as in RUST_LOG, which counts where this is not given"
        ["a", "b", "c"];
];

/// A key of a `[[webhook]]` or `[[exec]]` table.
#[derive(Debug)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// How its value is.
    pub form: KeyForm,
    /// Without being given, as shown.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// How the value of a table's key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// A text.
    Text,
    /// A text that no message may quote.
    Secret,
    /// A file, from the TOML file's folder.
    Path,
    /// A whole number.
    Number,
    /// A list of texts.
    Texts,
}

const fn key(name: &'static str, form: KeyForm, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        form,
        default,
        help,
    }
}

/// The keys of `[[webhook]]`.
pub const WEBHOOK_KEYS: &[Key] = &[
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
    key("secret", KeyForm::Secret, "", "Signs what is posted"),
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
pub const EXEC_KEYS: &[Key] = &[
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

/// The keys of the tables of a setting.
#[must_use]
pub fn keys_of(setting: &str) -> &'static [Key] {
    if setting == "exec" {
        EXEC_KEYS
    } else {
        WEBHOOK_KEYS
    }
}
