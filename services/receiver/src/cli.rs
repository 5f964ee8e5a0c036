//! The command line and the environment: every flag is also a variable `FLEXFEED_<FLAG>`.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::builder::FalseyValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use thiserror::Error;

use crate::durable::FileError;
use crate::link::redact;
use crate::peer_text::plain;

const EXAMPLES: &str = "\
Examples:
  Receive with the link that the source's operator gave (in single quotes, for it has an &):
    flexfeed-receiver 'flexfeed://TOKEN@feeds.example.org:4433?pin=sha256:PIN&ch=lore'

  The same without showing the link's token to everybody who can list processes:
    flexfeed-receiver --link-file link.txt

  See how it does:
    flexfeed-receiver status

The entries are in DIR/CHANNEL.atom, which any feed reader opens. Every flag is also a variable:
FLEXFEED_LINK, FLEXFEED_LINK_FILE, FLEXFEED_DATA and so on. Flags win over variables.";

const STATUS_HELP: &str = "\
Exit codes:
  0  a receiver runs on the data folder, is connected and reports no problem
  1  it does not run, is not connected or reports a problem, or none has ever run there";

/// Said where no link is given.
pub const NO_LINK: &str = "\
A receiver needs an enrolment link; the operator of the source has it. It looks like this:

  flexfeed://TOKEN@host:4433?pin=sha256:PIN&ch=lore

Give it in one of these ways:

  flexfeed-receiver 'LINK'                   in single quotes, because it has an & in it
  flexfeed-receiver --link-file FILE         keeps it out of the list of processes
  FLEXFEED_LINK or FLEXFEED_LINK_FILE        the same as environment variables, for containers

If the source is yours: it prints the link at its first start and keeps it in the file
enrolment-link of its data folder. See 'flexfeed-receiver --help' for everything else.";

/// A link file is a line; more than this is another file.
const MAX_LINK_FILE: u64 = 64 << 10;

/// The longest name for people, in bytes: what a HELLO can carry.
const MAX_NAME: usize = 255;

/// Keeps a feed file up to date by a flexfeed source.
#[derive(Debug, Parser)]
#[command(
    name = "flexfeed-receiver",
    version,
    after_help = EXAMPLES,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    /// What to do; without it, `run`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to run.
    #[command(flatten)]
    pub run: RunArguments,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the receiver; this is what happens without a command, too
    #[command(max_term_width = 100)]
    Run(RunArguments),
    /// Shows how the receiver of a data folder does
    #[command(max_term_width = 100, after_help = STATUS_HELP)]
    Status(StatusArguments),
}

/// How to run.
#[derive(Args)]
pub struct RunArguments {
    /// The enrolment link [env: FLEXFEED_LINK]
    // Not by clap, which would show the token in its messages.
    #[arg(value_name = "LINK")]
    pub link: Option<String>,

    /// A file with the enrolment link, instead of LINK [env: FLEXFEED_LINK_FILE]
    #[arg(long, value_name = "FILE", conflicts_with = "link")]
    pub link_file: Option<PathBuf>,

    /// Folder of the Atom files, the cursor and the receiver's id
    #[arg(
        long,
        value_name = "DIR",
        env = "FLEXFEED_DATA",
        default_value = "./flexfeed-receiver"
    )]
    pub data: PathBuf,

    /// What the source's operator sees this receiver as [default: this machine's name]
    #[arg(long, value_name = "NAME", env = "FLEXFEED_NAME", value_parser = name)]
    pub name: Option<Name>,

    /// An address, IPv4 or IPv6, of the interface to join multicast groups on [default: by the
    /// routing table]
    #[arg(long, value_name = "IP", env = "FLEXFEED_INTERFACE", value_parser = interface)]
    pub interface: Option<Interface>,

    /// Never joins multicast groups
    #[arg(long, env = "FLEXFEED_NO_MULTICAST", value_parser = FalseyValueParser::new())]
    pub no_multicast: bool,

    /// Never takes copies of the flow's packets; with --no-multicast, everything comes on the
    /// receiver's own connection
    #[arg(long, env = "FLEXFEED_NO_REPLICATE", value_parser = FalseyValueParser::new())]
    pub no_replicate: bool,

    /// Writes what passes on connections and flows to files in this folder, for tools that read
    /// qlog, such as qvis; they grow without end and show when what came
    #[arg(long, value_name = "DIR", env = "FLEXFEED_QLOG", value_parser = folder)]
    pub qlog: Option<Folder>,

    /// Appends a JSON line to this file for each update that is in the Atom file
    #[arg(long, value_name = "FILE", env = "FLEXFEED_DELIVERY_LOG")]
    pub delivery_log: Option<PathBuf>,

    /// Form of the log, which goes to standard error
    #[arg(
        long,
        value_name = "FORM",
        env = "FLEXFEED_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,

    /// What to log: error, warn, info, debug, trace, or filters as in RUST_LOG, which counts where
    /// this is not given [default: info]
    #[arg(long, value_name = "LEVEL", env = "FLEXFEED_LOG_LEVEL")]
    pub log_level: Option<String>,
}

