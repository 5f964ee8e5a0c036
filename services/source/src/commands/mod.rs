//! The commands besides `run`: tokens, channels, feeds, receivers, backup. They work on the
//! database, also while the source runs, which applies changes within two seconds.
//!
//! Each returns a [`CommandOutput`], which is printed as text or, with `--json`, as one JSON
//! object. The exit code is 0, 1 if it failed, and 2 if the command line or the settings are
//! invalid.

mod archive;
mod arguments;
mod audit;
mod channel;
mod confirm;
mod database;
mod failure;
mod feed;
mod gap;
mod key;
mod link;
mod outlines;
mod progress;
mod publication;
mod receiver;
mod rows;
mod settings;
mod table;
mod text;
mod token;
mod when;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::net::SocketAddr;

use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches};
use serde_json::Value;
use service::health;
use service::logging::{LogFormat, LogSettings};
use service::settings::Environment;
use store::Store;

use crate::config::{self, Config, Resolved};
pub use arguments::Action;
#[cfg(test)]
pub(crate) use arguments::command;
use database::with_database;
pub use failure::Failure;

/// Parsed command line.
#[derive(Debug)]
pub enum Invocation {
    /// Run a source.
    Run(Box<Config>),
    /// Check the health of a running source.
    Health {
        /// Address of its status pages, or the mistakes in the settings.
        http: Result<SocketAddr, String>,
        /// Question of the health check.
        question: health::Question,
    },
    /// Run another command.
    Command(Box<Command>),
}

/// A command with its settings.
#[derive(Debug)]
pub struct Command {
    action: Action,
    json: bool,
    resolved: Resolved,
}

/// Output of a command.
#[derive(Debug)]
struct CommandOutput {
    /// Text for people.
    text: String,
    /// Object for programs.
    json: Value,
    /// Target for the audit log, where the command line does not name it exactly.
    target: Option<String>,
    /// Whether the requested state was in place already: no audit entry.
    changes_nothing: bool,
}

impl CommandOutput {
    fn new(text: impl Into<String>, json: Value) -> Self {
        let mut text = text.into();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Self {
            text,
            json,
            target: None,
            changes_nothing: false,
        }
    }

    fn about(self, target: impl ToString) -> Self {
        Self {
            target: Some(target.to_string()),
            ..self
        }
    }
}

impl Invocation {
    /// Reads the process's command line, environment and configuration file.
    ///
    /// # Errors
    /// Clap's output: help and version as well as wrong usage, with all mistakes at once.
    pub fn from_command_line() -> Result<Self, clap::Error> {
        let mut definition = arguments::command();
        let matches = definition.try_get_matches_from_mut(std::env::args_os())?;
        let environment = Environment::of_process();
        Self::read(&matches, &environment).map_err(|mistakes| {
            let text = mistakes.join("\nerror: ");
            definition.error(ErrorKind::ValueValidation, text)
        })
    }

    fn read(matches: &ArgMatches, environment: &Environment) -> Result<Self, Vec<String>> {
        let resolved = config::resolve(matches, environment);
        let named = matches.subcommand_name();
        if named.is_none() || named == Some(arguments::RUN) {
            return Ok(Self::Run(Box::new(resolved.config?)));
        }
        if let Some((health::NAME, given)) = matches.subcommand() {
            let config = resolved.config.map_err(|mistakes| mistakes.join("\n"));
            return Ok(Self::Health {
                http: config.map(|config| config.http),
                question: health::Question::of(given),
            });
        }
        let action = Action::from_arg_matches(matches).map_err(|error| vec![error.to_string()])?;
        if !action.looks_at_settings()
            && let Err(mistakes) = resolved.config
        {
            return Err(mistakes);
        }
        Ok(Self::Command(Box::new(Command {
            action,
            json: arguments::wants_json(matches),
            resolved,
        })))
    }
}

impl Command {
    /// Returns the settings of the log: warnings only, unless more is requested.
    pub fn logging(&self) -> LogSettings {
        let set = self.resolved.config.as_ref().ok().map(|config| &config.log);
        LogSettings {
            format: set.map_or(LogFormat::Text, |log| log.format),
            level: set
                .and_then(|log| log.level.clone())
                .filter(|level| !level.trim().is_empty())
                .or_else(|| Some(QUIET.to_owned())),
        }
    }

    /// Runs the command and prints the answer.
    ///
    /// # Errors
    /// The operation failed, or the request is invalid.
    pub async fn run(self) -> Result<(), Failure> {
        let json = self.json;
        let (answer, ended) = match self.resolved.config {
            Err(_) => settings::answer(&self.action, &self.resolved),
            Ok(ref config) if !self.action.looks_at_settings() => {
                (self.action.answer(config).await?, Ok(()))
            }
            Ok(_) => settings::answer(&self.action, &self.resolved),
        };
        print(&answer, json);
        ended
    }
}

impl Action {
    async fn answer(&self, config: &Config) -> Result<CommandOutput, Failure> {
        match self {
            Action::Token(action) => {
                let work = async |s: &Store| token::answer(config, s, action).await;
                with_database(config, action.note(), work).await
            }
            Action::Channel(action) => {
                let work = async |s: &Store| channel::answer(config, s, action).await;
                with_database(config, action.note(), work).await
            }
            Action::Feed(action) => feed::answer(config, action).await,
            Action::Receiver(action) => {
                let work = async |s: &Store| receiver::answer(s, action).await;
                with_database(config, action.note(), work).await
            }
            Action::Key(action) => {
                let work = async |s: &Store| key::answer(config, s, action).await;
                with_database(config, action.note(), work).await
            }
            Action::Publish(new) => {
                let body = publication::read(&new.file)?;
                let work = async |s: &Store| publication::answer(s, new, &body).await;
                with_database(config, None, work).await
            }
            Action::Gap(action) => {
                with_database(config, None, async |s| gap::answer(s, action).await).await
            }
            Action::Backup { file } => {
                with_database(config, None, async |s| archive::backup(s, file).await).await
            }
            Action::Restore { file } => archive::restore(config, file).await,
            // Answered from the settings alone.
            Action::Config(_) => Err(Failure::other("this needs no database")),
        }
    }
}

/// Log filter of commands.
const QUIET: &str = "warn";

/// Prints an answer. A closed pipe is no failure: the operation is done.
fn print(answer: &CommandOutput, json: bool) {
    let mut out = std::io::stdout().lock();
    let text = match json {
        true => format!("{:#}\n", answer.json),
        false => answer.text.clone(),
    };
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
