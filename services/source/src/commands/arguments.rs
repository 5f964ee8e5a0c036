//! Command line of the commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Subcommand};
use service::health;

use super::when;
use crate::config::{self, Groups, Keep, parse};

/// The command that is no [`Action`]: being a source.
pub(super) const RUN: &str = "run";

const JSON: &str = "json";

/// Settings that commands need: where the database is.
const FOR_ALL: [&str; 2] = ["data", "database-url"];

/// And those that make an enrolment link.
const FOR_LINKS: [&str; 5] = ["public-address", "listen", "cert", "key", "next-pin"];

/// Everything but `run`.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Enrolment tokens: credentials for new receivers
    #[command(subcommand)]
    Token(Token),
    /// Channels: what is published, each on a flow of its own
    #[command(subcommand)]
    Channel(Channel),
    /// Feeds: where a channel's entries come from
    #[command(subcommand)]
    Feed(Feed),
    /// Receivers that have enrolled
    #[command(subcommand)]
    Receiver(Receiver),
    /// Gaps: polls of a feed that shared no entry with the one before
    #[command(subcommand)]
    Gap(Gap),
    /// Saves everything in the database to a file, also while the source runs
    Backup {
        /// The file; an older backup of that name is replaced
        file: PathBuf,
    },
    /// Fills an empty database from a backup, of SQLite or PostgreSQL; receivers start over
    Restore {
        /// The backup
        file: PathBuf,
    },
    /// The settings
    #[command(subcommand)]
    Config(Settings),
}

impl Action {
    /// Whether it is about the settings themselves, wrong ones included.
    pub(super) fn looks_at_settings(&self) -> bool {
        matches!(self, Action::Config(_))
    }
}

/// `token …`.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Makes a token and prints its enrolment link
    Create(NewToken),
    /// Lists the tokens; the tokens themselves are stored nowhere
    List,
    /// Revoke an enrolment token; receivers enrolled with it stay
    Revoke {
        /// Its number, from the list
        id: i64,
    },
}

/// `token create`.
#[derive(Debug, Args)]
pub struct NewToken {
    /// Label for people
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
    /// Until when it admits somebody: a time from now such as 7d, a date such as 2027-01-31 (to its
    /// end, UTC), or an RFC 3339 time [default: for ever]
    #[arg(long, value_name = "WHEN", value_parser = when::later)]
    pub expires: Option<when::FutureTime>,
    /// Everybody may know it: it is not used up
    #[arg(long, conflicts_with = "limit")]
    pub public: bool,
    /// Admits to this channel only; may be repeated [default: all channels]
    #[arg(id = "to-channel", long = "channel", value_name = "NAME", value_parser = parse::channel)]
    pub channels: Vec<String>,
    /// Puts the link into this file, for its owner only, instead of showing it; no token is made if
    /// a link is there whose token still admits to these channels: only what else it says is
    /// brought up to date
    #[arg(long, value_name = "FILE")]
    pub link_file: Option<PathBuf>,
}

