//! The command line. The options of `serve` come from [`crate::config::table`].

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command as Clap, value_parser};
use service::health;
use service::settings::Layer;
use service::settings::line::{json_flag, wants_json};
use store::Role;

use crate::commands::{Command, Password};
use crate::config::TABLE;

const EXAMPLES: &str = "\
Examples:
  The console of a source that has its database in PostgreSQL:
    flexfeed-console --database-url postgres://flexfeed@db.example/flexfeed

  Behind a proxy with TLS on the same machine:
    flexfeed-console --public-url https://console.example.org --trusted-proxy 127.0.0.1

  A new link for the first operator, where the first one was lost:
    flexfeed-console setup-link

Every flag is also a variable: FLEXFEED_CONSOLE_LISTEN and so on, DATABASE_URL for the database; and
a key of the TOML file that --config names: listen, public_url. Flags win over variables, variables
over the file.";

const CHECK_HELP: &str = "\
Takes all options of 'serve', and reads the environment and the file as it does.

Exit codes:
  0  the settings are fine; they are shown, each with where it comes from
  2  they are not; each problem is named with where it stands";

const PASSWORD_HELP: &str = "\
The password is asked for on the terminal. Where there is none, it is the first line of standard
input, or of the file that --password-file names.";

/// Parsed command line.
#[derive(Debug)]
pub enum Request {
    /// To answer.
    Serve(Layer),
    /// To do something in the database.
    Command {
        /// The settings of the command line.
        line: Layer,
        /// The command.
        command: Command,
    },
    /// To ask a running console whether it is well.
    Health {
        /// Settings of the listener, from the command line.
        line: Layer,
        /// Question of the health check.
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
        Some(("setup-link", given)) => Request::Command {
            line: TABLE.line_layer(given),
            command: Command::SetupLink,
        },
        Some(("user", given)) => match given.subcommand() {
            Some((name, given)) => Request::Command {
                line: TABLE.line_layer(given),
                command: user(name, given),
            },
            // Clap asks for one.
            None => Request::Serve(Layer::default()),
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
            None => Request::Serve(Layer::default()),
        },
        Some((_, given)) => Request::Serve(TABLE.line_layer(given)),
        None => Request::Serve(TABLE.line_layer(&matches)),
    })
}

/// Returns the user command.
fn user(what: &str, given: &ArgMatches) -> Command {
    let text = |id: &str| {
        let found = given.try_get_one::<String>(id).ok().flatten();
        found.cloned().unwrap_or_default()
    };
    let name = || text("name");
    let password = || match given.get_one::<PathBuf>("password_file") {
        Some(path) => Password::File(path.clone()),
        None => Password::Asked,
    };
    match what {
        "add" => Command::AddUser {
            name: name(),
            role: match text("role").as_str() {
                "operator" => Role::Operator,
                _ => Role::Viewer,
            },
            password: password(),
        },
        "passwd" => Command::SetPassword {
            name: name(),
            password: password(),
        },
        "disable" => Command::SetDisabled {
            name: name(),
            disabled: true,
        },
        "enable" => Command::SetDisabled {
            name: name(),
            disabled: false,
        },
        _ => Command::ListUsers {
            json: wants_json(given),
        },
    }
}