impl std::fmt::Debug for RunArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the link, which holds a secret.
        f.debug_struct("RunArguments")
            .field("data", &self.data)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What to show.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Data folder of the receiver
    #[arg(
        long,
        value_name = "DIR",
        env = "FLEXFEED_DATA",
        default_value = "./flexfeed-receiver"
    )]
    pub data: PathBuf,

    /// Prints the status file, with "running" added, instead of a text
    #[arg(long)]
    pub json: bool,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object in each line.
    Json,
}

/// A name for people; an empty one, as an unset variable in a compose file makes it, is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(pub Option<String>);

/// An interface's address; an empty one is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface(pub Option<IpAddr>);

/// A folder; an empty one is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(pub Option<PathBuf>);

fn name(text: &str) -> Result<Name, String> {
    let text = text.trim();
    if text.len() > MAX_NAME {
        return Err(format!("a name has at most {MAX_NAME} bytes"));
    }
    if text.contains(char::is_control) {
        return Err("a name has no control characters".into());
    }
    Ok(Name((!text.is_empty()).then(|| text.to_owned())))
}

fn interface(text: &str) -> Result<Interface, String> {
    if text.is_empty() {
        return Ok(Interface(None));
    }
    let wrong = |what: &str| {
        format!(
            "{what}; give the address of an interface of this machine, such as 192.0.2.7 or \
             2001:db8::7"
        )
    };
    let ip: IpAddr = text.parse().map_err(|_| wrong("not an IP address"))?;
    if ip.is_multicast() || ip.is_unspecified() {
        return Err(wrong("no interface has that address"));
    }
    Ok(Interface(Some(ip)))
}

// Never wrong, but clap wants to hear so.
#[expect(clippy::unnecessary_wraps, reason = "the form of a value parser")]
fn folder(text: &str) -> Result<Folder, String> {
    Ok(Folder((!text.is_empty()).then(|| text.into())))
}

/// Why there is no link to go by.
#[derive(Debug, Error)]
pub enum NoLink {
    /// None was given.
    #[error("{NO_LINK}")]
    Missing,
    /// Two were, and it is not clear which one counts.
    #[error("both FLEXFEED_LINK and FLEXFEED_LINK_FILE are set; unset one of them")]
    Two,
    /// The file cannot be read.
    #[error("{0}; it should hold the enrolment link")]
    Unreadable(FileError),
    /// The file is too long or not text.
    #[error("{} is no file with an enrolment link", .0.display())]
    NoText(PathBuf),
}

impl RunArguments {
    /// The text of the link: the flags' if one is given, or the environment's, which `variable`
    /// looks up.
    ///
    /// # Errors
    /// If there is none, or its file cannot be read.
    pub fn link_text(&self, variable: impl Fn(&str) -> Option<String>) -> Result<String, NoLink> {
        let set = |name| variable(name).filter(|value| !value.trim().is_empty());
        match (&self.link, &self.link_file) {
            (Some(link), _) => return Ok(link.clone()),
            (None, Some(file)) => return read_link(file),
            (None, None) => {}
        }
        match (set("FLEXFEED_LINK"), set("FLEXFEED_LINK_FILE")) {
            (Some(_), Some(_)) => Err(NoLink::Two),
            (Some(link), None) => Ok(link),
            (None, Some(file)) => read_link(Path::new(&file)),
            (None, None) => Err(NoLink::Missing),
        }
    }
}

/// The first line that is neither empty nor a comment.
fn read_link(path: &Path) -> Result<String, NoLink> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LINK_FILE + 1).read_to_end(&mut bytes))
        .map_err(FileError::of("read the link file", path))
        .map_err(NoLink::Unreadable)?;
    let no_text = || NoLink::NoText(path.to_owned());
    if bytes.len() as u64 > MAX_LINK_FILE {
        return Err(no_text());
    }
    let text = String::from_utf8(bytes).map_err(|_| no_text())?;
    let mut lines = text.lines().map(str::trim);
    let link = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(link.ok_or_else(no_text)?.to_owned())
}

/// A message of clap about what was typed, without the tokens that it may quote.
#[must_use]
pub fn usage_error(error: &clap::Error) -> String {
    redact(&error.to_string())
}

