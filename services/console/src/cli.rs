//! The command line. The options of `serve` come from [`crate::config::table`].

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command as Clap, value_parser};
use service::cli::Cli;
use service::program::{Answer, Failure, Program};
use service::settings::Environment;
use service::settings::line::{json_flag, wants_json};
use store::Role;

use crate::commands::{self, Command, Password};
use crate::config::{Settings, TABLE, load, load_listen};
use crate::run;

const EXAMPLES: &str = "\
Examples:
  The console of a source that has its database in PostgreSQL:
    flexfeed-console --database-url postgres://flexfeed@db.example/flexfeed

  Behind a proxy with TLS on the same machine:
    flexfeed-console --public-url https://console.example.org --trusted-proxy 127.0.0.1

  Recreate the setup link of the first operator:
    flexfeed-console setup-link

Every flag is also a variable: FLEXFEED_CONSOLE_LISTEN and so on, DATABASE_URL for the database; and
a key of the TOML file that --config names: listen, public_url. Flags win over variables, variables
over the file.";

const PASSWORD_HELP: &str = "\
The password is read from the terminal. Without one, it is the first line of standard input, or of
the file that --password-file names.";

/// The program.
pub const PROGRAM: Program<Settings> = Program {
    cli: Cli {
        program: "flexfeed-console",
        version: env!("CARGO_PKG_VERSION"),
        about: "The operator's console of flexfeed: an API, live events and a dashboard.",
        examples: EXAMPLES,
        run: "serve",
        run_about: "Run the console; this is the default",
        table: TABLE,
        http: "listen",
    },
    level: "info",
    commands: definitions,
    carry_out,
    redact: str::to_owned,
    load,
    http: |line, environment| load_listen(line, environment).map(Some),
    log: |settings| &settings.log,
    as_text: |loaded| TABLE.check_text(loaded),
    as_json: |loaded| TABLE.check_json(loaded),
    run: |settings| run::run(settings).map_err(Failure::other),
};

fn carry_out(given: &ArgMatches, environment: &Environment) -> Option<Result<Answer, Failure>> {
    let (given, command) = command(given)?;
    let done = commands::run(TABLE.line_layer(given), environment, &command);
    Some(done.map(Answer::from))
}

/// Returns the command on the database, with its arguments.
fn command(given: &ArgMatches) -> Option<(&ArgMatches, Command)> {
    match given.subcommand()? {
        ("setup-link", given) => Some((given, Command::SetupLink)),
        ("user", given) => {
            let (name, given) = given.subcommand()?;
            Some((given, user(name, given)))
        }
        _ => None,
    }
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
        None => Password::Prompted,
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

/// Returns the definitions of the commands on the database.
fn definitions() -> Vec<Clap> {
    let database =
        || TABLE.options_of(&["config", "database_url", "database_url_file", "public_url"]);
    let name = || {
        Arg::new("name")
            .value_name("NAME")
            .required(true)
            .help("Name to sign in with")
    };
    let password_file = || {
        Arg::new("password_file")
            .long("password-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("File with the password in its first line")
    };
    let role = Arg::new("role")
        .long("role")
        .value_name("ROLE")
        .value_parser(["viewer", "operator"])
        .default_value("viewer")
        .help("Rights: read-only (viewer), or read and write (operator)");
    let user =
        |name: &'static str, about: &'static str| Clap::new(name).about(about).args(database());
    let setup_link = Clap::new("setup-link")
        .about("Make a new setup link for the first operator; the previous one is revoked")
        .args(database())
        .args(TABLE.options_of(&["listen"]));
    let user = Clap::new("user")
        .about("Manage users of the console")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            user("add", "Add a user")
                .after_help(PASSWORD_HELP)
                .arg(name())
                .arg(role)
                .arg(password_file()),
        )
        .subcommand(
            user("passwd", "Change a user's password")
                .after_help(PASSWORD_HELP)
                .arg(name())
                .arg(password_file()),
        )
        .subcommand(user("list", "List users").arg(json_flag("Print JSON")))
        .subcommand(user("disable", "Disable a user").arg(name()))
        .subcommand(user("enable", "Enable a user").arg(name()));
    vec![setup_link, user]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use service::cli::Request;

    use super::*;

    fn read(arguments: &[&str]) -> Result<ArgMatches, clap::Error> {
        let line = std::iter::once(&"flexfeed-console").chain(arguments);
        PROGRAM.command().try_get_matches_from(line)
    }

    #[test]
    fn help_names_every_setting() {
        let help = PROGRAM.command().render_long_help().to_string();
        for setting in TABLE.settings {
            assert!(help.contains(&format!("--{}", setting.flag)), "{help}");
        }
    }

    #[test]
    fn commands_are_distinguished() {
        PROGRAM.command().debug_assert();
        let command = |line: &[&str]| super::command(&read(line).unwrap()).unwrap().1;
        assert!(matches!(command(&["setup-link"]), Command::SetupLink));
        // The link names the console that listens there.
        let link = command(&["setup-link", "--listen", ":1"]);
        assert_eq!(link, Command::SetupLink);
        let add = command(&["user", "add", "ann", "--role", "operator"]);
        let Command::AddUser {
            name,
            role,
            password: Password::Prompted,
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
        assert!(read(&["health", "--public-url", "x"]).is_err());
        let serve = read(&["serve", "--listen", ":1"]).unwrap();
        assert!(super::command(&serve).is_none());
        assert!(matches!(PROGRAM.cli.request(&serve), Request::Run(_)));
    }
}