/// The definition of the command line.
#[must_use]
pub fn command() -> Clap {
    let database =
        || TABLE.options_of(&["config", "database_url", "database_url_file", "public_url"]);
    let name = || {
        Arg::new("name")
            .value_name("NAME")
            .required(true)
            .help("The name to sign in with")
    };
    let password_file = || {
        Arg::new("password_file")
            .long("password-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("A file with the password in its first line")
    };
    let role = Arg::new("role")
        .long("role")
        .value_name("ROLE")
        .value_parser(["viewer", "operator"])
        .default_value("viewer")
        .help("Whether they may look, or look and act");
    let user =
        |name: &'static str, about: &'static str| Clap::new(name).about(about).args(database());
    Clap::new("flexfeed-console")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The operator's console of flexfeed: an API, live events and a dashboard.")
        .after_help(EXAMPLES)
        .max_term_width(100)
        .args_conflicts_with_subcommands(true)
        .args(TABLE.options())
        .subcommand(
            Clap::new("serve")
                .about("Runs the console; this is what happens without a command, too")
                .args(TABLE.options()),
        )
        .subcommand(
            Clap::new("setup-link")
                .about("Makes a new link for the first operator, instead of the one before")
                .args(database())
                .args(TABLE.options_of(&["listen"])),
        )
        .subcommand(
            Clap::new("user")
                .about("People who may use the console")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(
                    user("add", "Lets somebody in")
                        .after_help(PASSWORD_HELP)
                        .arg(name())
                        .arg(role)
                        .arg(password_file()),
                )
                .subcommand(
                    user("passwd", "Gives somebody a new password")
                        .after_help(PASSWORD_HELP)
                        .arg(name())
                        .arg(password_file()),
                )
                .subcommand(user("list", "Shows everybody").arg(json_flag("Prints them as JSON")))
                .subcommand(user("disable", "Keeps somebody out").arg(name()))
                .subcommand(user("enable", "Lets somebody in again").arg(name())),
        )
        .subcommand(health::command(TABLE.options().filter(|arg| {
            ["config", "listen"].contains(&arg.get_id().as_str())
        })))
        .subcommand(TABLE.config_command(CHECK_HELP))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(arguments: &[&str]) -> Result<Request, clap::Error> {
        parse(std::iter::once(&"flexfeed-console").chain(arguments))
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn help_names_every_setting() {
        let help = command().render_long_help().to_string();
        for setting in TABLE.settings {
            assert!(help.contains(&format!("--{}", setting.flag)), "{help}");
        }
    }

    #[test]
    fn serve_is_the_default() {
        for line in [&["--listen", ":1"][..], &["serve", "--listen", ":1"]] {
            let Ok(Request::Serve(layer)) = read(line) else {
                panic!("{line:?}");
            };
            assert_eq!(layer.text("listen").map(|(_, text)| text), Some(":1"));
            // An absent flag is absent, whatever its default.
            assert_eq!(layer.0.len(), 1);
        }
    }

    #[test]
    fn commands_are_distinguished() {
        let command = |line: &[&str]| match read(line).unwrap() {
            Request::Command { command, .. } => command,
            other => panic!("{other:?}"),
        };
        assert!(matches!(command(&["setup-link"]), Command::SetupLink));
        // The link names the console that listens there.
        let link = command(&["setup-link", "--listen", ":1"]);
        assert_eq!(link, Command::SetupLink);
        let add = command(&["user", "add", "ann", "--role", "operator"]);
        let Command::AddUser {
            name,
            role,
            password: Password::Asked,
        } = add
        else {
            panic!("{add:?}");
        };
        assert_eq!((name.as_str(), role), ("ann", Role::Operator));
        let passwd = command(&["user", "passwd", "ann", "--password-file", "x"]);
        assert!(matches!(
            passwd,
            Command::SetPassword {
                password: Password::File(_),
                ..
            }
        ));
        assert!(matches!(
            command(&["user", "list", "--json"]),
            Command::ListUsers { json: true }
        ));
        let disable = command(&["user", "disable", "ann", "--database-url", "sqlite://x"]);
        assert!(matches!(
            disable,
            Command::SetDisabled { disabled: true, .. }
        ));
        for bad in [
            &["user"][..],
            &["user", "add"],
            &["user", "add", "x", "--role", "root"],
            &["config"],
            &["nonsense"],
            &["setup-link", "--session-time", "1h"],
            &["user", "list", "--listen", ":1"],
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        let health = read(&["health", "--ready", "--listen", ":1"]).unwrap();
        assert!(matches!(health, Request::Health { wish, .. } if wish.ready));
        assert!(read(&["health", "--public-url", "x"]).is_err());
        let check = read(&["config", "check", "--listen", ":1", "--json"]).unwrap();
        assert!(matches!(check, Request::ConfigCheck { json: true, .. }));
    }
}
