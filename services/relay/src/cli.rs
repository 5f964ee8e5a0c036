//! The command line. The options of `run` come from [`Settings`].

use clap::Subcommand;
use service::cli::Cli;
use service::program::{Answer, Failure, Program, StatusFlags};
use service::settings::{Environment, Layer};

use crate::config::{Settings, TABLE, check};
use crate::{run, status};

const EXAMPLES: &str = "\
Examples:
  Next to a source, on the same machine or in the same container, for its flow's default port:
    flexfeed-relay

  For a multicast network behind eth1, any port (needs CAP_NET_RAW):
    flexfeed-relay --capture --native-interface eth1

  Show the gateways served, once or live:
    flexfeed-relay status
    flexfeed-relay status --watch

Gateways reach the relay by UDP port 2268.";

const STATUS_HELP: &str = "\
Queries the relay that answers HTTP on --http.

Exit codes:
  0  a relay answers and is ready
  1  no relay answers, or it is shutting down";

/// The program.
pub const PROGRAM: Program<Settings, Command> = Program {
    cli: Cli {
        program: "flexfeed-relay",
        about: "AMT relay (RFC 7450): brings multicast to networks without multicast.",
        examples: EXAMPLES,
        run: "run",
        table: TABLE,
        http: "http",
        takes: |_, setting| matches!(setting, "http" | "config"),
    },
    carry_out,
    check,
    log: |settings| &settings.log,
    more: |_| Default::default(),
    run: |settings| run::run(settings).map_err(Failure::other),
};

/// A command of the relay.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a running relay: gateways, groups, packets
    #[command(after_help = STATUS_HELP)]
    Status(StatusFlags),
}

fn carry_out(
    Command::Status(flags): Command,
    line: Layer,
    environment: &Environment,
) -> Result<Answer, Failure> {
    let Some(address) = TABLE.http("http", line, environment)? else {
        return Err(Failure::Usage(
            "the relay does not answer HTTP (http is off); name another address with --http"
                .to_owned(),
        ));
    };
    match flags.watch {
        true => status::watch::watch(address).map(|()| Answer::from(String::new())),
        false => status::command::status(address, flags.json).map_err(Failure::other),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn commands_are_distinguished() {
        PROGRAM.command().debug_assert();
        let read = |words: &[&str]| {
            let line = std::iter::once(&"flexfeed-relay").chain(words);
            PROGRAM.command().try_get_matches_from(line)
        };
        let given = read(&["status", "--http", "127.0.0.1:1", "--json"]).unwrap();
        let Command::Status(flags) = Command::from_arg_matches(&given).unwrap();
        assert!(flags.json && !flags.watch);
        assert!(read(&["status", "--json", "--watch"]).is_err());
        assert!(read(&["status", "--mtu", "1280"]).is_err());
        for words in [&["--mtu", "1280"][..], &["run", "--mtu", "1280"]] {
            let layer = TABLE.line_layer(&read(words).unwrap());
            assert_eq!(layer.text("mtu").map(|(_, text)| text), Some("1280"));
        }
        assert!(read(&["health", "--mtu", "1280"]).is_err());
    }
}
