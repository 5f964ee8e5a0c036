//! The command line. The options of `run` come from [`crate::config::table`].

use clap::{ArgMatches, Command};
use service::cli::Cli;
use service::program::{Answer, Failure, Program, status_command};
use service::settings::Environment;
use service::settings::line::wants_json;

use crate::config::{Settings, TABLE, http_address, load};
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

Gateways reach the relay by UDP port 2268. Every flag is also a variable: FLEXFEED_RELAY_LISTEN,
FLEXFEED_RELAY_UDP_PORTS and so on, and a key of the TOML file that --config names: listen,
udp_ports. Flags win over variables, variables over the file.";

const STATUS_HELP: &str = "\
Queries the relay that answers HTTP on --http.

Exit codes:
  0  a relay answers and is ready
  1  no relay answers, or it is shutting down

In the live view, q or Ctrl-C quits, and the arrow keys scroll. NO_COLOR is respected.";

/// The program.
pub const PROGRAM: Program<Settings> = Program {
    cli: Cli {
        program: "flexfeed-relay",
        version: env!("CARGO_PKG_VERSION"),
        about: "AMT relay (RFC 7450): brings multicast to networks without multicast.",
        examples: EXAMPLES,
        run: "run",
        run_about: "Run the relay; this is the default",
        table: TABLE,
        http: "http",
    },
    level: "info",
    commands,
    carry_out,
    redact: str::to_owned,
    load,
    http: http_address,
    log: |settings| &settings.log,
    as_text: |loaded| TABLE.check_text(loaded),
    as_json: |loaded| TABLE.check_json(loaded),
    run: |settings| run::run(settings).map_err(Failure::other),
};

fn commands() -> Vec<Command> {
    let status = status_command(
        "Show a running relay: gateways, groups, packets",
        "Print the relay's answer as JSON",
    );
    vec![
        status
            .after_help(STATUS_HELP)
            .args(TABLE.options_of(&["http", "config"])),
    ]
}

fn carry_out(given: &ArgMatches, environment: &Environment) -> Option<Result<Answer, Failure>> {
    let given = given.subcommand_matches("status")?;
    Some(show_status(given, environment))
}

fn show_status(given: &ArgMatches, environment: &Environment) -> Result<Answer, Failure> {
    let Some(address) = http_address(TABLE.line_layer(given), environment)? else {
        return Err(Failure::Usage(
            "the relay does not answer HTTP (http is off); name another address with --http"
                .to_owned(),
        ));
    };
    match given.get_flag("watch") {
        true => status::watch::watch(address).map(|()| Answer::from(String::new())),
        false => status::command::status(address, wants_json(given)).map_err(Failure::other),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use service::cli::Request;

    #[test]
    fn commands_are_distinguished() {
        PROGRAM.command().debug_assert();
        let read = |words: &[&str]| {
            let line = std::iter::once(&"flexfeed-relay").chain(words);
            PROGRAM.command().try_get_matches_from(line)
        };
        let given = read(&["status", "--http", "127.0.0.1:1", "--json"]).unwrap();
        let status = given.subcommand_matches("status").unwrap();
        assert!(wants_json(status) && !status.get_flag("watch"));
        assert!(read(&["status", "--json", "--watch"]).is_err());
        assert!(read(&["status", "--mtu", "1280"]).is_err());
        for words in [&["--mtu", "1280"][..], &["run", "--mtu", "1280"]] {
            let request = PROGRAM.cli.request(&read(words).unwrap());
            assert!(matches!(request, Request::Run(_)));
        }
        assert!(read(&["health", "--mtu", "1280"]).is_err());
    }
}
