//! What one of flags, environment and file says, as text.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::table::{Form, SETTINGS, Setting};

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
#[derive(Clone)]
pub struct Given {
    /// Where.
    pub origin: Origin,
    /// What.
    pub value: Value,
}

/// The value of a setting before it has its type. Has no `Debug`: it may be a secret.
#[derive(Clone)]
pub enum Value {
    /// One text, or several for a setting that can be repeated.
    Texts(Vec<String>),
    /// Tables of a TOML file.
    Tables(Vec<Table>),
}

/// A table of a TOML file.
#[derive(Clone)]
pub struct Table {
    /// Where it begins.
    pub origin: Origin,
    /// Its keys, each with where it stands.
    pub keys: BTreeMap<&'static str, (Origin, Vec<String>)>,
}

/// What one of flags, environment and file says.
#[derive(Clone, Default)]
pub struct Layer(pub BTreeMap<&'static str, Given>);

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values, some of which are secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Layer {
    /// What the environment says, which `variable` looks up, and what is wrong with it. An empty
    /// variable, as a compose file makes it of one that is not set, is none.
    pub fn of_environment<T: Into<OsString>>(
        variable: impl Fn(&str) -> Option<T>,
    ) -> (Layer, Vec<String>) {
        let mut layer = Layer::default();
        let mut problems = Vec::new();
        for setting in SETTINGS {
            let name = setting.variable();
            let Some(given) = variable(&name) else {
                continue;
            };
            // What is guessed for other bytes is another text: another folder, above all.
            let Ok(text) = given.into().into_string() else {
                problems.push(format!(
                    "{name}: is not UTF-8 text, as every setting has to be"
                ));
                continue;
            };
            if text.trim().is_empty() {
                continue;
            }
            let texts = match setting.name {
                // URLs have no white space; commands do.
                "webhook" => text.split_whitespace().map(str::to_owned).collect(),
                _ => vec![text],
            };
            layer.put(setting, Origin::Variable(name), Value::Texts(texts));
        }
        (layer, problems)
    }

    /// Sets a setting.
    pub fn put(&mut self, setting: &Setting, origin: Origin, value: Value) {
        // The name of the table's own, which lives for ever.
        if let Some(setting) = SETTINGS.iter().find(|known| known.name == setting.name) {
            self.0.insert(setting.name, Given { origin, value });
        }
    }

    /// What it says of a setting, as one text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        let given = self.0.get(name)?;
        match &given.value {
            Value::Texts(texts) => texts.last().map(|text| (&given.origin, text.as_str())),
            Value::Tables(_) => None,
        }
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

    /// The strongest layer that says something of one of `names`.
    #[must_use]
    pub fn with_any(&self, names: &[&str]) -> Option<&Layer> {
        let has = |layer: &&Layer| names.iter().any(|name| layer.0.contains_key(name));
        self.0.iter().find(has)
    }
}

/// What may be shown of a setting.
#[must_use]
pub fn shown(setting: &Setting, text: &str) -> String {
    match (setting.form, setting.name) {
        (_, "link") => crate::link::redact(text),
        (_, "webhook") => super::values::shown_address(text),
        // Commands have passwords in them, and are long.
        (_, "exec") => "(a command)".to_owned(),
        (Form::Secret, _) => "(secret)".to_owned(),
        _ => service::peer_text::plain(text),
    }
}
