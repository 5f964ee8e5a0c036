//! The command line. The options of `run` come from [`crate::config::table`].

use clap::{Arg, ArgAction, ArgMatches, Command};
use service::cli::Cli;
use service::program::{Answer, Failure, Program, status_command};
use service::settings::Environment;
use service::settings::line::{json_flag, wants_json};

use crate::config::{Settings, TABLE, check, data_folder, http_address, load, load_or};
use crate::link::redact;
use crate::{dead_letters, doctor, run, status};

const EXAMPLES: &str = "\
Examples:
  Receive with the link from the source's operator (in single quotes, because of the &):
    flexfeed-receiver 'flexfeed://TOKEN@feeds.example.org:4433?pin=sha256:PIN&ch=lore'

  The same without showing the link's token in the list of processes:
    flexfeed-receiver --link-file link.txt

  Show the status, once or live:
    flexfeed-receiver status
    flexfeed-receiver status --watch

  Diagnose connectivity problems:
    flexfeed-receiver doctor --link-file link.txt

The entries are in DIR/CHANNEL.atom, which any feed reader opens. Every flag is also a variable:
FLEXFEED_LINK, FLEXFEED_LINK_FILE, FLEXFEED_DATA and so on, and a key of the TOML file that --config
names: link, link_file, data. Flags win over variables, variables over the file.";

const STATUS_HELP: &str = "\
Exit codes:
  0  a receiver runs on the data folder, is connected and reports no problem
  1  no receiver uses the data folder, or it is not connected or reports a problem

In the live view, q or Ctrl-C quits, and the arrow keys scroll. NO_COLOR is respected.";

const DOCTOR_HELP: &str = "\
Takes all options of 'run'; without a link, the source and channels are taken from the data
folder's last status. It may run alongside the receiver. It changes nothing without --join, and
confirms no update.

Exit codes:
  0  no obstacle found; warnings are possible
  1  an obstacle found
  2  invalid settings";

/// The program.
pub const PROGRAM: Program<Settings> = Program {
    cli: Cli {
        program: "flexfeed-receiver",
        version: env!("CARGO_PKG_VERSION"),
        about: "Receives updates from a flexfeed source and writes feed files.",
        examples: EXAMPLES,
        run: "run",
        run_about: "Run the receiver; this is the default",
        table: TABLE,
        http: "http",
    },
    // The QUIC library logs ordinary events at `info` and above.
    level: "info,quiche=warn",
    commands,
    carry_out,
    redact,
    load,
    http: http_address,
    log: |settings| &settings.log,
    as_text: check::text,
    as_json: check::as_json,
    run: |settings| run::run(settings).map_err(|error| Failure::Other(error.to_string())),
};

fn carry_out(given: &ArgMatches, environment: &Environment) -> Option<Result<Answer, Failure>> {
    Some(match given.subcommand()? {
        ("status", given) => show_status(given, environment),
        ("doctor", given) => examine(given, environment),
        ("dead-letters", given) => match given.subcommand()? {
            ("retry", given) => retry_letters(given, environment),
            (_, given) => list_letters(given, environment),
        },
        _ => return None,
    })
}

fn show_status(given: &ArgMatches, environment: &Environment) -> Result<Answer, Failure> {
    let data = data_folder(TABLE.line_layer(given), environment)?;
    match given.get_flag("watch") {
        true => status::watch::watch(data).map(|()| Answer::from(String::new())),
        false => {
            let answer = status::command::status(&data, wants_json(given));
            answer.map_err(|error| Failure::Other(error.to_string()))
        }
    }
}

fn examine(given: &ArgMatches, environment: &Environment) -> Result<Answer, Failure> {
    let json = wants_json(given);
    let loaded = load_or(TABLE.line_layer(given), environment, doctor::link_of);
    let (loaded, no_link) = loaded.map_err(|problems| Failure::of_settings(problems, json))?;
    let options = doctor::Options {
        json,
        join: given.get_flag("join"),
        no_link,
    };
    let well = doctor::run(&loaded, options).map_err(Failure::other)?;
    Ok(Answer {
        text: String::new(),
        well,
    })
}

fn list_letters(given: &ArgMatches, environment: &Environment) -> Result<Answer, Failure> {
    let data = data_folder(TABLE.line_layer(given), environment)?;
    let hook = given.get_one::<String>("hook").map(String::as_str);
    let listed = dead_letters::list(&data, hook, wants_json(given));
    let text = listed.map_err(|error| Failure::Other(error.to_string()))?;
    Ok(text.into())
}

fn retry_letters(given: &ArgMatches, environment: &Environment) -> Result<Answer, Failure> {
    let loaded = load(TABLE.line_layer(given), environment)?;
    let hook = given.get_one::<String>("hook").map_or("", String::as_str);
    let retried = dead_letters::retry(&loaded.settings, hook).map_err(Failure::other)?;
    let kept = &retried.kept;
    let mut text = format!("{} delivered, {} remain.\n", retried.taken, kept.len());
    for (seq, reason) in kept {
        text.push_str(&format!("  update {seq}: {reason}\n"));
    }
    let well = kept.is_empty();
    Ok(Answer { text, well })
}

