//! Settings in environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::layer::{Layer, Origin, Value};
use super::table::Table;
use crate::environment::is_meant_for;
use crate::nearest::nearest;
use crate::peer_text::plain;

/// Environment variables. An empty one, as compose files make of unset ones, counts as none.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Returns the variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self::with(
            std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value)),
        )
    }

    /// Returns an environment of these variables.
    #[must_use]
    pub fn with<N: Into<String>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let owned = |(name, value): (N, V)| (name.into(), value.into());
        Self(variables.into_iter().map(owned).collect())
    }

    /// Returns the value of a variable that is set and not empty.
    fn value(&self, name: &str) -> Option<&OsString> {
        self.0.get(name).filter(|value| !value.is_empty())
    }
}

impl Table {
    /// Returns the settings of the environment, and their problems.
    #[must_use]
    pub fn variables_layer(&self, environment: &Environment) -> (Layer, Vec<String>) {
        let mut layer = Layer::default();
        let mut problems = Vec::new();
        for setting in self.settings {
            let own = self.variable(setting);
            let general = setting.general_variable.map(str::to_owned);
            let mut names = std::iter::once(own).chain(general);
            let set = names.find_map(|name| environment.value(&name).map(|value| (name, value)));
            let Some((name, value)) = set else {
                continue;
            };
            // A replacement of other bytes would be another text: another folder, above all.
            let Some(text) = value.to_str() else {
                problems.push(format!(
                    "{name}: is not UTF-8 text, as every setting has to be"
                ));
                continue;
            };
            if text.trim().is_empty() {
                continue;
            }
            let texts = match setting.words {
                true => text.split_whitespace().map(str::to_owned).collect(),
                false => vec![text.to_owned()],
            };
            layer.put(setting, Origin::Variable(name), Value::Texts(texts));
        }
        (layer, problems)
    }

    /// Returns variables with the prefix that are no settings, with suggestions: mistyped, or
    /// unknown to this build.
    #[must_use]
    pub fn unknown_variables(&self, environment: &Environment) -> Vec<String> {
        let known: Vec<String> = self.settings.iter().map(|s| self.variable(s)).collect();
        // Without the prefix, which makes all names similar.
        let own = |name: &str| name.get(self.prefix.len()..).unwrap_or_default().to_owned();
        let known_own: Vec<String> = known.iter().map(|name| own(name)).collect();
        let unknown = environment.0.iter().filter(|(name, value)| {
            is_meant_for(self.prefix, name, &value.to_string_lossy())
                && !self.other_variables.contains(&name.as_str())
                && !known.contains(name)
        });
        let unknown = unknown.map(|(name, _)| {
            match nearest(&own(name), known_own.iter().map(String::as_str)) {
                Some(meant) => format!("{} (is {}{meant} meant?)", plain(name), self.prefix),
                None => plain(name),
            }
        });
        unknown.collect()
    }

    /// Returns a warning for each unknown variable.
    #[must_use]
    pub fn warnings(&self, environment: &Environment) -> Vec<String> {
        let unknown = self.unknown_variables(environment).into_iter();
        let warning = |name| {
            format!("the environment variable {name} is no setting of this program and is ignored")
        };
        unknown.map(warning).collect()
    }
}
