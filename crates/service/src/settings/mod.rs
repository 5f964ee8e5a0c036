//! Settings of a program: by flags, by the environment, by a TOML file, in that order.
//!
//! A program declares each setting once, as a field of a struct that derives [`clap::Args`]. The
//! environment, the file and its tables are other ways to write that command line.
//!
//! | declaration | meaning |
//! |---|---|
//! | doc comment | help; `[default: …]` at its end is a default in words |
//! | `long` | name: flag `--udp-ports`, variable `PREFIX_UDP_PORTS`, key `udp_ports` |
//! | `default_value`, `value_parser` | default and type; without default and `Option`: required |
//! | `bool` | switch: the flag alone is true, `--x=false` overrides weaker places |
//! | `PathBuf` | path: in the file, a relative one counts from the file's folder |
//! | `Vec` | list: separated by the `value_delimiter`, the flag repeated, or an array in the file |
//! | `value_name = "LIST"` | the same, but parsed as one text with commas |
//! | `num_args = 0..=1` | value that may be left out: true or false in the file, too |
//! | `conflicts_with` | of two, the stronger place counts; both in one place are a problem |
//! | `env` | another variable, without the prefix, read where its own is not set |
//! | `hide_env_values` | secret: never shown, and read from the file that `NAME_FILE` names, too |
//! | `hide` | no flag: it would be visible in the list of processes |
//! | `value_parser = table::<T>` | `[[name]]` tables, declared as [`Keys`]; `T` derives `Args` |
//!
//! Each place makes a [`Layer`]: texts with their origins. [`Table::gather`] collects the layers;
//! [`Table::load`] parses the strongest text of each setting and reports all problems at once.

pub mod check;
pub mod file;
pub mod layer;
pub mod line;
pub mod parse;
pub mod setting;
pub mod variables;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use clap::FromArgMatches;
use thiserror::Error;

use crate::values::listen;

pub use layer::{Given, Layer, Layers, Origin, Problem};
pub use parse::{Check, table};
pub use setting::{Form, Keys, Setting, Table, Tables};
pub use variables::Environment;

/// All problems of the settings, a line each, in words for the operator. Quotes no secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct Problems(pub Vec<String>);

impl From<Vec<Problem>> for Problems {
    /// Sorts the problems of the file by their lines, then come the others.
    fn from(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.line);
        Self(problems.into_iter().map(|problem| problem.text).collect())
    }
}

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

impl Table<'_> {
    /// Returns the settings of the command line, the environment and the TOML file that either
    /// names. `check` sees them even if there are problems with some, which have their defaults.
    ///
    /// # Errors
    /// All problems of the settings.
    pub fn load<S: FromArgMatches>(
        &self,
        line: Layer,
        environment: &Environment,
        check: impl FnOnce(&mut S, &mut Check),
    ) -> Result<Loaded<S>, Problems> {
        self.resolve(self.gather(line, environment), check)
    }

    /// Returns only the address of the setting `name`, an HTTP listener; `None` for none.
    ///
    /// # Errors
    /// The settings that could name it cannot be read.
    pub fn http(
        &self,
        name: &str,
        line: Layer,
        environment: &Environment,
    ) -> Result<Option<SocketAddr>, Problems> {
        let given = self.load_some(line, environment, &[name])?;
        let texts = given.try_get_raw(name).ok().flatten();
        let text = texts.and_then(Iterator::last);
        Ok(text.and_then(|text| listen(text.to_str()?, 0).ok()))
    }

    /// Collects the settings of the command line, the environment and the TOML file that either
    /// names. Files with secrets are read only where nothing stronger is given; those that tables
    /// name always are.
    pub fn gather(&self, line: Layer, environment: &Environment) -> Check {
        let (variables, mut problems) = self.variables_layer(environment);
        let mut layers = Layers(vec![line, variables]);
        if let Some((_, path)) = layers.text(setting::CONFIG) {
            let (layer, more) = self.file_layer(Path::new(path));
            problems.extend(more);
            layers.0.push(layer);
        }
        let mut stronger = BTreeSet::new();
        for layer in &mut layers.0 {
            let wanted = |name: &str| self.wants(name) && !stronger.contains(name);
            variables::open_files(&self.keys, layer, wanted, &mut problems);
            stronger.extend(layer.0.keys().cloned());
        }
        Check {
            layers,
            warnings: self.warnings(environment),
            problems,
        }
    }
}
