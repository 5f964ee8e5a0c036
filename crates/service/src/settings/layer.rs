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
        /// Key as written there; empty for none in particular.
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(flag) => f.write_str(flag),
            Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line, key } => {
                write!(f, "{} line {line}", path.display())?;
                match key.as_str() {
                    "" => Ok(()),
                    key => write!(f, ": {key}"),
                }
            }
        }
    }
}

/// A problem of the settings, in words for the operator. Quotes no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Origin of the wrong value; `None` where several are wrong together.
    pub origin: Option<Origin>,
    /// Problem.
    pub what: String,
}

impl Problem {
    /// Returns the line in a file; the greatest number for other origins, which sort after it.
    #[must_use]
    pub fn line(&self) -> usize {
        match &self.origin {
            Some(Origin::File { line, .. }) => *line,
            _ => usize::MAX,
        }
    }
}

impl From<String> for Problem {
    fn from(what: String) -> Self {
        Self { origin: None, what }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.what),
            None => f.write_str(&self.what),
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

    /// Returns its text: all of a list, separated by commas. None where it has tables.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match &self.value {
            Value::Texts(texts) => Some(texts.join(",")),
            Value::Sections(_) => None,
        }
    }

    /// Returns its tables; none where it has texts.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        match &self.value {
            Value::Texts(_) => &[],
            Value::Sections(sections) => sections,
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
    /// Keys as given.
    pub keys: BTreeMap<&'static str, Given>,
}

impl Section {
    /// Returns a key as one text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<(&Origin, String)> {
        let given = self.keys.get(key)?;
        Some((&given.origin, given.text()?))
    }

    /// Returns the tables within it that have this name.
    #[must_use]
    pub fn sections(&self, key: &str) -> &[Section] {
        self.keys.get(key).map_or(&[], Given::sections)
    }
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
        self.all(name).next()
    }

    /// Returns the setting of every layer that has it, the strongest first.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &Given> {
        self.0.iter().filter_map(move |layer| layer.0.get(name))
    }

    /// Returns the number of layers stronger than the one that has the setting.
    #[must_use]
    pub fn stronger(&self, name: &str) -> usize {
        let mut layers = self.0.iter();
        let at = layers.position(|layer| layer.0.contains_key(name));
        at.unwrap_or(self.0.len())
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
