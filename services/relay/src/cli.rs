//! The command line. The options of `run` come from [`crate::config::table`].

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};
use service::health;
use service::settings::Layer;
use service::settings::line::{json_flag, wants_json};

use crate::config::TABLE;

const EXAMPLES: &str = "\
Examples:
  Beside a source, in the same machine or container, for its flow's default port:
    flexfeed-relay

  For a multicast network behind eth1, any port (needs CAP_NET_RAW):
    flexfeed-relay --capture --native-interface eth1

  See who is served, once or live:
    flexfeed-relay status
    flexfeed-relay status --watch

Gateways reach the relay by UDP port 2268. Every flag is also a variable: FLEXFEED_RELAY_LISTEN,
FLEXFEED_RELAY_UDP_PORTS and so on, and a key of the TOML file that --config names: listen,
udp_ports. Flags win over variables, variables over the file.";

const STATUS_HELP: &str = "\
Asks the relay that answers HTTP on --http.

Exit codes:
  0  a relay answers and is ready
  1  it does not answer, or is about to stop

In the live view, q or Ctrl-C ends it, and the arrow keys scroll. NO_COLOR is respected.";

const CHECK_HELP: &str = "\
Takes all options of 'run', and reads the environment and the file as it does.

Exit codes:
  0  the settings are fine; they are shown, each with where it comes from
  2  they are not; each problem is named with where it stands";

/// What was asked for.
#[derive(Debug)]
pub enum Request {
    /// To relay.
    Run(Layer),
    /// To look at a running relay.
    Status {
        /// Where it answers.
        line: Layer,
        /// As JSON.
        json: bool,
        /// Live, on the terminal.
        watch: bool,
    },
    /// To ask a running relay whether it is well.
    Health {
        /// Where it answers.
        line: Layer,
        /// What is wanted to be known.
        wish: health::Wish,
    },
    /// To look at the settings.
    ConfigCheck {
        /// Those of the command line.
        line: Layer,
        /// As JSON.
        json: bool,
    },
}

/// Reads the command line, the program's name first.
///
/// # Errors
/// If it cannot be understood; also for help and version.
pub fn parse(
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Request, clap::Error> {
    let matches = command().try_get_matches_from(line)?;
    Ok(match matches.subcommand() {
        Some(("status", given)) => Request::Status {
            line: TABLE.line_layer(given),
            json: wants_json(given),
            watch: given.get_flag("watch"),
        },
        Some((health::NAME, given)) => Request::Health {
            line: TABLE.line_layer(given),
            wish: health::Wish::of(given),
        },
        Some(("config", given)) => match given.subcommand() {
            Some((_, given)) => Request::ConfigCheck {
                line: TABLE.line_layer(given),
                json: wants_json(given),
            },
            // Clap asks for one.
            None => Request::Run(Layer::default()),
        },
        Some((_, given)) => Request::Run(TABLE.line_layer(given)),
        None => Request::Run(TABLE.line_layer(&matches)),
    })
}

/// The definition of the command line.
#[must_use]
pub fn command() -> Command {
    let looking = || TABLE.options_of(&["http", "config"]);
    Command::new("flexfeed-relay")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Brings multicast to networks without it: an AMT relay (RFC 7450).")
        .after_help(EXAMPLES)
        .max_term_width(100)
        .args_conflicts_with_subcommands(true)
        .args(TABLE.options())
        .subcommand(
            Command::new("run")
                .about("Runs the relay; this is what happens without a command, too")
                .args(TABLE.options()),
        )
        .subcommand(
            Command::new("status")
                .about("Shows whom a running relay serves with what")
                .after_help(STATUS_HELP)
                .args(looking())
                .arg(json_flag("Prints what the relay answers, as JSON"))
                .arg(
                    Arg::new("watch")
                        .long("watch")
                        .action(ArgAction::SetTrue)
                        .conflicts_with("json")
                        .help("Shows it live on the terminal"),
                ),
        )
        .subcommand(health::command(looking()))
        .subcommand(TABLE.config_command(CHECK_HELP))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(arguments: &[&str]) -> Result<Request, clap::Error> {
        parse(std::iter::once(&"flexfeed-relay").chain(arguments))
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn run_is_the_default() {
        for line in [&["--mtu", "1280"][..], &["run", "--mtu", "1280"]] {
            let Ok(Request::Run(layer)) = read(line) else {
                panic!("{line:?}");
            };
            assert_eq!(layer.text("mtu").map(|(_, text)| text), Some("1280"));
            // Whoever says nothing says nothing, whatever the default is.
            assert_eq!(layer.0.len(), 1);
        }
    }

    #[test]
    fn commands_are_told_apart() {
        let status = read(&["status", "--http", "127.0.0.1:1", "--json"]).unwrap();
        assert!(matches!(
            status,
            Request::Status {
                json: true,
                watch: false,
                ..
            }
        ));
        assert!(read(&["status", "--json", "--watch"]).is_err());
        assert!(read(&["status", "--mtu", "1280"]).is_err());
        let health = read(&["health", "--ready", "--http", "127.0.0.1:1"]).unwrap();
        assert!(matches!(health, Request::Health { wish, .. } if wish.ready));
        assert!(read(&["health", "--mtu", "1280"]).is_err());
        let check = read(&["config", "check", "--mtu", "1280", "--json"]).unwrap();
        assert!(matches!(check, Request::ConfigCheck { json: true, .. }));
        assert!(read(&["config"]).is_err());
        assert!(read(&["nonsense"]).is_err());
    }
}
