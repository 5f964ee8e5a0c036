//! Command line of the commands.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Subcommand};
use service::cli::Cli;
use service::health;
use service::link::channel;

use super::when;
use crate::config::{ChannelArguments, FeedArguments, TABLE};

const EXAMPLES: &str = "\
Examples:
  Push the Linux kernel's lists to receivers on this machine:
    flexfeed-source --feed https://lore.kernel.org/all/new.atom

  Serve receivers elsewhere, which reach this machine as feeds.example.org, UDP port 4433:
    flexfeed-source --feed https://example.org/feed.atom --public-address feeds.example.org

  By IPv4 and IPv6 multicast, and a second channel:
    flexfeed-source --feed https://example.org/feed.atom --group '232.1.1.1:4434,[ff3e::1]:4434' \\
      --channel-spec 'news,feed=https://example.org/news.atom,rate=5M'

  Without multicast and copies, every receiver on its own connection:
    flexfeed-source --feed https://example.org/feed.atom --group '' --no-replicate

The first start makes a certificate and prints an enrolment link for receivers. It stays in
DIR/enrolment-link.";

/// The flag for an answer in JSON.
const JSON: &str = "json";

/// The command that runs the source; all others are an [`Action`].
pub(super) const RUN: &str = "run";

/// Settings of all commands: those of the database.
const FOR_ALL: [&str; 3] = ["config", "data", "database_url"];

/// Settings of an enrolment link.
const FOR_LINKS: [&str; 5] = ["public_address", "listen", "cert", "key", "next_pin"];

/// Everything but `run`.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Manage enrolment tokens, the credentials of new receivers
    #[command(subcommand)]
    Token(Token),
    /// Manage channels, the sequences of updates, each on a flow of its own
    #[command(subcommand)]
    Channel(Channel),
    /// Manage feeds, the origins of a channel's entries
    #[command(subcommand)]
    Feed(Feed),
    /// Manage enrolled receivers
    #[command(subcommand)]
    Receiver(Receiver),
    /// Manage the key that signs updates
    #[command(subcommand)]
    Key(Key),
    /// Publish an entry in a channel, durably, and print its id. In a live channel, send a message
    /// to the connected receivers, once
    Publish(NewPublication),
    /// List suspected gaps: polls of a feed without an entry of the previous one
    #[command(subcommand)]
    Gap(Gap),
    /// Save everything in the database to a file, also while the source runs
    Backup {
        /// File; an older backup of that name is replaced
        file: PathBuf,
    },
    /// Fill an empty database, SQLite or PostgreSQL, from a backup; receivers resynchronise
    Restore {
        /// Backup
        file: PathBuf,
    },
    /// Check or show the settings of flags, environment and file
    #[command(subcommand)]
    Config(Settings),
}

impl Action {
    /// Whether the command shows the settings, invalid ones included.
    pub(super) fn looks_at_settings(&self) -> bool {
        matches!(self, Action::Config(_))
    }
}

/// `token …`.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Create a token and print its enrolment link
    Create(NewToken),
    /// List the tokens, without their secrets, which are not stored
    List,
    /// Revoke an enrolment token; receivers enrolled with it stay
    Revoke {
        /// Number of the token, from the list
        id: i64,
    },
}

/// `token create`.
#[derive(Debug, Args)]
pub struct NewToken {
    /// Display label
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub label: String,
    /// Number of receivers it admits [default: any number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// End of its validity: a time from now such as 7d, a date such as 2027-01-31 (to its end,
    /// UTC), or an RFC 3339 time [default: unlimited]
    #[arg(long, value_name = "WHEN", value_parser = when::later)]
    pub expires: Option<when::FutureTime>,
    /// Make it a public token: for any number of receivers
    #[arg(long, conflicts_with = "limit")]
    pub public: bool,
    /// Admit to this channel only; can be repeated [default: all channels]
    #[arg(id = "to-channel", long = "channel", value_name = "NAME", value_parser = channel)]
    pub channels: Vec<String>,
    /// Write the link to this file, for its owner only, instead of printing it; if its link has a
    /// token that still admits to these channels, no token is created and only the rest of the link
    /// is updated
    #[arg(long, value_name = "FILE")]
    pub link_file: Option<PathBuf>,
}

