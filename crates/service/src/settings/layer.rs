//! Settings of one place, flags, environment or file, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::setting::Setting;

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
            Origin::Line(name) | Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line, key } => {
                let colon = if key.is_empty() { "" } else { ": " };
                write!(f, "{} line {line}{colon}{key}", path.display())
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
    /// Returns a problem of what is given there.
    #[must_use]
    pub fn at(origin: &Origin, what: impl Into<String>) -> Self {
        Self {
            origin: Some(origin.clone()),
            what: what.into(),
        }
    }

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
    /// One text, or several for a setting that can be repeated; none for tables.
    pub texts: Vec<String>,
    /// Tables.
    pub sections: Vec<Section>,
}

/// A `[[name]]` table of a TOML file, or the first key of one as given elsewhere.
#[derive(Clone)]
pub struct Section {
    /// Origin of its header.
    pub origin: Origin,
    /// Keys as given.
    pub keys: Layer,
}

/// Settings of one place, by name.
#[derive(Clone, Default)]
pub struct Layer(pub BTreeMap<String, Given>);

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values, some of which are secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Layer {
    /// Sets a setting; one that is tables has the first key of each.
    pub fn put(&mut self, setting: &Setting, origin: Origin, mut texts: Vec<String>) {
        let mut sections = Vec::new();
        if let Some(tables) = setting.tables {
            let keys = tables.keys.settings();
            let items = setting.items(&std::mem::take(&mut texts)).into_iter();
            let items = items.filter(|text| !text.trim().is_empty());
            sections.extend(
                items
                    .zip(std::iter::repeat(keys.first()))
                    .map(|(text, first)| {
                        let mut keys = Layer::default();
                        first
                            .into_iter()
                            .for_each(|key| keys.put(key, origin.clone(), vec![text.clone()]));
                        let origin = origin.clone();
                        Section { origin, keys }
                    }),
            );
        }
        let given = Given {
            origin,
            texts,
            sections,
        };
        self.0.insert(setting.name.clone(), given);
    }

    /// Returns a setting as one text: the last one of several.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        let given = self.0.get(name)?;
        let text = given.texts.last()?;
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
        self.0.iter().find_map(|layer| layer.0.get(name))
    }

    /// Returns the origin of a setting in words.
    #[must_use]
    pub fn origin(&self, name: &str) -> String {
        let given = self.given(name);
        given.map_or_else(|| "default".to_owned(), |given| given.origin.to_string())
    }

    /// Returns the tables of the strongest layer that has them.
    #[must_use]
    pub fn sections(&self, name: &str) -> &[Section] {
        self.given(name).map_or(&[], |given| &given.sections)
    }

    /// Returns the same as one text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        self.0.iter().find_map(|layer| layer.text(name))
    }
}
