//! The part of the command line that programs with a table of settings share: running, `health`
//! and `config check`.

use clap::{ArgMatches, Command};

use crate::health::{self, Question};
use crate::settings::line::wants_json;
use crate::settings::{Layer, Table};

/// A program's command line, before its own commands.
#[derive(Debug, Clone, Copy)]
pub struct Cli {
    /// Name of the program.
    pub program: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Purpose of the program, in a line.
    pub about: &'static str,
    /// Examples at the end of the help.
    pub examples: &'static str,
    /// Name of the command that runs the program, and is the default.
    pub run: &'static str,
    /// Help of that command.
    pub run_about: &'static str,
    /// Settings.
    pub table: Table,
    /// Setting with the HTTP address.
    pub http: &'static str,
}

/// A command that all programs have.
#[derive(Debug)]
pub enum Request {
    /// Run the program.
    Run(Layer),
    /// Ask a running program for its health.
    Health {
        /// Settings of the command line.
        line: Layer,
        /// Question to ask.
        question: Question,
    },
    /// Check the settings.
    ConfigCheck {
        /// Settings of the command line.
        line: Layer,
        /// Whether to answer in JSON.
        json: bool,
    },
}

impl Cli {
    /// Returns the definition of the command line; `own` are the program's own commands.
    #[must_use]
    pub fn command(&self, own: impl IntoIterator<Item = Command>) -> Command {
        Command::new(self.program)
            .version(self.version)
            .about(self.about)
            .after_help(self.examples)
            .max_term_width(100)
            .args_conflicts_with_subcommands(true)
            .args(self.table.options())
            .subcommand(
                Command::new(self.run)
                    .about(self.run_about)
                    .args(self.table.options()),
            )
            .subcommands(own)
            .subcommand(health::command(
                self.table.options_of(&["config", self.http]),
            ))
            .subcommand(self.table.config_command(self.run))
    }

    /// Returns the request of a command line that names none of the program's own commands.
    #[must_use]
    pub fn request(&self, given: &ArgMatches) -> Request {
        match given.subcommand() {
            Some((health::NAME, given)) => Request::Health {
                line: self.table.line_layer(given),
                question: Question::of(given),
            },
            Some(("config", given)) => match given.subcommand() {
                Some((_, given)) => Request::ConfigCheck {
                    line: self.table.line_layer(given),
                    json: wants_json(given),
                },
                // Clap requires a subcommand.
                None => Request::Run(Layer::default()),
            },
            Some((_, given)) => Request::Run(self.table.line_layer(given)),
            None => Request::Run(self.table.line_layer(given)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::setting;
    use crate::settings::Setting;

    const CLI: Cli = Cli {
        program: "x",
        version: "1",
        about: "",
        examples: "",
        run: "serve",
        run_about: "",
        table: Table {
            prefix: "FLEXFEED_",
            settings: &[
                Setting::CONFIG,
                setting!("listen", "ADDRESS:PORT", ""),
                setting!("data_folder", "DIR", "").path().default("."),
            ],
            other_variables: &[],
            strict: false,
        },
        http: "listen",
    };

    fn read(words: &[&str]) -> Result<Request, clap::Error> {
        let line = std::iter::once(&"x").chain(words);
        let given = CLI.command([]).try_get_matches_from(line)?;
        Ok(CLI.request(&given))
    }

    #[test]
    fn running_is_the_default() {
        CLI.command([]).debug_assert();
        for words in [
            &["--data-folder", "d"][..],
            &["serve", "--data-folder", "d"],
        ] {
            let Ok(Request::Run(layer)) = read(words) else {
                panic!("{words:?}");
            };
            assert_eq!(layer.text("data_folder").map(|(_, text)| text), Some("d"));
            // An absent flag is absent, whatever its default.
            assert_eq!(layer.0.len(), 1);
        }
    }

    #[test]
    fn common_commands_take_the_settings_that_they_need() {
        let health = read(&["health", "--ready", "--listen", ":1"]).unwrap();
        assert!(matches!(health, Request::Health { question, .. } if question.ready));
        assert!(read(&["health", "--data-folder", "d"]).is_err());
        let check = read(&["config", "check", "--data-folder", "d", "--json"]).unwrap();
        let Request::ConfigCheck { line, json: true } = check else {
            panic!("{check:?}");
        };
        assert_eq!(line.text("data_folder").map(|(_, text)| text), Some("d"));
        for bad in ["config", "nonsense"] {
            assert!(read(&[bad]).is_err(), "{bad}");
        }
    }
}
