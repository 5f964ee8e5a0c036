//! The command line. The options of `run` come from [`crate::config::table`].

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use service::cli::{self, Cli};
use service::settings::Layer;
use service::settings::line::{json_flag, wants_json};

use crate::config::TABLE;
use crate::link::redact;

const EXAMPLES: &str = "\
Examples:
  Receive with the link that the source's operator gave (in single quotes, for it has an &):
    flexfeed-receiver 'flexfeed://TOKEN@feeds.example.org:4433?pin=sha256:PIN&ch=lore'

  The same without showing the link's token to everybody who can list processes:
    flexfeed-receiver --link-file link.txt

  See how it does, once or live:
    flexfeed-receiver status
    flexfeed-receiver status --watch

  See what is in the way:
    flexfeed-receiver doctor --link-file link.txt

The entries are in DIR/CHANNEL.atom, which any feed reader opens. Every flag is also a variable:
FLEXFEED_LINK, FLEXFEED_LINK_FILE, FLEXFEED_DATA and so on, and a key of the TOML file that --config
names: link, link_file, data. Flags win over variables, variables over the file.";

const STATUS_HELP: &str = "\
Exit codes:
  0  a receiver runs on the data folder, is connected and reports no problem
  1  it does not run, is not connected or reports a problem, or none has ever run there

In the live view, q or Ctrl-C ends it, and the arrow keys scroll. NO_COLOR is respected.";

const DOCTOR_HELP: &str = "\
Takes all options of 'run'; without a link, what the data folder's last status says is used. It may run
beside the receiver. It changes nothing but for --join, and confirms nothing that it receives.

Exit codes:
  0  nothing is in the way; warnings are possible
  1  something is
  2  the settings are wrong";

/// A request of the command line.
#[derive(Debug)]
pub enum Request {
    /// A command that all programs have.
    Common(cli::Request),
    /// Show a running receiver.
    Status {
        /// Settings of the command line.
        line: Layer,
        /// Whether to print JSON.
        json: bool,
        /// Whether to show it live on the terminal.
        watch: bool,
    },
    /// Look for obstacles.
    Doctor {
        /// Settings of the command line.
        line: Layer,
        /// Whether to print JSON.
        json: bool,
        /// Whether to enrol.
        join: bool,
    },
    /// List dead letters.
    ListLetters {
        /// Settings of the command line.
        line: Layer,
        /// Only those of this webhook or command.
        hook: Option<String>,
        /// Whether to print JSON.
        json: bool,
    },
    /// Retry dead letters.
    RetryLetters {
        /// Settings of the command line.
        line: Layer,
        /// Webhook or command.
        hook: String,
    },
}

const CLI: Cli = Cli {
    program: "flexfeed-receiver",
    version: env!("CARGO_PKG_VERSION"),
    about: "Keeps a feed file up to date by a flexfeed source.",
    examples: EXAMPLES,
    run: "run",
    run_about: "Run the receiver; this is the default",
    table: TABLE,
    http: "http",
};

/// Parses the command line, the program's name first.
///
/// # Errors
/// The command line is not understood, or asks for help or the version.
pub fn parse(
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Request, clap::Error> {
    let matches = command().try_get_matches_from(line)?;
    let hook = |given: &ArgMatches| given.get_one::<String>("hook").cloned();
    Ok(match matches.subcommand() {
        Some(("status", given)) => Request::Status {
            line: TABLE.line_layer(given),
            json: wants_json(given),
            watch: given.get_flag("watch"),
        },
        Some(("doctor", given)) => Request::Doctor {
            line: TABLE.line_layer(given),
            json: wants_json(given),
            join: given.get_flag("join"),
        },
        Some(("dead-letters", letters)) => match letters.subcommand() {
            Some(("retry", given)) => Request::RetryLetters {
                line: TABLE.line_layer(given),
                hook: hook(given).unwrap_or_default(),
            },
            Some((_, given)) => Request::ListLetters {
                line: TABLE.line_layer(given),
                hook: hook(given),
                json: wants_json(given),
            },
            // Clap requires a subcommand.
            None => Request::Common(cli::Request::Run(Layer::default())),
        },
        _ => Request::Common(CLI.request(&matches)),
    })
}

/// Returns the definition of the command line.
#[must_use]
pub fn command() -> Command {
    let hook = || Arg::new("hook").value_name("HOOK");
    let looking = || TABLE.options_of(&["data", "config"]);
    let status = Command::new("status")
        .about("Show the status of the receiver of a data folder")
        .after_help(STATUS_HELP)
        .args(looking())
        .arg(json_flag(
            "Print the status file, with \"running\" added, instead of a text",
        ))
        .arg(
            Arg::new("watch")
                .long("watch")
                .action(ArgAction::SetTrue)
                .conflicts_with("json")
                .help("Show it live on the terminal"),
        );
    let doctor = Command::new("doctor")
        .about("Look for obstacles between the source and this receiver")
        .after_help(DOCTOR_HELP)
        .args(TABLE.options())
        .arg(json_flag("Print the findings as JSON, at the end"))
        .arg(
            Arg::new("join")
                .long("join")
                .action(ArgAction::SetTrue)
                .help(
                    "Also receive where this data folder is not enrolled yet, which counts as a use \
                     of the link's token",
                ),
        );
    let letters = Command::new("dead-letters")
        .about("Manage updates that a webhook or command finally failed to take")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("List them, the oldest first")
                .arg(hook().help("Only those of this webhook or command"))
                .args(looking())
                .arg(json_flag(
                    "Print them with their events, a JSON object per line",
                )),
        )
        .subcommand(
            Command::new("retry")
                .about(
                    "Retry those of one webhook or command; failures stay. The receiver must not \
                     run meanwhile",
                )
                .arg(hook().required(true).help("The webhook or command"))
                .args(TABLE.options().filter(|arg| arg.get_id() != "link")),
        );
    CLI.command([status, doctor, letters])
}

