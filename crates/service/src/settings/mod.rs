//! Settings of a program: by flags, by the environment, by a TOML file, in that order.
//!
//! 1. A program declares every setting once, in a [`Table`]. Flags and help ([`mod@line`]),
//!    variables ([`variables`]), keys of the file ([`mod@file`]) and `config check` ([`check`])
//!    follow from it.
//! 2. Each of the three places makes a [`Layer`]: texts with their origins. A default is in no
//!    layer: it overrides nothing. [`Table::gather`] collects the layers.
//! 3. A [`Taker`] takes each setting from the first layer that has it, parses it, and collects all
//!    problems, so that the operator sees them at once. [`Table::load`] does all of it.

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

pub use layer::{Given, Layer, Layers, Origin, Problem, Section, Value};
pub use table::{Form, Key, Place, Setting, Table};
pub use take::{Taker, quoting};
pub use variables::Environment;

/// All problems of the settings, a line each, in words for the operator. Quotes no secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);

/// Settings with their origins and warnings.
#[derive(Debug, Clone)]
pub struct Loaded<S> {
    /// The settings.
    pub settings: S,
    /// Warnings about settings that are valid but perhaps not meant.
    pub warnings: Vec<String>,
    /// Origins of the settings.
    pub layers: Layers,
}

impl Table {
    /// Returns the settings of the command line, the environment and the TOML file that either
    /// names, as `take` reads them.
    ///
    /// # Errors
    /// All problems of the settings.
    pub fn load<S>(
        &self,
        line: Layer,
        environment: &Environment,
        take: impl FnOnce(&mut Taker<'_>) -> S,
    ) -> Result<Loaded<S>, Problems> {
        let (layers, problems) = self.gather(line, environment);
        let mut taker = Taker::new(self, &layers, problems);
        let settings = take(&mut taker);
        Ok(Loaded {
            settings: taker.finish(settings)?,
            warnings: self.warnings(environment),
            layers,
        })
    }

    /// Returns only some of the settings, for a command that needs no others.
    ///
    /// # Errors
    /// The problems of these settings, and of all places of settings.
    pub fn load_some<T>(
        &self,
        line: Layer,
        environment: &Environment,
        take: impl FnOnce(&mut Taker<'_>) -> T,
    ) -> Result<T, Problems> {
        let (layers, problems) = self.gather(line, environment);
        let mut taker = Taker::new(self, &layers, problems);
        let taken = take(&mut taker);
        taker.finish(taken)
    }

    /// Collects the layers of the command line, the environment and the TOML file that either
    /// names, the strongest first, and their problems.
    #[must_use]
    pub fn gather(&self, line: Layer, environment: &Environment) -> (Layers, Vec<Problem>) {
        let (variables, mut problems) = self.variables_layer(environment);
        let mut layers = Layers(vec![line, variables]);
        let named = layers.text(table::CONFIG);
        if let Some((_, path)) = named.filter(|(_, path)| self.strict || !path.is_empty()) {
            let (layer, more) = self.file_layer(Path::new(path));
            problems.extend(more);
            layers.0.push(layer);
        }
        (layers, problems)
    }
}
