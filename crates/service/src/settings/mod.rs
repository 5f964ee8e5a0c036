//! Settings of a program: by flags, by the environment, by a TOML file, in that order.
//!
//! 1. A program names every setting once, in a [`Table`]. Flags and help ([`line`]), variables
//!    ([`variables`]), keys of the file ([`file`]) and `config check` ([`check`]) follow from it.
//! 2. What one of the three places says is a [`Layer`]: texts, each with where it stands. A default is
//!    in no layer: it can win over nothing. [`Table::gather`] brings the layers together.
//! 3. A [`Taker`] takes each setting from the first layer that has it, gives it its type, and collects
//!    everything that is wrong, so that the operator is told all of it at once.
//!
//! The relay, the receiver and the console have all of it from here; the source has a table of its
//! own kind, because its channels come from a file and from a database as well.

pub mod check;
pub mod file;
pub mod layer;
pub mod line;
pub mod table;
pub mod take;
pub mod variables;

#[cfg(test)]
mod tests;

use std::path::Path;

use thiserror::Error;

pub use layer::{Given, Layer, Layers, Origin, Section, Value};
pub use table::{Form, Key, KeyForm, Place, Setting, Table};
pub use take::Taker;
pub use variables::Environment;

/// What is wrong with the settings: all of it, a line each, in words for the operator. Quotes no
/// secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);

/// Settings, and what is worth saying about them.
#[derive(Debug, Clone)]
pub struct Loaded<S> {
    /// The settings.
    pub settings: S,
    /// What is not wrong but perhaps not meant.
    pub warnings: Vec<String>,
    /// Who said what.
    pub layers: Layers,
}

impl Table {
    /// Joins what the command line says with the environment and the TOML file that either names:
    /// the layers, the strongest first, and what is wrong with them.
    #[must_use]
    pub fn gather(&self, line: Layer, environment: &Environment) -> (Layers, Vec<String>) {
        let (variables, mut problems) = self.variables_layer(environment);
        let mut layers = Layers(vec![line, variables]);
        let named = layers.text(table::CONFIG);
        if let Some((_, path)) = named.filter(|(_, path)| !path.is_empty()) {
            let (layer, more) = self.file_layer(Path::new(path));
            problems.extend(more);
            layers.0.push(layer);
        }
        (layers, problems)
    }
}
