//! What one of flags, environment and file says, as text.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::table::{SETTINGS, Setting};

/// Where something was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// On the command line, by this flag or argument.
    Line(String),
    /// In this environment variable.
    Variable(String),
    /// In a TOML file.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As it is written there.
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(flag) => f.write_str(flag),
            Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line, key } => {
                write!(f, "{} line {line}: {key}", path.display())
            }
        }
    }
}

/// One setting as it was given.
#[derive(Debug, Clone)]
pub struct Given {
    /// Where.
    pub origin: Origin,
    /// What: several texts only for a list.
    pub texts: Vec<String>,
}

/// What one of flags, environment and file says.
#[derive(Debug, Clone, Default)]
pub struct Layer(pub BTreeMap<&'static str, Given>);

impl Layer {
    /// What the environment says, which `variable` looks up, and what is wrong with it. An empty
    /// variable, as a compose file makes it of one that is not set, is none.
    pub fn of_environment<T: Into<OsString>>(
        variable: impl Fn(&str) -> Option<T>,
    ) -> (Layer, Vec<String>) {
        let mut layer = Layer::default();
        let mut problems = Vec::new();
        for setting in SETTINGS {
            let own = setting.variable();
            let general = setting.general_variable().map(str::to_owned);
            let set = std::iter::once(own).chain(general).find_map(|name| {
                let given: OsString = variable(&name)?.into();
                (!given.is_empty()).then_some((name, given))
            });
            let Some((name, given)) = set else {
                continue;
            };
            // What is guessed for other bytes is another text: another folder, above all.
            let Ok(text) = given.into_string() else {
                problems.push(format!(
                    "{name}: is not UTF-8 text, as every setting has to be"
                ));
                continue;
            };
            if text.trim().is_empty() {
                continue;
            }
            layer.put(setting, Origin::Variable(name), vec![text]);
        }
        (layer, problems)
    }

    /// Sets a setting.
    pub fn put(&mut self, setting: &Setting, origin: Origin, texts: Vec<String>) {
        // The name of the table's own, which lives for ever.
        if let Some(setting) = SETTINGS.iter().find(|known| known.name == setting.name) {
            self.0.insert(setting.name, Given { origin, texts });
        }
    }

    /// What it says of a setting, as one text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        let given = self.0.get(name)?;
        given
            .texts
            .last()
            .map(|text| (&given.origin, text.as_str()))
    }
}

/// The layers, the strongest first.
#[derive(Debug, Clone, Default)]
pub struct Layers(pub Vec<Layer>);

impl Layers {
    /// What the strongest layer says that says anything of `name`.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&Given> {
        self.0.iter().find_map(|layer| layer.0.get(name))
    }

    /// The same as one text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        self.0
            .iter()
            .find(|layer| layer.0.contains_key(name))
            .and_then(|layer| layer.text(name))
    }
}
