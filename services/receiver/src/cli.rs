//! The command line. The options of `run` come from [`Settings`].

use clap::Subcommand;
use flexicast::signing::VerifyingKey;
use service::cli::Cli;
use service::program::{Answer, Failure, Program, StatusFlags};
use service::settings::{Environment, Layer};

use crate::config::{Settings, TABLE, check, complete, data_folder, load_or};
use crate::{dead_letters, doctor, run, status, verify};

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

  Prove that the source signed what is in the journal:
    flexfeed-receiver verify --key KEY

The entries are in DIR/CHANNEL.atom, which any feed reader opens.";

const STATUS_HELP: &str = "\
Exit codes:
  0  a receiver runs on the data folder, is connected and reports no problem
  1  no receiver uses the data folder, or it is not connected or reports a problem";

const DOCTOR_HELP: &str = "\
Takes all options of 'run'; without a link, the source and channels are taken from the data
folder's last status. It may run alongside the receiver. It changes nothing without --join, and
confirms no update.

Exit codes:
  0  no obstacle found; warnings are possible
  1  an obstacle found
  2  invalid settings";

const VERIFY_HELP: &str = "\
It reads the journal alone, and changes nothing; it may run alongside the receiver.

Exit codes:
  0  nothing failed; updates without a signature are possible, unless --require-signed is given
  1  an update or a file failed, or there is no journal
  2  invalid command line or settings";

/// The program.
pub const PROGRAM: Program<Settings, Command> = Program {
    cli: Cli {
        program: "flexfeed-receiver",
        about: "Receives updates from a flexfeed source and writes feed files.",
        examples: EXAMPLES,
        run: "run",
        table: TABLE,
        http: "http",
        takes: |path, setting| match path {
            "doctor" => true,
            "dead-letters retry" => setting != "link",
            _ => matches!(setting, "data" | "config"),
        },
    },
    carry_out,
    check: complete,
    log: |settings| &settings.log,
    more: check::hooks,
    run: |settings| run::run(settings).map_err(|error| Failure::Other(error.to_string())),
};

/// A command of the receiver.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the status of the receiver of a data folder
    #[command(after_help = STATUS_HELP)]
    Status(StatusFlags),
    /// Diagnose connectivity between the source and this receiver
    #[command(after_help = DOCTOR_HELP)]
    Doctor {
        /// Print the findings as JSON, at the end
        #[arg(long)]
        json: bool,
        /// Enrol and receive even if this data folder is not enrolled yet, which uses the link's
        /// token
        #[arg(long)]
        join: bool,
    },
    /// Prove offline that the updates in the journal are those that the source signed
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// Accept signatures of this key only, ed25519:…, as in links. Repeat it for several keys.
        /// Without it, the keys are those that the source announced
        #[arg(long = "key", value_name = "KEY", value_parser = str::parse::<VerifyingKey>)]
        keys: Vec<VerifyingKey>,
        /// Fail for each update that is not signed, and for a channel without any that is
        #[arg(long)]
        require_signed: bool,
    },
    /// Manage updates that could not be delivered to a webhook or command
    #[command(subcommand)]
    DeadLetters(DeadLetters),
}