fn commands() -> Vec<Command> {
    let hook = || Arg::new("hook").value_name("HOOK");
    let read_only = || TABLE.options_of(&["data", "config"]);
    let status = status_command(
        "Show the status of the receiver of a data folder",
        "Print the status file, with \"running\" added, instead of a text",
    );
    let status = status.after_help(STATUS_HELP).args(read_only());
    let doctor = Command::new("doctor")
        .about("Diagnose connectivity between the source and this receiver")
        .after_help(DOCTOR_HELP)
        .args(TABLE.options())
        .arg(json_flag("Print the findings as JSON, at the end"))
        .arg(
            Arg::new("join")
                .long("join")
                .action(ArgAction::SetTrue)
                .help(
                    "Enrol and receive even if this data folder is not enrolled yet, which uses \
                     the link's token",
                ),
        );
    let letters = Command::new("dead-letters")
        .about("Manage updates that could not be delivered to a webhook or command")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("List dead letters, the oldest first")
                .arg(hook().help("Only those of this webhook or command"))
                .args(read_only())
                .arg(json_flag(
                    "Print dead letters with their events, a JSON object per line",
                )),
        )
        .subcommand(
            Command::new("retry")
                .about(
                    "Retry the dead letters of one webhook or command; failures remain. Stop the \
                     receiver first",
                )
                .arg(hook().required(true).help("The webhook or command"))
                .args(TABLE.options().filter(|arg| arg.get_id() != "link")),
        );
    vec![status, doctor, letters]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use service::cli::Request;
    use service::settings::Layer;

    use super::*;

    fn read(arguments: &[&str]) -> Result<ArgMatches, clap::Error> {
        let line = std::iter::once(&"flexfeed-receiver").chain(arguments);
        PROGRAM.command().try_get_matches_from(line)
    }

    fn run(arguments: &[&str]) -> Layer {
        match PROGRAM.cli.request(&read(arguments).unwrap()) {
            Request::Run(layer) => layer,
            other => panic!("{other:?}"),
        }
    }

    fn text(layer: &Layer, name: &str) -> Option<String> {
        layer.text(name).map(|(_, text)| text.to_owned())
    }

    #[test]
    fn commands_are_distinguished() {
        PROGRAM.command().debug_assert();
        let layer = run(&["x", "--data", "d"]);
        assert_eq!(text(&layer, "link").as_deref(), Some("x"));
        let given = read(&["status", "--data", "d", "--json"]).unwrap();
        let status = given.subcommand_matches("status").unwrap();
        assert!(wants_json(status) && !status.get_flag("watch"));
        assert!(read(&["status", "--json", "--watch"]).is_err());
        assert!(read(&["health", "--data", "d"]).is_err());
        let check = read(&["config", "check", "x", "--json"]).unwrap();
        let check = PROGRAM.cli.request(&check);
        let Request::ConfigCheck { line, json: true } = check else {
            panic!("{check:?}");
        };
        assert_eq!(text(&line, "link").as_deref(), Some("x"));
    }

    #[test]
    fn dead_letters_are_of_a_hook() {
        let letters = |words: &[&str]| {
            let given = read(&[&["dead-letters"], words].concat())?;
            let (name, given) = given
                .subcommand_matches("dead-letters")
                .unwrap()
                .subcommand()
                .unwrap();
            let hook = given.get_one::<String>("hook").cloned();
            Ok::<_, clap::Error>((
                name.to_owned(),
                hook,
                wants_json(given),
                TABLE.line_layer(given),
            ))
        };
        let list = letters(&["list", "--data", "d"]).unwrap();
        assert_eq!((list.0.as_str(), list.1, list.2), ("list", None, false));
        let (name, hook, _, line) = letters(&["retry", "search", "--config", "c"]).unwrap();
        assert_eq!((name.as_str(), hook.as_deref()), ("retry", Some("search")));
        assert_eq!(text(&line, "config").as_deref(), Some("c"));
        assert!(letters(&["retry"]).is_err());
        assert!(letters(&[]).is_err());
    }

    #[test]
    fn switches_and_lists() {
        let layer = run(&[
            "--no-json",
            "--no-multicast=false",
            "--exec",
            "a b",
            "--exec",
            "c",
            "x",
        ]);
        assert_eq!(text(&layer, "no_json").as_deref(), Some("true"));
        assert_eq!(text(&layer, "no_multicast").as_deref(), Some("false"));
        assert_eq!(text(&layer, "link").as_deref(), Some("x"));
        assert_eq!(layer.0["exec"].texts(), ["a b", "c"]);
    }

    #[test]
    fn secrets_have_no_flag() {
        assert!(read(&["--webhook-secret", "x"]).is_err());
    }

    #[test]
    fn messages_do_not_quote_tokens() {
        let line = ["flexfeed://secret@h", "flexfeed://secret@h"];
        let text = (PROGRAM.redact)(&read(&line).unwrap_err().to_string());
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("flexfeed://…@h"), "{text}");
        let layer = run(&["flexfeed://secret@h"]);
        assert!(!format!("{layer:?}").contains("secret"));
    }
}
