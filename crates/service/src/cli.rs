//! The part of the command line that programs share: running, `health` and `config check`.

use clap::{Arg, Args, Command, Subcommand};

use crate::health;
use crate::settings::Table;

/// A program's command line.
#[derive(Debug, Clone, Copy)]
pub struct Cli {
    /// Name of the program.
    pub program: &'static str,
    /// Purpose of the program, in a line.
    pub about: &'static str,
    /// Examples at the end of the help.
    pub examples: &'static str,
    /// Name of the command that runs the program, and is the default.
    pub run: &'static str,
    /// Settings.
    pub table: Table<'static>,
    /// Setting with the HTTP address.
    pub http: &'static str,
    /// Whether one of the program's own commands, by its words, takes a setting.
    pub takes: fn(&str, &str) -> bool,
}

/// `config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print every problem of the settings, or every setting with its origin
    Check(Json),
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Function that may add an argument to a command, by its words.
type More<'a> = &'a dyn Fn(&str) -> Option<Arg>;

impl Cli {
    /// Returns the definition of the command line, with the program's own commands; `more` may add
    /// an argument to a command, by its words.
    pub fn command<C: Subcommand>(&self, more: More<'_>) -> Command {
        let check = format!(
            "Takes all options of '{run}', and reads the environment and the file as it does.\n\n\
             Exit codes:\n  \
             0  the settings are valid; all are shown, each with its origin, without secrets\n  \
             2  they are not; each problem is shown with its origin",
            run = self.run
        );
        let config = Config::augment_subcommands(Command::new("config"))
            .about("Check settings")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .mut_subcommand("check", |command| command.after_help(check));
        let program = self.program.trim_start_matches("flexfeed-");
        let run = format!("Run the {program}; this is the default");
        let places = format!(
            "Every flag is also a variable, such as {}LOG_LEVEL, and a key of the TOML file that\n\
             --config names, such as log_level. Flags win over variables, variables over the file.",
            self.table.prefix
        );
        let root = Command::new(self.program)
            .version(env!("CARGO_PKG_VERSION"))
            .after_help(format!("{}\n\n{places}", self.examples))
            .max_term_width(100)
            .args_conflicts_with_subcommands(true)
            .subcommand(Command::new(self.run).about(run));
        let mut root = C::augment_subcommands(root)
            .about(self.about)
            .subcommand_required(false)
            .subcommand(health::command([]))
            .args(self.table.options(|_| true));
        if !C::has_subcommand("config") {
            root = root.subcommand(config);
        }
        self.with_settings(root, "", more)
    }

    /// Adds the settings that they take to the commands within the command at `path`.
    fn with_settings(&self, command: Command, path: &str, more: More<'_>) -> Command {
        if command.has_subcommands() {
            return command.mut_subcommands(|inner| {
                let path = format!("{path} {}", inner.get_name());
                self.with_settings(inner, path.trim_start(), more)
            });
        }
        let options = self.table.options(|setting| match path {
            "config check" => true,
            _ if path == self.run => true,
            health::NAME => setting == "config" || setting == self.http,
            _ => (self.takes)(path, setting),
        });
        command.args(more(path)).args(options)
    }
}

/// Returns the function that gives each argument of a command but `others` an environment variable:
/// its name after `prefix`.
pub fn variables(
    prefix: &'static str,
    others: &'static [&'static str],
) -> impl Fn(Arg) -> Arg + Clone {
    move |arg| {
        let name = arg.get_id().to_string();
        let is_other = others.contains(&name.as_str());
        let variable = format!("{prefix}{}", name.to_ascii_uppercase());
        if is_other { arg } else { arg.env(variable) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, missing_docs)]
    use std::path::PathBuf;

    use super::*;
    use crate::settings::Layer;

    #[derive(Debug, Args)]
    struct Settings {
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long)]
        listen: Option<String>,
        #[arg(long, default_value = ".")]
        data_folder: PathBuf,
    }

    #[derive(Debug, Subcommand)]
    enum Own {
        /// Show the status
        Status(Json),
    }

    const CLI: Cli = Cli {
        program: "x",
        about: "",
        examples: "",
        run: "serve",
        table: Table::of::<Settings>("FLEXFEED_", &[]),
        http: "listen",
        takes: |path, setting| path == "status" && setting == "config",
    };

    /// Returns the name of the command, and the settings of the command line.
    fn read(words: &[&str]) -> Result<(Option<String>, Layer), clap::Error> {
        let line = std::iter::once(&"x").chain(words);
        let given = CLI.command::<Own>(&|_| None).try_get_matches_from(line)?;
        let name = given.subcommand_name().map(str::to_owned);
        Ok((name, CLI.table.line_layer(&given)))
    }

    #[test]
    fn running_is_the_default() {
        let mut command = CLI.command::<Own>(&|_| None);
        command.clone().debug_assert();
        let help = command.render_help().to_string();
        for about in [
            "Run the x; this is the default",
            "Show the status",
            "Check settings",
        ] {
            assert!(help.contains(about), "{about}: {help}");
        }
        for words in [
            &["--data-folder", "d"][..],
            &["serve", "--data-folder", "d"],
        ] {
            let (_, layer) = read(words).unwrap();
            assert_eq!(layer.text("data_folder").map(|(_, text)| text), Some("d"));
            // An absent flag is absent, whatever its default.
            assert_eq!(layer.0.len(), 1);
        }
    }

    #[test]
    fn commands_take_the_settings_that_they_need() {
        assert!(read(&["health", "--ready", "--listen", ":1"]).is_ok());
        assert!(read(&["health", "--data-folder", "d"]).is_err());
        assert!(read(&["status", "--config", "c"]).is_ok());
        assert!(read(&["status", "--listen", ":1"]).is_err());
        let (name, line) = read(&["config", "check", "--data-folder", "d", "--json"]).unwrap();
        assert_eq!(name.as_deref(), Some("config"));
        assert_eq!(line.text("data_folder").map(|(_, text)| text), Some("d"));
        for bad in ["config", "nonsense"] {
            assert!(read(&[bad]).is_err(), "{bad}");
        }
    }
}