/// Returns a message of clap without the tokens that it may quote.
#[must_use]
pub fn usage_error(error: &clap::Error) -> String {
    redact(&error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(arguments: &[&str]) -> Result<Request, clap::Error> {
        parse(std::iter::once(&"flexfeed-receiver").chain(arguments))
    }

    fn text(layer: &Layer, name: &str) -> Option<String> {
        layer.text(name).map(|(_, text)| text.to_owned())
    }

    #[test]
    fn commands_are_distinguished() {
        command().debug_assert();
        let run = read(&["x", "--data", "d"]).unwrap();
        let Request::Common(cli::Request::Run(layer)) = run else {
            panic!("{run:?}");
        };
        assert_eq!(text(&layer, "link").as_deref(), Some("x"));
        let status = read(&["status", "--data", "d", "--json"]).unwrap();
        assert!(matches!(
            status,
            Request::Status {
                json: true,
                watch: false,
                ..
            }
        ));
        assert!(read(&["status", "--json", "--watch"]).is_err());
        assert!(read(&["health", "--data", "d"]).is_err());
        let check = read(&["config", "check", "x", "--json"]).unwrap();
        let Request::Common(cli::Request::ConfigCheck { line, json: true }) = check else {
            panic!("{check:?}");
        };
        assert_eq!(text(&line, "link").as_deref(), Some("x"));
    }

    #[test]
    fn dead_letters_are_of_a_hook() {
        let list = read(&["dead-letters", "list", "--data", "d"]).unwrap();
        assert!(matches!(
            list,
            Request::ListLetters {
                hook: None,
                json: false,
                ..
            }
        ));
        let retry = read(&["dead-letters", "retry", "search", "--config", "c"]).unwrap();
        let Request::RetryLetters { line, hook } = retry else {
            panic!("{retry:?}");
        };
        assert_eq!(
            (text(&line, "config").as_deref(), hook.as_str()),
            (Some("c"), "search")
        );
        assert!(read(&["dead-letters", "retry"]).is_err());
        assert!(read(&["dead-letters"]).is_err());
    }

    #[test]
    fn switches_and_lists() {
        let Ok(Request::Common(cli::Request::Run(layer))) = read(&[
            "--no-json",
            "--no-multicast=false",
            "--exec",
            "a b",
            "--exec",
            "c",
            "x",
        ]) else {
            panic!();
        };
        assert_eq!(text(&layer, "no_json").as_deref(), Some("true"));
        assert_eq!(text(&layer, "no_multicast").as_deref(), Some("false"));
        assert_eq!(text(&layer, "link").as_deref(), Some("x"));
        assert_eq!(layer.0["exec"].texts(), ["a b", "c"]);
    }

    #[test]
    fn secrets_that_everybody_would_see_have_no_flag() {
        assert!(read(&["--webhook-secret", "x"]).is_err());
    }

    #[test]
    fn messages_do_not_quote_tokens() {
        let line = ["flexfeed://secret@h", "flexfeed://secret@h"];
        let text = usage_error(&read(&line).unwrap_err());
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("flexfeed://…@h"), "{text}");
        let request = read(&["flexfeed://secret@h"]).unwrap();
        assert!(!format!("{request:?}").contains("secret"));
    }
}
