//! What one of flags, environment and file says, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::table::Setting;

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

/// One setting as it was given. Has no `Debug`: it may be a secret.
#[derive(Clone)]
pub struct Given {
    /// Where.
    pub origin: Origin,
    /// What.
    pub value: Value,
}

impl Given {
    /// Its texts; none where it is tables.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        match &self.value {
            Value::Texts(texts) => texts,
            Value::Sections(_) => &[],
        }
    }
}

/// The value of a setting before it has its type. Has no `Debug`: it may be a secret.
#[derive(Clone)]
pub enum Value {
    /// One text, or several for a setting that can be repeated.
    Texts(Vec<String>),
    /// Tables of a TOML file.
    Sections(Vec<Section>),
}

/// A `[[name]]` table of a TOML file.
#[derive(Clone)]
pub struct Section {
    /// Where it begins.
    pub origin: Origin,
    /// Its keys, each with where it stands.
    pub keys: BTreeMap<&'static str, (Origin, Vec<String>)>,
}

/// What one of flags, environment and file says, by the names of the settings.
#[derive(Clone, Default)]
pub struct Layer(pub BTreeMap<&'static str, Given>);

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values, some of which are secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Layer {
    /// Sets a setting.
    pub fn put(&mut self, setting: &'static Setting, origin: Origin, value: Value) {
        self.0.insert(setting.name, Given { origin, value });
    }

    /// What it says of a setting, as one text: the last one, where there are several.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        let given = self.0.get(name)?;
        let text = given.texts().last()?;
        Some((&given.origin, text.as_str()))
    }
}

/// The layers, the strongest first.
#[derive(Debug, Clone, Default)]
pub struct Layers(pub Vec<Layer>);

impl Layers {
    /// What the strongest layer says that says anything of `name`.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&Given> {
        self.with_any(&[name])?.0.get(name)
    }

    /// The same as one text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        self.with_any(&[name])?.text(name)
    }

    /// The strongest layer that says something of one of `names`.
    #[must_use]
    pub fn with_any(&self, names: &[&str]) -> Option<&Layer> {
        let has = |layer: &&Layer| names.iter().any(|name| layer.0.contains_key(name));
        self.0.iter().find(has)
    }
}
