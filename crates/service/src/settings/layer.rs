//! Settings of one place, flags, environment or file, as text.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

/// Origin of a setting that is not given.
pub const DEFAULT: &str = "default";

/// A text for the operator, and the line that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Located {
    /// Line in a file, counted from 1; the greatest number where there is none, which sorts last.
    pub line: usize,
    /// Text.
    pub text: String,
}

/// Origin of a value: flag, argument or environment variable; or the file with its line and key.
pub type Origin = Located;

/// A problem of the settings, with the origin of the wrong value unless several are wrong together.
/// Quotes no secret.
pub type Problem = Located;

impl Located {
    /// Returns a problem of what is given there.
    pub fn at(origin: &Origin, what: impl fmt::Display) -> Problem {
        let (line, text) = (origin.line, format!("{origin}: {what}"));
        Self { line, text }
    }
}

impl From<String> for Located {
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
    /// Its text, or the items of a list. A `[[name]]` table is an item that [`table`] reads.
    ///
    /// [`table`]: super::table
    pub texts: Vec<String>,
    /// Origins of the texts: those of tables have lines of their own.
    pub at: Vec<Origin>,
}

impl Given {
    /// Returns texts of one origin.
    pub fn new(origin: Origin, texts: Vec<String>) -> Self {
        let at = vec![origin.clone(); texts.len()];
        Self { origin, texts, at }
    }
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
    /// Sets a setting.
    pub fn put(&mut self, name: &str, origin: Origin, texts: Vec<String>) {
        self.0.insert(name.to_owned(), Given::new(origin, texts));
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
        given.map_or_else(|| DEFAULT.to_owned(), |given| given.origin.to_string())
    }

    /// Returns the origins of the texts of a setting, which may be tables.
    pub fn each(&self, name: &str) -> &[Origin] {
        self.given(name).map_or(&[], |given| &given.at)
    }

    /// Returns the same as one text.
    pub fn text(&self, name: &str) -> Option<(&Origin, &str)> {
        self.0.iter().find_map(|layer| layer.text(name))
    }
}
