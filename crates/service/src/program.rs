//! A program from its command line to an exit code.

use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches, Subcommand};
use serde_json::Value as Json;
use tokio::runtime::Builder;

use crate::cli::{self, Cli, Config};
use crate::health::{self, Question, Target};
use crate::link::redact;
use crate::logging::{self, LogSettings};
use crate::settings::{Check, Environment, Layer, Loaded};

pub use crate::outcome::{Answer, FAILURE, Failure, USAGE};

/// Default log filter: the QUIC library logs ordinary events at `info` and above.
const LEVEL: &str = "info,quiche=warn";

/// Bound on the wait for blocking calls at the end: a write to a disk that hangs cannot hold the
/// program up.
pub const LAST_WAIT: Duration = Duration::from_secs(1);

/// Special parts of a program with the settings `S` and the commands `C`.
#[derive(Debug)]
pub struct Program<S, C> {
    /// Command line.
    pub cli: Cli,
    /// Carries out one of its own commands.
    pub carry_out: fn(C, Layer, &Environment) -> Result<Answer, Failure>,
    /// Checks settings that are valid one by one, and completes them.
    pub check: fn(&mut S, &mut Check),
    /// Returns the settings of the log.
    pub log: fn(&S) -> &LogSettings,
    /// Returns what `config check` shows besides the settings, for people and for programs.
    pub more: fn(&Loaded<S>) -> (String, Json),
    /// Runs the program.
    pub run: fn(&S) -> Result<(), Failure>,
}

impl<S: Args, C: Subcommand> Program<S, C> {
    /// Returns the definition of the command line.
    #[must_use]
    pub fn command(&self) -> Command {
        self.cli.command::<C>(&|_| None)
    }

    /// Carries out the command line of the process.
    #[must_use]
    pub fn main(&self) -> ExitCode {
        crate::core_dumps::forbid();
        let given = match self.command().try_get_matches() {
            Ok(given) => given,
            Err(error) if error.use_stderr() => {
                return complain(USAGE, &redact(&error.to_string()));
            }
            // Help and version are no errors, and go to standard output.
            Err(error) => {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
        };
        let environment = Environment::of_process();
        let line = self.cli.table.line_layer(&given);
        let load = |line| self.cli.table.load(line, &environment, self.check);
        match given.subcommand() {
            Some((name, _)) if C::has_subcommand(name) => {
                let command = C::from_arg_matches(&given).map_err(Failure::other);
                end(command.and_then(|own| (self.carry_out)(own, line, &environment)))
            }
            Some((health::NAME, given)) => {
                let target = Target {
                    program: self.cli.program,
                    setting: self.cli.http,
                };
                end(health::answer(target, Question::of(given), || {
                    self.cli.table.http(self.cli.http, line, &environment)
                }))
            }
            Some(("config", given)) => {
                let config = Config::from_arg_matches(given);
                let json = matches!(config, Ok(Config::Check(cli::Json { json: true })));
                let shown = load(line).map(|loaded| {
                    let (text, members) = (self.more)(&loaded);
                    match json {
                        true => format!("{:#}\n", self.cli.table.check_json(&loaded, members)),
                        false => self.cli.table.check_text(&loaded, &text),
                    }
                });
                end(shown
                    .map(Answer::from)
                    .map_err(|problems| Failure::of_settings(problems, json)))
            }
            _ => match load(line) {
                Ok(Loaded {
                    settings, warnings, ..
                }) => run((self.log)(&settings), LEVEL, &warnings, || {
                    (self.run)(&settings)
                }),
                Err(problems) => end(Err(problems.into())),
            },
        }
    }
}

/// Flags of a command `status`.
#[derive(Debug, Clone, Copy, Args)]
pub struct StatusFlags {
    /// Print the answer as JSON
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
    /// Show it live on the terminal: q or Ctrl-C quits, the arrow keys scroll; NO_COLOR is
    /// respected
    #[arg(long)]
    pub watch: bool,
}

/// Starts the log at its level or at `level`, logs the warnings, runs the program, and logs its
/// failure.
pub fn run(
    log: &LogSettings,
    level: &str,
    warnings: &[String],
    run: impl FnOnce() -> Result<(), Failure>,
) -> ExitCode {
    if let Err(error) = logging::begin(log, level) {
        return complain(USAGE, &error);
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    #[cfg(feature = "fault-injection")]
    if let Err(error) = crate::faults::inject_from_environment() {
        tracing::error!("{error}");
        return ExitCode::from(FAILURE);
    }
    let result = run();
    logging::sum_up();
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    tracing::error!("{failure}");
    ExitCode::from(failure.code())
}

/// Blocks on the program's main task, on a runtime of `builder`. Calls that still block at the end
/// are waited for no longer than `last_wait`.
///
/// # Errors
/// The error of the task, or the runtime cannot start.
pub fn block_on<T, E: From<io::Error>>(
    builder: &mut Builder,
    last_wait: Duration,
    main: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let runtime = builder.enable_all().build().map_err(|error| {
        let text = format!("cannot start the threads of this program: {error}");
        io::Error::new(error.kind(), text)
    })?;
    let result = runtime.block_on(main);
    runtime.shutdown_timeout(last_wait);
    result
}

/// Prints the output or failure of a command, and returns its exit code.
pub fn end(done: Result<Answer, Failure>) -> ExitCode {
    match done {
        Ok(Answer { text, well }) => {
            print(&text);
            ExitCode::from(if well { 0 } else { FAILURE })
        }
        Err(Failure::UsageJson(text)) => {
            print(&text);
            ExitCode::from(USAGE)
        }
        Err(failure) => complain(failure.code(), &failure.to_string()),
    }
}

/// Prints to standard output. A closed one is no failure: the exit code still counts.
pub fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Prints an error to standard error, and returns its exit code.
fn complain(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "{}", text.trim_end());
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::settings::Problems;

    #[test]
    fn exit_codes_distinguish_usage_and_failure() {
        let code = |done| format!("{:?}", end(done));
        let exit = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Ok(String::new().into())), exit(0));
        let unwell = Answer {
            text: String::new(),
            well: false,
        };
        assert_eq!(code(Ok(unwell)), exit(1));
        assert_eq!(code(Err(Failure::other("disk full"))), exit(1));
        let problems = Problems(vec!["--listen: no address".to_owned()]);
        assert_eq!(code(Err(problems.clone().into())), exit(2));
        let json = Failure::of_settings(problems, true);
        assert!(json.to_string().starts_with('{'), "{json}");
        assert_eq!(code(Err(json)), exit(2));
    }

    #[test]
    fn a_call_that_hangs_does_not_delay_the_end() {
        let (release, released) = mpsc::sync_channel::<()>(1);
        let begun = Instant::now();
        let ended = block_on(&mut Builder::new_current_thread(), Duration::ZERO, async {
            tokio::task::spawn_blocking(move || released.recv());
            Ok::<_, io::Error>(7)
        });
        assert!(matches!(ended, Ok(7)));
        // Only dropping this ends the call.
        drop(release);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
