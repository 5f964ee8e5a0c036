//! Command-line options of the settings, and their values on a command line.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::layer::{Layer, Origin, Value};
use super::table::{Form, Place, Setting, Table};

const JSON: &str = "json";

impl Table {
    /// Returns the options of all settings that can be on the command line.
    pub fn options(self) -> impl Iterator<Item = Arg> {
        let settings = self.settings.iter().filter(|setting| setting.on_line());
        settings.map(move |setting| self.option(setting))
    }

    /// Returns the options of these settings only.
    pub fn options_of(self, names: &[&str]) -> impl Iterator<Item = Arg> {
        self.options()
            .filter(|option| names.contains(&option.get_id().as_str()))
    }

    /// Returns the flag or argument of a setting. Clap reads no variables: they are a layer of
    /// their own, and clap would quote their values, some of which are secrets.
    fn option(&self, setting: &'static Setting) -> Arg {
        let mut help = format!("{} [env: {}]", setting.help, self.variable(setting));
        if setting.form != Form::Switch && !setting.default.is_empty() {
            help.push_str(&format!(" [default: {}]", setting.default));
        }
        let arg = Arg::new(setting.name).help(help).value_name(setting.value);
        if setting.place == Place::Argument {
            return arg.allow_hyphen_values(false);
        }
        let arg = arg.long(setting.flag).visible_aliases(setting.alias);
        match setting.form {
            // --capture=false overrides a variable or the file.
            Form::Switch => arg
                .value_name("true|false")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .hide_possible_values(true),
            Form::Optional(alone) => arg.num_args(0..=1).default_missing_value(alone),
            Form::List | Form::Sections(_) => arg.action(ArgAction::Append),
            _ => arg,
        }
    }

    /// Returns the settings of the command line; those of a command override those before it.
    #[must_use]
    pub fn line_layer(&self, given: &ArgMatches) -> Layer {
        let mut layer = self.flat_layer(given);
        if let Some((_, given)) = given.subcommand() {
            layer.0.extend(self.line_layer(given).0);
        }
        layer
    }

    fn flat_layer(&self, given: &ArgMatches) -> Layer {
        let mut layer = Layer::default();
        for setting in self.settings {
            // Not every command has every setting.
            let Ok(Some(texts)) = given.try_get_many::<String>(setting.name) else {
                continue;
            };
            let origin = Origin::Line(match setting.place {
                Place::Argument => setting.value.to_owned(),
                _ => format!("--{}", setting.flag),
            });
            layer.put(setting, origin, Value::Texts(texts.cloned().collect()));
        }
        layer
    }

    /// Returns the command `config check` of a program that the command `run` runs.
    #[must_use]
    pub fn config_command(self, run: &str) -> Command {
        let after = format!(
            "Takes all options of '{run}', and reads the environment and the file as it does.\n\n\
             Exit codes:\n  \
             0  the settings are valid; all are shown, each with its origin, without secrets\n  \
             2  they are not; each problem is shown with its origin"
        );
        Command::new("config")
            .about("Check settings")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(
                Command::new("check")
                    .about("Print every problem of the settings, or every setting with its origin")
                    .after_help(after)
                    .args(self.options())
                    .arg(json_flag("Print JSON")),
            )
    }
}

/// Returns the flag `--json`.
#[must_use]
pub fn json_flag(help: &'static str) -> Arg {
    Arg::new(JSON)
        .long(JSON)
        .action(ArgAction::SetTrue)
        .help(help)
}

/// Whether `--json` is given.
#[must_use]
pub fn wants_json(given: &ArgMatches) -> bool {
    matches!(given.try_get_one::<bool>(JSON), Ok(Some(true)))
}
