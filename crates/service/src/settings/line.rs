//! Command-line options of the settings, and their values on a command line.

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

use super::layer::Layer;
use super::setting::{Form, Table, as_text};

impl Table<'_> {
    /// Returns the options of the settings that can be on the command line, of those that are
    /// `wanted` by their names. Clap reads no variables: they are a layer of their own, and it
    /// would quote their values, some of which are secrets.
    pub fn options(self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = Arg> {
        let settings = self.settings().into_iter();
        let settings = settings.filter(move |s| s.on_line() && wanted(&s.name));
        settings.map(move |setting| {
            let help = setting.arg.get_help().cloned().unwrap_or_default();
            let help = format!("{help} [env: {}]", self.variable(&setting));
            let arg = as_text(setting.arg.clone()).help(help);
            let arg = arg.value_parser(ValueParser::string());
            match setting.form() {
                Form::List | Form::Tables => arg.action(ArgAction::Append),
                _ => arg,
            }
        })
    }

    /// Returns the settings of the command line; those of a command override those before it.
    pub fn line_layer(&self, given: &ArgMatches) -> Layer {
        let mut layer = Layer::default();
        for setting in self.settings() {
            let id = setting.arg.get_id().as_str();
            // Not every command has every setting.
            let Ok(Some(texts)) = given.try_get_many::<String>(id) else {
                continue;
            };
            if given.value_source(id) == Some(ValueSource::CommandLine) {
                let flag = setting.arg.get_long().map(|flag| format!("--{flag}"));
                let origin = flag.unwrap_or_else(|| setting.value_name().to_owned());
                layer.put(&setting.name, origin.into(), setting.items(texts));
            }
        }
        if let Some((_, given)) = given.subcommand() {
            layer.0.extend(self.line_layer(given).0);
        }
        layer
    }
}
