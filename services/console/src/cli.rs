//! The command line. The options of `serve` come from [`Settings`].

use std::path::PathBuf;

use clap::{Args, Subcommand};
use service::cli::{Cli, Json};
use service::program::{Answer, Failure, Program};
use service::values::one_of;
use store::Role;

use crate::config::{Settings, TABLE, check};
use crate::{commands, run};

const EXAMPLES: &str = "\
Examples:
  The console of a source that has its database in PostgreSQL:
    flexfeed-console --database-url postgres://flexfeed@db.example/flexfeed

  Behind a proxy with TLS on the same machine:
    flexfeed-console --public-url https://console.example.org --trusted-proxy 127.0.0.1

  Recreate the setup link of the first operator:
    flexfeed-console setup-link";

const PASSWORD_HELP: &str = "\
The password is read from the terminal. Without one, it is the first line of standard input, or of
the file that --password-file names.";

/// Values of `--role`.
const ROLES: &[(&str, Role)] = &[("viewer", Role::Viewer), ("operator", Role::Operator)];

/// The program.
pub const PROGRAM: Program<Settings, Command> = Program {
    cli: Cli {
        program: "flexfeed-console",
        about: "The operator's console of flexfeed: an API, live events and a dashboard.",
        examples: EXAMPLES,
        run: "serve",
        table: TABLE,
        http: "listen",
        takes: |path, setting| match setting {
            "listen" => path == "setup-link",
            "config" | "database_url" | "database_url_file" | "public_url" => true,
            _ => false,
        },
    },
    carry_out: |command, line, environment| {
        commands::run(line, environment, &command).map(Answer::from)
    },
    check,
    log: |settings| &settings.log,
    more: |_| Default::default(),
    run: |settings| run::run(settings).map_err(Failure::other),
};

/// A command on the database.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Make a new setup link for the first operator; the previous one is revoked
    SetupLink,
    /// Manage users of the console
    #[command(subcommand)]
    User(User),
}

/// `user …`.
#[derive(Debug, Clone, Subcommand)]
pub enum User {
    /// Add a user
    #[command(after_help = PASSWORD_HELP)]
    Add {
        /// Name to sign in with
        name: String,
        /// Rights: read-only (viewer), or read and write (operator)
        #[arg(long, value_name = "ROLE", default_value = "viewer", value_parser = one_of(ROLES))]
        role: Role,
        #[command(flatten)]
        password: Password,
    },
    /// Change a user's password
    #[command(after_help = PASSWORD_HELP)]
    Passwd {
        /// Name to sign in with
        name: String,
        #[command(flatten)]
        password: Password,
    },
    /// List users
    List(Json),
    /// Disable a user
    Disable {
        /// Name to sign in with
        name: String,
    },
    /// Enable a user
    Enable {
        /// Name to sign in with
        name: String,
    },
}

/// Origin of a password; without a file, the terminal, or standard input where that is none.
#[derive(Debug, Clone, Args)]
pub struct Password {
    /// File with the password in its first line
    #[arg(id = "password_file", long = "password-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{ArgMatches, FromArgMatches};

    use super::*;

    fn read(arguments: &[&str]) -> Result<ArgMatches, clap::Error> {
        let line = std::iter::once(&"flexfeed-console").chain(arguments);
        PROGRAM.command().try_get_matches_from(line)
    }

    #[test]
    fn help_names_every_setting() {
        let help = PROGRAM.command().render_long_help().to_string();
        for setting in TABLE.settings() {
            assert!(
                help.contains(&format!("--{}", setting.arg.get_long().unwrap_or_default())),
                "{help}"
            );
        }
    }

    #[test]
    fn commands_are_distinguished() {
        PROGRAM.command().debug_assert();
        let command = |line: &[&str]| Command::from_arg_matches(&read(line).unwrap()).unwrap();
        assert!(matches!(command(&["setup-link"]), Command::SetupLink));
        // The link names the console that listens there.
        let link = command(&["setup-link", "--listen", ":1"]);
        assert!(matches!(link, Command::SetupLink));
        let user = |line: &[&str]| match command(&[&["user"], line].concat()) {
            Command::User(user) => user,
            Command::SetupLink => panic!("{line:?}"),
        };
        let add = user(&["add", "ann", "--role", "operator"]);
        let User::Add {
            name,
            role,
            password: Password { file: None },
        } = add
        else {
            panic!("{add:?}");
        };
        assert_eq!((name.as_str(), role), ("ann", Role::Operator));
        let passwd = user(&["passwd", "ann", "--password-file", "x"]);
        assert!(matches!(
            passwd,
            User::Passwd { password, .. } if password.file.is_some()
        ));
        let list = user(&["list", "--json"]);
        assert!(matches!(list, User::List(Json { json: true })));
        let disable = user(&["disable", "ann", "--database-url", "sqlite://x"]);
        assert!(matches!(disable, User::Disable { .. }));
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
        assert!(!Command::has_subcommand("serve"));
        let layer = TABLE.line_layer(&serve);
        assert_eq!(layer.text("listen").map(|(_, text)| text), Some(":1"));
    }
}