/// Those variables of the environment that look like settings and are none: a typing error, or a
/// setting that this build does not have.
#[must_use]
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    const PREFIX: &str = "FLEXFEED_";
    /// Those that clap does not know of.
    const OTHERS: &[&str] = &[
        "FLEXFEED_LINK",
        "FLEXFEED_LINK_FILE",
        #[cfg(feature = "sabotage")]
        "FLEXFEED_SABOTAGE",
    ];
    let command = Arguments::command();
    let known: Vec<_> = std::iter::once(&command)
        .chain(command.get_subcommands())
        .flat_map(clap::Command::get_arguments)
        .filter_map(clap::Arg::get_env)
        .collect();
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && !OTHERS.contains(&name.as_str()))
        .filter(|name| !known.iter().any(|known| *known == name.as_str()))
        .map(|name| plain(&name))
        .collect();
    unknown.sort();
    unknown
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn run(arguments: &[&str]) -> RunArguments {
        let line = std::iter::once(&"flexfeed-receiver").chain(arguments);
        let parsed = Arguments::try_parse_from(line).unwrap();
        match parsed.command {
            None => parsed.run,
            Some(Command::Run(run)) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn run_is_the_default() {
        for line in [&["x", "--data", "d"][..], &["run", "x", "--data", "d"]] {
            let run = run(line);
            assert_eq!(run.link.as_deref(), Some("x"));
            assert_eq!(run.data, Path::new("d"));
            assert_eq!(run.log_format, LogFormat::Text);
            assert!(!run.no_multicast);
        }
        let line = ["flexfeed-receiver", "status", "--data", "d", "--json"];
        let parsed = Arguments::try_parse_from(line).unwrap();
        assert!(
            matches!(parsed.command, Some(Command::Status(s)) if s.json && s.data == Path::new("d"))
        );
    }

    #[test]
    fn empty_settings_are_none_and_wrong_ones_are_refused() {
        let none = run(&["--name", " ", "--interface", "", "--qlog", ""]);
        assert_eq!(none.name, Some(Name(None)));
        assert_eq!(none.interface, Some(Interface(None)));
        assert_eq!(none.qlog, Some(Folder(None)));
        for ip in ["192.0.2.7", "2001:db8::7"] {
            let given = run(&["--interface", ip, "--qlog", "q", "--no-replicate"]);
            assert_eq!(given.interface, Some(Interface(Some(ip.parse().unwrap()))));
            assert_eq!(given.qlog, Some(Folder(Some("q".into()))));
            assert!(given.no_replicate && !given.no_multicast);
        }
        for bad in [
            &["--interface", "eth0"][..],
            &["--interface", "ff3e::1"],
            &["--interface", "0.0.0.0"],
            &["--name", "a\nb"],
            &["--name", &"x".repeat(256)],
            &["--log-format", "xml"],
            &["x", "--link-file", "f"],
        ] {
            let line = std::iter::once(&"flexfeed-receiver").chain(bad);
            assert!(Arguments::try_parse_from(line).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn flags_win_over_variables_and_two_of_a_kind_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("link");
        std::fs::write(&file, "# from the operator\n\n  flexfeed://file \n").unwrap();
        let file = file.display().to_string();
        let both = |name: &str| match name {
            "FLEXFEED_LINK" => Some("flexfeed://variable".to_owned()),
            "FLEXFEED_LINK_FILE" => Some(file.clone()),
            _ => None,
        };
        assert_eq!(
            run(&["flexfeed://flag"]).link_text(both).unwrap(),
            "flexfeed://flag"
        );
        let by_file = run(&["--link-file", &file]);
        assert_eq!(by_file.link_text(both).unwrap(), "flexfeed://file");
        assert!(matches!(run(&[]).link_text(both), Err(NoLink::Two)));
        let one =
            |wanted: &'static str| move |name: &str| (name == wanted).then(|| both(name)).flatten();
        assert_eq!(
            run(&[]).link_text(one("FLEXFEED_LINK")).unwrap(),
            "flexfeed://variable"
        );
        assert_eq!(
            run(&[]).link_text(one("FLEXFEED_LINK_FILE")).unwrap(),
            "flexfeed://file"
        );
        assert!(matches!(
            run(&[]).link_text(|_| Some(" ".into())),
            Err(NoLink::Missing)
        ));
    }

    #[test]
    fn a_link_file_that_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        let error = read_link(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        for content in [&b""[..], b"# nothing\n", b"\xff", &[b'x'; 70_000]] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(read_link(&path), Err(NoLink::NoText(_))));
        }
    }

    #[test]
    fn messages_do_not_quote_tokens() {
        let line = [
            "flexfeed-receiver",
            "flexfeed://secret@h",
            "flexfeed://secret@h",
        ];
        let text = usage_error(&Arguments::try_parse_from(line).unwrap_err());
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("flexfeed://…@h"), "{text}");
        assert!(!format!("{:?}", run(&["flexfeed://secret@h"])).contains("secret"));
    }

    #[test]
    fn variables_that_are_no_settings_are_found() {
        let names = [
            "PATH",
            "FLEXFEED_DATA",
            "FLEXFEED_LINK_FILE",
            "FLEXFEED_DELIVERY_LOG",
            "FLEXFEED_LINKS",
            "FLEXFEED_",
            "XFLEXFEED_A",
        ];
        let unknown = unknown_variables(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(unknown, ["FLEXFEED_", "FLEXFEED_LINKS"]);
    }
}
