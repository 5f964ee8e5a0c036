//! The command line. The options of `run` come from [`crate::config::table`].

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};
use service::cli::{self, Cli};
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

/// A request of the command line.
#[derive(Debug)]
pub enum Request {
    /// A command that all programs have.
    Common(cli::Request),
    /// Show a running relay.
    Status {
        /// Settings of the command line.
        line: Layer,
        /// Whether to print JSON.
        json: bool,
        /// Whether to show it live on the terminal.
        watch: bool,
    },
}

const CLI: Cli = Cli {
    program: "flexfeed-relay",
    version: env!("CARGO_PKG_VERSION"),
    about: "Brings multicast to networks without it: an AMT relay (RFC 7450).",
    examples: EXAMPLES,
    run: "run",
    run_about: "Run the relay; this is the default",
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
    Ok(match matches.subcommand() {
        Some(("status", given)) => Request::Status {
            line: TABLE.line_layer(given),
            json: wants_json(given),
            watch: given.get_flag("watch"),
        },
        _ => Request::Common(CLI.request(&matches)),
    })
}

/// Returns the definition of the command line.
#[must_use]
pub fn command() -> Command {
    let status = Command::new("status")
        .about("Show a running relay: gateways, groups, packets")
        .after_help(STATUS_HELP)
        .args(TABLE.options_of(&["http", "config"]))
        .arg(json_flag("Print the relay's answer as JSON"))
        .arg(
            Arg::new("watch")
                .long("watch")
                .action(ArgAction::SetTrue)
                .conflicts_with("json")
                .help("Show it live on the terminal"),
        );
    CLI.command([status])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(arguments: &[&str]) -> Result<Request, clap::Error> {
        parse(std::iter::once(&"flexfeed-relay").chain(arguments))
    }

    #[test]
    fn commands_are_distinguished() {
        command().debug_assert();
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
        for words in [&["--mtu", "1280"][..], &["run", "--mtu", "1280"]] {
            let request = read(words).unwrap();
            assert!(matches!(request, Request::Common(cli::Request::Run(_))));
        }
        assert!(read(&["health", "--mtu", "1280"]).is_err());
    }
}
