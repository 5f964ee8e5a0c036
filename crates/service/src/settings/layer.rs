//! Settings of one place, flags, environment or file, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

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
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Problem {
    /// Line in a file; the greatest number for other origins, which sort after it.
    pub line: usize,
    /// Problem, with the origin of the wrong value unless several are wrong together.
    pub text: String,
}

impl Problem {
    /// Returns a problem of what is given there.
    pub fn at(origin: &Origin, what: impl fmt::Display) -> Self {
        let line = match origin {
            Origin::File { line, .. } => *line,
            _ => usize::MAX,
        };
        let text = format!("{origin}: {what}");
        Self { line, text }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        let line = usize::MAX;
        Self { line, text }
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
        if let Some(first) = setting
            .tables
            .and_then(|keys| keys.settings().into_iter().next())
        {
            for text in setting.items(&std::mem::take(&mut texts)) {
                let (origin, mut keys) = (origin.clone(), Layer::default());
                keys.put(&first, origin.clone(), vec![text]);
                sections.push(Section { origin, keys });
            }
        }
        let given = Given {
            origin,
            texts,
            sections,
        };
        self.0.insert(setting.name.clone(), given);
    }

    /// Returns a setting as one text: the last one of several.
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        let given = self.0.get(name)?;
        Some((&given.origin, given.texts.last()?))
    }
}

/// Layers, the strongest first.
#[derive(Debug, Clone, Default)]
pub struct Layers(pub Vec<Layer>);

impl Layers {
    /// Returns the setting of the strongest layer that has it.
    pub fn given(&self, name: &str) -> Option<&Given> {
        self.0.iter().find_map(|layer| layer.0.get(name))
    }

    /// Returns the origin of a setting in words.
    pub fn origin(&self, name: &str) -> String {
        let given = self.given(name);
        given.map_or_else(|| "default".to_owned(), |given| given.origin.to_string())
    }

    /// Returns the tables of the strongest layer that has them.
    pub fn sections(&self, name: &str) -> &[Section] {
        self.given(name).map_or(&[], |given| &given.sections)
    }

    /// Returns the same as one text.
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        self.0.iter().find_map(|layer| layer.text(name))
    }
}