/// `channel …`.
#[derive(Debug, Subcommand)]
pub enum Channel {
    /// Adds a channel
    Add {
        /// Its name: letters, digits, '-', '_' and '.'
        #[arg(value_parser = parse::channel)]
        name: String,
        #[command(flatten)]
        settings: ChannelArguments,
    },
    /// Lists the channels
    List,
    /// Changes what is set about a channel; the rest stays
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: ChannelArguments,
    },
    /// Removes a channel with all of its updates and feeds
    Remove {
        /// Its name
        name: String,
        /// Does not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Settings of a channel.
#[derive(Debug, Args)]
pub struct ChannelArguments {
    /// Multicast groups, as those of --group; '' for no multicast [default: the next free ones]
    #[arg(long, value_name = "LIST", value_parser = parse::groups)]
    pub groups: Option<Groups>,
    /// The flow's highest rate in bit/s: 500k, 10M, 1G [default: the source's --rate]
    #[arg(id = "flow-rate", long = "rate", value_name = "RATE", value_parser = parse::rate)]
    pub rate: Option<u64>,
    /// Whether new members are kept from decrypting earlier packets
    #[arg(id = "is-private", long = "private", value_name = "true|false", num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub private: Option<bool>,
    /// Updates to keep: a number, an age, or both: 100000, 30d, 100000,30d; or all, or default for
    /// the source's --retention and --retention-age
    #[arg(long, value_name = "WHAT", value_parser = parse::keep)]
    pub keep: Option<Keep>,
}

/// `feed …`.
#[derive(Debug, Subcommand)]
pub enum Feed {
    /// Adds a feed to a channel, or changes it
    Add {
        /// The channel
        #[arg(value_name = "CHANNEL")]
        to: String,
        /// The feed's address
        url: String,
        #[command(flatten)]
        settings: FeedArguments,
    },
    /// Lists the feeds
    List {
        /// Of this channel only
        #[arg(value_name = "CHANNEL")]
        of: Option<String>,
        /// Also those that were removed
        #[arg(long)]
        all: bool,
    },
    /// Ends the polling of a feed; its updates stay
    Remove {
        /// The channel
        #[arg(value_name = "CHANNEL")]
        from: String,
        /// The feed's address, as the list shows it
        url: String,
    },
    /// Fetches a feed once and says what is there; changes nothing
    Check {
        /// The feed's address
        url: String,
        /// Allow an address in a private network
        #[arg(long)]
        local: bool,
    },
    /// Adds the feeds of an OPML list; its folders become channels
    Import {
        /// The list; - for standard input
        file: PathBuf,
        /// Puts them all into this channel
        #[arg(long, value_name = "NAME", id = "into", value_parser = parse::channel)]
        into: Option<String>,
        /// Allow addresses in private networks
        #[arg(long)]
        local: bool,
        /// Only says what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Prints the feeds as an OPML list, a folder for each channel, without passwords
    Export {
        /// Of this channel only
        #[arg(value_name = "CHANNEL")]
        of: Option<String>,
    },
}

/// Settings of a feed.
#[derive(Debug, Args)]
pub struct FeedArguments {
    /// Allow an address in a private network
    #[arg(long)]
    pub local: bool,
    /// Polls it this often, neither more nor less: 20, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = parse::interval,
          conflicts_with_all = ["min_interval", "max_interval"])]
    pub interval: Option<Duration>,
    /// Polls it no more often than this [default: the source's --min-poll-interval]
    #[arg(long, value_name = "TIME", value_parser = parse::interval)]
    pub min_interval: Option<Duration>,
    /// Polls it at least this often [default: the source's --max-poll-interval]
    #[arg(long, value_name = "TIME", value_parser = parse::interval)]
    pub max_interval: Option<Duration>,
    /// Title for people
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

/// `receiver …`.
#[derive(Debug, Subcommand)]
pub enum Receiver {
    /// Lists the receivers
    List,
    /// Admits a receiver no more, and ends its connections within two seconds
    Revoke {
        /// Its id, the beginning of its id, or its name
        who: String,
    },
    /// Forget a receiver: it may enrol again, even if it was revoked
    Forget {
        /// Its id, the beginning of its id, or its name
        who: String,
        /// Does not ask
        #[arg(long)]
        yes: bool,
    },
}

/// `gap …`.
#[derive(Debug, Subcommand)]
pub enum Gap {
    /// Lists the last gaps, newest first
    List {
        /// Of this channel only
        #[arg(value_name = "CHANNEL")]
        of: Option<String>,
        /// At most so many of each channel
        #[arg(long, value_name = "N", default_value = "20",
              value_parser = clap::value_parser!(u32).range(1..=10_000))]
        last: u32,
    },
}

/// `config …`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Settings {
    /// Reads flags, environment and file, and says what `run` would do, or everything that is wrong
    Check,
    /// Shows every setting with where it comes from
    Show,
}

/// Everything that can be given on the command line.
pub fn command() -> Command {
    let mut root = config::command();
    let about = root.get_about().cloned().unwrap_or_default();
    root = Action::augment_subcommands(root)
        .subcommand_required(false)
        .about(about)
        .subcommand(config::with_settings(health::command([]), |name| {
            name == "http"
        }));
    // `run` and `health` are there with their settings already.
    let names: Vec<String> = root
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .filter(|name| ![RUN, health::NAME].contains(&name.as_str()))
        .collect();
    for name in names {
        root = root.mut_subcommand(&name, |command| with_common(command, &name));
    }
    root
}

/// Adds `--json` and the settings that it needs to each command that does something.
fn with_common(command: Command, path: &str) -> Command {
    let inner: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    if inner.is_empty() {
        let json = Arg::new(JSON)
            .long(JSON)
            .action(ArgAction::SetTrue)
            .help("Answers with one JSON object, for programs");
        let wanted = |name: &str| match path {
            "config check" | "config show" => true,
            "token create" => FOR_ALL.contains(&name) || FOR_LINKS.contains(&name),
            "channel add" => FOR_ALL.contains(&name) || name == "group",
            _ => FOR_ALL.contains(&name),
        };
        return config::with_settings(command.arg(json), wanted);
    }
    inner.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(&name, |command| with_common(command, &path))
    })
}

/// Whether `--json` is given.
pub(super) fn wants_json(matches: &ArgMatches) -> bool {
    let mut innermost = matches;
    while let Some((_, inner)) = innermost.subcommand() {
        innermost = inner;
    }
    matches!(innermost.try_get_one::<bool>(JSON), Ok(Some(true)))
}