/// `channel …`.
#[derive(Debug, Subcommand)]
pub enum Channel {
    /// Add a channel
    Add {
        /// Name: letters, digits, '-', '_' and '.'
        #[arg(value_parser = channel)]
        name: String,
        #[command(flatten)]
        settings: ChannelArguments,
    },
    /// List the channels
    List,
    /// Change the given settings of a channel; the others stay
    Set {
        /// Name
        name: String,
        #[command(flatten)]
        settings: ChannelArguments,
    },
    /// Remove a channel with all of its updates and feeds
    Remove {
        /// Name
        name: String,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// `feed …`.
#[derive(Debug, Subcommand)]
pub enum Feed {
    /// Add a feed to a channel, or change it
    Add {
        /// Channel
        #[arg(value_name = "CHANNEL")]
        to: String,
        /// Address of the feed
        url: String,
        #[command(flatten)]
        settings: FeedArguments,
        /// Display title
        #[arg(long, value_name = "TEXT")]
        title: Option<String>,
    },
    /// List the feeds
    List {
        /// Only those of this channel
        #[arg(value_name = "CHANNEL")]
        of: Option<String>,
        /// Include removed ones
        #[arg(long)]
        all: bool,
    },
    /// Stop polling a feed; its updates are kept
    Remove {
        /// Channel
        #[arg(value_name = "CHANNEL")]
        from: String,
        /// Address of the feed, as the list shows it
        url: String,
    },
    /// Fetch a feed once and describe it; changes nothing
    Check {
        /// Address of the feed
        url: String,
        /// Allow an address in a private network
        #[arg(long)]
        local: bool,
    },
    /// Add the feeds of an OPML list; its folders become channels
    Import {
        /// OPML list; - for standard input
        file: PathBuf,
        /// Add all of them to this channel
        #[arg(long, value_name = "NAME", id = "into", value_parser = channel)]
        into: Option<String>,
        /// Allow addresses in private networks
        #[arg(long)]
        local: bool,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the feeds as an OPML list, a folder for each channel, without passwords
    Export {
        /// Only those of this channel
        #[arg(value_name = "CHANNEL")]
        of: Option<String>,
    },
}

/// `receiver …`.
#[derive(Debug, Subcommand)]
pub enum Receiver {
    /// List the receivers
    List,
    /// Revoke the credential of a receiver, and end its connections within two seconds
    Revoke {
        /// Id of the receiver, the beginning of the id, or the name
        #[arg(value_name = "RECEIVER")]
        who: String,
    },
    /// Delete the record of a receiver, which may then enrol again, even if it was revoked
    Forget {
        /// Id of the receiver, the beginning of the id, or the name
        #[arg(value_name = "RECEIVER")]
        who: String,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// `key …`.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Print the public key that signs updates, and those before it
    Show,
    /// Let the key vouch for all keys that signed what is kept, as after a restore or with sources
    /// that had a key each
    Vouch,
    /// Replace the key by a new one, which the present one vouches for; it signs from the source's
    /// next start
    Rotate {
        /// Write the new key to this file, for its owner only, in place of the present key's file
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// The present key is lost: receivers that pin it stop until they get a new link
        #[arg(long)]
        lost: bool,
    },
}

/// `publish`.
#[derive(Debug, Args)]
pub struct NewPublication {
    /// Channel
    #[arg(id = "to-channel", value_name = "CHANNEL")]
    pub channel: String,
    /// Entry, of at most 1 MiB, or message, of at most 64 KiB; - for standard input
    #[arg(default_value = "-", hide_default_value = true)]
    pub file: PathBuf,
    /// Id; an entry that the channel has already, and a message that was sent in the last ten
    /// minutes, is not published again [default: the id of a JSON Feed item, or a new UUID]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Title [default: the first line of a text; messages: none]
    #[arg(long, visible_alias = "subject", value_name = "TEXT")]
    pub title: Option<String>,
    /// Page that the entry is about
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Media type: text/plain, text/html or application/json for an entry (an object with the
    /// members of a JSON Feed item is that item); any for a message [default: text/plain; for
    /// messages that are not UTF-8, application/octet-stream]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
}

/// `gap …`.
#[derive(Debug, Subcommand)]
pub enum Gap {
    /// List the last gaps, newest first
    List {
        /// Only those of this channel
        #[arg(value_name = "CHANNEL")]
        of: Option<String>,
        /// Maximum number of gaps of each channel
        #[arg(long, value_name = "N", default_value = "20",
              value_parser = clap::value_parser!(u32).range(1..=10_000))]
        last: u32,
    },
}

/// `config …`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Settings {
    /// Print what `run` would do with the settings, or all of their errors
    Check,
    /// Print every setting with its origin
    Show,
}

/// The command line.
const CLI: Cli = Cli {
    program: "flexfeed-source",
    about: "Reads feeds and pushes every new entry to all receivers at once",
    examples: EXAMPLES,
    run: RUN,
    table: TABLE,
    http: "http",
    takes: |path, setting| match path {
        "config check" | "config show" => true,
        "token create" if FOR_LINKS.contains(&setting) => true,
        "channel add" if setting == "group" => true,
        "key show" | "key rotate" | "key vouch" if setting == "signing_key" => true,
        _ => FOR_ALL.contains(&setting),
    },
};

/// Returns the definition of the command line.
pub fn command() -> Command {
    let json = Arg::new(JSON)
        .long(JSON)
        .action(ArgAction::SetTrue)
        .help("Print one JSON object, for programs");
    CLI.command::<Action>(&|path| match path {
        RUN | health::NAME => None,
        _ => Some(json.clone()),
    })
    .args_conflicts_with_subcommands(false)
}

/// Whether `--json` is given.
pub(super) fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => wants_json(inner),
        None => matches!(matches.try_get_one(JSON), Ok(Some(true))),
    }
}
