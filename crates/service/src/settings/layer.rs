//! Settings of one place, flags, environment or file, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::table::Setting;

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This flag or argument of the command line.
    Line(String),
    /// This environment variable.
    Variable(String),
    /// A TOML file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// Key as written there.
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

/// A setting as given. Has no `Debug`: it may be a secret.
#[derive(Clone)]
pub struct Given {
    /// Origin.
    pub origin: Origin,
    /// Value.
    pub value: Value,
}

impl Given {
    /// Returns its texts; none where it has tables.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        match &self.value {
            Value::Texts(texts) => texts,
            Value::Sections(_) => &[],
        }
    }
}

/// Unparsed value of a setting. Has no `Debug`: it may be a secret.
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
    /// Origin of its header.
    pub origin: Origin,
    /// Keys with their origins and texts.
    pub keys: BTreeMap<&'static str, (Origin, Vec<String>)>,
}

/// Settings of one place, by name.
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

    /// Returns a setting as one text: the last one of several.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        let given = self.0.get(name)?;
        let text = given.texts().last()?;
        Some((&given.origin, text.as_str()))
    }
}

/// Layers, the strongest first.
#[derive(Debug, Clone, Default)]
pub struct Layers(pub Vec<Layer>);

impl Layers {
    /// Returns the setting of the strongest layer that has it.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&Given> {
        self.with_any(&[name])?.0.get(name)
    }

    /// Returns the same as one text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        self.with_any(&[name])?.text(name)
    }

    /// Returns the strongest layer that has one of `names`.
    #[must_use]
    pub fn with_any(&self, names: &[&str]) -> Option<&Layer> {
        let has = |layer: &&Layer| names.iter().any(|name| layer.0.contains_key(name));
        self.0.iter().find(has)
    }
}