/// `dead-letters …`.
#[derive(Debug, Subcommand)]
pub enum DeadLetters {
    /// List dead letters, the oldest first
    List {
        /// Only those of this webhook or command
        hook: Option<String>,
        /// Print dead letters with their events, a JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Retry the dead letters of one webhook or command; failures remain. Stop the receiver first
    Retry {
        /// The webhook or command
        hook: String,
    },
}

fn carry_out(command: Command, line: Layer, environment: &Environment) -> Result<Answer, Failure> {
    match command {
        Command::Status(StatusFlags { json, watch }) => {
            let data = data_folder(line, environment)?;
            match watch {
                true => status::watch::watch(data).map(|()| Answer::from(String::new())),
                false => status::command::status(&data, json)
                    .map_err(|error| Failure::Other(error.to_string())),
            }
        }
        Command::Doctor { json, join } => {
            let loaded = load_or(line, environment, doctor::link_of);
            let (loaded, no_link) =
                loaded.map_err(|problems| Failure::of_settings(problems, json))?;
            let options = doctor::Options {
                json,
                join,
                no_link,
            };
            let well = doctor::run(&loaded, options).map_err(Failure::other)?;
            let text = String::new();
            Ok(Answer { text, well })
        }
        Command::Verify {
            keys,
            require_signed,
        } => {
            let data = data_folder(line, environment)?;
            let rules = verify::Rules {
                keys,
                require_signed,
            };
            let proof = verify::verify(&data, &rules);
            let (text, well) = proof.map_err(|error| Failure::Other(error.to_string()))?;
            Ok(Answer { text, well })
        }
        Command::DeadLetters(DeadLetters::List { hook, json }) => {
            let data = data_folder(line, environment)?;
            let listed = dead_letters::list(&data, hook.as_deref(), json);
            let text = listed.map_err(|error| Failure::Other(error.to_string()))?;
            Ok(text.into())
        }
        Command::DeadLetters(DeadLetters::Retry { hook }) => {
            let (loaded, _) = load_or(line, environment, |_| None)?;
            let settings = loaded.settings;
            let retried = dead_letters::retry(&settings, &hook).map_err(Failure::other)?;
            let kept = &retried.kept;
            let mut text = format!("{} delivered, {} remain.\n", retried.taken, kept.len());
            for (seq, reason) in kept {
                text.push_str(&format!("  update {seq}: {reason}\n"));
            }
            let well = kept.is_empty();
            Ok(Answer { text, well })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{ArgMatches, FromArgMatches};
    use service::link::redact;

    use super::*;

    fn read(arguments: &[&str]) -> Result<ArgMatches, clap::Error> {
        let line = std::iter::once(&"flexfeed-receiver").chain(arguments);
        PROGRAM.command().try_get_matches_from(line)
    }

    fn run(arguments: &[&str]) -> Layer {
        TABLE.line_layer(&read(arguments).unwrap())
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
        let status = Command::from_arg_matches(&given).unwrap();
        assert!(matches!(
            status,
            Command::Status(StatusFlags {
                json: true,
                watch: false
            })
        ));
        assert!(read(&["status", "--json", "--watch"]).is_err());
        assert!(read(&["health", "--data", "d"]).is_err());
        let check = read(&["config", "check", "x", "--json"]).unwrap();
        let line = TABLE.line_layer(&check);
        assert_eq!(text(&line, "link").as_deref(), Some("x"));
    }

    #[test]
    fn dead_letters_are_of_a_hook() {
        let letters = |words: &[&str]| {
            let given = read(&[&["dead-letters"], words].concat())?;
            let line = TABLE.line_layer(&given);
            match Command::from_arg_matches(&given)? {
                Command::DeadLetters(letters) => Ok::<_, clap::Error>((letters, line)),
                other => panic!("{other:?}"),
            }
        };
        let (list, _) = letters(&["list", "--data", "d"]).unwrap();
        assert!(matches!(
            list,
            DeadLetters::List {
                hook: None,
                json: false
            }
        ));
        let (retry, line) = letters(&["retry", "search", "--config", "c"]).unwrap();
        assert!(matches!(retry, DeadLetters::Retry { hook } if hook == "search"));
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
        assert_eq!(layer.0["exec"].texts, ["a b", "c"]);
    }

    #[test]
    fn secrets_have_no_flag() {
        assert!(read(&["--webhook-secret", "x"]).is_err());
    }

    #[test]
    fn messages_do_not_quote_tokens() {
        let line = ["flexfeed://secret@h", "flexfeed://secret@h"];
        let text = redact(&read(&line).unwrap_err().to_string());
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("flexfeed://…@h"), "{text}");
        let layer = run(&["flexfeed://secret@h"]);
        assert!(!format!("{layer:?}").contains("secret"));
    }
}
